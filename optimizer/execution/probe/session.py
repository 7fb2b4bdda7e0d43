"""One run of a script: what the hooks tell, who records it, and when it is over."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import mmap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .bias_sums import BiasSums
from .checkpoints import SavedTensors
from .clipping import Clipping
from .clock import Clock
from .ending import Ending
from .evaluated_weights import evaluated_weights
from .evaluation_draws import EvaluationDraws
from .evaluations import Evaluations, is_evaluation
from .extent import Extent, batches_of_epoch
from .fingerprints import write_safetensors
from .function_settings import FunctionSettings
from .layer_outputs import LayerOutputs
from .optimizer_state import OptimizerStates
from .padding import Padding
from .parameters import Parameters
from .patches import Patches
from .permutations import Permutations
from .perturbation import perturbation
from .printed import PrintedLines
from .reading import Reading
from .recording import recording
from .rounds import Rounds
from .saves import Saves
from .schedulers import Schedulers
from .step_draws import StepDraws
from .stepped_weights import stepped_weights
from .steps import NO_OPTIMIZER, Steps
from .tf32 import layers_in_tf32, products_in_tf32
from .told import Told
from .weight_copies import WeightCopies
from .worker_generators import FOLDER, read_workers

BUFFERS, FIRST_BUFFERS = "buffers.safetensors", "first-buffers.safetensors"
ROUNDS = "rounds"


class Session:
    """Counts rounds, ends the script after the last one, and in observe mode records what happens."""

    def __init__(
        self,
        spec: dict[str, Any],
        clock: Clock,
        give_up: Callable[[], None],
        *,
        unwinds: bool = True,
    ) -> None:
        self._ending = Ending(give_up, unwinds=unwinds)
        self.folder = Path(spec["output"])
        self.observing = spec["mode"] == "observe"
        self.stopped = False
        self._seed = spec["seed"]
        self._full_precision = spec["full_precision"]
        self._emulated = bool(spec["emulated_gpus"])
        self._rounds, self._clock = Rounds(spec["steps"]), clock
        self._until_next = spec["until_next"]
        self._extent = Extent(spec["epoch_seconds"])
        self._counted = _counter(self.folder / ROUNDS)
        self._parameters = Parameters(self.folder, spec["snapshot_bytes"])
        self._states = OptimizerStates(self._parameters, self.folder, spec["snapshot_bytes"])
        self._copies = WeightCopies(self._parameters, self.folder, spec["snapshot_bytes"])
        self._saved = SavedTensors(self.folder, spec["snapshot_bytes"])
        self.saves = Saves(
            self._saved,
            self._parameters.live_hashes,
            self._rounds,
            self._try,
            lambda: self.stopped,
        )
        self._layers, self._training = LayerOutputs(), False
        self._bias_sums = BiasSums()
        self.padding = Padding()
        self._evaluations = Evaluations(
            self.folder,
            self.padding,
            lambda: self._parameters.known,
            self._parameters.label_of,
            self._parameters.is_part,
        )
        perturb = spec["perturb"]
        self._perturbation = perturbation(**perturb) if perturb else None
        lending = (spec["keep_steps"], spec["stepped_with"], self.folder, spec["snapshot_bytes"])
        lent = stepped_weights(*lending, self._perturbation)
        self._steps = Steps(self._parameters, self.folder, lent)
        self._weights = evaluated_weights(
            spec["keep_evaluated"], spec["evaluated_with"], self.folder, spec["snapshot_bytes"]
        )
        self._stepping: list[int] = []
        self.reading = Reading()
        self.permutations = Permutations(self._seed, spec["shuffled"])
        self._step_draws = StepDraws(self._seed)
        self.evaluation_draws = EvaluationDraws(self._seed)
        self._draws_aside = not spec["training_draws"]
        self.told = Told(self.folder, self.rounds_begun)
        self.schedulers = Schedulers(self._rounds, self.told.metric)
        self.clipping = Clipping(
            self._rounds, lambda: self._steps.losses, lambda: self._parameters.given()
        )
        self.function_settings = FunctionSettings(lambda: self._rounds.begun)
        self.printed = PrintedLines(lambda: self._rounds.begun)
        self._collectives: list[tuple[int, int]] = []
        self._compute_dtypes: set[str] = set()
        self._rounds_by_itself = False
        self._unobserved: list[str] = []

    def optimizer_built(self, optimizer: Optimizer) -> None:
        """An optimizer has got its parameters."""
        self._rounds.built(self._parameters.number(optimizer))
        self._clock.optimizer_built()
        if self._perturbation:
            self._perturbation.add(optimizer)

    def step_begins(self, optimizer: Optimizer, closure: bool) -> None:
        """``optimizer`` is about to step."""
        self.check()
        number = self._parameters.number(optimizer)
        self._stepping.append(number)
        if self._stepping.count(number) > 1:  # a subclass calling its parent's step
            return
        if self._rounds.begins(number):
            self._round_ended()
        if self.observing:
            self._try(self.clipping.step_begins, self._rounds.finished)
            if self._perturbation:
                self._perturbation.before_step(self._rounds.finished)
            self._try(self._steps.begin, optimizer, self._rounds.finished, closure)
            self._try(self._parameters.snapshot, 0)
            if self._perturbation:
                self._perturbation.direct(self._parameters.named, self._rounds.finished)

    def evaluated(self, optimizer: Optimizer) -> None:
        """The closure of the step that ``optimizer`` makes was called."""
        if self.observing:
            self._try(self._steps.evaluated, optimizer)

    def loss_scaled(self) -> None:
        """A GradScaler has scaled a loss."""
        self._steps.scaled = True
        self._bias_sums.scaled = True

    def scaler_steps(self, now: bool) -> None:
        """A GradScaler is asked to make a step ``now``, or no longer."""
        self._steps.by_scaler = now

    def step_ends(self, optimizer: Optimizer, *, skipped: bool = False) -> None:
        """``optimizer`` has stepped, or a GradScaler ``skipped`` its step."""
        number = self._parameters.number(optimizer)
        self._stepping.pop()
        if number in self._stepping:
            return
        if self.observing:
            self._try(self._steps.end, optimizer, skipped)
            self._states.stepped(optimizer)
        self._count_step(number)

    def hear_of_loading(self, patches: Patches) -> None:
        """Have the weights kept that a script loads others over."""
        self._parameters.last_step.install(self._parameters.trained, patches)

    def by_hand(self) -> bool:
        """Whether the script has built no optimizer, so that gradients are all there is to count by."""
        return not self._parameters.optimizer_seen

    def trains(self, tensors: Sequence[Tensor]) -> bool:
        """Whether gradients for ``tensors``, which need not be leaves, are likely taken to train."""
        known = (*self._parameters.named.values(), *self._parameters.given())
        held = {parameter.data_ptr() for parameter in known}
        return self.by_hand() or any(tensor.data_ptr() in held for tensor in tensors)

    def gradients_begin(self, leaves: Sequence[Tensor]) -> None:
        """Gradients are about to be taken, for ``leaves`` (told where the script works by hand)."""
        self.check()
        if not self.by_hand():
            if self._until_next and self._rounds.last and self._rounds.close():
                self._round_ended()
            return
        if self.observing:
            self._try(self._parameters.by_hand, leaves)
        if self._rounds.begins(NO_OPTIMIZER):
            self._round_ended()

    def backward(
        self,
        tensor: Tensor,
        gradient: Tensor | None,
        scale: Tensor | None,
        *,
        taken: bool = False,
    ) -> None:
        """They are computed of ``tensor``; ``taken`` by the script, instead of added to ``grad``."""
        if self.observing:
            self._try(self._steps.backward, tensor, gradient, scale, taken)

    def gradients_end(
        self, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None] | None = None
    ) -> None:
        """They were taken; those of ``leaves``, which are in their ``grad`` unless given."""
        if not self.by_hand():
            return
        if self.observing:
            self._try(self._step_by_hand, leaves, gradients)
        self._count_step(NO_OPTIMIZER)

    def _step_by_hand(
        self, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None] | None
    ) -> None:
        gradients = [leaf.grad for leaf in leaves] if gradients is None else gradients
        named = self._parameters.by_hand(leaves)
        pairs = zip(named, gradients, strict=True)
        known = {name: gradient for name, gradient in pairs if gradient is not None}
        after = self._perturbation.after if self._perturbation else 0
        if self._perturbation and self._rounds.fresh and self._rounds.finished == after:
            # There is no telling, before, what will be trained: the first gradients are those of the original.
            self._perturbation.add_tensors(leaves)
            self._perturbation.apply(after)
        self._parameters.snapshot(0)
        self._steps.by_hand(self._rounds.finished, named, known)

    def _count_step(self, number: int) -> None:
        self._parameters.last_step.stepped()
        if self.observing:
            self.reading.stepped()
            first, evaluated = self._rounds.fresh, self.evaluation_draws.drew
            after = self._step_draws.stepped(
                self._rounds.finished, first=first, evaluated=evaluated
            )
            self.evaluation_draws.stepped(*after)
        if self._rounds.fresh:
            self._extent.round_begins()
            begun = self._rounds.finished + 1
            if self._rounds.last and self._extent.goes_on(begun, self.reading.source):
                self._rounds.limit += 1
            self._clock.edge(last=self._rounds.last)
        complete = self._rounds.stepped(number)
        self._counted[:] = self._rounds.begun.to_bytes(8, "little")
        if complete and number != NO_OPTIMIZER and not self._until_next:
            self._rounds.close()
            self._round_ended()

    def _round_ended(self) -> None:
        finished = self._rounds.finished
        if self.observing and (finished & (finished - 1) == 0 or self._rounds.over):
            self._try(self._parameters.snapshot, finished)
        if self.observing and finished == 1:
            self._try(self._copies.look_first)
            self._try(self._write_first_buffers)
        if self._rounds.over:
            if self.observing:
                self._try(self._copies.look_again)
            self.stopped = True
            self.check()

    def check(self) -> None:
        """End the script here if its run is over."""
        self.stopped = self.stopped or self._extent.is_late()
        if self.stopped:
            self._ending.unwind()

    def call_begins(self, module: nn.Module, inputs: Any) -> None:
        """A module is called, from outside any module."""
        if not module.training:
            self._extent.evaluated(self._rounds.begun)
            if not self.stopped:
                self.check()
        if not self.stopped:
            self._try(self._evaluations.begin, module, inputs)
        self._try(self._layers.begin, module, self._rounds.finished)
        self._try(self._parameters.note_criteria, module)
        if self._perturbation:
            self._perturbation.before_call(module, self._rounds.begun)
        if self._weights:
            self._try(self._weights.before_call, module, self._rounds.begun)
        self.module_starts(module)
        self._training = module.training
        if not module.training or (self._draws_aside and is_evaluation(module)):
            self.evaluation_draws.begin()

    def module_starts(self, module: nn.Module) -> None:
        """``module`` is about to compute."""
        if not self._rounds.begun and module.training:
            self._try(self._parameters.keep_first, module)

    def layer_called(self, layer: nn.Module, output: Any) -> None:
        """A module was called inside of such a call."""
        self._try(self.padding.layer_called, layer, output)
        if self._layers.watching:
            self._try(self._layers.called, layer, output)
            self._try(self._bias_sums.called, layer, output)
        if self._training and not self.stopped:
            self._try(self._evaluations.called_inside, layer, output, self._rounds.begun)

    def call_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Such a call is over."""
        self.evaluation_draws.end()
        if self._perturbation:
            self._perturbation.after_call()
        if self._weights:
            self._try(self._weights.after_call)
        self._try(self._layers.end, output)
        if not self.stopped:
            self._try(self._evaluations.called, module, inputs, output, self._rounds.begun)

    def pass_begins(self, loader: Any) -> dict[str, Any] | None:
        """A loader is iterated; what to note about it, None in a run that is only timed."""
        workers = getattr(loader, "num_workers", 0)
        ahead = workers * (getattr(loader, "prefetch_factor", None) or 1)
        self._clock.loader_started(ahead=ahead)
        if not self.observing:
            return None
        noted = self.reading.begin(loader, self._rounds.begun)
        self._extent.pass_begins(noted, batches_of_epoch(loader))
        return noted

    def asked_for(self, noted: dict[str, Any], index: Any, collated: bool) -> None:
        """The loader asks its data set for the samples ``index``; see :meth:`ReadOrder.asked`."""
        self._try(noted["order"].asked, getattr(index, "index", index), collated)

    def evaluates(self) -> None:
        """A module is put into evaluation mode."""
        self._clock.interlude()

    def waited(self, seconds: float) -> None:
        """The script waited for a loader."""
        self._clock.waited(seconds)

    def got_batch(self, noted: dict[str, Any], batch: Any) -> None:
        """The loader gave a batch."""
        self.reading.got_batch(noted, batch)

    def rounds_begun(self) -> int:
        """Rounds that have had a step."""
        return self._rounds.begun

    def notes_layers(self) -> bool:
        """Whether a model's first call to train is going on."""
        return self._layers.watching

    def communicates(self) -> None:
        """The script calls a collective of ``torch.distributed``."""
        self._collectives.append((self._rounds.begun, self._evaluations.count))

    def computes_in(self, dtype: torch.dtype) -> None:
        """Products are computed in ``dtype`` from here."""
        self._compute_dtypes.add(str(dtype).removeprefix("torch."))

    def rounds(self) -> None:
        """The script asks for a tensor in a reduced type, and gets one in float32."""
        self._rounds_by_itself = True

    def saved(self, thing: Any, file: Any) -> None:
        """``torch.save`` is called."""
        self.saves.saved(thing, file)

    def _try(self, record: Callable[..., object], *args: Any) -> None:
        """Record something; what cannot be recorded is told in the record instead of failing the script."""
        try:
            with recording():
                record(*args)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._unobserved.append(f"{place.name}: {type(error).__name__}: {error}")

    def finish(self) -> dict[str, Any]:
        """What the record says of the run, which is over."""
        self._ending.reached()
        self._rounds.close()
        record: dict[str, Any] = {
            "timing": self._clock.finish(),
            "rounds": self._rounds.finished,
            "cut": self._extent.cut,
            "epoch_rounds": self._extent.epoch_rounds,
            "optimizer_seen": self._parameters.optimizer_seen,
        }
        if not self.observing:
            return record
        self._try(self._parameters.snapshot, self._rounds.finished)
        self._try(self._note_tf32)
        for finish in (
            self._parameters.finish,
            self._steps.finish,
            self._layers.finish,
            lambda: self._bias_sums.finish(self._parameters),
            self._evaluations.finish,
            self._states.finish,
            self._copies.finish,
            self._saved.finish,
            self.saves.finish,
            self.saves.moves.finish,
            self.saves.pickled.finish,
            self._write_buffers,
            self.schedulers.finish,
            self.clipping.finish,
            self.function_settings.finish,
            self.permutations.finish,
            self.printed.finish,
            self.told.finish,
            self._workers,
        ):
            self._try(_update, record, finish)
        return {
            **record,
            **self.reading.finish(),
            "collectives": sorted(set(self._collectives)),
            "layers": self._parameters.layers(),
            "layer_settings": self._parameters.layer_settings(),
            "compute_dtypes": sorted(self._compute_dtypes),
            "rounds_by_itself": self._rounds_by_itself,
            "unobserved": list(dict.fromkeys(self._unobserved)),
        }

    def _note_tf32(self) -> None:
        """Tell what CUDA makes of float32, unless the environment forbids it. Emulated convolutions are not rounded."""
        if self._full_precision or not torch.cuda.is_available():
            return
        modules = [module for root, _ in self._parameters.roots for module in root.modules()]
        weights = self._parameters.named.values()
        if products_in_tf32() or (not self._emulated and layers_in_tf32(modules, weights)):
            self._compute_dtypes.add("tfloat32")

    def _workers(self) -> dict[str, Any]:
        return {"workers": read_workers(self.folder / FOLDER)}

    def _write_buffers(self) -> dict[str, Any]:
        buffers = self._parameters.last_step.left(self._parameters.buffers())
        if buffers:
            write_safetensors(self.folder / BUFFERS, buffers)
        first = FIRST_BUFFERS if (self.folder / FIRST_BUFFERS).exists() else None
        return {"buffers_file": BUFFERS if buffers else None, "first_buffers_file": first}

    def _write_first_buffers(self) -> None:
        if buffers := self._parameters.buffers():
            write_safetensors(self.folder / FIRST_BUFFERS, buffers)


def _counter(path: Path) -> mmap.mmap:
    """Eight bytes of a file that keep what was last put there, however the process ends."""
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def _update(record: dict[str, Any], finish: Callable[[], dict[str, Any]]) -> None:
    record.update(finish())
