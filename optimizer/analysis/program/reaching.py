"""Which bindings of a name a use can see: reaching definitions, approximated on the syntax tree."""

from __future__ import annotations

import ast
import sys

from ..editing.bound_names import binds
from .scopes import Assigned, Binding, Defined, Deleted, Imported, Parameter, Scope
from .syntax import Module
from .trees import is_name, position, walk

_Position = tuple[int, int]
_RUN_IN_PLACE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Scopes whose code runs where it stands, unlike that of a function."""
_ALWAYS_COMPLETE = frozenset(
    {"no_grad", "inference_mode", "enable_grad", "set_grad_enabled", "autocast"}
)
"""Context managers that let every exception through: what follows them has seen their whole block run."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NEVER: _Position = (sys.maxsize, 0)


def reaching_bindings(
    module: Module,
    owner: Scope,
    bindings: list[Binding],
    scope: Scope | None,
    use: ast.AST,
    ran: ast.AST | None = None,
) -> list[Binding]:
    """The bindings of ``owner`` that may give a name its value where ``use`` stands in ``scope``.

    Inside the scope that binds the name, a binding in a block around the use hides the earlier ones, and a later one
    counts only when a loop leads back to the use. For None (after the scope ran) the last unconditional binding hides the
    earlier ones; from a function inside, the last one before that function is mentioned for the first time.

    ``ran`` is code of the same function that is known to have run before ``use``, in the same pass of the loops around
    both: the branches it is in were taken.
    """
    if len(bindings) == 1 or owner.is_class:
        return bindings
    reaching = _reaching(module, owner, bindings, scope, use, ran)
    return [b for b in reaching if not isinstance(b.source, Deleted)] or reaching


def bindings_of(module: Module, name: ast.Name) -> list[Binding]:
    """The bindings that may give the variable ``name`` its value where it stands; none of what is not bound in its file."""
    scope = module.scope(name)
    found = scope.lookup(name.id)
    return reaching_bindings(module, *found, scope, name) if found is not None else []


def all_assigned(module: Module, name: ast.Name) -> list[ast.expr]:
    """All that the variable ``name`` is ever assigned as a whole; nothing where it is also bound otherwise, or to another variable."""
    found = module.scope(name).lookup(name.id)
    values: list[ast.expr] = []
    for binding in found[1] if found is not None else ():
        match binding.source:
            case Assigned(value=value, path=()) if not isinstance(value, ast.Name):
                values.append(value)
            case _:
                return []
    return values


def is_read(use: ast.Name, module: Module) -> bool:
    """Whether ``use`` of a variable takes its value, if only to add to it (``x += y``)."""
    return isinstance(use.ctx, ast.Load) or isinstance(module.parents[use], ast.AugAssign)


def bindings_seen_in(
    module: Module, owner: Scope, bindings: list[Binding], node: ast.AST
) -> set[Binding]:
    """Those of ``bindings``, of one variable of ``owner``, that what reads it inside ``node``, or adds to it, may see."""
    uses = (
        use
        for use in module.names_of(bindings[0].name)
        if node in module.ancestors(use) and is_read(use, module)
    )
    return {
        binding
        for use in uses
        for binding in reaching_bindings(module, owner, bindings, module.scope(use), use)
    }


def assigned_values(module: Module, name: ast.Name) -> list[ast.expr]:
    """What the variable ``name`` may have been assigned last, but for parts of something."""
    sources = (binding.source for binding in bindings_of(module, name))
    return [s.value for s in sources if isinstance(s, Assigned) and not s.path]


def only_value(module: Module, name: ast.Name) -> ast.expr | None:
    """What the variable ``name`` was assigned, where only one assignment can have been the last, and not of a part of something."""
    bindings = bindings_of(module, name)
    source = bindings[0].source if len(bindings) == 1 else None
    return source.value if isinstance(source, Assigned) and not source.path else None


def same_variable(node: ast.expr, variable: ast.Name, module: Module) -> bool:
    """Whether ``node`` is ``variable``, with the value that it has there."""
    if not is_name(node, variable.id):
        return False
    return set(bindings_of(module, node)) == set(bindings_of(module, variable))


def replaced_if_none(module: Module, reaching: list[Binding], use: ast.AST) -> list[Binding]:
    """Those of ``reaching`` that are None no more at ``use``: ``if device is None: device = ...`` stands in between."""
    if len(reaching) < 2:
        return []
    around = enclosing_blocks(module, use)
    statements = {module.statement(b.node) for b in reaching if not isinstance(b.source, Parameter)}
    tests = [
        test
        for statement in statements
        for test in module.ancestors(statement)
        if isinstance(test, ast.If)
        and _is_none_test(test.test, reaching[0].name)
        and position(test) < position(use)
        and id(module.block(test)) in around
        and test not in module.ancestors(use)
        and binds(test.body, statements)
    ]
    return [b for b in reaching if any(_effect(module, b) < position(test) for test in tests)]


def _is_none_test(test: ast.expr, name: str) -> bool:
    match test:
        case ast.Compare(ast.Name(id=tested), [ast.Is() | ast.Eq()], [ast.Constant(value=None)]):
            return tested == name
        case ast.UnaryOp(ast.Not(), ast.Name(id=tested)):
            return tested == name
        case _:
            return False


def _reaching(
    module: Module,
    owner: Scope,
    bindings: list[Binding],
    scope: Scope | None,
    use: ast.AST,
    ran: ast.AST | None,
) -> list[Binding]:
    if scope is None:
        return _after_last_unconditional(module, owner, bindings)
    if runs_later(scope, owner):
        return _seen_from_inside(module, owner, bindings, scope)
    passed_by = _passed_by(module, use)
    before = [
        b
        for b in bindings
        if _effect(module, b) <= position(use)
        and not _inside(module, use, b)
        and not (passed_by and passed_by & enclosing_blocks(module, b.node))
    ]
    around = enclosing_blocks(module, use)
    if ran is not None and position(ran) < position(use):
        taken, left_out = _branches(module, ran)
        around |= taken
        before = [b for b in before if not left_out & enclosing_blocks(module, b.node)]
    decided = _last_decided(module, before, use, around)
    reaching: list[Binding] = []
    for binding in before:
        if decided is not None and position(binding.node) < position(decided):
            continue
        if _block(module, binding) in around:
            reaching = []
        reaching.append(binding)
    # What the loop binds anew before the use, such as its own target, is not what its last pass left behind.
    fresh: list[ast.AST] = [b.node for b in before if _block(module, b) in around]
    fresh += [] if decided is None else [decided]
    loops = [
        loop
        for loop in [*_tested(module, use), *module.loops(use)]
        if not any(loop in module.ancestors(node) for node in fresh)
    ]
    reaching += [
        b
        for b in bindings
        if b not in before and any(loop in module.ancestors(b.node) for loop in loops)
    ]
    return reaching or bindings


def _last_decided(
    module: Module, before: list[Binding], use: ast.AST, around: set[int]
) -> ast.If | ast.Try | None:
    """The last ``if`` or ``try`` above ``use`` of which every branch binds the name, so that it hides what is above."""
    blocks = {_block(module, binding) for binding in before}
    tests = (
        test
        for binding in before
        for test in module.ancestors(binding.node)
        if isinstance(test, ast.If | ast.Try)
        and id(module.block(test)) in around
        and test not in module.ancestors(use)
        and _always_binds([test], blocks)
    )
    return max(tests, key=position, default=None)


def _always_binds(statements: list[ast.stmt], blocks: set[int]) -> bool:
    """Whether ``statements`` do not run to their end without one of ``blocks``, which are those that bind a name."""
    return id(statements) in blocks or any(_binds_or_leaves(each, blocks) for each in statements)


def _binds_or_leaves(statement: ast.stmt, blocks: set[int]) -> bool:
    match statement:
        case ast.Raise() | ast.Return() | ast.Continue() | ast.Break():
            return True
        case ast.If(body=body, orelse=orelse):
            return _always_binds(body, blocks) and _always_binds(orelse, blocks)
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=last):
            return _always_binds(last, blocks) or (
                (_always_binds(body, blocks) or _always_binds(orelse, blocks))
                and all(_always_binds(handler.body, blocks) for handler in handlers)
            )
        case _:
            return False


def _tested(module: Module, use: ast.AST) -> list[ast.While]:
    """The ``while`` whose condition ``use`` stands in: its body runs before the condition is asked again."""
    statement = module.statement(use)
    if isinstance(statement, ast.While):
        return [statement]
    return []


def runs_later(scope: Scope, owner: Scope) -> bool:
    """Whether ``scope`` is that of a function inside ``owner``, which runs when it is called."""
    inner: Scope | None = scope
    while inner is not None and inner is not owner and isinstance(inner.node, _RUN_IN_PLACE):
        inner = inner.parent
    return inner is not owner


def _seen_from_inside(
    module: Module, owner: Scope, bindings: list[Binding], scope: Scope
) -> list[Binding]:
    """What the function of ``scope``, inside ``owner``, may see: all since it may first have been called."""
    first = _first_mention(module, owner, scope.node, set())
    start = 0
    for index, binding in enumerate(bindings):
        if _effect(module, binding) <= first and _is_unconditional(module, owner, binding):
            start = index
    return bindings[start:]


def _first_mention(module: Module, owner: Scope, node: ast.AST, asked: set[ast.AST]) -> _Position:
    """Where the code of ``owner`` first mentions the function or class around ``node``, itself or through others."""
    definition = None
    for around in [node, *module.ancestors(node)]:
        if around is owner.node:
            break
        if isinstance(around, _DEFINITIONS):
            definition = around
    if definition is None or isinstance(definition, ast.Lambda):
        return position(node)
    if definition in asked:
        return _NEVER
    asked.add(definition)
    mentions = [position(definition) if definition.decorator_list else _NEVER]
    for name in module.names_of(definition.name):
        if isinstance(name.ctx, ast.Load) and definition not in module.ancestors(name):
            waits = _is_in_body(name, owner, module)
            mentions.append(_first_mention(module, owner, name, asked) if waits else position(name))
    return min(mentions)


def _is_in_body(name: ast.Name, owner: Scope, module: Module) -> bool:
    """Whether ``name`` is read when a function inside ``owner`` is called, not where it stands."""
    child: ast.AST = name
    for around in module.ancestors(name):
        if around is owner.node:
            return False
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in around.body:
            return True
        child = around
    return False


def _after_last_unconditional(
    module: Module, owner: Scope, bindings: list[Binding]
) -> list[Binding]:
    reaching: list[Binding] = []
    for binding in bindings:
        if _is_unconditional(module, owner, binding):
            reaching = []
        reaching.append(binding)
    return reaching


def _is_unconditional(module: Module, owner: Scope, binding: Binding) -> bool:
    blocks = {id(getattr(owner.node, "body", None))}
    if isinstance(owner.node, ast.Module) and module.main_guard is not None:
        blocks.add(id(module.main_guard.body))
    return _block(module, binding) in blocks


def _inside(module: Module, use: ast.AST, binding: Binding) -> bool:
    """Whether ``use`` is read by the very statement that makes ``binding`` (``x = f(x)``)."""
    if isinstance(binding.source, (Parameter, Imported, Defined)):
        return False
    statement = module.statement(binding.node)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return use is statement.iter or statement.iter in module.ancestors(use)
    if isinstance(statement, (ast.With, ast.AsyncWith, ast.If, ast.While)):
        return False
    return statement in module.ancestors(use)


def _effect(module: Module, binding: Binding) -> _Position:
    return position(binding.node)


def _block(module: Module, binding: Binding) -> int:
    """The identity of the statement list in which ``binding`` takes effect."""
    if isinstance(binding.source, Parameter):
        return id(binding.source.function.body)
    statement = module.statement(binding.node)
    if isinstance(statement, (ast.For, ast.AsyncFor)) and binding.node in walk(statement.target):
        return id(statement.body)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return id(statement.body)
    return id(module.block(_completing(module, statement)))


def _completing(module: Module, statement: ast.stmt) -> ast.stmt:
    """The outermost ``with`` around ``statement`` behind which it has certainly run, or ``statement`` itself."""
    parent = module.parents[statement]
    while isinstance(parent, ast.With) and all(
        _lets_through(item.context_expr) for item in parent.items
    ):
        statement, parent = parent, module.parents[parent]
    return statement


def _lets_through(manager: ast.expr) -> bool:
    function = manager.func if isinstance(manager, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _ALWAYS_COMPLETE


def _branches(module: Module, ran: ast.AST) -> tuple[set[int], set[int]]:
    """The statement lists that have run to their end if ``ran`` has, and those that have not run at all."""
    around = enclosing_blocks(module, ran)
    taken, left_out = around, set[int]()
    for ancestor in module.ancestors(ran):
        match ancestor:
            case ast.If(body=body, orelse=orelse) if around & {id(body), id(orelse)}:
                left_out |= {id(body), id(orelse)} - around
            case ast.Try(body=body):
                taken = taken - {id(body)}
            case _ if isinstance(ancestor, _DEFINITIONS):
                break
            case _:
                pass
    return taken, left_out


def _passed_by(module: Module, use: ast.AST) -> set[int]:
    """The branches beside those that ``use`` is in, which have not run in the same pass."""
    blocks: set[int] = set()
    child = use
    for ancestor in module.ancestors(use):
        match ancestor:
            case ast.If(orelse=orelse) if child in orelse:
                blocks.add(id(ancestor.body))
            case ast.Match(cases=cases):
                blocks |= {id(case.body) for case in cases if case is not child}
            case _ if isinstance(ancestor, _DEFINITIONS):
                break
            case _:
                pass
        child = ancestor
    return blocks


def enclosing_blocks(module: Module, use: ast.AST) -> set[int]:
    """The identities of the statement lists that ``use`` is in, up to the function or class around it."""
    blocks: set[int] = set()
    child = use
    for ancestor in module.ancestors(use):
        if isinstance(child, ast.stmt):
            blocks.add(id(module.block(child)))
        if isinstance(ancestor, _DEFINITIONS):
            break
        child = ancestor
    return blocks
