"""Every corpus script, rewritten by all transforms at once and by each alone, trains as before."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.environment import inspect_environment
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns, original_runs
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult, rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.optimizer.verifying.verification import verify_against
from torchopt_cli.optimizer.verifying.result import VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.transforms.registry import all_transforms

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
CORPUS = Path(__file__).parents[2] / "corpus"
SCRIPTS = sorted(script.parent.name for script in CORPUS.glob("*/train.py"))
TIME_LIMIT_S = 300.0

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def rewritten(entry: Path, tier: Tier, names: frozenset[str] = frozenset()) -> RewriteResult:
    found = inspect_environment(Path(sys.executable))
    options = Options(
        tier=tier,
        select=names,
        torch_version=found.torch_version or Options.torch_version,
        python_version=found.python_version or Options.python_version,
    )
    return rewrite_script(entry, Sources(), all_transforms(), options)


@pytest.fixture(scope="module", params=SCRIPTS)
def runs(request: pytest.FixtureRequest) -> Iterator[OriginalRuns]:
    """The runs of a corpus script, made once for all rewrites of it."""
    text = (CORPUS / request.param / "manifest.toml").read_text(encoding="utf-8")
    arguments = tuple(tomllib.loads(text)["cpu"]["args"])
    with original_runs(ScriptVersion(CORPUS / request.param / "train.py", args=arguments)) as runs:
        yield runs


def verified(
    runs: OriginalRuns, result: RewriteResult, tier: Tier, warm_python: Path, folder: Path
) -> VerificationReport:
    changed = {f.path: f.text for f in result.files if f.changed and not f.created}
    settings = VerifySettings(
        warm_python,
        folder,
        tier=tier,
        steps=20,
        timeout_s=TIME_LIMIT_S,
        measure_speed=False,
        env={"OMP_NUM_THREADS": "1"},
    )
    rewrite = ScriptVersion(result.entry, changed, runs.version.args)
    return verify_against(runs, rewrite, settings)


@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.NUMERIC], ids=lambda tier: tier.label)
def test_all_transforms_at_once(
    runs: OriginalRuns, tier: Tier, warm_python: Path, tmp_path: Path
) -> None:
    result = rewritten(runs.version.entry, tier)
    assert not [error for file in result.files for error in file.errors]
    if tier is Tier.EXACT and not any(file.changed for file in result.files):
        pytest.skip("nothing in it can be made faster bit for bit")
    assert any(file.changed for file in result.files)
    report = verified(runs, result, tier, warm_python, tmp_path)
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.findings


def test_each_transform_alone(runs: OriginalRuns, warm_python: Path, tmp_path: Path) -> None:
    judged: dict[str, object] = {}
    for transform in all_transforms():
        if transform.tier is Tier.SEMANTIC:
            continue  # asked for, and never claimed to be equivalent
        result = rewritten(runs.version.entry, Tier.NUMERIC, frozenset({transform.name}))
        if any(file.changed for file in result.files):
            folder = tmp_path / transform.name
            folder.mkdir()
            tiers = {change.tier for file in result.files for change in file.changes}
            report = verified(runs, result, max(tiers), warm_python, folder)
            assert report.verdict is not None, report.original_failure
            judged[transform.name] = report.verdict.outcome
    assert judged
    assert {name: o for name, o in judged.items() if o is not Outcome.EQUIVALENT} == {}
