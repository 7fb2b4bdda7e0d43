"""Keep this process, and every Python process below it, from changing the user's files.

Installed by the ``sitecustomize`` of the scratch area, which is on PYTHONPATH, so that it also comes to spawned
workers and to Python programs that the script starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import ModuleType

from .imports import ProjectImporter
from .landlock import confine
from .mirror import SHARED, Mirror
from .redirect import Redirection
from .signals import restrict_signals

SCRATCH = "TORCHOPT_SCRATCH"
"""Environment variable: the scratch folder."""
OPEN = "TORCHOPT_OPEN"
"""Environment variable: further folders that may be written to, joined by ``os.pathsep``."""
CONFINED = "TORCHOPT_CONFINED"
"""Environment variable: what of the process and its children the kernel confines, ``writes`` or ``writes,signals``;
empty where nothing or where it shall not."""

EMULATED = "TORCHOPT_EMULATED_GPUS"
"""Environment variable: how many CUDA devices are emulated; set once they are in the script's own process."""
RUN = "TORCHOPT_RUN"
"""Environment variable: the file that says how the script is run; set for the processes that it starts."""


class Protection:
    """What :func:`protect` installed."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.redirection = Redirection(mirror)
        self.importer = ProjectImporter(self.redirection)


_installed: list[Protection] = []


def protect() -> Protection:
    """Install the redirection, once per process; what is installed."""
    if _installed:
        return _installed[0]
    scratch = os.environ[SCRATCH]
    shared = tuple(folder for folder in os.environ.get(OPEN, "").split(os.pathsep) if folder)
    # CUDA's multi-process service is spoken to through pipes in a folder.
    mps = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    shared = (*shared, mps) if os.path.isdir(mps) else shared
    protection = Protection(Mirror(scratch, shared))
    if CONFINED not in os.environ:
        _make_device_files()
        confined = confine((*SHARED, scratch, *shared))._asdict()
        os.environ[CONFINED] = ",".join(name for name, yes in confined.items() if yes)
    by_kernel = os.environ[CONFINED].split(",")
    # An audit hook costs a little at every event, so only where the kernel does not do its work.
    protection.redirection.install(audited="writes" not in by_kernel)
    if "signals" not in by_kernel:
        restrict_signals(f"{SCRATCH}={scratch}")
    sys.meta_path.insert(0, protection.importer)  # pyright: ignore[reportArgumentType]
    _installed.append(protection)
    if os.environ.get(EMULATED) or os.environ.get(RUN):
        protection.importer.after_import("torch", _join_run)
    return protection


def _join_run(torch: ModuleType) -> None:
    """In a process that the script started: emulate CUDA as in its own, and be observed as a rank if it becomes one."""
    from .cuda.install import emulate_cuda
    from .patches import Patches

    gpus = os.environ.get(EMULATED)
    emulated = emulate_cuda(Patches(), int(gpus)) if gpus else None
    if os.environ.get(RUN):
        from .ranks import expect_joining

        expect_joining(_installed[0], emulated)


def _make_device_files() -> None:
    """Do for CUDA what it cannot do once confined: its driver makes missing device files by a setuid program."""
    program = shutil.which("nvidia-modprobe")
    if program is not None and not os.path.exists("/dev/nvidia-uvm"):
        subprocess.run([program, "-u", "-c=0"], check=False, capture_output=True, timeout=30)
