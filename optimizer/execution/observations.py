"""What one observed run of a training script leaves behind, as values.

A run writes ``record.json`` and some safetensors files into its output folder; :mod:`.record` reads the first back,
and the tensors are read when asked for. Counting: a *step* is one call of ``optimizer.step()`` (also one that a
GradScaler skipped); a *round* is a longest run of steps in which no optimizer steps twice, so a GAN that steps two
optimizers per batch has two steps per round. A script that builds no ``torch.optim`` optimizer and updates its
parameters by hand is counted by its ``backward`` calls instead.

Names: ``Net.conv1.weight`` is the class of the root module and the parameter's state-dict name in it, without the
prefixes that ``torch.compile``, DataParallel and DistributedDataParallel add; ``Net#2`` is a second root of that
class. A parameter of no module is ``optimizer0.group0.3``.
"""

from __future__ import annotations

import math
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from .limits import Exceeded
from .profile_record import RunProfile
from .recorded import (
    ENDED_WELL,
    Checkpoint,
    CheckpointEntry,
    Clip,
    EvalCall,
    LayerOutput,
    LoaderPass,
    Loss,
    Memory,
    OptimizerInfo,
    ParameterInfo,
    ParameterUpdate,
    ReadMark,
    Scheduler,
    Settings,
    Snapshot,
    Status,
    Step,
    TensorSummary,
    Timing,
    TrainingCalls,
    Versions,
    WorkerStart,
    WrittenFile,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .time_stamps import TimeStamps

__all__ = [
    "ENDED_WELL",
    "ROUNDS",
    "Checkpoint",
    "CheckpointEntry",
    "Clip",
    "EvalCall",
    "LayerOutput",
    "LoaderPass",
    "Loss",
    "Memory",
    "Observations",
    "OptimizerInfo",
    "ParameterInfo",
    "ParameterUpdate",
    "ReadMark",
    "Scheduler",
    "Settings",
    "Snapshot",
    "Status",
    "Step",
    "TensorSummary",
    "Timing",
    "TrainingCalls",
    "Versions",
    "WorkerStart",
    "WrittenFile",
    "rounds_counted",
    "said_last",
]

_FRAME = re.compile(r' +File "([^"<]+)", line (\d+)')
_INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|python3\.\d+)[/\\]", re.IGNORECASE)
"""In the paths of libraries, Python's own among them."""
"""A line of a traceback that names a file."""
ROUNDS = "rounds"
"""File name of the number of begun rounds: eight bytes, the lowest first."""
STEPPED_ELSEWHERE = "the steps of processes that the script starts and that join no process group"
"""What may be among the unobserved of a run."""


@dataclass(frozen=True)
class Observations:
    """One run. Of a run in ``time`` mode only the status, the texts, the times and the memory are filled in."""

    folder: Path
    status: Status
    exit_code: int | None
    """The script's exit status; None when it was ended from outside. A signal's number, negated, when killed."""
    traceback: str | None
    """The user's traceback without our frames and with the user's own paths, when the status is FAILED."""
    stdout: str
    stderr: str
    stdout_cut: bool
    stderr_cut: bool
    rounds: int
    """Finished rounds, in both modes."""
    optimizer_seen: bool
    """Whether any ``torch.optim`` optimizer was built."""
    timing: Timing
    cut: bool = False
    """Whether the run went on for the end of an epoch, or its own, and was ended for lack of time."""
    epoch_rounds: int | None = None
    """The rounds by which a run that may go on had seen the end of an epoch; one that may not, those by which it would."""
    memory: Memory = field(default_factory=Memory)
    versions: Versions | None = None
    compute_dtypes: tuple[str, ...] = ()
    """Reduced types that products were computed in: those of the enabled autocast regions entered (``bfloat16``,
    ``float16``), and ``tfloat32`` where the run allowed TF32 on a CUDA device, as cuDNN's layers do by default. Sorted, without repeats."""
    rounds_by_itself: bool = False
    """In full precision: the script asks for tensors in bfloat16 or float16."""
    steps: tuple[Step, ...] = ()
    optimizers: tuple[OptimizerInfo, ...] = ()
    parameters: Mapping[str, ParameterInfo] = field(default_factory=dict[str, ParameterInfo])
    snapshots: tuple[Snapshot, ...] = ()
    gradients_file: str | None = None
    buffers_file: str | None = None
    first_buffers_file: str | None = None
    optimizer_state_file: str | None = None
    first_copies_file: str | None = None
    last_copies_file: str | None = None
    saved_file: str | None = None
    layer_outputs: tuple[LayerOutput, ...] = ()
    """In the order in which the layers were done; none of compiled ones."""
    bias_sums: Mapping[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    """For biases of linear layers and convolutions, of the models' first training calls: the sizes of the terms that a gradient's
    elements are sums of, added up (the L2 norm of that over the elements), and how many terms an element has."""
    eval_calls: tuple[EvalCall, ...] = ()
    eval_file: str | None = None
    kept_calls: Mapping[int, int] | None = None
    """For calls of which ``eval_file`` has outputs, by the numbers there, their places among ``eval_calls``; None: the same."""
    further_calls: tuple[EvalCall, ...] = ()
    """What may be evaluations, too: calls without gradients in training mode, of modules that do the same in either mode, and
    those in eval mode that are made inside of a module in training mode (its frozen part)."""
    training_calls: tuple[TrainingCalls, ...] = ()
    loader_passes: tuple[LoaderPass, ...] = ()
    workers: tuple[WorkerStart, ...] = ()
    schedulers: tuple[Scheduler, ...] = ()
    clips: tuple[Clip, ...] = ()
    own_shuffles: Mapping[int, int] = field(default_factory=dict[int, int])
    checkpoints: tuple[Checkpoint, ...] = ()
    """As far as anyone can read them later (see :mod:`.standing`)."""
    pickled: Mapping[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    """What was pickled into bytes, by their digest; the paths are empty. Of that which went to a file there is a checkpoint, too."""
    removed: tuple[str, ...] = ()
    """Paths at which the script has saved something and left nothing."""
    files: tuple[WrittenFile, ...] = ()
    """Sorted by place, without checkpoints; then ``told``."""
    told: tuple[WrittenFile, ...] = ()
    """Texts that are in no file of the script's: what it logs on stderr, metrics it hands to a tracker. Among ``files``, too."""
    profile: RunProfile | None = None
    """Of a run in ``profile`` mode."""
    steps_lent: int = 0
    """How many steps left the parameters of another run in place of their own, where all of either run's did."""
    unobserved: tuple[str, ...] = ()
    """What the probe could not record and why; nothing of it may be taken for equal."""
    exceeded: Exceeded | None = None
    """The limit that ended the run, when one did."""
    printed: tuple[tuple[int, int], ...] = ()
    """How many lines had gone to ``sys.stdout`` when the next round began: rounds that had begun before, and lines."""
    step_samples: tuple[int, ...] = ()
    """For each step, the samples it was made of: those read since the step before, from the loader read last."""
    collectives: tuple[tuple[int, int], ...] = ()
    """Where the script called collectives of ``torch.distributed`` by itself: rounds begun, and evaluation calls, by then."""
    layers: tuple[str, ...] = ()
    """The classes of the modules in the root modules, without repeats."""
    layer_settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Torch's own layers in the root modules, by name, as they print themselves: ``LayerNorm((8,), eps=1e-05)``. Of others their epsilon."""
    function_settings: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(
        default_factory=dict[str, "tuple[tuple[str, ...], tuple[str, ...]]"]
    )
    """For functions of ``torch.nn.functional`` the settings (``eps=1e-05``) of each call before the first step, and all that the run has."""
    dropouts: tuple[tuple[str, float, int], ...] = ()
    """What drops elements in training, with which probability, and how often it did."""
    first_dropouts: tuple[tuple[float, tuple[int, ...]], ...] = ()
    """The calls of it in the models' first training calls, in their order: the probability, and the shape of what it was dropped from."""
    weighted_means: bool = False
    """Whether a cross entropy weighed or ignored targets in training; of runs that watch it."""
    noises: int = 0
    """How often random numbers were drawn for each sample of the batch read last; of runs that watch it."""
    ranks: tuple[Observations, ...] = ()
    """Each rank's own, of a run of several processes; this is then what they did together (see :mod:`.ranks`)."""
    left_out: frozenset[str] = frozenset()
    """Tensors that are not to be read, by the last part of their names: see ``comparison/counterparts.py``."""
    called: Callable[[str], str] | None = None
    """What tensors in the run's files are called here, where that is another name: see ``comparison/renamed.py``."""
    chosen: Mapping[str, Callable[[str], bool]] = field(
        default_factory=dict[str, "Callable[[str], bool]"]
    )
    """For files of the run, which of their tensors are read, by their names there: see ``comparison/successors.py``."""
    divided: Mapping[str, tuple[tuple[str, int], ...]] = field(
        default_factory=dict[str, "tuple[tuple[str, int], ...]"]
    )
    """For tensors of which each row is another's, these with their rows: see ``comparison/divided.py``."""
    failed_rank: int | None = None
    """The rank that failed first, where the run failed because of one."""
    stamps: TimeStamps | None = None
    """What in texts that are kept in files names a moment of the run; in paths and in stdout that is masked already."""
    ended_at: float = math.inf
    """When the script ended, in seconds of the clock that all processes of a machine share; infinite where it did not tell."""

    @property
    def failure_details(self) -> str:
        """The traceback of a run that failed, else the end of its stderr and how it ended."""
        if self.traceback:
            return self.traceback
        *before, last = ["", *self.stderr.rstrip().splitlines()[-20:]]
        told = [self.ending] if last and self.ending.startswith(last) else [last, self.ending]
        return "\n".join(filter(None, [*before, *told]))

    @property
    def losses(self) -> tuple[float, ...]:
        """Every recorded loss of the run, in order."""
        return tuple(loss.value for step in self.steps for loss in step.losses)

    @property
    def ending(self) -> str:
        """How a run ended that neither completed nor was stopped, in one line."""
        if self.exceeded is not None:
            return str(self.exceeded)
        where = "" if self.failed_rank is None else f"rank {self.failed_rank}: "
        if self.status is Status.KILLED:
            return where + _death(self.exit_code or 0)
        lines = (self.traceback or "").strip().splitlines()
        if not lines:
            said = said_last(self.stderr)
            status = f"exit status {self.exit_code}"
            return where + (f"{said} ({status})" if said else status)
        said = said_last(self.traceback or "")
        frames = [match for line in lines if (match := _FRAME.match(line))]
        if not frames:
            return where + said
        own = [frame for frame in frames if not _INSTALLED.search(frame[1])]
        frame = own[-1] if own else frames[-1]
        return f"{where}{said}, in {Path(frame[1]).name} line {frame[2]}"

    @property
    def eval_samples(self) -> int:
        """Samples that went through root modules in eval mode."""
        return sum(call.samples for call in self.eval_calls)

    def step_of_line(self, number: int) -> int | None:
        """The step before which line ``number`` (from 1, as ``str.splitlines`` has it) was printed; None where not known."""
        ends = list(
            accumulate(line.endswith("\n") for line in self.stdout.splitlines(keepends=True))
        )
        if self.stdout_cut or not self.printed or not ends or ends[-1] != self.printed[-1][1]:
            return None  # not everything went through sys.stdout
        line = ends[number - 1] if number <= len(ends) else ends[-1] + 1
        return next((begun + 1 for begun, lines in self.printed if lines >= line), None)

    def snapshot(self, after_round: int) -> Snapshot | None:
        """The snapshot after that round (0: before the first step), None when none was taken."""
        return next((s for s in self.snapshots if s.round == after_round), None)

    def tensors(self, snapshot: Snapshot) -> dict[str, NDArray[np.generic]] | None:
        """The parameters of a snapshot, bfloat16 and float16 widened to float32; None where only hashes were kept."""
        return None if snapshot.file is None else self._read(snapshot.file)

    def gradients(self) -> dict[str, NDArray[np.generic]]:
        """The unscaled gradients of each optimizer's first step."""
        return self._read(self.gradients_file)

    def buffers(self) -> dict[str, NDArray[np.generic]]:
        """The buffers of the root modules at the end (BatchNorm's running statistics, say)."""
        return self._read(self.buffers_file)

    def first_buffers(self) -> dict[str, NDArray[np.generic]]:
        """The same after round 1."""
        return self._read(self.first_buffers_file)

    def eval_outputs(self) -> dict[str, NDArray[np.generic]]:
        """The kept outputs of eval-mode calls, keyed ``<index of call>.<index of output>``."""
        outputs = self._read(self.eval_file)
        if self.kept_calls is None:
            return outputs
        named = {name: name.split(".") for name in outputs}
        places = {str(kept): place for kept, place in self.kept_calls.items()}
        return {
            f"{places[kept]}.{position}": outputs[name]
            for name, (kept, position) in named.items()
            if kept in places
        }

    def with_eval_calls(self, calls: Sequence[EvalCall]) -> Observations:
        """This run with these evaluations instead, some of which it has; what is kept of their outputs stays theirs."""
        known = self.kept_calls
        known = {n: n for n in range(len(self.eval_calls))} if known is None else known
        places: dict[int, list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            places[id(call)].append(place)
        moved = {n: places[id(c)].pop(0) for n, c in enumerate(self.eval_calls) if places[id(c)]}
        kept = {number: moved[place] for number, place in known.items() if place in moved}
        return replace(self, eval_calls=tuple(calls), kept_calls=kept)

    def optimizer_state(self) -> dict[str, NDArray[np.generic]]:
        """What the optimizers keep between steps, at the end: ``optimizer 0/exp_avg/Net.head.weight``."""
        return self._read(self.optimizer_state_file)

    def first_copies(self) -> dict[str, NDArray[np.generic]]:
        """Weights beside the trained ones, by where the script keeps them (``ema.shadow/fc.weight``), after round 1."""
        return self._read(self.first_copies_file)

    def last_copies(self) -> dict[str, NDArray[np.generic]]:
        """The same at the end."""
        return self._read(self.last_copies_file)

    def saved_tensors(self) -> dict[str, NDArray[np.generic]]:
        """Tensors given to ``torch.save`` that were no parameters or buffers of the moment, as ``stored_as`` names them."""
        return self._read(self.saved_file)

    def _read(self, file: str | None) -> dict[str, NDArray[np.generic]]:
        if file is None:
            return {}
        from safetensors import numpy as safetensors_numpy

        found = safetensors_numpy.load_file(str(self.folder / file))  # pyright: ignore[reportUnknownMemberType]
        if (wanted := self.chosen.get(file)) is not None:
            found = {name: tensor for name, tensor in found.items() if wanted(name)}
        if self.called is not None:
            found = {self.called(name): tensor for name, tensor in found.items()}
        for whole, parts in self.divided.items():
            for name in [n for n in found if n.rpartition("/")[2] == whole]:
                found |= _rows(name.removesuffix(whole), found.pop(name), parts)
        if not self.left_out:
            return found
        return {n: t for n, t in found.items() if n.rpartition("/")[2] not in self.left_out}


def _rows(
    prefix: str, tensor: NDArray[np.generic], parts: Sequence[tuple[str, int]]
) -> dict[str, NDArray[np.generic]]:
    """The rows of each part; of what has no rows, such as the steps made, each has the whole."""
    per_row = tensor.shape[:1] == (sum(rows for _, rows in parts),)
    found: dict[str, NDArray[np.generic]] = {}
    begin = 0
    for name, rows in parts:
        found[prefix + name] = tensor[begin : begin + rows] if per_row else tensor
        begin += rows
    return found


def said_last(text: str) -> str:
    """The line that says why a program failed: the first of the exception that a traceback ends with, else the last one.

    Where that only introduces the next, as "backend='inductor' raised:" does, they are one.
    """
    lines = text.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    if not frames or not lines[0].startswith("Traceback"):
        return lines[-1] if lines else ""
    exception = [line for line in lines[frames[-1] :] if line and not line.startswith(" ")]
    if len(exception) > 1 and exception[0].endswith(":"):
        return " ".join(exception[:2])
    return exception[0] if exception else lines[-1]


def rounds_counted(folder: Path) -> int:
    """The rounds that the probe has seen begin in ``folder``, whether or not it came to write a record."""
    try:
        return int.from_bytes((folder / ROUNDS).read_bytes(), "little")
    except OSError:
        return 0


def _death(returncode: int) -> str:
    """How a process ended that left no record, from its status as subprocess has it."""
    if returncode >= 0:
        return f"the process leaves with status {returncode} past Python's own exit (os._exit?)"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = (
        " (from the script, or from the kernel when memory runs out)" if name == "SIGKILL" else ""
    )
    return f"the process is ended by {name}{hint}"
