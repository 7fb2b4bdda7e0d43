"""The search, over made-up machines on which each change is worth a known factor."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Versions
from torchopt_cli.optimizer.execution.profile_record import Operator
from torchopt_cli.optimizer.options import AmpDtype, CompileMode, Options, Target
from torchopt_cli.optimizer.profiling.profile import StepProfile
from torchopt_cli.optimizer.tuning.configurations import (
    Configuration,
    Rewriter,
    alternatives,
    groups,
    worth_trying,
)
from torchopt_cli.optimizer.tuning.search import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    Failed,
    NoTimeLeft,
    Outcome,
    Refused,
    Search,
    Trial,
)
from torchopt_cli.optimizer.tuning.tune import trial_teller
from torchopt_cli.transforms.registry import all_transforms

TRAINING = """
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""


class Machine:
    """``worth`` maps a set of transforms to the factor that they bring when all of them run."""

    def __init__(self, worth: dict[frozenset[str], float], noise: float = 0.002) -> None:
        self.worth, self.noise = worth, noise
        self.workers: dict[int | None, float] = {}
        self.prefetch: dict[int | None, float] = {}
        self.modes: dict[CompileMode | None, float] = {}
        self.refused: frozenset[CompileMode] = frozenset()
        self.waits: float | None = 0.0
        self.fails: frozenset[str] = frozenset()
        self.pairs: list[tuple[Configuration, Configuration]] = []
        self.limit = 10_000
        self._random = random.Random(0)

    def speed(self, one: Configuration) -> float:
        speed = math.prod(f for names, f in self.worth.items() if names <= one.transforms)
        if "dataloader-workers" in one.transforms:
            speed *= self.workers.get(one.workers, 1.0) * self.prefetch.get(one.prefetch, 1.0)
        if "compile" in one.transforms:
            speed *= self.modes.get(one.compile_mode, 1.0)
        return speed

    def pair(self, best: Configuration, candidate: Configuration, number: int) -> float:
        if len(self.pairs) >= self.limit:
            raise NoTimeLeft
        if candidate.compile_mode in self.refused:
            raise Refused("a graph of several networks")
        self.pairs.append((best, candidate))
        if candidate.transforms & self.fails:
            raise Failed
        ratio = math.log(self.speed(candidate) / self.speed(best))
        return ratio + self._random.gauss(0.0, self.noise)


def worth(**factors: float) -> dict[frozenset[str], float]:
    return {frozenset(name.replace("_", "-").split("--")): f for name, f in factors.items()}


def search(
    machine: Machine,
    *names: str,
    bounds: dict[str, float] | None = None,
    **numbers: Sequence[int | AmpDtype | CompileMode],
) -> tuple[Configuration, list[Trial]]:
    told: list[Trial] = []
    done = Search(machine.pair, told.append, lambda _: machine.waits)
    best = done.run(Configuration(frozenset(names)), (bounds or {}).get, numbers)
    assert told == done.trials
    return best, done.trials


def test_what_pays_is_kept_and_what_does_not_is_dropped() -> None:
    machine = Machine(worth(compile=1.3, tf32=1.0, defer_sync=1.1, channels_last=0.8))
    best, trials = search(machine, "compile", "tf32", "defer-sync", "channels-last")
    assert best.transforms == {"compile", "defer-sync"}
    outcomes = {trial.change: trial.outcome for trial in trials}
    assert outcomes["+ compile"] is Outcome.ADOPTED
    assert outcomes["+ tf32"] is Outcome.NOT_PAYING
    assert outcomes["+ channels-last"] is Outcome.NOT_PAYING


def test_losers_are_stopped_early_and_ties_measured_longer() -> None:
    machine = Machine(worth(slow=0.8, slower=0.5, even=1.0), noise=0.02)
    _, trials = search(machine, "slow", "slower", "even")
    pairs = {trial.change: trial.pairs for trial in trials}
    assert pairs["+ slow"] == 2
    assert pairs["+ slower"] == 1
    assert pairs["+ even"] >= FEWEST_PAIRS
    assert max(pairs.values()) <= MOST_PAIRS


def test_the_cheapest_evidence_comes_first() -> None:
    machine = Machine(worth(a=1.2, b=1.2, c=1.2, d=1.2))
    _, trials = search(machine, "a", "b", "c", "d", bounds={"c": 0.5, "a": 0.25, "d": 1e-4})
    assert [trial.change for trial in trials] == ["+ a, b, c, d", "+ c", "+ a", "+ d", "+ b"]


def test_what_pays_only_together_is_tried_together() -> None:
    both = frozenset({"pin-memory", "non-blocking"})
    assert groups(both | {"tf32"}, {}.get) == [both, frozenset({"tf32"})]
    machine = Machine({both: 1.2})
    assert search(machine, *both)[0].transforms == both
    others = frozenset({"x", "y"})
    best, trials = search(Machine({others: 1.5}), "x", "y")
    assert best.transforms == others
    assert [trial.change for trial in trials] == ["+ x, y", "+ x", "+ y"]


def test_the_number_of_workers_is_chosen() -> None:
    machine = Machine(worth(dataloader_workers=1.2))
    machine.workers = {None: 1.0, 2: 1.3, 4: 0.9}
    best, trials = search(machine, "dataloader-workers", workers=[2, 1, 4])
    assert best == Configuration(frozenset({"dataloader-workers"}), workers=2)
    changes = ["+ dataloader-workers", "2 workers", "1 worker", "4 workers"]
    assert [t.change for t in trials] == [*changes, "the numbers of a plain rewrite"]


def test_workers_that_do_not_help_are_left_out() -> None:
    machine = Machine(worth(dataloader_workers=0.7, compile=1.2))
    best, trials = search(machine, "dataloader-workers", "compile", workers=[1, 2])
    assert best.transforms == {"compile"}
    assert not any("workers" in t.change and t.candidate.workers for t in trials)


def test_other_half_precision_types_are_tried() -> None:
    started = Configuration(frozenset({"autocast"}))
    found = alternatives(started, started, "amp", [AmpDtype.BF16, AmpDtype.FP16])
    assert found == [replace(started, amp=AmpDtype.BF16), replace(started, amp=AmpDtype.FP16)]
    with_workers = Configuration(started.transforms | {"dataloader-workers"})
    assert alternatives(started, with_workers, "workers", [2]) == []


def test_what_waits_to_be_asked_for_is_tried_with_its_number() -> None:
    machine = Machine(worth(compile=1.2, no_grad=1.1))
    modes = [CompileMode.DEFAULT, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]
    best, trials = search(machine, "no-grad", compile_mode=modes)
    both = frozenset({"no-grad", "compile"})
    assert best == Configuration(both, compile_mode=CompileMode.DEFAULT)
    assert "+ compile mode default" in [t.change for t in trials]


def test_what_only_waits_to_be_asked_for() -> None:
    machine = Machine(worth(compile=1.2))
    best, trials = search(machine, compile_mode=[CompileMode.DEFAULT])
    assert best == Configuration(frozenset({"compile"}), compile_mode=CompileMode.DEFAULT)
    assert [t.change for t in trials] == ["+ compile mode default"]


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        (Options(target=Target.CPU), True),
        (Options(target=Target.CPU, compile_mode=CompileMode.DEFAULT), False),
        (Options(), False),
    ],
)
def test_compiling_waits_to_be_asked_for_on_a_cpu(
    tmp_path: Path, options: Options, waits: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    assert Rewriter(script, all_transforms(), options).waits_to_be_asked() is waits


def test_what_waits_to_be_asked_for_goes_again_where_it_does_not_pay() -> None:
    machine = Machine(worth(compile=0.8, no_grad=1.1))
    best, trials = search(machine, "no-grad", compile_mode=[CompileMode.DEFAULT])
    assert best == Configuration(frozenset({"no-grad"}))
    assert [t.outcome for t in trials if "compile" in t.candidate.transforms] == [
        Outcome.NOT_PAYING
    ]


CONVOLUTIONS = """
import torch
from torch import nn
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(train_set, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        (CONVOLUTIONS, Options(target=Target.CPU), ("channels-last",)),
        (CONVOLUTIONS, Options(target=Target.CPU, ignore=frozenset({"channels-last"})), ()),
        (CONVOLUTIONS, Options(target=Target.CPU, select=frozenset({"compile"})), ()),
        (CONVOLUTIONS, Options(target=Target.CUDA), ()),
        (TRAINING, Options(target=Target.CPU), ()),
    ],
)
def test_what_is_selected_by_name_on_a_cpu(
    tmp_path: Path, text: str, options: Options, found: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    rewriter = Rewriter(script, all_transforms(), options)
    assert rewriter.on_request() == found
    assert rewriter.plain().transforms.isdisjoint(found)
    together = rewriter.rewrite(Configuration(frozenset({"fused-optimizer", *found})))
    changed = {change.transform for file in together.files for change in file.changes}
    assert changed >= {*found}


@pytest.mark.parametrize(("factor", "kept"), [(1.2, True), (0.9, False)])
def test_what_waits_to_be_selected_is_tried_beside_the_best(factor: float, kept: bool) -> None:
    machine = Machine(worth(channels_last=factor, no_grad=1.1))
    done = Search(machine.pair, lambda _: None, lambda _: None)
    plain, bounds = Configuration(frozenset({"no-grad"})), {"channels-last": 0.5, "no-grad": 0.1}
    best = done.run(plain, bounds.get, {}, ["channels-last"])
    assert best.transforms == ({"no-grad", "channels-last"} if kept else {"no-grad"})
    changes = [trial.change for trial in done.trials]
    assert changes[:3] == ["+ no-grad", "+ channels-last", "+ no-grad"][: 3 if kept else 2]


def test_a_transform_that_refuses_to_be_asked_gives_its_reason_once() -> None:
    machine = Machine(worth(no_grad=1.1))
    machine.refused = frozenset(CompileMode)
    modes = [CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]
    best, trials = search(machine, "no-grad", compile_mode=modes)
    assert best == Configuration(frozenset({"no-grad"}))
    assert [t.reason for t in trials if t.reason] == ["a graph of several networks"]


def test_a_number_is_tried_beside_those_that_were_taken() -> None:
    machine = Machine(worth(dataloader_workers=1.2, compile=1.2))
    machine.workers = {2: 1.3}
    machine.modes = {CompileMode.REDUCE_OVERHEAD: 1.4}
    modes = [CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]
    best, trials = search(machine, "dataloader-workers", "compile", workers=[2], compile_mode=modes)
    assert (best.workers, best.compile_mode) == (2, CompileMode.REDUCE_OVERHEAD)
    assert [t.change for t in trials[3:]] == [
        "2 workers",
        "mode reduce-overhead",
        "mode max-autotune-no-cudagraphs",
        "the numbers of a plain rewrite",
    ]


def test_a_mode_that_does_not_pay_or_is_refused_is_left_out() -> None:
    machine = Machine(worth(compile=1.2))
    machine.modes = {CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS: 0.99}
    machine.refused = frozenset({CompileMode.REDUCE_OVERHEAD})
    modes = [CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]
    best, trials = search(machine, "compile", compile_mode=modes)
    assert best == Configuration(frozenset({"compile"}))
    assert [t.outcome for t in trials[1:]] == [Outcome.REFUSED, Outcome.NOT_PAYING]
    assert trials[1].reason == "a graph of several networks"


def test_no_mode_is_tried_where_compiling_does_not_pay() -> None:
    machine = Machine(worth(compile=0.8, tf32=1.2))
    best, trials = search(machine, "compile", "tf32", compile_mode=[CompileMode.REDUCE_OVERHEAD])
    assert best == Configuration(frozenset({"tf32"}))
    assert not [t for t in trials if t.candidate.compile_mode]


@pytest.mark.parametrize(("waits", "taken"), [(0.3, 8), (0.01, None), (None, None)])
def test_more_batches_are_made_ahead_where_steps_still_wait(
    waits: float | None, taken: int | None
) -> None:
    machine = Machine(worth(dataloader_workers=1.2))
    machine.prefetch, machine.waits = {4: 1.1, 8: 1.3}, waits
    best, trials = search(machine, "dataloader-workers", workers=[], prefetch=[4, 8])
    assert best == Configuration(frozenset({"dataloader-workers"}), prefetch=taken)
    assert any("8 batches ahead" in t.change for t in trials) == (taken is not None)


CPU, GPU = (Versions("3.12", "2.10", device) for device in ("cpu", "cuda"))
PRODUCTS = (Operator("aten::addmm", 4.0, 9.0, 1.5),)
BATCHED = (*PRODUCTS, Operator("aten::bmm", 4.0, 9.0, 1.5))


@pytest.mark.parametrize(
    ("versions", "operators", "modes"),
    [
        (GPU, PRODUCTS, [CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]),
        (CPU, BATCHED, [CompileMode.DEFAULT, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]),
        (CPU, PRODUCTS, [CompileMode.DEFAULT]),
    ],
)
def test_the_modes_that_mean_something(
    versions: Versions, operators: tuple[Operator, ...], modes: list[CompileMode]
) -> None:
    profile = StepProfile(versions, 50, 0.1, None, (), operators, (), None, None, None, None, None)
    assert worth_trying(Options(), profile, 2) == {
        "workers": [1, 2],
        "prefetch": [4, 8],
        "amp": [AmpDtype.BF16, AmpDtype.FP16],
        "compile_mode": modes,
    }


def test_a_number_that_the_user_gave_stays() -> None:
    profile = StepProfile(GPU, 50, 0.1, None, (), BATCHED, (), None, None, None, None, None)
    given = Options(workers=3, prefetch=3, amp=AmpDtype.BF16, compile_mode=CompileMode.DEFAULT)
    assert worth_trying(given, profile, 8) == {}


@pytest.mark.parametrize(
    "options",
    [
        Options(select=frozenset({"compile"})),
        Options(ignore=frozenset({"autocast", "dataloader-workers"})),
    ],
)
def test_numbers_of_transforms_that_the_user_left_out_are_not_tried(options: Options) -> None:
    profile = StepProfile(None, 50, 0.1, None, (), (), (), None, None, None, None, None)
    assert worth_trying(options, profile, 4).keys() == {"compile_mode"}


def test_nothing_is_measured_twice() -> None:
    machine = Machine(worth(a=1.2))
    _, trials = search(machine, "a")
    assert [(trial.change, trial.pairs) for trial in trials] == [("+ a", FEWEST_PAIRS)]
    assert len(machine.pairs) == FEWEST_PAIRS


def test_numbers_go_with_the_transform_that_writes_them() -> None:
    started = Configuration(
        frozenset({"compile", "autocast"}), amp=AmpDtype.BF16, compile_mode=CompileMode.MAX_AUTOTUNE
    )
    assert started.with_only(frozenset({"autocast"})) == Configuration(
        frozenset({"autocast"}), amp=AmpDtype.BF16
    )
    assert started.numbers_of({"compile", "tf32"}) == {"compile_mode"}
    assert replace(started, compile_mode=None).numbers_of({"compile"}) == frozenset()


def test_never_slower_than_a_plain_rewrite() -> None:
    """Each change alone is too small to be seen, all together they are not."""
    names = [f"t{n}" for n in range(8)]
    machine = Machine({frozenset({name}): 1.012 for name in names}, noise=0.03)
    machine._random.seed(5)
    best, trials = search(machine, *names)
    last = trials[-1]
    assert last.candidate.transforms == frozenset(names)
    assert machine.speed(best) >= 1.0


def test_a_change_that_fails_is_left_out() -> None:
    machine = Machine(worth(compile=1.3, tf32=1.2))
    machine.fails = frozenset({"compile"})
    best, trials = search(machine, "compile", "tf32")
    assert best.transforms == {"tf32"}
    assert {t.outcome for t in trials if "compile" in t.change} == {Outcome.FAILED}


def test_what_there_is_no_time_for_is_said() -> None:
    machine = Machine(worth(a=0.7, b=1.3, c=1.3))
    machine.limit = 8  # the plain rewrite, then `a` in two pairs, then `b` in three
    best, trials = search(machine, "a", "b", "c", bounds={"a": 3.0, "b": 2.0, "c": 1.0})
    assert [t.outcome for t in trials[:4]] == [
        Outcome.ADOPTED,
        Outcome.NOT_PAYING,
        Outcome.ADOPTED,
        Outcome.NO_TIME,
    ]
    assert best.transforms == {"b"}  # gains more than the plain rewrite did


def test_what_there_is_no_time_to_begin_is_told_once() -> None:
    told: list[str] = []
    tell = trial_teller(told.append)
    names = [Configuration(frozenset({name})) for name in "abcd"]
    tell(Trial(Configuration(), names[0], Outcome.NO_TIME, ratios=(0.1,)))
    for candidate in names[1:]:
        tell(Trial(Configuration(), candidate, Outcome.NO_TIME))
    assert told == ["+ a: no time left", "no time left to try more"]


def test_without_time_for_more_the_plain_rewrite_stays() -> None:
    machine = Machine(worth(a=1.3, b=1.3))
    machine.limit = 3
    best, trials = search(machine, "a", "b")
    assert best.transforms == {"a", "b"}
    assert {t.outcome for t in trials[1:]} == {Outcome.NO_TIME}
    machine = Machine(worth(a=0.7, b=1.0))
    machine.limit = 2
    assert search(machine, "a", "b")[0] == Configuration()


def test_what_cannot_save_anything_is_measured_only_beside_the_rest() -> None:
    machine = Machine(worth(compile=1.3, autocast=1.0, tf32=1.0))
    best, trials = search(
        machine, "compile", "autocast", "tf32", bounds={"compile": 0.1, "autocast": 0.0, "tf32": 0}
    )
    assert best.transforms == {"compile"}
    outcomes = {t.change: t.outcome for t in trials}
    assert outcomes["+ autocast"] is outcomes["+ tf32"] is Outcome.NOTHING_TO_SAVE
    assert outcomes["+ autocast, tf32"] is Outcome.NOT_PAYING
    alone = [frozenset({"compile", name}) for name in ("autocast", "tf32")]
    assert not [pair for pair in machine.pairs if pair[1].transforms in alone]


def test_a_transform_of_which_nothing_is_known_is_measured() -> None:
    _, trials = search(Machine(worth(a=1.2)), "a", "b")
    assert Outcome.NOTHING_TO_SAVE not in {trial.outcome for trial in trials}


@pytest.mark.parametrize(("noise", "taken"), [(0.05, {"a", "b"}), (0.0, {"a"})])
def test_a_plain_rewrite_that_seems_faster_is_taken(noise: float, taken: set[str]) -> None:
    """What b buys does not show by itself; but the best without it must not end below the plain rewrite."""

    def pair(best: Configuration, candidate: Configuration, number: int) -> float:
        gain = math.log(1.3) * (("a" in candidate.transforms) - ("a" in best.transforms))
        of_b = ("b" in candidate.transforms) - ("b" in best.transforms)
        return gain + of_b * noise * (1 if number % 3 else -0.5)

    done = Search(pair, lambda _: None, lambda _: None)
    best = done.run(Configuration(frozenset("ab")), {"a": 1.0}.get, {})
    assert best.transforms == taken


def test_a_plain_rewrite_not_shown_to_be_faster_does_not_replace_the_script_as_it_is() -> None:
    def pair(best: Configuration, candidate: Configuration, number: int) -> float:
        direction = len(candidate.transforms) - len(best.transforms)
        return math.copysign(0.05, direction) * (1 if number % 3 else -0.5)

    done = Search(pair, lambda _: None, lambda _: None)
    assert done.run(Configuration(frozenset("ab")), lambda _: None, {}) == Configuration()


@pytest.mark.parametrize(
    ("ratios", "limit", "pairs"),
    [
        ([0.1, -0.02, 0.1, -0.02, 0.1, -0.02], 99, 6),  # seen to an end, and not shown
        ([0.1, 0.02, -0.02], 3, 3),
        ([0.1], 1, 1),
        ([0.03, -0.02, 0.03, -0.02, 0.03, -0.02], 99, None),  # too little to look again
        ([0.1, 0.1, 0.1], 99, None),  # shown
        ([], 0, None),
        ([-0.1, -0.1], 99, None),
    ],
)
def test_a_plain_rewrite_that_only_seems_to_be_faster_is_in_doubt(
    ratios: list[float], limit: int, pairs: int | None
) -> None:
    plain = Configuration(frozenset("ab"))
    left = iter(ratios)

    def pair(best: Configuration, candidate: Configuration, number: int) -> float:
        nonlocal limit
        limit -= 1
        if limit < 0:
            raise NoTimeLeft
        return next(left) if candidate == plain else 0.0

    done = Search(pair, lambda _: None, lambda _: None)
    best = done.run(plain, lambda _: 1.0, {})
    found = done.in_doubt
    assert (None if found is None else found.pairs) == pairs
    assert found is None or (best == Configuration() and found.candidate == plain)


def test_a_plain_rewrite_that_fails_is_not_in_doubt() -> None:
    machine = Machine(worth(a=1.3))
    machine.fails = frozenset("a")
    done = Search(machine.pair, lambda _: None, lambda _: None)
    assert done.run(Configuration(frozenset("a")), lambda _: None, {}) == Configuration()
    assert done.in_doubt is None
