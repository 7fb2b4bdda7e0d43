"""What ``torchopt profile`` says each transform could save at most, beside what it then saved.

    python -m benchmarks.estimates [--device cpu|cuda] [SCRIPT...]

Each script is profiled as it is; then the versions that lead from it to its rewrite are timed in turn, as
``torchopt rewrite --verify --attribute`` does. Prints both side by side with Spearman's rank correlation, over the transforms of
all scripts, of the bounds with what was saved, both as parts of the original's step. Bounds need not be reached: the
correlation says whether what is promised most is what pays most. Results go to
``benchmarks/results/estimates-<device>.json``, script by script.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.measuring.ablation import Gain, measure_gains
from torchopt_cli.optimizer.pipeline.rewrite import Rewritten, rewrite_all
from torchopt_cli.optimizer.profiling.opportunities import Opportunity, opportunities
from torchopt_cli.optimizer.profiling.profile import ProfileSettings, ScriptFailed, profile
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.transforms.registry import all_transforms

from .machine import load, machine
from .results import RESULTS
from .scripts import (
    PYTHON,
    TIMEOUT_S,
    CorpusScript,
    corpus,
    interpreter,
    prepare,
    rewrite_options,
    timing_interpreter,
)


def compared(
    script: CorpusScript, folder: Path, pythons: tuple[Path, Path], sweeps: int, timeout_s: float
) -> dict[str, Any]:
    """Bounds and savings of the transforms of one script, as parts of the original's step.

    ``pythons`` are for what is not timed, and for what is.
    """
    before = load()
    python, timing_python = pythons
    prepared = prepare(script, folder, python, timed=True, timeout_s=timeout_s)
    profiling_python = PYTHON if script.device == "cuda" else python
    transforms, options = all_transforms(), rewrite_options(script)
    names = [transform.name for transform in transforms]

    def without(ignored: frozenset[str]) -> Rewritten:
        wanted = replace(options, ignore=options.ignore | ignored)
        return rewrite_all([script.original], transforms, lambda _: wanted)

    with tempfile.TemporaryDirectory() as cwd:
        original = ScriptVersion(script.original, args=prepared.arguments)
        how = ProfileSettings(
            profiling_python, Path(cwd), timeout_s=timeout_s, env=script.environment, resident=False
        )
        found = profile(original, how)
        changes = [change for file in without(frozenset()).files for change in file.changes]
        could = {
            one.transform: one for one in opportunities(found, changes, transforms, options.target)
        }
        settings = VerifySettings(
            timing_python,
            Path(cwd),
            timeout_s=timeout_s,
            pairs=sweeps,
            timing_seconds=2.0,
            env=script.environment,
        )
        gained = measure_gains(
            script.original,
            without,
            names,
            settings,
            found.round_seconds,
            prepared.arguments,
            lambda what, progress: print(
                f"  {script.name}: {progress.description}", file=sys.stderr
            ),
        )
    if gained.note:
        raise TorchoptError(gained.note, script.original)
    rows = _parts_of_the_step(gained.gains, could, found.round_seconds)
    return {"machine": machine(script.device), "load": [before, load()], "gains": rows}


def _parts_of_the_step(
    gains: Sequence[Gain], could: Mapping[str, Opportunity], round_seconds: float
) -> list[dict[str, Any]]:
    """What each of ``gains`` could save at most and saved, as parts of the original's step of ``round_seconds``."""
    rows: list[dict[str, Any]] = []
    left = 1.0
    for gain in gains:
        bounds = [could[name].at_most for name in gain.transforms if name in could]
        known = [bound for bound in bounds if bound is not None]
        factor, low, high = gain.speedup.factor, gain.speedup.low, gain.speedup.high
        rows.append(
            {
                "transforms": list(gain.transforms),
                "at_most": max(known) / round_seconds if known else None,
                "saved": left - left / factor,
                "speedup": [
                    factor,
                    low if math.isfinite(high) else None,
                    high if math.isfinite(high) else None,
                ],
            }
        )
        left /= factor
    return rows


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's, with the mean rank for values that are equal; None for fewer than three pairs or no differences."""
    import numpy as np

    if len(pairs) < 3:
        return None
    first, second = (ranks([pair[side] for pair in pairs]) for side in (0, 1))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; the mean of their ranks for those that are equal."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def told(results: Mapping[str, Any]) -> str:
    """The table, and the correlation under it."""
    lines = [
        "| script | transform | at most | saved | speedup |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    pairs: list[tuple[float, float]] = []
    for name, result in results.items():
        for row in result["gains"]:
            bound = row["at_most"]
            if bound is not None:
                pairs.append((bound, row["saved"]))
            factor, low, high = row["speedup"]
            ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
            at_most = "-" if bound is None else f"{bound:.1%}"
            cells = [f"`{name}`", ", ".join(row["transforms"]), at_most]
            lines.append(
                "| " + " | ".join([*cells, f"{row['saved']:+.1%}", f"{factor:.2f}x{ends}"]) + " |"
            )
    correlation = rank_correlation(pairs)
    shown = "-" if correlation is None else f"{correlation:.2f}"
    lines += [
        "",
        f"Spearman's rank correlation over {len(pairs)} transforms of {len(results)} scripts: {shown}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Exits with 1 where a script could not be measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "scripts", nargs="*", help="folders of corpus/ (default: those without a result)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sweeps", type=int, default=3, help="timed runs of each version")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch in each process, on a CPU (default: 1)"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep the scripts' data here")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="of each run"
    )
    parser.add_argument(
        "--table", action="store_true", help="measure nothing; print the table of the results"
    )
    options = parser.parse_args()
    path = RESULTS / f"estimates-{options.device}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    scripts = [] if options.table else corpus(options.scripts, options.device)
    with (
        tempfile.TemporaryDirectory() as temporary,
        interpreter(options.device, options.threads) as python,
        timing_interpreter(options.device, python) as timing_python,
    ):
        folder = options.data.absolute() if options.data else Path(temporary)
        failed = False
        for script in scripts:
            if script.missing or (script.name in results and not options.scripts):
                continue
            try:
                results[script.name] = compared(
                    script, folder, (python, timing_python), options.sweeps, options.timeout
                )
            except Exception as error:
                expected = isinstance(error, TorchoptError | ScriptFailed | RuntimeError)
                why = error if expected else traceback.format_exc()
                print(f"{script.name}: {why}", file=sys.stderr)
                failed = True
                continue
            RESULTS.mkdir(exist_ok=True)
            path.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    print(told(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
