"""Changes of a module that several scripts share, where all of them are rewritten in one run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.verifying import verified_rewrite
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns
from torchopt_cli.optimizer.verifying.result import VerificationReport

from .test_rewrite_verify import Engine, engine  # noqa: F401

Project = Callable[..., Path]

SCRIPT = "from trainer import step\nstep()\n"
FILES = {"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": "def step():\n    slow()\n    bold()\n"}
SEMANTIC = ("--tier", "semantic")


def test_what_all_want_is_written_and_a_second_run_changes_nothing(
    project: Project, header: str
) -> None:
    folder = project(FILES)
    assert main(["rewrite", ".", "--check", *SEMANTIC]) == 1
    assert main(["rewrite", ".", *SEMANTIC]) == 0
    text = (folder / "trainer.py").read_text()
    assert text == header + "def step():\n    fast()\n    bolder()\n"
    assert main(["rewrite", ".", "--check", *SEMANTIC]) == 0


def test_each_script_is_verified_with_it(
    project: Project,
    header: str,
    engine: Engine,  # noqa: F811
) -> None:
    folder = project(FILES)
    assert main(["rewrite", ".", "--verify", *SEMANTIC]) == 0
    text = header + "def step():\n    fast()\n    bolder()\n"
    assert [rewritten.entry.name for _, rewritten, _ in engine.asked] == ["a.py", "b.py"]
    for _, rewritten, settings in engine.asked:
        assert dict(rewritten.overrides) == {folder / "trainer.py": text}
        assert settings.tier.label == "semantic"
    assert (folder / "trainer.py").read_text() == text


def test_what_is_wrong_for_one_script_is_rolled_back_for_all(
    project: Project, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongForB(Engine):
        def verify(
            self, original: OriginalRuns, rewritten: ScriptVersion, *rest: Any
        ) -> VerificationReport:
            self.wrong = ("bolder()\n",) if rewritten.entry.name == "b.py" else ()
            return super().verify(original, rewritten, *rest)

    monkeypatch.setattr(verified_rewrite, "verify_against", WrongForB().verify)
    folder = project(FILES | {"b.py": "slow()\n" + SCRIPT})
    assert main(["rewrite", ".", "--verify", *SEMANTIC]) == 0
    text = (folder / "trainer.py").read_text()
    assert text == header + "def step():\n    fast()\n    bold()\n"
    assert (folder / "b.py").read_text() == header + "fast()\n" + SCRIPT


@pytest.mark.parametrize("fails", [True, False])
def test_a_script_that_shows_nothing_to_compare_holds_up_only_those_it_is_verified_with(
    project: Project,
    header: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails: bool,
) -> None:
    class NothingInB(Engine):
        def verify(
            self, original: OriginalRuns, rewritten: ScriptVersion, *rest: Any
        ) -> VerificationReport:
            in_b = rewritten.entry.name == "b.py"
            if in_b and not fails:
                raise TorchoptError("nothing to compare: no optimizer", rewritten.entry)
            self.original_fails = in_b
            return super().verify(original, rewritten, *rest)

    monkeypatch.setattr(verified_rewrite, "verify_against", NothingInB().verify)
    folder = project(FILES | {"z.py": "slow()\n"})
    assert main(["rewrite", ".", "--verify", *SEMANTIC]) == (5 if fails else 2)
    assert (folder / "trainer.py").read_text() == header + FILES["trainer.py"]
    assert (folder / "z.py").read_text() == header + "fast()\n"
    why = "because b.py fails by itself" if fails else "b.py: nothing to compare: no optimizer"
    out = capsys.readouterr().out
    assert f"a.py, b.py: left as they were{', ' if fails else ': '}{why}" in out


def test_what_ends_all_verification_ends_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(*_: Any) -> VerificationReport:
        raise TorchoptError("no torch")

    monkeypatch.setattr(verified_rewrite, "verify_against", verify)
    project(FILES | {"z.py": "slow()\n"})
    assert main(["rewrite", ".", "--verify"]) == 2
    assert capsys.readouterr().err == "torchopt: no torch\n"


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_split_patches_apply(project: Project, header: str) -> None:
    folder = project(FILES)
    assert main(["rewrite", ".", "--split-patches", "patches", *SEMANTIC]) == 0
    patches = sorted((folder / "patches").iterdir())
    assert [path.name for path in patches] == ["01-slow-to-fast.patch", "02-bold-to-bolder.patch"]
    for patch in patches:
        subprocess.run(["git", "apply", patch], cwd=folder, check=True, env=dict(os.environ))
    text = (folder / "trainer.py").read_text()
    assert text == header + "def step():\n    fast()\n    bolder()\n"
