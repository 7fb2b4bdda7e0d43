"""How a rewrite is to be verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..comparison.tolerance import Precision
from ..options import Tier

EPOCH_SECONDS = 20.0
"""How much longer each observed run takes, where nobody says how many steps are enough: not as long as a timed one."""


@dataclass(frozen=True)
class VerifySettings:
    """How to verify.

    ``tier`` is the one the rewrite claims; None finds the strictest that holds. ``precision`` is the type whose
    rounding a numeric rewrite may show; None takes it from the run (autocast, TF32, the parameters' types).
    ``steps`` are rounds under observation, ``epoch_seconds`` how much longer a run may take for the end of its first epoch,
    or half as long for its own (0: it does not go on for that); ``timeout_s`` seconds, ``memory_limit`` and ``disk_limit`` bytes per run
    (None: see :mod:`..execution.limits`). ``pairs`` timing runs of each version, each
    of about ``timing_seconds``; ``measure_speed`` turns them off. ``perturbed_runs`` make the numeric envelope.
    ``seeds``: with how many the end losses are compared, where the runs are not bit for bit the same; None compares
    those of changes of training with :data:`.seed_runs.DEFAULT_SEEDS`, and no others.
    torchrun starts the rewrite as so many ``processes``, and an original that is written for several as well.
    With ``emulated_gpus`` both versions see that many CUDA devices, emulated on the CPU, one for each process of the
    rewrite at least, and no speed is measured.
    """

    python: Path
    cwd: Path
    tier: Tier | None = None
    precision: Precision | None = None
    steps: int = 20
    epoch_seconds: float = 0.0
    seed: int = 0
    timeout_s: float = 600.0
    memory_limit: int | None = None
    disk_limit: int | None = None
    pairs: int = 3
    timing_seconds: float = 30.0
    measure_speed: bool = True
    perturbed_runs: int = 3
    seeds: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    processes: int | None = None
    emulated_gpus: int = 0

    @property
    def timed(self) -> bool:
        """Whether there are timed runs."""
        return self.measure_speed and not self.emulated_gpus
