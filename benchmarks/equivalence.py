"""Whether what the tools made of a corpus script trains as the original does.

The verdicts are kept beside the script's data, so that a benchmark that is cut into pieces asks once. Unlike timing,
verifying does not mind what else the machine does: several scripts can be verified at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying.original_runs import original_runs
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify_against

from .scripts import CorpusScript, prepare

Verdict = dict[str, str]
VERDICTS = "equivalence.json"
"""Beside a script's data: its verdicts, by what they are about."""


def equivalence(
    script: CorpusScript,
    versions: Mapping[str, tuple[ScriptVersion, Tier | None]],
    folder: Path,
    python: Path,
    timeout_s: float,
    tell: Callable[[str], None],
) -> dict[str, Verdict]:
    """The verdict on each of ``versions``, with the tier it claims (None: the strictest that holds).

    ``folder`` holds the data of the scripts. Raises TorchoptError when the original fails.
    """
    place = folder / script.name / VERDICTS
    known, keys = _read(place), _keys(script, versions)
    unknown = {name: one for name, one in versions.items() if keys[name] not in known}
    if not unknown:
        return {name: known[key] for name, key in keys.items()}
    prepared = prepare(script, folder, python, timed=False, timeout_s=timeout_s)
    original = replace(ScriptVersion(script.original), args=prepared.arguments)
    with tempfile.TemporaryDirectory() as cwd, original_runs(original) as runs:
        for name, (version, tier) in unknown.items():
            settings = VerifySettings(
                python,
                Path(cwd),
                tier=tier,
                timeout_s=timeout_s,
                measure_speed=False,
                env=script.environment,
            )
            report = verify_against(
                runs,
                replace(version, args=prepared.arguments),
                settings,
                lambda progress, name=name: tell(f"{name}: {progress.description}"),
            )
            if report.verdict is None:
                failure = report.original_failure
                raise TorchoptError(f"the original fails: {failure and failure.details}")
            known[keys[name]] = {
                "outcome": report.verdict.outcome.value,
                "tier": report.verdict.tier.label,
                "reason": report.verdict.reason,
            }
            place.write_text(json.dumps(known, indent=1))
    return {name: known[key] for name, key in keys.items()}


def known_verdicts(
    script: CorpusScript, versions: Mapping[str, tuple[ScriptVersion, Tier | None]], folder: Path
) -> dict[str, Verdict]:
    """The verdicts on ``versions`` that lie in ``folder`` already."""
    known = _read(folder / script.name / VERDICTS)
    keys = _keys(script, versions)
    return {name: known[key] for name, key in keys.items() if key in known}


def _read(place: Path) -> dict[str, Verdict]:
    return json.loads(place.read_text()) if place.exists() else {}


def _keys(
    script: CorpusScript, versions: Mapping[str, tuple[ScriptVersion, Tier | None]]
) -> dict[str, str]:
    """What the verdict on each of ``versions`` is known by."""
    arguments = script.arguments(timed=False)
    return {name: version_digest(script, one, arguments) for name, (one, _) in versions.items()}


def texts_digest(*parts: Any) -> str:
    """Changes with anything in ``parts``, which JSON can hold."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def original_texts(script: CorpusScript) -> list[str]:
    """The files of a script, and of its expert."""
    files = sorted(script.original.parent.rglob("*.py"))
    return [path.read_text(encoding="utf-8") for path in files]


def version_digest(script: CorpusScript, version: ScriptVersion, *parts: Any) -> str:
    """Changes with the texts of ``version``, with those of the original, and with anything in ``parts``; not with where they lie."""
    folder = script.original.parent
    overrides = {
        os.path.relpath(path, folder): text for path, text in sorted(version.overrides.items())
    }
    return texts_digest(original_texts(script), overrides, *parts, version.processes)
