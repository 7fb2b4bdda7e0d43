"""The corpus on an emulated CUDA device: the CPU's numbers, rewrites for CUDA, and the experts' versions."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.environment import inspect_environment
from torchopt_cli.optimizer.execution.observations import ENDED_WELL, Observations
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.options import Options, Target, Tier
from torchopt_cli.optimizer.pipeline.rewrite import rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.optimizer.verifying.verification import verify
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.transforms.registry import all_transforms

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
CORPUS = Path(__file__).parents[2] / "corpus"
SCRIPTS = sorted(script.parent.name for script in CORPUS.glob("*/train.py"))
AUTOCAST_ON_CUDA = {"resnet_cifar"}
"""Scripts that compute in other types on CUDA than on the CPU."""
TIME_LIMIT_S = 600.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}

pytestmark = [pytest.mark.torch, pytest.mark.slow]


SMALLER = {
    "resnet_cifar": "--epochs 2 --num-train 20 --num-test 10 --batch-size 4 --image-size 32".split(),
}
"""Float16 convolutions are slow on a CPU: of the manifest's sizes it takes more than ten minutes for 8 steps."""


def arguments(script: str) -> tuple[str, ...]:
    text = (CORPUS / script / "manifest.toml").read_text(encoding="utf-8")
    return tuple(SMALLER.get(script) or tomllib.loads(text)["cpu"]["args"])


def observed(script: str, file: str, folder: Path, emulated_gpus: int) -> Observations:
    version = ScriptVersion(CORPUS / script / file, args=arguments(script))
    cwd = folder / f"cwd{emulated_gpus}"
    cwd.mkdir()
    settings = RunSettings(
        Path(sys.executable),
        cwd,
        steps=8,
        timeout_s=TIME_LIMIT_S,
        env=ENVIRONMENT,
        emulated_gpus=emulated_gpus,
    )
    return run(version, settings, folder / f"run{emulated_gpus}")


@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - AUTOCAST_ON_CUDA))
def test_an_emulated_run_computes_what_the_cpu_computes(script: str, tmp_path: Path) -> None:
    on_cpu = observed(script, "train.py", tmp_path, 0)
    (tmp_path / "again").mkdir()
    again = observed(script, "train.py", tmp_path / "again", 0)  # to know what is a clock's
    emulated = observed(script, "train.py", tmp_path, 1)
    assert emulated.status in ENDED_WELL, emulated.traceback
    verdict = judge_exact(on_cpu, [again], emulated)
    assert verdict.outcome is Outcome.EQUIVALENT, verdict.findings


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_experts_version_runs_on_an_emulated_device(script: str, tmp_path: Path) -> None:
    emulated = observed(script, "expert.py", tmp_path, 1)
    assert emulated.status in ENDED_WELL, emulated.traceback
    assert emulated.rounds


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_rewrite_for_cuda_trains_the_same(script: str, tmp_path: Path) -> None:
    found = inspect_environment(Path(sys.executable))
    options = Options(
        target=Target.CUDA,
        torch_version=found.torch_version or Options.torch_version,
        python_version=found.python_version,
    )
    entry = CORPUS / script / "train.py"
    result = rewrite_script(entry, Sources(), all_transforms(), options)
    changed = {file.path: file.text for file in result.files if file.changed}
    assert changed
    report = verify(
        ScriptVersion(entry, args=arguments(script)),
        ScriptVersion(entry, changed, arguments(script)),
        VerifySettings(
            Path(sys.executable),
            tmp_path,
            tier=max((c.tier for file in result.files for c in file.changes), default=Tier.EXACT),
            timeout_s=TIME_LIMIT_S,
            emulated_gpus=1,
            env=ENVIRONMENT,
        ),
    )
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.findings
