"""Finds tensors that are made on the host in one statement and moved in a later one: ``x = x.to(device)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..editing.references import quoted
from ..facts import Fact
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..program.trees import is_name, walk
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_targets, written_part
from .construction import ConstructionFinder
from .device_choices import condition, device_choice, visible_devices


@dataclass(frozen=True, eq=False)
class HostMove(Fact):
    """``node`` is the statement ``x = x.to(device)``; ``value`` the expression that made ``x`` before.

    ``factory``, ``steps``, ``device``, ``draws`` and ``refusal`` are as in :class:`.construction.Construction`.
    """

    node: ast.Assign
    value: ast.expr
    factory: ast.Call
    steps: tuple[ast.Call, ...]
    device: str
    draws: bool
    refusal: str | None


def find_host_moves(resolver: Resolver) -> tuple[HostMove, ...]:
    """Every such move of the project, in source order per module."""
    finder = _Finder(resolver)
    found = [
        move
        for module in resolver.project.modules
        for node in module.nodes_of(ast.Assign)
        for move in finder.of_statement(node, module)
    ]
    return tuple(sorted(found, key=lambda move: (str(move.path), move.span)))


class _Finder:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._constructions = ConstructionFinder(resolver)

    def of_statement(self, statement: ast.Assign, module: Module) -> Iterator[HostMove]:
        """The moves that ``statement`` makes, one per name it assigns; none if it does anything else."""
        found: list[HostMove] = []
        for target, value in assigned_pairs(statement):
            test: ast.expr | None = None
            if isinstance(value, ast.IfExp) and is_name(value.orelse, target.id):
                value, test = value.body, value.test
            move = self._move(statement, target, value, test, module)
            if move is None:
                return
            found.append(move)
        yield from found

    def _move(
        self,
        statement: ast.Assign,
        target: ast.Name,
        value: ast.expr,
        test: ast.expr | None,
        module: Module,
    ) -> HostMove | None:
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
            return None
        moved = value.func.value
        if value.func.attr not in {"to", "cuda"} or not is_name(moved, target.id):
            return None
        made = self._made(moved, module)
        if made is None:
            return None
        chain = self._constructions.chain(made, module)
        where = self._constructions.target(value, module)
        if chain is None or where is None or where[1] is not None:
            return None
        factory, steps = chain
        if call_argument(factory, "device") is not None:
            return None
        device, _, refusal = where
        branch, tests = _branch(statement, module)
        tests += [test] if test is not None else []
        if tests:
            device, refusal = self._conditional_device(value, tests, device, refusal, module)
            if refusal is None and device == _chosen(tests[0], module):
                refusal = _rebound(tests[0], module.statement(made), branch, module)
                refusal = refusal or self._constructions.elsewhere(factory, module)
        refusal = (
            self._refused_place(made, branch, statement, target.id, module)
            or refusal
            or self._constructions.refusal(factory, steps, device, module)
            or self._constructions.copy_refusal(steps, value, module)
        )
        draws = self._constructions.draws(factory, steps, module)
        if draws and refusal is None:
            refusal = self._constructions.draw_refusal(value, module)
        return HostMove(module, statement, made, factory, steps, device, draws, refusal)

    def _made(self, name: ast.expr, module: Module) -> ast.expr | None:
        """The one expression that gives ``name`` its value."""
        assert isinstance(name, ast.Name)
        scope = module.scope(name)
        found = scope.lookup(name.id)
        if found is None or found[0] is not scope:
            return None
        reaching = reaching_bindings(module, *found, scope, name)
        source = reaching[0].source if len(reaching) == 1 else None
        return source.value if isinstance(source, Assigned) and not source.path else None

    def _refused_place(
        self, made: ast.expr, branch: ast.stmt, move: ast.stmt, name: str, module: Module
    ) -> str | None:
        """Why the two statements are not one: they are not in one block, or the host uses the tensor in between."""
        first = module.statement(made)
        block = module.block(first)
        if branch not in block:
            return f"`{name}` is made at {module.place(first)}, in another block"
        between = block[block.index(first) + 1 : block.index(branch)]
        for use in module.names_of(name):
            around = {use, *module.ancestors(use)}
            before_move = branch in around and use.lineno < move.lineno
            if before_move or any(statement in around for statement in between):
                return f"`{name}` is used on the host at {module.place(use)} before it is moved"
        return None

    def _conditional_device(
        self,
        move: ast.Call,
        tests: list[ast.expr],
        device: str,
        refusal: str | None,
        module: Module,
    ) -> tuple[str, str | None]:
        """The script's own name for the device that a conditional move picks."""
        code = module.code(tests[0])
        if len(tests) > 1:
            return device, "it is moved under several conditions"
        wanted = condition(self._resolver, tests[0], module)
        given = call_argument(move, "device", 0)
        choice = device_choice(self._resolver, given, module) if given is not None else None
        if choice is not None and choice.condition == wanted:
            return device, refusal
        if given is None or (choice is not None and choice.condition is None):
            text = choice.cuda if choice is not None else "cuda"
            for name, visible in visible_devices(self._resolver, move, module):
                if visible.condition == wanted and visible.cuda == text:
                    return name, None
        if given is None and isinstance(tests[0], ast.Name | ast.Attribute):
            return _chosen(tests[0], module), None
        return device, f"it is moved only if `{code}`, and no variable names that device"


def _chosen(test: ast.expr, module: Module) -> str:
    """The device of what is moved by ``.cuda()`` if ``test``, where nothing in the script has it as its value.

    What goes where another tensor is, is made on that tensor's device.
    """
    if isinstance(test, ast.Attribute) and test.attr == "is_cuda":
        return f"{module.code(test.value)}.device"
    cuda, cpu = (quoted(module, name) for name in ("cuda", "cpu"))
    return f"{cuda} if {module.code(test)} else {cpu}"


def _rebound(test: ast.expr, made: ast.stmt, branch: ast.stmt, module: Module) -> str | None:
    """That ``test`` may say something else where the tensor is ``made`` than at the ``branch`` in which it is moved."""
    block = module.block(made)
    if branch not in block:
        return None  # refused already
    names = {_part_name(part) for part in walk(test)}
    for statement in block[block.index(made) : block.index(branch)]:
        for node in walk(statement):
            if isinstance(getattr(node, "ctx", None), ast.Store) and _part_name(node) in names:
                return f"`{module.code(test)}` may be another from {module.place(statement)} on"
    return None


def _part_name(node: ast.AST) -> str | None:
    """The name of a variable or an attribute."""
    return getattr(node, "id", None) or getattr(node, "attr", None)


def assigned_pairs(statement: ast.Assign) -> list[tuple[ast.Name, ast.expr]]:
    """The names a statement assigns, each with its own expression; empty for other targets."""
    if len(statement.targets) != 1:
        return []
    pairs: list[tuple[ast.Name, ast.expr]] = []
    for target, path in unpacked_targets(statement.targets[0]):
        value = written_part(statement.value, path)
        if not isinstance(target, ast.Name) or value is None:
            return []
        pairs.append((target, value))
    return pairs


def _branch(statement: ast.stmt, module: Module) -> tuple[ast.stmt, list[ast.expr]]:
    """The outermost ``if`` without ``else`` around ``statement`` (or itself), and the tests on the way."""
    tests: list[ast.expr] = []
    parent = module.parents[statement]
    while isinstance(parent, ast.If) and not parent.orelse and statement in parent.body:
        if parent in module.main_guards:
            break
        tests.append(parent.test)
        statement, parent = parent, module.parents[parent]
    return statement, tests
