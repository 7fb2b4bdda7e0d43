"""What the arguments that Lightning 2 took off its Trainer are called now.

https://lightning.ai/docs/pytorch/stable/upgrade/from_1_9.html and the pages beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from ...rewriting.edits import FileEdit
from ..editing.references import quoted, reference
from ..facts import Argument
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Display, Literal
from .lightning import LightningTrainer
from .trainer_names import CURRENT, INSTEAD, RENAMED, WITHOUT_EFFECT

_BACKENDS = frozenset({"dp", "ddp", "ddp2", "ddp_cpu", "ddp_spawn", "horovod"})
_UNSET = object()


@dataclass(frozen=True)
class Translation:
    """The call's arguments in today's words: what stands for each old keyword, nothing when it is left out.

    ``added`` are arguments that come last, ``imports`` what they take. ``other_batches`` is set when the optimizer steps on other batches than before; ``notes`` tell what changes.
    """

    arguments: Mapping[str, tuple[str, ...]]
    added: tuple[str, ...]
    imports: tuple[FileEdit, ...]
    notes: tuple[str, ...]
    other_batches: bool


class Untranslatable(Exception):
    """Says which argument has no equal."""


def translated(resolver: Resolver, trainer: LightningTrainer, half: str) -> Translation:
    """``trainer`` as Lightning 2 wants it; ``half`` is what ``precision=16`` becomes.

    Raises :class:`Untranslatable` when one of its old arguments has no equal, or a value that is not known.
    """
    return _Translator(resolver, trainer, half).translation()


class _Translator:
    def __init__(self, resolver: Resolver, trainer: LightningTrainer, half: str) -> None:
        self._resolver = resolver
        self._module: Module = trainer.module
        self._given = trainer.arguments
        self._half = half
        self._found: dict[str, tuple[str, ...]] = {}
        self._notes: list[str] = []
        self._other_batches = False
        self._trainer = trainer
        self._callbacks: list[str] = []
        self._imports: tuple[FileEdit, ...] = ()

    def translation(self) -> Translation:
        for name in self._given:
            if name in RENAMED:
                self._found[name] = (f"{RENAMED[name]}={self._code(name)}",)
            elif name in WITHOUT_EFFECT:
                self._without_effect(name)
        self._devices()
        self._precision()
        self._reports()
        unknown = [n for n in self._given if n not in CURRENT and n not in self._found]
        if unknown and self._found:
            name = unknown[0]
            raise Untranslatable(f"`{name}={self._code(name)}` is no argument of Lightning 2's")
        clashes = [n for n in self._written() if n in self._given.keys() - self._found.keys()]
        if clashes:
            raise Untranslatable(f"`{clashes[0]}` is given already")
        is_old = self._found.keys() - {"precision", "profiler", "strategy"}
        if is_old and "accelerator" not in [*self._given, *self._written()]:
            self._notes.append("where no device is named it takes a GPU if there is one")
        added: tuple[str, ...] = ()
        if self._callbacks:
            added = (f"callbacks=[{', '.join(self._callbacks)}]",)
            if "callbacks" in self._given:
                self._found["callbacks"], added = added, ()
        return Translation(
            self._found, added, self._imports, tuple(self._notes), self._other_batches
        )

    def _written(self) -> list[str]:
        return [code.partition("=")[0] for codes in self._found.values() for code in codes]

    def _code(self, name: str) -> str:
        return self._module.code(self._given[name].value)

    def _quoted(self, text: str) -> str:
        return quoted(self._module, text)

    def _value(self, name: str) -> object:
        """The value of an argument; ``_UNSET`` when it is not given."""
        if name not in self._given:
            return _UNSET
        value = _known(self._resolver, self._given[name])
        if value is None and not _is_none(self._resolver, self._given[name]):
            raise Untranslatable(f"the value of `{name}={self._code(name)}` is not known")
        return value

    def _without_effect(self, name: str) -> None:
        if name == "max_steps" and not _is_none(self._resolver, self._given[name]):
            return
        if name == "early_stop_callback" and self._makes(self._given[name], "EarlyStopping"):
            self._found[name] = ()
            self._add_callback(self._code(name))
            return
        given = self._given[name]
        is_known = _known(self._resolver, given) is not None or _is_none(self._resolver, given)
        if name in INSTEAD and not is_known:
            raise Untranslatable(f"`{name}={self._code(name)}` has no equal: {INSTEAD[name]}")
        value = self._value(name)
        if not any(
            value is said or (value == said and type(value) is type(said))
            for said in WITHOUT_EFFECT[name]
        ):
            instead = INSTEAD.get(name, "it was removed in Lightning 2.0")
            raise Untranslatable(f"`{name}={self._code(name)}` has no equal: {instead}")
        self._found[name] = ()

    # Devices

    def _devices(self) -> None:
        backend_name, backend = self._backend()
        if backend_name is not None:
            self._found[backend_name] = self._strategy(backend)
        if "gpus" in self._given:
            self._gpus(backend)
        if "tpu_cores" in self._given:
            self._tpu_cores()
        if "num_processes" in self._given:
            self._num_processes(backend)
        elif backend == "ddp_cpu":
            self._found[backend_name or ""] += ("devices=1",)

    def _backend(self) -> tuple[str | None, object]:
        for name in ("distributed_backend", "accelerator", "strategy"):
            if name not in self._given:
                continue
            value = _known(self._resolver, self._given[name])
            if name == "distributed_backend":
                return name, self._value(name)
            if value in _BACKENDS and (name == "accelerator" or value in {"dp", "ddp2", "horovod"}):
                return name, value
        return None, None

    def _strategy(self, backend: object) -> tuple[str, ...]:
        if backend is None:
            return ()
        if backend in {"ddp", "ddp_spawn"}:
            return (f"strategy={self._quoted(str(backend))}",)
        if backend == "ddp_cpu":
            return (f"accelerator={self._quoted('cpu')}", f"strategy={self._quoted('ddp_spawn')}")
        if backend != "dp":
            raise Untranslatable(f"`{backend}` was removed in Lightning 2.0 and has no equal")
        if self._value("gpus") == 1 or self._value("devices") == 1:
            return ()
        self._other_batches = True
        self._notes.append(
            "`dp` is gone: it split each batch over the GPUs; with `ddp` every GPU trains on a batch of its own, so "
            "that the optimizer sees as many times the samples per step (divide the batch size to keep it)"
        )
        return (f"strategy={self._quoted('ddp')}",)

    def _gpus(self, backend: object) -> None:
        value = self._given["gpus"].value
        if isinstance(value, ast.IfExp) or _is_gpu_count(self._resolver, value, self._module):
            self._found["gpus"] = self._chosen_gpus(value)
            return
        known = self._value("gpus")
        self._check_kind(known, "gpus")
        if not known or known == "0":
            elsewhere = backend == "ddp_cpu" or (
                "tpu_cores" in self._given and self._value("tpu_cores")
            )
            on_cpu = () if elsewhere else self._on("cpu")
            self._found["gpus"] = on_cpu
            return
        self._found["gpus"] = (*self._on("gpu"), f"devices={self._code('gpus')}")
        if backend is None and known != 1 and "strategy" not in self._given:
            self._notes.append(
                "its processes are started by running the script again, not by `spawn`"
            )

    def _check_kind(self, known: object, name: str) -> None:
        is_count = known is None or (isinstance(known, int) and not isinstance(known, bool))
        is_list = isinstance(known, list | tuple)
        is_text = isinstance(known, str) and (known == "-1" or "," in known)
        if not (is_count or is_list or is_text):
            raise Untranslatable(
                f"`{name}={self._code(name)}` meant different things in different versions"
            )

    def _on(self, accelerator: str) -> tuple[str, ...]:
        """The argument for ``accelerator``, unless it is given already in today's words."""
        if "accelerator" not in self._given or "accelerator" in self._found:
            return (f"accelerator={self._quoted(accelerator)}",)
        if _known(self._resolver, self._given["accelerator"]) in {accelerator, "auto"}:
            return ()
        raise Untranslatable(
            f"`accelerator={self._code('accelerator')}` beside it is not known to agree"
        )

    def _chosen_gpus(self, value: ast.expr) -> tuple[str, ...]:
        """``gpus=1 if torch.cuda.is_available() else 0``, ``gpus=torch.cuda.device_count()`` and the like."""
        if self._on("gpu") == ():
            raise Untranslatable(
                f"`gpus={self._module.code(value)}` beside `accelerator` is not known to agree"
            )
        gpu, cpu = self._quoted("gpu"), self._quoted("cpu")
        if not isinstance(value, ast.IfExp):
            assert isinstance(value, ast.Call)
            count = (
                value if not value.args else next(a for a in value.args if isinstance(a, ast.Call))
            )
            test = f"{self._module.code(count.func).removesuffix('.device_count')}.is_available()"
            auto = self._quoted("auto")
            devices = auto if not value.args else "1"
            return (f"accelerator={gpu} if {test} else {cpu}", f"devices={devices}")
        known = _literal(value.body), _literal(value.orelse)
        if not (known[0] in (1, -1) and known[1] in (0, None) and _is_cheap(value.test)):
            raise Untranslatable(
                f"`gpus={self._module.code(value)}` is not known to choose between one GPU and none"
            )
        devices = "1" if known[0] == 1 else self._quoted("auto")
        return (
            f"accelerator={gpu} if {self._module.code(value.test)} else {cpu}",
            f"devices={devices}",
        )

    def _tpu_cores(self) -> None:
        known = self._value("tpu_cores")
        self._check_kind(known, "tpu_cores")
        if known:
            self._found["tpu_cores"] = (*self._on("tpu"), f"devices={self._code('tpu_cores')}")
        else:
            self._found["tpu_cores"] = ()

    def _num_processes(self, backend: object) -> None:
        known = self._value("num_processes")
        on_gpu = "gpus" in self._given and _known(self._resolver, self._given["gpus"])
        if known == 1 and backend != "ddp_cpu":
            self._found["num_processes"] = ()
        elif not isinstance(known, int) or on_gpu or "tpu_cores" in self._given:
            raise Untranslatable(
                f"`num_processes={self._code('num_processes')}` beside other devices has no equal"
            )
        else:
            devices = f"devices={self._code('num_processes')}"
            written = "accelerator" in self._written()
            self._found["num_processes"] = (devices,) if written else (*self._on("cpu"), devices)

    # The rest

    def _precision(self) -> None:
        if "precision" not in self._given:
            return
        known = _known(self._resolver, self._given["precision"])
        if known in (16, "16"):
            self._found["precision"] = (f"precision={self._quoted(self._half)}",)
        elif known == "bf16":
            self._found["precision"] = (f"precision={self._quoted('bf16-mixed')}",)

    def _reports(self) -> None:
        for name in ("profile", "profiler"):
            if (
                name not in self._given
                or (value := _known(self._resolver, self._given[name])) is None
            ):
                continue
            if isinstance(value, bool):
                simple = (f"profiler={self._quoted('simple')}",)
                self._found[name] = simple if value else ()
        self._switched("progress_bar_refresh_rate", "enable_progress_bar", 0, (1, None))
        self._switched("weights_summary", "enable_model_summary", None, ("top",))
        self._switched("checkpoint_callback", "enable_checkpointing", False, (True,))

    def _switched(self, name: str, new: str, off: object, default: tuple[object, ...]) -> None:
        """An argument that is a switch today (``new``), or a callback where it says more than on and off."""
        if name not in self._given:
            return
        argument = self._given[name]
        known = _known(self._resolver, argument)
        if known is None and not _is_none(self._resolver, argument):
            known = _UNSET
        if known == off and isinstance(known, type(off)):
            self._found[name] = (f"{new}=False",)
        elif known in default:
            self._found[name] = ()
        elif name == "progress_bar_refresh_rate" and isinstance(known, int):
            self._found[name] = ()
            self._add_callback(
                f"{self._callback('TQDMProgressBar')}(refresh_rate={self._code(name)})"
            )
        elif name == "weights_summary" and known == "full":
            self._found[name] = ()
            self._add_callback(f"{self._callback('ModelSummary')}(max_depth=-1)")
        elif (
            name == "checkpoint_callback"
            and known is _UNSET
            and self._makes(argument, "ModelCheckpoint")
        ):
            self._found[name] = ()
            self._add_callback(self._code(name))
        else:
            raise Untranslatable(f"`{name}={self._code(name)}` is a callback today")

    def _makes(self, argument: Argument, callback: str) -> bool:
        """Whether ``argument`` is a ``callback`` of Lightning's."""
        makers = self._resolver.maker_names(argument.value, argument.module)
        return bool(makers) and all(m.endswith(f".{callback}") for m in makers)

    def _callback(self, name: str) -> str:
        spelled = reference(self._module, f"{self._trainer.package}.callbacks.{name}")
        self._imports += spelled.edits
        return spelled.code

    def _add_callback(self, code: str) -> None:
        if "callbacks" not in self._given:
            self._callbacks.append(code)
            return
        value = self._given["callbacks"].value
        if not isinstance(value, ast.List):
            raise Untranslatable(f"`callbacks={self._code('callbacks')}` cannot be added to")
        known = [self._module.code(element) for element in value.elts]
        self._callbacks = self._callbacks or known
        self._callbacks.append(code)


def _known(resolver: Resolver, argument: Argument) -> object:
    """The value of an argument, None when it is not known."""
    direct = _literal(argument.value)
    if direct is not None:
        return direct
    values = resolver.values(argument.value, argument.module)
    if len(values) != 1:
        return None
    value = next(iter(values))
    if isinstance(value, Literal):
        return value.value
    return _literal(value.node) if isinstance(value, Display) else None


def _is_none(resolver: Resolver, argument: Argument) -> bool:
    return resolver.is_always(argument.value, argument.module, None)


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def _is_gpu_count(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """``torch.cuda.device_count()``, or the smaller of that and 1."""
    if not isinstance(node, ast.Call):
        return False
    names = resolver.names(node.func, module)
    if "torch.cuda.device_count" in names:
        return isinstance(node.func, ast.Attribute)
    if "builtins.min" not in names or len(node.args) != 2:
        return False
    ones = [a for a in node.args if _literal(a) == 1]
    counts = [
        a for a in node.args if isinstance(a, ast.Call) and _is_gpu_count(resolver, a, module)
    ]
    return len(ones) == len(counts) == 1


def _is_cheap(test: ast.expr) -> bool:
    """Whether ``test`` only asks: a name, an attribute or ``torch.cuda.is_available()``."""
    if isinstance(test, ast.Call):
        return ast.unparse(test.func).endswith("cuda.is_available") and not test.args
    return isinstance(test, ast.Name | ast.Attribute)
