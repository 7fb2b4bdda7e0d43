"""The demonstration of ``make demo``: a slow training script, the diff that makes it faster, and the proof.

Everything it makes lands in ``.demo/``: the generated photos, and the rewritten script.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = Path("corpus/photo_classifier/train.py")
FOLDER = Path(".demo")
SIZES = "--train-photos 512 --val-photos 16 --batch-size 8 --width 8 --size 96 --epochs 8"
ARGUMENTS = ["--data", str(FOLDER / "photos"), *shlex.split(SIZES)]


def say(command: list[str], *, shown: list[str] | None = None, in_short: bool = False) -> int:
    """Run ``command`` in the repository after printing it; gives its exit status.

    ``in_short`` shows the last line of what it prints only.
    """
    print(f"\n$ {shlex.join(shown or command)}\n", flush=True)
    done = subprocess.run(
        command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE if in_short else None
    )
    if in_short:
        print(done.stdout.strip().rpartition("\n")[2])
    return done.returncode


def torchopt(*arguments: str, in_short: bool = False) -> int:
    command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", *arguments]
    return say(command, shown=["torchopt", *arguments], in_short=in_short)


def main() -> int:
    (ROOT / FOLDER).mkdir(exist_ok=True)
    print(f"A training script: {SCRIPT}. First it draws its own photos.")
    prepare = [*ARGUMENTS, "--epochs", "0"]
    if status := say(
        [sys.executable, str(SCRIPT), *prepare], shown=["python", str(SCRIPT), *prepare]
    ):
        return status
    rewritten = str(FOLDER / "train.py")
    torchopt("rewrite", str(SCRIPT), "--dry-run")
    torchopt("rewrite", str(SCRIPT), "-o", rewritten, in_short=True)
    status = torchopt(
        "verify", str(SCRIPT), rewritten, "--python", sys.executable, "--", *ARGUMENTS
    )
    print(f"\nThe rewritten script is {rewritten}.")
    return status


if __name__ == "__main__":
    sys.exit(main())
