from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.reading import compare_reading, reordered_evaluations
from torchopt_cli.optimizer.execution.observations import (
    EvalCall,
    LoaderPass,
    Observations,
    ReadMark,
    TrainingCalls,
    WorkerStart,
)
from torchopt_cli.optimizer.execution.probe.sampling import ReadOrder

Run = Callable[..., Observations]

EPOCH = (LoaderPass(0, 0, 4, 128, True), LoaderPass(0, 1, 2, 64, False, rounds=4))
SHUFFLED = [3, 7, 0, 5, 1, 6, 2, 4]


@pytest.fixture
def original(run: Run) -> Observations:
    return replace(run(steps=2), loader_passes=EPOCH)


def passes(original: Observations, *changed: LoaderPass) -> list[Finding]:
    return compare_reading(original, replace(original, loader_passes=changed))


def test_the_same_samples_pass(original: Observations) -> None:
    assert compare_reading(original, original) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ((LoaderPass(0, 0, 3, 96, True), EPOCH[1]), "smaller batch dropped"),
        ((LoaderPass(0, 0, 5, 160, True), EPOCH[1]), "32 samples more"),
        ((EPOCH[0], LoaderPass(0, 1, 1, 32, False)), "32 samples fewer"),
        ((EPOCH[0], LoaderPass(0, 1, 5, 160, False)), "96 samples more"),
        ((EPOCH[0],), "never read"),
    ],
    ids=["last batch dropped", "batch doubled", "fewer", "far ahead", "pass missing"],
)
def test_other_samples_fail(
    original: Observations, changed: tuple[LoaderPass, ...], word: str
) -> None:
    (finding,) = passes(original, *changed)
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, True)
    assert word in finding.message


def called(*samples: int) -> tuple[TrainingCalls, ...]:
    return tuple(TrainingCalls("Net", place, n, 0) for place, n in enumerate(samples) if n)


@pytest.mark.parametrize(
    ("before", "after", "fails"),
    [
        (called(32, 32, 32, 32), called(32, 32, 32, 32), False),
        (called(64, 64, 64, 64), called(64, 64, 64, 64), False),
        (called(32, 32, 32, 42), called(32, 32, 32, 32), True),
        (called(32, 32, 32, 32, 10), called(32, 32, 32, 32), True),
        (called(8, 8, 8, 8), called(8, 8, 8, 8), True),
        ((), (), True),
    ],
    ids=["left out", "seen twice", "trained on", "a step behind", "of another loader", "unknown"],
)
def test_a_last_batch_that_no_model_sees_need_not_be_read(
    original: Observations,
    before: tuple[TrainingCalls, ...],
    after: tuple[TrainingCalls, ...],
    fails: bool,
) -> None:
    read = replace(
        original, loader_passes=(LoaderPass(0, 0, 5, 138, True, steps=4),), training_calls=before
    )
    dropped = replace(
        read, loader_passes=(LoaderPass(0, 0, 4, 128, True, steps=4),), training_calls=after
    )
    (finding,) = compare_reading(read, dropped)
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, fails)
    (finding,) = compare_reading(dropped, read)
    assert finding.fails == fails


def test_a_last_batch_that_is_not_evaluated_need_not_be_read(original: Observations) -> None:
    def evaluated(batches: int, samples: int) -> Observations:
        read = LoaderPass(1, 0, batches, 16 * batches - 16 + samples, True, rounds=4)
        return replace(original, loader_passes=(read,), eval_calls=evaluating(16, 16))

    full = evaluated(2, 16)
    (finding,) = compare_reading(evaluated(3, 8), full)
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, False)
    seen = replace(evaluated(3, 8), eval_calls=evaluating(16, 16, 8))
    (finding,) = compare_reading(seen, full)
    assert finding.fails


def test_a_sample_missing_in_the_second_epoch_is_of_its_first_step(original: Observations) -> None:
    (finding,) = passes(original, EPOCH[0], LoaderPass(0, 1, 1, 32, False))
    assert finding.step == 5


@pytest.mark.parametrize(
    "changed",
    [
        (EPOCH[0], LoaderPass(0, 1, 3, 96, False)),
        (LoaderPass(0, 0, 8, 128, True), EPOCH[1]),
        (*EPOCH, LoaderPass(1, 0, 1, 32, False)),
    ],
    ids=["read ahead", "same samples in smaller batches", "one more pass"],
)
def test_what_changes_no_training_is_told(
    original: Observations, changed: tuple[LoaderPass, ...]
) -> None:
    assert [(f.kind, f.fails) for f in passes(original, *changed)] == [(Kind.SAMPLES, False)]


def reading(indices: Iterable[object], batch: int = 2, finished: bool = True) -> LoaderPass:
    """A pass that reads these samples, in batches of so many."""
    indices = list(indices)
    order = ReadOrder()
    for start in range(0, len(indices), batch):
        order.asked(indices[start : start + batch], True)
    count = -(-len(indices) // batch)
    marks = tuple(ReadMark(*mark) for mark in order.first(count))
    return LoaderPass(0, 0, count, len(indices), finished, order=marks)


def test_a_list_of_indices_is_read_as_a_batch_is() -> None:
    """``DataLoader(dataset, sampler=BatchSampler(..), batch_size=None)`` asks for a list as for a single item."""
    marks: list[list[list[object]]] = []
    for collated in (True, False):
        order = ReadOrder()
        for batch in ([3, 1], [2]):
            order.asked(batch, collated)
        marks.append(order.first(2))
    assert marks[0] == marks[1]
    assert [mark[0] for mark in marks[0]] == [2, 3]


def test_the_samples_of_a_part_are_told_as_those_of_the_whole() -> None:
    part, whole = ReadOrder([1, 3, 5]), ReadOrder()
    part.asked([2, 0], True)
    whole.asked([5, 1], True)
    told = part.in_whole(1)
    assert told["order_in_whole"] == whole.first(1) != part.first(1)
    assert told["part"] == ReadOrder(range(1, 7, 2)).in_whole(1)["part"]
    assert told["part"] != ReadOrder([1, 3]).in_whole(1)["part"]
    assert whole.in_whole(1) == {}


def ordered(original: Observations, ours: LoaderPass, theirs: LoaderPass) -> list[Finding]:
    before = replace(original, loader_passes=(ours,))
    return compare_reading(before, replace(before, loader_passes=(theirs,)))


def test_what_two_loaders_read_in_turns_is_told_as_what_one_read(original: Observations) -> None:
    """Only the passes that training is made of are no longer shuffled, and so by a loader of another kind."""
    looks, trained = reading(SHUFFLED), replace(reading(SHUFFLED[::-1]), steps=4)
    ours = (
        replace(looks, epoch=0),
        replace(trained, epoch=1),
        replace(trained, epoch=2, rounds=4, steps=0),
        replace(looks, epoch=3, rounds=4, steps=4),
    )
    plain = replace(reading(range(8)), loader=1, steps=4)
    theirs = (
        replace(looks, epoch=0),
        plain,
        replace(trained, epoch=1, rounds=4, steps=0),
        replace(plain, epoch=1, rounds=4),
    )
    before = replace(original, loader_passes=ours)
    found = compare_reading(before, replace(before, loader_passes=theirs))
    assert [(f.kind, f.step) for f in found] == [(Kind.SAMPLE_ORDER, 1), (Kind.SAMPLE_ORDER, 5)]
    assert all("the shuffle is lost" in f.message for f in found)


def test_of_samples_that_are_drawn_with_replacement_others_are_read(original: Observations) -> None:
    (drawn,) = ordered(original, reading([3, 3, 7, 5]), reading([3, 3, 7, 7]))
    assert "other samples are read" in drawn.message


def test_samples_that_hold_several_rows_are_told_by_their_order(original: Observations) -> None:
    ours, other = reading(SHUFFLED), reading(range(8))
    (moved,) = ordered(original, ours, replace(other, samples=12))
    assert (moved.kind, "the shuffle is lost" in moved.message) == (Kind.SAMPLE_ORDER, True)
    (longer,) = ordered(original, ours, replace(ours, samples=12))
    assert longer.message.endswith("4 rows more in its batches, of as many samples")


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        (range(8), "the shuffle is lost"),
        ([3, 7, 5, 0, 1, 6, 2, 4], "the same samples are read in another order, first in batch 2"),
        ([3, 7, 3, 7, 3, 7, 3, 7], "more than once: 2 different ones of 8, not 8"),
        ([3, 7, 0, 5, 1, 6, 2, 9], "other samples are read, first in batch 4"),
    ],
    ids=["ascending", "another order", "repeated", "other samples"],
)
def test_another_order_fails_by_name(
    original: Observations, theirs: Iterable[int], word: str
) -> None:
    (finding,) = ordered(original, reading(SHUFFLED), reading(theirs))
    assert (finding.kind, finding.fails, finding.step) == (Kind.SAMPLE_ORDER, True, 1)
    assert word in finding.message


def test_a_shuffle_that_was_not_there_fails(original: Observations) -> None:
    (finding,) = ordered(original, reading(range(8)), reading(SHUFFLED))
    assert "shuffled, and not in the original" in finding.message


def test_the_same_order_in_other_batches_is_the_same_order(original: Observations) -> None:
    findings = ordered(original, reading(SHUFFLED, 4), reading(SHUFFLED, 2))
    assert [(f.kind, f.fails) for f in findings] == [(Kind.SAMPLES, False)]


def test_a_dropped_last_batch_is_no_other_order(original: Observations) -> None:
    findings = ordered(original, reading(SHUFFLED, 3), reading(SHUFFLED[:6], 3))
    assert [f.kind for f in findings] == [Kind.SAMPLES]


def test_data_without_indices_has_no_order(original: Observations) -> None:
    assert reading([None] * 8).order == ()
    assert ordered(original, reading([None] * 8), reading([None] * 8)) == []


def worker(number: int, state: str, epoch: int = 0, drawn: tuple[str, ...] = ("numpy.random",)):
    states = {"torch": f"{epoch}/{number}", "numpy.random": state}
    return WorkerStart(0, epoch, number, states, drawn)


def workers(original: Observations, *starts: WorkerStart, before: tuple[WorkerStart, ...] = ()):
    ours = replace(original, workers=before)
    return compare_reading(ours, replace(original, workers=starts))


def test_workers_that_start_alike_fail_by_name(original: Observations) -> None:
    (finding,) = workers(original, worker(0, "a"), worker(1, "a"), worker(2, "a"))
    assert (finding.kind, finding.fails) == (Kind.WORKER_RANDOMNESS, True)
    assert finding.tensor == "numpy.random"
    assert "workers 0 and 1 start with numpy.random in the same state" in finding.message


def test_passes_that_start_alike_fail_by_name(original: Observations) -> None:
    starts = (worker(0, "a"), worker(1, "b"), worker(0, "a", epoch=1), worker(1, "b", epoch=1))
    (finding,) = workers(original, *starts)
    assert "every epoch is augmented alike" in finding.message


def test_a_copied_generator_of_the_data_set_is_named(original: Observations) -> None:
    starts = [WorkerStart(0, 0, n, {"dataset.rng": "a"}, ("dataset.rng",)) for n in (0, 1)]
    (finding,) = workers(original, *starts)
    assert finding.tensor == "dataset.rng"
    assert "every worker has a copy of it" in finding.message


@pytest.mark.parametrize(
    ("starts", "before"),
    [
        ((worker(0, "a"), worker(1, "b")), ()),
        ((worker(0, "a", drawn=()), worker(1, "a", drawn=())), ()),
        ((worker(0, "a"), worker(1, "a")), (worker(0, "c"), worker(1, "c"))),
    ],
    ids=["different", "nothing is drawn from it", "as in the original"],
)
def test_workers_that_change_no_augmentation_pass(
    original: Observations, starts: tuple[WorkerStart, ...], before: tuple[WorkerStart, ...]
) -> None:
    assert workers(original, *starts, before=before) == []


def evaluating(*samples: int) -> tuple[EvalCall, ...]:
    """Calls of a model in eval mode after four rounds, on so many samples each."""
    return tuple(EvalCall("Net", 4, count, ()) for count in samples)


@pytest.fixture
def validated(original: Observations) -> Observations:
    """Trains on shuffled samples, validates in order, then tests."""
    train = replace(reading(SHUFFLED), loader=0, steps=4)
    val = replace(reading(range(6)), loader=1, rounds=4)
    test = replace(reading(range(7)), loader=2, rounds=4)
    return replace(
        original,
        loader_passes=(train, val, test),
        eval_calls=evaluating(2, 2, 2, 2, 2, 2, 1),
    )


def test_an_evaluation_may_do_without_its_loader(validated: Observations) -> None:
    train, _, test = validated.loader_passes
    without = replace(validated, loader_passes=(train, replace(test, loader=1)))
    (finding,) = compare_reading(validated, without)
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, False)
    assert "loader 1, epoch 0: not read" in finding.message


def test_fewer_samples_evaluated_without_a_loader_fail(validated: Observations) -> None:
    train, _, test = validated.loader_passes
    without = replace(
        validated,
        loader_passes=(train, replace(test, loader=1)),
        eval_calls=evaluating(2, 2, 2, 2, 2, 1),
    )
    (finding,) = compare_reading(validated, without)
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, True)


REVERSED = (5, 4, 3, 2, 1, 0)


def in_another_order(validated: Observations, indices: Iterable[object]) -> Observations:
    """Validates on these samples."""
    train, _, test = validated.loader_passes
    val = replace(reading(indices), loader=1, rounds=4)
    return replace(validated, loader_passes=(train, val, test))


def test_an_evaluation_may_come_in_another_order(validated: Observations) -> None:
    other = in_another_order(validated, REVERSED)
    (finding,) = compare_reading(validated, other)
    assert (finding.kind, finding.fails) == (Kind.SAMPLE_ORDER, False)
    assert reordered_evaluations(validated, other) == {4}


@pytest.mark.parametrize(
    ("indices", "changes"),
    [
        ((0, 1, 2, 3, 5, 5), {}),
        (REVERSED, {"eval_calls": evaluating(2, 2)}),
        (REVERSED, {"eval_calls": ()}),
    ],
    ids=["other samples", "fewer evaluated", "none evaluated"],
)
def test_other_samples_or_an_order_of_what_is_not_evaluated_fail(
    validated: Observations, indices: Iterable[object], changes: dict[str, object]
) -> None:
    before = replace(validated, eval_calls=()) if changes.get("eval_calls") == () else validated
    other = replace(in_another_order(before, indices), **changes)  # pyright: ignore[reportArgumentType]
    found = [f for f in compare_reading(before, other) if f.kind is Kind.SAMPLE_ORDER]
    assert [f.fails for f in found] == [True]


def test_training_samples_come_from_the_loader(validated: Observations) -> None:
    _, val, test = validated.loader_passes
    passes = (replace(val, loader=0), replace(test, loader=1))
    (finding,) = compare_reading(validated, replace(validated, loader_passes=passes))
    assert (finding.fails, finding.message) == (True, "loader 0, epoch 0: never read")


def test_what_the_original_evaluates_was_not_trained_on(validated: Observations) -> None:
    """The test is lost, and training goes on behind it as before."""
    train, val, _ = validated.loader_passes
    before = replace(validated, training_calls=training(2, 2, 2, 2, 2))
    evaluated = evaluating(2, 2, 2)
    other = replace(before, loader_passes=(train, val), eval_calls=evaluated)
    (finding,) = compare_reading(before, other)
    assert (finding.fails, finding.message) == (True, "loader 2, epoch 0: never read")


def training(*samples: int, without_gradients: int = 0) -> tuple[TrainingCalls, ...]:
    """Calls of a model in training mode, on so many samples before each step."""
    return tuple(TrainingCalls("Net", n, each, without_gradients) for n, each in enumerate(samples))


def without_training_loader(validated: Observations, calls: tuple[TrainingCalls, ...]):
    """What is found where only the validation and the test have loaders."""
    _, val, test = validated.loader_passes
    before = replace(validated, training_calls=training(2, 2, 2, 2))
    passes = (replace(val, loader=0), replace(test, loader=1))
    return compare_reading(before, replace(before, loader_passes=passes, training_calls=calls))


def test_as_many_samples_may_be_trained_on_without_a_loader(validated: Observations) -> None:
    (finding,) = without_training_loader(validated, training(2, 2, 2, 2))
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, False)
    assert "as many samples are trained on" in finding.message


@pytest.mark.parametrize(
    "calls",
    [
        training(2, 2, 2, 1),
        training(2, 2, 2),
        training(4, 4),
        training(2, 2, 2, 2, without_gradients=2),
    ],
    ids=["tail", "step", "batch", "no gradients"],
)
def test_other_samples_trained_on_without_a_loader_fail(
    validated: Observations, calls: tuple[TrainingCalls, ...]
) -> None:
    (finding,) = without_training_loader(validated, calls)
    assert (finding.fails, finding.message) == (True, "loader 0, epoch 0: never read")


def in_two_epochs(validated: Observations, val: Iterable[object]) -> Observations:
    """Validates after either of two epochs."""
    train, *_ = validated.loader_passes
    vals = [replace(reading(val), loader=1, epoch=epoch, rounds=4 + 4 * epoch) for epoch in (0, 1)]
    trains = [replace(train, epoch=epoch, rounds=4 * epoch) for epoch in (0, 1)]
    return replace(
        validated,
        loader_passes=(trains[0], vals[0], trains[1], vals[1]),
        eval_calls=tuple(EvalCall("Net", rounds, 6, ()) for rounds in (4, 8)),
    )


def kept_before_training(run: Observations) -> Observations:
    """``list(val_loader)`` before the first epoch: that loader is read first, and once."""
    train, val, more, *_ = run.loader_passes
    passes = (replace(val, loader=0, rounds=0), replace(train, loader=1), replace(more, loader=1))
    return replace(run, loader_passes=passes)


@pytest.mark.parametrize("val", [range(6), [None] * 6], ids=["in order", "without indices"])
def test_what_is_evaluated_may_be_read_once_before_training(
    validated: Observations, val: Iterable[object]
) -> None:
    before = in_two_epochs(validated, val)
    (finding,) = compare_reading(before, kept_before_training(before))
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, False)
    assert finding.message.startswith("loader 1, epoch 1: not read again")


def test_a_drawn_order_is_not_kept(validated: Observations) -> None:
    before = in_two_epochs(validated, [3, 1, 2, 0, 5, 4])
    (finding,) = compare_reading(before, kept_before_training(before))
    assert (finding.fails, finding.message) == (True, "loader 1, epoch 1: never read")


def test_fewer_samples_evaluated_of_those_kept_fail(validated: Observations) -> None:
    before = in_two_epochs(validated, range(6))
    fewer = replace(kept_before_training(before), eval_calls=before.eval_calls[:1])
    (finding,) = compare_reading(before, fewer)
    assert (finding.fails, finding.step) == (True, 9)


@pytest.mark.parametrize(
    ("indices", "fails"), [(range(8), False), (SHUFFLED, True), ([None] * 8, True)]
)
def test_training_batches_are_kept_only_in_the_order_of_the_data(
    original: Observations, indices: Iterable[object], fails: bool
) -> None:
    """Of the second epoch the run saw half; what has no indices may have been drawn."""
    first = replace(reading(indices), steps=4)
    second = replace(reading([*indices][:4], finished=False), epoch=1, rounds=4, steps=2)
    before = replace(original, loader_passes=(first, second))
    (finding,) = compare_reading(before, replace(before, loader_passes=(first,)))
    assert (finding.kind, finding.fails) == (Kind.SAMPLES, fails)


def test_loaders_read_in_another_order_are_told_apart_by_what_they_read(
    validated: Observations,
) -> None:
    train, val, test = validated.loader_passes
    moved = (replace(test, loader=0, rounds=0), replace(train, loader=1), replace(val, loader=2))
    assert compare_reading(validated, replace(validated, loader_passes=moved)) == []


def drawn(original: Observations, *drawn_from: str | None, steps: int = 4) -> Observations:
    """A run whose training passes take their orders from these."""
    read = tuple(
        LoaderPass(0, n, 4, 128, True, rounds=4 * n, steps=steps, drawn_from=one)
        for n, one in enumerate(drawn_from)
    )
    return replace(original, loader_passes=read)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ("abc", "aba", "pass 3 is shuffled like pass 1, and not in the original"),
        ("aba", "abc", "pass 3 is shuffled anew, and in the original like pass 1"),
        ("abc", "xyz", None),
        ("aab", "ccd", None),
        ("abc", "aa", "pass 2 is shuffled like pass 1"),
        ("abc", [None, None, None], None),
        (["a", None, "b"], "aab", None),
    ],
)
def test_orders_that_repeat_themselves(
    original: Observations,
    ours: Iterable[str | None],
    theirs: Iterable[str | None],
    word: str | None,
) -> None:
    runs = drawn(original, *ours), drawn(original, *theirs)
    found = [f for f in compare_reading(*runs) if f.kind is Kind.SAMPLE_ORDER]
    assert [word in f.message for f in found if word] == [True] * (word is not None)
    assert len(found) == (word is not None)


def test_what_is_only_evaluated_may_repeat_itself(original: Observations) -> None:
    runs = drawn(original, *"abc", steps=0), drawn(original, *"aaa", steps=0)
    assert compare_reading(*runs) == []


@pytest.mark.parametrize(("drawn", "told"), [(0, False), (1, True), (2, True), (3, False)])
def test_shuffled_by_the_rewrite_itself_less_often_than_the_loaders_of_other_data(
    run: Run, drawn: int, told: bool
) -> None:
    one = run(steps=6)
    trained = tuple(TrainingCalls("Net", begun, 4, 0) for begun in range(6))
    anew = [
        LoaderPass(n, 0, 2, 8, True, rounds=2 * n, steps=2, drawn_from=str(n), shuffled=8)
        for n in range(3)
    ]
    original = replace(one, loader_passes=tuple(anew), training_calls=trained)
    other = replace(original, loader_passes=(), own_shuffles={8: drawn} if drawn else {})
    failed = [finding for finding in compare_reading(original, other) if finding.fails]
    assert [(f.kind, f.step) for f in failed] == [(Kind.SAMPLE_ORDER, 2 * drawn + 1)] * told
