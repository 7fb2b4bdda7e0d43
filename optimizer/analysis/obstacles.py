"""What keeps code from running in half precision."""

from __future__ import annotations

from dataclasses import dataclass

from .facts import Fact


@dataclass(frozen=True, eq=False)
class Obstacle(Fact):
    """Code that half precision breaks; only float16 when ``float16_only``. ``message`` says how."""

    message: str
    float16_only: bool = False


@dataclass(frozen=True, eq=False)
class ProbabilityLoss(Obstacle):
    """Binary cross entropy of probabilities: the same loss of logits would be no obstacle."""
