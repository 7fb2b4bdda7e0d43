"""Where a network and the images it is trained on can be laid out channels last, or why they must stay."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..devices.construction import VARIABLE
from ..devices.placement import move_target
from ..facts import CallFact, Model
from ..loading.batch_objects import refuses_argument
from ..loading.batches import BatchCopy
from ..program.statements import are_alternatives
from ..program.syntax import Module, last_identifier
from ..script import TrainingScript
from ..training.steps import StepCode
from ..values.resolver import Resolver
from .forward_code import networks_run
from .layout_neutral import LayoutObstacle, LayoutProof
from .layout_uses import LayoutUses, sources
from .models import is_loss_name, models_behind, models_in
from .network_layers import network_code

_ARITHMETIC = frozenset("float half bfloat16 div div_ mul mul_ sub sub_ add add_ clamp".split())


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

    def result(self) -> ChannelsLast | LayoutObstacle | str | None:
        networks = [network for network in self._networks() if self._has_layers(network)]
        if not any(self._convolves(network) for network in networks):
            return None
        networks = self._alternatives(networks)
        if not networks:
            return "several networks run, or may run, in the step"
        uses = LayoutUses(self._resolver)
        proofs = [LayoutProof(self._resolver, network) for network in networks]
        obstacle = next(filter(None, (proof.obstacle() for proof in proofs)), None)
        obstacle = obstacle or uses.obstacle()
        if obstacle is not None:
            return obstacle
        if not all(proof.takes_images() for proof in proofs):
            return "the network is not seen to give its input to a convolution as it is"
        moves = [*dict.fromkeys(move for n in networks for move in self._moves[n.node])]
        if len(moves) != 1:
            return f"the network is moved to a device {len(moves)} times, not once"
        found = self._copies(networks, proofs)
        if isinstance(found, str):
            return found
        flat = all(proof.returns_flat() for proof in proofs)
        obstacle = uses.drawn_after(moves[0]) or uses.layout_known(networks, found, flat=flat)
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
            {model.node for model in self._called(call.node, call.module)} & together
            for call in calls
        ]
        if len(networks) == 1:
            return networks
        moved = [network for network in networks if self._moves[network.node]]
        if moved == networks and all(found in (set(), together) for found in called):
            return networks
        if len(networks) > 2 or len(moved) != 1:
            return []
        one, other = networks
        same = one.cls is not None and one.cls == other.cls and one.module is other.module
        return moved if same and are_alternatives(one.node, other.node, one.module) else []

    def _called(self, call: ast.Call, module: Module) -> tuple[Model, ...]:
        """The networks that ``call`` may run; for a copy, which has its layout as well, the one that it was made of."""
        return models_behind(self._resolver, self._resolver.values(call.func, module))

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

    @cached_property
    def _moves(self) -> Mapping[ast.Call, list[CallFact]]:
        """The calls that move each network to a device."""
        found: dict[ast.Call, list[CallFact]] = defaultdict(list)
        for module in self._resolver.project.modules:
            for call in module.calls:
                function = call.func
                if not isinstance(function, ast.Attribute) or not self._may_move(call, module):
                    continue
                move = CallFact(module, call, "move")
                values = self._resolver.values(function.value, module)
                for network in {model.node for model in models_in(self._resolver, values)}:
                    found[network].append(move)
        return found

    def _may_move(self, call: ast.Call, module: Module) -> bool:
        method = last_identifier(call.func)
        return method == "cpu" or (
            method in {"to", "cuda"} and move_target(self._resolver, call, module) is not None
        )

    def _copies(
        self, networks: Sequence[Model], proofs: Sequence[LayoutProof]
    ) -> tuple[BatchCopy, ...] | str:
        """The copies of what goes into ``networks``; those of evaluations, and of further images, are taken along where they are known."""
        wanted = {network.node for network in networks}
        found: dict[BatchCopy, None] = {}
        training = {call.node for step in self._steps for call in step.loop.forwards}
        evaluation = {call.node for loop in self._script.evaluation_loops for call in loop.forwards}
        for module in self._resolver.project.modules:
            for call in module.calls:
                if call not in training | evaluation:
                    continue
                if not any(model.node in wanted for model in self._called(call, module)):
                    continue
                known, is_all = self._known(call.args[0], module) if call.args else ([], False)
                if call in training and not is_all:
                    return "what goes into the network is not just a batch copied to the device"
                if reason := next(filter(None, map(self._refusal, known)), None):
                    return reason
                found |= dict.fromkeys([*known, *self._further(call, module, proofs)])
        usable = [c for c in found if c.method in {"to", "cuda"}]
        if len(usable) < len(found) or not usable:
            return "the batches are not copied by `.to(..)` or `.cuda(..)`"
        return tuple(usable)

    @cached_property
    def _batch_copies(self) -> Mapping[ast.Call, BatchCopy]:
        return {copy.node: copy for copy in self._script.batch_copies}

    def _known(self, argument: ast.expr, module: Module) -> tuple[list[BatchCopy], bool]:
        """The copies of batches that ``argument`` may be, and whether it is nothing else."""
        copies = self._copied(argument, module, set())
        known = [self._batch_copies[call] for call in copies if call in self._batch_copies]
        return known, bool(known) and len(known) == len(copies)

    def _refusal(self, copy: BatchCopy) -> str | None:
        return refuses_argument(self._script, copy, "memory_format")

    def _further(
        self, call: ast.Call, module: Module, proofs: Sequence[LayoutProof]
    ) -> Iterator[BatchCopy]:
        """The copies of what the networks are given behind the first argument, where those are images, too (two views of a batch)."""
        for position, argument in enumerate(call.args[1:], start=1):
            if all(proof.takes_images(position) for proof in proofs):
                known, is_all = self._known(argument, module)
                if is_all and not any(map(self._refusal, known)):
                    yield from known

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
                for source, where in sources(self._resolver, node, module, iterated=False):
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
