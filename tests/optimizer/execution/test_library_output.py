"""What libraries print is not what the script says."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.execution.library_output import without_library_output


def gloo(rank: int) -> str:
    return f"[Gloo] Rank {rank} is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"


def test_what_gloo_prints_is_left_out() -> None:
    assert without_library_output(f"{gloo(0)}epoch 0\n{gloo(1)}{gloo(0)}epoch 1\n") == (
        "epoch 0\nepoch 1\n"
    )
    assert without_library_output(gloo(0).rstrip("\n")) == ""


@pytest.mark.parametrize("said", ["3\n", "\nepoch 0\n", "epoch 0\n", ""])
def test_two_ranks_at_once(said: str) -> None:
    first, second = gloo(0), gloo(1)
    cut = first.index(" is connected")
    for together in (
        f"{first[: len('[Gloo] Rank ')]}{second}{first[len('[Gloo] Rank ') :]}",
        f"{first[:cut]}{second.rstrip()}{first[cut:]}\n",
        f"{first.rstrip()}{second}\n",
    ):
        assert without_library_output(f"begin\n{together}{said}") == f"begin\n{said}"


@pytest.mark.parametrize(
    "text",
    ["", "epoch 0: loss 0.5\n", "[Gloo] is what we use\n", f"said: {gloo(0)}", "[Gloo] Rank x\n"],
)
def test_what_the_script_says_stays(text: str) -> None:
    assert without_library_output(text) == text
