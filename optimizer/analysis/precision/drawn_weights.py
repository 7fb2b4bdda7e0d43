"""Weights that a script draws in a size of its own: ``nn.init.uniform_(layer.weight, -30, 30)``, ``weight.data.mul_(30)``.

What a layer makes of what it is given is then of another size than PyTorch's own weights give it. The common rules (Xavier, Kaiming,
orthogonal) and normal weights of a small deviation hardly change that size.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.signatures import argument_for, call_argument, default_of
from ..facts import Fact
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Iterated, Parameter
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..values.resolver import Resolver
from .possible_numbers import known_numbers

_INIT = "torch.nn.init."
_KEEPING = frozenset(
    "kaiming_uniform_ kaiming_normal_ zeros_ ones_ eye_ dirac_ calculate_gain _calculate_correct_fan "
    "_calculate_fan_in_and_fan_out".split()
)
_WITH_GAIN = frozenset({"xavier_uniform_", "xavier_normal_", "orthogonal_"})
_MOST_GAIN = 2.0
_MOST_DRAWN = {"uniform_": 0.1, "normal_": 0.05, "trunc_normal_": 0.05}
"""Bounds and deviations with which a layer of several hundred inputs returns about what it is given (GPT-2: 0.02)."""
_FACTORS = frozenset({"mul_", "div_"})
_WRITING = frozenset({"fill_", "copy_", "set_", "exponential_", "cauchy_", "log_normal_"})
_TRAINED = frozenset({"parameters", "named_parameters"})
_CALLED_SO = frozenset({"w", "weight", "weights"})


def draws_weights(resolver: Resolver) -> Fact | None:
    """The first place of the project that gives weights another size than PyTorch does; None where nothing is seen to."""
    return next(
        (
            Fact(module, node)
            for module in resolver.project.modules
            for node in module.nodes_of(ast.Call, ast.Assign)
            if (
                _writes_weights(resolver, node, module)
                if isinstance(node, ast.Call)
                else _replaces_weights(resolver, node, module)
            )
        ),
        None,
    )


def _writes_weights(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    names = resolver.names(call.func, module)
    for name in names:
        if name.startswith(_INIT):
            return not _is_common(resolver, name.removeprefix(_INIT), call, module)
    method = last_identifier(call.func)
    if names or method not in _WRITING | _FACTORS | _MOST_DRAWN.keys():
        return False
    if not isinstance(call.func, ast.Attribute) or _is_average(call, module):
        return False
    if method in _MOST_DRAWN:
        drawn_small = _draws_small(resolver, method, call, module, 0)
        return not drawn_small and _is_weight(resolver, call.func.value, module)
    if method in _FACTORS:
        factors = _numbers(resolver, call.args[0], module) if call.args else ()
        limit = [abs(f) <= 1 if method == "mul_" else abs(f) >= 1 for f in factors]
        if limit and all(limit):
            return False
    return _is_weight(resolver, call.func.value, module)


def _replaces_weights(resolver: Resolver, node: ast.Assign, module: Module) -> bool:
    """``layer.weight = ..`` and ``layer.weight.data[:] = ..``; a ``self.weight`` is that of a layer of the script's own."""
    for target in node.targets:
        base: ast.expr = target
        while isinstance(base, ast.Subscript) or (
            isinstance(base, ast.Attribute) and base.attr == "data"
        ):
            base = base.value
        if isinstance(base, ast.Name) and base is not target and _is_weight(resolver, base, module):
            return True
        if isinstance(base, ast.Attribute) and base.attr == "weight":
            is_own = isinstance(base.value, ast.Name) and base.value.id == "self"
            if not is_own or base is not target:
                return True
    return False


def _is_common(resolver: Resolver, rule: str, call: ast.Call, module: Module) -> bool:
    """Whether the rule of ``torch.nn.init`` keeps the size of what a layer is given."""
    if rule in _KEEPING:
        return True
    if rule in _WITH_GAIN:
        gain = call_argument(call, "gain", 1)
        if gain is None or last_identifier(getattr(gain, "func", gain)) == "calculate_gain":
            return True
        numbers = _numbers(resolver, gain, module)
        return bool(numbers) and max(map(abs, numbers)) <= _MOST_GAIN
    if rule == "constant_":
        value = call_argument(call, "val", 1)
        numbers = _numbers(resolver, value, module) if value is not None else ()
        return bool(numbers) and max(map(abs, numbers)) <= 1
    return rule in _MOST_DRAWN and _draws_small(resolver, rule, call, module, 1)


def _draws_small(resolver: Resolver, rule: str, call: ast.Call, module: Module, first: int) -> bool:
    """Whether numbers drawn by ``rule``, whose bounds or mean and deviation begin at argument ``first``, are small."""
    keywords = ("a", "b") if rule == "uniform_" else ("mean", "std")
    first_given = call_argument(call, keywords[0], first)
    second = call_argument(call, keywords[1], first + 1)
    if second is None:
        return False
    given = [second] if first_given is None else [first_given, second]
    sets = [_numbers(resolver, one, module) for one in given]
    return all(sets) and max(abs(n) for numbers in sets for n in numbers) <= _MOST_DRAWN[rule]


def _numbers(resolver: Resolver, node: ast.expr, module: Module) -> frozenset[float]:
    """All numbers that ``node`` may be; the default of what a function is given that only ``net.apply(init)`` calls."""
    numbers = known_numbers(resolver, node, module)
    if numbers or not isinstance(node, ast.Name):
        return numbers
    for binding in bindings_of(module, node):
        match binding.source:
            case Parameter(ast.FunctionDef() as function) if not resolver.call_sites(function):
                default = default_of(function, binding.name)
                return known_numbers(resolver, default, module) if default is not None else numbers
            case _:
                pass
    return numbers


def _is_average(call: ast.Call, module: Module) -> bool:
    """Whether ``call`` begins a moving average: ``kept.mul_(decay).add_(weight, alpha=1 - decay)``."""
    user = module.parents[call]
    return isinstance(user, ast.Attribute) and user.attr in {"add_", "addcmul_", "addcdiv_", "sub_"}


def _is_weight(resolver: Resolver, node: ast.expr, module: Module, steps: int = 4) -> bool:
    """Whether ``node`` may be the weight of a layer, or a view of it."""
    if not steps:
        return True
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Attribute) and node.attr in {"data", "T"}
    ):
        node = node.value
    match node:
        case ast.Attribute(attr=attr):
            return attr.startswith("weight")
        case ast.Name():
            bindings = bindings_of(module, node)
            return any(_binds_weight(resolver, binding, module, steps - 1) for binding in bindings)
        case _:
            return False


def _binds_weight(resolver: Resolver, binding: Binding, module: Module, steps: int) -> bool:
    match binding.source:
        case Assigned(value):
            return _is_weight(resolver, value, module, steps)
        case Iterated(iterable):
            return any(last_identifier(call.func) in _TRAINED for call in _calls(iterable))
        case Parameter(ast.FunctionDef() as function):
            sites = resolver.call_sites(function)
            if not sites:
                return binding.name in _CALLED_SO
            passed = [
                (argument_for(function, binding.name, site.call, site.bound), site.module)
                for site in sites
            ]
            return any(
                one is None
                or (one.given is not None and _is_weight(resolver, one.given, where, steps))
                for one, where in passed
            )
        case _:
            return False


def _calls(node: ast.expr) -> Iterator[ast.Call]:
    return (part for part in walk(node) if isinstance(part, ast.Call))
