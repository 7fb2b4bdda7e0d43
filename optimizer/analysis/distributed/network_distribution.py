"""How the networks that a training step trains come into ``DistributedDataParallel``, or why they do not."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...rewriting.edits import FileEdit
from ..facts import CallFact, Optimizer
from ..networks.loose_parameters import loose_parameter
from ..networks.network_flow import NetworkFlow, network_flow
from ..obstacles import Obstacle
from ..program.statements import only_one_runs
from ..program.trees import walk
from ..script import TrainingScript
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Made
from .data_parallel import (
    DataParallelUse,
    calls_around,
    data_parallel_calls,
    data_parallel_use,
    part_edit,
    spread_forwards,
    wraps_in_either_branch,
    wraps_part,
)
from .evaluation_shares import EvaluationShare
from .gradient_turns import backward_out_of_turn, penalty_alone
from .kept_results import keeps_nothing
from .network_wrapping import OwnDraws, Replacing, Wrapping, wrap_beside, wrap_instead, wrapped_name
from .noise import draws_noise_alike
from .process_names import ProcessNames
from .rank_zero import find_told_results
from .rival_optimizers import rivals
from .trained_network import TrainedNetwork, part_left_out, shared_network, trained_networks
from .wrapper_tests import wrapper_test_edits


@dataclass(frozen=True)
class DistributedNetworks:
    """The ``edits`` that wrap every network that a step trains.

    ``flows`` are the ways of those that are wrapped beside the networks themselves, ``forward`` is the one forward pass of a
    step that has only one.
    """

    edits: tuple[FileEdit, ...]
    flows: tuple[NetworkFlow, ...]
    forward: CallFact | None
    _instead: frozenset[ast.Call]
    _resolver: Resolver

    def called_at(self, forward: CallFact) -> str:
        """What the wrapped network is called at ``forward``."""
        for flow in self.flows:
            if forward.network in flow.uses:
                return wrapped_name(flow)
        return forward.module.code(forward.network)

    def is_wrapped(self, network: ast.expr, share: EvaluationShare) -> bool:
        """Whether ``network`` in ``share`` is called with the DistributedDataParallel around it."""
        if not self.flows:
            return bool(data_parallel_calls(self._resolver))
        values = self._resolver.values(network, share.module)
        if any(isinstance(v, Made) and v.call in self._instead for v in values):
            return True
        hops = [hop for flow in self.flows for hop in flow.hops]
        names = {hop.parameter for hop in hops if hop.function is share.loop.function}
        inside = share.node in share.module.ancestors(network)
        return bool(names) and not (inside and getattr(network, "id", None) not in names)


def distribute_networks(
    script: TrainingScript,
    step: StepCode,
    names: ProcessNames,
    torch_version: tuple[int, int],
    *,
    sync_batchnorm: bool,
) -> DistributedNetworks | Obstacle:
    """How the networks that ``step`` trains are wrapped."""
    optimizers = [each for each in script.optimizers if script.may_run(each.node, each.module)]
    networks = trained_networks(script, optimizers, step.loop)
    why = _not_understood(script.resolver, step, optimizers, networks)
    if why is not None:
        return why
    found = _Wrapped(script, step, names, torch_version, sync_batchnorm)
    for network in networks:
        against = found.add(network)
        if against is not None:
            return against
    return found.distributed()


def _not_understood(
    resolver: Resolver,
    step: StepCode,
    optimizers: Sequence[Optimizer],
    networks: Sequence[TrainedNetwork],
) -> Obstacle | None:
    """What of the optimizers and their ``networks`` stands against a wrapper around each."""
    pairs = list(rivals(resolver, optimizers))
    if not networks and pairs:
        why = "what the optimizers train is not seen to be networks that the step runs"
        return Obstacle(pairs[0][1].module, pairs[0][1].node, why)
    in_parts = any(network.in_parts for network in networks)
    for one, other in pairs if in_parts else ():
        if shared_network(resolver, one, other):
            why = "several optimizers take turns: which network waits for which gradients is not proven"
            return Obstacle(other.module, other.node, why)
    if not networks:
        why = "what the optimizer trains is not seen to be one network"
        return Obstacle(optimizers[0].module, optimizers[0].node, why)
    trained = {call for network in networks for call in network.made}
    for optimizer in optimizers:
        loose = loose_parameter(resolver, optimizer, trained)
        if loose is not None:
            why = "the optimizer trains it beside the networks, where no process hears of the gradients of the others"
            return Obstacle(loose.module, loose.node, why)
    for network in networks:
        ran = next(iter(network.forwards), None)
        if ran is None:
            why = "the network runs in no place of the step that is seen"
            return Obstacle(step.module, step.backwards[0].node, why)
        late = backward_out_of_turn(resolver, step, network)
        if late is not None:
            why = f"it may be the second backward pass to a network since that ran (`{ran.module.code(ran.node)}`), and DistributedDataParallel exchanges the gradients of one"
            return Obstacle(late.module, late.node, why)
        alone = penalty_alone(resolver, step, network)
        if alone is not None:
            why = "a penalty on gradients alone may bring none to some parameters, such as the last bias, for which DistributedDataParallel waits"
            return Obstacle(alone.module, alone.node, why)
    return None


def _is_repeated(forward: CallFact, step: StepCode) -> bool:
    """Whether the network may run several times ahead of a backward pass, as a decoder does word by word."""
    inner = forward.module.loops(forward.node)
    if forward.module is step.module and step.node in inner:
        inner = inner[: inner.index(step.node)]
    backwards = {backward.node for backward in step.backwards}
    return any(backwards.isdisjoint(walk(loop)) for loop in inner)


class _Wrapped:
    """Collects the wrappers of one network after the other."""

    def __init__(
        self,
        script: TrainingScript,
        step: StepCode,
        names: ProcessNames,
        torch_version: tuple[int, int],
        sync_batchnorm: bool,
    ) -> None:
        self._script, self._step, self._names = script, step, names
        self._torch_version, self._sync_batchnorm = torch_version, sync_batchnorm
        self._calls = data_parallel_calls(script.resolver)
        self._parts = {call for call in self._calls if wraps_part(script.resolver, call)}
        self._around: list[CallFact] = []
        self._instead: list[Replacing] = []
        self._beside: list[tuple[NetworkFlow, Wrapping]] = []
        self._forwards: list[CallFact] = []
        told = find_told_results(script.resolver, script.functions_run, ())
        self._told = {node for result in told for node in walk(result.argument)}

    def add(self, network: TrainedNetwork) -> Obstacle | None:
        """Wrap ``network``, too; or what stands against it."""
        resolver, forwards = self._script.resolver, network.forwards
        around = calls_around(resolver, self._calls, forwards)
        whole = [call for call in self._calls if call in around and call not in self._parts]
        if not whole:  # what the step only tells comes from the network itself
            forwards = tuple(f for f in forwards if not self._is_told(f)) or forwards
        self._forwards += forwards
        runs_often = not only_one_runs(forwards)
        unused = part_left_out(self._script, network)
        if runs_often and unused is not None:
            why = f"the network runs in {len(forwards)} places of the step, not in one, and may leave parameters without gradients"
            return Obstacle(forwards[1].module, forwards[1].node, why)
        runs_often = runs_often or any(_is_repeated(forward, self._step) for forward in forwards)
        wrapping = Wrapping(
            self._names,
            self._sync_batchnorm,
            find_unused=unused is not None,
            runs_often=runs_often,
            torch_version=self._torch_version,
        )
        if not whole:
            flow = network_flow(resolver, self._step, forwards)
            if isinstance(flow, Obstacle):
                return flow
            self._beside.append((flow, wrapping))
            return None
        if any(call in self._around for call in whole):
            return Obstacle(whole[0].module, whole[0].node, "`DataParallel` wraps several networks")
        self._around += whole
        uses = [data_parallel_use(resolver, call) for call in whole]
        against = next((use for use in uses if isinstance(use, Obstacle)), None)
        if against is not None:
            return against
        wrapped = [use for use in uses if isinstance(use, DataParallelUse)]
        if len(wrapped) > 1:
            if not wraps_in_either_branch(wrapped):
                why = "`DataParallel` is used more than once"
                return Obstacle(wrapped[1].module, wrapped[1].node, why)
            wrapped = [replace(use, condition=None) for use in wrapped]
        self._instead += [Replacing(use, wrapping, len(wrapped) > 1) for use in wrapped]
        return None

    def _is_told(self, forward: CallFact) -> bool:
        """Whether what the network gives is told, and nothing else: ``save_image(netG(noise), ..)``, ``sample_images()``."""
        if forward.node in self._told:
            return True
        function = forward.module.function(forward.node)
        if function is None or function is forward.module.function(self._step.node):
            return False
        return keeps_nothing(self._script.resolver, function, forward.module)

    def distributed(self) -> DistributedNetworks | Obstacle:
        """The edits of all that was added."""
        resolver, names = self._script.resolver, self._names
        draws = OwnDraws(names, draws_noise_alike(self._script, self._step))
        parts = [call for call in self._calls if call not in self._around]
        edits = [part_edit(call, names) for call in (*parts, *spread_forwards(resolver))]
        edits += wrapper_test_edits(resolver, [each.use for each in self._instead], names)
        if self._instead:
            instead = wrap_instead(self._script, self._instead, draws)
            if isinstance(instead, Obstacle):
                return instead
            edits += instead
        if self._beside:
            beside = wrap_beside(self._script, self._beside, None if self._instead else draws)
            if isinstance(beside, Obstacle):
                return beside
            edits += beside
        flows = tuple(flow for flow, _ in self._beside)
        forward = self._forwards[0] if only_one_runs(self._forwards) else None
        instead = frozenset(call.node for call in self._around)
        return DistributedNetworks(tuple(edits), flows, forward, instead, resolver)
