"""Ranks put together and compared, without running any."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.ranks import compare_ranks
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.execution.observations import (
    EvalCall,
    LoaderPass,
    Loss,
    Observations,
    ReadMark,
    Scheduler,
    Snapshot,
    Status,
)
from torchopt_cli.optimizer.execution.ranks import batches_in_turn, merged


def _reading(samples: int, order: str, sampler_epoch: int | None = 0) -> LoaderPass:
    marks = (ReadMark(samples, order, f"{samples:016x}", samples, False),)
    return LoaderPass(0, 0, 1, samples, True, 0, marks, steps=8, sampler_epoch=sampler_epoch)


@pytest.fixture
def one(run) -> Observations:
    return replace(run(), loader_passes=(_reading(8, "whole"),), step_samples=(8,) * 8)


def _parts(orders: tuple[str, str], parts: tuple[str, str]) -> list[LoaderPass]:
    """What two ranks read in this order, of these parts of a set; in it, the samples of the first come after the second's."""
    return [
        replace(
            _reading(4, order, sampler_epoch=None),
            part=part,
            order_in_whole=(ReadMark(4, f"{number}", f"{number + 1:016x}", 4, True),),
        )
        for number, (order, part) in enumerate(zip(orders, parts, strict=True))
    ]


@pytest.fixture
def ranks(one) -> tuple[Observations, Observations]:
    """Two that each have half of the samples, and of which only the first tells."""

    def share(order: str, samples: int, shift: float) -> Observations:
        steps = tuple(
            replace(s, losses=(Loss(s.losses[0].value + shift, "float32"),)) for s in one.steps
        )
        passes = (_reading(samples, order),)
        counts = (samples,) * 8
        return replace(one, steps=steps, loader_passes=passes, step_samples=counts)

    # A mean weighted by 6 and 2 samples: the shifts cancel.
    second = replace(share("b", 2, -0.3), checkpoints=(), stdout="", eval_calls=(), eval_file=None)
    return share("a", 6, 0.1), second


@pytest.mark.parametrize(
    ("orders", "parts", "samples", "contents"),
    [
        (("1..4", "1..4"), ("even", "odd"), 8, 3),
        (("1..4", "1..4"), ("even", "even"), 4, 4),
        (("even", "odd"), ("all", "all"), 8, 8),  # a DistributedSampler over a part of a set
    ],
)
def test_a_subset_for_each_rank_is_a_share(one, ranks, orders, parts, samples, contents):
    passes = _parts(orders, parts)
    own = [
        replace(r, loader_passes=(p,), eval_calls=()) for r, p in zip(ranks, passes, strict=True)
    ]
    (reading,) = merged(own, one).loader_passes
    assert (reading.samples, reading.order[0].contents) == (samples, f"{contents:016x}")


@pytest.mark.parametrize(
    ("shares", "dealt"), [(((1, 2, 3), (4, 5)), (1, 4, 2, 5, 3)), (((1, 2, 3), ()), ())]
)
def test_what_goes_into_shares_is_dealt_as_they_are(one, ranks, shares, dealt):
    passes = [_reading(8, "whole"), _reading(8, "whole")]
    passes = [replace(p, rounds=8, steps=0, part=n) for p, n in zip(passes, "ab", strict=True)]
    calls = [
        EvalCall("Net", 8, 3 - number, (), inputs=number, each=each)
        for number, each in enumerate(shares)
    ]
    own = [
        replace(r, loader_passes=(p,), eval_calls=(c,), eval_file=None)
        for r, p, c in zip(ranks, passes, calls, strict=True)
    ]
    (call,) = merged(own, one).eval_calls
    assert (call.samples, call.each) == (5, dealt)


def test_shares_are_put_together(one, ranks):
    whole = merged(ranks, one)
    assert whole.losses == pytest.approx(one.losses)
    assert whole.step_samples == (8,) * 8
    (reading,) = whole.loader_passes
    assert (reading.samples, reading.order[0].contents) == (8, f"{8:016x}")
    assert (whole.eval_calls, whole.checkpoints, whole.stdout) == (
        one.eval_calls,
        one.checkpoints,
        one.stdout,
    )
    assert whole.eval_outputs().keys() == one.eval_outputs().keys()
    assert compare_ranks(one, whole) == []
    assert compare_ranks(one, one) == []


def test_what_ranks_do_wrong_is_named(one, ranks):
    first, second = ranks
    other = Snapshot(0, {name: "other" for name in one.snapshots[0].hashes}, None)
    wrong = {
        Kind.RANKS: replace(second, snapshots=(other,)),
        Kind.SAMPLES: replace(second, step_samples=(8,) * 8),
        Kind.CHECKPOINT_FILES: replace(second, checkpoints=one.checkpoints),
        Kind.STDOUT: replace(second, stdout="step 1 loss 0.5\n"),
    }
    for kind, rank in wrong.items():
        findings = compare_ranks(one, merged((first, rank), one))
        assert [finding.kind for finding in findings] == [kind]
        assert findings[0].fails


def test_a_sampler_that_is_never_told_of_epochs_is_named(one, ranks):
    def again(rank: Observations, epoch: int) -> Observations:
        (before,) = rank.loader_passes
        after = replace(before, epoch=1, rounds=4, sampler_epoch=epoch)
        return replace(rank, loader_passes=(before, after))

    told = compare_ranks(one, merged([again(rank, 1) for rank in ranks], one))
    assert told == []
    (finding,) = compare_ranks(one, merged([again(rank, 0) for rank in ranks], one))
    assert (finding.kind, finding.step) == (Kind.SAMPLE_ORDER, 5)
    assert "set_epoch" in finding.message


def test_shares_of_an_evaluation_need_to_be_reduced(one, ranks):
    first, second = ranks
    (call,) = one.eval_calls
    theirs = replace(call, inputs=1)
    second = replace(second, eval_calls=(theirs,), eval_file=one.eval_file)
    whole = merged((first, second), one)
    assert whole.eval_samples == 2 * one.eval_samples
    assert whole.eval_outputs()["0.0"].shape[0] == 2 * one.eval_outputs()["0.0"].shape[0]
    (finding,) = compare_ranks(one, whole)
    assert finding.kind is Kind.EVALUATION
    before = replace(first, collectives=((call.rounds, 0),))
    assert [f.kind for f in compare_ranks(one, merged((before, second), one))] == [Kind.EVALUATION]
    gathered = replace(first, collectives=((call.rounds, 1),))
    assert compare_ranks(one, merged((gathered, second), one)) == []


def test_samplers_that_shuffle_differently_are_named(one, ranks):
    def seeded(rank: Observations, seed: int) -> Observations:
        passes = tuple(replace(one, sampler_seed=seed) for one in rank.loader_passes)
        return replace(rank, loader_passes=passes)

    same = [seeded(rank, 3) for rank in ranks]
    assert compare_ranks(one, merged(same, one)) == []
    (finding,) = compare_ranks(one, merged([same[0], seeded(ranks[1], 4)], one))
    assert finding.kind is Kind.SAMPLE_ORDER
    assert "different seeds (3, 4)" in finding.message


def test_whole_batches_in_turn_are_told_by_what_one_process_evaluates(one, ranks):
    (call,) = one.eval_calls
    first = replace(ranks[0], eval_calls=(call,), eval_file=one.eval_file)
    theirs = replace(call, inputs=1)
    second = replace(ranks[1], eval_calls=(theirs,), eval_file=one.eval_file)
    whole = merged((first, second), one)
    assert [c.samples for c in whole.eval_calls] == [2 * call.samples]
    both = replace(one, eval_calls=(call, call))
    turns = batches_in_turn(whole, both)
    assert [c.samples for c in turns.eval_calls] == [call.samples] * 2
    assert sorted(turns.eval_outputs()) == ["0.0", "1.0"]
    assert batches_in_turn(one, both) is one
    larger = replace(one, eval_calls=(replace(call, samples=2 * call.samples),))
    assert batches_in_turn(whole, larger).eval_calls == whole.eval_calls


def _evaluating(rank: Observations, marks: str, *calls: EvalCall) -> Observations:
    """``rank`` that reads ``marks`` ahead of ``calls``, and not to train."""
    reading = replace(_reading(8, marks, None), loader=1, rounds=calls[0].rounds, steps=0)
    return replace(rank, loader_passes=(reading,), eval_calls=calls, eval_file=None)


def test_an_evaluation_of_everything_with_statistics_of_ones_own_is_not_in_shares(one, ranks):
    (call,) = one.eval_calls
    other = replace(call, outputs=tuple(replace(o, checksum=1) for o in call.outputs))
    # what the first call gave is what the second one is given
    first = _evaluating(ranks[0], "whole", call, replace(call, inputs=2))
    second = _evaluating(ranks[1], "whole", other, replace(other, inputs=3))
    whole = merged((first, second), one)
    assert [c.samples for c in whole.eval_calls] == [call.samples] * 2
    assert compare_ranks(one, whole) == []
    # the same outputs, of samples that the indices say are others
    read = _evaluating(ranks[1], "another half", other, replace(other, inputs=3))
    (finding,) = compare_ranks(one, merged((first, read), one))
    assert finding.kind is Kind.EVALUATION
    # no index was read, and the first difference is in what goes in
    by_hand = [replace(rank, loader_passes=()) for rank in (first, second)]
    assert compare_ranks(one, merged(by_hand, one)) == []
    given = replace(by_hand[1], eval_calls=(replace(other, inputs=1), *second.eval_calls[1:]))
    (finding,) = compare_ranks(one, merged((by_hand[0], given), one))
    assert finding.kind is Kind.EVALUATION


def test_what_only_one_rank_evaluates_besides_makes_no_shares(one, ranks):
    (call,) = one.eval_calls
    extra = replace(call, inputs=5)
    first = replace(ranks[0], eval_calls=(call, extra))
    second = replace(ranks[1], eval_calls=(call,))
    assert compare_ranks(one, merged((first, second), one)) == []


def test_the_rank_that_failed_first_is_named(one, ranks):
    died = replace(ranks[1], status=Status.KILLED, exit_code=1)
    ended = replace(ranks[0], status=Status.FAILED, exit_code=1, traceback="Lost: the other rank")
    summary = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n"
    whole = merged((ended, died), replace(one, stderr=summary, exit_code=1))
    assert (whole.status, whole.failed_rank) == (Status.KILLED, 1)
    assert whole.ending.startswith("rank 1: the process is ended by SIGKILL")


def test_a_rank_that_loses_its_peer_did_not_fail_first(one, ranks):
    peer = replace(ranks[0], status=Status.FAILED, traceback="RuntimeError: closed", ended_at=2.5)
    cause = replace(ranks[1], status=Status.FAILED, traceback="ValueError: odd", ended_at=2.0)
    whole = merged((peer, cause), replace(one, exit_code=1))
    assert (whole.failed_rank, whole.ending) == (1, "rank 1: ValueError: odd")
    found_first = "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 7)\n"
    whole = merged((peer, cause), replace(one, stderr=found_first, exit_code=1))
    assert whole.failed_rank == 1


def test_a_loss_of_every_share_is_weighted_by_its_samples(one, ranks):
    (call,) = one.eval_calls
    number = replace(call.outputs[0], shape=(), mean=1.0, norm=1.0, largest=1.0)
    first = replace(ranks[0], eval_calls=(replace(call, samples=3, outputs=(number,)),))
    other = replace(number, checksum=1, mean=5.0, norm=5.0, largest=5.0)
    second = replace(ranks[1], eval_calls=(replace(call, samples=1, inputs=1, outputs=(other,)),))
    (together,) = merged((first, second), one).eval_calls
    assert (together.samples, together.outputs[0].shape) == (4, ())
    assert together.outputs[0].mean == together.outputs[0].norm == 2.0


def test_another_order_of_sums_is_not_the_reason_where_something_else_is(one, ranks):
    def rounded(rank: Observations) -> Observations:
        first = rank.steps[0]
        updates = {n: replace(u, checksum=u.checksum ^ 1) for n, u in first.parameters.items()}
        return replace(rank, steps=(replace(first, parameters=updates), *rank.steps[1:]))

    undivided = [rounded(replace(rank, step_samples=(8,) * 8)) for rank in ranks]
    whole = merged(undivided, one)
    assert len({finding.kind for finding in judge_exact(one, [one], whole).failures}) > 1
    verdict = judge_in_stages(
        one, whole, lambda *_, **__: one, tier=None, precision=None, perturbed_runs=3
    ).verdict
    assert [finding.kind for finding in verdict.failures] == [Kind.SAMPLES]
    assert verdict.reason.startswith("samples at step 1: a step is of 16 samples")


def _drawing_shares(run: Observations) -> Observations:
    """``run`` with the layers that a share of the batch tells from the whole."""
    again = replace(run, layers=("BatchNorm2d", "Net"), dropouts=(("dropout", 0.1, 8),))
    return replace(again, ranks=tuple(map(_drawing_shares, run.ranks)))


class _Runs:
    """Observes what it was given, and notes what was asked for."""

    def __init__(self, one: Observations, aligned: Observations) -> None:
        self.asked: list[tuple[bool, bool]] = []
        self._one, self._aligned = one, aligned

    def __call__(self, description, *, original, aligned_layers=False, **how):
        self.asked.append((original, aligned_layers))
        return self._one if original else self._aligned


def _judged(one, plain, aligned):
    runs = _Runs(one, aligned)
    found = judge_in_stages(one, plain, runs, tier=None, precision=None, perturbed_runs=3)
    return found.verdict, runs.asked


def test_ranks_whose_layers_see_shares_are_judged_with_these_aligned(one, ranks):
    one = _drawing_shares(one)
    aligned = _drawing_shares(merged([replace(rank, steps=one.steps) for rank in ranks], one))
    step = replace(one.steps[0], losses=(Loss(9.0, "float32"),))
    plain = replace(aligned, steps=(step, *one.steps[1:]))
    verdict, asked = _judged(one, plain, aligned)
    assert verdict.outcome is Outcome.EQUIVALENT, verdict
    assert verdict.reason.endswith(
        "with BatchNorm2d, dropout aligned over all ranks; as it runs, each rank has its own"
    )
    assert [finding.kind for finding in verdict.findings] == [Kind.LAYERS] * 2
    # once more as it is; without dropout twice, the rewrite, and perturbed
    assert asked == [(True, False), (True, True), (True, True), (False, True)] + [(True, True)] * 3


def test_what_is_wrong_besides_shows_where_layers_are_aligned(one, ranks):
    one = _drawing_shares(one)
    good = _drawing_shares(merged([replace(rank, steps=one.steps) for rank in ranks], one))
    step = replace(one.steps[0], losses=(Loss(9.0, "float32"),))
    wrong = replace(good, steps=(step, *one.steps[1:]))
    plain = replace(good, steps=(replace(step, losses=(Loss(8.0, "float32"),)), *one.steps[1:]))
    verdict, _ = _judged(one, plain, wrong)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.reason.startswith(
        "with BatchNorm2d, dropout aligned over all ranks, too: loss at step 1: loss 9, not"
    )
    killed = replace(good, status=Status.KILLED, exit_code=-9)
    verdict, _ = _judged(one, plain, killed)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "could not be aligned: the process is ended by SIGKILL" in verdict.reason
    lost = replace(good, steps=(replace(step, losses=(Loss(math.nan, "float32"),)),))
    verdict, _ = _judged(one, lost, good)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.NON_FINITE in {finding.kind for finding in verdict.failures}


def test_other_dropout_on_a_rank_is_named(one, ranks):
    one = _drawing_shares(one)
    more = [replace(_drawing_shares(rank), dropouts=(("dropout", 0.5, 8),)) for rank in ranks]
    findings = compare_ranks(one, merged(more, one))
    (finding,) = [finding for finding in findings if finding.fails]
    assert finding.message == (
        "dropout with p=0.1 is none of what drops elements on rank 0, 100% in the original"
    )
    # on two GPUs of a DataParallel there are twice as many calls
    both = replace(one, dropouts=(("dropout", 0.1, 16),))
    whole = merged([_drawing_shares(rank) for rank in ranks], one)
    assert not any(finding.fails for finding in compare_ranks(both, whole))


@pytest.mark.parametrize(
    ("of_other", "told"),
    [
        (
            (),
            "scheduler 0 (StepLR) is stepped never within these steps on rank 1, after steps 2, 4 on rank 0",
        ),
        (
            (2,),
            "scheduler 0 (StepLR) is stepped after step 2 on rank 1, after steps 2, 4 on rank 0",
        ),
        ((2, 4), None),  # and not the last one, behind which a rank may end
    ],
)
def test_a_scheduler_that_not_all_ranks_step(run, of_other, told) -> None:
    one = run(steps=6)
    first = replace(one, schedulers=(Scheduler("StepLR", (2, 4, 6)),))
    other = replace(one, schedulers=(Scheduler("StepLR", of_other),))
    found = [
        finding.message
        for finding in compare_ranks(one, replace(first, ranks=(first, other)))
        if finding.kind is Kind.SCHEDULER_STEPS and finding.fails
    ]
    assert found == ([told] if told else [])


def test_a_scheduler_of_rank_0_alone_may_tell_the_others(run) -> None:
    one = run(steps=6)
    first = replace(one, schedulers=(Scheduler("StepLR", (2, 4)),))
    found = compare_ranks(one, replace(first, ranks=(first, one)))
    assert not [finding for finding in found if finding.kind is Kind.SCHEDULER_STEPS]
