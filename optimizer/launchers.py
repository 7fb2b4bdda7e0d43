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

from .analysis.program.syntax import Module
from .execution.module_runs import ModuleRun, module_run
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

{found}
{unexpanded}exec torchrun "${{rendezvous[@]}}" --nproc-per-node "$GPUS" {started}{arguments} "$@"
"""

_FOLDER = 'folder=$(dirname -- "${BASH_SOURCE[0]}")'
_ROOT = """\
root=$(CDPATH='' cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")/{up}" && pwd)
export PYTHONPATH=$root${{PYTHONPATH:+:$PYTHONPATH}} # {script} runs as a module of its package"""

_SLURM = """\
#!/usr/bin/env bash
# Starts {script} on the nodes of a Slurm job:  sbatch --nodes 2 {job}
# Submit it from {where}. Set the number of GPUs per node, and what your cluster asks for: account, partition, modules.
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

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"line {self.line} of {self.path.name}"


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


def launchers(
    entry: Module, gpus: int | None, arguments: tuple[str, ...]
) -> tuple[tuple[NewFile, ...], tuple[str, ...]]:
    """The launchers of ``entry``, beside it, for ``gpus`` per node (None: all there are), with ``arguments``.

    Those that are there already stay; what has to be told of them comes with the others.
    """
    wanted = _launchers(entry, gpus, arguments)
    others = (
        f"{new.path.name} is there already and stays as it is"
        for new in wanted
        if new.path.exists() and new.path.read_bytes() != new.text.encode()
    )
    return tuple(new for new in wanted if not new.path.exists()), tuple(others)


def _launchers(
    entry: Module, gpus: int | None, arguments: tuple[str, ...]
) -> tuple[NewFile, NewFile]:
    script = entry.path
    name = _identifier(script.stem)
    shell, job = script.with_name(f"launch_{name}.sh"), script.with_name(f"launch_{name}.sbatch")
    module = _run_as(entry)
    # A script is found beside its launcher; a module from the folder that its package is in.
    within = Path() if module is None else script.parent.absolute().relative_to(module.root)
    quoted = f'"$folder"/{shlex.quote(script.name)}'
    values = {
        "script": script.name,
        "found": _FOLDER
        if module is None
        else _ROOT.format(up="/".join(".." for _ in within.parts), script=script.name),
        "started": quoted if module is None else f"--module {module.name}",
        "where": "this folder" if module is None else f"the folder of `{within.parts[0]}`",
        "launcher": (within / shell.name).as_posix(),
        "job": (within / job.name).as_posix(),
        "name": name,
        "arguments": "".join(f" {shlex.quote(argument)}" for argument in arguments),
        "unexpanded": _MEANT if any(set(a) & {"$", "`"} for a in arguments) else "",
    }
    return (
        NewFile(shell, _SHELL.format(gpus=gpus or "gpu", **values), executable=True),
        NewFile(job, _SLURM.format(gpus=gpus or 8, **values)),
    )


def launch_command(entry: Module, gpus: int | None) -> str:
    """The command that starts ``entry`` on one node."""
    module = _run_as(entry)
    started = shlex.quote(entry.path.name) if module is None else f"--module {module.name}"
    return f"torchrun --standalone --nproc-per-node {gpus or 'gpu'} {started}"


def _run_as(entry: Module) -> ModuleRun | None:
    return module_run(entry.path.absolute(), entry.source.text.encode(), Path.cwd())


def _identifier(name: str) -> str:
    """``name`` without anything that a shell, or Slurm, would read as more than a name."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
