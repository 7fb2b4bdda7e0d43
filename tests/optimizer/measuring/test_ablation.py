"""What each transform buys, with timings made up: the order of the runs, the steps, and what pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.measuring import ablation
from torchopt_cli.optimizer.measuring.ablation import Ablation, measure_gains
from torchopt_cli.optimizer.measuring.ablation_report import render_text, to_json
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.result import AppliedChange, RewriteResult, RewrittenFile
from torchopt_cli.optimizer.pipeline.rewrite import Rewritten
from torchopt_cli.optimizer.rewriting.attribution import Provenance
from torchopt_cli.optimizer.source import SourceFile, Sources
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import Progress

Seconds = Callable[[str, int], float]
"""The step time of a version (the letters of its transforms) in its n-th run."""


@dataclass
class Bench:
    """A script that transforms add a letter to each, timed by ``seconds``."""

    script: Path
    seconds: Seconds
    needs: dict[str, str] = field(default_factory=dict)
    """Transforms that do nothing before another does."""
    fails: str = "-"
    runs: list[str] = field(default_factory=list)
    settings: list[RunSettings] = field(default_factory=list)
    told: list[Progress] = field(default_factory=list)

    def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        letters = version.overrides.get(self.script, "")
        self.runs.append(letters)
        self.settings.append(settings)
        seconds = self.seconds(letters, self.runs.count(letters))
        failed = self.fails in letters
        return Observations(
            folder=folder,
            status=Status.FAILED if failed else Status.STOPPED,
            exit_code=1 if failed else 0,
            traceback="KeyError: 'x'" if failed else None,
            stdout="",
            stderr="",
            stdout_cut=False,
            stderr_cut=False,
            rounds=21,
            optimizer_seen=True,
            timing=Timing(1.0, 0.5, 0.2, (seconds,) * 20, (0.0,) * 20),
        )

    def ablation(self, transforms: Sequence[str], sweeps: int = 3) -> Ablation:
        def rewrite(ignored: frozenset[str]) -> Rewritten:
            active = [name for name in transforms if name not in ignored]
            done = [n for n in active if self.needs.get(n, n) in active]
            source = SourceFile(self.script, "")
            changes = tuple(
                AppliedChange(name, Tier.EXACT, self.script, 1, 1, "does it", "why")
                for name in done
            )
            file = RewrittenFile(source, "".join(done), Provenance.of(""), changes)
            result = RewriteResult(self.script, (file,), Sources())
            return Rewritten((result,), (file,), ())

        settings = VerifySettings(Path("python"), Path("."), pairs=sweeps, timing_seconds=4.0)
        return measure_gains(
            self.script,
            rewrite,
            transforms,
            settings,
            0.1,
            ("-v",),
            lambda what, progress: self.told.append(progress),
        )


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    def make(seconds: Seconds, **changes: object) -> Bench:
        made = replace(Bench(Path("train.py"), seconds), **changes)
        monkeypatch.setattr(ablation, "run", made.run)
        return made

    return make


Make = Callable[..., Bench]


def halves_with_b(letters: str, number: int) -> float:
    return (0.05 if "b" in letters else 0.1) * (1 + 0.001 * number)


def test_versions_are_timed_there_and_back(bench: Make) -> None:
    made = bench(halves_with_b)
    made.ablation("abc")
    there = ["", "a", "ab", "abc"]
    assert made.runs == [*there, *reversed(there), *there]
    assert {how.mode for how in made.settings} == {Mode.TIME}
    assert {how.steps for how in made.settings} == {40}, "4 s at 0.1 s a step"
    assert [p.done for p in made.told] == list(range(12))
    assert {p.total for p in made.told} == {12}


def test_each_is_compared_with_the_version_before_it(bench: Make) -> None:
    found = bench(halves_with_b).ablation("abc")
    assert [gain.transforms for gain in found.gains] == [("a",), ("b",), ("c",)]
    assert [gain.speedup.factor for gain in found.gains] == pytest.approx([1.0, 2.0, 1.0])
    assert [gain.pays for gain in found.gains] == [False, True, False]


def test_what_slows_down_does_not_pay(bench: Make) -> None:
    found = bench(lambda letters, number: 0.2 if "b" in letters else 0.1).ablation("abc")
    (_, slower, _) = found.gains
    assert (slower.speedup.factor, slower.pays) == (0.5, False)


def test_a_gain_that_comes_and_goes_is_not_shown_to_pay(bench: Make) -> None:
    found = bench(
        lambda letters, number: [0.08, 0.12, 0.09][number - 1] if letters else 0.1
    ).ablation("a")
    (gain,) = found.gains
    assert gain.speedup.factor > 1.0
    assert gain.speedup.low < 1.0
    assert not gain.pays


def test_those_that_wait_for_another_are_measured_with_it(bench: Make) -> None:
    made = bench(halves_with_b, needs={"a": "b"})
    found = made.ablation("abc")
    assert [gain.transforms for gain in found.gains] == [("a", "b"), ("c",)]
    assert "a" not in made.runs


def test_a_version_that_fails_ends_it_and_is_named(bench: Make) -> None:
    made = bench(halves_with_b, fails="c")
    found = made.ablation("abc")
    assert found.gains == ()
    assert found.note == "not measured: with c, timed, the script failed: KeyError: 'x'"
    assert made.runs == ["", "a", "ab", "abc"]


def test_one_sweep_shows_nothing(bench: Make) -> None:
    found = bench(halves_with_b).ablation("b", sweeps=1)
    assert not found.gains[0].pays
    (told,) = to_json(found)["gains"]
    assert (told["low"], told["high"], told["pays"]) == (None, None, False)
    assert told["factor"] == pytest.approx(2.0)


def test_text(bench: Make) -> None:
    stream = StringIO()
    render_text(bench(halves_with_b).ablation("ab"), Console(file=stream, width=100))
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert ["a", "1.00x", "1.00", "to", "1.00", "not", "shown", "to", "pay"] in rows
    assert ["b", "2.00x", "2.00", "to", "2.00", "pays"] in rows
