import math

from torchopt_cli.optimizer.comparison.figures import StepFigures
from torchopt_cli.optimizer.verifying.curves import loss_curves


def figures(ours: list[float], theirs: list[float], optimizer: int = 0) -> list[StepFigures]:
    both = enumerate(zip(ours, theirs, strict=True), start=1)
    return [StepFigures(i, optimizer, a, b, 0.0, 1.0, 1.0) for i, (a, b) in both]


def test_both_curves_share_a_scale() -> None:
    assert loss_curves(figures([8.0, 4.0, 1.0], [8.0, 6.0, 5.0])) == [
        "loss, original  █▄▁ 1 to 8",
        "loss, rewritten █▆▅ 1 to 8",
    ]


def test_long_runs_are_drawn_in_means_and_what_is_not_finite_is_marked() -> None:
    falling = [float(180 - i) for i in range(180)]
    broken = [*falling[:-1], math.nan]
    ours, theirs = (line.split()[2] for line in loss_curves(figures(falling, broken)))
    assert (len(ours), ours[0], ours[-1]) == (60, "█", "▁")
    assert (len(theirs), theirs[-1]) == (60, "!")


def test_every_optimizer_has_its_curves() -> None:
    steps = [*figures([1.0] * 3, [1.0] * 3), *figures([2.0, 1.0, 0.0], [2.0] * 3, 1)]
    assert len(loss_curves(steps)) == 4


def test_what_is_too_short_or_unknown_is_not_drawn() -> None:
    assert loss_curves(figures([1.0, 2.0], [1.0, 2.0])) == []
    assert loss_curves([StepFigures(i, 0, None, 1.0, 0.0, 1.0, 1.0) for i in range(4)]) == []
    assert loss_curves(figures([math.inf] * 3, [math.nan] * 3)) == []
