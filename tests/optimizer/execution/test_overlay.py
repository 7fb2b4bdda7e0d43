"""A run sees the user's files, changes none of them, and sees its own changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "log.txt": "first\n",
    "checkpoint.pt": "old weights\n",
    "out/old/result.txt": "0.5\n",
    "out/keep.txt": "keep\n",
    "data/a/1.txt": "one\n",
    "data/a/2.txt": "two\n",
    "data/b/3.txt": "three\n",
    "runs/17/x.txt": "x\n",
}

# Does to files what training scripts do, and prints what it sees.
SCRIPT = """
    import contextlib, glob, io, logging, os, pathlib, shutil, sys, tempfile
    from pathlib import Path

    here = Path(__file__).resolve().parent
    outside = Path(sys.argv[1])

    def show(*things):
        text = " ".join(str(thing) for thing in things)
        for folder in (str(here), str(Path.cwd()), str(outside)):
            text = text.replace(folder, "HERE" if folder != str(outside) else "OUTSIDE")
        print(text)

    def listing(folder):
        return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if "__pycache__" not in str(p))

    def attempt(function, *args, **kwargs):
        try:
            return function(*args, **kwargs)
        except OSError as error:
            return type(error).__name__

    show(listing("."), listing(outside))
    show(sorted((str(d), sorted(n), sorted(f)) for d, n, f in os.walk(".")))
    show(os.path.islink("data"), os.path.islink("latest"), attempt(os.readlink, "latest"), attempt(os.readlink, "data"))
    show(os.path.realpath("latest"), Path("data/a/1.txt").resolve(), sorted(glob.glob("**/*.txt", recursive=True)))
    show([(e.name, e.is_dir(), e.is_file(), e.is_symlink()) for e in sorted(os.scandir("."), key=lambda e: e.name)])

    with open("log.txt", "a") as f:
        f.write("second\\n")
    show(open("log.txt").read(), f.name)
    with open("checkpoint.pt", "wb") as f:
        f.write(b"new")
    show(Path("checkpoint.pt").read_text(), os.path.getsize(here / "checkpoint.pt"))
    with open("out/keep.txt", "r+") as f:
        f.seek(2)
        f.write("E")
    show(Path("out/keep.txt").read_text())

    show(attempt(open, "log.txt", "x"), attempt(os.mkdir, "out"), attempt(os.rmdir, "data"), attempt(os.remove, "no"))
    os.makedirs("out", exist_ok=True)
    os.makedirs("out/new/deep", exist_ok=True)
    Path("out/new/deep/a.txt").write_text("a")
    os.remove("out/old/result.txt")
    show(listing("out"), os.path.exists("out/old/result.txt"), os.path.exists(here / "out/old/result.txt"))

    shutil.rmtree("data/b")
    show(listing("data"), attempt(os.listdir, here / "data/b"))
    os.rename("data/a/1.txt", "data/a/first.txt")
    os.replace("data/a/2.txt", "data/a/first.txt")
    show(listing("data"), Path("data/a/first.txt").read_text())
    shutil.move("data", "moved")
    Path("moved/a/first.txt").write_text("changed")
    show(listing("."), Path("moved/a/first.txt").read_text())
    shutil.copytree("runs", "copied")
    Path("latest/new.txt").write_text("through a link")
    show(listing("copied"), listing("runs"), Path("runs/17/new.txt").read_text())

    result = outside / "results"
    result.mkdir()
    (result / "metrics.csv").write_text("a,b\\n")
    with open(result / "metrics.csv", "a") as f:
        f.write("1,2\\n")
    with open(outside / "shared.txt", "a") as f:
        f.write("more\\n")
    show(listing(outside), (result / "metrics.csv").read_text(), (outside / "shared.txt").read_text())
    os.unlink(outside / "shared.txt")
    show(os.path.exists(outside / "shared.txt"), os.listdir(outside))
    shutil.rmtree(outside / "old")
    show(listing(outside), attempt(open, outside / "old" / "x.txt"))
    (outside / "old").mkdir()
    show(listing(outside / "old"))

    os.chmod("log.txt", 0o600)
    os.truncate("log.txt", 2)
    os.utime("checkpoint.pt", (1, 1))
    show(oct(os.stat("log.txt").st_mode & 0o777), open("log.txt").read(), os.stat("checkpoint.pt").st_mtime)
    os.symlink("log.txt", "link.txt")
    Path("link.txt").write_text("via link")
    os.link("checkpoint.pt", "hard.pt")
    show(open("log.txt").read(), os.readlink("link.txt"), Path("hard.pt").read_text())

    descriptor = os.open("by_descriptor.txt", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"d")
    os.close(descriptor)
    folder = os.open("runs", os.O_RDONLY)
    os.mkdir("18", dir_fd=folder)
    os.rename("17", "19", src_dir_fd=folder, dst_dir_fd=folder)
    os.close(folder)
    show(listing("runs"), os.path.exists("by_descriptor.txt"))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write("temporary")
    logging.basicConfig(filename=outside / "run.log", level=logging.INFO)
    logging.info("hello")
    show((outside / "run.log").read_text())
    os.chdir(outside)
    Path("relative.txt").write_text("r")
    show(listing("."), (outside / "relative.txt").exists(), attempt(os.open, "/nowhere/x", os.O_CREAT | os.O_WRONLY))
    os.write(os.open(os.devnull, os.O_WRONLY), b"nothing")
"""


@pytest.fixture
def world(project, tmp_path: Path) -> Path:
    """A folder with a project that has links, and a folder outside the project."""
    folder = project(FILES | {"train.py": SCRIPT})
    os.symlink("runs/17", folder / "latest")
    outside = tmp_path / "outside"
    (outside / "old").mkdir(parents=True)
    (outside / "old" / "x.txt").write_text("x")
    (outside / "shared.txt").write_text("shared\n")
    os.symlink(outside / "old", folder / "far")
    return tmp_path


def test_a_script_sees_what_it_would_see_and_leaves_everything_as_it_was(
    world, start, tree, protection
):
    before = tree(world / "project"), tree(world / "outside")
    _, protected = start(world / "project" / "train.py", str(world / "outside"), env=protection)
    assert protected.stderr == ""
    assert protected.returncode == 0
    assert (tree(world / "project"), tree(world / "outside")) == before

    copy = world / "copy"
    shutil.copytree(world / "project", copy / "project", symlinks=True)
    shutil.copytree(world / "outside", copy / "outside", symlinks=True)
    os.remove(copy / "project" / "far")
    os.symlink(copy / "outside" / "old", copy / "project" / "far")
    unprotected = subprocess.run(
        [sys.executable, copy / "project" / "train.py", copy / "outside"],
        cwd=copy / "project",
        capture_output=True,
        text=True,
        check=True,
    )
    assert protected.stdout.splitlines() == unprotected.stdout.splitlines()


def test_other_programs_leave_everything_as_it_was(project, start, tree, protection):
    big = "x" * (2 << 20)  # too large for a copy, so a link
    folder = project(
        FILES
        | {
            "big.txt": big,
            "train.py": """
                import os, subprocess, sys
                os.system("echo more >> log.txt; rm -f checkpoint.pt; mkdir -p shell/made; echo y > shell/made/y")
                subprocess.run("cat log.txt; ls shell/made; ls -d checkpoint.pt 2>/dev/null", shell=True)
                child = "open('big.txt', 'a').write('z'); open('log.txt', 'w').write('child'); print('child done')"
                subprocess.run([sys.executable, "-c", child], check=True, cwd=os.path.dirname(__file__))
                print(open("log.txt").read(), os.path.getsize("big.txt"))
            """,
        }
    )
    before = tree(folder)
    _, finished = start(folder / "train.py", env=protection)
    assert finished.stderr == ""
    assert finished.stdout.split() == [
        "first",
        "more",
        "y",
        "child",
        "done",
        "child",
        str(len(big) + 1),
    ]
    assert tree(folder) == before


def test_what_gets_past_redirection_is_refused(project, start, tree, tmp_path, unconfined):
    folder = project(
        {
            "big.bin": "x" * (2 << 20),
            "train.py": """
                import _io, posix, sys
                for attempt in (
                    lambda: _io.open(sys.argv[1], "w"),
                    lambda: _io.FileIO("big.bin", "w"),
                    lambda: posix.remove(sys.argv[2]),
                    lambda: posix.rename(sys.argv[2], "mine.txt"),
                ):
                    try:
                        attempt()
                    except PermissionError as error:
                        print(error)
            """,
        }
    )
    (tmp_path / "precious.txt").write_text("precious")
    before = tree(folder)
    _, finished = start(
        folder / "train.py",
        str(tmp_path / "new.txt"),
        str(tmp_path / "precious.txt"),
        env=unconfined,
    )
    lines = finished.stdout.splitlines()
    paths = [
        tmp_path / "new.txt",
        folder / "big.bin",
        tmp_path / "precious.txt",
        tmp_path / "precious.txt",
    ]
    expected = [f"torchopt: a run may not write outside its scratch area: {path}" for path in paths]
    assert lines == expected
    assert tree(folder) == before
    names = ["precious.txt", "project", "scratch0", "temporary0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_the_kernel_refuses_native_code(project, start, tree, tmp_path, confined):
    folder = project(
        {
            "data/x.txt": "x",
            "big.bin": "x" * (2 << 20),
            "train.py": """
                import ctypes, subprocess, sys
                libc = ctypes.CDLL(None, use_errno=True)
                libc.fopen.restype = ctypes.c_void_p
                for path in (sys.argv[1], "big.bin", "data/x.txt", "data/new.txt", "mine.txt"):
                    print(bool(libc.fopen(path.encode(), b"w")), ctypes.get_errno())
                print(subprocess.run(["sh", "-c", f"echo x > {sys.argv[1]}"], capture_output=True).returncode != 0)
            """,
        }
    )
    before = tree(folder)
    _, finished = start(folder / "train.py", str(tmp_path / "new.txt"), env=confined)
    assert finished.stdout.splitlines() == ["False 13"] * 4 + ["True 13", "True"]
    assert tree(folder) == before
    assert not (tmp_path / "new.txt").exists()


def test_a_project_with_our_folder_names_and_pythonpath_finds_its_own_modules(project, start):
    folder = project(
        {
            "optimizer.py": "NAME = 'the optimizer of the project'",
            "transforms/crop.py": "NAME = 'the transforms of the project'",
            "lib/model/__init__.py": "from .net import NAME",
            "lib/model/net.py": "NAME = 'old net'",
            "scripts/train.py": """
                import optimizer, transforms.crop, model
                print(optimizer.NAME, transforms.crop.NAME, model.NAME, sep="; ")
            """,
        }
    )
    _, finished = start(
        folder / "scripts" / "train.py",
        cwd=folder,
        env={"PYTHONPATH": f".{os.pathsep}lib"},
        overrides={folder / "lib" / "model" / "net.py": "NAME = 'new net'\n"},
    )
    assert finished.stderr == ""
    names = ["the optimizer of the project", "the transforms of the project", "new net"]
    assert finished.stdout.strip().split("; ") == names


def test_new_texts_stand_in_however_the_module_is_found(project, start, tree):
    folder = project(
        {
            "data.py": "VALUE = 'old'",
            "pkg/inner/data2.py": "VALUE = 'old'",
            "latin.py": "# -*- coding: latin-1 -*-\nVALUE = 'old'",
            "train.py": """
                import os, sys
                sys.path.insert(0, sys.argv[1])  # an absolute path of the user's
                sys.path.insert(0, os.path.realpath("pkg"))
                import data, latin
                from inner import data2
                print(data.VALUE, data2.VALUE, latin.VALUE, data.__file__)
            """,
        }
    )
    before = tree(folder)
    overrides = {
        folder / "data.py": "VALUE = 'new'\r\n",
        folder / "pkg" / "inner" / "data2.py": "VALUE = 'new2'\n",
        folder / "latin.py": "# -*- coding: latin-1 -*-\nVALUE = 'é'.encode('latin-1')\n",
    }
    overlay, finished = start(folder / "train.py", str(folder), overrides=overrides)
    assert finished.stderr == ""
    assert overlay.shown(finished.stdout).split() == [
        "new",
        "new2",
        r"b'\xe9'",
        str(folder / "data.py"),
    ]
    assert tree(folder) == before


def test_absent_files_are_not_seen(project, start, tree):
    folder = project(
        {
            "model/__init__.py": "NAME = 'new package'",
            "extra.py": "",
            "train.py": "import model, os; print(model.NAME, os.path.exists('extra.py'))",
        }
    )
    before = tree(folder)
    overrides = {folder / "model.py": "NAME = 'old module'\n"}
    absent = [folder / "model" / "__init__.py", folder / "extra.py", folder / "none" / "gone.py"]
    _, finished = start(folder / "train.py", overrides=overrides, absent=absent)
    assert (finished.stdout, finished.stderr) == ("old module False\n", "")
    assert tree(folder) == before


def test_a_byte_order_mark_is_written_once(project, start):
    folder = project({"rows.csv": "", "train.py": "print(open('rows.csv', 'rb').read())"})
    _, finished = start(folder / "train.py", overrides={folder / "rows.csv": "\ufeffid"})
    assert finished.stdout == "b'\\xef\\xbb\\xbfid'\n"


def test_a_script_reached_through_a_link_keeps_its_folder(project, start):
    folder = project(
        {"src/train.py": "import helper; print(helper.NAME)", "src/helper.py": "NAME = 'found'"}
    )
    os.symlink("src/train.py", folder / "go.py")
    _, finished = start(folder / "go.py")
    assert (finished.stdout, finished.stderr) == ("found\n", "")


def test_no_cache_or_experiment_folder_appears(project, start, tree):
    folder = project(
        {"data.py": "", "train.py": "import data, os, tempfile; print(os.environ['WANDB_MODE'])"}
    )
    before = tree(folder)
    _, finished = start(folder / "train.py", env={"WANDB_MODE": "online"})
    assert finished.stdout == "offline\n"
    assert tree(folder) == before


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME", "HF_HOME"])
def test_other_programs_read_what_was_put_into_a_cache(project, start, tree, tmp_path, variable):
    """As the native readers of libraries do: Python writes a table, Arrow maps it into memory."""
    home = tmp_path / "home"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "old.txt").write_text("old ")
    given = {
        "HOME": home,
        "XDG_CACHE_HOME": home / ".cache",
        "HF_HOME": home / ".cache/huggingface",
    }
    folder = project(
        {
            "train.py": """
            import os
            import subprocess

            caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
            hub = os.environ.get("HF_HOME", os.path.join(caches, "huggingface"))
            os.makedirs(os.path.join(hub, "tables"), exist_ok=True)
            with open(os.path.join(hub, "tables", "new.txt"), "w") as file:
                file.write("new")
            files = [os.path.join(hub, "old.txt"), os.path.join(hub, "tables", "new.txt")]
            print(subprocess.check_output(["cat", *files], text=True))
            """
        }
    )
    before = tree(home)
    env = {"HOME": str(home), variable: str(given[variable])}
    _, finished = start(folder / "train.py", env=env)
    assert (finished.stdout, finished.stderr) == ("old new\n", "")
    assert tree(home) == before
