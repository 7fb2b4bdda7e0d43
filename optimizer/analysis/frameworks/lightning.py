"""What a script that trains with Lightning says: its Trainers, its modules, and what in them is of an older Lightning."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..calls.reach import lexical_nodes, reached_nodes
from ..facts import Argument, Fact
from ..networks.models import ANY_OPTIMIZER
from ..obstacles import Obstacle
from ..precision.half_steps import code_obstacles, runs_network_without_gradients, script_obstacle
from ..precision.precision import find_precision_uses, imported_packages, runs_in_double
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..training.loops import backward_calls, forward_calls, is_forward
from ..values.resolver import Resolver
from ..values.values import Class, Literal, Made

_PACKAGES = ("pytorch_lightning", "lightning", "lightning.pytorch")
_TRAINERS = frozenset(
    f"{package}.{path}"
    for package in _PACKAGES
    for path in ("Trainer", "trainer.Trainer", "trainer.trainer.Trainer")
)
_MODULES = frozenset(
    f"{package}.{path}"
    for package in _PACKAGES
    for path in ("LightningModule", "core.LightningModule", "core.lightning.LightningModule")
)
_FROM_ARGPARSE = frozenset({"from_argparse_args", "add_argparse_args"})
_RUNS = frozenset({"fit", "validate", "test", "predict"})
_STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
ON_DEVICE = _STEPS | {"forward", "training_step_end", "validation_step_end", "test_step_end"}
"""Methods that get tensors where Lightning has put them, and run under its autocast."""
_REMOVED_HOOKS = {
    f"{stage}_epoch_end": f"on_{hook}_epoch_end"
    for stage, hook in (("training", "train"), ("validation", "validation"), ("test", "test"))
}


@dataclass(frozen=True, eq=False)
class LightningTrainer(Fact):
    """A call that makes a ``Trainer`` of ``package``; ``opaque`` is what its other arguments come through, if anything."""

    node: ast.Call
    package: str
    arguments: Mapping[str, Argument]
    opaque: ast.expr | None


@dataclass(frozen=True, eq=False)
class TrainerCall(Fact):
    """A call of ``method`` (``fit``, ``validate``, ``test``, ``predict``) of one of ``trainers``."""

    node: ast.Call
    method: str
    trainers: tuple[LightningTrainer, ...]


@dataclass(frozen=True, eq=False)
class LoggedItem(Fact):
    """A loss logged as ``loss.item()``: the call, and the expression of the loss."""

    node: ast.Call
    loss: ast.expr


@dataclass(frozen=True, eq=False)
class CudaCopy(Fact):
    """A tensor that a method of a LightningModule puts on "cuda": ``tensor.cuda()``, ``tensor.to("cuda")``.

    ``owner`` is how the method calls its module.
    """

    node: ast.Call
    tensor: ast.expr
    owner: str


@dataclass(frozen=True, eq=False)
class Outdated(Fact):
    """Something that Lightning 2 refuses or ignores; ``message`` says what to do instead."""

    message: str


class LightningUse:
    """What a project does with Lightning."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    @cached_property
    def _files(self) -> tuple[Module, ...]:
        modules = self._resolver.project.modules
        return tuple(m for m in modules if "lightning" in m.source.text.lower())

    @cached_property
    def trainers(self) -> tuple[LightningTrainer, ...]:
        """The Trainers, in source order per module."""
        return tuple(
            LightningTrainer(
                module,
                call,
                "pytorch_lightning" if min(names).startswith("pytorch") else "lightning.pytorch",
                {k.arg: Argument(k.value, module) for k in call.keywords if k.arg},
                next((k.value for k in call.keywords if k.arg is None), None)
                or next(iter(call.args), None),
            )
            for module in self._files
            for call in module.calls
            if (names := self._resolver.names(call.func, module) & _TRAINERS)
        )

    @cached_property
    def may_use_gpu(self) -> bool:
        """Whether a Trainer runs on a GPU, or on one that it finds."""
        return any(accelerator(self._resolver, trainer) for trainer in self.trainers)

    @cached_property
    def modules(self) -> tuple[Class, ...]:
        """The first-party LightningModules."""
        return tuple(
            cls
            for module in self._files
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
            and self._resolver.base_names(cls := Class(node, module)) & _MODULES
        )

    @cached_property
    def outdated(self) -> tuple[Outdated, ...]:
        return tuple(self._outdated())

    def _outdated(self) -> Iterator[Outdated]:
        for module in self._files:
            for call in module.calls:
                func = call.func
                if (
                    isinstance(func, ast.Attribute)
                    and func.attr in _FROM_ARGPARSE
                    and self._resolver.names(func.value, module) & _TRAINERS
                ):
                    message = (
                        f"`Trainer.{func.attr}` was removed in Lightning 2.0; hand the options to `Trainer(...)` by "
                        "name, or use `LightningCLI`"
                    )
                    yield Outdated(module, call, message)
        for cls in self.modules:
            for method in methods(cls):
                if method.name in _REMOVED_HOOKS:
                    yield Outdated(
                        cls.module,
                        method,
                        f"`{method.name}` was removed in Lightning 2.0; `{_REMOVED_HOOKS[method.name]}` takes its "
                        "place, without the outputs: collect them in an attribute",
                    )
                elif method.name in _STEPS:
                    yield from _legacy_logs(cls.module, method)

    @cached_property
    def logged_items(self) -> tuple[LoggedItem, ...]:
        """The losses that steps log as numbers."""
        return tuple(
            found
            for cls in self.modules
            for method in methods(cls)
            if method.name in _STEPS
            for found in self._logged_items(cls.module, method)
        )

    def _logged_items(self, module: Module, method: FunctionNode) -> Iterator[LoggedItem]:
        returned = _with_terms(returned_losses(method), method)
        for call in lexical_nodes(method.body):
            for value in _logged_values(call, method):
                receiver = item_receiver(value)
                if isinstance(receiver, ast.Name) and receiver.id in returned:
                    assert isinstance(value, ast.Call)
                    yield LoggedItem(module, value, receiver)

    @cached_property
    def cuda_copies(self) -> tuple[CudaCopy, ...]:
        """The tensors that steps and forwards put on "cuda", whatever device Lightning chose."""
        return tuple(
            found
            for cls in self.modules
            for method in methods(cls)
            if method.name in ON_DEVICE and method.args.args
            for found in self._cuda_copies(cls.module, method)
        )

    def _cuda_copies(self, module: Module, method: FunctionNode) -> Iterator[CudaCopy]:
        owner = method.args.args[0].arg
        if any(n.id == owner and isinstance(n.ctx, ast.Store) for n in _names(method)):
            return
        for call in lexical_nodes(method.body):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            receiver = call.func.value
            if self._goes_to_cuda(call, call.func.attr, module) and not self._is_network(
                receiver, module
            ):
                yield CudaCopy(module, call, receiver, owner)

    def _goes_to_cuda(self, call: ast.Call, method: str, module: Module) -> bool:
        if method == "cuda":
            return not call.args and not call.keywords
        if method != "to" or len(call.args) != 1 or call.keywords:
            return False
        values = self._resolver.values(call.args[0], module)
        return all(isinstance(v, Literal) and v.value == "cuda" for v in values)

    def _is_network(self, receiver: ast.expr, module: Module) -> bool:
        probe = ast.Call(func=receiver, args=[], keywords=[])
        return is_forward(self._resolver, probe, module) or _is_self(receiver)

    @cached_property
    def by_hand(self) -> tuple[Obstacle, ...]:
        """Optimization that a Trainer does not do itself."""
        return tuple(
            found
            for cls in self.modules
            for method in methods(cls)
            for found in self._by_hand(cls.module, method)
        )

    @cached_property
    def half_precision_obstacles(self) -> tuple[Obstacle, ...]:
        """What in the modules, and in the script, does not survive mixed precision."""
        resolver = self._resolver
        uses = find_precision_uses(resolver)
        double = runs_in_double(resolver)
        script = script_obstacle(resolver, imported_packages(resolver.project))
        found = [Obstacle(u.module, u.node, f"{u.what} is in use already") for u in uses]
        found += [Obstacle(double.module, double.node, f"{double.what}")] if double else []
        found += [script] if script else []
        found += self.by_hand
        for cls in self.modules:
            for method in methods(cls):
                if method.name in ON_DEVICE:
                    found += self._in_method(cls.module, method)
        return tuple(found)

    def _by_hand(self, module: Module, method: FunctionNode) -> Iterator[Obstacle]:
        for node in lexical_nodes(method.body):
            if isinstance(node, ast.Attribute) and node.attr == "automatic_optimization":
                yield Obstacle(module, node, "the module runs its optimizers by hand")
            elif isinstance(node, ast.Call) and (
                self._resolver.names(node.func, module) & {"torch.optim.LBFGS", ANY_OPTIMIZER}
            ):
                yield Obstacle(module, node, "LBFGS does not go with mixed precision")

    def _in_method(self, module: Module, method: FunctionNode) -> Iterator[Obstacle]:
        resolver = self._resolver
        nodes = list(reached_nodes(resolver, method.body, module, into_forward=True))
        for call in backward_calls(nodes):
            yield Obstacle(call.module, call.node, "a step takes gradients by hand")
        for reached in nodes:
            if isinstance(reached.node, ast.Call):
                names = resolver.names(reached.node.func, reached.module)
                if "torch.autograd.grad" in names:
                    yield Obstacle(reached.module, reached.node, "a step takes gradients by hand")
            if method.name == "training_step" and runs_network_without_gradients(resolver, reached):
                why = "a step runs a network without gradients, and autocast keeps the weights cast without"
                yield Obstacle(reached.module, reached.node, why)
        yield from code_obstacles(resolver, nodes, forward_calls(resolver, nodes))

    @cached_property
    def calls(self) -> tuple[TrainerCall, ...]:
        """What Trainers are told to run, in source order per module."""
        trainers = {trainer.node: trainer for trainer in self.trainers}
        modules = self._resolver.project.modules if trainers else ()
        return tuple(
            TrainerCall(module, call, call.func.attr, tuple(told))
            for module in modules
            for call in module.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in _RUNS
            for values in [self._resolver.values(call.func.value, module)]
            for made in [{value.call for value in values if isinstance(value, Made)}]
            if (told := [trainer for node, trainer in trainers.items() if node in made])
        )

    def trains(self, trainer: LightningTrainer) -> bool:
        """Whether ``fit`` is seen to be called on ``trainer``."""
        return any(call.method == "fit" and trainer in call.trainers for call in self.calls)


def is_lightning_class(resolver: Resolver, cls: Class) -> bool:
    """Whether ``cls`` derives from a class of Lightning: a module, a data module, a callback."""
    return any(
        base.startswith(("pytorch_lightning.", "lightning.")) for base in resolver.base_names(cls)
    )


def accelerator(resolver: Resolver, trainer: LightningTrainer) -> str | None:
    """``"gpu"``, ``"auto"`` where it depends on the machine, None where it is something else or not known."""
    given = trainer.arguments.get("accelerator")
    if given is None:
        return "auto"
    values = resolver.values(given.value, given.module)
    known = {v.value for v in values if isinstance(v, Literal)}
    if len(known) < len(values) or not known & {"gpu", "cuda", "auto"}:
        return None
    return "gpu" if known <= {"gpu", "cuda"} else "auto"


def keeps_whole_network(resolver: Resolver, strategy: Argument) -> bool:
    """Whether every process keeps a whole copy of the network under ``strategy``."""
    values = resolver.values(strategy.value, strategy.module)
    return all(isinstance(v, Literal) and str(v.value).startswith(("auto", "ddp")) for v in values)


def methods(cls: Class) -> Iterator[FunctionNode]:
    """The methods that ``cls`` defines itself."""
    for statement in cls.node.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement


def _names(method: FunctionNode) -> Iterator[ast.Name]:
    return (node for node in walk(method) if isinstance(node, ast.Name))


def _is_self(receiver: ast.expr) -> bool:
    """Whether ``receiver`` is an attribute of the module itself, a layer or a buffer, which Lightning moves."""
    return isinstance(receiver, ast.Attribute) and isinstance(receiver.value, ast.Name)


def _legacy_logs(module: Module, method: FunctionNode) -> Iterator[Outdated]:
    for node in lexical_nodes(method.body):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            keys = {k.value for k in node.value.keys if isinstance(k, ast.Constant)}
            if keys & {"log", "progress_bar"}:
                message = (
                    f"what `{method.name}` returns under `log` and `progress_bar` is ignored since Lightning 1.0; "
                    "`self.log(...)` logs it"
                )
                yield Outdated(module, node, message)


def returned_losses(method: FunctionNode) -> frozenset[str]:
    """The variables whose value a training step returns as the loss."""
    found: set[str] = set()
    for node in lexical_nodes(method.body):
        if not isinstance(node, ast.Return):
            continue
        value = node.value
        if isinstance(value, ast.Dict):
            pairs = zip(value.keys, value.values, strict=True)
            value = next(
                (v for k, v in pairs if isinstance(k, ast.Constant) and k.value == "loss"), None
            )
        if isinstance(value, ast.Name):
            found.add(value.id)
    return frozenset(found) if method.name == "training_step" else frozenset()


def _with_terms(losses: frozenset[str], method: FunctionNode) -> frozenset[str]:
    """``losses`` and the terms they are added up from.

    With ``.item()`` they are tensors, or NumPy's numbers, which Lightning logs as well.
    """
    found = set(losses)
    for node in lexical_nodes(method.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() as value) if (
                name in found
            ):
                found.update(_terms(value))
            case _:
                pass
    return frozenset(found)


def _terms(node: ast.expr) -> Iterator[str]:
    """The variables that are added, subtracted and multiplied in ``node``."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            yield from _terms(left)
            yield from _terms(right)
        case ast.Name(id=name):
            yield name
        case _:
            pass


def _logged_values(node: ast.AST, method: FunctionNode) -> Iterator[ast.expr]:
    """What ``self.log`` or ``self.log_dict`` is given, if ``node`` is a call of one."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    owner = node.func.value
    if not (
        isinstance(owner, ast.Name) and method.args.args and owner.id == method.args.args[0].arg
    ):
        return
    given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "value")]
    if node.func.attr == "log":
        yield from given
    elif node.func.attr == "log_dict":
        for argument in [
            *node.args[:1],
            *(k.value for k in node.keywords if k.arg == "dictionary"),
        ]:
            if isinstance(argument, ast.Dict):
                yield from argument.values


def item_receiver(value: ast.expr) -> ast.expr | None:
    """``loss`` of ``loss.item()`` and ``loss.detach().item()``."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return None
    if value.func.attr != "item" or value.args:
        return None
    receiver = value.func.value
    if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
        is_same = receiver.func.attr in {"detach", "cpu"} and not receiver.args
        return receiver.func.value if is_same else None
    return receiver
