from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.options import Options
from torchopt_cli.optimizer.rewriting.losslessness import LossError
from torchopt_cli.transforms.base import Advice

Project = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
SCHEMA = Path(__file__).parents[3] / "docs" / "rewrite.schema.json"


def test_in_place(project: Project, header: str, capsys: Capture) -> None:
    folder = project({"train.py": "slow()\nslow(1)\n"})
    assert main(["rewrite", "train.py"]) == 0
    assert (folder / "train.py").read_text() == header + "fast()\nslow(1)\n"
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "train.py:10 slow-to-fast [exact] calls fast(); it is pure",
        "",
        "Left alone:",
        "train.py:11 slow-to-fast: the call has arguments",
        "",
        "1 file rewritten: 1 change; 1 place left alone.",
    ]
    assert err == ""


def test_nothing_to_do(project: Project, header: str, capsys: Capture) -> None:
    folder = project({"train.py": "fast()\n"})
    before = (folder / "train.py").stat().st_mtime_ns
    assert main(["rewrite", "train.py"]) == 0
    assert capsys.readouterr().out == "Nothing to rewrite: no training step is seen.\n"
    assert (folder / "train.py").stat().st_mtime_ns == before


def test_dry_run_shows_the_diff_and_writes_nothing(
    project: Project, header: str, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", "--dry-run", "train.py"]) == 0
    assert (folder / "train.py").read_text() == header + "slow()\n"
    out, err = capsys.readouterr()
    assert "-slow()\n+fast()\n" in out
    assert "slow-to-fast" in out, "every hunk names its transform"
    assert "would be rewritten" in err
    assert "would be rewritten" not in out


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--check"], ["--split-patches", "patches"]])
def test_a_rewrite_that_would_lose_something_is_not_shown_either(
    project: Project,
    header: str,
    capsys: Capture,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(original: str, rewritten: str) -> None:
        raise LossError(7, "a comment is gone")

    monkeypatch.setattr("torchopt_cli.optimizer.rewriting.losslessness.check_lossless", lose)
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", *flags, "train.py"]) == 2
    out, err = capsys.readouterr()
    assert (folder / "train.py").read_text() == header + "slow()\n"
    assert "fast()" not in out
    assert err == "train.py:7: internal error: a comment is gone; nothing was written\n"


def test_check(project: Project, header: str, capsys: Capture) -> None:
    folder = project({"train.py": "slow()\n", "done.py": "fast()\n"})
    assert main(["rewrite", "--check", "train.py"]) == 1
    assert main(["rewrite", "--check", "--dry-run", "train.py"]) == 1
    assert main(["rewrite", "--check", "done.py"]) == 0
    assert (folder / "train.py").read_text() == header + "slow()\n"


def test_output(project: Project, header: str, capsys: Capture) -> None:
    folder = project({"train.py": "slow()\n"})
    (folder / "train.py").chmod(0o754)
    assert main(["rewrite", "train.py", "-o", "fast.py"]) == 0
    assert (folder / "train.py").read_text() == header + "slow()\n"
    assert (folder / "fast.py").read_text() == header + "fast()\n"
    assert (folder / "fast.py").stat().st_mode & 0o777 == 0o754
    assert capsys.readouterr().out.endswith("1 file rewritten as fast.py: 1 change.\n")


def test_output_of_an_unchanged_script_is_the_script(
    project: Project, header: str, capsys: Capture
) -> None:
    folder = project({"train.py": "fast()\n"})
    assert main(["rewrite", "train.py", "--output", "out.py"]) == 0
    assert (folder / "out.py").read_text() == header + "fast()\n"
    assert capsys.readouterr().out.endswith(". out.py is a copy.\n")


def test_output_takes_one_file(project: Project, capsys: Capture) -> None:
    folder = project({"a.py": "slow()\n", "b.py": "slow()\n"})
    assert main(["rewrite", "a.py", "b.py", "-o", "out.py"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--output takes one file, but 2 would change: a.py, b.py (--split-patches" in err
    assert "slow()\n" in (folder / "a.py").read_text()
    assert not (folder / "out.py").exists()


def test_select_ignore_and_tier(project: Project, capsys: Capture) -> None:
    folder = project({"train.py": "slow()\nbold()\n"})

    def outcome(*flags: str) -> str:
        assert main(["rewrite", "train.py", "-o", "out.py", *flags]) == 0
        return "\n".join((folder / "out.py").read_text().splitlines()[-2:])

    assert outcome() == "fast()\nbold()"
    assert outcome("--tier", "semantic") == "fast()\nbolder()"
    assert outcome("--tier", "semantic", "--ignore", "slow-to-fast") == "slow()\nbolder()"
    assert outcome("--select", "bold-to-bolder,slow-to-fast") == "fast()\nbold()"
    assert "bold-to-bolder is semantic: it only runs with --tier semantic" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--select", "slow-to-fsat"], "did you mean 'slow-to-fast'?"),
        (["--tier", "bitwise"], "--tier: 'bitwise' is not one of exact, numeric, semantic"),
        (["--torch", "1.13"], "torch 1.13 is older than 2.2"),
        (["--torch", "new"], "--torch: 'new' is not a version"),
        (["--gpus", "0"], "--gpus: 0 is not a whole number of at least 1"),
        (["--gpus", "many"], "--gpus"),
        (["--accumulate", "1"], "--accumulate: 1 is not a whole number of at least 2"),
        (["--accumulate", "2.5"], "--accumulate: '2.5' is not a whole number of at least 2"),
        (["--format", "yaml"], "--format: 'yaml' is not one of text, json, github"),
        (["--python", "no-such-python"], "no such interpreter: no-such-python"),
        (["--dryrun"], "--dry"),
    ],
)
def test_usage_errors_are_one_line(
    project: Project, header: str, capsys: Capture, flags: list[str], message: str
) -> None:
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", "train.py", *flags]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert (folder / "train.py").read_text() == header + "slow()\n"


def test_an_empty_path_is_not_the_current_folder(
    project: Project, header: str, capsys: Capture
) -> None:
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", ""]) == 2
    assert capsys.readouterr().err == "torchopt: '' is not a path\n"
    assert (folder / "train.py").read_text() == header + "slow()\n"


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"def f(:\n", "bad.py:1:"),
        (b"print 'torch'\n", "bad.py:1:"),
        (b"x = 1\nx.cuda(async=True)\n", "bad.py:2:"),
        (b"x = 1\n\0\n", "bad.py:2:1"),
        (b"# caf\xe9 torch\n", "bad.py:1:"),
    ],
)
def test_unreadable_input_is_one_line_and_left_alone(
    project: Project, header: str, capsys: Capture, data: bytes, place: str
) -> None:
    folder = project({"good.py": "slow()\n"})
    (folder / "bad.py").write_bytes(data)
    assert main(["rewrite", "bad.py", "good.py"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(place)
    assert err.count("\n") == 1
    assert (folder / "bad.py").read_bytes() == data
    assert (folder / "good.py").read_text() == header + "fast()\n"
    assert "1 file rewritten" in out


def test_missing_files_and_empty_folders(project: Project, capsys: Capture) -> None:
    project({"empty/readme.md": "torch"})
    assert main(["rewrite", "nowhere.py", "empty"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "nowhere.py: no such file or folder",
        "empty: no Python file in this folder",
    ]


def test_a_folder(project: Project, capsys: Capture) -> None:
    folder = project({"src/train.py": "import model\nslow()\n", "src/model.py": "slow()\n"})
    (folder / "src" / "plain.py").write_text("def f(:\n")
    assert main(["rewrite", "src"]) == 0
    assert "2 files rewritten: 2 changes." in capsys.readouterr().out


def read_json(capsys: Capture) -> dict[str, object]:
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    return document


def test_json(project: Project, capsys: Capture) -> None:
    project({"train.py": "slow()\nslow(1)\nfast()  # torchopt: ignore[slow-to-fast]\n"})
    assert main(["rewrite", "train.py", "--format", "json"]) == 0
    assert read_json(capsys) == {
        "version": 1,
        "files": [
            {
                "path": "train.py",
                "created": False,
                "launch": None,
                "changes": [
                    {
                        "transform": "slow-to-fast",
                        "tier": "exact",
                        "line": 10,
                        "end_line": 10,
                        "message": "calls fast()",
                        "reason": "it is pure",
                    }
                ],
                "skips": [
                    {
                        "transform": "slow-to-fast",
                        "line": 11,
                        "message": "the call has arguments",
                    },
                    {
                        "transform": "unused-suppression",
                        "line": 12,
                        "message": "`ignore[slow-to-fast]` suppresses nothing",
                    },
                ],
                "advice": [],
                "error": None,
            }
        ],
    }


def test_the_same_change_twice_on_a_line_is_one_annotation(
    project: Project, capsys: Capture
) -> None:
    project({"a.py": "x = [slow(), slow()]\n"})
    assert main(["rewrite", "--check", "--format", "github", "a.py"]) == 1
    assert capsys.readouterr().out.count("::warning") == 1


def test_github_annotations(project: Project, capsys: Capture) -> None:
    folder = project({"a,b.py": "slow()\nslow(1)\n"})
    (folder / "bad.py").write_text("x = 100 % (\n")
    assert main(["rewrite", "--check", "--format", "github", "a,b.py", "bad.py"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "::warning file=a%2Cb.py,line=10,endLine=10,title=slow-to-fast (exact)::calls fast(); it is pure"
    )
    assert lines[1].startswith("::error file=bad.py,title=torchopt::1:")
    assert len(lines) == 2, "what was left alone is no annotation"


def test_interactive(
    project: Project, header: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project({"train.py": "slow()\nx = 1\nslow()\nslow()\n"})
    monkeypatch.setattr(sys, "stdin", io.StringIO("what\nn\ny\nq\n"))
    assert main(["rewrite", "--interactive", "train.py"]) == 0
    assert (folder / "train.py").read_text() == header + "slow()\nx = 1\nfast()\nslow()\n"
    out, err = capsys.readouterr()
    assert err.count("Make this change [y,n,q,?]? ") == 4, "an unknown answer is asked again"
    assert "q - leave this place and all that follow alone" in err
    assert "-slow()\n+fast()\n" in err
    assert "train.py:10 slow-to-fast: calls fast(): declined" in out


def test_interactive_without_answers_changes_nothing(
    project: Project, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project({"train.py": "slow()\nslow()\n"})
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["rewrite", "--interactive", "train.py"]) == 0
    assert (folder / "train.py").read_text() == header + "slow()\nslow()\n"


def test_sarif(project: Project, capsys: Capture) -> None:
    folder = project({"a b.py": "slow()\nslow(1)\n"})
    (folder / "bad.py").write_text("x = 100 % (\n")
    assert main(["rewrite", "--check", "--format", "sarif", "a b.py", "bad.py"]) == 2
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    (result,) = run["results"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "slow-to-fast"
    assert result["level"] == "warning"
    assert result["message"] == {"text": "calls fast(); it is pure"}
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "a%20b.py"},
                "region": {"startLine": 10, "endLine": 10},
            }
        }
    ]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (fault,) = invocation["toolExecutionNotifications"]
    assert fault["level"] == "error"
    assert fault["message"]["text"].startswith("1:")


def test_check_does_not_mind_advice(
    project: Project, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchopt_cli.transforms import registry

    slow, _ = registry.all_transforms()

    def advise(script: TrainingScript, options: Options) -> Iterator[Advice]:
        for call in script.entry.calls:
            yield slow.advice(script.entry.path, script.entry.span(call), "look here")

    monkeypatch.setattr(slow, "plan", advise)
    monkeypatch.setattr(registry, "all_transforms", lambda: (slow,))
    project({"train.py": "slow()\n"})
    assert main(["rewrite", "train.py", "--check"]) == 0
    assert "Advice:\ntrain.py:10 slow-to-fast: look here\n" in capsys.readouterr().out


def test_json_of_errors_and_of_a_dry_run(project: Project, capsys: Capture) -> None:
    folder = project({"train.py": "slow()\n"})
    (folder / "bad.py").write_text("def f(:\n")
    assert main(["rewrite", "--dry-run", "--format", "json", "train.py", "bad.py", "no.py"]) == 2
    document = read_json(capsys)
    files = {file["path"]: file for file in document["files"]}  # pyright: ignore
    assert len(files["train.py"]["changes"]) == 1
    assert files["bad.py"]["error"].startswith("1:")
    assert files["no.py"]["error"] == "no such file or folder"


def test_a_faulty_transform_is_told_and_the_rest_is_done(
    project: Project, header: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchopt_cli.transforms import registry

    slow, bold = registry.all_transforms()
    monkeypatch.setattr(type(bold), "plan", lambda *_: [].pop())
    monkeypatch.setattr(registry, "all_transforms", lambda: (bold, slow))
    folder = project({"train.py": "slow()\n"})
    assert main(["rewrite", "train.py", "--tier", "semantic", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("train.py: bold-to-bolder: internal error: IndexError")
    assert json.loads(out)["files"][0]["error"].startswith("bold-to-bolder: internal error")
    assert (folder / "train.py").read_text() == header + "fast()\n"


def test_configuration(project: Project, header: str, capsys: Capture) -> None:
    folder = project(
        {
            "train.py": "slow()\nbold()\n",
            "pyproject.toml": "[tool.torchopt]\ntier = 'semantic'\nignore = ['slow-to-fast']\n",
            "other/train.py": "slow()\nbold()\n",
            "other/pyproject.toml": "[tool.torchopt]\nselect = ['slow-to-fast']\n",
        }
    )
    assert main(["rewrite", "train.py", "other"]) == 0
    assert (folder / "train.py").read_text() == header + "slow()\nbolder()\n"
    assert (folder / "other/train.py").read_text() == header + "fast()\nbold()\n"


def test_a_flag_overrides_the_configuration(project: Project, header: str) -> None:
    folder = project(
        {"a/train.py": "slow()\n", "a/pyproject.toml": "[tool.torchopt]\ncheck=true\n"}
    )
    assert main(["rewrite", "a"]) == 1
    assert (folder / "a/train.py").read_text() == header + "slow()\n"
    assert main(["rewrite", "a", "--no-check"]) == 0
    assert (folder / "a/train.py").read_text() == header + "fast()\n"


def test_an_unknown_key_is_one_line(project: Project, capsys: Capture) -> None:
    project({"train.py": "slow()\n", "pyproject.toml": "[tool.torchopt]\n\nteir = 'exact'\n"})
    assert main(["rewrite", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "pyproject.toml:3:1: unknown key 'teir' in [tool.torchopt] (did you mean 'tier'?)\n",
    )


@pytest.mark.parametrize("key", ["select", "ignore"])
def test_a_configured_name_of_no_transform_is_told_with_its_place(
    project: Project, capsys: Capture, key: str
) -> None:
    table = f"[tool.torchopt]\ntier = 'exact'\n{key} = ['slow-to-fast', 'slow-to-fats']\n"
    folder = project({"train.py": "slow()\n", "pyproject.toml": table})
    assert main(["rewrite", "train.py", "--dry-run"]) == 2
    told = f"{key}: no transform is called 'slow-to-fats' (did you mean 'slow-to-fast'?)\n"
    assert capsys.readouterr() == ("", f"pyproject.toml:3:1: {told}")
    (folder / "pyproject.toml").write_text("")
    assert main(["rewrite", "train.py", "--dry-run", f"--{key}", "slow-to-fats"]) == 2
    assert capsys.readouterr().err == f"torchopt: --{told}"


def test_several_processes_do_what_one_does(project: Project, capsys: Capture) -> None:
    files = {f"train{n}.py": f"import shared{n % 2}\nslow()\nslow({n})\n" for n in range(4)}
    files |= {
        "shared0.py": "slow()\n",
        "shared1.py": "fast()\n",
        "broken.py": "import torch\nslow(\n",
    }
    project(files)
    told: list[object] = []
    for jobs in ("1", "2", "8"):
        status = main(["rewrite", "--dry-run", "--jobs", jobs, "."])
        told.append((status, capsys.readouterr()))
    assert told[0] == told[1] == told[2]
    assert "shared0.py" in str(told[0])


def test_processes_that_share_a_file_unseen_do_what_one_does(
    project: Project, capsys: Capture
) -> None:
    """The given files do not tell that both import a third one."""
    project({"a.py": "import shared\nslow()\n", "b.py": "import shared\n", "shared.py": "slow()\n"})
    told: list[object] = []
    for jobs in ("1", "2"):
        told.append(
            (main(["rewrite", "--dry-run", "-j", jobs, "a.py", "b.py"]), capsys.readouterr())
        )
    assert told[0] == told[1]


def test_jobs_is_a_number_above_0(project: Project, capsys: Capture) -> None:
    project({"a.py": "slow()\n"})
    assert main(["rewrite", "--dry-run", "--jobs", "0", "a.py"]) == 2
    assert "--jobs" in capsys.readouterr().err


DEVICE_ELSEWHERE = """\
import torch
from torch import nn
from config import load

device = {device}
model = nn.Linear(2, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.ones(1, 2), torch.ones(1, 1))]:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("device", "flags", "noted"),
    [
        ("torch.device(load().device)", [], True),
        ("load().device", [], True),
        ("torch.device(load().device)", ["--target", "cuda"], False),
        ("torch.device(load().device)", ["--target", "cpu"], False),
        ('torch.device("cpu")', [], False),
        ('torch.device("cuda" if torch.cuda.is_available() else "cpu")', [], False),
        ('"mps" if torch.backends.mps.is_available() else "cpu"', [], False),
    ],
)
def test_a_device_that_only_a_configuration_names_is_asked_for(
    project: Project, capsys: Capture, device: str, flags: list[str], noted: bool
) -> None:
    project({"train.py": DEVICE_ELSEWHERE.format(device=device)})
    assert main(["rewrite", "train.py", "--dry-run", *flags]) == 0
    note = (
        "note: train.py is taken for a script for the CPU: it names no GPU; if `device` may be one"
    )
    assert (note in capsys.readouterr().err) == noted
