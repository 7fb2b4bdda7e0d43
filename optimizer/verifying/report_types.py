"""The types of a verification as JSON: :class:`ReportJson`, whose schema is ``docs/verify-report.schema.json``.

Their docstrings are the descriptions in the schema: they are written for its readers.
"""

from __future__ import annotations

from typing import TypedDict


class ScriptJson(TypedDict):
    """A version of the script: its path, its arguments, and the files that stand in for those on disk.

    ``processes`` are as many as torchrun has started; null without torchrun.
    """

    path: str
    args: list[str]
    overridden: list[str]
    processes: int | None


class RunJson(TypedDict):
    """What was run, ``runs`` runs in all, and how much of the original's training one observed run covers.

    It has ``steps`` optimizer steps; ``samples`` were read from the loaders, ``evaluated`` of them or others went through a
    network in eval mode; ``checkpoints`` counts calls of ``torch.save``, ``passes`` those begun over the loader that training
    read most often. ``completed`` says that the script came to its own end: nothing lies beyond. ``emulated``: the CUDA
    device was one emulated on the CPU.
    """

    device: str | None
    emulated: bool
    torch: str | None
    python: str | None
    interpreter: str
    cwd: str
    steps: int
    samples: int
    evaluated: int
    checkpoints: int
    passes: int
    completed: bool
    seed: int
    runs: int


class FindingJson(TypedDict):
    """One difference between the runs, or one limit of what could be compared.

    ``severity``: a ``failure`` makes the versions not equivalent, a ``note`` decides nothing. ``step`` is the optimizer step
    it was first seen at, counted from 1; ``tensor`` the parameter, buffer, key of a state dict or file it is about.
    ``original`` and ``rewritten`` are what each run showed, in the unit that ``message`` names.
    """

    kind: str
    severity: str
    message: str
    step: int | None
    tensor: str | None
    original: str | float | int | None
    rewritten: str | float | int | None


class StepJson(TypedDict):
    """One call of ``optimizer.step()`` in both runs.

    ``step`` counts from 1; the steps that several optimizers (``optimizer``, from 0) make on one batch have the same
    number. ``loss`` and ``rewritten_loss`` are sums over the backward passes of the step, null where there were none.
    ``allowed`` is the largest difference of the losses that passes; 0 where they are compared bit for bit. ``grad_norm``
    and ``rewritten_grad_norm`` are the norms of all gradients together.
    """

    step: int
    optimizer: int
    loss: float | None
    rewritten_loss: float | None
    allowed: float | None
    grad_norm: float | None
    rewritten_grad_norm: float | None


class VectorJson(TypedDict):
    """Many tensors taken as one vector: an optimizer's first gradient, or how far its parameters have moved.

    ``what`` says which of the two, ``group`` whose (``optimizer 0``), ``round`` in which step, from 0. ``distance``, between
    the versions, and ``allowed`` are relative to the original's length; ``norm_ratio`` is the rewritten length over the
    original's; ``cosine`` is that of the angle between the two, ``neighbour_cosine`` the lowest between the original and
    runs of it whose numbers were rounded otherwise, null where there was no such run.
    """

    what: str
    group: str
    round: int
    cosine: float | None
    neighbour_cosine: float | None
    norm_ratio: float | None
    distance: float | None
    allowed: float | None


class ArithmeticJson(TypedDict):
    """The verdict on the rewrite with its reduced precision switched off."""

    outcome: str
    reason: str


class FailureJson(TypedDict):
    """A script that failed: ``script`` is ``original`` or ``rewritten``; ``details`` its traceback."""

    script: str
    status: str
    exit_code: int | None
    details: str


class VersionSpeedJson(TypedDict):
    """The speed of one version over its ``runs``; times are in seconds, peaks of memory in bytes.

    ``step_seconds`` is a step; ``round_seconds`` one with its part of ``interlude_seconds``, which is what an evaluation or the
    start of an epoch takes beyond a step, and comes every ``interlude_rounds``, both null where the runs are too short to tell.
    ``first_round_seconds`` is the first step of the first run, with nothing compiled before; ``warm_first_round_seconds``
    the median of that of the later runs. ``warm_up_rounds`` are the steps left out at the start, the most of any run;
    ``settled`` says that step times no longer changed behind them. ``data_wait_share`` is the part of the time in which
    the training waited for data.
    """

    step_seconds: float | None
    round_seconds: float | None
    interlude_seconds: float | None
    interlude_rounds: float | None
    samples_per_second: float | None
    startup_seconds: float | None
    first_round_seconds: float | None
    warm_first_round_seconds: float | None
    warm_up_rounds: int
    settled: bool
    data_wait_share: float | None
    device_memory: int | None
    host_memory: int | None
    runs: int


class SpeedJson(TypedDict):
    """How much faster the rewritten version is: ``factor`` is original over rewritten time.

    [``low``, ``high``] is its 95 % interval. ``verdict``: ``faster``, ``slower`` or ``too noisy to tell``.
    ``break_even_rounds`` is the number of steps after which the gain has made up for a longer start, null where it never does.
    """

    verdict: str
    factor: float | None
    low: float | None
    high: float | None
    break_even_rounds: int | None
    original: VersionSpeedJson
    rewritten: VersionSpeedJson


class SeedPairJson(TypedDict):
    """The end losses of both versions with one seed."""

    seed: int
    original: float | None
    rewritten: float | None


class EndLossJson(TypedDict):
    """The losses at the end of one optimizer's steps, over the seeds; ``verdict``: ``no worse``, ``worse`` or ``cannot tell``.

    ``difference`` is the mean of rewritten minus original, [``low``, ``high``] its one-sided 95 % limits. ``high`` has to be below
    ``margin`` to be no worse, ``low`` above ``worse_from`` to be worse; ``two_sided`` says that a lower loss counts as well.
    """

    optimizer: int
    verdict: str
    two_sided: bool
    difference: float | None
    low: float | None
    high: float | None
    margin: float | None
    worse_from: float | None
    pairs: list[SeedPairJson]


class SeedsJson(TypedDict):
    """The losses at the end over several seeds, each the mean of the last ``smoothed`` steps."""

    verdict: str
    reason: str
    smoothed: int
    ends: list[EndLossJson]


class ReportJson(TypedDict):
    """One verification. ``outcome``: ``equivalent``, ``not equivalent``, ``inconclusive`` or ``original failed``.

    ``reason`` says why, in one line, and ``exit_code`` is the command's. ``tier`` is how far numbers were allowed to differ,
    ``precision`` the coarsest type that the rewrite computes in (null where all is compared bit for bit). ``speed_note`` says why
    there is no ``speed``.
    """

    schema: int
    outcome: str
    exit_code: int
    reason: str
    tier: str | None
    precision: str | None
    original: ScriptJson
    rewritten: ScriptJson
    run: RunJson
    findings: list[FindingJson]
    steps: list[StepJson]
    vectors: list[VectorJson]
    same_arithmetic: ArithmeticJson | None
    failure: FailureJson | None
    speed: SpeedJson | None
    speed_note: str | None
    seeds: SeedsJson | None
