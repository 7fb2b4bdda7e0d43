"""What looks at how images and weights lie in memory outside of a network, so that they must stay as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..calls.signatures import argument_for, call_argument
from ..facts import CallFact, Model
from ..loading.batches import BatchCopy
from ..precision.half_steps import data_parallel
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Iterated, Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..tensors.flat_tensors import FlatTrace, Shape
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import Class
from .layout_neutral import DRAW_LIKE, LayoutObstacle
from .models import find_optimizers, is_module_class, may_be_lbfgs, models_in
from .network_layers import network_code

_LAYOUT_METHODS = frozenset(
    "view view_as resize_ resize_as_ as_strided as_strided_ stride data_ptr storage untyped_storage set_ unfold".split()
)
_DRAWS_LIKE = DRAW_LIKE | {"dropout"}
_FILLS = frozenset("normal_ uniform_ bernoulli_ random_ exponential_ log_normal_ cauchy_".split())
_CONSTANT_INITS = frozenset({"constant_", "zeros_", "ones_", "eye_", "dirac_", "calculate_gain"})
_OTHER_USERS = (
    "torch.jit.",
    "torch.onnx.",
    "torch.fx.",
    "torch.export.",
    "torch.ao.",
    "torch.quantization.",
    "torch.nn.utils.parameters_to_vector",
    "torch.nn.utils.vector_to_parameters",
    "torch.nn.utils.prune.",
    "torch.func.",
    "torchvision.models.feature_extraction.",
)
_HOOKS = frozenset(
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_backward_hook "
    "register_full_backward_pre_hook register_hook".split()
)
_MAKERS = frozenset(
    f"torch.{name}"
    for name in "tensor zeros ones full empty arange linspace eye from_numpy".split()
)
_WEIGHTS = frozenset(
    "weight grad param_groups parameters named_parameters state_dict modules".split()
)


class LayoutUses:
    """Answers for the code of one script around its networks."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._flat = FlatTrace(resolver)

    def obstacle(self) -> LayoutObstacle | None:
        """What about the script as a whole looks into its networks, or chooses formats itself."""
        parallel = data_parallel(self._resolver)
        if parallel is not None:
            why = "DataParallel copies the weights to its replicas in the usual format"
            return LayoutObstacle(parallel.module, parallel.node, why)
        for optimizer in find_optimizers(self._resolver):
            if may_be_lbfgs(self._resolver, optimizer):
                why = "LBFGS looks into the network"
                return LayoutObstacle(optimizer.module, optimizer.node, why)
        for module in self._resolver.project.modules:
            for call in module.calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr in _HOOKS:
                    return LayoutObstacle(module, call, "a hook sees tensors inside the network")
                for name in self._resolver.names(call.func, module):
                    if name.startswith(_OTHER_USERS):
                        why = f"`{name}` looks into the network"
                        return LayoutObstacle(module, call, why)
                if call_argument(call, "memory_format") is not None:
                    return LayoutObstacle(module, call, "the script chooses memory formats itself")
        return None

    def drawn_after(self, move: CallFact) -> LayoutObstacle | None:
        """Weights drawn at random when they are laid out already: they would be drawn in another order."""
        for module in self._resolver.project.modules:
            for call in module.calls:
                if not self._draws_weights(call, module):
                    continue
                function = module.function(call)
                for place, where in self._uses(function, call, module):
                    before = (
                        where is move.module
                        and where.function(place) is move.function
                        and getattr(place, "lineno", 0) < getattr(move.node, "lineno", 0)
                    )
                    if not before:
                        why = "weights are drawn, maybe after the network is moved"
                        return LayoutObstacle(where, place, why)
        return None

    def _draws_weights(self, call: ast.Call, module: Module) -> bool:
        names = self._resolver.names(call.func, module)
        if any(
            name.startswith("torch.nn.init.") and name.rpartition(".")[2] not in _CONSTANT_INITS
            for name in names
        ):
            return True
        is_fill = isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS
        return is_fill and ".weight" in module.code(call.func)

    def _uses(
        self, function: FunctionNode | None, call: ast.Call, module: Module
    ) -> Iterator[tuple[ast.AST, Module]]:
        """Where the code around ``call`` is run from; nothing for what makes the network itself."""
        if function is None:
            yield call, module
            return
        owner = module.enclosing_class(call)
        in_network = owner is not None and is_module_class(self._resolver, Class(owner, module))
        name = getattr(function, "name", "")
        if in_network and name == "__init__":
            return
        for other in self._resolver.project.modules:
            for node in other.nodes:
                mentioned = isinstance(node, ast.Name) and node.id == name
                mentioned |= isinstance(node, ast.Attribute) and node.attr == name
                if not mentioned or other.function(node) is function:
                    continue
                caller = other.function(node)
                made = caller is not None and getattr(caller, "name", "") == "__init__"
                if not (in_network and made and other.enclosing_class(node) is owner):
                    yield node, other

    def layout_known(
        self, networks: Sequence[Model], copies: tuple[BatchCopy, ...], *, flat: bool
    ) -> LayoutObstacle | None:
        """Code outside of ``networks`` that knows how images, weights or what they return lie in memory."""
        calls = {copy.node for copy in copies}
        proven = {reached.node for reached in network_code(self._resolver, tuple(networks))}
        for module in self._resolver.project.modules:
            for call in module.calls:
                if call in proven:
                    continue
                if isinstance(call.func, ast.Attribute) and call.func.attr in _LAYOUT_METHODS:
                    receiver = call.func.value
                    if self._is_new(receiver, module):
                        continue
                    if self._flat.shape(receiver, module) is Shape.FLAT:
                        continue
                    if not flat or self._is_image_or_weight(receiver, module, calls, set()):
                        why = f"`.{call.func.attr}` may look at how images or weights lie in memory"
                        return LayoutObstacle(module, call, why)
                for name in self._resolver.names(call.func, module):
                    if name.startswith("torch.") and name.rpartition(".")[2] in _DRAWS_LIKE:
                        why = f"`{name}` draws in the order of memory"
                        return LayoutObstacle(module, call, why)
        return None

    def _is_new(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` makes a tensor, in the usual format (``torch.tensor(mean).view(3, 1, 1)``)."""
        if not isinstance(node, ast.Call):
            return False
        names = self._resolver.names(node.func, module)
        return bool(names) and names <= _MAKERS

    def _is_image_or_weight(
        self, node: ast.expr, module: Module, copies: set[ast.Call], seen: set[ast.AST]
    ) -> bool:
        """Whether ``node`` may be, or be made of, images that were copied so, or weights."""
        if node in seen or _is_network_call(self._resolver, node, module):
            return False
        seen.add(node)
        for inner in walk(node):
            if inner in copies or (isinstance(inner, ast.Attribute) and inner.attr in _WEIGHTS):
                return True
            if isinstance(inner, ast.Name) and any(
                self._is_image_or_weight(source, where, copies, seen)
                for source, where in sources(self._resolver, inner, module, iterated=True)
            ):
                return True
        return False


def sources(
    resolver: Resolver, node: ast.Name, module: Module, *, iterated: bool
) -> Iterator[tuple[ast.expr, Module]]:
    """The expressions a name gets its value from, those it iterates only when asked for."""
    scope = module.scope(node)
    found = scope.lookup(node.id)
    if found is None:
        return
    for binding in reaching_bindings(module, found[0], found[1], scope, node):
        match binding.source:
            case Assigned(value, path):
                yield unpacked_element(value, path), module
            case Iterated(iterable) if iterated:
                yield iterable, module
            case Parameter(function) if not isinstance(function, ast.Lambda):
                for site in resolver.call_sites(function):
                    passed = argument_for(function, node.id, site.call, site.bound)
                    if passed is not None and passed.given is not None:
                        yield passed.given, site.module
            case _:
                pass


def _is_network_call(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    return isinstance(node, ast.Call) and bool(
        models_in(resolver, resolver.values(node.func, module))
    )
