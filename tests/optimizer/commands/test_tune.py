"""``torchopt tune`` from the command line, with runs, profile and verification made up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from torchopt_cli.optimizer import gpus
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.errors import ExitCode
from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion
from torchopt_cli.optimizer.measuring.measurement import TimedRun, compare_speeds
from torchopt_cli.optimizer.options import Options, Target, Tier
from torchopt_cli.optimizer.profiling.profile import StepProfile
from torchopt_cli.optimizer.tuning import tune as module
from torchopt_cli.optimizer.tuning.tune import Tuned
from torchopt_cli.optimizer.verifying.result import Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import Progress
from torchopt_cli.optimizer.verifying.verified_rewrite import Ending, Rewrite, VerifiedRewrite

Project = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def timed_pair(log_speedup: float) -> tuple[TimedRun, TimedRun]:
    seconds = (0.1, 0.1 / math.exp(log_speedup))
    ours, theirs = (TimedRun(Timing(9.0, 1.0, 0.5, (s,) * 30, (0.0,) * 30)) for s in seconds)
    return ours, theirs


class Machine:
    """Runs the script ``factor`` times as fast where it calls ``fast()``; interrupted after ``runs_left`` runs."""

    def __init__(self) -> None:
        self.factor = 2.0
        self.runs = 0
        self.runs_left = 10_000
        self.status = Status.STOPPED
        self.ending = Ending.VERIFIED
        self.profiled = 0
        self.timeouts: list[float] = []
        self.noise = 0.001
        self.verification = [math.log(2.0)] * 3

    def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        if self.runs_left == 0:
            raise KeyboardInterrupt
        self.runs, self.runs_left = self.runs + 1, self.runs_left - 1
        self.timeouts.append(settings.timeout_s)
        fast = any("\nfast()" in text for text in version.overrides.values())
        seconds = 0.1 * (1 + self.noise * (self.runs % 3)) / (self.factor if fast else 1.0)
        return Observations(
            folder=folder,
            status=self.status,
            exit_code=1,
            traceback="Traceback\nValueError: no data\n",
            stdout="",
            stderr="",
            stdout_cut=False,
            stderr_cut=False,
            rounds=30,
            optimizer_seen=True,
            timing=Timing(9.0, 1.0, 0.5, (seconds,) * 30, (0.0,) * 30),
        )

    def profile(self, *_: object) -> StepProfile:
        self.profiled += 1
        return StepProfile(None, 50, 0.1, None, (), (), (), None, None, None, None, None)

    def verified_rewrite(
        self,
        rewrite: Rewrite,
        transforms: Sequence[str],
        settings: VerifySettings,
        arguments: tuple[str, ...],
        tell: Callable[[str, Progress], None],
    ) -> VerifiedRewrite:
        tell("1 of 1 transforms", Progress(0, 3, "original"))
        rewritten = rewrite(frozenset())
        scripts = tuple(result.entry for result in rewritten.results)
        version = ScriptVersion(scripts[0])
        report = VerificationReport(
            version,
            version,
            settings,
            None,
            Seen(20, 80, 0, 0),
            9,
            Verdict(Outcome.EQUIVALENT, Tier.EXACT, None, "the same", ()),
            measurement=compare_speeds(*zip(*map(timed_pair, self.verification), strict=True)),
        )
        return VerifiedRewrite(scripts, rewritten, (report,), self.ending, (), 9, 1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    for name in ("run", "profile", "verified_rewrite"):
        monkeypatch.setattr(module, name, getattr(machine, name))
    monkeypatch.setattr(gpus, "visible_gpus", lambda _: ("0",))
    return machine


def test_the_winner_is_written_and_attributed(
    project: Project, header: str, machine: Machine, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\n"})
    assert main(["tune", "train.py"]) == ExitCode.OK
    assert (folder / "train.py").read_text() == header + "fast()\n"
    printed = capsys.readouterr()
    assert "+ slow-to-fast" in printed.out
    assert "adopted" in printed.out
    assert "Best: slow-to-fast" in printed.out
    assert printed.out.endswith("Written: train.py\n")
    assert "verifying slow-to-fast" in printed.err
    assert list(folder.iterdir()) == [folder / "train.py"]


def test_nothing_slower_is_written(
    project: Project, header: str, machine: Machine, capsys: Capture
) -> None:
    machine.factor = 0.9
    folder = project({"train.py": "slow()\n"})
    assert main(["tune", "train.py"]) == ExitCode.OK
    assert (folder / "train.py").read_text() == header + "slow()\n"
    assert "best left as it is: nothing that was tried is faster" in capsys.readouterr().out


def test_a_winner_that_is_slower_when_verified_is_not_written(
    project: Project, header: str, machine: Machine, capsys: Capture
) -> None:
    machine.verification = [-0.1, 0.05, -0.1]
    folder = project({"train.py": "slow()\n"})
    assert main(["tune", "train.py"]) == ExitCode.OK
    assert (folder / "train.py").read_text() == header + "slow()\n"
    assert "not shown to be equivalent and faster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verification", "written"), [([0.06, 0.05, 0.07], True), ([0.02, 0.0, -0.02], False)]
)
def test_what_the_search_cannot_tell_is_decided_by_its_verification(
    verification: list[float],
    written: bool,
    project: Project,
    header: str,
    machine: Machine,
    capsys: Capture,
) -> None:
    """Six pairs say 1.05x, give or take a tenth."""
    machine.factor, machine.noise, machine.verification = 1.05, 0.1, verification
    folder = project({"train.py": "slow()\n"})
    assert main(["tune", "train.py"]) == ExitCode.OK
    said = "fast()\n" if written else "slow()\n"
    assert (folder / "train.py").read_text() == header + said
    printed = capsys.readouterr().out
    assert "not paying" in printed
    assert ("Best: slow-to-fast" in printed) is written


def test_nothing_that_is_not_equivalent_is_written(
    project: Project, header: str, machine: Machine, capsys: Capture
) -> None:
    machine.ending = Ending.INCONCLUSIVE
    folder = project({"train.py": "slow()\n"})
    assert main(["tune", "train.py"]) == ExitCode.OK
    assert (folder / "train.py").read_text() == header + "slow()\n"
    assert "was not shown to be equivalent" in capsys.readouterr().out


def test_a_dry_run_shows_the_diff(
    project: Project, header: str, machine: Machine, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\n"})
    assert main(["tune", "train.py", "--dry-run"]) == ExitCode.OK
    assert (folder / "train.py").read_text() == header + "slow()\n"
    printed = capsys.readouterr()
    assert "+fast()\n" in printed.out
    assert "Best: slow-to-fast" in printed.err


@pytest.mark.parametrize(
    ("visible", "flags", "target"),
    [
        ((), [], Target.CPU),
        (("0",), [], Target.AUTO),
        ((), ["--target", "cuda"], Target.CUDA),
        (("0",), ["--target", "cpu"], Target.CPU),
    ],
)
def test_it_is_this_machine_that_is_tuned_for(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    visible: tuple[str, ...],
    flags: list[str],
    target: Target,
) -> None:
    asked: list[Options] = []

    def tune(script: Path, transforms: object, options: Options, *_: object) -> Tuned:
        asked.append(options)
        return Tuned((), None, None, 0.0, 0)

    monkeypatch.setattr(module, "tune", tune)
    monkeypatch.setattr(gpus, "visible_gpus", lambda _: visible)
    project({"train.py": "slow()\n"})
    assert main(["tune", "train.py", *flags]) == ExitCode.OK
    assert [options.target for options in asked] == [target]


def test_an_interrupted_search_goes_on_where_it_was(
    project: Project, machine: Machine, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\n"})
    machine.runs_left = 3
    assert main(["tune", "train.py"]) == 130
    assert "go on with --resume" in capsys.readouterr().err
    assert (folder / ".torchopt-tune-train.json").exists()
    measured, machine.runs_left = machine.runs, 10_000
    assert main(["tune", "train.py", "--resume", "--format", "json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["resumed"] == 2  # the profile and the first pair
    assert machine.profiled == 1
    assert machine.runs - measured == 2 * document["trials"][0]["pairs"] - 2
    assert document["winner"]["transforms"] == ["slow-to-fast"]
    assert document["trials"][0]["speedup"][1] > 1.0
    assert not (folder / ".torchopt-tune-train.json").exists()


def test_a_script_that_fails_by_itself(project: Project, machine: Machine, capsys: Capture) -> None:
    machine.status = Status.FAILED
    project({"train.py": "slow()\n"})
    assert main(["tune", "train.py"]) == ExitCode.SCRIPT_FAILED
    error = capsys.readouterr().err
    assert "ValueError: no data" in error
    assert error.splitlines()[-1] == "train.py: fails by itself"


@pytest.mark.parametrize(
    ("limits", "timeout"),
    [(["--budget", "2"], 120.0), (["--budget", "0.1"], 60.0), (["--timeout", "50"], 100.0)],
)
def test_a_run_ends_with_the_budget(
    project: Project, machine: Machine, capsys: Capture, limits: list[str], timeout: float
) -> None:
    """Both of a pair do: each takes turns with the other, so that its limit is twice its share."""
    machine.status = Status.TIMED_OUT
    project({"train.py": "slow()\n"})
    ending = main(["tune", "train.py", *limits])
    (first, *_) = machine.timeouts
    assert timeout - 5.0 < first <= timeout
    told = capsys.readouterr()
    if "--timeout" in limits:
        assert ending == ExitCode.SCRIPT_FAILED
    else:
        assert ending == ExitCode.OK
        assert "not everything was: give it more time with --budget" in told.out


def test_nothing_to_tune(project: Project, machine: Machine, capsys: Capture) -> None:
    project({"train.py": "fast()\n"})
    assert main(["tune", "train.py"]) == ExitCode.OK
    assert capsys.readouterr().out == "torchopt rewrite would change nothing here.\n"
    assert machine.runs == 0


@pytest.mark.parametrize("budget", ["0", "soon"])
def test_a_budget_that_is_none(project: Project, capsys: Capture, budget: str) -> None:
    project({"train.py": "slow()\n"})
    assert main(["tune", "train.py", "--budget", budget]) == ExitCode.USAGE
    assert "--budget: " in capsys.readouterr().err
