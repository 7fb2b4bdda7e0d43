"""The files that start a distributed script: a shell script around torchrun, and a Slurm job around that.

torchrun does it all: one process per GPU, on one node by itself (``--standalone``), on several by a c10d rendezvous
(https://docs.pytorch.org/docs/stable/elastic/run.html).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .rewriting.edits import NewFile

_SHELL = """\
#!/usr/bin/env bash
# Starts {script} with torchrun, one process per GPU. Arguments are passed on to it.
#
#   one node:       ./{launcher}
#   several nodes:  NNODES=2 RDZV_ENDPOINT=first-node:29400 ./{launcher}    (on each of them)
set -euo pipefail

GPUS=${{GPUS:-{gpus}}} # processes per node; torchrun also takes "gpu": as many as there are
NNODES=${{NNODES:-1}}

if [[ $NNODES == 1 ]]; then
    rendezvous=(--standalone)
else
    rendezvous=(
        --nnodes "$NNODES"
        --rdzv-backend c10d
        --rdzv-id "${{RDZV_ID:-{name}}}"
        --rdzv-endpoint "${{RDZV_ENDPOINT:?host:port of the first node}}"
    )
fi

folder=$(dirname -- "${{BASH_SOURCE[0]}}")
{unexpanded}exec torchrun "${{rendezvous[@]}}" --nproc-per-node "$GPUS" "$folder"/{quoted}{arguments} "$@"
"""

_SLURM = """\
#!/usr/bin/env bash
# Starts {script} on the nodes of a Slurm job:  sbatch --nodes 2 {job}
# Submit it from this folder. Set the number of GPUs per node, and what your cluster asks for: account, partition, modules.
#SBATCH --job-name={name}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --output=%x-%j.out
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export NNODES=$SLURM_JOB_NUM_NODES
export GPUS=$SLURM_GPUS_ON_NODE
export RDZV_ID=$SLURM_JOB_ID
export RDZV_ENDPOINT=$first:29400

# one task per node: torchrun starts the processes
srun ./{launcher} "$@"
"""


_MEANT = "# shellcheck disable=SC2016  # the script gets its arguments as they are\n"
_PYTHON = r"\bpython[\d.]*\s+(?:-[uOB]+\s+)*(?:\S*/)?"
_SHELL_FILES = ("*.sh", "*.bash", "*.slurm", "*.sbatch", "Makefile")
_MOST_BYTES = 1 << 18


@dataclass(frozen=True)
class PythonLine:
    """A line of a shell script, 1-based, that starts a training script with ``python``."""

    path: Path
    line: int


def lines_with_python(script: Path) -> Iterator[PythonLine]:
    """The lines in the shell scripts beside ``script`` that start it with ``python``."""
    wanted = re.compile(rf"{_PYTHON}{re.escape(script.name)}(?![\w.])")
    for pattern in _SHELL_FILES:
        for path in sorted(script.parent.glob(pattern)):
            try:
                text = path.read_text() if path.stat().st_size < _MOST_BYTES else ""
            except (OSError, UnicodeDecodeError):
                continue
            for number, row in enumerate(text.splitlines(), 1):
                if wanted.search(row) and not row.lstrip().startswith("#"):
                    yield PythonLine(path, number)


def launchers(script: Path, gpus: int | None, arguments: tuple[str, ...]) -> tuple[NewFile, ...]:
    """The launchers of ``script``, beside it: for ``gpus`` per node (None: all there are), with ``arguments``."""
    name = _identifier(script.stem)
    shell, job = script.with_name(f"launch_{name}.sh"), script.with_name(f"launch_{name}.sbatch")
    values = {
        "script": script.name,
        "quoted": shlex.quote(script.name),
        "launcher": shell.name,
        "job": job.name,
        "name": name,
        "arguments": "".join(f" {shlex.quote(argument)}" for argument in arguments),
        "unexpanded": _MEANT if any(set(a) & {"$", "`"} for a in arguments) else "",
    }
    return (
        NewFile(shell, _SHELL.format(gpus=gpus or "gpu", **values), executable=True),
        NewFile(job, _SLURM.format(gpus=gpus or 8, **values)),
    )


def launch_command(script: Path, gpus: int | None) -> str:
    """The command that starts ``script`` on one node."""
    return f"torchrun --standalone --nproc-per-node {gpus or 'gpu'} {shlex.quote(script.name)}"


def _identifier(name: str) -> str:
    """``name`` without anything that a shell, or Slurm, would read as more than a name."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
