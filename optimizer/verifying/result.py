"""What a verification came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..comparison.seeds import SeedComparison
from ..comparison.verdict import Outcome, Verdict
from ..errors import ExitCode
from ..execution.observations import Observations, Status, Versions
from ..execution.runner import ScriptVersion
from ..measuring.measurement import Measurement
from .settings import VerifySettings


@dataclass(frozen=True)
class ScriptFailure:
    """Why a script's own run failed: its status, exit status and traceback (or the end of its stderr).

    ``timed`` says that it was a timed run, after the observed ones had not failed.
    """

    status: Status
    exit_code: int | None
    details: str
    timed: bool = False


@dataclass(frozen=True)
class Seen:
    """How much of the original's training one observed run covers: what lies beyond was not compared.

    ``samples`` were read from the loaders, ``evaluated`` of them or others passed through a model in eval mode;
    ``checkpoints`` counts calls of ``torch.save``, ``passes`` those begun over the loader that training read most often.
    ``completed`` says that the script came to its own end: nothing lies beyond.
    """

    steps: int
    samples: int
    evaluated: int
    checkpoints: int
    passes: int = 0
    completed: bool = False

    @classmethod
    def of(cls, run: Observations) -> Seen:
        samples = sum(one.samples for one in run.loader_passes)
        passes = Counter(one.loader for one in run.loader_passes if one.steps)
        most = max(passes.values(), default=0)
        completed = run.status is Status.COMPLETED
        return cls(run.rounds, samples, run.eval_samples, len(run.checkpoints), most, completed)


@dataclass(frozen=True)
class VerificationReport:
    """Everything a verification came to.

    ``verdict`` is None when the original itself failed (``original_failure``). ``same_arithmetic`` is the verdict on
    the rewrite with its reduced precision switched off, where there was such a comparison. ``measurement`` is None
    when nothing was timed; ``speed_note`` says why. ``runs`` are all it rests on, those made for an earlier report
    included. ``seeds`` compares the end losses, where several seeds were run.
    """

    original: ScriptVersion
    rewritten: ScriptVersion
    settings: VerifySettings
    versions: Versions | None
    seen: Seen
    runs: int
    verdict: Verdict | None = None
    same_arithmetic: Verdict | None = None
    original_failure: ScriptFailure | None = None
    rewritten_failure: ScriptFailure | None = None
    measurement: Measurement | None = None
    speed_note: str | None = None
    seeds: SeedComparison | None = None


def exit_code(report: VerificationReport) -> ExitCode:
    """5 when the original failed by itself, 3 when not equivalent, 1 when inconclusive, else 0."""
    if report.verdict is None:
        return ExitCode.SCRIPT_FAILED
    return {
        Outcome.EQUIVALENT: ExitCode.OK,
        Outcome.NOT_EQUIVALENT: ExitCode.NOT_EQUIVALENT,
        Outcome.INCONCLUSIVE: ExitCode.FINDINGS,
    }[report.verdict.outcome]
