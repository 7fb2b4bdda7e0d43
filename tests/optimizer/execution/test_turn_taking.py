"""Runs that take turns: who computes when, and what becomes of those that end, fail or find no room."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.execution import turn_taking as module
from torchopt_cli.optimizer.execution.observations import Observations, Status, Timing
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.execution.turn_taking import Start, run_in_turns

# The probe's side of it, without torch: so many rounds, a rest after each but the last, and a thread that never rests.
PROGRAM = """
import json, os, sys, threading, time
folder, rounds, host = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tell, ask = os.open(folder + "/resting", os.O_WRONLY), os.open(folder + "/go", os.O_RDONLY)
ticks, turns, alone = [], [], False
def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
for number in range(rounds):
    began = time.monotonic()
    time.sleep(0.02)
    turns.append([began, time.monotonic()])
    if number < rounds - 1 and not alone:
        needs = {"group": os.getpid(), "host": host, "device_room": True} if number == 0 else {}
        os.write(tell, json.dumps(needs).encode() + b"\\n")
        alone = os.read(ask, 1) != b"t"
print(json.dumps([turns, ticks, alone]))
sys.exit(0 if rounds else 1)
"""


class Made:
    """Runs of :data:`PROGRAM`; ``rounds`` of those whose script is so named."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self.rounds = rounds
        self.host = 1 << 20
        self.asked: list[tuple[str, RunSettings]] = []
        self.seen: dict[str, Any] = {}

    def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        name = version.entry.stem
        self.asked.append((name, settings))
        rounds = self.rounds[name] if settings.in_turns else 1
        text = "[[], [], true]"
        if rounds and settings.in_turns:
            command = [sys.executable, "-c", PROGRAM, str(folder), str(rounds), str(self.host)]
            done = subprocess.run(command, stdout=subprocess.PIPE, start_new_session=True)
            text = done.stdout.decode()
            status = Status.STOPPED if done.returncode == 0 else Status.KILLED
        else:
            status = Status.STOPPED if rounds else Status.FAILED
        self.seen[name] = json.loads(text or "null")
        return Observations(
            folder=folder,
            status=status,
            exit_code=0,
            traceback=None,
            stdout="",
            stderr="",
            stdout_cut=False,
            stderr_cut=False,
            rounds=rounds,
            optimizer_seen=True,
            timing=Timing(1.0),
        )


@pytest.fixture
def starts(tmp_path: Path) -> Callable[..., list[Start]]:
    def make(*names: str, processes: int | None = None) -> list[Start]:
        settings = RunSettings(Path("python"), tmp_path, mode=Mode.TIME, timeout_s=20.0)
        return [
            Start(ScriptVersion(Path(f"{name}.py"), processes=processes), settings, tmp_path / name)
            for name in names
        ]

    return make


Starts = Callable[..., list[Start]]


def turns_of(made: Made) -> str:
    """Who took the turns, in their order; no two overlap."""
    turns = sorted((*turn, name) for name in made.seen for turn in made.seen[name][0])
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(turns))
    return "".join(name for *_, name in turns)


def test_one_computes_at_a_time_there_and_back(starts: Starts) -> None:
    made = Made({"a": 6, "b": 6})
    seen = run_in_turns(starts("a", "b"), made.run)
    assert [one.folder.name for one in seen] == ["a", "b"]
    assert turns_of(made) == "ab" + "abba" + "abba" + "ab", "their first rounds, then turns"
    assert {how.timeout_s for _, how in made.asked} == {40.0}


def test_all_may_start_at_the_same_time(starts: Starts) -> None:
    made = Made({"a": 6, "b": 6, "c": 6})
    seen = run_in_turns(starts("a", "b", "c"), made.run, start_together=True)
    assert [one.folder.name for one in seen] == ["a", "b", "c"]
    firsts, others = zip(*((turns[0], turns[1:]) for turns, *_ in made.seen.values()), strict=True)
    assert max(end for _, end in firsts) < min(turn[0] for turns in others for turn in turns)
    later = sorted(turn for turns in others for turn in turns)
    assert all(end <= start for (_, end), (start, _) in pairwise(later))


def test_one_that_fails_while_all_start_is_made_again_by_itself(starts: Starts) -> None:
    made = Made({"a": 0, "b": 4, "c": 4})
    seen = run_in_turns(starts("a", "b", "c"), made.run, start_together=True)
    assert [one.folder.name for one in seen] == ["a-alone", "b", "c"]
    assert [len(made.seen[name][0]) for name in "bc"] == [4, 4]


def test_of_more_than_two_nobody_takes_two_turns_in_a_row(starts: Starts) -> None:
    made = Made({"a": 12, "b": 12, "c": 12})
    seen = run_in_turns(starts("a", "b", "c"), made.run)
    assert [one.folder.name for one in seen] == ["a", "b", "c"]
    order = turns_of(made)
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 2
    assert all(one != other for one, other in pairwise(order[: 3 * 10]))


def test_what_a_run_does_beside_its_rounds_rests_with_it(starts: Starts) -> None:
    made = Made({"a": 6, "b": 6})
    run_in_turns(starts("a", "b"), made.run)
    for one, other in ("ab", "ba"):
        ticks = made.seen[one][1]
        assert len(ticks) > 20
        for began, ended in made.seen[other][0][1:]:
            assert not [t for t in ticks if began + 0.005 < t < ended]


def test_the_last_one_left_goes_on_alone(starts: Starts) -> None:
    made = Made({"a": 3, "b": 9})
    run_in_turns(starts("a", "b"), made.run)
    assert len(made.seen["b"][0]) == 9
    assert made.seen["b"][2] is True
    assert made.seen["a"][2] is False


def test_without_room_for_two_they_run_one_after_the_other(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 3 << 20)
    made = Made({"a": 3, "b": 3})
    made.host = 2 << 20
    run_in_turns(starts("a", "b"), made.run)
    assert [made.seen[name][2] for name in "ab"] == [True, True]
    assert made.seen["a"][0][-1][1] < made.seen["b"][0][0][0]


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_one_alone_and_several_ranks_do_not_rest(starts: Starts, names: tuple[str, ...]) -> None:
    made = Made(dict.fromkeys(names, 3))
    run_in_turns(starts(*names, processes=2 if len(names) > 1 else None), made.run)
    assert [(name, how.in_turns) for name, how in made.asked] == [(name, False) for name in names]


def test_one_that_never_rests_leaves_the_machine_to_the_next(starts: Starts) -> None:
    made = Made({"a": 0, "b": 4})
    seen = run_in_turns(starts("a", "b"), made.run)
    assert [one.status for one in seen] == [Status.FAILED, Status.STOPPED]
    assert made.seen["b"][2] is True
    assert len(made.asked) == 2, "it did not fail for want of room"


def test_one_that_fails_beside_others_is_run_again_alone(starts: Starts) -> None:
    class Failing(Made):
        def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
            seen = super().run(version, settings, folder)
            if settings.in_turns and version.entry.stem == "b":
                object.__setattr__(seen, "status", Status.FAILED)
            return seen

    made = Failing({"a": 3, "b": 3})
    seen = run_in_turns(starts("a", "b"), made.run)
    assert [one.status for one in seen] == [Status.STOPPED, Status.STOPPED]
    assert [name for name, how in made.asked if not how.in_turns] == ["b"]


def test_an_interrupted_run_ends_the_others(starts: Starts) -> None:
    ended: list[str] = []

    class Interrupted(Made):
        def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
            if version.entry.stem == "b":
                raise KeyboardInterrupt
            assert settings.ended_by is not None
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(folder), "1000", "1"], start_new_session=True
            )
            select.select([settings.ended_by], [], [])
            process.kill()
            ended.append(version.entry.stem)
            return super().run(version, settings, folder)

    with pytest.raises(KeyboardInterrupt):
        run_in_turns(starts("a", "b"), Interrupted({"a": 0}).run)
    assert ended == ["a"]


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_with_workers_takes_turns_with_one_without(
    project: Callable[[Mapping[str, str]], Path], tmp_path: Path
) -> None:
    script = """\
        import sys
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        def main():
            model = nn.Linear(8, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
            loader = DataLoader(data, batch_size=8, num_workers=int(sys.argv[1]))
            for _ in range(3):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()

        if __name__ == "__main__":
            main()
    """
    folder = project({"train.py": script})
    settings = RunSettings(
        Path(sys.executable), folder, steps=20, mode=Mode.TIME, timeout_s=120.0, block_steps=3
    )
    found = run_in_turns(
        [
            Start(ScriptVersion(folder / "train.py", args=(n,)), settings, tmp_path / f"run{n}")
            for n in "02"
        ],
        run,
    )
    for one in found:
        assert (one.status, one.rounds) == (Status.STOPPED, 20)
        assert one.timing.synchronised == (0, 3, 6, 9, 12, 15, 18, 19)
        assert one.timing.turns == 7
        assert not one.timing.asynchronous
