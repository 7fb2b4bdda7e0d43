"""Where a network and the images it is trained on can be laid out channels last, or why they must stay."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .batch_objects import refuses_argument
from .batches import BatchCopy
from .construction import VARIABLE
from .facts import CallFact, DeviceKind, Model
from .flat_tensors import FlatTrace, Shape
from .forward_code import networks_run
from .half_steps import data_parallel
from .layout_neutral import LayoutObstacle, LayoutProof
from .models import find_optimizers, is_loss_name, is_module_class, may_be_lbfgs, models_in
from .network_layers import network_code
from .placement import move_target
from .reaching import reaching_bindings
from .resolver import Resolver
from .scopes import Assigned, Iterated, Parameter, unpacked_element
from .script import TrainingScript
from .signatures import argument_for, call_argument
from .statements import are_alternatives
from .steps import StepCode
from .syntax import FunctionNode, Module
from .trees import walk
from .values import Class

_LAYOUT_METHODS = frozenset(
    "view view_as resize_ resize_as_ as_strided as_strided_ stride data_ptr storage untyped_storage set_ unfold".split()
)
_DRAWS_LIKE = frozenset({"randn_like", "rand_like", "randint_like", "bernoulli", "dropout"})
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
_ARITHMETIC = frozenset("float half bfloat16 div div_ mul mul_ sub sub_ add add_ clamp".split())
_WEIGHTS = frozenset(
    "weight grad param_groups parameters named_parameters state_dict modules".split()
)


@dataclass(frozen=True, eq=False)
class ChannelsLast:
    """The calls to give ``memory_format``: that which moves the network, and those which copy its images.

    ``views`` are calls of ``view`` in the network that fail in this format, where ``reshape`` gives the same.
    """

    move: CallFact
    copies: tuple[BatchCopy, ...]
    views: tuple[CallFact, ...]


def channels_last(
    script: TrainingScript, steps: Iterable[StepCode]
) -> ChannelsLast | LayoutObstacle | str | None:
    """Where ``steps`` can be laid out so, or the reason against; None when they have no two-dimensional convolutions."""
    return _Search(script, tuple(steps)).result()


class _Search:
    def __init__(self, script: TrainingScript, steps: tuple[StepCode, ...]) -> None:
        self._script = script
        self._resolver: Resolver = script.resolver
        self._steps = steps
        self._flat = FlatTrace(script.resolver)

    def result(self) -> ChannelsLast | LayoutObstacle | str | None:
        networks = [network for network in self._networks() if self._has_layers(network)]
        if not any(self._convolves(network) for network in networks):
            return None
        networks = self._alternatives(networks)
        if not networks:
            return "several networks run, or may run, in the step"
        proofs = [LayoutProof(self._resolver, network) for network in networks]
        obstacle = next(filter(None, (proof.obstacle() for proof in proofs)), None)
        obstacle = obstacle or self._obstacle()
        if obstacle is not None:
            return obstacle
        if not all(proof.takes_images() for proof in proofs):
            return "the network is not seen to give its input to a convolution as it is"
        moves = list({move.node: move for n in networks for move in self._moves(n)}.values())
        if len(moves) != 1:
            return f"the network is moved to a device {len(moves)} times, not once"
        found = self._copies(networks)
        if isinstance(found, str):
            return found
        flat = all(proof.returns_flat() for proof in proofs)
        obstacle = self._drawn_after(moves[0]) or self._layout_known(networks, found, flat=flat)
        views = {view.node: view for proof in proofs for view in proof.views}
        return obstacle or ChannelsLast(moves[0], found, tuple(views.values()))

    def _networks(self) -> tuple[Model, ...]:
        found: dict[ast.Call, Model] = {}
        for step in self._steps:
            nodes = step.nodes(self._resolver)
            found |= {network.node: network for network in networks_run(self._resolver, nodes)}
        return tuple(found.values())

    def _alternatives(self, networks: list[Model]) -> list[Model]:
        """The one network, or those of which each call may run any; nothing where several have parts of their own.

        Of two of one class, made in either branch of a test, the one that is moved to a device.
        """
        together = {network.node for network in networks}
        calls = [call for step in self._steps for call in step.loop.forwards]
        called = [
            {model.node for model in models_in(self._resolver, values)} & together
            for values in (self._resolver.values(c.node.func, c.module) for c in calls)
        ]
        if len(networks) == 1:
            return networks
        moved = [network for network in networks if self._moves(network)]
        if moved == networks and all(found in (set(), together) for found in called):
            return networks
        if len(networks) > 2 or len(moved) != 1:
            return []
        one, other = networks
        same = one.cls is not None and one.cls == other.cls and one.module is other.module
        return moved if same and are_alternatives(one.node, other.node, one.module) else []

    def _has_layers(self, network: Model) -> bool:
        """Whether a network is more than a loss of the script's own."""
        if network.cls is None:
            return True
        return any(
            name.startswith(("torch.nn.", "torchvision.", "timm."))
            and name.rpartition(".")[2][:1].isupper()
            and name != "torch.nn.Module"
            and not is_loss_name(name)
            for reached in network_code(self._resolver, (network,))
            if isinstance(reached.node, ast.Call)
            for name in self._resolver.names(reached.node.func, reached.module)
        )

    def _convolves(self, network: Model) -> bool:
        return any(
            isinstance(reached.node, ast.Call)
            and any(
                name in {"torch.nn.Conv2d", "torch.nn.ConvTranspose2d"}
                or name.startswith("torchvision.models.")
                for name in self._resolver.names(reached.node.func, reached.module)
            )
            for reached in network_code(self._resolver, (network,))
        )

    # Obstacles

    def _obstacle(self) -> LayoutObstacle | None:
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

    def _drawn_after(self, move: CallFact) -> LayoutObstacle | None:
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

    def _layout_known(
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
                for source, where in self._sources(inner, module, iterated=True)
            ):
                return True
        return False

    def _sources(
        self, node: ast.Name, module: Module, *, iterated: bool
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
                    for site in self._resolver.call_sites(function):
                        passed = argument_for(function, node.id, site.call, site.bound)
                        if passed is not None and passed.given is not None:
                            yield passed.given, site.module
                case _:
                    pass

    # Places

    def _moves(self, network: Model) -> list[CallFact]:
        return [
            CallFact(module, call, "move")
            for module in self._resolver.project.modules
            for call in module.calls
            if isinstance(call.func, ast.Attribute)
            and call.func.attr in {"to", "cuda", "cpu"}
            and (
                call.func.attr == "cpu"
                or move_target(self._resolver, call, module)
                in {DeviceKind.CUDA, DeviceKind.CHOSEN, DeviceKind.CPU, DeviceKind.UNKNOWN}
            )
            and any(
                model.node is network.node
                for model in models_in(
                    self._resolver, self._resolver.values(call.func.value, module)
                )
            )
        ]

    def _copies(self, networks: Sequence[Model]) -> tuple[BatchCopy, ...] | str:
        """The copies of what goes into ``networks``; those of evaluations are taken along where they are known."""
        wanted = {network.node for network in networks}
        by_node = {copy.node: copy for copy in self._script.batch_copies}
        found: dict[BatchCopy, None] = {}
        training = {call.node for step in self._steps for call in step.loop.forwards}
        evaluation = {call.node for loop in self._script.evaluation_loops for call in loop.forwards}
        for module in self._resolver.project.modules:
            for call in module.calls:
                if call not in training | evaluation:
                    continue
                called = models_in(self._resolver, self._resolver.values(call.func, module))
                if not any(model.node in wanted for model in called):
                    continue
                copies = self._copied(call.args[0], module, set()) if call.args else set[ast.Call]()
                known = [by_node[c] for c in copies if c in by_node]
                if call in training and (not known or len(known) < len(copies)):
                    return "what goes into the network is not just a batch copied to the device"
                refused = [refuses_argument(self._script, copy, "memory_format") for copy in known]
                if reason := next(filter(None, refused), None):
                    return reason
                found |= dict.fromkeys(known)
        usable = [c for c in found if c.method in {"to", "cuda"}]
        if len(usable) < len(found) or not usable:
            return "the batches are not copied by `.to(..)` or `.cuda(..)`"
        return tuple(usable)

    def _copied(self, node: ast.expr, module: Module, seen: set[ast.AST]) -> set[ast.Call]:
        """The calls whose result ``node`` is, but for arithmetic that keeps the format (``images.float() / 255``)."""
        if node in seen:
            return set()
        seen.add(node)
        match node:
            case ast.BinOp(left=left):
                return self._copied(left, module, seen)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _ARITHMETIC:
                return self._copied(value, module, seen)
            case ast.Call(func=func, args=[value, *_]) if (
                self._resolver.names(func, module) == VARIABLE
            ):
                return self._copied(value, module, seen)
            case ast.Call():
                returned = self._returned(node, module)
                if returned is None:
                    return {node}
                return self._copied(returned[0], returned[1], seen)
            case ast.Name():
                calls: set[ast.Call] = set()
                for source, where in self._sources(node, module, iterated=False):
                    calls |= self._copied(source, where, seen)
                return calls
            case _:
                return set()

    def _returned(self, call: ast.Call, module: Module) -> tuple[ast.expr, Module] | None:
        """What the script's function behind ``call`` returns, when that is all it does (``normalize(images)``)."""
        callees = self._resolver.callees(call, module)
        if len(callees) != 1 or not isinstance(callees[0].node, ast.FunctionDef):
            return None
        if any(copy.function is callees[0].node for copy in self._script.batch_copies):
            # It may copy labels as well, which have no channels.
            return None
        match callees[0].node.body:
            case [*before, ast.Return(value=ast.expr() as value)] if all(
                isinstance(statement, ast.Assign) for statement in before
            ):
                return value, callees[0].module
            case _:
                return None


def _is_network_call(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    return isinstance(node, ast.Call) and bool(
        models_in(resolver, resolver.values(node.func, module))
    )
