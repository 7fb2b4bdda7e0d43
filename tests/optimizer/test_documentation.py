import re
from pathlib import Path

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.documentation import pages, write
from torchopt_cli.transforms.registry import all_transforms

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "transforms"


def test_the_pages_of_the_transforms_are_up_to_date() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert written == dict(pages(all_transforms())), "run `make docs`"


def test_a_page_shows_documentation_and_example() -> None:
    for transform in all_transforms():
        text = pages([transform])[f"{transform.name}.md"]
        assert transform.documentation().replace("``", "`") in text
        assert all(message in text for message in transform.example.advice)
        if transform.example.after is None:
            continue
        shown = text.partition("```diff\n")[2].partition("```\n")[0].splitlines()
        assert {line[:1] for line in shown} & {"+", "-"}


def test_pages_of_removed_transforms_are_removed(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("old")
    write(tmp_path, all_transforms())
    assert {path.name for path in tmp_path.iterdir()} == set(pages(all_transforms()))


def test_the_readme_lists_every_transform() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for transform in all_transforms():
        assert f"[`{transform.name}`](docs/transforms/{transform.name}.md)" in readme


def test_what_the_readme_quotes_is_what_a_user_sees(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^(corpus/\w+/train\.py):(\d+ .*)$", readme, re.MULTILINE)
    assert len(quoted) >= 2
    for script, told in quoted:
        assert main(["rewrite", script, "--dry-run"]) == 0
        assert f"{script}:{told}\n" in capsys.readouterr().err
    diff = readme.partition(
        "$ torchopt rewrite corpus/mlp_many_steps/train.py --target cpu --dry-run\n"
    )
    assert main(["rewrite", "corpus/mlp_many_steps/train.py", "--target", "cpu", "--dry-run"]) == 0
    made = capsys.readouterr().out.splitlines()
    assert set(diff[2].partition("```")[0].splitlines()) <= set(made)
