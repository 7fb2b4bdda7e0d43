"""What rank 0 prints of its own share of a step is known by that step's losses, and nothing else is let through."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.comparison.told_shares import own_share_as_whole

LOSSES, OWN = (0.71234, 0.65111, 0.5), (0.74321, 0.61299, 0.4)


@pytest.mark.parametrize(
    ("original", "told", "count"),
    [
        ("step 3: loss 0.6511", "step 3: loss 0.6130", 1),
        ("[64/128] loss: 0.71", "[32/128] loss: 0.74", 1),
        ("a\nloss 0.712340\nb", "a\nloss 0.743210\nb", 1),
        ("loss 0.7123 0.6511", "loss 0.7432 0.6130", 1),
        ("loss 0.7123", "loss 0.6130", 0),  # of another step
        ("loss 0.6817", "loss 0.6781", 0),  # a mean over steps
        ("[64/128] loss: 0.71", "[31/128] loss: 0.74", 0),
        ("correct 64", "correct 32", 0),  # a count alone
        ("loss 0.71 accuracy 0.5", "loss 0.74 accuracy 0.25", 0),
        ("loss 0.7123", "lost 0.7432", 0),
        ("loss 0.7123\nmore", "loss 0.7432", 0),
        ("1", "0", 0),
    ],
)
def test_lines_of_single_steps(original: str, told: str, count: int) -> None:
    text, found = own_share_as_whole(original, told, LOSSES, OWN, 2)
    assert found == count
    assert text == (original if count else told)
