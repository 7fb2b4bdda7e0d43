"""What may help with a script that fails by itself, by what it says last."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from .terminal import display_path

_CUDA_MISSING = (
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
    r"|CUDA driver version is insufficient|no CUDA-capable device is detected"
    r"|torch\.cuda\.is_available\(\) is False|type torch\.cuda\.\w+ not available"
    r"|(?:ProcessGroupNCCL|NCCL backend).*no GPUs found|not linked with support for cuda devices"
)
"""What torch says where a script needs CUDA and there is none."""
_NO_CUDA = " (it needs a CUDA device; --emulate-cuda runs it on an emulated one)"
_CUDA_FULL = r"CUDA out of memory"
_NO_ROOM = " (what is observed of it, parameters and gradients, is kept on the device beside it: a smaller batch leaves room)"
_RANK_MISSING = (
    r"KeyError: b?'(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR)'"
    r"|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set"
)
"""What a script says, or torch, where torchrun was to start it."""
_NO_RANK = " (torchrun starts it with --nproc-per-node N, and its rewrite)"
_COMPILER_MISSING = (
    r"Failed to find C compiler|Python\.h: No such file|Cannot find a working triton installation"
    r"|CalledProcessError: Command '\['[^']*(?:gcc|clang|\bcc)'"
)
"""What Triton says where it cannot build what starts its kernels, https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"""
_NO_COMPILER = " (what is compiled needs a C compiler and Python's header files here; --ignore compile does without)"
_USAGE = r"(?i)^usage: "
_ARGUMENTS = " (arguments behind -- are passed to it)"
_NOT_INSTALLED = r"^ModuleNotFoundError: No module named '([^'.]+)"
_INTERPRETER = " (--python names the interpreter that has it)"
_NOTEBOOK = "NameError: name 'get_ipython' is not defined"
_COMMANDS = " (IPython defines that: take the commands of the notebook out of the script)"
_NO_INPUT = "EOFError: EOF when reading a line"
_EMPTY = " (its standard input is empty here)"


def device_hint(details: str) -> str:
    """What may help a script that ended with ``details`` because of the device."""
    if re.search(_CUDA_MISSING, details):
        return _NO_CUDA
    return _NO_ROOM if re.search(_CUDA_FULL, details) else ""


def compiler_hint(details: str) -> str:
    """What may help a script that ended with ``details`` because ``torch.compile`` lacks something of the machine's."""
    return _NO_COMPILER if re.search(_COMPILER_MISSING, details) else ""


def input_hint(details: str, script: Path) -> str:
    """What may help the file ``script`` that ended with ``details`` because of what it was given."""
    if re.search(_RANK_MISSING, details):
        return _NO_RANK
    if re.search(_USAGE, details, re.MULTILINE):
        return _ARGUMENTS
    if missing := re.search(_NOT_INSTALLED, details, re.MULTILINE):
        return _where_it_lies(missing[1], script) or _INTERPRETER
    if _NOTEBOOK in details:
        return _COMMANDS
    return _EMPTY if _NO_INPUT in details else ""


def _where_it_lies(module: str, script: Path) -> str:
    """How Python finds ``module`` where it is code around ``script``, such as the package that the script is a part of."""
    for folder in script.absolute().parents:
        package = folder / module
        if package.with_suffix(".py").is_file() or any(package.glob("*.py")):
            place = display_path(folder)
            return f" ({place} has it: installed from there, or with PYTHONPATH={shlex.quote(place)}, it is found)"
    return ""
