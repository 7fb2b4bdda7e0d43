"""What only one of several processes should do: print, log, save."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..rewriting.edits import FileEdit, ReplaceExpression, ReplaceStatement, SetArgument, Wrap
from .facts import Fact
from .free_names import free_name
from .process_names import Place, ProcessNames
from .reach import reached_nodes
from .references import quoted
from .resolver import Resolver
from .syntax import LoopNode, Module

_ACTIONS = frozenset(
    {
        "builtins.print",
        "sys.stdout.write",
        "sys.stdout.flush",
        "torch.save",
        "torch.jit.save",
        "torchvision.utils.save_image",
        "numpy.save",
        "numpy.savez",
        "numpy.savetxt",
        "json.dump",
        "pickle.dump",
        "yaml.dump",
        "os.remove",
        "os.rename",
        "os.replace",
        "os.mkdir",
        "shutil.copy",
        "shutil.copyfile",
        "shutil.rmtree",
        "warnings.warn",
    }
)
_ACTING_PACKAGES = (
    "logging.",
    "wandb.",
    "matplotlib.",
    "mlflow.",
    "neptune.",
    "loguru.",
    "tensorboard_logger.",
)
_RUN = "wandb.init"
_BARS = frozenset(
    {"tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm", "tqdm.std.tqdm", "tqdm.trange"}
)
_WRITERS = re.compile(
    r"(SummaryWriter|logging\.getLogger|tqdm|pyplot\.\w+|builtins\.open|wandb\.init)$"
)
_ACTING_METHODS = re.compile(
    r"add_\w+|log|debug|info|warning|error|write|writelines|writerow|flush|close|savefig|set_postfix\w*|"
    r"set_description\w*|update|save|to_csv|finish|watch|dump"
)

_PLAIN_METHODS = frozenset(
    "append center extend flush format get insert item items join keys ljust lower lstrip pop read replace rjust rstrip "
    "split strftime strip total_seconds upper values write zfill".split()
)


@dataclass(frozen=True, eq=False)
class RankZeroAction(Fact):
    """Sibling statements that only one process should run; ``node`` is the first."""

    node: ast.stmt
    last: ast.stmt


@dataclass(frozen=True, eq=False)
class ToldResult(Fact):
    """The statement ``node`` tells an ``argument`` that runs a network, which all processes do together."""

    node: ast.Expr
    argument: ast.expr

    def edit(self, names: ProcessNames) -> FileEdit | None:
        """The edit by which all compute the argument, and the first process tells it."""
        module, call = self.module, self.node.value
        name = free_name(module, ("told", "result", "told_result"))
        if name is None:
            return None
        whole, part = module.code(call), module.code(self.argument)
        if whole.count(part) != 1:
            return None
        row = whole.replace(part, name)
        code = f"{name} = {part}\nif {names.name(Place.RANK, module)} == 0:\n    {row}"
        return FileEdit(module.path, ReplaceStatement(module.span(self.node), code))


def find_told_results(
    resolver: Resolver, functions: Collection[ast.AST], left_out: Collection[ast.AST]
) -> tuple[ToldResult, ...]:
    """The statements that tell what they let a network compute: ``print(evaluate(model))``."""
    found: list[ToldResult] = []
    for module in resolver.project.modules:
        finder = _Finder(resolver, module, functions, left_out)
        for node in module.nodes_of(ast.Expr):
            inside = module.function(node)
            runs = inside in functions if inside else module is resolver.project.entry
            if runs and node not in left_out and inside not in left_out:
                argument = finder.told_result(node)
                if argument is not None:
                    found.append(ToldResult(module, node, argument))
    return tuple(found)


def find_rank_zero_actions(
    resolver: Resolver, functions: Collection[ast.AST], left_out: Collection[ast.AST]
) -> tuple[RankZeroAction, ...]:
    """The runs of statements that only tell or save something, in the modules' own code and in ``functions``.

    ``left_out`` are nodes in which every process has to do all there is.
    """
    found: list[RankZeroAction] = []
    for module in resolver.project.modules:
        finder = _Finder(resolver, module, functions, left_out)
        if module is resolver.project.entry:
            found += finder.in_block(module.tree.body)
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and node in functions and node not in left_out:
                if tells(resolver, node, module):
                    continue  # where it is called
                found += finder.in_block(node.body)
    return tuple(found)


def rank_zero_edits(actions: Iterable[RankZeroAction], names: ProcessNames) -> Iterator[FileEdit]:
    """The edits that let only the first process run ``actions``."""
    for action in actions:
        module, first = action.module, action.node
        is_first = f"{names.name(Place.RANK, module)} == 0"
        if first is action.last and isinstance(first, ast.If) and not first.orelse:
            test = first.test
            code = module.code(test)
            if (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)) or "\n" in code:
                code = f"({code})"
            edit = ReplaceExpression(module.span(test), f"{is_first} and {code}")
        else:
            edit = Wrap(module.span(first), module.span(action.last), f"if {is_first}:")
        yield FileEdit(module.path, edit)


def progress_bar_edits(
    resolver: Resolver, functions: Collection[ast.AST], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits that let only the first process show its progress bars."""
    for module in resolver.project.modules:
        for call in module.calls:
            shown = resolver.names(call.func, module)
            if not shown or not shown <= _BARS or not _runs(call, module, functions, resolver):
                continue
            if any(k.arg in {"disable", None} for k in call.keywords):
                continue
            rank = names.name(Place.RANK, module)
            yield FileEdit(module.path, SetArgument(module.span(call), "disable", f"{rank} > 0"))


def shared_service_edits(
    resolver: Resolver, functions: Collection[ast.AST], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits that let all processes make a folder or log a run, where only one can be the first.

    A disabled run of Weights & Biases answers like any other, and sends nothing.
    """
    for module in resolver.project.modules:
        for call in module.calls:
            called = resolver.names(call.func, module)
            if not _runs(call, module, functions, resolver):
                continue
            span, given = module.span(call), {k.arg: k.value for k in call.keywords}
            if called == frozenset({"os.makedirs"}) and not {"exist_ok", None} & given.keys():
                yield FileEdit(module.path, SetArgument(span, "exist_ok", "True", 2))
            elif called == frozenset({_RUN}) and None not in given:
                mode = module.code(given["mode"]) if "mode" in given else "None"
                disabled = quoted(module, "disabled")
                code = f"{mode} if {names.name(Place.RANK, module)} == 0 else {disabled}"
                yield FileEdit(module.path, SetArgument(span, "mode", code))


def _runs(
    node: ast.AST, module: Module, functions: Collection[ast.AST], resolver: Resolver
) -> bool:
    function = module.function(node)
    if function is None:
        return module is resolver.project.entry
    return function in functions


class _Finder:
    def __init__(
        self,
        resolver: Resolver,
        module: Module,
        functions: Collection[ast.AST],
        left_out: Collection[ast.AST],
    ) -> None:
        self._resolver, self._module = resolver, module
        self._functions, self._left_out = functions, left_out

    def in_block(self, block: Sequence[ast.stmt]) -> Iterator[RankZeroAction]:
        run: list[ast.stmt] = []
        for statement in [*block, None]:
            if statement is not None and self._is_action(statement):
                run.append(statement)
                continue
            if run:
                yield RankZeroAction(self._module, run[0], run[-1])
                run = []
            if statement is None or statement in self._left_out:
                continue
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for inner in _blocks(statement):
                yield from self.in_block(inner)

    def _is_action(self, statement: ast.stmt) -> bool:
        """Whether ``statement`` does nothing but tell or save, and no other process waits for it."""
        if statement in self._left_out or not self._only_acts(statement):
            return False
        for reached in reached_nodes(self._resolver, [statement], self._module, into_forward=True):
            node, module = reached.node, reached.module
            if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
                return False
            if isinstance(node, LoopNode) and not reached.direct:
                return False
            if isinstance(node, ast.Call) and self._is_heavy(node, module):
                return False
        return True

    def told_result(self, statement: ast.Expr) -> ast.expr | None:
        """The one argument of a call that tells, which runs a network."""
        call = statement.value
        if not isinstance(call, ast.Call) or not self._acts(call):
            return None
        heavy = [
            argument
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(
                isinstance(reached.node, ast.Call) and self._is_heavy(reached.node, reached.module)
                for reached in reached_nodes(self._resolver, [argument], self._module)
            )
        ]
        alone = len(heavy) == 1 and not isinstance(heavy[0], ast.Starred)
        return heavy[0] if alone else None

    def _only_acts(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Expr(value=ast.Call() as call):
                return self._acts(call)
            case ast.If(body=body, orelse=orelse):
                inner = [*body, *orelse]
                return all(self._only_acts(s) or isinstance(s, ast.Pass) for s in inner) and any(
                    self._only_acts(s) for s in inner
                )
            case ast.For(body=body, orelse=[]) | ast.With(body=body):
                return all(map(self._only_acts, body))
            case _:
                return False

    def _acts(self, call: ast.Call) -> bool:
        callees = self._resolver.callees(call, self._module)
        if callees:
            return all(tells(self._resolver, callee.node, callee.module) for callee in callees)
        names = self._resolver.names(call.func, self._module)
        if names:
            return all(
                n in _ACTIONS or (n.startswith(_ACTING_PACKAGES) and n != _RUN) for n in names
            )
        if not isinstance(call.func, ast.Attribute) or not _ACTING_METHODS.fullmatch(
            call.func.attr
        ):
            return False
        makers = self._resolver.maker_names(call.func.value, self._module)
        return bool(makers) and all(_WRITERS.search(name) for name in makers)

    def _is_heavy(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` runs a network, which processes may have to do together."""
        from .loops import is_forward

        return is_forward(self._resolver, call, module)


def tells(resolver: Resolver, function: ast.AST, module: Module) -> bool:
    """Whether ``function`` writes to the terminal and does nothing that has to do with the training: a progress bar."""
    if not isinstance(function, ast.FunctionDef):
        return False
    sites = resolver.call_sites(function)
    if not sites or not all(isinstance(s.module.parents[s.call], ast.Expr) for s in sites):
        return False
    libraries: set[str] = set()
    for reached in reached_nodes(resolver, function.body, module):
        if isinstance(reached.node, ast.Call):
            names = resolver.names(reached.node.func, reached.module)
            if not names and not _is_plain(resolver, reached.node, reached.module):
                return False  # a network's, maybe, or an optimizer's
            libraries |= names
    told = ("builtins.", "sys.std", "time.", "math.", "os.popen", "shutil.get_terminal_size")
    writes = libraries & {"builtins.print", "sys.stdout.write", "sys.stderr.write"}
    return bool(writes) and all(name.startswith(told) for name in libraries)


def _is_plain(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is one of the script's own functions, or a method that texts, numbers and lists have."""
    if resolver.callees(call, module):
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in _PLAIN_METHODS


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, [])
        if block:
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body
