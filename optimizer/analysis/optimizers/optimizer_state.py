"""Where a script loads the state of an optimizer, as it does to go on with a run."""

from __future__ import annotations

import ast

from ..calls.reach import never_runs
from ..networks.models import copied, is_module_class, models_in, replaced
from ..obstacles import Obstacle
from ..program.parameters import parameter_named
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Parameter
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Class, External, Instance, Literal, Made, Value

_OF_NETWORKS = frozenset({"to", "cuda", "parameters", "named_parameters", "requires_grad_"})
"""Methods of networks that no optimizer has."""


def loads_optimizer_state(resolver: Resolver) -> Obstacle | None:
    """Where the script may load the state of an optimizer; where it certainly does, if anywhere."""
    possible: Obstacle | None = None
    for module in resolver.project.modules:
        for call in module.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict":
                continue
            values = replaced(resolver, resolver.values(call.func.value, module), copied)
            if values and all(_is_no_optimizer(resolver, value) for value in values):
                continue
            if never_runs(resolver, call, module):
                continue
            loading = Obstacle(module, call, "the script loads the state of an optimizer")
            if any(map(is_torch_optimizer, values)):
                return loading
            if (
                _is_used_as_network(resolver, call.func.value, module)
                or _is_part_of_network(resolver, call.func.value, module)
                or _is_of_wrapped(call)
                or _is_asked_as_network(call, module)
            ):
                continue
            possible = possible or loading
    return possible


def _is_used_as_network(resolver: Resolver, loaded: ast.expr, module: Module) -> bool:
    """Whether ``loaded`` is declared to be a network, or moved to a device, say: ``network = build(args).to(device)``."""
    if isinstance(loaded, ast.Attribute):
        code = module.code(loaded)
        return any(
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _OF_NETWORKS
            and module.code(call.func.value) == code
            for call in module.calls
        )
    if not isinstance(loaded, ast.Name):
        return False
    sources = [binding.source for binding in bindings_of(module, loaded)]
    if sources and all(_is_declared_network(resolver, loaded.id, s, module) for s in sources):
        return True
    made = [source.value for source in sources if isinstance(source, Assigned)]
    called = [
        module.parents[use]
        for use in module.names_of(loaded.id)
        if module.function(use) is module.function(loaded)
    ]
    methods = [value.func for value in made if isinstance(value, ast.Call)]
    return any(
        isinstance(node, ast.Attribute) and node.attr in _OF_NETWORKS
        for node in (*called, *methods)
    )


def _is_part_of_network(resolver: Resolver, loaded: ast.expr, module: Module) -> bool:
    """Whether ``loaded`` is an attribute of a network that no code of the script gives it: the ``model.encoder`` of a library's."""
    if not isinstance(loaded, ast.Attribute) or "opt" in loaded.attr.lower():
        return False
    values = resolver.values(loaded.value, module)
    is_network = bool(values) and all(models_in(resolver, frozenset([v])) for v in values)
    return (is_network or _is_used_as_network(resolver, loaded.value, module)) and not any(
        isinstance(use.ctx, ast.Store)
        for other in resolver.project.modules
        for use in other.attributes_of(loaded.attr)
    )


def _is_declared_network(resolver: Resolver, name: str, source: object, module: Module) -> bool:
    """``def load(model: nn.Module)``"""
    if not isinstance(source, Parameter) or isinstance(source.function, ast.Lambda):
        return False
    parameter = parameter_named(source.function, name)
    declared = parameter.annotation if parameter is not None else None
    return declared is not None and "torch.nn.Module" in resolver.names(declared, module)


def _is_asked_as_network(call: ast.Call, module: Module) -> bool:
    """Whether only a network takes what ``call`` gives, gives what it takes, or is kept under such a name.

    ``missing, unexpected = model.load_state_dict(state, strict=False)``, ``task.load_state_dict(checkpoint["model"])``.
    """
    if any(keyword.arg in {"strict", "assign"} for keyword in call.keywords) or len(call.args) > 1:
        return True
    statement = module.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call:
        return any(isinstance(target, ast.Tuple) for target in statement.targets)
    match call.args:
        case [ast.Subscript(slice=ast.Constant(value=str(key)))]:
            return "model" in key and "opt" not in key
        case _:
            return False


def _is_of_wrapped(call: ast.Call) -> bool:
    """Whether ``call`` loads the state of what DataParallel holds, or loads into it: ``teacher.load_state_dict(student.module.state_dict())``."""
    receivers = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    match call.args:
        case [ast.Call(func=ast.Attribute(value=source, attr="state_dict")), *_]:
            receivers.append(source)
        case _:
            pass
    return any(isinstance(node, ast.Attribute) and node.attr == "module" for node in receivers)


def _is_no_optimizer(resolver: Resolver, value: Value) -> bool:
    if isinstance(value, Instance):
        return is_module_class(resolver, value.cls)
    if not isinstance(value, Made):
        return isinstance(value, Literal)  # the ``None`` of what is made later, or by a subclass
    if isinstance(value.maker, Class):
        return bool(models_in(resolver, frozenset([value])))
    if is_torch_optimizer(value):
        return False
    return value.maker.name.startswith("torch") or bool(models_in(resolver, frozenset([value])))


def is_torch_optimizer(value: object) -> bool:
    """Whether ``value`` is one of the optimizers of ``torch.optim``."""
    if not (isinstance(value, Made) and isinstance(value.maker, External)):
        return False
    name = value.maker.name
    others = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")
    return name.startswith("torch.optim.") and not name.startswith(others)
