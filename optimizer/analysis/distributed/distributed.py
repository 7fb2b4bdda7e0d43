"""Whether a training script can run as one process per GPU with the same result, and the edits that takes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from ...options import Options
from ...rewriting.edits import FileEdit, InsertBefore, ReplaceExpression
from ..facts import DataLoader, Fact
from ..loading.data_preparation import Preparation, prepared_by
from ..loading.process_cores import shared_core_edits
from ..obstacles import Obstacle
from ..program.statements import only_one_runs
from ..script import TrainingScript
from ..syncs.telling import Telling
from ..training.epoch_loops import EpochLoop, epoch_loop
from ..training.mean_losses import batch_norms, weighs_samples
from ..training.permutations import orders_batch
from ..training.reductions import Reduced, Reduction
from ..training.setup_place import Block, training_blocks
from ..training.steps import Backward, StepCode
from ..training.synchronization import accumulation_edits
from .checkpoint_reads import checkpoint_edits
from .common_decisions import agree_on_decisions
from .common_seeds import find_common_seeds
from .data_barriers import barrier_edits, preparations_of
from .distributed_obstacles import (
    loss_reduction,
    script_obstacle,
    step_obstacle,
    unscaled,
)
from .divergence import Divergence
from .evaluation_shares import EvaluationShares, find_evaluation_shares
from .log_files import log_edits
from .meeting_place import MeetingPlace, meeting_place, process_group_edit
from .network_distribution import DistributedNetworks, distribute_networks
from .process_gpus import gpu_edits, gpu_notes
from .process_names import Place, ProcessNames, taken_name
from .process_sums import find_common_sums
from .rank_zero import (
    RankZeroAction,
    find_rank_zero_actions,
    find_told_results,
    progress_bar_edits,
    rank_zero_edits,
    shared_service_edits,
)
from .second_loaders import second_loader
from .sharded_loader import ShardedLoader, shard_loader
from .share_notes import mixing_note, share_notes
from .shared_metrics import evaluation_edits, told_figure_edits, training_sum_edits
from .told_figures import ToldFigures, find_told_figures

_Found = TypeVar("_Found")


@dataclass(frozen=True, eq=False)
class Distribution(Fact):
    """A training that can be distributed: ``edits`` do it, ``notes`` say what is not as it was."""

    edits: tuple[FileEdit, ...]
    notes: tuple[str, ...]


class _NotPossibleError(Exception):
    def __init__(self, fact: Fact) -> None:
        super().__init__()
        self.fact = fact


def find_distribution(
    script: TrainingScript, step: StepCode, options: Options
) -> Distribution | Fact:
    """How the training of ``step`` runs in several processes, or why it does not."""
    try:
        return _Plan(script, step, options).distribution()
    except _NotPossibleError as error:
        return error.fact


def _possible(found: _Found | Obstacle) -> _Found:
    """``found``, unless it is what stands against the distribution."""
    if isinstance(found, Obstacle):
        raise _NotPossibleError(found)
    return found


class _Plan:
    def __init__(self, script: TrainingScript, step: StepCode, options: Options) -> None:
        self._script, self._step, self._gpus = script, step, options.gpus
        self._resolver = script.resolver
        self._names = ProcessNames(script.entry)
        self._sync_batchnorm = options.sync_batchnorm
        self._torch_version = options.torch_version
        self._seeds = find_common_seeds(script)
        self._notes: list[str] = []
        self._divergence: Divergence | None = None
        self._exchanges: set[ast.AST] = set()

    def distribution(self) -> Distribution:
        script, step = self._script, self._step
        self._refuse_if(script_obstacle(script, step, self._seeds))
        for module in script.modules:
            self._refuse_if(taken_name(module))
        loaders = self._loaders()
        self._refuse_if(step_obstacle(script, step))
        blocks = list(training_blocks(script, methods=True))
        drawn = {call for call, _ in self._seeds.drawn}
        prepared = _possible(preparations_of(script, blocks, drawn))
        meeting = self._meeting_place(blocks, loaders, prepared)
        networks = _possible(
            distribute_networks(
                script,
                step,
                self._names,
                self._torch_version,
                sync_batchnorm=self._sync_batchnorm,
            )
        )
        metrics = [*self._metrics(networks)]
        prepared = _possible(preparations_of(script, blocks, drawn | self._exchanges))
        shuffles = any(loader.shuffles for loader in loaders)
        epochs = [*self._epochs(loaders)] if shuffles else []
        # What is put before one statement comes in this order: a dataset that is made ahead of its loader waits, too.
        data = [edit for loader in loaders for edit in loader.edits]
        edits = [*networks.edits, *barrier_edits(prepared, self._names), *data, *metrics, *epochs]
        waits_long = bool(prepared)
        edits.insert(0, process_group_edit(meeting, self._names, waits_long=waits_long))
        alone = {node for each in prepared for node in (*each.functions, *prepared_by(each))}
        edits += [*self._rank_zero(alone, edits)]
        edits += gpu_edits(self._resolver, self._script.modules, self._names)
        edits += shared_core_edits(self._resolver, self._script.loaders, self._names)
        edits += checkpoint_edits(self._script, self._step.loop, alone, self._names)
        edits += log_edits(self._resolver, script.modules, self._names)
        edits += self._seeds.edits(self._names)
        self._say_what_changes()
        # Only now is known what the processes hand to each other.
        edits[0] = process_group_edit(meeting, self._names, waits_long=waits_long)
        edits[:0] = self._names.edits(edits)
        place = step.backwards[0]
        return Distribution(place.module, place.node, tuple(edits), tuple(self._notes))

    def _refuse(self, fact: Fact, why: str) -> NoReturn:
        raise _NotPossibleError(Obstacle(fact.module, fact.node, why))

    def _refuse_if(self, fact: Fact | None) -> None:
        if fact is not None:
            raise _NotPossibleError(fact)

    # The processes

    def _meeting_place(
        self,
        blocks: list[Block],
        loaders: list[ShardedLoader],
        prepared: list[Preparation],
    ) -> MeetingPlace:
        entry = self._script.entry
        beforehand: set[ast.AST] = {loader.loader.node for loader in loaders}
        beforehand |= {call for call, _ in self._seeds.drawn}
        beforehand |= {each.node for each in prepared}
        place = meeting_place(self._resolver, entry, blocks, beforehand)
        if place is None:
            why = "the way from the script's beginning to its training is not seen"
            self._refuse(self._step, why)
        if place.also_imported:
            self._names.alone_where_imported()
        return place

    # Network and data

    def _loaders(self) -> list[ShardedLoader]:
        """The DataLoader of the training; several where a test chooses one of them."""
        loaders = self._step.loop.trained
        if not loaders or not only_one_runs(loaders):
            self._refuse(
                self._step.loop, "the loop over the batches does not go over one DataLoader"
            )
        self._refuse_if(second_loader(self._script, self._step))
        return [self._sharded(loader) for loader in loaders]

    def _sharded(self, loader: DataLoader) -> ShardedLoader:
        sharded = shard_loader(
            self._script, loader, self._step, self._names, self._gpus, self._seeds
        )
        if not isinstance(sharded, ShardedLoader):
            raise _NotPossibleError(sharded)
        return sharded

    def _metrics(self, networks: DistributedNetworks) -> Iterator[FileEdit]:
        """What is measured in shares, put together; what is decided by it, decided by all alike."""
        script, step, names = self._script, self._step, self._names
        sums = find_common_sums(self._resolver, step.loop, script.loaders)
        summed = [(a.loop.node, a.name) for a in sums if a.share is not None]
        yield from training_sum_edits(sums, names)
        sums_up = [b for b in step.backwards if self._reduction(b) is Reduction.SUM]
        for backward in sums_up:
            loss = unscaled(self._resolver, backward.loss, step.module)
            code = f"{step.module.code(loss)} * {names.name(Place.WORLD_SIZE, step.module)}"
            span = step.module.span(loss)
            yield FileEdit(step.module.path, ReplaceExpression(span, code))
        if sums_up:
            self._notes.append(
                "the loss is a sum: times the number of processes, of which the mean is taken"
            )
        shares = find_evaluation_shares(script)
        statistics = batch_norms(self._resolver) and not self._sync_batchnorm
        edits = evaluation_edits(
            self._resolver, shares, names, networks.is_wrapped, same_statistics=statistics
        )
        if isinstance(edits, Obstacle):
            shares, edits = EvaluationShares((), (), (edits,)), ()
        yield from edits
        in_turns: list[Obstacle] = []
        if step.loop.phase is not None:
            why = f"`{step.loop.excerpt}` trains, too"
            in_turns.append(Obstacle(step.loop.module, step.loop.node, why))
        for why in [*in_turns, *shares.obstacles][:1]:
            self._notes.append(f"every process evaluates all of the data: {why.message}")
        self._exchanges = {step.loop.node, *(share.node for share in shares.loops)}
        decided = agree_on_decisions(
            script,
            step,
            [
                # What every process finds in all of the data may be another thing in its last digits.
                *(summed if step.loop.phase is None else ()),
                *((a.loop.node, a.name) for share in shares.loops for a in share.accumulators),
            ],
            self._exchanges,
            [call for call, _ in self._seeds.drawn],
            names,
        )
        agreed = _possible(decided)
        self._exchanges |= agreed.places
        self._divergence = agreed.divergence.agreeing((), summed)
        yield from agreed.edits
        if networks.forward is not None:
            yield from accumulation_edits(
                self._resolver,
                step,
                networks.forward,
                networks.called_at(networks.forward),
                agreed.divergence,
                names,
            )

    def _reduction(self, backward: Backward) -> Reduced:
        return loss_reduction(self._resolver, self._step, backward)

    def _epochs(self, loaders: list[ShardedLoader]) -> Iterator[FileEdit]:
        epochs = epoch_loop(self._resolver, self._step.loop)
        if epochs is None:
            return
        if not isinstance(epochs, EpochLoop):
            raise _NotPossibleError(epochs)
        name = epochs.name_of(self._resolver, [loader.loader for loader in loaders])
        if name is None:
            self._refuse(epochs, "the DataLoader has no name in the loop over epochs")
        module = epochs.module
        world = self._names.name(Place.WORLD_SIZE, module)
        code = f"if {world} > 1:\n    {name}.sampler.set_epoch({ast.unparse(epochs.counter)})  # another order in every epoch"
        first = module.span(epochs.node.body[0])
        yield FileEdit(module.path, InsertBefore(first, code, outside=True))

    # What one process does

    def _rank_zero(
        self, left_out: Collection[ast.AST], edits_of_all: Sequence[FileEdit]
    ) -> Iterator[FileEdit]:
        functions = self._script.functions_run
        told = self._told_figures(left_out)
        opened = told.opened if told is not None else ()
        actions = find_rank_zero_actions(self._resolver, functions, left_out, opened, edits_of_all)
        assert self._divergence is not None
        self._notes += share_notes(self._resolver, actions, self._divergence, told)
        ahead: dict[RankZeroAction, str] = {}
        if told is not None:
            edits, ahead = told_figure_edits(told, actions, self._names)
            yield from edits
        yield from rank_zero_edits(actions, ahead, self._names)
        results = find_told_results(self._resolver, functions, left_out)
        yield from filter(None, (result.edit(self._names) for result in results))
        yield from progress_bar_edits(self._resolver, functions, self._names)
        yield from shared_service_edits(self._resolver, functions, self._names)

    def _told_figures(self, left_out: Collection[ast.AST]) -> ToldFigures | None:
        loop, divergence = self._step.loop, self._divergence
        inside = loop.function
        runs = inside in self._script.functions_run if inside else loop.module is self._script.entry
        if divergence is None or not runs or inside in left_out or loop.phase is not None:
            return None
        telling = Telling(self._resolver, loop.module, left_out)
        return find_told_figures(self._resolver, loop, divergence, telling)

    # What is not as it was

    def _say_what_changes(self) -> None:
        self._notes += gpu_notes(self._resolver, self._script.modules)
        if batch_norms(self._resolver):
            if self._sync_batchnorm:
                self._notes.append("BatchNorm normalizes by the whole batch (SyncBatchNorm)")
            else:
                self._notes.append(
                    "BatchNorm normalizes by each process's part of a batch (--sync-batchnorm: by the whole batch)"
                )
        mixing = mixing_note(self._resolver, self._step)
        self._notes += [mixing] if mixing is not None else []
        if any(orders_batch(self._resolver, c, m) for m in self._script.modules for c in m.calls):
            self._notes.append(
                "samples are mixed with others of the same process's part of a batch"
            )
        is_weighted = any(self._reduction(b) is Reduction.WEIGHTED for b in self._step.backwards)
        if is_weighted or weighs_samples(self._resolver, self._script.modules):
            self._notes.append(
                "the loss is a mean that weighs samples, taken in each process by itself"
            )
