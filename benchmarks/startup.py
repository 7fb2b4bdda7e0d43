"""How long a cold ``torchopt rewrite --dry-run`` of a 100-line script takes, as a ratio.

The yardstick is ``python -c "import libcst, typer"`` on the same machine: what any such tool pays. Both are run in turn,
each in a fresh process, and the medians are compared. Run with ``python -m benchmarks.startup``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 15
SCRIPT = Path(__file__).parent.parent / "corpus" / "resnet_cifar" / "train.py"
LINES = 100


def seconds(command: list[str]) -> float:
    """Wall time of ``command``, in seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    script = SCRIPT.read_text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(script + "#\n" * max(0, LINES - script.count("\n")))
        ours = [
            sys.executable,
            "-m",
            "torchopt_cli.optimizer.cli",
            "rewrite",
            "--dry-run",
            str(path),
        ]
        yardstick = [sys.executable, "-c", "import libcst, typer"]
        pairs = [(seconds(ours), seconds(yardstick)) for _ in range(ROUNDS)][1:]
    mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"torchopt rewrite --dry-run  {mine * 1000:6.0f} ms")
    print(f"import libcst, typer        {theirs * 1000:6.0f} ms")
    print(f"ratio                       {mine / theirs:6.2f}")


if __name__ == "__main__":
    main()
