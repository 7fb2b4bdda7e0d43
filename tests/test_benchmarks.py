"""What is shown of the committed results is what the commands make of them."""

from __future__ import annotations

import argparse
import copy
import math
import shutil
import xml.etree.ElementTree as ElementTree
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import bench as bench_module
from benchmarks import chart, equivalence, estimates, gpu, measuring, scripts, tables
from benchmarks import results as results_module
from benchmarks.results import RESULTS, read_results
from benchmarks.scripts import CorpusScript, Prepared, rewritten, rewritten_version
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns
from torchopt_cli.optimizer.verifying.result import Seen, VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings

CORPUS = Path(__file__).parent.parent / "corpus"


def version(factor: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {
        "round_seconds": 0.1 / factor,
        "speedup": {"factor": factor, "low": low, "high": high},
        "processor_seconds": 0.08 / factor,
        "processor_ratio": {"factor": 1.02, "low": 1.0, "high": 1.04},
        "data_wait_share": 0.5,
        "host_memory": 400 << 20,
    }


@pytest.fixture
def results() -> dict[str, Any]:
    machine = {"date": "2030-01-02", "cpu": "A <CPU>", "cores": 2, "gpu": None, "python": "3.12"}
    versions = {
        "original": version(1.0, 1.0, 1.0),
        "torchopt": version(1.5, 1.25, 1.75) | {"outcome": "equivalent", "tier": "exact"},
        "expert": version(2.0, 1.9, 2.1) | {"worker_memory": 100 << 20},
        "light": version(3.0, 2.5, 3.5),
        "torchfix": {"note": "nothing to fix"},
    }
    return {
        "one": {"machine": machine | {"torch": "2.9"}, "load": [0.5, 1.5], "versions": versions}
    }


def test_the_chart_is_that_of_the_results() -> None:
    for device in ("cpu", "cuda"):
        path = RESULTS / f"{device}.svg"
        found = read_results(device)
        assert path.exists() == bool(found)
        assert not found or path.read_text(encoding="utf-8") == chart.draw(found)


def test_the_readme_has_the_table_of_the_results() -> None:
    text = tables.README.read_text(encoding="utf-8")
    assert text.split(tables.BEGIN)[1].split(tables.END)[0] == tables.readme_block()


def test_results_are_of_scripts_that_exist() -> None:
    assert {*read_results("cpu")} <= {path.parent.name for path in CORPUS.glob("*/manifest.toml")}


def test_the_full_table(results: dict[str, Any]) -> None:
    row = tables.full_table(results).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        *("`one`", "100 ms", "66.7 ms", "1.50x [1.25, 1.75]", "2.00x [1.90, 2.10]", "67%", "50%"),
        *("1.02x [1.00, 1.04]", "400 MiB → 400 MiB", "nothing to fix", "equivalent (exact)"),
    ]


@pytest.mark.parametrize(
    ("tuned", "cell"),
    [
        (version(1.8, 1.7, 1.9) | {"configuration": "compile"}, "1.80x [1.70, 1.90]"),
        ({"note": "nothing that was tried is faster"}, "nothing that was tried is faster"),
        (None, "-"),
    ],
)
def test_the_tuned_version_has_a_column_where_there_is_one(
    results: dict[str, Any], tuned: dict[str, Any] | None, cell: str
) -> None:
    tables_of = (tables.full_table, tables.short_table)
    assert not [table for table in tables_of if "tuned" in table(results)]
    results["other"] = copy.deepcopy(results["one"])
    results["other"]["versions"]["tuned"] = version(1.1, 1.0, 1.2)
    if tuned:
        results["one"]["versions"]["tuned"] = tuned
    for table in tables_of:
        headings, _, row, _ = (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in table(results).splitlines()
        )
        place = headings.index("tuned")
        assert headings[place - 1 : place + 2] in (
            ["speedup", "tuned", "expert"],
            ["torchopt", "tuned", "expert"],
        )
        assert row[place] == cell
        assert len(row) == len(headings)


def test_what_is_to_be_tuned_is_not_done_without(results: dict[str, Any]) -> None:
    (script,) = scripts.corpus(["vae"], "cpu")
    measured = {"vae": results["one"] | {"digest": bench_module.digest(script)}}
    assert bench_module.outdated([script], measured, tuned=False) == []
    assert bench_module.outdated([script], measured, tuned=True) == [script]
    measured["vae"]["versions"]["tuned"] = {"note": "nothing that was tried is faster"}
    assert bench_module.outdated([script], measured, tuned=True) == []
    measured["vae"]["digest"] = "other"
    assert bench_module.outdated([script], measured, tuned=False) == [script]


def test_no_share_of_what_the_expert_did_not_gain(results: dict[str, Any]) -> None:
    versions = results["one"]["versions"]
    versions["expert"] = version(1.1, 0.9, 1.3)
    assert tables.share_of_expert(versions["torchopt"], versions["expert"]) is None


def test_no_speed_of_light_without_data_to_wait_for(results: dict[str, Any]) -> None:
    versions = results["one"]["versions"]
    versions["original"]["data_wait_share"] = 0.0
    assert tables.share_of_light(versions) is None
    assert chart.draw(results).count("light interval") == 1  # the legend's


def test_a_version_that_fails_is_shown_as_one(results: dict[str, Any]) -> None:
    results["one"]["versions"]["torchopt"] = {"failed": "ValueError: no"}
    assert "| ValueError: no |" in tables.short_table(results)
    chart.draw(results)


def test_the_chart_is_svg_and_shows_every_interval_in_full(results: dict[str, Any]) -> None:
    wide = copy.deepcopy(results)
    wide["one"]["versions"]["expert"]["speedup"] = {"factor": 2.0, "low": 0.3, "high": 9.0}
    for one in (results, wide):
        root = ElementTree.fromstring(chart.draw(one))
        assert root.tag.endswith("svg")
    axis = chart.draw(wide)
    assert ">0.25x<" in axis
    assert ">16x<" in axis
    assert "A &lt;CPU&gt;, 2 cores" in axis


def test_rank_correlation() -> None:
    assert estimates.rank_correlation([(1.0, 10.0), (2.0, 20.0), (3.0, 90.0)]) == pytest.approx(1.0)
    assert estimates.rank_correlation([(1.0, 9.0), (2.0, 4.0), (3.0, 1.0)]) == pytest.approx(-1.0)
    # As scipy.stats.spearmanr([1, 2, 2, 4], [1, 3, 2, 4]) has it.
    tied = [(1.0, 1.0), (2.0, 3.0), (2.0, 2.0), (4.0, 4.0)]
    assert estimates.rank_correlation(tied) == pytest.approx(0.9486832980505138)
    assert estimates.rank_correlation(tied[:2]) is None
    assert estimates.rank_correlation([(1.0, 1.0)] * 4) is None


@pytest.mark.torch
@pytest.mark.parametrize(("gpus", "processes"), [(1, None), (2, 2)])
def test_ranks_that_lack_gpus_are_one_process(
    monkeypatch: pytest.MonkeyPatch, gpus: int, processes: int | None
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    script = CorpusScript("instruments", "cuda")
    version, _ = rewritten_version(rewritten(script), script)
    assert version.processes == processes


@pytest.mark.parametrize("script", scripts.corpus([], "cuda"), ids=lambda script: script.name)
def test_what_is_verified_is_short_on_every_device(script: CorpusScript) -> None:
    assert script.arguments(timed=False) == replace(script, device="cpu").arguments(timed=False)
    assert script.arguments(timed=True) != replace(script, device="cpu").arguments(timed=True)


JUNIT = """\
<testsuites><testsuite name="pytest" tests="4">
<testcase classname="tests.a" name="test_one" time="0.1"/>
<testcase classname="tests.a" name="test_two"><failure message="no">no</failure></testcase>
<testcase classname="tests.b" name="test_three"><error message="no">no</error></testcase>
<testcase classname="tests.b" name="test_four"><skipped message="no device">no</skipped></testcase>
</testsuite></testsuites>
"""


def test_what_a_test_report_says(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(JUNIT)
    assert gpu.outcome_of(tmp_path / "report.xml") == {
        "passed": 1,
        "failed": {"tests.a::test_two": "no", "tests.b::test_three": "no"},
        "skipped": ["tests.b::test_four"],
    }
    assert gpu.outcome_of(tmp_path / "none.xml") == {"passed": 0, "failed": {}, "skipped": []}


def test_a_session_ends_what_takes_too_long(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session = gpu.Session(gpu.FEWEST_SECONDS / 2 / 60, tmp_path, "cpu")
    assert not session.run("this")  # says so at once: it prints the Zen of Python otherwise
    assert "Zen" not in capfd.readouterr().out
    session = gpu.Session(10, tmp_path, "cpu")
    assert session.run("this")
    assert not session.run("no_such_module")


def test_what_is_ended_may_write_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "FEWEST_SECONDS", 0.0)
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 5.0)
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ntry:\n    time.sleep(60)\nfinally:\n    pathlib.Path('told').touch()\n"
    )
    assert not gpu.Session(10, tmp_path, "cpu").run("slow", seconds=6.0)
    assert (tmp_path / "told").exists()


class _GpuRun:
    """Stands in for the commands of a session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked: list[str] = []
        self.report = JUNIT
        self.results, self._folder = folder / "results", folder
        monkeypatch.setattr(gpu.Session, "run", lambda *args, **_: self.run(*args))
        monkeypatch.setattr(gpu, "RESULTS", self.results)
        monkeypatch.setattr(gpu, "machine", lambda _: {})
        monkeypatch.setattr(gpu.chart, "main", self.draw)

    def run(self, session: gpu.Session, module: str, *arguments: str) -> bool:
        self.asked.append(module)
        if module == "pytest":
            report = next(one for one in arguments if one.startswith("--junit-xml="))
            Path(report.removeprefix("--junit-xml=")).write_text(self.report)
            return "failure" not in self.report
        if module == "benchmarks.corpus":
            (session.data / "vae").mkdir(exist_ok=True)
            (session.data / "vae" / equivalence.VERDICTS).write_text('{"of": {}}')
            self.results.mkdir(exist_ok=True)
            (self.results / "cuda.json").write_text("{}")
        return True

    def draw(self) -> None:
        raise ZeroDivisionError

    def go(self, minutes: float, data: str) -> tuple[int, list[str], set[str]]:
        self.asked.clear()
        output = self._folder / f"output-{data}"
        status = gpu.main(
            [f"--minutes={minutes}", f"--data={self._folder / data}", f"--output={output}"]
        )
        return status, [*self.asked], {path.name for path in output.iterdir()}


def test_what_failed_is_done_again_after_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _GpuRun(monkeypatch, tmp_path)
    measuring = ["benchmarks.corpus", "benchmarks.corpus", "benchmarks.estimates"]
    written = {"gpu-tests.json", "gpu-verdicts.json", "cuda.json"}
    status, asked, found = made.go(9, "here")
    assert (status, sorted(asked), found) == (1, [*measuring, "pytest"], written)
    assert made.go(9, "here") == (1, [*measuring, "pytest"], written)
    made.report = JUNIT.replace("failure", "system-out").replace("error", "system-out")
    assert made.go(9, "here")[:2] == (0, [*measuring, "pytest"])
    assert made.go(9, "elsewhere")[:2] == (0, measuring)
    kept = tmp_path / "elsewhere" / "vae" / equivalence.VERDICTS
    assert kept.read_text() == '{"of": {}}'


def test_verdicts_go_with_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "results")
    one, other = tmp_path / "one", tmp_path / "other"
    (one / "vae").mkdir(parents=True)
    (one / "vae" / equivalence.VERDICTS).write_text('{"key": {"outcome": "equivalent"}}')
    gpu.keep_verdicts(one)
    gpu.bring_verdicts(other)
    assert (
        other / "vae" / equivalence.VERDICTS
    ).read_text() == '{"key": {"outcome": "equivalent"}}'


def test_the_tests_that_need_a_gpu_are_found() -> None:
    found = [p.name for p in (gpu.ROOT / "tests").rglob("test_*.py") if gpu.MARK in p.read_text()]
    assert "test_gpu_runs.py" in found


class _Verifier:
    """Stands in for ``prepare`` and ``verify_against``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.judged: list[ScriptVersion] = []
        monkeypatch.setattr(equivalence, "prepare", self.prepare)
        monkeypatch.setattr(equivalence, "verify_against", self.verify_against)

    def prepare(self, script: CorpusScript, folder: Path, *_: Any, **__: Any) -> Prepared:
        (folder / script.name).mkdir(parents=True, exist_ok=True)
        return Prepared(("--epochs", "1"), 0.1)

    def verify_against(
        self, runs: OriginalRuns, version: ScriptVersion, settings: VerifySettings, _: Any
    ) -> VerificationReport:
        self.judged.append(version)
        outcome = (
            Outcome.NOT_EQUIVALENT if "wrong" in str(version.overrides) else Outcome.EQUIVALENT
        )
        verdict = Verdict(outcome, settings.tier or Tier.EXACT, None, "by the test", ())
        return VerificationReport(
            runs.version, version, settings, None, Seen(1, 1, 0, 0), 3, verdict=verdict
        )


def test_verdicts_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = _Verifier(monkeypatch)
    script = CorpusScript("vae", "cpu")

    def ask(**texts: str) -> dict[str, str]:
        versions = {
            name: (ScriptVersion(script.original, {script.original: text}), Tier.NUMERIC)
            for name, text in texts.items()
        }
        found = equivalence.equivalence(script, versions, tmp_path, Path("python"), 60.0, print)
        return {name: verdict["outcome"] for name, verdict in found.items()}

    assert ask(torchopt="right", torchfix="wrong") == {
        "torchopt": "equivalent",
        "torchfix": "not equivalent",
    }
    assert ask(torchfix="wrong") == {"torchfix": "not equivalent"}
    assert len(verifier.judged) == 2
    assert ask(torchopt="another") == {"torchopt": "equivalent"}
    assert len(verifier.judged) == 3
    assert verifier.judged[0].args == ("--epochs", "1")


def test_verdicts_are_known_wherever_the_corpus_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(text: str) -> str:
        script = CorpusScript("mlp_many_steps", "cpu")
        version = ScriptVersion(script.original, {script.original: text})
        return equivalence.version_digest(script, version)

    here = key("a text")
    shutil.copytree(scripts.CORPUS / "mlp_many_steps", tmp_path / "mlp_many_steps")
    monkeypatch.setattr(scripts, "CORPUS", tmp_path)
    assert key("a text") == here != key("another text")


class _OneMinute:
    """Stands in for ``Bench``: what is timed takes a minute."""

    now = 0.0
    broken: frozenset[str] = frozenset()
    unverified: frozenset[str] = frozenset()
    timed: ClassVar[list[tuple[list[str], int]]]

    def __init__(self, script: CorpusScript, *_: Any) -> None:
        self.script = script

    def verified(self) -> dict[str, Any]:
        if self.script.name in self.unverified:
            raise ZeroDivisionError
        return {"torchopt": {"outcome": "equivalent"}}

    @property
    def device_memory(self) -> int:
        return 3

    def contestants(self, cwd: Path) -> dict[str, str]:
        return {"original": self.script.name}

    def result(
        self, verdicts: dict[str, Any], turns: dict[str, Any], loads: list[float]
    ) -> dict[str, Any]:
        assert turns == {"original": self.script.name}
        if self.script.name in self.broken:
            raise KeyError("no such thing")
        return {"of": self.script.name, "verdicts": [*verdicts]}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[_OneMinute]:
    class Bench(_OneMinute):
        pass

    def take_turns(contestants: dict[Any, Any], *_: Any, **how: Any) -> dict[Any, Any]:
        Bench.now += 60.0
        Bench.timed.append(([script for script, _ in contestants], how["at_once"]))
        return contestants

    Bench.timed = []
    monkeypatch.setattr(measuring, "Bench", Bench)
    monkeypatch.setattr(measuring, "take_turns", take_turns)
    monkeypatch.setattr(measuring, "interpreter", lambda *_: nullcontext(Path("python")))
    monkeypatch.setattr(measuring, "timing_interpreter", lambda *_: nullcontext(Path("python")))
    monkeypatch.setattr(results_module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(measuring.time, "monotonic", lambda: Bench.now)
    return Bench


def measured(names: list[str], tmp_path: Path, **given: Any) -> tuple[int, dict[str, Any]]:
    results: dict[str, Any] = given.pop("results", {})
    usual = {
        "scripts": [],
        "device": "cpu",
        "threads": 1,
        "jobs": 1,
        "minutes": 60.0,
        "tune": None,
        "sweeps": 2,
    }
    usual |= {"data": tmp_path, "together": 1, "verify_only": False, "time_only": False}
    options = argparse.Namespace(**(usual | given))
    return measuring.measure(scripts.corpus(names, options.device), results, options), results


@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize(
    ("minutes", "done"), [(2.5, ["gan_flat", "vae"]), (10.0, ["gan_flat", "vae", "rnn_lm"])]
)
def test_no_script_is_begun_that_would_take_longer(
    tmp_path: Path, bench: type[_OneMinute], minutes: float, done: list[str], jobs: int
) -> None:
    names = ["gan_flat", "vae", "rnn_lm"]
    count, results = measured(names, tmp_path, jobs=jobs, minutes=minutes)
    assert count == len(done)
    assert results == {name: {"of": name, "verdicts": ["torchopt"]} for name in done}
    assert read_results("cpu") == results


@pytest.mark.parametrize(
    ("room", "timed"),
    [
        (100, [(["gan_flat", "vae"], 2), (["rnn_lm"], 2)]),
        # What two sweeps of one take is left, of one sweep, and of none.
        (7, [(["gan_flat"], 2), (["vae"], 2), (["rnn_lm"], 2)]),
        (4, [(["gan_flat"], 1), (["vae"], 1), (["rnn_lm"], 1)]),
        (2, [(["gan_flat"], 0), (["vae"], 0), (["rnn_lm"], 0)]),
    ],
)
def test_what_is_timed_together_has_room_on_the_device(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bench: type[_OneMinute],
    room: int,
    timed: list[tuple[list[str], int]],
) -> None:
    monkeypatch.setattr(measuring, "device_room", lambda _: room)
    names = ["gan_flat", "vae", "rnn_lm"]
    count, results = measured(names, tmp_path, device="cuda", jobs=3, together=2)
    assert (count, [*results]) == (3, names)
    assert bench.timed == timed


def test_a_script_that_cannot_be_prepared_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: type[_OneMinute]
) -> None:
    monkeypatch.setattr(measuring, "device_room", lambda _: 100)
    fails = property(lambda self: 1 // 0 if self.script.name == "vae" else 3)
    monkeypatch.setattr(bench, "device_memory", fails)
    for device in ("cuda", "cpu"):
        count, results = measured(["gan_flat", "vae"], tmp_path, device=device)
        assert (count, [*results]) == (1, ["gan_flat"])
        assert "ZeroDivisionError" in results_module.read_failures(device)["vae"]


def test_nothing_is_timed_where_verdicts_are_wanted_alone(
    tmp_path: Path, bench: type[_OneMinute]
) -> None:
    assert measured(["gan_flat", "vae"], tmp_path, verify_only=True) == (2, {})
    assert bench.timed == []


def test_what_is_timed_gets_its_verdict_and_is_not_timed_again(
    tmp_path: Path, bench: type[_OneMinute]
) -> None:
    [script] = scripts.corpus(["vae"], "cpu")
    timed = {
        "digest": bench_module.digest(script),
        "versions": {"original": {}, "torchopt": {"x": 1}},
    }
    changed = timed | {"digest": "of another text"}
    for given, verdict_alone in (
        ({"results": {"vae": timed}}, True),
        ({"results": {"vae": changed}}, False),
    ):
        bench.timed = []
        assert measured(["gan_flat", "vae"], tmp_path, jobs=2, **given)[0] == 2
        assert (["vae"] in [names for names, _ in bench.timed]) is not verdict_alone
    assert timed["versions"] == {"original": {}, "torchopt": {"x": 1, "outcome": "equivalent"}}
    bench.timed = []
    measured(["vae"], tmp_path, results={"vae": timed}, scripts=["vae"])
    assert bench.timed == [(["vae"], 0)], "a script that is named is measured anew"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_script_that_cannot_be_measured_leaves_the_others(
    tmp_path: Path, bench: type[_OneMinute], jobs: int
) -> None:
    bench.broken, bench.unverified = frozenset(["gan_flat"]), frozenset(["vae"])
    names = ["gan_flat", "vae", "rnn_lm"]
    count, results = measured(names, tmp_path, jobs=jobs)
    assert count == 1
    assert {name: result["verdicts"] for name, result in results.items()} == {
        "vae": [],
        "rnn_lm": ["torchopt"],
    }
    failures = results_module.read_failures("cpu")
    assert "no such thing" in failures["gan_flat"]
    assert "ZeroDivisionError" in failures["vae"]
    bench.broken = bench.unverified = frozenset()
    bench.now = 0.0
    _, results = measured(names, tmp_path, jobs=jobs, minutes=1.5)
    assert [*results] == ["rnn_lm"], "those that failed come last"
    measured(names, tmp_path, jobs=jobs, minutes=math.inf)
    assert results_module.read_failures("cpu") == {}
