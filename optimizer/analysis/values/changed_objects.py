"""Which objects a statement or a call changes in place: ``x.append(1)``, ``random.shuffle(x)``, ``x[0] = 1``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.signatures import call_argument, first_parameter
from ..program.classes import kept_as
from ..program.syntax import Module
from ..program.trees import is_true
from ..tensors.overwrites import says_inplace
from .resolver import Resolver

_CHANGING_METHODS = frozenset(
    "append appendleft extend insert pop popitem popleft remove clear update add discard setdefault sort reverse "
    "write seek fill put move_to_end subtract".split()
)
_SETTERS = ("set_", "add_", "remove_", "update_", "enable_", "disable_")
_CHANGES_ARGUMENT = frozenset(
    {
        "builtins.next",
        "builtins.setattr",
        "builtins.delattr",
        "operator.setitem",
        "operator.delitem",
        "operator.iadd",
        "operator.iconcat",
        *(f"random.{name}" for name in ("shuffle", "Random.shuffle", "SystemRandom.shuffle")),
        *(
            f"numpy.random.{name}shuffle"
            for name in ("", "RandomState.", "default_rng.", "Generator.")
        ),
        *(f"heapq.{name}" for name in "heappush heappop heapify heapreplace heappushpop".split()),
        *(f"bisect.insort{end}" for end in ("", "_left", "_right")),
        *(
            f"numpy.{name}"
            for name in "copyto put place putmask put_along_axis fill_diagonal".split()
        ),
    }
)


def changed_objects(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[ast.expr]:
    """The objects that running ``node`` itself changes in place."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            for target in targets:
                yield from _changed_by_assignment(target)
        case ast.AnnAssign(target=target, value=ast.expr()):
            yield from _changed_by_assignment(target)
        case ast.AugAssign(target=ast.Name() as name, value=value):
            # A number or a text is not changed in place: the name is rebound.
            if not isinstance(value, ast.Constant | ast.JoinedStr):
                yield name
        case ast.AugAssign(target=target):
            yield from _changed_by_assignment(target)
        case ast.Call():
            yield from changed_by_call(resolver, node, module)
        case _:
            pass


def changed_by_call(resolver: Resolver, call: ast.Call, module: Module) -> Iterator[ast.expr]:
    """The objects that a library function or method changes, judged by its name and by ``out=`` and ``inplace=``."""
    function, names = call.func, resolver.names(call.func, module)
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "out")
    if names & _CHANGES_ARGUMENT or any(map(_writes_to_tensor, names)):
        yield from call.args[:1]
        return
    if names or resolver.callees(call, module):
        if says_inplace(call) and any(name.startswith("torch.nn.") for name in names):
            yield from call.args[:1]
        return
    if isinstance(function, ast.Attribute) and not _is_stored(resolver, function, module):
        if changes_receiver(function.attr) or is_true(call_argument(call, "inplace")):
            yield function.value
        elif function.attr == "shuffle":  # of a generator that is handed around
            yield from call.args[:1]


def _is_stored(resolver: Resolver, function: ast.Attribute, module: Module) -> bool:
    """Whether ``function`` is what the object it is called on keeps, no method of it: ``self.transforms_``."""
    cls, method = module.enclosing_class(function), module.function(function)
    if cls is None or method is None or not isinstance(function.value, ast.Name):
        return False
    is_self = function.value.id == first_parameter(method)
    return is_self and bool(kept_as(resolver, cls, module, function.attr))


def _changed_by_assignment(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Attribute | ast.Subscript):
        yield target.value
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _changed_by_assignment(element)


def changes_receiver(method: str) -> bool:
    """Whether a method of a library object changes it, judged by its name: ``append``, ``mul_``."""
    return _ends_in_place(method) or method in _CHANGING_METHODS


def is_setter(method: str) -> bool:
    """Whether a method of a library object changes it or one of its settings, judged by its name: ``set_transform``."""
    return changes_receiver(method) or method.startswith(_SETTERS)


def _ends_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _writes_to_tensor(function: str) -> bool:
    """Whether a library function of that name writes to its tensor: ``torch.relu_``, ``torch.nn.init.normal_``."""
    return function.startswith("torch.") and _ends_in_place(function)
