from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import ExitCode
from torchopt_cli.optimizer.execution.observations import Status
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying import report as verification_report
from torchopt_cli.optimizer.verifying import verification
from torchopt_cli.optimizer.verifying.result import ScriptFailure, Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings

Project = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
FAILED = ScriptFailure(Status.FAILED, 1, "Traceback: it has failed")


@dataclass
class Engine:
    """Stands in for the verification: remembers what it was asked, answers with ``code``."""

    code: ExitCode = ExitCode.OK
    asked: list[tuple[ScriptVersion, ScriptVersion, VerifySettings]] = field(default_factory=list)

    def verify(
        self,
        original: ScriptVersion,
        rewritten: ScriptVersion,
        settings: VerifySettings,
        progress: object = None,
    ) -> VerificationReport:
        self.asked.append((original, rewritten, settings))
        return VerificationReport(
            original, rewritten, settings, None, Seen(3, 3, 0, 0), 3, original_failure=FAILED
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(verification, "verify", engine.verify)
    monkeypatch.setattr(verification_report, "exit_code", lambda _: engine.code)
    return engine


def test_a_script_is_rewritten_in_memory_first(
    project: Project, header: str, engine: Engine
) -> None:
    folder = project({"train.py": "import model\nslow()\nbold()\n", "model.py": "slow()\n"})
    arguments = ["--dry-run", "-x", "--steps", "5"]
    assert main(["verify", "train.py", "--steps", "7", "--", *arguments]) == 0
    ((original, rewritten, settings),) = engine.asked
    assert original == ScriptVersion(folder / "train.py", {}, tuple(arguments))
    assert rewritten.entry == folder / "train.py"
    assert rewritten.args == tuple(arguments)
    assert rewritten.overrides == {
        folder / "train.py": header + "import model\nfast()\nbold()\n",
        folder / "model.py": header + "fast()\n",
    }
    assert (settings.steps, settings.tier, settings.cwd) == (7, Tier.EXACT, folder)
    assert (folder / "model.py").read_text() == header + "slow()\n"


def test_it_is_judged_at_the_highest_tier_that_was_applied(
    project: Project, engine: Engine
) -> None:
    project({"train.py": "slow()\nbold()\n"})
    main(["verify", "train.py", "--tier", "semantic"])
    main(["verify", "train.py", "--tier", "numeric"])
    assert [settings.tier for *_, settings in engine.asked] == [Tier.SEMANTIC, Tier.EXACT]


def test_nothing_to_rewrite_is_not_run(project: Project, engine: Engine, capsys: Capture) -> None:
    project({"train.py": "fast()\n"})
    assert main(["verify", "train.py"]) == 0
    assert capsys.readouterr().out == "train.py: nothing to rewrite\n"
    assert engine.asked == []


def test_a_given_rewrite_is_judged_by_what_holds_unless_told(
    project: Project, engine: Engine
) -> None:
    folder = project({"train.py": "slow()\n", "fast.py": "fast()\n"})
    assert main(["verify", "train.py", "fast.py"]) == 0
    assert main(["verify", "train.py", "fast.py", "--tier", "exact"]) == 0
    assert [settings.tier for *_, settings in engine.asked] == [None, Tier.EXACT]
    train, fast = folder / "train.py", folder / "fast.py"
    assert engine.asked[0][1] == ScriptVersion(train, {train: fast.read_text()}, brought_by=fast)


def test_a_rewrite_elsewhere_takes_the_place_of_the_original(
    project: Project, header: str, engine: Engine
) -> None:
    folder = project(
        {"a/train.py": "import model\n", "a/model.py": "", "b/train.py": "import model\nfast()\n"}
    )
    assert main(["verify", "a/train.py", "b/train.py", "--", "-v"]) == 0
    text = header + "import model\nfast()\n"
    train = folder / "a" / "train.py"
    assert engine.asked[0][:2] == (
        ScriptVersion(train, {}, ("-v",)),
        ScriptVersion(train, {train: text}, ("-v",), brought_by=folder / "b" / "train.py"),
    )


def test_every_setting_reaches_the_engine(project: Project, engine: Engine) -> None:
    project({"train.py": "slow()\n", "pyproject.toml": "[tool.torchopt]\nseed = 5\nsteps = 9\n"})
    flags = ["--steps", "4", "--timeout", "2.5", "--no-timing", "--repeats", "2"]
    assert main(["verify", "train.py", *flags, "--python", sys.executable]) == 0
    ((*_, settings),) = engine.asked
    assert settings == VerifySettings(
        Path(os.path.abspath(sys.executable)),
        Path.cwd(),
        Tier.EXACT,
        steps=4,
        seed=5,
        timeout_s=2.5,
        pairs=2,
        measure_speed=False,
    )


@pytest.mark.parametrize("code", [ExitCode.NOT_EQUIVALENT, ExitCode.SCRIPT_FAILED])
def test_the_report_decides_the_exit_status(
    project: Project, engine: Engine, capsys: Capture, code: ExitCode
) -> None:
    project({"train.py": "slow()\n"})
    engine.code = code
    assert main(["verify", "train.py"]) == code
    assert "Traceback: it has failed" in capsys.readouterr().out


def test_json(project: Project, engine: Engine, capsys: Capture) -> None:
    project({"train.py": "slow()\n"})
    assert main(["verify", "train.py", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert isinstance(json.loads(out), dict)
    assert err == "Traceback: it has failed\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--attribute", "--no-timing"], "--attribute measures speed"),
        (["other.py", "--attribute"], "leave out REWRITTEN"),
    ],
)
def test_attribution_needs_a_rewrite_of_ours_and_timing(
    project: Project, engine: Engine, capsys: Capture, flags: list[str], words: str
) -> None:
    project({"train.py": "slow()\n", "other.py": "fast()\n"})
    assert main(["verify", "train.py", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert engine.asked == []


@pytest.mark.parametrize(
    "names", [["bad.py"], ["train.py", "bad.py"], ["no.py"], ["bad.py", "no.py"]]
)
def test_unreadable_input_is_one_line(
    project: Project, engine: Engine, capsys: Capture, names: list[str]
) -> None:
    folder = project({"train.py": "slow()\n"})
    (folder / "bad.py").write_text("def f(:\n")
    assert main(["verify", *names]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(("bad.py:1:", "no.py: no such file"))
    assert engine.asked == []


TRAINING = """
import sys

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))


def step(scale):
    optimizer.zero_grad()
    loss = (model(torch.ones(2, 4)) * scale).pow(2).mean()
    loss.backward()
    optimizer.step()


for _ in range(3):
    step(1.0)
"""


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("rewritten", "arguments", "code", "words"),
    [
        (TRAINING, [], 5, "IndexError: list index out of range"),
        slow(TRAINING, ["0.1"], 0, "Equivalent (exact)"),
        slow(TRAINING.replace("(1.0)", "(2.0)"), ["0.1"], 3, "Not equivalent"),
        slow(TRAINING.replace("step(1.0)", "raise RuntimeError"), ["0.1"], 3, "RuntimeError"),
    ],
)
def test_verifying_for_real(
    project: Project,
    capsys: Capture,
    warm_python: Path,
    rewritten: str,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    project({"train.py": TRAINING, "fast.py": rewritten})
    flags = ["--steps", "3", "--no-timing", "--tier", "exact"]
    flags += ["--python", str(warm_python)]
    assert main(["verify", "train.py", "fast.py", *flags, "--", *arguments]) == code
    assert words in capsys.readouterr().out
