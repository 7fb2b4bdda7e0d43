"""The code that says how many workers a loader has, and what depends on there being any."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...options import Options
from ...rewriting.edits import FileEdit, InsertAfter, InsertBefore, ReplaceExpression
from ..calls.signatures import call_argument
from ..distributed.data_parallel import distributed_call
from ..distributed.process_groups import joins_process_group
from ..distributed.process_names import Place
from ..editing.free_names import assignment_beside, free_name, names_constants_in_capitals
from ..editing.references import quoted, reference
from ..editing.replacing import replacement
from ..editing.setting_lists import end_of_settings
from ..facts import Argument, DataLoader
from ..program.syntax import FunctionNode, Module
from ..script import TrainingScript
from ..values.resolver import Resolver
from .iterations import loops_around
from .loader_settings import Setting, other_taker, settings_by_place
from .process_cores import CPU_COUNTS, SHARED, share
from .worker_count import most_workers
from .worker_groups import WorkerGroup

_POSITION = 5  # of num_workers among DataLoader's parameters


@dataclass(frozen=True)
class NumberOfWorkers:
    """``code`` is the number of workers, ``words`` the same for people; ``setup``, if any, are the statements before it, and
    ``edits`` are their imports."""

    code: str
    words: str
    setup: str | None
    edits: tuple[FileEdit, ...]

    def at_least(self, least: int) -> str:
        """``code`` where it must be no less than ``least``; one worker there always is."""
        return self.code if self.setup is None or least <= 1 else f"max({least}, {self.code})"


def above_loops(script: TrainingScript, module: Module, first: ast.stmt) -> ast.stmt:
    """``first``, or the statement around it above which a variable is set once: a loop, or a function that a loop calls."""
    loops = module.loops(first)
    outermost: ast.stmt = loops[-1] if loops else first
    if not any(True for _ in loops_around(script.resolver, outermost, module)):
        return outermost
    around = [a for a in module.ancestors(outermost) if a in module.tree.body]
    top = around[0] if around else outermost
    return top if isinstance(top, FunctionNode | ast.ClassDef) else outermost


def number_of_workers(
    script: TrainingScript, module: Module, first: ast.stmt, options: Options
) -> NumberOfWorkers:
    """The number of workers: if nobody chose, the CPU cores this process may use, at most :func:`most_workers`.

    Processes that torchrun starts, and those of a script that runs as one for each GPU, share the cores of their machine.
    """
    if options.workers is not None:
        return NumberOfWorkers(str(options.workers), str(options.workers), None, ())
    system = reference(module, "os")
    names = ["cores", "cpu_cores", "usable_cores"]
    if _is_constant(module, first):
        names = [name.upper() for name in names]
    cores = free_name(module, names) or "usable_cpu_cores"
    has_affinity = f"hasattr({system.code}, {quoted(module, 'sched_getaffinity')})"
    granted = f"len({system.code}.sched_getaffinity(0))"
    setup = f"{cores} = {granted} if {has_affinity} else {system.code}.cpu_count() or 1"
    edits = system.edits
    beside_gpu = script.targets_cuda(options)
    processes: str | None = None
    if joins_process_group(script.resolver):
        processes = Place.LOCAL_WORLD_SIZE.read(system.code, module)
    elif beside_gpu and distributed_call(script.resolver) is not None:
        gpus = reference(module, "torch.cuda.device_count")
        processes = f"max(1, {gpus.code}())"
        edits = (*edits, *gpus.edits)
    if processes is not None:
        setup += f"\n{SHARED}\n{cores} = {share(cores, processes)}"
    most = most_workers(beside_gpu=beside_gpu)
    words = f"one per CPU core, up to {most}"
    return NumberOfWorkers(f"min({most}, {cores})", words, setup, edits)


def assignments(
    module: Module, groups: list[WorkerGroup], first: ast.stmt, code: str, *, is_setting: bool
) -> FileEdit:
    """Inserts ``code`` above ``first``; one that ``is_setting`` for several loaders, if possible in the list with their batch size."""
    loaders = [loader for group in groups for loader in group.loaders] if is_setting else []
    for loader in loaders:
        batch_size = loader.arguments.get("batch_size")
        if batch_size is not None and batch_size.module is module:
            beside = assignment_beside(module, batch_size.value, first)
            if beside is not None:
                last = end_of_settings(beside, module.block(beside))
                return FileEdit(module.path, InsertAfter(module.span(last), code))
    return FileEdit(module.path, InsertBefore(module.span(first), code))


def _is_constant(module: Module, first: ast.stmt) -> bool:
    """Whether a variable that is set above ``first`` is one that the file would spell in capitals."""
    shared_by_functions = isinstance(first, FunctionNode | ast.ClassDef)
    return shared_by_functions or (
        first in module.tree.body and names_constants_in_capitals(module)
    )


def shared_variable(module: Module, first: ast.stmt) -> str | None:
    """A name for the number of workers that several loaders share."""
    if _is_constant(module, first):
        return free_name(module, ["NUM_WORKERS", "LOADER_WORKERS"])
    return free_name(module, ["num_workers", "n_workers", "loader_workers"])


def count_edits(
    script: TrainingScript, group: WorkerGroup, value: str, words: str
) -> Iterator[FileEdit]:
    """The edits that make ``value``, ``words`` in a help text, the number of workers of ``group``."""
    zero = group.count.zero
    if zero is not None and zero.holder is not None:
        yield FileEdit(zero.path, ReplaceExpression(zero.span, value))
        if zero.option is not None:
            yield from _help_edits(zero.module, zero.option, words)
        return
    for setting in settings_by_place(script, "num_workers", group.loaders):
        yield FileEdit(setting.module.path, setting.edit("num_workers", value, _POSITION))


def _help_edits(module: Module, option: ast.Call, words: str) -> Iterator[FileEdit]:
    """Corrects a help text that states the default: ``"(default: 0)"``."""
    text = call_argument(option, "help")
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        code = module.code(text)
        new = re.sub(r"(default\s*[:=]?\s*)0\b", rf"\g<1>{words}", code)
        if new != code:
            yield replacement(module, text, new)


def prefetches(
    script: TrainingScript,
    loaders: Iterable[DataLoader],
    condition: str | None,
    options: Options,
) -> Iterator[tuple[Setting, str, list[DataLoader]]]:
    """Where ``--prefetch`` is to be written, and as what: without workers DataLoader takes None only.

    ``condition`` says whether there are workers; None means: where the count is positive.
    """
    if options.prefetch is None:
        return
    for setting, users in settings_by_place(script, "num_workers", loaders).items():
        said = any(
            "prefetch_factor" in x.arguments
            or x.opaque is not None
            or other_taker(script, x, "num_workers") is not None
            for x in users
        )
        test = condition or is_positive(script.resolver, users[0].arguments["num_workers"])
        if not said and test is not None:
            count = str(options.prefetch)
            yield setting, count if test == "True" else f"{count} if {test} else None", users


def is_positive(resolver: Resolver, argument: Argument) -> str | None:
    """An expression that says whether the number of workers is positive; None where none can be written."""
    value = argument.value
    if isinstance(value, ast.Constant):
        return "True" if isinstance(value.value, int) and value.value > 0 else None
    if isinstance(value, ast.Call) and _is_at_least_one(resolver, value, argument.module):
        return "True"
    return f"{argument.module.code(value)} > 0" if _is_plain(value) else None


def _is_at_least_one(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is ``max(1, ..)``, in whatever order, or counts the cores of the machine."""
    if not (call.args or call.keywords):
        makers = resolver.names(call.func, module)
        return bool(makers) and makers <= CPU_COUNTS
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "max"
        and _is_plain(call)
        and any(
            isinstance(argument, ast.Constant) and argument.value in range(1, 1000)
            for argument in call.args
        )
    )


def _is_plain(value: ast.expr) -> bool:
    """Whether ``value`` can be said a second time: ``config["workers"]``, ``int(args.workers / 2)``."""
    match value:
        case ast.Name() | ast.Constant():
            return True
        case ast.Attribute(value=inner):
            return _is_plain(inner)
        case ast.Subscript(value=inner, slice=ast.Constant() | ast.Name()):
            return _is_plain(inner)
        case ast.BinOp(left=left, right=right):
            return _is_plain(left) and _is_plain(right)
        case ast.Call(func=ast.Name(id="int" | "min" | "max"), args=args, keywords=[]):
            return all(map(_is_plain, args))
        case _:
            return False
