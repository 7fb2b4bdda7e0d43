import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.lines import aligned, read_lines
from torchopt_cli.optimizer.comparison.text import compare_text
from torchopt_cli.optimizer.comparison.tolerance import Precision


@given(st.text(max_size=200))
def test_a_text_equals_itself(text: str) -> None:
    assert compare_text(text, text) == []


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("epoch 3 loss 2.31", ["3", "2.31"]),
        ("lr=1e-3, acc: 53.1%", ["1e-3", "53.1"]),
        ("resnet18 conv1.weight cuda:0", ["0"]),
        ("loss nan, -inf", ["nan", "-inf"]),
        ("delta -0.5 to +2", ["-0.5", "+2"]),
        ("nanoseconds and infinite", []),
        ("R@1:55.23 hit@10:62.50", ["1", "55.23", "10", "62.50"]),
        ("right:wrong 12:62", ["12", "62"]),
        ("[00:12<01:30] at 12:59:07.123", []),
    ],
)
def test_numbers_are_found_and_digits_of_names_are_not(line: str, numbers: list[str]) -> None:
    assert list(read_lines(line)[0].numbers) == numbers


def test_of_a_long_line_the_number_is_shown_with_what_stands_before_it() -> None:
    line = ", ".join(f'"value{chr(97 + n)}": {n}.5' for n in range(12))
    (finding,) = compare_text("[" + line + "]", "[" + line.replace("7.5", "7.25") + "]")
    shown = finding.message.partition("not 7.5: ")[2]
    assert shown.startswith("...")
    assert shown.endswith('"valueh": 7.5...')
    assert len(shown) <= 60
    (first,) = compare_text("[" + line + "]", "[" + line.replace(" 0.5", " 0.25") + "]")
    assert first.message.endswith("...")
    assert 'not 0.5: ["valuea": 0.5, "valueb"' in first.message
    (last,) = compare_text("[" + line, "[" + line.replace("11.5", "11.25"))
    assert last.message.endswith('"valuel": 11.5')


def test_another_number_fails() -> None:
    found = compare_text("loss 2.31\nacc 0.5\n", "loss 2.31\nacc 0.4\n")
    assert [(f.kind, f.fails, f.original, f.rewritten) for f in found] == [
        (Kind.STDOUT, True, "0.5", "0.4")
    ]


def test_a_duration_is_one_however_many_units_it_has() -> None:
    line = "[=>.]  Step: {} | Tot: {} | Loss: {}"
    quick, slow = ("980ms", "1s12ms"), ("1s3ms", "1m2s")
    assert compare_text(line.format(*quick, 2.5), line.format(*slow, 2.5)) == []
    (finding,) = compare_text(line.format(*quick, 2.5), line.format(*slow, 2.25))
    assert (finding.original, finding.rewritten) == ("2.5", "2.25")


def test_numbers_are_compared_as_numbers() -> None:
    assert compare_text("loss 2.50", "loss 2.5e0") == []
    assert compare_text("loss nan", "loss NaN") == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("a\nb 1\n", "a\n"), ("a\n", "a\nb 1\n"), ("a\nb 1\n", "a\nc 1\n")],
)
def test_missing_extra_and_reworded_lines_fail(ours: str, theirs: str) -> None:
    assert [f.kind for f in compare_text(ours, theirs) if f.fails] == [Kind.STDOUT]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("epoch 1 took 3.2 s", "epoch 1 took 1.9 s"),
        ("time: 12", "time: 3"),
        ("Time (sec): 12", "Time (sec): 3"),
        ("throughput 512.0", "throughput 731.5"),
        ("1200 img/s", "3100 img/s"),
        ("memory 512 MiB", "memory 300 MiB"),
        ("0.10s/it", "0.02s/it"),
        ("elapsed_ms=25", "elapsed_ms=12"),
        ("{'eval_runtime': '0.0087'}", "{'eval_runtime': '0.0081'}"),
        ("'train_samples_per_second': 12.5", "'train_samples_per_second': 17.5"),
        ("12.5 batches (per sec: 3)", "12.5 batches (per sec: 4)"),
        ("walltime 4", "walltime 5"),
        ("3.2 GFLOPs", "2.8 GFLOPs"),
    ],
)
def test_times_and_memory_are_left_out_and_said_to_be(ours: str, theirs: str) -> None:
    found = compare_text(ours, theirs)
    assert [(f.kind, f.fails) for f in found] == [(Kind.NOT_REPEATABLE, False)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("sometimes 12", "sometimes 3"),
        ("first 1 second 2", "first 1 second 3"),
        ("lifetime: 12", "lifetime: 3"),
    ],
)
def test_words_that_only_sound_like_times(ours: str, theirs: str) -> None:
    assert [f.kind for f in compare_text(ours, theirs) if f.fails] == [Kind.STDOUT]


BARS = (
    "Epoch 0/0 ━━━━━━━━━╸━━━ 5/6 0:00:00 • 0:00:00 15.01it/s v_num: 0",
    "train:  45%|████▌     | 9/20 [00:01<00:01,  8.12it/s, loss=2.31]",
    "  0%|          | 0/20 [00:00<?, ?it/s]",
    "9/20 [======>.......] - ETA: 3s - loss: 2.31",
    "[####------] 45% 00:00:12",
)


@pytest.mark.parametrize("bar", BARS)
def test_progress_bars_are_drawn_when_there_is_time(bar: str) -> None:
    text = "epoch 0\n{}\repoch 0: loss 2.31\n"
    drawn = f"{bar}\r{bar.replace('9/20', '12/20').replace('5/6', '6/6')}"
    for ours, theirs in ((bar, drawn), (drawn, bar), ("", bar)):
        assert not [f for f in compare_text(text.format(ours), text.format(theirs)) if f.fails]
    wrong = text.format(bar).replace("0: loss 2.31", "0: loss 2.41")
    assert [f.kind for f in compare_text(text.format(bar), wrong) if f.fails] == [Kind.STDOUT]


@pytest.mark.parametrize(
    "line", ["right 45% | 9 of 20", "[1.5] 3", "a == b", "[===]", "loss [0.12] 3 s"]
)
def test_what_is_no_progress_bar(line: str) -> None:
    assert [f.kind for f in compare_text(line, "") if f.fails] == [Kind.STDOUT]


def test_only_the_time_in_a_line_is_left_out() -> None:
    found = compare_text("epoch 1 loss 2.3 3.2 s", "epoch 1 loss 2.4 1.2 s")
    assert any(f.fails and f.original == "2.3" for f in found)


def test_what_the_original_does_not_repeat_is_left_out_in_every_line_of_that_form() -> None:
    ours = "a 1 b 5\na 1 b 5\n"
    again = "a 1 b 5\na 1 b 6\n"
    assert not any(f.fails for f in compare_text(ours, "a 1 b 9\na 1 b 9\n", [again]))
    assert any(f.fails for f in compare_text(ours, "a 2 b 5\na 1 b 5\n", [again]))


def test_lines_that_come_and_go_in_the_original_are_left_out() -> None:
    ours, again = "start\nworker busy\nend\n", "start\nend\n"
    assert compare_text(ours, again, [again]) == []
    assert any(f.fails for f in compare_text(ours, "start\nworker busy\n", [again]))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("saved to /tmp/a1/out/model.pt", "saved to /tmp/b2/out/model.pt"),
        ("tensor(2.3, grad_fn=<NllLossBackward0>)", "tensor(2.3, grad_fn=<CompiledBackward>)"),
        ("tensor(2.3, device='cuda:0')", "tensor(2.3)"),
        ("<object at 0x7f00aa>", "<object at 0x7f11bb>"),
        ("2026-01-02 10:11:12 start", "2026-01-03 09:11:12 start"),
        ("\x1b[32mok\x1b[0m", "ok"),
        ("    fused: None", "    fused: True"),
        ("{'lr': 0.1, 'foreach': None}", "{'lr': 0.1, 'foreach': False}"),
        ("  (1): ReLU()", "  (1): ReLU(inplace=True)"),
        ("(2): Dropout(p=0.1, inplace=False)", "(2): Dropout(p=0.1, inplace=True)"),
    ],
)
def test_paths_addresses_dates_and_devices_do_not_count(ours: str, theirs: str) -> None:
    assert compare_text(ours, theirs) == []


def test_a_number_may_differ_by_rounding_when_a_precision_is_given() -> None:
    assert compare_text("loss 2.3100", "loss 2.3101", precision=Precision.FLOAT32) == []
    assert any(f.fails for f in compare_text("loss 2.31", "loss 2.41", precision=Precision.FLOAT32))


def test_a_number_may_differ_as_much_as_the_neighbours_do() -> None:
    ours, near, theirs = "acc 50.0", ["acc 48.0"], "acc 46.0"
    assert any(f.fails for f in compare_text(ours, theirs, precision=Precision.FLOAT32))
    assert compare_text(ours, theirs, (), near, Precision.FLOAT32) == []


def _column(*values: float) -> str:
    return "".join(f"f1 {value:.3f}\n" for value in values)


def test_a_number_off_in_every_line_is_not_excused_by_a_line_that_rounding_moves() -> None:
    original = _column(0.240, 0.214, 0.257, 0.318, 0.447, 0.431)
    near = [original, _column(0.240, 0.214, 0.257, 0.318, 0.437, 0.499)]
    same = _column(0.240, 0.214, 0.257, 0.318, 0.437, 0.501)
    wrong = _column(0.400, 0.389, 0.433, 0.444, 0.544, 0.533)
    assert compare_text(original, same, (), near, Precision.FLOAT32) == []
    (found,) = compare_text(original, wrong, (), near, Precision.FLOAT32)
    assert (found.fails, found.original, found.rewritten) == (True, "0.240", "0.400")


def test_a_column_with_the_same_nan_in_all_runs_has_limits() -> None:
    original = _column(math.nan, 0.240, math.nan, 0.257)
    near = [_column(math.nan, 0.240, math.nan, 0.258)] * 3
    wrong = _column(math.nan, 0.340, math.nan, 0.257)
    (found,) = compare_text(original, wrong, (), near, Precision.FLOAT32)
    assert (found.fails, found.original, found.rewritten) == (True, "0.240", "0.340")
    assert compare_text(original, near[0], (), near, Precision.FLOAT32) == []


def test_rounding_may_move_another_line_than_the_neighbours_and_some_more_by_as_little() -> None:
    original = _column(0.240, 0.214, 0.257, 0.431)
    near = [original, _column(0.240, 0.214, 0.257, 0.499)]
    for other in (_column(0.300, 0.214, 0.257, 0.431), _column(0.240, 0.274, 0.200, 0.431)):
        assert compare_text(original, other, (), near, Precision.FLOAT32) == []


def test_an_integer_has_no_last_digit_to_differ_in() -> None:
    assert compare_text("epoch 4", "epoch 5", precision=Precision.FLOAT32)[0].fails
    assert compare_text("loss 4.00", "loss 4.01", precision=Precision.FLOAT32) == []
    # A count that perturbed runs of the original move may move in the rewrite, too.
    assert compare_text("13 right", "14 right", (), ["12 right"], Precision.FLOAT32) == []


def test_fewer_digits_are_another_number() -> None:
    for one, other in (("acc 0.6296", "acc 0.63"), ("acc 0.63", "acc 0.6296")):
        assert compare_text(one, other, precision=Precision.FLOAT32)[0].fails
    # A zero that is not written, a float32 in full.
    assert compare_text("acc 0.63", "acc 0.6301", precision=Precision.FLOAT32) == []
    assert compare_text("acc 0.63", "acc 0.6299999952316284", precision=Precision.FLOAT32) == []
    assert compare_text("acc 1", "acc 0.9999", precision=Precision.FLOAT32) == []


def test_under_reduced_precision_a_far_number_is_told_and_a_lost_one_fails() -> None:
    told = compare_text("acc 50.0", "acc 60.0", precision=Precision.BFLOAT16)
    assert [(f.kind, f.fails) for f in told] == [(Kind.STDOUT, False)]
    lost = compare_text("loss 2.3", "loss nan", precision=Precision.BFLOAT16)
    assert lost[0].fails


def test_printed_options_are_told_and_do_not_fail() -> None:
    ours = "Namespace(lr=0.1, n_cpu=0, amp=False)\nloss 2.3"
    theirs = "Namespace(lr=0.1, n_cpu=2, amp=True)\nloss 2.3"
    (finding,) = compare_text(ours, theirs)
    assert not finding.fails
    assert "n_cpu=2, amp=True" in finding.message
    assert any(f.fails for f in compare_text(ours, theirs.replace("2.3", "2.4")))


def test_findings_quote_the_line() -> None:
    (finding,) = compare_text("epoch 1 loss 2.3", "epoch 1 loss 2.4")
    assert "epoch 1 loss 2.3" in finding.message


def test_tables_of_a_profiler_are_counted_and_not_compared() -> None:
    def table(name: str) -> str:
        ruler = "-------  ------------  \n"
        rows = f"   Name    Self CPU %  \n{ruler}{name}  12.00%  \n{ruler}Self CPU time total: 3.000us\n"
        return f"{ruler}{rows}\n"

    original = table("conv") + "loss 1.5\n" + table("linear") + "loss 1.25\n"
    assert compare_text(original, original.replace("conv", "addmm")) == []
    (finding,) = compare_text(original, "loss 1.5\n" + table("addmm") + "loss 1.25\n")
    assert finding.message == "1 tables of a profiler are printed instead of 2"
    assert not finding.fails
    assert compare_text(original, original.replace("1.25", "1.5"))[0].fails


def test_a_minimum_is_no_number_of_minutes() -> None:
    assert compare_text("max 3.2 min 1.1", "max 3.3 min 1.1")[0].fails
    assert compare_text("max 3.2 min: 1.1", "max 3.3 min: 1.1")[0].fails
    for text in ("took {} min", "took {} min 12 s", "{} min 3 sec left", "waited {} min, 4 epochs"):
        assert not any(f.fails for f in compare_text(text.format(3), text.format(4))), text


def test_a_difference_tells_the_step_of_its_line() -> None:
    def steps(number: int) -> int:
        return 10 * number

    (number,) = compare_text("a\nb 1\n", "a\nb 2\n", step_of=(steps, None))
    (line,) = compare_text("a\n", "a\nb\n", step_of=(None, steps))
    assert (number.step, line.step) == (20, 20)


def _log(values: list[float], first: str = "start", last: str = "test 9") -> str:
    return "\n".join([first, *(f"epoch {i} loss {v}" for i, v in enumerate(values)), last])


@pytest.mark.parametrize(
    ("original", "rewritten", "told"),
    [
        (
            _log([3.0, 2.0, 1.0]),
            _log([3.0, 2.0, 1.0, 0.5]),
            "line 5 of the output is not in the original's: epoch 3",
        ),
        (
            _log([3.0, 2.0, 1.0]),
            _log([3.0, 2.0]),
            "line 4 of the original's output is missing or reads otherwise: epoch 2",
        ),
        (
            "loss 3\nloss 2\nloss 1\nend",
            "loss 2\nloss 1\nend",
            "line 1 of the original's output is missing or reads otherwise: loss 3",
        ),
        (
            "loss 3\nloss 2\nloss 1\nend",
            "loss 3\nloss 2\nloss 9\nloss 1\nend",
            "line 3 of the output is not in the original's: loss 9",
        ),
    ],
)
def test_the_odd_line_among_lines_alike(original: str, rewritten: str, told: str) -> None:
    (finding,) = compare_text(original, rewritten)
    assert finding.message.startswith(told)


_WORDS = st.lists(st.sampled_from(["loss 1", "loss 2", "acc 1", "acc 2", "end"]), max_size=12)


@given(_WORDS, _WORDS)
def test_every_line_is_paired_or_odd(ours: list[str], theirs: list[str]) -> None:
    before, after = read_lines("\n".join(ours)), read_lines("\n".join(theirs))
    pairs = list(aligned(before, after))
    assert [a for a, _ in pairs if a is not None] == before
    assert [b for _, b in pairs if b is not None] == after
    assert all(a.skeleton == b.skeleton for a, b in pairs if a is not None and b is not None)
    assert all(a is not None or b is not None for a, b in pairs)


def test_a_time_that_repeats_itself_is_no_clock_s() -> None:
    """A network that predicts minutes: its error is the same in every run of the original."""
    original = "error 3.42 min\nerror 2.91 min\nerror 2.77 min\n"
    rewritten = original.replace("2.77", "2.79")
    (told,) = compare_text(original, rewritten, [original])
    assert told.fails
    assert told.message.startswith("line 3 of the output has 2.79, not 2.77")
    (told,) = compare_text(original, rewritten)
    assert not told.fails, "nothing says that it is no clock"


def _without_words(times: str, losses: tuple[float, ...]) -> str:
    """Each epoch its number, its time and its loss, and sometimes one more time before them."""
    return "".join(
        f"{'0.0' + time * 3 if epoch % 2 else 'begins'}\n{epoch}\n0.{time}2{epoch}\n{loss}\nValidation:\nrank {epoch}.5\n"
        for epoch, (time, loss) in enumerate(zip(times, losses, strict=True))
    )


@pytest.mark.parametrize("precision", [None, Precision.FLOAT32])
def test_a_loss_without_words_is_told_from_times_without_words(precision: Precision | None) -> None:
    losses = (0.7712345678, 0.7598765432, 0.7443210987, 0.7212121212)
    original, again = _without_words("1234", losses), _without_words("3512", losses)
    rounded = _without_words("2231", tuple(loss + 2e-6 for loss in losses))
    wrong = _without_words("2231", (*losses[:3], 0.7230000001))
    assert not [
        f for f in compare_text(original, rounded, [again], [rounded], Precision.FLOAT32) if f.fails
    ]
    near = [_without_words("5613", tuple(loss + 1e-6 for loss in losses))] if precision else []
    (failure,) = (f for f in compare_text(original, wrong, [again], near, precision) if f.fails)
    assert "has 0.7230000001, not 0.7212121212" in failure.message


def test_what_a_training_that_comes_apart_prints_first_is_not_compared() -> None:
    """The original does not repeat itself: its first loss is still the same, the second is not."""
    original, again, other = (f"0.5312578125\n{loss}\n" for loss in ("0.4871", "0.4893", "0.4852"))
    assert not [
        f for f in compare_text(original, other, [again], [again], Precision.FLOAT32) if f.fails
    ]
    moved = other.replace("0.53125", "0.53126")
    assert not [
        f for f in compare_text(original, moved, [again], [again], Precision.FLOAT32) if f.fails
    ]


def test_a_time_that_is_alike_once_in_many_is_a_clock_s() -> None:
    times = [f"0.{1000 + 7 * n}" for n in range(40)]
    again = [f"0.{1003 + 7 * n}" for n in range(40)]
    again[20] = times[20] = "0.91237"
    other = [f"0.{1002 + 7 * n}" for n in range(40)]
    assert not [
        f for f in compare_text("\n".join(times), "\n".join(other), ["\n".join(again)]) if f.fails
    ]


@pytest.mark.parametrize(
    ("original", "repeat"),
    [
        ("took 3.42 s\ntook 2.91 s\ntook 2.77 s", "took 3.42 s\ntook 2.91 s\ntook 2.78 s"),
        ("took 3.42 s", "took 3.42 s"),
        ("took 1.000 s\ntook 1.000 s", "took 1.000 s\ntook 1.000 s"),
        ("time 1732376123", "time 1732376123"),
        ("memory 1234.56\nmemory 2345.67", "memory 1234.56\nmemory 2345.67"),
        ("peak 1234.56 MiB\npeak 2345.67 MiB", "peak 1234.56 MiB\npeak 2345.67 MiB"),
        ('"total_flos": 378052512.0,\n"total_flos": 565763040.0,',) * 2,
    ],
)
def test_clocks_and_memory(original: str, repeat: str) -> None:
    rewritten = original.replace("1", "4").replace("3", "2")
    assert not any(finding.fails for finding in compare_text(original, rewritten, [repeat]))


WRITTEN = "loss 2.0\nthe cat\nloss 1.0\nthe dog\ndone\n"


@pytest.mark.parametrize(
    ("rewritten", "neighbour", "failing"),
    [
        (
            "loss 2.0\nthe cat\nloss 1.0\na bird\ndone\n",
            WRITTEN.replace("the dog", "dogs\nbark"),
            False,
        ),
        ("loss 2.0\nthe cat\nloss 1.0\na bird\ndone\n", WRITTEN, True),
        ("loss 2.0\na mouse\nloss 1.0\nthe dog\ndone\n", WRITTEN.replace("the dog", "a fly"), True),
        ("loss 2.0\nthe cat\nloss 1.0\ndone\n", WRITTEN.replace("the dog", "a fly"), True),
        ("loss 2.0\nthe cat\nloss 1.0\ndone\n", WRITTEN.replace("the dog\n", ""), False),
        (WRITTEN.replace("dog\n", "dog\nbest\n"), WRITTEN.replace("dog\n", "dog\nsaved\n"), False),
        (WRITTEN.replace("cat\n", "cat\nbest\n"), WRITTEN.replace("dog\n", "dog\nbest\n"), True),
    ],
)
def test_words_that_rounding_changes_in_the_original_too(
    rewritten: str, neighbour: str, failing: bool
) -> None:
    found = compare_text(WRITTEN, rewritten, (), (WRITTEN, neighbour), Precision.FLOAT32)
    assert [finding.fails for finding in found] == [failing]


def test_a_reduced_precision_may_change_other_words_than_the_neighbours() -> None:
    rewritten, neighbour = (
        WRITTEN.replace("the cat", "a mouse"),
        WRITTEN.replace("the dog", "a fly"),
    )
    (finding,) = compare_text(WRITTEN, rewritten, (), (neighbour,), Precision.BFLOAT16)
    assert not finding.fails
    assert "line 2 reads otherwise" in finding.message
    (finding,) = compare_text(WRITTEN, rewritten, (), (WRITTEN,), Precision.BFLOAT16)
    assert finding.fails


def test_what_follows_other_words_is_compared() -> None:
    rewritten = WRITTEN.replace("the cat", "a mouse").replace("loss 1.0", "loss 7.0")
    neighbour = WRITTEN.replace("the cat", "a fly")
    found = compare_text(WRITTEN, rewritten, (), (neighbour,), Precision.FLOAT32)
    assert [finding.fails for finding in found] == [False, True]


def named(second: int, seed: int = 1, loss: str = "0.52") -> str:
    """What a run prints that is named by the second it was started in."""
    return f"loss {loss}\nmodel saved to runs/CartPole-v1__dqn__{seed}__{second}/dqn.pt\ndone\n"


def test_what_is_named_by_the_second_of_its_start() -> None:
    repeats = [named(1795619803)]
    assert not compare_text(named(1795619789), named(1795619817), repeats)
    for other in (
        named(1795619817, seed=2),
        named(1795619817, loss="0.53"),
        named(1795619817).replace("dqn.pt", "last.pt"),
        named(1795619817).replace("model saved", "loss"),
        "loss 0.52\ndone\n",
    ):
        (finding,) = (f for f in compare_text(named(1795619789), other, repeats) if f.fails)
        assert finding.kind is Kind.STDOUT
    # where it is the same in each of the original's runs, it is no name of a run
    assert compare_text(named(7), named(8), [named(7)])


def test_a_later_run_may_have_another_minute_as_well() -> None:
    times = ["Wednesday_25_15h_57m_14s", "Wednesday_25_15h_57m_34s", "Wednesday_25_16h_08m_25s"]
    original, repeat, later = (f"saving to runs/net4/{time}/net-4.pth\n" for time in times)
    assert not compare_text(original, later, [repeat])
    for other in (later.replace("net4", "net5"), later.replace("net-4", "net-2")):
        assert any(finding.fails for finding in compare_text(original, other, [repeat]))
    compact = [
        f"runs/{time}\n" for time in ("20261125_235914", "20261125_235934", "20261126_000025")
    ]
    assert not compare_text(compact[0], compact[2], [compact[1]])
