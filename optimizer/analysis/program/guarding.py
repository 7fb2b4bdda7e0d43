"""Which top-level statements of a script a main guard has to cover, and which its worker processes need."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..editing.bound_names import is_imported
from ..facts import DataLoader
from ..loading.spawning import top_level_statement
from ..loading.workers import worker_code
from ..script import TrainingScript
from ..values.composition import composed_of
from ..values.global_changes import Setter, global_setters
from ..values.resolver import Resolver
from ..values.values import Attribute, Class, External, Function, Made, Value
from .classes import first_party_bases
from .parameters import named_parameters
from .syntax import Module, first_name
from .trees import walk


class Weight(IntEnum):
    """What it costs to run a top-level statement again in every worker process.

    ``DEFINITION``: imports, functions, classes. ``LIGHT``: constants, options, seeds. ``MIDDLING``: datasets, loaders,
    messages. ``HEAVY``: everything else: models, loops, files.
    """

    DEFINITION = 0
    LIGHT = 1
    MIDDLING = 2
    HEAVY = 3


_LIGHT_CALLS = (
    "argparse.",
    "os.path.",
    "os.environ.",
    "pathlib.",
    "warnings.",
    "math.",
    "re.",
    "random.seed",
    "numpy.random.seed",
    "torch.manual_seed",
    "torch.device",
    "torch.cuda.is_available",
    "torch.cuda.manual_seed",
    "torch.cuda.device_count",
    "torch.backends.",
    "torch.set_default_dtype",
    "torch.multiprocessing.set_sharing_strategy",
    "torchvision.set_image_backend",
    "torchvision.transforms.",
    "logging.getLogger",
    "sys.path.",
    "time.time",
    "datetime.",
    "matplotlib.use",
    *(
        f"builtins.{name}"
        for name in "int float str bool len dict list tuple set range min max sum abs round".split()
    ),
)
_MIDDLING_CALLS = (
    "torchvision.datasets.",
    "torch.utils.data.",
    "torch.nn.",
    "builtins.print",
)
_LIBRARY_SETTERS = frozenset({"set_default_dtype", "set_image_backend", "set_sharing_strategy"})
_DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Pass,
)


def weight(resolver: Resolver, statement: ast.stmt, module: Module) -> Weight:
    """What running ``statement`` of the top level of ``module`` again costs."""
    if isinstance(statement, _DEFINITIONS) or statement in module.main_only or _is_text(statement):
        return Weight.DEFINITION
    if isinstance(statement, ast.Try | ast.If) and _only_imports(statement):
        return Weight.DEFINITION
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.If):
        return Weight.HEAVY
    found = Weight.LIGHT
    for node in lexical_nodes([statement]):
        if isinstance(node, ast.Call):
            found = max(found, _call_weight(resolver, node, module))
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Delete):
            return Weight.HEAVY
    return found


def _only_imports(statement: ast.Try | ast.If) -> bool:
    """Whether ``statement`` imports something and does nothing else, unless it gives up."""
    gives_up = [
        s
        for handler in walk(statement)
        if isinstance(handler, ast.ExceptHandler) and isinstance(handler.body[-1], ast.Raise)
        for s in handler.body
    ]
    inner = [s for s in walk(statement) if isinstance(s, ast.stmt) and s not in gives_up]
    return all(
        isinstance(s, ast.Import | ast.ImportFrom | ast.Pass | ast.Try | ast.If) for s in inner
    )


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _call_weight(resolver: Resolver, call: ast.Call, module: Module) -> Weight:
    if isinstance(call.func, ast.Attribute) and call.func.attr in {"cuda", "to"}:
        return Weight.HEAVY
    names = {_library_name(value) for value in resolver.values(call.func, module)}
    if names == {"os.makedirs"} and call_argument(call, "exist_ok") is not None:
        return Weight.LIGHT
    if all(name.startswith(_LIGHT_CALLS) for name in names):
        return Weight.LIGHT
    if all(name.startswith((*_LIGHT_CALLS, *_MIDDLING_CALLS)) for name in names):
        return Weight.MIDDLING
    return Weight.HEAVY


def _library_name(value: Value) -> str:
    """The library name of a callable; a method of a library object goes by the object's maker."""
    match value:
        case External(name):
            return name
        case Attribute(Made(_, _, External(name)), method):
            return f"{name}.{method}"
        case _:
            return ""


def statements_needed_by_workers(
    script: TrainingScript, loaders: Iterable[DataLoader]
) -> set[ast.stmt]:
    """The top-level statements of the entry script that a spawned worker must have run.

    They define what is unpickled there and what the worker's code reads, and what those definitions read themselves.
    """
    entry = script.entry
    needed = {s for s in entry.tree.body if _sets_library(s, entry)}
    setters = global_setters(script.resolver, entry)
    pending: list[ast.AST] = [node for s in needed for node in _read_when_run(s)]
    for loader in loaders:
        code = worker_code(script, loader).code
        pending += [reached.node for reached in code if reached.module is entry]
        pending += [node for node, module in _unpickled(script, loader) if module is entry]
    while pending:
        node = pending.pop()
        for statement in _statements_behind(node, entry, setters):
            if statement not in needed:
                needed.add(statement)
                pending += _read_when_run(statement)
    return needed


def _unpickled(script: TrainingScript, loader: DataLoader) -> Iterator[tuple[ast.AST, Module]]:
    """The classes and functions that a worker looks up by name when it gets its dataset."""
    for keyword in ("dataset", "collate_fn", "worker_init_fn"):
        argument = loader.arguments.get(keyword)
        if argument is None:
            continue
        for value in composed_of(script.resolver, script.values(argument.value, argument.module)):
            if isinstance(value, Made) and isinstance(value.maker, Class):
                for cls in (value.maker, *first_party_bases(script.resolver, value.maker)):
                    yield cls.node, cls.module
            elif isinstance(value, Function | Class):
                yield value.node, value.module


def _statements_behind(
    node: ast.AST, module: Module, setters: Mapping[str, list[Setter]]
) -> Iterator[ast.stmt]:
    """The top-level statements that define ``node`` or, for a name, that set or change the global it reads."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield top_level_statement(node, module)
        if module.parents[node] is module.tree:
            yield from (top_level_statement(s.node, module) for s in setters.get(node.name, ()))
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        found = module.scope(node).lookup(node.id)
        if found is not None and isinstance(found[0].node, ast.Module):
            for binding in found[1]:
                yield top_level_statement(binding.node, module)
            for setter in setters.get(node.id, ()):
                if setter.matters_to(node, module):
                    yield top_level_statement(setter.node, module)
    elif isinstance(node, ast.expr | ast.stmt):
        function = module.function(node)
        if function is not None:
            yield top_level_statement(function, module)


def _sets_library(statement: ast.stmt, module: Module) -> bool:
    """Whether ``statement`` changes a setting of a library for the whole process: ``ImageFile.LOAD_TRUNCATED_IMAGES = True``."""
    if isinstance(statement, ast.Assign):
        owners = [t.value for t in statement.targets if isinstance(t, ast.Attribute)]
        return any(_is_imported(owner, module) for owner in owners)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        return (
            isinstance(called, ast.Attribute)
            and called.attr in _LIBRARY_SETTERS
            and _is_imported(called.value, module)
        )
    return False


def _is_imported(node: ast.expr, module: Module) -> bool:
    name = first_name(node)
    return name is not None and is_imported(name, module)


def _read_when_run(statement: ast.stmt) -> list[ast.AST]:
    """The names that executing ``statement`` reads: not those in the bodies of functions it defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = statement.args
        roots: list[ast.AST] = [*statement.decorator_list, *arguments.defaults]
        annotations = [parameter.annotation for parameter in named_parameters(statement)]
        optional = [*arguments.kw_defaults, *annotations, statement.returns]
        roots += [node for node in optional if node is not None]
    elif isinstance(statement, ast.ClassDef):
        roots = [*statement.decorator_list, *statement.bases]
        for inner in statement.body:
            roots += [inner] if not isinstance(inner, ast.FunctionDef) else _read_when_run(inner)
    else:
        roots = [statement]
    return [node for node in lexical_nodes(roots) if isinstance(node, ast.Name)]
