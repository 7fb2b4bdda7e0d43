from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from torchopt_cli.optimizer.execution import runner
from torchopt_cli.optimizer.execution.legible import members
from torchopt_cli.optimizer.execution.observations import Observations, Status, WrittenFile

pytestmark = pytest.mark.torch

SCRIPT = """\
import torch

assert open("settings.yaml").read() == "rate: 2\\n"
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
{}
"""


@pytest.mark.parametrize(
    ("written", "files"),
    [
        ("pass", []),
        ("open('settings.yaml', 'a').write('more')", ["settings.yaml"]),
        ("open('new.txt', 'w').write('more')", ["new.txt"]),
    ],
)
def test_what_stands_in_for_a_file_is_not_written_by_the_script(
    project: Callable[[Mapping[str, str]], Path],
    observe: Callable[..., Observations],
    written: str,
    files: list[str],
) -> None:
    """The texts of a commit stand in for the files of the working tree that differ."""
    folder = project(
        {"train.py": SCRIPT.format(written), "settings.yaml": "rate: 1\n", "README.md": "now\n"}
    )
    overrides = {folder / "settings.yaml": "rate: 2\n", folder / "README.md": "then\n"}
    seen = observe(folder, overrides=overrides)
    assert seen.traceback is None
    assert [file.path for file in seen.files] == files


@pytest.mark.parametrize(
    ("kept", "same"),
    [
        ("shutil.copy(__file__, 'kept.py.backup')", True),
        ("shutil.make_archive('kept', 'tar', '.', 'train.py')", True),
        ("open('kept.txt', 'w').write(open(__file__).read() + '#')", False),
    ],
)
def test_a_copy_of_the_script_is_that_of_the_original(
    project: Callable[[Mapping[str, str]], Path],
    observe: Callable[..., Observations],
    kept: str,
    same: bool,
) -> None:
    source = SCRIPT.format(f"import shutil; {kept}")
    folder = project({"train.py": source, "settings.yaml": "rate: 2\n"})
    rewritten = source.replace("zero_grad()", "zero_grad(set_to_none=True)")
    texts: list[list[str]] = []
    for overrides in ({}, {folder / "train.py": rewritten}):
        seen = observe(folder, overrides=overrides)
        assert seen.traceback is None
        assert seen.files
        texts.append([(seen.folder / str(f.kept_as)).read_text() for f in seen.files])
    assert (texts[0] == texts[1]) is same


@pytest.mark.parametrize(
    ("opens", "files"), [("", []), ("open('log.txt', 'a').write('x')", ["log.txt"])]
)
def test_what_another_program_writes_meanwhile_is_not_written_by_the_script(
    project: Callable[[Mapping[str, str]], Path],
    observe: Callable[..., Observations],
    monkeypatch: pytest.MonkeyPatch,
    opens: str,
    files: list[str],
) -> None:
    """A report that the user has sent to a file beside the script grows while the script runs, beside a copy of what it was."""
    script = f"open('new.txt', 'w').write('more')\n{opens}"
    folder = project(
        {"train.py": SCRIPT.format(script), "settings.yaml": "rate: 2\n", "log.txt": "1\n"}
    )
    bounded = runner.run_bounded

    def beside(*args: object, **kwargs: object) -> object:
        done = bounded(*args, **kwargs)  # type: ignore[arg-type]
        (folder / "log.txt").write_text("1\n2\n")
        return done

    monkeypatch.setattr(runner, "run_bounded", beside)
    seen = observe(folder)
    assert seen.traceback is None
    assert [file.path for file in seen.files] == [*files, "new.txt"]


def written(
    project: Callable[[Mapping[str, str]], Path], observe: Callable[..., Observations], script: str
) -> dict[str, WrittenFile]:
    folder = project({"train.py": SCRIPT.format(script), "settings.yaml": "rate: 2\n"})
    seen = observe(folder)
    assert seen.traceback is None
    return {file.path: file for file in seen.files}


def test_text_is_kept_whatever_it_is_called(project, observe) -> None:
    files = written(
        project,
        observe,
        "import gzip\n"
        "open('summary', 'w').write('score 1')\n"
        "open('curve.svg', 'w').write('<svg/>')\n"
        "gzip.open('log.csv.gz', 'wt').write('loss,1')\n"
        "open('picture.pgm', 'wb').write(b'P5 1 1 255 ' + bytes([0, 255]))\n",
    )
    kept = {path for path, file in files.items() if file.kept_as}
    assert kept == {"summary", "curve.svg", "log.csv.gz"}
    assert [path for path, file in files.items() if file.digest] == ["picture.pgm"]


def test_bytes_are_kept_where_they_are_no_text(project, observe) -> None:
    """A suffix that text has as well tells nothing: ``.dat`` is what many give to dumped arrays."""
    script = """\
open('scores.dat', 'wb').write(torch.ones(3).numpy().tobytes())
open('notes.dat', 'wb').write('größer'.encode('latin-1'))
"""
    files = written(project, observe, script)
    assert {path: file.kept_as is None for path, file in files.items()} == {
        "scores.dat": True,
        "notes.dat": False,
    }
    assert {path: file.bytes_as is None for path, file in files.items()} == {
        "scores.dat": False,
        "notes.dat": True,
    }


def test_of_an_exported_network_the_weights_are_told(project, observe) -> None:
    script = "\n".join(
        f"torch.jit.save(torch.jit.trace({net}, torch.ones(1, 1)), {name!r})"
        for name, net in [
            ("as_it_is.ts", "model"),
            ("with_more_code.ts", "torch.nn.Sequential(model, torch.nn.ReLU())"),
            ("other_weights.ts", "torch.nn.Linear(1, 1)"),
        ]
    )
    told = {path: file.digest for path, file in written(project, observe, script).items()}
    assert told["as_it_is.ts"] == told["with_more_code.ts"] != told["other_weights.ts"]


def test_where_links_lead(project, observe) -> None:
    files = written(
        project,
        observe,
        "import os\n"
        "open('epoch1.txt', 'w').write('1')\n"
        "os.symlink('epoch1.txt', 'latest.txt')\n"
        "os.symlink(os.path.abspath('epoch1.txt'), 'best.txt')\n",
    )
    assert files["latest.txt"].leads_to == "epoch1.txt"
    assert (files["best.txt"].leads_to or "").endswith("/epoch1.txt")
    assert "torchopt" not in (files["best.txt"].leads_to or "")
    assert files["epoch1.txt"].leads_to is None


def test_what_is_pickled_into_bytes_is_described_where_it_is_written(project, observe) -> None:
    script = (
        "import gzip, pickle\n"
        "pickle.loads(pickle.dumps([1]))\n"
        "content = pickle.dumps({'score': 0.5, 'weight': model.weight, 'row': torch.ones(2)})\n"
        "open('results.pkl', 'wb').write(content)\n"
        "gzip.open('results.pkl.gz', 'wb').write(content)\n"
        "open('other.pkl', 'wb').write(b'\\x80' + content)\n"
    )
    folder = project({"train.py": SCRIPT.format(script), "settings.yaml": "rate: 2\n"})
    seen = observe(folder)
    assert seen.unobserved == ()
    assert [saved.path for saved in seen.checkpoints] == ["results.pkl", "results.pkl.gz"]
    for saved in seen.checkpoints:
        assert saved.rounds == 2
        assert saved.entries["score"].value == "0.5"
        assert saved.entries["weight"].same_as == ("Linear.weight",)
        assert saved.entries["row"].shape == (2,)
    assert [file.path for file in seen.files] == ["other.pkl"]


def test_native_code_that_was_imported_before_the_probe_saves_in_the_mirror(
    project, observe, warm_python: Path
) -> None:
    """``torch.save`` is another name of ``torch.serialization.save``, by which it was known before."""
    script = SCRIPT.format("torch.save(model.state_dict(), 'kept/model.pt')")
    folder = project({"train.py": script, "settings.yaml": "rate: 2\n", "kept/README": "\n"})
    seen = observe(folder, python=warm_python)
    assert seen.status is Status.COMPLETED, seen.traceback
    assert [checkpoint.path for checkpoint in seen.checkpoints] == ["kept/model.pt"]
    assert sorted(path.name for path in (folder / "kept").iterdir()) == ["README"]


def test_databases_and_archives_are_kept_as_text(project, observe) -> None:
    script = (
        "import io, sqlite3, zipfile\n"
        "import numpy as np\n"
        "scores = io.BytesIO()\n"
        "np.save(scores, np.arange(3.0))\n"
        "database = sqlite3.connect('log.db')\n"
        "database.execute('create table log (step integer, loss real)')\n"
        "database.execute('insert into log values (1, 0.25)')\n"
        "database.commit()\n"
        "database.execute('insert into log values (2, 0.5)')\n"
        "with zipfile.ZipFile('bundle.zip', 'w') as archive:\n"
        "    archive.writestr('metrics.json', '{\\\"accuracy\\\": 0.5}')\n"
        "    archive.writestr('codes.bin', bytes(range(200)))\n"
        "    archive.writestr('out/scores.npy', scores.getvalue())\n"
    )
    folder = project({"train.py": SCRIPT.format(script), "settings.yaml": "rate: 2\n"})
    seen = observe(folder)
    assert seen.traceback is None
    files = {file.path: file for file in seen.files}
    texts = {
        path: (seen.folder / file.kept_as).read_text()
        for path, file in files.items()
        if file.kept_as is not None and not path.endswith(".npy")
    }
    assert texts.keys() == {"log.db", "bundle.zip", "bundle.zip/metrics.json"}
    assert "VALUES(1,0.25)" in texts["log.db"]
    assert "0.5" not in texts["log.db"]  # what is not committed lies beside it
    assert texts["bundle.zip"].splitlines() == ["codes.bin", "metrics.json", "out/scores.npy"]
    assert texts["bundle.zip/metrics.json"] == '{"accuracy": 0.5}'
    scores = np.load(seen.folder / str(files["bundle.zip/out/scores.npy"].kept_as))
    assert scores.tolist() == [0.0, 1.0, 2.0]
    codes = files["bundle.zip/codes.bin"].bytes_as
    assert codes is not None
    assert (seen.folder / codes).read_bytes() == bytes(range(200))


def test_members_of_a_tar_file_without_their_times() -> None:
    def packed(**files: bytes) -> bytes:
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w:xz") as archive:
            for number, (name, content) in enumerate(files.items()):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(content), number
                archive.addfile(info, io.BytesIO(content))
        return written.getvalue()

    assert members(packed(b=b"2", a=b"1"), 10) == members(packed(a=b"1", b=b"2"), 10)
    assert members(packed(a=b"1" * 11), 10) is None
    for other in (packed(), b"", bytes(2048), b"loss,1\n"):
        assert members(other, 10) is None


def test_archives_in_archives_are_opened_up_to_a_depth(project, observe) -> None:
    script = (
        "import io, zipfile\n"
        "content = b'0.5'\n"
        "for depth in range(9):\n"
        "    packed = io.BytesIO()\n"
        "    with zipfile.ZipFile(packed, 'w') as archive:\n"
        "        archive.writestr('inner.zip' if depth else 'score.txt', content)\n"
        "    content = packed.getvalue()\n"
        "open('outer.zip', 'wb').write(content)\n"
    )
    seen = observe(project({"train.py": SCRIPT.format(script), "settings.yaml": "rate: 2\n"}))
    assert seen.traceback is None
    opened = {file.path for file in seen.files}
    assert opened == {"/".join(["outer.zip", *["inner.zip"] * depth]) for depth in range(5)}
