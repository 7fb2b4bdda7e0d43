from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline import rewrite as pipeline
from torchopt_cli.optimizer.pipeline import state as rewrite_state
from torchopt_cli.optimizer.pipeline.result import RewriteResult
from torchopt_cli.optimizer.pipeline.rewrite import rewrite_all, rewrite_script, selected_transforms
from torchopt_cli.optimizer.rewriting.edits import (
    FileEdit,
    InsertBefore,
    ReplaceExpression,
    Span,
)
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.transforms.base import Advice, Advisor, Change, Skip, Stage, Transform

Planned = Iterator[Change | Skip | Advice]
DEFINITIONS = "def a(*x): ...\ndef b(*x): ...\ndef c(*x): ...\ndef d(*x): ...\n"


class Fake(Transform):
    """A transform whose plan is given from outside."""

    stage = Stage.DATA

    def __init__(
        self,
        name: str,
        plan: Callable[[Fake, TrainingScript], Planned],
        tier: Tier = Tier.EXACT,
        opt_in: bool = False,
    ) -> None:
        self.name, self.tier, self.opt_in = name, tier, opt_in  # pyright: ignore
        self._plan = plan

    def plan(self, script: TrainingScript, options: Options) -> Planned:
        return self._plan(self, script)


def calls(script: TrainingScript, name: str) -> Iterator[tuple[Path, Span]]:
    for module in script.modules:
        for call in module.calls:
            if isinstance(call.func, ast.Name) and call.func.id == name:
                yield module.path, module.span(call)


def replacing(old: str, new: str, name: str = "", tier: Tier = Tier.EXACT, **more: Any) -> Fake:
    """Puts the expression ``new`` where ``old`` is called."""

    def plan(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, old):
            edit = FileEdit(path, ReplaceExpression(span, new))
            yield self.change(path, span, f"{new} for {old}", "a test", (edit,))

    return Fake(name or f"{old}-to-{new.partition('(')[0]}", plan, tier, **more)


def write(folder: Path, files: str | Mapping[str, str]) -> Path:
    named = {"train.py": files} if isinstance(files, str) else files
    for name, text in named.items():
        (folder / name).write_text(text)
    return folder / next(iter(named))


def rewrite(
    folder: Path, files: str | Mapping[str, str], *transforms: Transform, **options: Any
) -> RewriteResult:
    return rewrite_script(write(folder, files), Sources(), transforms, Options(**options))


def texts(result: RewriteResult) -> dict[str, str]:
    return {file.path.name: file.text for file in result.files}


def skips(result: RewriteResult) -> list[tuple[str, int, str]]:
    return [(s.transform, s.line, s.message) for file in result.files for s in file.skips]


def errors(result: RewriteResult) -> list[str]:
    return [f"{e.transform}: {e.message}" for file in result.files for e in file.errors]


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The scripts that were understood, one item for each time."""
    seen: list[Path] = []
    real = pipeline.understand

    def counting(
        entry: Path, sources: Sources, earlier: TrainingScript | None = None
    ) -> TrainingScript:
        seen.append(entry)
        return real(entry, sources, earlier)

    for module in (pipeline, rewrite_state):
        monkeypatch.setattr(module, "understand", counting)
    return seen


def test_nothing_to_do(tmp_path: Path, understood: list[Path]) -> None:
    source = DEFINITIONS + "d()\n"
    result = rewrite(tmp_path, source, replacing("a", "b()"), replacing("b", "c()"))
    (file,) = result.files
    assert (file.text, file.changed, file.changes) == (source, False, ())
    assert len(understood) == 1


def test_a_change_is_made_in_memory_only(tmp_path: Path) -> None:
    result = rewrite(tmp_path, DEFINITIONS + "a()\n", replacing("a", "b(1)"))
    (file,) = result.files
    assert file.text == DEFINITIONS + "b(1)\n"
    assert file.path.read_text() == DEFINITIONS + "a()\n"
    (change,) = file.changes
    assert (change.transform, change.tier, change.line, change.end_line) == (
        "a-to-b",
        Tier.EXACT,
        5,
        5,
    )
    assert (change.message, change.reason) == ("b(1) for a", "a test")


def test_later_transforms_see_what_earlier_ones_did(tmp_path: Path, understood: list[Path]) -> None:
    chain = (replacing("a", "b()"), replacing("b", "c()"))
    assert texts(rewrite(tmp_path, DEFINITIONS + "a()\n", *chain))["train.py"].endswith("c()\n")
    assert len(understood) == 3


def test_earlier_transforms_see_what_later_ones_did(tmp_path: Path) -> None:
    chain = (replacing("b", "c()"), replacing("a", "b()"))
    result = rewrite(tmp_path, DEFINITIONS + "a()\n", *chain)
    assert texts(result)["train.py"].endswith("\nc()\n")
    assert [change.transform for change in result.files[0].changes] == ["a-to-b", "b-to-c"]


def test_lines_are_those_of_the_original(tmp_path: Path) -> None:
    def insert(self: Fake, script: TrainingScript) -> Planned:
        statement = script.entry.tree.body[-1]
        if not any(calls(script, "print")):
            span = script.entry.span(statement)
            edit = FileEdit(script.entry.path, InsertBefore(span, "print()\nprint()\nprint()"))
            yield self.change(script.entry.path, span, "prints", "a test", (edit,))

    def look(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "d"):
            yield self.skip(path, span, "left")

    result = rewrite(
        tmp_path,
        DEFINITIONS + "x = a(\n    1,\n)\nd()\n",
        Fake("insert", insert),
        replacing("a", "b()"),
        Fake("look", look),
    )
    changes = {c.transform: (c.line, c.end_line) for c in result.files[0].changes}
    assert changes == {"insert": (8, 8), "a-to-b": (5, 7)}
    assert skips(result) == [("look", 8, "left")]


def test_places_named_in_messages_are_those_of_the_original(tmp_path: Path) -> None:
    def above(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            if script.entry.source.text.count("\n") < 10:
                edit = FileEdit(path, InsertBefore(span, "c()\nd()"))
                yield self.change(path, span, "two lines more", "a test", (edit,))

    def naming(self: Fake, script: TrainingScript) -> Planned:
        places = [m.place(call) for m in script.modules for call in m.calls_named("b")]
        for path, span in calls(script, "b"):
            yield self.skip(path, span, f"at {', '.join(places)}, not `line 6 of train.py`")

    files = {
        "train.py": DEFINITIONS + "import data, package.data\n\na()\nb()\n",
        "data.py": "from train import a, b, c, d\n\na()\nb()\n",
        "package/data.py": "from train import b\nb()\n",
    }
    (tmp_path / "package").mkdir()
    result = rewrite(tmp_path, files, Fake("above", above), Fake("naming", naming))
    own, other, packaged = result.files
    assert own.text.endswith("c()\nd()\na()\nb()\n")
    assert other.text.endswith("c()\nd()\na()\nb()\n")
    there, inside = f"line 4 of {tmp_path.name}/data.py", "line 2 of package/data.py"
    assert {file.path: file.skips[0].message for file in result.files} == {
        own.path: f"at line 8, {there}, {inside}, not `line 6 of train.py`",
        other.path: f"at line 8 of train.py, line 4, {inside}, not `line 6 of train.py`",
        packaged.path: f"at line 8 of train.py, {there}, line 2, not `line 6 of train.py`",
    }


def test_skips_are_those_of_the_result(tmp_path: Path) -> None:
    def skip(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            yield self.skip(path, span, "an a")
        for path, span in calls(script, "b"):
            yield self.skip(path, span, "a b")
            yield self.skip(path, span, "a b")

    result = rewrite(tmp_path, DEFINITIONS + "a()\n", Fake("skip", skip), replacing("a", "b()"))
    assert skips(result) == [("skip", 5, "a b")]


def failing(self: Fake, script: TrainingScript) -> Planned:
    yield from replacing("a", "c()").plan(script, Options())
    raise KeyError("no\nsuch fact")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fake("bad", failing), "internal error: KeyError at test_rewrite.py:"),
        (replacing("a", "b(", name="bad"), "internal error"),
        (replacing("a", "missing()", name="bad"), "undefined names: missing"),
    ],
)
def test_a_faulty_transform_costs_only_itself(tmp_path: Path, fault: Fake, message: str) -> None:
    result = rewrite(tmp_path, DEFINITIONS + "a()\nd()\n", fault, replacing("d", "c()"))
    assert texts(result)["train.py"] == DEFINITIONS + "a()\nc()\n"
    (error,) = errors(result)
    assert error.startswith("bad: internal error")
    assert message in error
    assert "\n" not in error


def test_a_result_that_is_not_understood_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rewrite_state.understand

    def picky(
        entry: Path, sources: Sources, earlier: TrainingScript | None = None
    ) -> TrainingScript:
        if "b()" in sources.read(entry).text:
            raise RecursionError("b")
        return real(entry, sources, earlier)

    monkeypatch.setattr(rewrite_state, "understand", picky)
    chain = (replacing("a", "b()"), replacing("d", "c()"))
    result = rewrite(tmp_path, DEFINITIONS + "a()\nd()\n", *chain)
    assert texts(result)["train.py"] == DEFINITIONS + "a()\nc()\n"
    assert len(errors(result)) == 1


def test_what_cannot_be_understood_at_all_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(
        entry: Path, sources: Sources, earlier: TrainingScript | None = None
    ) -> TrainingScript:
        raise RuntimeError("oh\nno")

    monkeypatch.setattr(pipeline, "understand", broken)
    with pytest.raises(TorchoptError, match=r"train\.py: internal error: RuntimeError.*: oh no$"):
        rewrite(tmp_path, "a = 1\n")


def test_one_bad_change_does_not_cost_its_neighbours(tmp_path: Path) -> None:
    def plan(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            code = "missing()" if span.line == 6 else "b()"
            edit = FileEdit(path, ReplaceExpression(span, code))
            yield self.change(path, span, code, "a test", (edit,))

    result = rewrite(tmp_path, DEFINITIONS + "a()\na()\na()\n", Fake("half", plan))
    assert texts(result)["train.py"] == DEFINITIONS + "b()\na()\nb()\n"
    assert len(errors(result)) == 1
    assert "undefined names: missing" in errors(result)[0]


def test_changes_that_exclude_each_other_are_made_one_at_a_time(tmp_path: Path) -> None:
    def plan(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            for code in ("b()", "c()"):
                edit = FileEdit(path, ReplaceExpression(span, code))
                yield self.change(path, span, code, "a test", (edit,))

    result = rewrite(tmp_path, DEFINITIONS + "a()\na()\n", Fake("both", plan))
    assert texts(result)["train.py"] == DEFINITIONS + "b()\nb()\n"
    assert errors(result) == []
    assert [change.message for change in result.files[0].changes] == ["b()", "b()"]


def test_a_change_in_several_files_is_made_in_all_or_none(tmp_path: Path) -> None:
    def plan(code: str) -> Callable[[Fake, TrainingScript], Planned]:
        def planned(self: Fake, script: TrainingScript) -> Planned:
            places = list(calls(script, "a"))
            if len(places) == 2:
                edits = tuple(
                    FileEdit(path, ReplaceExpression(span, c))
                    for (path, span), c in zip(places, ("b()", code), strict=True)
                )
                yield self.change(*places[0], "both files", "a test", edits)

        return planned

    files = {"train.py": f"import model\n{DEFINITIONS}a()\n", "model.py": f"{DEFINITIONS}a()\n"}
    broken = rewrite(tmp_path, files, Fake("two", plan("missing()")))
    assert texts(broken) == files
    assert len(errors(broken)) == 1
    done = rewrite(tmp_path, files, Fake("two", plan("c()")))
    assert texts(done)["train.py"].endswith("b()\n")
    assert texts(done)["model.py"].endswith("c()\n")
    assert [len(file.changes) for file in done.files] == [1, 0]


def growing(self: Fake, script: TrainingScript) -> Planned:
    path, module = script.entry.path, script.entry
    span = module.span(module.tree.body[0])
    edit = FileEdit(path, InsertBefore(span, "print()"))
    yield self.change(path, span, "again", "a test", (edit,))


def test_a_transform_that_never_rests_is_dropped(tmp_path: Path) -> None:
    chain = (Fake("growing", growing), replacing("a", "b()"))
    result = rewrite(tmp_path, DEFINITIONS + "a()\n", *chain)
    assert texts(result)["train.py"] == DEFINITIONS + "b()\n"
    assert [change.transform for change in result.files[0].changes] == ["a-to-b"]
    (error,) = errors(result)
    assert error.startswith("growing: internal error: still changes its own result")


def test_transforms_that_undo_each_other_are_dropped(tmp_path: Path) -> None:
    chain = (replacing("a", "b()"), replacing("b", "a()"), replacing("c", "d()"))
    result = rewrite(tmp_path, DEFINITIONS + "a()\nc()\n", *chain)
    assert texts(result)["train.py"] == DEFINITIONS + "a()\nd()\n"
    assert len(errors(result)) == 2


def test_a_change_that_changes_nothing_is_an_error(tmp_path: Path) -> None:
    result = rewrite(tmp_path, DEFINITIONS + "a()\n", replacing("a", "a()"))
    assert result.files[0].changes == ()
    assert "the edits change nothing" in errors(result)[0]


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# torchopt: ignore[a-to-b] measured", "suppressed: measured"),
        ("# torchopt: ignore[other, a-to-b]", "suppressed"),
        ("# torchopt: ignore", "suppressed"),
    ],
)
def test_a_comment_keeps_a_change_off(tmp_path: Path, comment: str, message: str) -> None:
    source = DEFINITIONS + f"a()  {comment}\na()\n"
    result = rewrite(tmp_path, source, replacing("a", "b()"))
    assert texts(result)["train.py"] == DEFINITIONS + f"a()  {comment}\nb()\n"
    assert skips(result) == [("a-to-b", 5, message)]
    assert errors(result) == []


def test_a_comment_for_another_transform_does_not(tmp_path: Path) -> None:
    source = DEFINITIONS + "a()  # torchopt: ignore[other]\n"
    assert "\nb()" in texts(rewrite(tmp_path, source, replacing("a", "b()")))["train.py"]


def test_a_whole_file_can_be_kept(tmp_path: Path) -> None:
    files = {
        "train.py": f"import model\n{DEFINITIONS}a()\n",
        "model.py": f"# torchopt: ignore-file vendored\n{DEFINITIONS}a()\n",
    }
    result = rewrite(tmp_path, files, replacing("a", "b()"))
    assert texts(result)["train.py"].endswith("b()\n")
    assert texts(result)["model.py"] == files["model.py"]
    assert skips(result) == [("a-to-b", 6, "suppressed: vendored")]


def test_a_comment_where_an_edit_would_land_keeps_the_change_off(tmp_path: Path) -> None:
    def plan(self: Fake, script: TrainingScript) -> Planned:
        (path, at), (_, edited) = [*calls(script, "a"), *calls(script, "c")]
        edit = FileEdit(path, ReplaceExpression(edited, "d()"))
        yield self.change(path, at, "elsewhere", "a test", (edit,))

    source = DEFINITIONS + "a()\nc()  # torchopt: ignore[far]\n"
    assert skips(rewrite(tmp_path, source, Fake("far", plan))) == [("far", 5, "suppressed")]


def rewritten_skips(
    folder: Path, source: str, *transforms: Transform, **options: Any
) -> list[tuple[str, int, str]]:
    entry = write(folder, source)
    rewritten = rewrite_all([entry], transforms, lambda _: Options(**options))
    return [(s.transform, s.line, s.message) for file in rewritten.files for s in file.skips]


class FakeAdvisor(Advisor):
    """Says something about every call of ``b``."""

    name = "look"

    def plan(self, script: TrainingScript, options: Options) -> Planned:
        for path, span in calls(script, "b"):
            module = next(module for module in script.modules if module.path == path)
            yield self.advice(path, span, f"look at {module.place(span.line)}")


def advice(result: RewriteResult) -> list[tuple[str, int, str]]:
    return [(a.transform, a.line, a.message) for file in result.files for a in file.advice]


def test_advice_is_about_the_result_in_lines_of_the_original(tmp_path: Path) -> None:
    def plan(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            edits = (InsertBefore(span, "d()"), ReplaceExpression(span, "b()"))
            yield self.change(path, span, "x", "x", tuple(FileEdit(path, edit) for edit in edits))

    result = rewrite(tmp_path, DEFINITIONS + "a()\nc()\n", FakeAdvisor(), Fake("grow", plan))
    assert texts(result)["train.py"] == DEFINITIONS + "d()\nb()\nc()\n"
    assert advice(result) == [("look", 5, "look at line 5")]
    assert skips(result) == []


def test_advice_alone_changes_nothing(tmp_path: Path) -> None:
    result = rewrite(tmp_path, DEFINITIONS + "b()\n", FakeAdvisor())
    assert not result.files[0].changed
    assert advice(result) == [("look", 5, "look at line 5")]
    assert advice(rewrite(tmp_path, "b()\n", FakeAdvisor(), ignore=frozenset({"look"}))) == []


@pytest.mark.parametrize("comment", ["ignore", "ignore[look] known", "ignore-file"])
def test_a_comment_silences_advice_and_is_not_unused(tmp_path: Path, comment: str) -> None:
    entry = write(tmp_path, f"{DEFINITIONS}b()  # torchopt: {comment}\n")
    (file,) = rewrite_all([entry], (FakeAdvisor(),), lambda _: Options()).files
    assert (file.advice, file.skips) == ((), ())


def test_advice_about_a_shared_module_is_given_once(tmp_path: Path) -> None:
    files = {"one.py": "import model\n", "two.py": "import model\n", "model.py": "b()\n"}
    write(tmp_path, files)
    scripts = [tmp_path / name for name in files]
    rewritten = rewrite_all(scripts, (FakeAdvisor(),), lambda _: Options())
    assert [len(file.advice) for file in rewritten.files if file.path.name == "model.py"] == [1]


def test_one_that_advises_is_asked_below_its_tier() -> None:
    bold = replacing("a", "b()", name="bold", tier=Tier.SEMANTIC)
    bold.advises = True  # pyright: ignore
    assert selected_transforms((bold,), Options(tier=Tier.EXACT)) == (bold,)


def test_unused_suppressions_are_reported(tmp_path: Path) -> None:
    source = (
        "# torchopt: ignore-file[c-to-d]\n"
        + DEFINITIONS
        + "a()  # torchopt: ignore[a-to-b, c-to-d]\n"
        + "d()  # torchopt: ignore[a-to-c]\n"
        + "d()  # torchopt: ignore\n"
    )
    chain = (replacing("a", "b()"), replacing("c", "d()"))
    assert rewritten_skips(tmp_path, source, *chain) == [
        ("a-to-b", 6, "suppressed"),
        ("unused-suppression", 1, "`ignore-file[c-to-d]` suppresses nothing"),
        ("unused-suppression", 6, "`ignore[c-to-d]` suppresses nothing"),
        ("unused-suppression", 7, "`ignore[a-to-c]` names no transform (did you mean 'a-to-b'?)"),
        ("unused-suppression", 8, "`ignore` suppresses nothing"),
    ]


def test_suppressions_of_what_did_not_run_are_not_unused(tmp_path: Path) -> None:
    source = DEFINITIONS + "a()  # torchopt: ignore[a-to-b]\na()  # torchopt: ignore\n"
    chain = (replacing("a", "b()"), replacing("c", "d()"))
    assert rewritten_skips(tmp_path, source, *chain, select=frozenset({"c-to-d"})) == []


def test_a_change_above_the_tier_is_a_skip(tmp_path: Path) -> None:
    def plan(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            edit = FileEdit(path, ReplaceExpression(span, "b()"))
            yield Change(self.name, Tier.SEMANTIC, path, span, "drops it", "a test", (edit,))

    fake, source = Fake("bold", plan), DEFINITIONS + "a()\n"
    careful = rewrite(tmp_path, source, fake)
    assert skips(careful) == [("bold", 5, "drops it: only with --tier semantic")]
    assert not careful.files[0].changed
    assert rewrite(tmp_path, source, fake, tier=Tier.SEMANTIC).files[0].changed


def test_selection() -> None:
    chain = (
        replacing("a", "b()", name="exact"),
        replacing("a", "b()", name="numeric", tier=Tier.NUMERIC),
        replacing("a", "b()", name="semantic", tier=Tier.SEMANTIC),
        replacing("a", "b()", name="asked", opt_in=True),
    )

    def names(**options: Any) -> list[str]:
        chosen = {k: frozenset(v) if isinstance(v, set) else v for k, v in options.items()}
        return [transform.name for transform in selected_transforms(chain, Options(**chosen))]

    assert names() == ["exact", "numeric"]
    assert names(tier=Tier.EXACT) == ["exact"]
    assert names(tier=Tier.SEMANTIC) == ["exact", "numeric", "semantic"]
    assert names(select={"asked", "exact"}) == ["exact", "asked"]
    assert names(select={"semantic"}) == []
    assert names(ignore={"exact"}) == ["numeric"]
    assert names(select={"asked"}, ignore={"asked"}) == []


@pytest.mark.parametrize("flag", ["select", "ignore"])
def test_an_unknown_name_is_a_usage_error(flag: str) -> None:
    with pytest.raises(
        TorchoptError,
        match=f"^--{flag}: no transform is called 'a-to-bb' \\(did you mean 'a-to-b'\\?\\)$",
    ) as caught:
        selected_transforms(
            (replacing("a", "b()"),),
            Options(**{flag: frozenset({"a-to-bb"})}),  # pyright: ignore
        )
    assert caught.value.exit_code is ExitCode.USAGE


def test_several_scripts_share_a_module(tmp_path: Path) -> None:
    module = f"{DEFINITIONS}a()  # torchopt: ignore[a-to-b]\na()\n"
    write(tmp_path, {"one.py": "import model\n", "two.py": "import model\n", "model.py": module})
    scripts = [tmp_path / name for name in ("one.py", "two.py", "model.py")]
    rewritten = rewrite_all(scripts, (replacing("a", "b()"),), lambda _: Options())
    assert [result.entry.name for result in rewritten.results] == ["one.py", "two.py"]
    (file,) = rewritten.changed
    assert (file.path.name, file.original.text) == ("model.py", module)
    assert [change.line for change in file.changes] == [6]
    assert [skip.message for skip in file.skips] == ["suppressed"]


def test_a_module_that_trains_when_it_is_run_is_a_script_too(tmp_path: Path) -> None:
    def only_entries(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            if path == script.entry.path:
                edit = FileEdit(path, ReplaceExpression(span, "b()"))
                yield self.change(path, span, "b for a", "a test", (edit,))

    train = (
        f"{DEFINITIONS}def main():\n    a().backward()\n\nif __name__ == '__main__':\n    main()\n"
    )
    helper = train.replace(".backward", ".forward")
    # Its steps are in another file.
    fit = train.replace("a().backward()", "optimizer = a()")
    unused = helper + "def other():\n    return optimizer\n"
    names = ("one.py", "train.py", "helper.py", "fit.py", "unused.py")
    start = "import train, helper, fit, unused\n"
    write(tmp_path, dict(zip(names, (start, train, helper, fit, unused), strict=True)))
    scripts = [tmp_path / name for name in names]
    rewritten = rewrite_all(scripts, (Fake("entries", only_entries),), lambda _: Options())
    entries = [result.entry.name for result in rewritten.results]
    assert entries == ["one.py", "train.py", "fit.py"]
    assert [file.path.name for file in rewritten.changed] == ["train.py", "fit.py"]


def test_what_no_start_of_a_script_comes_to_is_left_to_those_that_do(tmp_path: Path) -> None:
    """Each script of a package imports all of it, and comes to its own part alone."""

    def left(self: Fake, script: TrainingScript) -> Planned:
        for path, span in calls(script, "a"):
            place = f"{script.entry.path.stem} {span.line}"
            skip = self.skip(path, span, place)
            reached = script.entry.path.name == "two.py" and span.line == 5
            yield replace(skip, unreached=not reached)

    write(tmp_path, {f"{name}.py": "import model\n" for name in ("one", "two", "three")})
    write(tmp_path, {"model.py": f"{DEFINITIONS}a()\na()\n"})
    scripts = [tmp_path / f"{name}.py" for name in ("one", "two", "three")]
    rewritten = rewrite_all(scripts, (Fake("left", left),), lambda _: Options())
    told = [skip.message for file in rewritten.files for skip in file.skips]
    assert told == ["one 6", "two 5"]


def test_a_later_script_continues_what_an_earlier_one_did_to_a_module(tmp_path: Path) -> None:
    """What is only known from the second script's side is still told in the original's lines."""

    def insert(self: Fake, script: TrainingScript) -> Planned:
        for module in script.modules:
            if module.path.name == "model.py" and "print()" not in module.source.text:
                span = module.span(module.tree.body[0])
                edit = FileEdit(module.path, InsertBefore(span, "print()\nprint()"))
                yield self.change(module.path, span, "prints", "a test", (edit,))

    def only_from_two(self: Fake, script: TrainingScript) -> Planned:
        if script.entry.path.name == "two.py":
            yield from replacing("a", "b()", name="second").plan(script, Options())

    write(
        tmp_path,
        {"one.py": "import model\n", "two.py": "import model\n", "model.py": DEFINITIONS + "a()\n"},
    )
    rewritten = rewrite_all(
        [tmp_path / "one.py", tmp_path / "two.py"],
        (Fake("first", insert), Fake("second", only_from_two)),
        lambda _: Options(),
    )
    (file,) = rewritten.changed
    assert file.text.startswith("print()\nprint()\n")
    assert file.text.endswith("\nb()\n")
    assert file.original.text == DEFINITIONS + "a()\n"
    assert [(c.transform, c.line) for c in file.changes] == [("first", 1), ("second", 5)]


def test_bad_scripts_are_told_and_the_others_go_on(tmp_path: Path) -> None:
    write(tmp_path, {"bad.py": "def f(:\n", "good.py": DEFINITIONS + "a()\n"})
    scripts = [tmp_path / "missing.py", tmp_path / "bad.py", tmp_path / "good.py"]
    rewritten = rewrite_all(scripts, (replacing("a", "b()"),), lambda _: Options())
    assert [file.path.name for file in rewritten.changed] == ["good.py"]
    assert [error.path.name for error in rewritten.errors if error.path] == ["missing.py", "bad.py"]


def test_a_module_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": f"import model\n{DEFINITIONS}a()\n", "model.py": "def f(:\n"})
    rewritten = rewrite_all(
        [tmp_path / "train.py", tmp_path / "model.py"],
        (replacing("a", "b()"),),
        lambda _: Options(),
    )
    assert [file.path.name for file in rewritten.changed] == ["train.py"]
    assert [error.path.name for error in rewritten.errors if error.path] == ["model.py"]
