"""Where ``torch.compile`` works at all: the platforms, the versions, and the scripts that leave its step to nobody else."""

from __future__ import annotations

from ...options import CompileMode, Options, Target
from ..facts import Fact
from ..script import TrainingScript
from .graph_breaks import CompileObstacle, script_compile_obstacle

_FIRST_PYTORCH = {(3, 12): (2, 4), (3, 13): (2, 6), (3, 14): (2, 10)}
"""The first PyTorch release whose compiler runs on a Python version, from the release notes; earlier ones always do."""
_NEW_PRECISION, _NEW_PRECISION_HEEDED = (2, 9), (2, 11)
"""The first PyTorch releases that have the setting ``fp32_precision``, and whose compiler asks it."""


def unsupported(script: TrainingScript, options: Options) -> Fact | str | None:
    """What about ``script``, or the machine it is for, keeps everything from being compiled."""
    if options.platform == "win32":
        return "there is no Triton for Windows, which compiled code for GPUs is written in"
    python = max((v for v in _FIRST_PYTORCH if v <= options.python_version), default=None)
    if python is not None and options.torch_version < _FIRST_PYTORCH[python]:
        version, pytorch = (".".join(map(str, v)) for v in (python, _FIRST_PYTORCH[python]))
        return f"on Python {version} torch.compile needs PyTorch {pytorch}"
    asked = options.target is Target.CPU and options.compile_mode is not CompileMode.AUTO
    if not script.targets_cuda(options) and not asked:
        return "the script runs on the CPU, where compiling may not pay: `torchopt tune --target cpu` tries it"
    if options.compile_mode is CompileMode.REDUCE_OVERHEAD and not script.targets_cuda(options):
        return "`--compile-mode reduce-overhead` is about CUDA graphs, which a CPU does not have"
    frameworks = script.frameworks
    if frameworks:
        return frameworks[0]
    return _new_precision(script, options) or script_compile_obstacle(script.resolver)


def _new_precision(script: TrainingScript, options: Options) -> Fact | None:
    """Where the script uses the setting of TF32 that is new in PyTorch 2.9, if its compiler then fails.

    It asks the old one, which is refused once the new one was used: in every mode until PyTorch 2.11
    (https://github.com/pytorch/pytorch/pull/173731), to look up what autotuning has found since
    (https://github.com/pytorch/pytorch/issues/196728).
    """
    settings = [s for s in script.backend_settings if s.name == "fp32_precision"]
    always = _NEW_PRECISION <= options.torch_version < _NEW_PRECISION_HEEDED
    if not settings or not (always or options.compile_mode.autotunes):
        return None
    what = "torch.compile before PyTorch 2.11" if always else "autotuning"
    why = f"{what} fails beside the new setting of float32's precision"
    return CompileObstacle(settings[0].module, settings[0].node, why)
