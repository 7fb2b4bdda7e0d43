"""The checker is checked: wrong rewrites of the corpus are caught, correct ones raise no alarm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying.result import Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings

from . import cases as patches
from .cases import HERE, BadCase, Case, cases, read
from .score import Laboratory, complaint, score_script
from .warm import warm_interpreter

NIGHTLY = bool(os.environ.get("TORCHOPT_NIGHTLY"))
SCRIPTS = sorted({case.script for case in cases("*")})
FEW = {
    "mlp_many_steps": (
        "mutants/mlp_many_steps/bf16-hides-smoothing",
        "mutants/mlp_many_steps/test-in-train-mode",
        "controls/mlp_many_steps/sums-on-device",
    ),
    "by_hand": (
        "mutants/by_hand/penalty-on-biases",
        "mutants/by_hand/history-of-last",
        "controls/by_hand/foreach",
    ),
}
"""Both tiers, hidden under autocast and not, found by numbers and by structure; the second script is left to the slow tests."""

REQUIRED = frozenset(
    """
    accumulation autograd checkpoints compile data device distributed evaluation gradients kernels loss modes normalization
    optimizer output precision schedule
    """.split()
)
"""Classes that neither the mutants nor the controls may lose."""


@pytest.fixture(scope="module")
def lab(warm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    return Laboratory(warm_python, tmp_path_factory.mktemp("lab"))


@pytest.mark.torch
@pytest.mark.parametrize(
    "script", ["mlp_many_steps", pytest.param("by_hand", marks=pytest.mark.slow)]
)
def test_a_few_of_both(lab: Laboratory, script: str) -> None:
    wanted = [read(HERE / f"{name}.patch") for name in FEW[script]]
    results = score_script(lab, script, wanted, [0])
    assert [result.complaint for result in results] == [None] * len(wanted)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not NIGHTLY, reason="hours; run by make test-nightly and make mutants")
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_mutant_and_control_on_three_seeds(lab: Laboratory, script: str) -> None:
    wanted = [case for case in cases("*") if case.script == script]
    results = score_script(lab, script, wanted, [0, 1, 2])
    assert [f"{r.case}: {r.complaint}" for r in results if not r.right] == []


def test_there_are_enough_of_every_class() -> None:
    found = cases("*")
    wrong, right = ([case for case in found if case.wrong is side] for side in (True, False))
    assert len([case for case in wrong if case.unseen is None]) >= 40
    assert len(right) >= 40
    assert {case.group for case in found} >= REQUIRED
    assert len([case for case in wrong if case.unseen is not None]) < 3
    for script, group in groupby(found, lambda case: case.script):
        assert sum(case.wrong for case in group) >= 3, script


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_patch_fits(script: str) -> None:
    for case in cases(f"*/{script}/*"):
        if case.select is None:
            for path, text in case.changed().items():
                compile(text, path.name, "exec")


def write(folder: Path, text: str) -> Path:
    path = folder / "mutants" / "vae" / "made-up.patch"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


DIFF = """
--- a/train.py
+++ b/train.py
@@ -1,1 +1,1 @@
-this line was never there
+nor this one
"""


def test_a_stale_patch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "HERE", tmp_path)
    path = write(tmp_path, "Class: loss\nWhy: no reason\nFindings: loss\n" + DIFF)
    with pytest.raises(BadCase, match=r"made-up\.patch: does not fit corpus/vae any more"):
        read(path).changed()


@pytest.mark.parametrize(
    "header",
    [
        "Class: loss\nWhy: says no finding\n",
        "Class: loss\nFindings: loss\n",
        "Class: loss\nWhy: a typo\nFindings: los\n",
        "Class: loss\nWhy: a typo\nFindings: loss\nBasis: x\n",
        "Class: loss\nWhy: a typo\nFindings: loss\nTier: nummeric\n",
    ],
)
def test_a_wrong_header_is_refused(
    header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "HERE", tmp_path)
    with pytest.raises(BadCase):
        read(write(tmp_path, header + DIFF))


def report(outcome: Outcome, *findings: Finding) -> VerificationReport:
    version = ScriptVersion(Path("train.py"))
    reason = findings[0].message if findings else "fine"
    verdict = Verdict(outcome, Tier.NUMERIC, None, reason, findings)
    settings = VerifySettings(Path("python"), Path())
    return VerificationReport(version, version, settings, None, Seen(1, 0, 0, 0), 3, verdict)


def made(wrong: bool, **facts: object) -> Case:
    kind = "mutants" if wrong else "controls"
    fields: dict[str, object] = {"findings": frozenset({Kind.LOSS}), "step": 2, **facts}
    return Case(
        HERE / kind / "vae" / "a.patch", "vae", wrong, "loss", "why", Tier.NUMERIC, **fields
    )  # type: ignore[arg-type]


def test_what_counts_as_caught() -> None:
    mutant = made(wrong=True)
    seen = Finding(Kind.LOSS, "loss 2, not 1", step=2)
    assert complaint(mutant, report(Outcome.NOT_EQUIVALENT, seen)) is None
    assert "missed" in str(complaint(mutant, report(Outcome.EQUIVALENT)))
    assert "missed" in str(complaint(mutant, report(Outcome.INCONCLUSIVE)))
    late = Finding(Kind.LOSS, "loss 2, not 1", step=3)
    assert "later than step 2" in str(complaint(mutant, report(Outcome.NOT_EQUIVALENT, late)))
    other = Finding(Kind.STDOUT, "another line", step=1)
    assert "another reason" in str(complaint(mutant, report(Outcome.NOT_EQUIVALENT, other)))


def test_what_counts_as_a_false_alarm() -> None:
    control = made(wrong=False)
    assert complaint(control, report(Outcome.EQUIVALENT)) is None
    for outcome in (Outcome.INCONCLUSIVE, Outcome.NOT_EQUIVALENT):
        assert "false alarm" in str(complaint(control, report(outcome, Finding(Kind.LOSS, "x"))))


def test_what_cannot_be_seen_is_told_when_it_is_seen() -> None:
    mutant = made(wrong=True, unseen="a race")
    seen = Finding(Kind.LOSS, "loss 2, not 1", step=1)
    assert "seen after all" in str(complaint(mutant, report(Outcome.NOT_EQUIVALENT, seen)))


def test_a_warm_interpreter_runs_programs_as_python_does(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, beside, torch\n"
        "print(__name__, sys.argv[1:], os.getcwd(), os.environ['GIVEN'], beside.VALUE)\n"
        "print('on stderr', file=sys.stderr)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    with warm_interpreter() as python:
        ran = [
            subprocess.run(
                [str(interpreter), str(program), "3", "x"],
                cwd=tmp_path,
                env={**os.environ, "GIVEN": "given"},
                capture_output=True,
                text=True,
                check=False,
            )
            for interpreter in (sys.executable, python)
        ]
    assert ran[0].returncode == ran[1].returncode == 3
    assert ran[0].stdout == ran[1].stdout
    # Libraries that are imported beforehand may have a word of their own at exit.
    assert ran[1].stderr.startswith(ran[0].stderr)


def test_what_a_warm_interpreter_runs_ends_with_the_process_that_asked_for_it(
    tmp_path: Path,
) -> None:
    told = tmp_path / "pid"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "place.with_suffix('.new').write_text(str(os.getpid()))\n"
        "place.with_suffix('.new').rename(place)\n"
        "time.sleep(600)\n"
    )
    asks = (
        "import subprocess, sys\n"
        "from tests.verification.warm import warm_interpreter\n"
        "with warm_interpreter() as python:\n"
        "    subprocess.run([str(python), *sys.argv[1:]])\n"
    )
    root = Path(__file__).parents[2]
    asking = subprocess.Popen([sys.executable, "-c", asks, str(program), str(told)], cwd=root)
    try:
        assert within(120.0, told.exists)
    finally:
        asking.kill()
        asking.wait()
    assert within(60.0, lambda: not Path("/proc", told.read_text()).exists())


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    """Whether that happens in time."""
    ends = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True
