"""The demonstration of ``make demo``: a slow training script, the diff that makes it faster, the proof, and what each change buys.

With a GPU it is a small CNN that waits for its photos, without one a network so small that its optimizer takes a good part of
each step. Everything it makes lands in ``.demo/``: the generated photos, and the rewritten script.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = Path(".demo")
PHOTOS = Path("corpus/photo_classifier/train.py")
PHOTO_ARGUMENTS = ["--data", str(FOLDER / "photos"), "--epochs", "8"]
SMALL = Path("corpus/mlp_many_steps/train.py")


def say(command: list[str], *, shown: list[str] | None = None) -> int:
    """Run ``command`` in the repository after printing it; gives its exit status."""
    print(f"\n$ {shlex.join(shown or command)}\n", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def torchopt(*arguments: str) -> int:
    command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", *arguments]
    return say(command, shown=["torchopt", *arguments])


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> int:
    (ROOT / FOLDER).mkdir(exist_ok=True)
    script, target, arguments = SMALL, ["--target", "cpu"], []
    if has_gpu():
        script, target, arguments = PHOTOS, [], ["--", *PHOTO_ARGUMENTS]
        print(f"A training script: {script}. First it draws its own photos.")
        prepare = ["python", str(script), *PHOTO_ARGUMENTS, "--epochs", "0"]
        if status := say([sys.executable, *prepare[1:]], shown=prepare):
            return status
    else:
        print(f"A training script: {script}. There is no GPU, so it is made faster for this CPU.")
    rewritten = str(FOLDER / "train.py")
    torchopt("rewrite", str(script), *target, "--dry-run")
    torchopt("rewrite", str(script), *target, "-o", rewritten)
    measured = ["--python", sys.executable, "--attribute", *arguments]
    status = torchopt("verify", str(script), *target, *measured)
    print(f"\nThe rewritten script is {rewritten}.")
    return status


if __name__ == "__main__":
    sys.exit(main())
