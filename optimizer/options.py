"""What the user asked for: the options every stage of a rewrite reads."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum, IntEnum


class Tier(IntEnum):
    """How much a change may alter the numbers of a training run; a tier includes the ones below it.

    ``EXACT``: the same numbers given the same random draws. ``NUMERIC``: differs by rounding.
    ``SEMANTIC``: training itself changes a little.
    """

    EXACT = 0
    NUMERIC = 1
    SEMANTIC = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Target(str, Enum):
    """The device the rewritten script is meant to run on.

    ``AUTO`` means CUDA for every script that mentions it (or chooses its device at run time), else the CPU.
    """

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


class AmpDtype(str, Enum):
    """The half-precision type ``autocast`` emits; ``AUTO`` lets the script pick by its hardware."""

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"


class CompileMode(str, Enum):
    """The mode ``compile`` gives to ``torch.compile``; ``AUTO`` gives none, unless `torchopt tune` finds a better one.

    ``DEFAULT`` is what PyTorch does without a mode: as ``AUTO``, but for keeps.
    """

    AUTO = "auto"
    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"

    @property
    def captures(self) -> bool:
        """Whether networks run as CUDA graphs (``torch._inductor.list_mode_options()``)."""
        return self in {CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE}

    @property
    def autotunes(self) -> bool:
        """Whether kernels of products and convolutions are chosen by their times."""
        return self in {CompileMode.MAX_AUTOTUNE, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS}


NEWEST_TORCH = (2, 15)
OLDEST_TORCH = (2, 2)
MOST_SEEDS = 20
"""Of ``verify --seeds``: so far goes the table of Student's t (:mod:`.comparison.seeds`)."""


@dataclass(frozen=True)
class Options:
    """The options of one rewrite.

    ``torch_version`` and ``python_version`` are ``(major, minor)`` of the user's interpreter, not ours.
    ``platform`` is a :data:`sys.platform` value. ``gpus`` is the number of GPUs to train on, None when unsaid.
    ``accumulate`` is the number of smaller batches each training step is made of, None for steps as they are.
    ``workers`` is how many processes shall make the batches of a loader that has none, 0 for none, None for a choice at
    run time. ``prefetch`` is how many batches each worker makes ahead, None where PyTorch chooses.
    ``batch_size`` is written where training batches get theirs; None leaves that as it is.
    ``sync_batchnorm`` lets BatchNorm see the whole batch of all processes. ``script_arguments`` are those the script is
    to be started with.
    """

    tier: Tier = Tier.NUMERIC
    target: Target = Target.AUTO
    amp: AmpDtype = AmpDtype.AUTO
    compile_mode: CompileMode = CompileMode.AUTO
    gpus: int | None = None
    accumulate: int | None = None
    workers: int | None = None
    prefetch: int | None = None
    batch_size: int | None = None
    sync_batchnorm: bool = False
    script_arguments: tuple[str, ...] = ()
    torch_version: tuple[int, int] = NEWEST_TORCH
    python_version: tuple[int, int] = (3, 12)
    platform: str = sys.platform
    select: frozenset[str] = field(default_factory=frozenset[str])
    ignore: frozenset[str] = field(default_factory=frozenset[str])

    @property
    def forks_workers(self) -> bool:
        """Whether DataLoader workers start by fork, so that an unguarded script is safe.

        macOS and Windows spawn; Linux forks up to Python 3.13 and uses a fork server from 3.14
        (https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods).
        """
        return self.platform.startswith("linux") and self.python_version < (3, 14)
