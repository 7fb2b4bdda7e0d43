from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.discovery import discover
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline.interactive import Questions
from torchopt_cli.optimizer.pipeline.parallel import rewrite_in_processes
from torchopt_cli.optimizer.pipeline.rewrite import Rewritten, rewrite_all
from torchopt_cli.optimizer.rewriting.edits import FileEdit, ReplaceExpression
from torchopt_cli.transforms.base import Change, Skip, Stage, Transform

HEADER = "import torch\ndef slow(*x): ...\ndef fast(*x): ...\ndef faster(*x): ...\n"
TRAINER = HEADER + "class Trainer:\n    def run(self):\n        slow()\n    def other(self): ...\n"
SCRIPT = "from trainer import Trainer\nTrainer().run()\n"
FAST = TRAINER.replace("        slow()", "        fast()")


class Faster(Transform):
    """Calls ``fast`` for ``slow``; what a script says of itself decides whether, and how."""

    name = "faster"
    tier = Tier.NUMERIC
    stage = Stage.DATA

    def __init__(self, name: str = "faster", old: str = "slow", new: str = "fast") -> None:
        self.name, self._old, self._new = name, old, new  # pyright: ignore

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        told = script.entry.source.text
        new = "faster" if "# further" in told else self._new
        calls = [(m, c) for m in script.modules for c in m.calls if m.code(c.func) == self._old]
        for module, call in calls:
            span = module.span(call)
            if keeps := re.search("# keeps: (.*)", told):
                yield self.skip(module.path, span, keeps[1])
                continue
            edits = [FileEdit(module.path, ReplaceExpression(span, f"{new}()"))]
            if "hand(" in told:
                given = next(c for c in script.entry.calls if script.entry.code(c.func) == "hand")
                edit = ReplaceExpression(script.entry.span(given), "handed()")
                edits.append(FileEdit(script.entry.path, edit))
            message = f"calls {new} for {script.entry.path.stem}"
            yield self.change(module.path, span, message, "a test", tuple(edits))


@pytest.fixture
def rewritten(tmp_path: Path) -> Callable[..., Rewritten]:
    """``rewritten({"a.py": ...}, ["a.py"])``: the rewrite of some of the files, all of them by default."""

    def made(
        files: Mapping[str, str],
        scripts: Sequence[str] | None = None,
        *,
        tier: Tier = Tier.NUMERIC,
        transforms: Sequence[Transform] = (Faster(),),
        questions: Questions | None = None,
    ) -> Rewritten:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        paths = discover([tmp_path]).scripts if scripts is None else [tmp_path / s for s in scripts]
        return rewrite_all(paths, transforms, lambda _: Options(tier=tier), questions)

    return made


def texts(rewritten: Rewritten) -> dict[str, str]:
    return {file.path.name: file.text for file in rewritten.changed}


def skips(rewritten: Rewritten) -> list[str]:
    return [skip.message for file in rewritten.files for skip in file.skips]


def test_what_all_scripts_want_is_made_once(rewritten: Callable[..., Rewritten]) -> None:
    done = rewritten({"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER})
    assert texts(done) == {"trainer.py": FAST}
    (change,) = (change for file in done.files for change in file.changes)
    assert (change.line, change.message) == (7, "calls fast for a")
    assert skips(done) == []


def test_a_second_run_changes_nothing(rewritten: Callable[..., Rewritten]) -> None:
    files = {"a.py": SCRIPT, "b.py": SCRIPT}
    again = rewritten({**files, **texts(rewritten({**files, "trainer.py": TRAINER}))})
    assert (texts(again), skips(again)) == ({}, [])


def test_a_script_by_itself_leaves_it_to_the_others(rewritten: Callable[..., Rewritten]) -> None:
    done = rewritten({"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER}, ["a.py"])
    assert texts(done) == {}
    assert skips(done) == ["calls fast for a: not done, `b.py` uses `Trainer`, too"]


def test_a_user_that_is_not_in_the_run_stands_against_it(
    rewritten: Callable[..., Rewritten],
) -> None:
    files = {"a.py": SCRIPT, "b.py": SCRIPT, "c.py": SCRIPT, "trainer.py": TRAINER}
    done = rewritten(files, ["a.py", "b.py"])
    assert texts(done) == {}
    assert skips(done) == [
        "calls fast for a: not done, `b.py` uses `Trainer`, too",
        "calls fast for b: not done, `a.py` uses `Trainer`, too",
    ]
    assert texts(rewritten(files)) == {"trainer.py": FAST}


def test_a_user_that_cannot_be_read_stands_against_it(rewritten: Callable[..., Rewritten]) -> None:
    files = {"a.py": SCRIPT, "b.py": SCRIPT, "c.py": SCRIPT + "def f(:\n", "trainer.py": TRAINER}
    assert texts(rewritten(files)) == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("# keeps: it counts", "`b.py` uses `Trainer`, too: it counts"),
        ("# further", "`b.py` uses `Trainer`, too, and asks for another change there"),
    ],
)
def test_a_script_that_disagrees_is_named(
    rewritten: Callable[..., Rewritten], code: str, reason: str
) -> None:
    done = rewritten({"a.py": SCRIPT, "b.py": SCRIPT + code, "trainer.py": TRAINER})
    assert texts(done) == {}
    assert f"calls fast for a: not done, {reason}" in skips(done)


def test_one_with_other_options_stands_against_it(
    rewritten: Callable[..., Rewritten], tmp_path: Path
) -> None:
    rewritten({"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER})
    done = rewrite_all(
        [tmp_path / "a.py", tmp_path / "b.py"],
        [Faster()],
        lambda path: Options(tier=Tier.EXACT if path.name == "b.py" else Tier.NUMERIC),
    )
    assert texts(done) == {}
    (told,) = skips(done)
    assert told == "calls fast for a: not done, `b.py` uses `Trainer`, too, and does not ask for it"


def test_a_change_of_each_script_is_not_made(rewritten: Callable[..., Rewritten]) -> None:
    """The first of them would leave the others broken."""
    script = SCRIPT + "def hand(): ...\ndef handed(): ...\nhand()\n"
    done = rewritten({"a.py": script, "b.py": script, "trainer.py": TRAINER})
    assert texts(done) == {}
    assert len(skips(done)) == 2


def test_tier_exact_changes_nothing(rewritten: Callable[..., Rewritten]) -> None:
    files = {"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER}
    assert texts(rewritten(files, tier=Tier.EXACT)) == {}


def test_comments_hold(rewritten: Callable[..., Rewritten]) -> None:
    trainer = TRAINER.replace("        slow()", "        slow()  # torchopt: ignore[faster] no")
    done = rewritten({"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": trainer})
    assert (texts(done), skips(done)) == ({}, ["suppressed: no"])


def test_a_script_that_does_not_come_there_has_no_say(rewritten: Callable[..., Rewritten]) -> None:
    """It has the module, but neither the class nor the method."""
    files = {"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER + "def rate(): ...\n"}
    rate = "from trainer import rate  # keeps: it counts\nrate()\n"
    other = "from trainer import Trainer  # keeps: it counts\nTrainer().other()\n"
    done = rewritten({**files, "rate.py": rate, "other.py": other})
    assert texts(done) == {
        "trainer.py": files["trainer.py"].replace("        slow", "        fast")
    }


def test_who_may_come_there_by_a_string_has_a_say(rewritten: Callable[..., Rewritten]) -> None:
    named = "from trainer import Trainer  # keeps: it counts\ngetattr(Trainer(), 'run')\n"
    files = {"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER}
    assert texts(rewritten({**files, "c.py": named})) == {}
    other = named.replace("run", "other")
    assert texts(rewritten({**files, "c.py": other})) == {"trainer.py": FAST}


def test_a_user_that_is_part_of_a_script_of_the_run(rewritten: Callable[..., Rewritten]) -> None:
    files = {"fit.py": "from trainer import Trainer\ndef fit():\n    Trainer().run()\n"}
    files |= {"b.py": "from fit import fit\nfit()\n", "a.py": SCRIPT, "trainer.py": TRAINER}
    done = rewritten(files)
    assert [result.entry.name for result in done.results] == ["a.py", "b.py"]
    assert texts(done) == {"trainer.py": FAST}
    assert texts(rewritten(files, ["a.py"])) == {}
    started = files["fit.py"] + "if __name__ == '__main__':\n    fit()\n"
    assert texts(rewritten({**files, "fit.py": started})) == {}


def test_neither_order_nor_processes_matter(
    rewritten: Callable[..., Rewritten], tmp_path: Path
) -> None:
    trainer = TRAINER.replace("slow()\n", "slow()\n        faster()\n        slow()\n")
    transforms = (Faster("first", "faster", "fast"), Faster())
    near = {"near/a.py": SCRIPT, "near/b.py": SCRIPT, "near/c.py": SCRIPT}
    far = {"far/d.py": SCRIPT, "far/e.py": SCRIPT}
    files = {**near, "near/trainer.py": trainer, **far, "far/trainer.py": TRAINER}
    orders = [[*order, *far] for order in permutations(near)] + [[*far, *near]]
    found = {
        tuple(sorted((str(f.path), f.text, f.changes) for f in done.files))
        for order in orders
        if (done := rewritten(files, order, transforms=transforms))
    }
    assert len(found) == 1
    discovery = discover([tmp_path])
    assert len(discovery.groups) == 2
    parallel = rewrite_in_processes(
        discovery.scripts,
        discovery.groups,
        transforms,
        lambda _: Options(),
        2,
        iter,
    )
    assert {tuple(sorted((str(f.path), f.text, f.changes) for f in parallel.files))} == found
    assert {f.path.parent.name for f in parallel.changed} == {"near", "far"}


@pytest.mark.parametrize(("answer", "made"), [("y\n", {"trainer.py": FAST}), ("n\n", {})])
def test_the_user_is_asked_once(
    rewritten: Callable[..., Rewritten], answer: str, made: dict[str, str]
) -> None:
    told = io.StringIO()
    questions = Questions(io.StringIO(answer), told, lambda text, _: text)
    files = {"a.py": SCRIPT, "b.py": SCRIPT, "trainer.py": TRAINER}
    done = rewritten(files, questions=questions)
    assert texts(done) == made
    assert told.getvalue().count("Make this change") == 1
    assert skips(done) == ([] if made else ["calls fast for a: declined"])
