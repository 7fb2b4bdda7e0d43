"""What lies on disk whenever a training step begins, however it came there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.checkpoints import compare_checkpoints
from torchopt_cli.optimizer.execution.observations import (
    Checkpoint,
    CheckpointEntry,
    Observations,
)
from torchopt_cli.optimizer.execution.recorded import Move
from torchopt_cli.optimizer.execution.standing import standing


def save(path: str, rounds: int, value: str = "0") -> Checkpoint:
    return Checkpoint(path, rounds, {"": CheckpointEntry("int", value=value)})


def told(saves: list[Checkpoint], *moves: Move) -> list[tuple[str, int, str | None]]:
    stood, _ = standing(saves, moves)
    return [(one.path, one.rounds, one.entries[""].value) for one in stood]


def test_the_last_of_several_saves_between_two_steps_stands() -> None:
    saves = [save("a.pt", 1, "1"), save("b.pt", 1, "2"), save("a.pt", 1, "3"), save("a.pt", 2, "4")]
    assert told(saves) == [("b.pt", 1, "2"), ("a.pt", 1, "3"), ("a.pt", 2, "4")]


def test_what_is_saved_in_no_file_stays() -> None:
    assert len(told([save("<stream>", 1), save("<stream>", 1)])) == 2


def test_a_file_saved_under_another_name_and_renamed() -> None:
    moves = [Move("a.tmp", "a.pt", False, rounds, rounds) for rounds in (1, 2)]
    renamed = told([save("a.tmp", 1, "1"), save("a.tmp", 2, "2")], *moves)
    assert renamed == told([save("a.pt", 1, "1"), save("a.pt", 2, "2")])


def test_a_copy_stands_beside_the_file() -> None:
    copied = told([save("last.pt", 3)], Move("last.pt", "best.pt", True, 3, 1))
    assert copied == told([save("last.pt", 3), save("best.pt", 3)])


def test_a_copy_made_after_the_next_step_has_its_rounds() -> None:
    copied = told([save("last.pt", 3)], Move("last.pt", "best.pt", True, 4, 1))
    assert copied == [("last.pt", 3, "0"), ("best.pt", 4, "0")]


def test_what_something_unknown_is_copied_over_is_gone() -> None:
    stood, gone = standing([save("a.pt", 1)], [Move("other", "a.pt", True, 2, 1)])
    assert ([one.rounds for one in stood], gone) == ([1], ("a.pt",))


def test_files_that_are_removed() -> None:
    saves = [save("1.pt", 1), save("2.pt", 2), save("tmp.pt", 2)]
    moves = [Move("1.pt", None, False, 2, 2), Move("tmp.pt", None, False, 2, 3)]
    stood, gone = standing(saves, moves)
    assert [one.path for one in stood] == ["1.pt", "2.pt"]
    assert gone == ("1.pt",)


SCRIPT = """\
import os, shutil
from pathlib import Path
import torch

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    {}
"""
ORIGINAL = """\
torch.save(model.state_dict(), "new.pt")
    os.replace("new.pt", f"epoch{epoch}.pt")
    shutil.copy(f"epoch{epoch}.pt", "last.pt")
    if epoch:
        Path(f"epoch{epoch - 1}.pt").unlink()
"""
SAME = """\
torch.save(model.state_dict(), f"epoch{epoch}.pt")
    torch.save(model.state_dict(), "last.pt")
    if epoch:
        os.remove(f"epoch{epoch - 1}.pt")
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        (SAME, []),
        (SAME.replace("os.remove", "print"), ["epoch0.pt is not removed any more"]),
        (
            SAME.replace('    torch.save(model.state_dict(), "last.pt")\n', ""),
            ["last.pt is saved never, not 3 times"],
        ),
    ],
)
def test_how_checkpoints_come_there_makes_no_difference(
    project: Callable[[Mapping[str, str]], Path],
    observe: Callable[..., Observations],
    changed: str,
    messages: list[str],
) -> None:
    folder = project({"train.py": SCRIPT.format(ORIGINAL), "changed.py": SCRIPT.format(changed)})
    ours, theirs = observe(folder), observe(folder, entry="changed.py")
    found = [finding.message for finding in compare_checkpoints(ours, theirs)]
    assert found[: len(messages)] == messages
    assert bool(found) == bool(messages)
    assert not {file.path for file in ours.files} & {one.path for one in ours.checkpoints}
