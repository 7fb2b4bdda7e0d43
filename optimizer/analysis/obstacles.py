"""What stands against a change, such as running code in half precision."""

from __future__ import annotations

from dataclasses import dataclass

from .facts import Fact


@dataclass(frozen=True, eq=False)
class Obstacle(Fact):
    """Code that stands against a change; ``message`` says how.

    Against half precision it stands in float16 only when ``float16_only``, in bfloat16 only when ``bfloat16_only``.
    """

    message: str
    float16_only: bool = False
    bfloat16_only: bool = False

    def forbids(self, *, float16: bool) -> bool:
        """Whether it forbids ``float16``, or else bfloat16."""
        return not (self.bfloat16_only if float16 else self.float16_only)


@dataclass(frozen=True, eq=False)
class Bfloat16Obstacle(Obstacle):
    """Code that bfloat16 breaks and float16 does not; ``in_float16`` says why that is chosen, in few words."""

    bfloat16_only: bool = True
    in_float16: str = ""


@dataclass(frozen=True, eq=False)
class ProbabilityLoss(Obstacle):
    """Binary cross entropy of probabilities: the same loss of logits would be no obstacle."""


@dataclass(frozen=True, eq=False)
class KeptRatio(Obstacle):
    """A ratio to what a network gave before: no step may change that network's precision, whichever phase of a training it is in."""
