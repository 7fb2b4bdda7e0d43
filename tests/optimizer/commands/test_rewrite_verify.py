"""``torchopt rewrite --verify``, with verifications made up; see test_rewrite_verify_runs.py for real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion
from torchopt_cli.optimizer.measuring import ablation
from torchopt_cli.optimizer.measuring.measurement import Measurement, TimedRun, compare_speeds
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying import verified_rewrite
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns
from torchopt_cli.optimizer.verifying.result import ScriptFailure, Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import Progress

Project = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
SCHEMA = Path(__file__).parents[3] / "docs" / "rewrite.schema.json"
FAILED = ScriptFailure(Status.FAILED, 1, "Traceback: it has failed")
LOSS = Finding(Kind.LOSS, "loss 1.5 instead of 1.4", step=2, original=1.4, rewritten=1.5)


@dataclass
class Engine:
    """Stands in for the verification: what holds one of ``wrong`` is not equivalent, or the original fails."""

    wrong: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    original_fails: bool = False
    measurement: Measurement | None = None
    asked: list[tuple[ScriptVersion, ScriptVersion, VerifySettings]] = field(default_factory=list)

    def verify(
        self,
        original: OriginalRuns,
        rewritten: ScriptVersion,
        settings: VerifySettings,
        progress: Callable[[Progress], None],
    ) -> VerificationReport:
        self.asked.append((original.version, rewritten, settings))
        progress(Progress(0, 3, "original"))
        text = "".join(rewritten.overrides.values())
        outcome, findings = Outcome.EQUIVALENT, ()
        if any(word in text for word in self.wrong):
            outcome, findings = Outcome.NOT_EQUIVALENT, (LOSS,)
        elif any(word in text for word in self.inconclusive):
            outcome = Outcome.INCONCLUSIVE
        return VerificationReport(
            original.version,
            rewritten,
            settings,
            None,
            Seen(3, 3, 0, 0),
            3,
            verdict=None
            if self.original_fails
            else Verdict(outcome, Tier.EXACT, None, "the reason", findings),
            original_failure=FAILED if self.original_fails else None,
            measurement=self.measurement,
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(verified_rewrite, "verify_against", engine.verify)
    return engine


def test_what_was_verified_is_written(project: Project, header: str, engine: Engine) -> None:
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", "train.py", "--verify", "--", "-v"]) == 0
    assert (folder / "train.py").read_text() == header + "fast()\n"
    ((original, rewritten, settings),) = engine.asked
    assert original.args == rewritten.args == ("-v",)
    assert settings.tier is Tier.EXACT


def test_what_is_wrong_is_rolled_back_and_said(
    project: Project, header: str, engine: Engine, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\nbold()\n"})
    engine.wrong = ("bolder()\n",)
    assert main(["rewrite", "train.py", "--verify", "--tier", "semantic"]) == 0
    assert (folder / "train.py").read_text() == header + "fast()\nbold()\n"
    out, err = capsys.readouterr()
    assert out.startswith("Rolled back: bold-to-bolder (not equivalent): the reason\n")
    assert "  train.py:11 bold-to-bolder: calls bolder()\n       11 | bold()\n" in out
    assert "train.py: verified, without bold-to-bolder (" in out
    assert "please report it" in out
    assert "1 file rewritten: 1 change" in out
    assert err == ""


def test_nothing_equivalent_leaves_the_original(
    project: Project, header: str, engine: Engine, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\nbold()\n"})
    engine.wrong = ("\nfast()", "\nbolder()")
    flags = ["--verify", "--tier", "semantic"]
    assert main(["rewrite", "train.py", *flags]) == 3
    assert main(["rewrite", "train.py", *flags, "-o", "out.py"]) == 3
    assert (folder / "train.py").read_text() == header + "slow()\nbold()\n"
    assert not (folder / "out.py").exists()
    assert "train.py: left as it was" in capsys.readouterr().out


@pytest.mark.parametrize(("fails", "code"), [(True, 5), (False, 1)])
def test_an_original_that_shows_nothing_is_left(
    project: Project, header: str, engine: Engine, capsys: Capture, fails: bool, code: int
) -> None:
    folder = project({"train.py": "slow()\n"})
    engine.original_fails, engine.inconclusive = fails, ("fast()",)
    assert main(["rewrite", "train.py", "--verify"]) == code
    assert (folder / "train.py").read_text() == header + "slow()\n"
    out = capsys.readouterr().out
    assert "train.py: left as it was" in out
    assert ("it has failed" in out) is fails


def test_scripts_are_verified_apart_and_those_that_share_a_changed_module_together(
    project: Project, header: str, engine: Engine
) -> None:
    folder = project(
        {
            "a.py": "import shared\nslow()\n",
            "b.py": "import shared\nbold()\n",
            "shared.py": "slow()\n",
            "alone.py": "slow()\nbold()\n",
        }
    )
    engine.wrong = ("import shared\nbolder()\n",)
    names = ["a.py", "b.py", "alone.py"]
    assert main(["rewrite", *names, "--verify", "--tier", "semantic"]) == 0
    texts = {name: (folder / name).read_text().removeprefix(header) for name in names}
    assert texts == {
        "a.py": "import shared\nfast()\n",
        "b.py": "import shared\nbold()\n",
        "alone.py": "fast()\nbolder()\n",
    }
    assert (folder / "shared.py").read_text() == header + "fast()\n"


def test_one_script_of_which_nothing_is_left_does_not_keep_the_others(
    project: Project, header: str, engine: Engine
) -> None:
    folder = project({"good.py": "slow()\n", "bad.py": "slow()\n\n"})
    engine.wrong = ("fast()\n\n",)
    assert main(["rewrite", "good.py", "bad.py", "--verify"]) == 3
    assert (folder / "good.py").read_text() == header + "fast()\n"
    assert (folder / "bad.py").read_text() == header + "slow()\n\n"


def test_stdout_is_kept_for_the_diff(project: Project, engine: Engine, capsys: Capture) -> None:
    project({"train.py": "slow()\nbold()\n"})
    engine.wrong = ("bolder()\n",)
    assert main(["rewrite", "train.py", "--verify", "--tier", "semantic", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--- a/train.py\n")
    assert "fast()" in out
    assert "bolder()" not in out.replace("def bolder()", "")
    assert "Rolled back: bold-to-bolder" in err


def test_json_tells_it_all(project: Project, engine: Engine, capsys: Capture) -> None:
    project({"train.py": "slow()\nbold()\n"})
    engine.wrong = ("bolder()\n",)
    flags = ["--verify", "--tier", "semantic", "--format", "json"]
    assert main(["rewrite", "train.py", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert [change["transform"] for change in document["files"][0]["changes"]] == ["slow-to-fast"]
    (verification,) = document["verification"]
    assert verification["reports"][0]["outcome"] == "equivalent"
    del verification["reports"]
    assert verification == {
        "scripts": ["train.py"],
        "ending": "verified",
        "gave_up": False,
        "rolled_back": [
            {
                "transform": "bold-to-bolder",
                "together_with": [],
                "dependent": [],
                "outcome": "not equivalent",
                "reason": "the reason",
                "finding": {
                    "kind": "loss",
                    "severity": "failure",
                    "message": "loss 1.5 instead of 1.4",
                    "step": 2,
                    "tensor": None,
                    "original": 1.4,
                    "rewritten": 1.5,
                },
                "failure": None,
                "changes": [
                    {
                        "path": "train.py",
                        "line": 11,
                        "end_line": 11,
                        "message": "calls bolder()",
                        "source": ["bold()"],
                    }
                ],
            }
        ],
        "verifications": 4,
        "runs": 4,
        "attribution": [],
        "error": None,
    }


def test_what_is_left_is_attributed(
    project: Project, engine: Engine, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is timed from the original to what is left, without what was rolled back."""
    folder = project({"train.py": "slow()\nbold()\n"})
    timed = TimedRun(Timing(1.0, 0.5, 0.2, (0.1,) * 20, (0.0,) * 20))
    engine.measurement = compare_speeds([timed, timed], [timed, timed])
    engine.wrong = ("bolder()\n",)
    versions: list[str] = []

    def timing(version: ScriptVersion, settings: RunSettings, place: Path) -> Observations:
        text = version.overrides.get(folder / "train.py", "slow()\nbold()\n")
        versions.append(" ".join(text.splitlines()[-2:]))
        seconds = 0.05 if "fast()\n" in text else 0.1
        return Observations(
            *(place, Status.STOPPED, 0, None, "", "", False, False, 21, True),
            Timing(1.0, 0.5, 0.2, (seconds,) * 20, (0.0,) * 20),
        )

    monkeypatch.setattr(ablation, "run", timing)
    flags = ["--verify", "--attribute", "--tier", "semantic", "--format", "json"]
    assert main(["rewrite", "train.py", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    ((attribution,),) = (part["attribution"] for part in document["verification"])
    assert [gain["transforms"] for gain in attribution["gains"]] == [["slow-to-fast"]]
    assert attribution["gains"][0]["pays"]
    assert versions[:4] == ["slow() bold()", "fast() bold()", "fast() bold()", "slow() bold()"]


def test_check_speaks_of_what_is_left(project: Project, engine: Engine) -> None:
    project({"train.py": "slow()\nbold()\n"})
    engine.wrong = ("bolder()\n",)
    flags = ["--verify", "--tier", "semantic", "--check"]
    assert main(["rewrite", "train.py", *flags]) == 1


def test_what_did_not_change_is_not_run(project: Project, engine: Engine) -> None:
    project({"train.py": "fast()\n"})
    assert main(["rewrite", "train.py", "--verify"]) == 0
    assert engine.asked == []


def test_what_cannot_be_compared_is_one_line(
    project: Project, header: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> VerificationReport:
        raise TorchoptError("nothing to compare", Path("train.py"))

    monkeypatch.setattr(verified_rewrite, "verify_against", nothing)
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", "train.py", "--verify"]) == 2
    assert capsys.readouterr() == ("", "train.py: nothing to compare\n")
    assert (folder / "train.py").read_text() == header + "slow()\n"
