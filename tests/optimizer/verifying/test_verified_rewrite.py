"""What is rolled back and what is left, with runs made up; see test_verified_rewrite_runs.py for real ones."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.execution.observations import (
    LoaderPass,
    Loss,
    Observations,
    OptimizerInfo,
    ParameterInfo,
    ParameterUpdate,
    Status,
    Step,
    Timing,
)
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import Rewritten, rewrite_all
from torchopt_cli.optimizer.rewriting.edits import FileEdit, ReplaceExpression
from torchopt_cli.optimizer.verifying import verification
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import Progress
from torchopt_cli.optimizer.verifying.verified_rewrite import (
    CULPRITS,
    Ending,
    VerifiedRewrite,
    exit_code,
    verified_rewrite,
)
from torchopt_cli.transforms.base import Change, Example, Stage, Transform

NAMES = tuple("abcdefgh")
"""Of the transforms: ``a`` makes ``a2()`` of ``a1()``, and so on."""


class Renames(Transform):
    tier = Tier.EXACT
    stage = Stage.DATA
    example = Example("import torch\na1()\n", "import torch\na2()\n")
    old = new = ""

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change]:
        for call in script.entry.calls:
            if isinstance(call.func, ast.Name) and call.func.id == self.old:
                span = script.entry.span(call)
                edit = FileEdit(script.entry.path, ReplaceExpression(span, f"{self.new}()"))
                yield self.change(script.entry.path, span, f"calls {self.new}", "why", (edit,))


def renames(
    name: str, old: str | None = None, new: str | None = None, tier: Tier = Tier.EXACT
) -> Transform:
    made = {"name": name, "old": old or f"{name}1", "new": new or f"{name}2", "tier": tier}
    return type(name, (Renames,), made)()


def observed(losses: tuple[float, ...] = (2.0, 1.5, 1.0), **changes: object) -> Observations:
    update = {"w": ParameterUpdate(1.0, 0.1, 7)}
    steps = tuple(
        Step(i, i, 0, (Loss(value, "float32"),), (0.1,), False, False, 1.0, update)
        for i, value in enumerate(losses)
    )
    run = Observations(
        folder=Path("/nowhere"),
        status=Status.STOPPED,
        exit_code=0,
        traceback=None,
        stdout="",
        stderr="",
        stdout_cut=False,
        stderr_cut=False,
        rounds=len(losses),
        optimizer_seen=True,
        timing=Timing(1.0, 0.5, 0.2, (0.1,) * 20, (0.0,) * 20),
        steps=steps,
        optimizers=(OptimizerInfo("SGD", (("w",),), ({},)),),
        parameters={"w": ParameterInfo((3,), "float32", "cpu", True)},
        loader_passes=(LoaderPass(0, 0, len(losses), 4 * len(losses), False),),
    )
    return replace(run, **changes)


OTHER = observed((2.0, 1.4, 1.0))
CRASHED = observed(status=Status.FAILED, exit_code=1, traceback="KeyError: 'x'")
SLOW = observed((2.0,), status=Status.TIMED_OUT, exit_code=None)

Answer = Callable[[str, RunSettings], Observations]
"""By the last line of the script's text, which has all the calls: ``a2 b1 c1``."""


@dataclass
class Rewriting:
    """A script of one line per transform, rewritten and verified with runs that ``answer``."""

    script: Path
    answer: Answer
    settings: VerifySettings
    runs: list[tuple[str, RunSettings]] = field(default_factory=list)
    told: list[tuple[str, Progress]] = field(default_factory=list)

    def run(self, version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
        text = version.overrides.get(self.script) or self.script.read_text()
        calls = " ".join(line[:-2] for line in text.splitlines() if line.endswith("()"))
        self.runs.append((calls, settings))
        return self.answer(calls, settings)

    def result(self, transforms: Sequence[Transform], **changes: object) -> VerifiedRewrite:
        def rewrite(ignored: frozenset[str]) -> Rewritten:
            return rewrite_all(
                [self.script], transforms, lambda _: Options(tier=Tier.SEMANTIC, ignore=ignored)
            )

        return verified_rewrite(
            rewrite,
            [transform.name for transform in transforms],
            replace(self.settings, **changes),
            (),
            lambda what, progress: self.told.append((what, progress)),
        )


Make = Callable[..., Rewriting]


@pytest.fixture
def rewriting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(answer: Answer, calls: str = "a1 b1 c1 d1 e1 f1 g1 h1") -> Rewriting:
        script = tmp_path / "train.py"
        defined = "".join(f"def {n}{i}(): ...\n" for n in NAMES for i in (1, 2, 3))
        script.write_text(
            "import torch\n" + defined + "".join(f"{call}()\n" for call in calls.split())
        )
        settings = VerifySettings(python=Path("python"), cwd=tmp_path, steps=3, measure_speed=False)
        made = Rewriting(script, answer, settings)
        monkeypatch.setattr(verification, "run", made.run)
        return made

    return make


ALL = [renames(name) for name in NAMES]


def left(result: VerifiedRewrite) -> str:
    """The names of the transforms whose changes are left."""
    return "".join(
        name
        for file in result.rewritten.files
        for name in sorted({change.transform for change in file.changes})
    )


def blamed(result: VerifiedRewrite) -> list[tuple[str, str]]:
    return [(item.transform, "".join(item.together_with)) for item in result.rolled_back]


def test_what_is_equivalent_is_left_as_it_is(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: observed())
    result = made.result(ALL)
    assert (left(result), result.ending, result.rolled_back) == ("abcdefgh", Ending.VERIFIED, ())
    assert (result.runs, result.verifications) == (len(made.runs), 1) == (3, 1)
    assert exit_code(result) is ExitCode.OK


def test_the_wrong_one_is_named_and_rolled_back_and_the_rest_is_verified_as_a_whole(
    rewriting: Make,
) -> None:
    made = rewriting(lambda calls, how: OTHER if "f2" in calls else observed())
    result = made.result(ALL)
    assert (left(result), blamed(result)) == ("abcdegh", [("f", "")])
    assert result.ending is Ending.VERIFIED
    assert exit_code(result) is ExitCode.OK
    (item,) = result.rolled_back
    assert item.outcome is Outcome.NOT_EQUIVALENT
    assert item.report.verdict is not None
    finding = item.report.verdict.failures[0]
    assert (finding.kind, finding.step) == (Kind.LOSS, 2)
    ((change, source),) = item.changes
    assert (change.transform, source) == ("f", ("f1()",))
    assert made.script.read_text().splitlines()[change.line - 1] == "f1()"
    assert made.runs[-1][0] == "a2 b2 c2 d2 e2 f1 g2 h2", "what is left was run last"
    assert [report.verdict and report.verdict.outcome for report in result.reports] == [
        Outcome.EQUIVALENT
    ]
    originals = [calls for calls, _ in made.runs if "2" not in calls]
    assert len(originals) == 2, "the original's runs are made once"
    assert result.runs == len(made.runs) == len(made.told)


@pytest.mark.parametrize("pair", ["ab", "ah", "cf", "gh"])
def test_of_two_that_are_wrong_only_together_the_later_one_goes(rewriting: Make, pair: str) -> None:
    first, second = pair
    made = rewriting(
        lambda calls, how: OTHER if f"{first}2" in calls and f"{second}2" in calls else observed()
    )
    result = made.result(ALL)
    assert blamed(result) == [(second, first)]
    assert left(result) == "abcdefgh".replace(second, "")


def test_several_that_are_wrong(rewriting: Make) -> None:
    def answer(calls: str, how: RunSettings) -> Observations:
        return CRASHED if "b2" in calls else OTHER if "g2" in calls else observed()

    result = rewriting(answer).result(ALL)
    assert blamed(result) == [("b", ""), ("g", "")]
    assert left(result) == "acdefh"
    crashed, other = (item.report for item in result.rolled_back)
    assert crashed.rewritten_failure is not None
    assert "KeyError" in crashed.rewritten_failure.details
    assert other.rewritten_failure is None
    assert exit_code(result) is ExitCode.OK


def test_those_that_depend_on_the_wrong_one_go_with_it(rewriting: Make) -> None:
    transforms = [renames("a"), renames("b", "c2", "c3"), renames("c")]
    made = rewriting(lambda calls, how: OTHER if "c2" in calls or "c3" in calls else observed())
    result = made.result(transforms)
    assert blamed(result) == [("c", "")]
    assert result.rolled_back[0].dependent == ("b",)
    assert left(result) == "a"


def test_one_that_is_wrong_on_top_of_another_does_not_take_that_along(rewriting: Make) -> None:
    transforms = [renames("a"), renames("b", "a2", "a3"), renames("c")]
    made = rewriting(lambda calls, how: OTHER if "a3" in calls else observed())
    result = made.result(transforms)
    assert blamed(result) == [("b", "a")]
    assert left(result) == "ac"


def test_nothing_is_left_when_all_are_wrong(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: OTHER if "2" in calls else observed(), "a1 b1")
    result = made.result(ALL)
    assert (left(result), result.ending) == ("", Ending.NOTHING_LEFT)
    assert not result.rewritten.changed
    assert exit_code(result) is ExitCode.NOT_EQUIVALENT


def test_what_is_inconclusive_is_not_left(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: SLOW if "c2" in calls else observed())
    result = made.result(ALL)
    assert (left(result), blamed(result)) == ("abdefgh", [("c", "")])
    assert result.rolled_back[0].outcome is Outcome.INCONCLUSIVE
    assert exit_code(result) is ExitCode.OK


def test_all_that_there_is_being_inconclusive_is_no_proof_of_a_fault(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: SLOW if "a2" in calls else observed(), "a1")
    result = made.result(ALL)
    assert (left(result), result.ending) == ("", Ending.NOTHING_LEFT)
    assert exit_code(result) is ExitCode.FINDINGS


def test_an_original_that_is_inconclusive_by_itself_is_nobodys_fault(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: observed(unobserved=("a hook: no",)))
    result = made.result(ALL)
    assert (left(result), result.ending, blamed(result)) == ("", Ending.INCONCLUSIVE, [])
    assert exit_code(result) is ExitCode.FINDINGS
    assert len(made.runs) == 4, "one more than for the rewrite: the original in its place"


def test_an_original_that_fails(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: CRASHED)
    result = made.result(ALL)
    assert (left(result), result.ending) == ("", Ending.ORIGINAL_FAILED)
    assert exit_code(result) is ExitCode.SCRIPT_FAILED
    assert len(made.runs) == 1


def test_nothing_to_compare_is_raised(rewriting: Make) -> None:
    with pytest.raises(TorchoptError, match="nothing to compare"):
        rewriting(lambda calls, how: observed(())).result(ALL)


def test_changes_of_training_are_kept_from_the_verified_rest(rewriting: Make) -> None:
    transforms = [*ALL[:3], renames("d", tier=Tier.SEMANTIC), *ALL[4:]]
    made = rewriting(lambda calls, how: OTHER if "d2" in calls else observed())
    result = made.result(transforms)
    assert (left(result), blamed(result)) == ("abcefgh", [("d", "")])
    assert result.rolled_back[0].outcome is Outcome.INCONCLUSIVE
    assert "as was asked for" in str(result.rolled_back[0].report.verdict)


def test_a_rewrite_that_fails_only_when_timed(rewriting: Make) -> None:
    def answer(calls: str, how: RunSettings) -> Observations:
        return CRASHED if "e2" in calls and how.mode is Mode.TIME else observed()

    result = rewriting(answer).result(ALL, measure_speed=True, pairs=2)
    assert (left(result), blamed(result)) == ("abcdfgh", [("e", "")])
    assert result.reports[-1].measurement is not None


def test_the_search_runs_nothing_twice_and_times_nothing_but_the_whole(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: OTHER if "f2" in calls else observed())
    result = made.result(ALL, measure_speed=True, pairs=2)
    seen = [calls for calls, how in made.runs if how.mode is Mode.OBSERVE and "2" in calls]
    repeated = {calls for calls in seen if seen.count(calls) > 1}
    assert not repeated
    assert {calls for calls, how in made.runs if how.mode is Mode.TIME} == {
        "a1 b1 c1 d1 e1 f1 g1 h1",
        "a2 b2 c2 d2 e2 f1 g2 h2",
    }
    assert result.verifications <= 2 + 4, "the whole, log2(8) + 1 to find it, the rest"


def test_the_number_of_verifications_is_bounded_and_the_best_so_far_is_left(
    rewriting: Make,
) -> None:
    def answer(calls: str, how: RunSettings) -> Observations:
        return OTHER if calls.count("2") >= 3 else observed()

    made = rewriting(answer)
    result = made.result(ALL)
    limit = 1 + CULPRITS * (2 + 3)
    assert result.verifications <= limit + 1
    assert result.gave_up
    assert result.ending is Ending.VERIFIED
    assert len(left(result)) == 2


def test_progress_tells_how_much_of_the_rewrite_is_verified(rewriting: Make) -> None:
    made = rewriting(lambda calls, how: OTHER if "f2" in calls else observed())
    made.result(ALL)
    whats = list(dict.fromkeys(what for what, _ in made.told))
    assert whats[0] == "8 of 8 transforms"
    assert whats[-1] == "7 of 8 transforms"
