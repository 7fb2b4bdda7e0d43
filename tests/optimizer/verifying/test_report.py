import json
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from rich.console import Console

from torchopt_cli.optimizer.comparison.figures import StepFigures, VectorFigures
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.seeds import SeedComparison, SeedPair, end_loss
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import Status, Timing, Versions
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.json_schema import report_schema, schema_text
from torchopt_cli.optimizer.measuring.measurement import TimedRun, compare_speeds
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying.report import render_text, to_json
from torchopt_cli.optimizer.verifying.report_types import ReportJson
from torchopt_cli.optimizer.verifying.result import ScriptFailure, Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings


def steps(count: int) -> tuple[StepFigures, ...]:
    return tuple(
        StepFigures(i, 0, 2.0 / i, 2.0 / i + 1e-4, 1e-2, 1.0, 1.0) for i in range(1, count + 1)
    )


VECTOR = VectorFigures(
    "gradient of the first step", "optimizer 0", 1, 0.9995, 0.998, 1.001, 0.03, 0.2
)


@pytest.fixture
def report() -> VerificationReport:
    runs = [
        TimedRun(Timing(9.0, 2.0, 0.5, (s,) * 20, (s / 4,) * 20), None, 2**30) for s in (0.2, 0.1)
    ]
    return VerificationReport(
        ScriptVersion(Path("/p/train.py"), {}, ("--lr", "0.1")),
        ScriptVersion(Path("/p/train.py"), {Path("/p/train.py"): "..."}, ("--lr", "0.1")),
        VerifySettings(python=Path("/usr/bin/python3"), cwd=Path("/p")),
        Versions("3.11.4", "2.9.0", "cpu"),
        seen=Seen(20, 640, 0, 2),
        runs=13,
        verdict=Verdict(
            Outcome.EQUIVALENT,
            Tier.NUMERIC,
            Precision.BFLOAT16,
            "within bfloat16 rounding over 20 steps",
            (),
            steps(20),
            (VECTOR,),
        ),
        measurement=compare_speeds([runs[0]] * 3, [runs[1]] * 3, (32.0, 32.0)),
    )


def with_ends(report: VerificationReport) -> VerificationReport:
    """The report on a rewrite that changes training, with five seeds."""
    pairs = tuple(SeedPair(seed, 1.0 + seed / 100, 1.0 + seed / 100) for seed in range(5))
    ends = SeedComparison(5, (end_loss(0, pairs, False), end_loss(1, pairs[:1], False)))
    assert report.verdict is not None
    verdict = replace(report.verdict, outcome=Outcome.INCONCLUSIVE, tier=Tier.SEMANTIC)
    return replace(report, verdict=verdict, seeds=ends)


def text_of(report: VerificationReport) -> str:
    console = Console(file=StringIO(), width=120)
    render_text(report, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def failed(report: VerificationReport, *findings: Finding) -> VerificationReport:
    assert report.verdict is not None
    verdict = replace(
        report.verdict, outcome=Outcome.NOT_EQUIVALENT, reason="why", findings=findings
    )
    return replace(report, verdict=verdict, measurement=None, speed_note="not measured")


def test_the_first_line_is_the_verdict_with_the_speed(report: VerificationReport) -> None:
    first = text_of(report).splitlines()[0]
    assert first.startswith("Equivalent (numeric): within bfloat16 rounding over 20 steps")
    assert "2.00x [2.00, 2.00]" in first


def test_a_change_of_speed_of_1x_is_never_called_faster(report: VerificationReport) -> None:
    run = TimedRun(Timing(9.0, 2.0, 0.5, (0.2,) * 20, (0.0,) * 20))
    text = text_of(replace(report, measurement=compare_speeds([run] * 3, [run] * 3)))
    assert "too noisy to tell" in text.splitlines()[0]
    assert "faster" not in text


@pytest.mark.parametrize(
    ("interludes", "of_the_steps"),
    [((), True), (range(7, 8), True), (range(20), True), (range(3, 20, 4), False)],
)
def test_a_speed_of_steps_alone_is_told(
    report: VerificationReport, interludes: Sequence[int], of_the_steps: bool
) -> None:
    timing = Timing(9.0, 2.0, 0.5, (0.2,) * 20, (0.0,) * 20, interludes=tuple(interludes))
    measured = compare_speeds([TimedRun(timing)] * 3, [TimedRun(timing)] * 3)
    text = " ".join(text_of(replace(report, measurement=measured)).split())
    assert ("were timed beside steps without one" in text) == of_the_steps


def test_a_run_on_the_cpu_is_called_one(report: VerificationReport) -> None:
    assert "CPU (no GPU was used" in text_of(report)
    on_gpu = replace(report, versions=Versions("3.11.4", "2.9.0", "NVIDIA H200"))
    assert "CPU" not in text_of(on_gpu)
    assert "NVIDIA H200" in text_of(on_gpu)


def test_what_was_run_is_told(report: VerificationReport) -> None:
    text = text_of(report)
    for part in (
        "/p/train.py --lr 0.1",
        "torch 2.9.0",
        "/usr/bin/python3",
        "13 runs, seed 0",
        "20 steps, 640 samples read",
    ):
        assert part in text


def test_the_rewritten_script_is_told_from_the_original(
    report: VerificationReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    train, copy = tmp_path / "train.py", tmp_path / "out" / "faster.py"
    report = replace(report, original=ScriptVersion(train))
    made = text_of(replace(report, rewritten=ScriptVersion(train, {train: "..."})))
    assert "rewritten  train.py\n           as `torchopt rewrite` makes it\n" in made
    beside = ScriptVersion(train, {train: "..."}, ("--lr", "1"), brought_by=copy)
    placed = text_of(replace(report, rewritten=beside))
    assert "rewritten  out/faster.py --lr 1\n           in the place of train.py\n" in placed
    own = text_of(replace(report, rewritten=ScriptVersion(copy)))
    assert "rewritten  out/faster.py\non " in own


def test_what_did_not_run_for_lack_of_a_gpu_is_told(
    report: VerificationReport, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("model.to('cuda' if args.cuda else 'cpu')\n")
    report = replace(report, original=ScriptVersion(script))
    for_gpu = ScriptVersion(script, {script: "x = x.to('cuda', non_blocking=True)"})
    assert "--emulate-cuda" not in text_of(report)
    assert "--emulate-cuda" in text_of(replace(report, rewritten=for_gpu))
    on_gpu = replace(report, rewritten=for_gpu, versions=Versions("3.11.4", "2.9.0", "NVIDIA H200"))
    assert "--emulate-cuda" not in text_of(on_gpu)
    for_cpu = ScriptVersion(script, {script: script.read_text() + "optimizer.fuse()\n"})
    assert "--emulate-cuda" not in text_of(replace(report, rewritten=for_cpu))


def test_a_rewrite_that_does_not_pay_leads_on_to_tune(report: VerificationReport) -> None:
    assert "torchopt tune" not in text_of(report)
    fast, slow = (
        TimedRun(Timing(9.0, 2.0, 0.5, (s,) * 20, (s / 4,) * 20), None, 2**30) for s in (0.1, 0.2)
    )
    slower = replace(report, measurement=compare_speeds([fast] * 3, [slow] * 3))
    assert "`torchopt tune`" in text_of(slower)
    users = replace(slower, rewritten=ScriptVersion(Path("/p/faster.py")))
    assert "torchopt tune" not in text_of(users)


def test_what_was_not_reached_is_told(report: VerificationReport) -> None:
    assert (
        "No evaluation in eval mode within these steps, so none was compared: --steps N"
        in text_of(report)
    )
    full = replace(report, seen=Seen(20, 640, 64, 2, passes=2))
    assert "none was compared" not in text_of(full)
    first = replace(report, seen=Seen(20, 640, 64, 2, passes=1))
    assert "No second epoch within these steps, so none was compared" in text_of(first)
    short = replace(report, seen=Seen(20, 640, 0, 0, passes=1))
    assert "No evaluation in eval mode, no checkpoint and no second epoch within" in text_of(short)
    whole = text_of(replace(report, seen=Seen(20, 640, 0, 0, passes=1, completed=True)))
    assert "none was compared" not in whole, "no number of steps goes further"
    assert "20 steps, to the end of the script" in whole


def test_a_long_run_shows_its_first_and_last_step_and_some_between(
    report: VerificationReport,
) -> None:
    rows = [line.split() for line in text_of(report).splitlines()]
    numbers = [row[0] for row in rows if len(row) == 7 and row[-1] == "1"]
    assert (numbers[0], numbers[-1], len(numbers)) == ("1", "20", 12)


def test_findings_name_kind_step_and_tensor(report: VerificationReport) -> None:
    finding = Finding(Kind.GRADIENT, "too [long]", step=3, tensor="Net.conv1.weight")
    text = text_of(failed(report, finding))
    assert text.startswith("Not equivalent (numeric): why")
    assert "failure: gradient at step 3 [Net.conv1.weight]: too [long]" in text


@pytest.mark.parametrize(
    ("settled", "told"),
    [
        ((True, True), None),
        ((False, True), "Step times of the original were still changing"),
        ((True, False), "Step times of the rewritten version were still changing"),
        ((False, False), "Step times of both versions were still changing"),
    ],
)
def test_steps_that_did_not_settle_are_told_in_one_line(
    report: VerificationReport, settled: tuple[bool, bool], told: str | None
) -> None:
    assert report.measurement is not None
    measured = replace(
        report.measurement,
        original=replace(report.measurement.original, settled=settled[0]),
        rewritten=replace(report.measurement.rewritten, settled=settled[1]),
    )
    lines = text_of(replace(report, measurement=measured)).splitlines()
    changing = [line for line in lines if "still changing" in line]
    expected = f"{told}: a larger --steps times more, if the script makes them."
    assert changing == ([] if told is None else [expected])


def test_what_the_headline_says_is_not_said_again(report: VerificationReport) -> None:
    finding = Finding(Kind.EXIT_STATUS, "fails after 8 steps")
    told = failed(report, finding)
    assert told.verdict is not None
    named = replace(told, verdict=replace(told.verdict, reason="exit-status: fails after 8 steps"))
    assert text_of(named).count("fails after 8 steps") == 1
    other = replace(named.verdict, findings=(finding, Finding(Kind.NON_FINITE, "NaN", step=3)))
    assert "failure: non-finite at step 3: NaN" in text_of(replace(named, verdict=other))


def test_a_failing_original_shows_its_own_traceback(report: VerificationReport) -> None:
    failure = ScriptFailure(Status.FAILED, 1, 'File "train.py", line 3\nKeyError: [x]')
    text = text_of(replace(report, verdict=None, measurement=None, original_failure=failure))
    assert text.splitlines()[0] == "Original failed: KeyError: [x]"
    assert 'File "train.py", line 3' in text


def test_of_a_long_message_the_first_line_is_told(report: VerificationReport) -> None:
    details = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    np.int\n'
        "AttributeError: no attribute 'int'.\nWrite `int` instead:\n    https://numpy.org\n"
    )
    failure = ScriptFailure(Status.FAILED, 1, details)
    text = text_of(replace(report, verdict=None, measurement=None, original_failure=failure))
    assert text.splitlines()[0] == "Original failed: AttributeError: no attribute 'int'."


def test_json_holds_what_the_schema_says_and_only_that(report: VerificationReport) -> None:
    finding = Finding(Kind.NON_FINITE, "NaN", step=3, original=1.0, rewritten=float("nan"))
    failure = ScriptFailure(Status.FAILED, 1, "KeyError")
    bare = replace(report, verdict=None, measurement=None, versions=None, original_failure=failure)
    validator = Draft202012Validator(report_schema())
    for one in (report, failed(report, finding), bare, with_ends(report)):
        told = json.loads(json.dumps(to_json(one), allow_nan=False))
        validator.validate(told)
        assert told.keys() == ReportJson.__annotations__.keys()


def test_json_of_an_equivalent_pair(report: VerificationReport) -> None:
    told = to_json(report)
    assert (told["outcome"], told["exit_code"], told["tier"], told["precision"]) == (
        "equivalent",
        0,
        "numeric",
        "bfloat16",
    )
    assert told["speed"] is not None
    assert told["speed"]["factor"] == pytest.approx(2.0)
    assert told["rewritten"]["overridden"] == ["/p/train.py"]


def test_numbers_that_are_not_finite_become_null(report: VerificationReport) -> None:
    assert report.verdict is not None
    infinite = replace(report.verdict, vectors=(replace(VECTOR, allowed=float("inf")),))
    assert to_json(replace(report, verdict=infinite))["vectors"][0]["allowed"] is None


def test_the_schema_in_the_documentation_is_that_of_the_code() -> None:
    file = Path(__file__).parents[3] / "docs" / "verify-report.schema.json"
    assert file.read_text(encoding="utf-8") == schema_text(), "run `make docs`"


def test_the_schema_is_described_in_words_of_its_readers() -> None:
    for name, definition in report_schema()["$defs"].items():
        told = definition["description"]
        assert told, name
        assert not re.search(r":\w+:`|``|[Ss]ee |\.\.", told), (name, told)


def test_the_schema_refuses_what_is_no_report(report: VerificationReport) -> None:
    validator = Draft202012Validator(report_schema())
    told = json.loads(json.dumps(to_json(report)))
    for wrong in ({"exit_code": "0"}, {"findings": [{"kind": "loss"}]}, {"speed": {}}):
        with pytest.raises(ValidationError):
            validator.validate({**told, **wrong})
    del told["outcome"]
    with pytest.raises(ValidationError, match="outcome"):
        validator.validate(told)


def test_a_change_of_training_shows_both_curves_and_every_seed(report: VerificationReport) -> None:
    text = text_of(with_ends(report))
    assert "loss, original  \u2588" in text
    assert "loss, rewritten \u2588" in text
    assert "end loss of optimizer 0 per seed, rewritten 1  1.01  1.02  1.03  1.04" in text
    assert "end loss" not in text_of(report)
    assert "\u2588" not in text_of(report)


def test_an_emulated_device_is_named_everywhere(report: VerificationReport) -> None:
    emulated = replace(
        report,
        settings=replace(report.settings, emulated_gpus=1),
        versions=Versions("3.11.4", "2.9.0", "emulated CUDA device"),
        measurement=None,
        speed_note="not measured",
    )
    text = text_of(emulated)
    assert text.startswith("Equivalent (numeric, emulated CUDA): ")
    assert "emulated CUDA device (computed on the CPU" in text
    assert to_json(emulated)["run"]["emulated"] is True
    assert to_json(report)["run"]["emulated"] is False


def test_an_emulated_device_that_nothing_used_proves_nothing_for_a_gpu(
    report: VerificationReport,
) -> None:
    on_cpu = replace(
        report,
        settings=replace(report.settings, emulated_gpus=1),
        versions=Versions("3.11.4", "2.9.0", "cpu"),
        measurement=None,
    )
    text = text_of(on_cpu)
    assert text.startswith("Equivalent (numeric): ")
    assert "the emulated GPU was not used" in text
    failure = ScriptFailure(Status.FAILED, 1, "ModuleNotFoundError: No module named 'models'")
    early = replace(on_cpu, verdict=None, original_failure=failure)
    assert "emulated GPU" not in text_of(early)


@pytest.mark.parametrize(
    ("details", "hint"),
    [
        ("RuntimeError: Found no NVIDIA driver on your system.", "--emulate-cuda"),
        ("AssertionError: Torch not compiled with CUDA enabled", "--emulate-cuda"),
        (
            "torch.AcceleratorError: CUDA driver version is insufficient for CUDA runtime",
            "--emulate-cuda",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "a smaller batch",
        ),
    ],
)
def test_a_script_that_lacks_a_device_or_its_memory_is_told_what_helps(
    report: VerificationReport, details: str, hint: str
) -> None:
    failed = replace(
        report,
        verdict=None,
        measurement=None,
        original_failure=ScriptFailure(Status.FAILED, 1, details),
    )
    assert hint in to_json(failed)["reason"]
    again = replace(failed, settings=replace(report.settings, emulated_gpus=1))
    assert hint not in to_json(again)["reason"]
