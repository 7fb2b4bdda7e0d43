"""``--attribute``: what each transform of a rewrite buys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Settings
from ..measuring.ablation import Ablation, measure_gains
from ..terminal import progress_bar
from ..verifying.verified_rewrite import Rewrite
from .verify import verify_settings

if TYPE_CHECKING:
    from ...transforms.base import Transform


def attributed(
    script: Path,
    rewrite: Rewrite,
    transforms: Sequence[Transform],
    round_seconds: float,
    settings: Settings,
    arguments: tuple[str, ...],
) -> Ablation:
    """The gains of the transforms that ``rewrite`` (without those it is told) applies to ``script``."""
    from ...transforms.registry import changing

    with progress_bar() as show:
        return measure_gains(
            script,
            rewrite,
            changing(transforms),
            verify_settings(settings),
            round_seconds,
            arguments,
            lambda what, p: show(p.done, p.total, f"{what}: {p.description}"),
        )
