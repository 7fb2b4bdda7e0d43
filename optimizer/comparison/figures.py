"""The figures behind a verdict: what was compared, how far apart the runs are, and how far apart they may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepFigures:
    """One call of ``optimizer.step()`` in both runs; ``step`` counts from 1, the steps of a GAN's two optimizers alike.

    ``loss`` and ``rewritten_loss`` are sums over the step's backward calls, None where there were none.
    ``allowed`` is the largest difference of the losses that passes; 0 when they are compared bit for bit.
    """

    step: int
    optimizer: int
    loss: float | None
    rewritten_loss: float | None
    allowed: float
    grad_norm: float
    rewritten_grad_norm: float


@dataclass(frozen=True)
class VectorFigures:
    """Many tensors taken as one vector: an optimizer's first gradient, or how far its parameters have moved.

    ``group`` says whose tensors (``optimizer 0``); ``round`` when. ``distance`` and ``allowed`` are relative to the original's length; ``norm_ratio`` is rewritten over original;
    ``cosine`` is between the two, ``neighbour_cosine`` the lowest between the original and its neighbours (None
    without neighbours). ``rounding`` is the part of ``allowed`` that is one layer's rounding, whatever the neighbours do.
    """

    what: str
    group: str
    round: int
    cosine: float
    neighbour_cosine: float | None
    norm_ratio: float
    distance: float
    allowed: float
    rounding: float = 0.0

    @property
    def telling(self) -> bool:
        """Whether a vector at half the original's length from it would have been noticed: also where neighbours are further off, but
        this one as near as it would have to be without any."""
        return self.allowed < TELLING or self.distance <= self.rounding < TELLING


TELLING = 0.5
"""Relative distance that a check must notice to say anything: vectors closer than that have a cosine above 0.86."""
