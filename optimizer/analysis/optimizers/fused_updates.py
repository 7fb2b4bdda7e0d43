"""What keeps an optimizer from updating its parameters with the fused kernels of ``torch.optim``.

Their rules: https://docs.pytorch.org/docs/stable/optim.html and the checks in torch/optim/adam.py and sgd.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile

from ..calls.signatures import call_argument, takes_closure
from ..devices.placement import move_target
from ..facts import Optimizer
from ..loading.loaders import keyword_dict
from ..networks.models import ANY_OPTIMIZER, find_optimizers, models_in
from ..networks.trained import trained_networks
from ..obstacles import Obstacle
from ..program.syntax import Module, last_identifier
from ..program.trees import is_none
from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Instance, Literal, Made
from .optimizer_state import is_torch_optimizer, loads_optimizer_state

FUSED_SINCE = {"Adam": (2, 2), "AdamW": (2, 2), "SGD": (2, 3)}
"""The optimizers with a fused kernel for CUDA, by the first PyTorch that has it and is written for."""
FUSED_ON_CPU_SINCE = (2, 4)
"""From here on the kernels take parameters on the host as well."""
_OTHER_KERNELS = ("fused", "foreach", "differentiable", "capturable")
_MOMENTUM = 2  # among the parameters of SGD
_SCALERS = "GradScaler"
_COMPLEX = frozenset({"complex64", "complex128", "cfloat", "cdouble"})
_TAKE_ANY_OPTIMIZER = ("torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch.save")
_SCHEDULER = re.compile(r"(LR|Warmup|[Ss]cheduler|schedule_with_warmup)$")
_LOOK_ONLY = frozenset(
    {"isinstance", "type", "len", "id", "hasattr", "list", "tuple", "dict", "zip", "enumerate"}
)
_KEEP = frozenset({"append", "step", "unscale_", "minimize"})
_PRINT = frozenset({"print", "pprint", "info", "debug", "warning", "log"})
_MAKE_TEXT = frozenset({"str", "repr", "format"})


def fused_obstacle(
    resolver: Resolver, optimizer: Optimizer, version: tuple[int, int], *, on_cpu: bool = False
) -> Obstacle | None:
    """Why ``optimizer`` cannot be fused, for a GPU or ``on_cpu``; None when nothing speaks against it."""
    for find in (_kind, _arguments, _uses, _gradients, _scaled):
        found = find(resolver, optimizer)
        if found is not None:
            return found
    if version < FUSED_ON_CPU_SINCE:
        if on_cpu:
            return _here(optimizer, "before PyTorch 2.4 there is no fused kernel for a CPU")
        return _early(resolver, optimizer, version)
    if on_cpu and _is_sgd(resolver, optimizer) and not _has_momentum(resolver, optimizer):
        return _here(optimizer, "on a CPU, SGD without momentum is as fast as it is")
    return None


def may_step(resolver: Resolver) -> bool:
    """Whether any optimizer is stepped: an evaluation may just make what the training made."""
    return any(
        "step" in node.attr
        for module in resolver.project.modules
        for node in module.nodes_of(ast.Attribute)
    )


def fused_momentum(resolver: Resolver) -> Obstacle | None:
    """A fused SGD with momentum, which must not be stepped by a GradScaler.

    When the scaler finds an overflow in the first step, the kernel leaves the momentum buffers as they were allocated,
    without values, and the second step takes them for momentum (seen up to PyTorch 2.15).
    """
    for optimizer in find_optimizers(resolver):
        fused = call_argument(optimizer.node, "fused")
        is_off = isinstance(fused, ast.Constant) and not fused.value
        if fused is not None and not is_off and _has_momentum(resolver, optimizer):
            why = "fused SGD loses its momentum when a GradScaler skips a step"
            return Obstacle(optimizer.module, optimizer.node, why)
    return None


def _is_sgd(resolver: Resolver, optimizer: Optimizer) -> bool:
    names = resolver.names(optimizer.node.func, optimizer.module)
    return any(name == ANY_OPTIMIZER or name.endswith(".SGD") for name in names)


def _has_momentum(resolver: Resolver, optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` is an SGD that may have momentum."""
    if not _is_sgd(resolver, optimizer):
        return False
    momentum = call_argument(optimizer.node, "momentum", _MOMENTUM)
    if momentum is None:
        return any(keyword.arg is None for keyword in optimizer.node.keywords)
    try:
        return resolver.literal(momentum, optimizer.module) != 0
    except LookupError:
        return True


def wraps_optimizer(resolver: Resolver, value: Made) -> bool:
    """Whether ``value`` is made by a library other than torch, of an optimizer: ``LARC(optimizer)``."""
    return (
        isinstance(value.maker, External)
        and not value.maker.name.startswith("torch.")
        and any(
            is_torch_optimizer(given)
            for argument in call_arguments(value.call)
            for given in resolver.values(argument, value.module)
        )
    )


def _kind(resolver: Resolver, optimizer: Optimizer) -> Obstacle | None:
    module, call = optimizer.module, optimizer.node
    if optimizer.cls is not None:
        return _here(optimizer, f"`{optimizer.cls.node.name}` is an optimizer of the script's own")
    callees = resolver.values(call.func, module)
    foreign = [
        v.name for v in callees if isinstance(v, External) and not v.name.startswith("torch.")
    ]
    if foreign:
        name = f"`{min(foreign)}`"
        it_is = f"it may be {name}," if len(callees) > 1 else f"{name} is"
        return _here(optimizer, f"{it_is} an optimizer of another library")
    if optimizer.library_name == ANY_OPTIMIZER:
        return _here(optimizer, "which optimizer it is, is chosen when the script runs")
    names = {v.name.rpartition(".")[2] for v in callees if isinstance(v, External)}
    if len(names) != len(callees):
        return _here(optimizer, f"what `{module.code(call.func)}` is cannot be resolved")
    unfused = sorted(names - FUSED_SINCE.keys())
    if unfused:
        return _here(optimizer, f"`{unfused[0]}` has no fused kernel that is safe to rely on")
    return None


def _arguments(resolver: Resolver, optimizer: Optimizer) -> Obstacle | None:
    module, call = optimizer.module, optimizer.node
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return _here(optimizer, "arguments hidden behind `*` may choose another kernel")
    for keyword in call.keywords:
        keys: Iterable[str] = [keyword.arg] if keyword.arg else []
        if keyword.arg is None:
            entries, _ = keyword_dict(resolver, keyword.value, module)
            if entries is None:
                code = module.code(keyword.value)
                return _here(optimizer, f"`**{code}` may choose another kernel")
            keys = entries
        taken = next((key for key in keys if key in _OTHER_KERNELS), None)
        if taken is not None:
            return _here(optimizer, f"the script chooses its kernel itself (`{taken}=`)")
    rate = call_argument(call, "lr", 1)
    if rate is not None and any(n.startswith("torch.") for n in resolver.maker_names(rate, module)):
        return _here(optimizer, "its learning rate is a tensor")
    return None


def _uses(resolver: Resolver, optimizer: Optimizer) -> Obstacle | None:
    """What the script does with the optimizer beyond stepping it."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Call, ast.FormattedValue, ast.Attribute):
            match node:
                case ast.Call():
                    why = _call(resolver, optimizer, node, module)
                case ast.FormattedValue(value=value) if _is(resolver, optimizer, value, module):
                    why = _as_text(node, module)
                case ast.Attribute(value=value, attr="state") if _is(
                    resolver, optimizer, value, module
                ):
                    why = "the script looks into its state, which the fused kernel keeps otherwise"
                case _:
                    continue
            if why is not None:
                return Obstacle(module, node, why)
    return None


def _call(resolver: Resolver, optimizer: Optimizer, call: ast.Call, module: Module) -> str | None:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else None
    if method == "step" and takes_closure(call):
        assert isinstance(call.func, ast.Attribute)
        if _is(resolver, optimizer, call.func.value, module):
            return "its step takes a closure"
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not any(_is(resolver, optimizer, argument, module) for argument in given):
        return None
    called = method or getattr(call.func, "id", "")
    callees = resolver.values(call.func, module)
    if called in _PRINT | _MAKE_TEXT and not any(isinstance(v, Function | Class) for v in callees):
        return _as_text(call, module)
    if called in _KEEP or (called == "__init__" and _in_scheduler(resolver, call, module)):
        return None
    for callee in callees:
        match callee:
            case Function() | Class():
                continue
            case Made(maker=Class()) | Instance() if resolver.callees(call, module):
                continue  # an object of the project that is called
            case External(name) if name.startswith(_TAKE_ANY_OPTIMIZER) or _SCHEDULER.search(name):
                continue
            case External(name) if name.removeprefix("builtins.") in _LOOK_ONLY:
                continue
            case _:
                return f"what `{module.code(call.func)}` does with it is not known"
    return None


def _as_text(node: ast.AST, module: Module) -> str | None:
    """Why a text of all its settings, one of which becomes another, may not be had at ``node``; None where it is printed or raised."""
    if isinstance(module.statement(node), ast.Raise):
        return None
    around = [node, *module.ancestors(node)]
    inside = takewhile(lambda one: not isinstance(one, ast.stmt), around)
    calls = (one for one in inside if isinstance(one, ast.Call))
    if any(last_identifier(call.func) in _PRINT for call in calls):
        return None
    return "the script makes a text of its settings"


def _in_scheduler(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` stands in a class that derives from a library's scheduler: ``super().__init__(optimizer)``."""
    cls = module.enclosing_class(call)
    bases = resolver.base_names(Class(cls, module)) if cls is not None else frozenset[str]()
    return any(
        base.startswith("torch.optim.lr_scheduler.") or _SCHEDULER.search(base) for base in bases
    )


def _is(resolver: Resolver, optimizer: Optimizer, expression: ast.expr, module: Module) -> bool:
    """Whether ``expression`` may be ``optimizer``."""
    if not isinstance(expression, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        return False
    return any(
        isinstance(value, Made) and value.call is optimizer.node
        for value in resolver.values(expression, module)
    )


def _gradients(resolver: Resolver, optimizer: Optimizer) -> Obstacle | None:
    """Gradients and parameters of a kind the kernels refuse."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Assign, ast.keyword, ast.Attribute):
            why = None
            match node:
                case ast.Assign(targets=targets, value=value):
                    if any(map(_is_gradient, targets)) and not is_none(value):
                        why = (
                            "the script sets gradients itself, which may be laid out in another way"
                        )
                case ast.keyword(arg="sparse" | "sparse_grad" as name, value=value):
                    is_off = isinstance(value, ast.Constant) and not value.value
                    if not (is_off or _is_own_setting(resolver, name, node, module)):
                        why = "gradients may be sparse"
                case ast.Attribute(attr=attr) if attr in _COMPLEX:
                    if any(n.startswith("torch.") for n in resolver.names(node, module)):
                        why = "parameters may be complex"
                case _:
                    pass
            if why is not None:
                return Obstacle(module, node if hasattr(node, "lineno") else optimizer.node, why)
    return None


def _is_gradient(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(map(_is_gradient, target.elts))
    if isinstance(target, ast.Attribute) and target.attr == "data":
        target = target.value
    return isinstance(target, ast.Attribute) and target.attr in {"grad", "_grad"}


def _is_own_setting(resolver: Resolver, name: str, keyword: ast.keyword, module: Module) -> bool:
    """Whether ``keyword`` sets a parameter of the script's own code, which says itself where it hands that on."""
    call = module.parents[keyword]
    callees = resolver.callees(call, module) if isinstance(call, ast.Call) else ()
    return bool(callees) and all(
        name in {p.arg for p in (*callee.node.args.args, *callee.node.args.kwonlyargs)}
        for callee in callees
    )


def _scaled(resolver: Resolver, optimizer: Optimizer) -> Obstacle | None:
    """What goes wrong together with a GradScaler, which leaves overflows to fused kernels."""
    scaler = next(_scalers(resolver), None)
    return under_scaler(resolver, optimizer, scaler) if scaler is not None else None


def under_scaler(resolver: Resolver, optimizer: Optimizer, scaler: Obstacle) -> Obstacle | None:
    """Why ``optimizer`` must not be fused where ``scaler`` makes a GradScaler step it."""
    if _has_momentum(resolver, optimizer):
        # The scaler itself may be one that autocast has just written, which nobody has seen yet.
        return _here(optimizer, "fused SGD loses its momentum when its GradScaler skips a step")
    loading = loads_optimizer_state(resolver)
    if loading is not None:
        why = (
            "the state of an older checkpoint would unfuse it, and the GradScaler would not notice"
        )
        return Obstacle(loading.module, loading.node, why)
    return None


def _scalers(resolver: Resolver) -> Iterator[Obstacle]:
    """The calls that make a GradScaler, but for those that are switched off for good."""
    for module in resolver.project.modules:
        if _SCALERS not in module.source.text:
            continue
        for call in module.calls:
            if not any(n.endswith(_SCALERS) for n in resolver.names(call.func, module)):
                continue
            enabled = call_argument(call, "enabled")
            values = resolver.values(enabled, module) if enabled is not None else ()
            if values and all(isinstance(v, Literal) and v.value is False for v in values):
                continue
            yield Obstacle(module, call, "a GradScaler")


def _early(resolver: Resolver, optimizer: Optimizer, version: tuple[int, int]) -> Obstacle | None:
    """What the first versions demand: parameters that are on the GPU when the optimizer is made."""
    loading = loads_optimizer_state(resolver)
    if loading is not None:
        why = "before PyTorch 2.4 a fused state cannot be loaded without a GPU"
        return Obstacle(loading.module, loading.node, why)
    code, names = optimizer.module, resolver.names(optimizer.node.func, optimizer.module)
    late = [n for n in names if FUSED_SINCE[n.rpartition(".")[2]] > version]
    if late:
        name = late[0].rpartition(".")[2]
        since = ".".join(map(str, FUSED_SINCE[name]))
        return _here(optimizer, f"`{name}` has a fused kernel only since PyTorch {since}")
    wanted = {network.node for network in trained_networks(resolver, (optimizer,))}
    moved = {
        model.node
        for call in code.calls
        if isinstance(call.func, ast.Attribute)
        and move_target(resolver, call, code) is not None
        and code.function(call) is optimizer.function
        and code.span(call) < optimizer.span
        for model in models_in(resolver, resolver.values(call.func.value, code))
    }
    if not wanted or not wanted <= moved:
        why = "before PyTorch 2.4 its parameters must be on the GPU already, which is not certain here"
        return _here(optimizer, why)
    return None


def _here(optimizer: Optimizer, why: str) -> Obstacle:
    return Obstacle(optimizer.module, optimizer.node, why)
