"""The parts of what a run leaves behind: steps, parameters, evaluations, passes over loaders, files, times.

Counting and names are those of :mod:`.observations`, which has them together.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


class Status(str, Enum):
    """How a run ended."""

    COMPLETED = "completed"
    """The script reached its end before the last asked-for round."""
    STOPPED = "stopped"
    """The run was ended after the asked-for number of rounds."""
    FAILED = "failed"
    """The script raised, or exited with a status other than 0."""
    TIMED_OUT = "timed_out"
    """The run was ended by its time limit."""
    OVER_LIMIT = "over_limit"
    """The run was ended by another limit: memory, disk space, number of processes, output."""
    KILLED = "killed"
    """The process died without the probe's leave: a signal, ``os._exit``, out of memory."""


ENDED_WELL = frozenset({Status.COMPLETED, Status.STOPPED})


@dataclass(frozen=True)
class Loss:
    """What ``backward`` was called on: the value without GradScaler's factor, and the dtype it had (``float32``).

    For ``t.backward(gradient=g)`` the value is ``sum(t * g)``. ``taken``: by ``torch.autograd.grad`` or ``torch.func.grad``,
    whose results the script has for itself.
    """

    value: float
    dtype: str
    taken: bool = False


@dataclass(frozen=True)
class ParameterUpdate:
    """One parameter in one step.

    ``grad_norm`` is the L2 norm of the unscaled gradient, None without one; ``update_norm`` the L2 norm of the
    change; ``checksum`` depends on every bit of the parameter after the step, in logical (contiguous) order.
    """

    grad_norm: float | None
    update_norm: float
    checksum: int


@dataclass(frozen=True)
class Step:
    """One call of ``optimizer.step()``; ``index`` and ``round`` count from 0, ``optimizer`` is -1 without one.

    ``losses`` are those of the ``backward`` calls since the step before, of whichever optimizer. ``skipped`` means
    that a GradScaler found Inf or NaN gradients and left the parameters alone. ``grad_norm`` is the L2 norm over all
    gradients of the step's parameters, unscaled, as the optimizer saw them (so after clipping). ``unguarded``: a
    GradScaler scaled the losses, and was not asked to make the step, so would not have skipped it. ``weight_terms`` is the
    L2 norm over all parameters of the gradients times the weights: how far the losses move where every weight is off by
    a relative error of its own, in units of that error.
    """

    index: int
    round: int
    optimizer: int
    losses: tuple[Loss, ...]
    learning_rates: tuple[float, ...]
    closure: bool
    skipped: bool
    grad_norm: float
    parameters: Mapping[str, ParameterUpdate]
    unguarded: bool = False
    weight_terms: float = 0.0


Settings: TypeAlias = "tuple[Mapping[str, str], ...]"
"""Of each parameter group of an optimizer the options and how Python writes their values."""


@dataclass(frozen=True)
class OptimizerInfo:
    """An optimizer; its place in :attr:`Observations.optimizers` is its order of building.

    ``groups`` are parameter names per group; ``hyperparameters`` every other option when it first stepped. One that
    never stepped has neither. ``changes`` are rounds and the settings, learning rates aside, that hold from there on.
    """

    class_name: str
    groups: tuple[tuple[str, ...], ...]
    hyperparameters: Settings
    changes: tuple[tuple[int, Settings], ...] = ()


@dataclass(frozen=True)
class ParameterInfo:
    """A stepped parameter's shape and dtype (``bfloat16``), and whether it takes gradients."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool


@dataclass(frozen=True)
class Snapshot:
    """Every stepped parameter after round ``round`` (1-based; 0 is before the first step), whatever was loaded since then.

    ``hashes`` are sha256 over dtype, shape and bytes. ``file`` holds the tensors, None when they were larger than
    :attr:`RunSettings.snapshot_bytes`.
    """

    round: int
    hashes: Mapping[str, str]
    file: str | None


@dataclass(frozen=True)
class TensorSummary:
    """A tensor in figures: ``mean``, ``norm`` (L2) and ``largest`` (absolute) are over its finite values."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int
    mean: float
    norm: float
    largest: float
    finite: bool


@dataclass(frozen=True)
class LayerOutput:
    """What a layer gave in its model's first training call: ``layer`` is ``Net.head.fc``; the first tensor of it.

    ``rounds`` were over by then: a part that is called by itself once the whole is trained comes late.

    At last there is what the model itself gave, every tensor of it: ``layer`` is ``Net``.
    """

    layer: str
    class_name: str
    output: TensorSummary
    rounds: int = 0


@dataclass(frozen=True)
class EvalCall:
    """One call of a root module in eval mode, after ``rounds`` rounds; ``samples`` is the first argument's length.

    ``inputs`` depends on every bit of the tensors it was called on; ``each`` has a number for what belongs to each sample there, but for
    zeros that it is padded with at its end, and is empty where that was not told.
    ``constant``: no optimizer trains the module, and its weights were the same in all its calls (a teacher's); ``weights`` depends on every
    bit of these, and is 0 of others.
    ``number``: how many such calls, in either mode, were before it. ``trains``: gradients were on, and the module does
    the same in either mode. ``inside``: another module, in training mode, made it. ``trained_as``: by which name its parameters
    are the optimizers' (``Net#2``), empty where none are: those of an average. ``part``: it is one of such a network, which has not called it.
    ``layer``: it is one of torch's own layers or losses, and holds no other module; ``stateless``: nor a parameter or buffer.
    ``padded``: of outputs, by their position, the dimension that is padded (0 or 1; the other is the samples'), and the length of
    each sample, as the module's layers were told; what is behind it counts as zeros.
    The tensors of the first few calls are kept whole: see :meth:`Observations.eval_outputs`.
    """

    module: str
    rounds: int
    samples: int
    outputs: tuple[TensorSummary, ...]
    inputs: int = 0
    constant: bool = False
    number: int = 0
    trains: bool = False
    inside: bool = False
    each: tuple[int, ...] = ()
    trained_as: str = ""
    part: bool = False
    layer: bool = False
    stateless: bool = False
    padded: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    weights: int = 0


@dataclass(frozen=True)
class TrainingCalls:
    """Calls of a root module in training mode, after ``rounds`` rounds: their samples, and those without gradients."""

    module: str
    rounds: int
    samples: int
    without_gradients: int


@dataclass(frozen=True)
class ReadMark:
    """What a pass has read after one of its batches.

    ``samples`` read so far, a digest of their indices in ``order`` and one of them as a set (``contents``), how many
    ``distinct`` ones there are, and whether they came in ``ascending`` order.
    """

    samples: int
    order: str
    contents: str
    distinct: int
    ascending: bool


@dataclass(frozen=True)
class LoaderPass:
    """One pass over a DataLoader; ``loader`` is its order of first use.

    ``finished`` says that the loader ran out, so that ``samples`` is the whole epoch. ``rounds`` had begun before it.
    ``order`` has a mark per batch, and none for data sets without indices. ``steps`` optimizer steps were made of its
    batches. ``sampler_epoch`` is the epoch that a DistributedSampler was told to be in, None for other samplers, and
    ``sampler_seed`` the seed of one that shuffles, which aligned randomness does without. ``drawn_from`` is equal for passes
    that other shuffling samplers would give the same order without it, None without such a sampler.
    ``shuffled`` is how many samples such a sampler shuffles.
    In a process of several, over a ``Subset``: ``part`` is a digest of its indices, and ``order_in_whole`` has the marks of the
    samples' indices in the set that it is of.
    """

    loader: int
    epoch: int
    batches: int
    samples: int
    finished: bool
    rounds: int = 0
    order: tuple[ReadMark, ...] = ()
    steps: int = 0
    sampler_epoch: int | None = None
    sampler_seed: int | None = None
    drawn_from: str | None = None
    shuffled: int | None = None
    part: str = ""
    order_in_whole: tuple[ReadMark, ...] = ()


@dataclass(frozen=True)
class WorkerStart:
    """A loading worker before its first sample: a digest of each generator's state, and which the samples draw from.

    ``loader`` and ``epoch`` are the order of the loader's first use and the pass the worker was started for.
    Generators are ``torch``, ``numpy.random``, ``random`` and what the data set holds (``dataset.rng``).
    """

    loader: int
    epoch: int
    worker: int
    states: Mapping[str, str]
    drawn: tuple[str, ...]


@dataclass(frozen=True)
class Clip:
    """A call of torch's that clips gradients, ``by`` their "norm" or each "value", for a step behind so many finished ``rounds``.

    ``norm_type`` is None where it is not known. ``acts``: whether they were larger than its limit. They have so many ``elements``,
    and were made of so many ``losses`` by then. ``size`` is what is held against the limit: their norm, or the largest of them.
    """

    by: str
    limit: float
    norm_type: float | None
    rounds: int
    acts: bool
    elements: int = 0
    losses: int = 0
    size: float | None = None


@dataclass(frozen=True)
class Scheduler:
    """A learning-rate scheduler; ``steps`` has for each of its steps the rounds that had begun.

    ``changes`` are those of the steps that changed a learning rate; ``settings`` what it has been given by its first step, as ``repr`` shows it.
    """

    class_name: str
    steps: tuple[int, ...]
    changes: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class CheckpointEntry:
    """A leaf of a saved object: a tensor (``shape``, ``dtype``, ``sha256``), else its type and ``repr`` (cut short).

    ``same_as`` are the parameters and buffers that the last step before left bit for bit as the tensor is; any other is
    kept, as far as there is room, ``stored_as`` that name in :meth:`Observations.saved_tensors`.
    """

    kind: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    sha256: str | None = None
    value: str | None = None
    same_as: tuple[str, ...] = ()
    stored_as: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What ``torch.save`` was given, at a ``path`` where it lay when a step began: relative to the working directory, where
    it lies below it. ``rounds`` had begun when it came there.

    Keys of ``entries`` are the nested keys joined by ``/`` (``model/conv1.weight``). Modules saved whole appear as
    their class (``Net()``) and their state dict; attributes of objects of the script's own by their names (``Net().epochs``).
    """

    path: str
    rounds: int
    entries: Mapping[str, CheckpointEntry]


@dataclass(frozen=True)
class Move:
    """A file renamed, copied (it ``keeps`` the source) or removed (without a ``target``), after so many ``saves``."""

    source: str
    target: str | None
    keeps: bool
    rounds: int
    saves: int


@dataclass(frozen=True)
class WrittenFile:
    """A file, other than by ``torch.save``, that a run made or changed.

    ``path`` is relative to the working directory where it lies below it, ``size`` in bytes; ``kept_as`` is the copy of
    it in the run's folder, None where the content is neither text nor arrays. Of those ``digest`` tells the bytes, unless there are too many; of an exported
    network those of its weights.
    A symbolic link that the run made ``leads_to`` that path. What the options ``blotted`` are told to be in it is no result of the run.
    ``bytes_as`` is the copy of a file of neither text nor arrays, where there was room.
    """

    path: str
    size: int
    kept_as: str | None = None
    digest: str | None = None
    leads_to: str | None = None
    blotted: frozenset[str] = frozenset()
    bytes_as: str | None = None


@dataclass(frozen=True)
class Timing:
    """Wall times in seconds.

    ``startup_seconds``: from the start of the process until training began (the last ``iter(loader)`` before the
    first step, or where there is no loader the building of the optimizer). ``first_round_seconds``: from there to the
    end of the first round's first step, so compilation is in it. ``round_seconds``: the rounds after it, each from
    one step of the first optimizer to its next. ``wait_seconds``: the part of each of those spent inside
    ``iter(loader)`` and ``next(iterator)``. ``synchronised``: after which of ``round_seconds`` (as a count: 0 is
    before the first) the device was waited for; between two of them only the sum is meaningful on a GPU.
    ``interludes``: which of ``round_seconds`` (0 is the first) hold more than a step, because a pass of a loader began in them or
    a module was put into evaluation mode. ``workers``: whether processes of a loader worked beside the script;
    they make as many as ``ahead`` batches before they are asked for. ``processor_seconds``: CPU time of the script and its workers during all ``round_seconds``, None where it is not known.
    ``asynchronous``: whether a device computes beside the script, so that rounds are not told apart. ``turns``: how many of
    the stretches between two of ``synchronised``, from the first on, were turns beside other runs (:mod:`.turn_taking`).
    """

    total_seconds: float
    startup_seconds: float | None = None
    first_round_seconds: float | None = None
    round_seconds: tuple[float, ...] = ()
    wait_seconds: tuple[float, ...] = ()
    synchronised: tuple[int, ...] = ()
    interludes: tuple[int, ...] = ()
    workers: bool = False
    ahead: int = 0
    processor_seconds: float | None = None
    asynchronous: bool = False
    turns: int = 0

    @property
    def spans(self) -> list[range]:
        """The numbers of the rounds between two waits for the device; before the first and after the last is none."""
        edges = sorted(set(self.synchronised))
        return [range(start, end) for start, end in itertools.pairwise(edges)]


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes: on all devices together (None without CUDA), of the process, of its largest worker (if any)."""

    device: int | None = None
    host: int | None = None
    worker: int | None = None


@dataclass(frozen=True)
class Versions:
    """What ran: ``device`` is the name of the CUDA device used (``emulated CUDA device``), or ``cpu``.

    ``gpus`` is how many there were to use, 0 where none was used.
    """

    python: str
    torch: str
    device: str
    gpus: int = 0
