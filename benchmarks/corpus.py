"""Every corpus script: the original, torchopt's version, the tuned one, the expert's and what a peer tool makes of it, side by side.

    python -m benchmarks.corpus [--device cpu|cuda] [--torchfix PROGRAM] [--tune MINUTES] [--minutes M --data FOLDER] [SCRIPT...]

What the tools made is verified against the original, then all versions take turns at being timed; ``light`` is torchopt's version on a batch
that is there already, the speed of light of whatever could be done about the data. After each script, or as many as are timed ``--together``, the results are
written to ``benchmarks/results/<device>.json``, so that an interrupted command goes on where it was: without names, scripts
are left out whose texts and arguments are those of the results, and that were tuned where ``--tune`` asks for it. With ``--minutes`` no script is begun
for which the time is too short, as far as those before tell; with ``--data`` verdicts are kept, too. Why a script could not be measured is written to
``benchmarks/results/failures-<device>.json``. The table is printed and put into the README.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from .bench import outdated
from .measuring import measure
from .results import read_results
from .scripts import TIMEOUT_S, corpus
from .tables import full_table, write_readme


def main() -> int:
    """Exits with 1 where a script could not be measured, or there was no time for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "scripts", nargs="*", help="folders of corpus/ (default: those without a valid result)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sweeps", type=int, default=3, help="timed runs of each version")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timed run, about")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch in each process, on a CPU (default: 1)"
    )
    parser.add_argument(
        "--torchfix", type=Path, metavar="PROGRAM", help="compare with this TorchFix"
    )
    parser.add_argument(
        "--tune", type=float, metavar="MINUTES", help="compare with what tune finds in that time"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="keep the scripts' data and verdicts here"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="scripts verified at the same time (they are timed alone)",
    )
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="scripts whose versions all take turns with each other, which spares waiting for starts",
    )
    parser.add_argument(
        "--verify-only", action="store_true", help="time nothing; with --data what is found is kept"
    )
    parser.add_argument(
        "--time-only", action="store_true", help="verify nothing; the verdicts in --data are taken"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing that would take longer"
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="of each run"
    )
    parser.add_argument(
        "--table", action="store_true", help="measure nothing; print the table of the results"
    )
    options = parser.parse_args()
    results = read_results(options.device)
    complete = True
    if not options.table:
        wanted = corpus(options.scripts, options.device)
        if not options.scripts:
            wanted = outdated(wanted, results, tuned=options.tune is not None)
        complete = measure(wanted, results, options) == len(wanted)
    print(full_table(results))
    write_readme()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
