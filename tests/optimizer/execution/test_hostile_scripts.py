"""Scripts that misbehave: whatever they try, the user's files stay, everything ends, and one line says why."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.errors import ExitCode
from torchopt_cli.optimizer.execution.limits import Bound
from torchopt_cli.optimizer.execution.observations import Status

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

BIG = "x" * (2 << 20)  # too large for a copy in the mirror, so a link

# Each line of ATTACKS is tried by itself; what is refused prints the type of its error.
HEAD = """
import mmap, os, pathlib, shutil, sqlite3, subprocess, sys
home = os.path.expanduser("~")
victim = sys.argv[1]

def attempt(function):
    try:
        function()
    except Exception as error:
        print(type(error).__name__)

def scribble(path):
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        mapped[:4] = b"EVIL"
        mapped.flush()

def database(path):
    connection = sqlite3.connect(path)
    connection.execute("create table if not exists t (x)")
    connection.commit()
    connection.close()

def home_caches():
    for name in (".cache/huggingface/hub/x", ".cache/torch/hub/x", ".config/matplotlib/x", ".netrc"):
        path = pathlib.Path(home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("evil")
"""
BY_PYTHON = """
attempt(lambda: open("big.pt", "wb").write(b"evil"))
attempt(lambda: open(victim, "a").write("evil"))
attempt(lambda: os.remove("checkpoint.pt"))
attempt(lambda: os.truncate("big.pt", 1))
attempt(lambda: scribble("mapped.bin"))
attempt(lambda: database("small.db"))
attempt(lambda: database("big.db"))
attempt(lambda: os.link("linked.bin", "hard"))
attempt(lambda: open("hard", "w").write("evil"))
attempt(lambda: os.symlink(victim, "soft"))
attempt(lambda: open("soft", "w").write("evil"))
attempt(lambda: os.chmod("linked.bin", 0))
attempt(lambda: os.utime(victim, (1, 1)))
attempt(lambda: os.rename("data", "gone"))
attempt(lambda: pathlib.Path("notes.txt").rename(victim))
attempt(lambda: pathlib.Path(victim).unlink())
attempt(lambda: shutil.rmtree(os.path.dirname(victim)))
attempt(lambda: shutil.rmtree("runs"))
attempt(home_caches)
attempt(lambda: shutil.rmtree(home))
os.chdir("/")
attempt(lambda: shutil.rmtree(os.path.dirname(os.path.abspath(sys.argv[0]))))
"""
BY_PROGRAMS = """
attempt(lambda: subprocess.run(["rm", "-rf", "data", "checkpoint.pt", "big.pt"], stderr=subprocess.DEVNULL))
attempt(lambda: subprocess.run(["sh", "-c", "echo evil > notes.txt; mv runs gone; chmod 0 small.db; touch -d @1 checkpoint.pt"], stderr=subprocess.DEVNULL))
"""
BY_PROGRAMS_ANYWHERE = """
attempt(lambda: subprocess.run(["rm", "-rf", victim, os.path.dirname(victim), home], stderr=subprocess.DEVNULL))
attempt(lambda: subprocess.run(["sh", "-c", f"echo evil > {victim}; echo evil > {home}/new; echo evil >> big.pt; mv {victim} {home}"], stderr=subprocess.DEVNULL))
attempt(lambda: subprocess.run([sys.executable, "-c", f"open({victim!r}, 'w').write('evil')"], env={}, stderr=subprocess.DEVNULL))
"""


@pytest.fixture
def users(project, tmp_path: Path) -> Path:
    """Everything of the user's: a project, a folder outside of it, a home."""
    files = {
        "checkpoint.pt": "weights",
        "big.pt": BIG,
        "mapped.bin": BIG,
        "linked.bin": BIG,
        "small.db": "",
        "big.db": "",
        "notes.txt": "notes",
        "data/a/1.txt": "one",
        "runs/17/x.txt": "x",
        "train.py": "",
    }
    everything = tmp_path / "users"
    os.rename(project(files), _made(everything) / "project")
    os.truncate(everything / "project" / "big.db", 0)
    for path in ("home/.cache/torch/hub/model.pt", "home/.netrc", "outside/victim.txt"):
        (_made((everything / path).parent) / Path(path).name).write_text("precious")
    return everything


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _attack(users: Path, start, text: str, env) -> str:
    train = users / "project" / "train.py"
    times = train.stat().st_mtime_ns
    train.write_text(HEAD + text + "\nprint('done')\n")
    os.utime(train, ns=(times, times))
    environment = {"HOME": str(users / "home"), **env}
    _, finished = start(train, str(users / "outside" / "victim.txt"), env=environment)
    assert finished.stderr == ""
    return finished.stdout


@pytest.mark.parametrize("text", [BY_PYTHON, BY_PROGRAMS], ids=["by Python", "by programs"])
def test_no_file_of_the_users_is_changed(users, start, tree, protection, text):
    _attack(users, start, "", protection)
    (users / "project" / "train.py").write_text(HEAD + text + "\nprint('done')\n")
    before = tree(users)
    assert _attack(users, start, text, protection) == "done\n"
    assert tree(users) == before


def test_the_kernel_keeps_other_programs_from_paths_outside(users, start, tree, confined):
    (users / "project" / "train.py").write_text(HEAD + BY_PROGRAMS_ANYWHERE + "\nprint('done')\n")
    before = tree(users)
    assert _attack(users, start, BY_PROGRAMS_ANYWHERE, confined) == "done\n"
    assert tree(users) == before


def test_without_the_kernel_other_programs_reach_absolute_paths(users, start, unconfined):
    """What the documentation says that the fallback cannot do; should this fail, the documentation is outdated."""
    text = """subprocess.run(["sh", "-c", f"echo evil > {victim}"])"""
    assert _attack(users, start, text, unconfined) == "done\n"
    assert (users / "outside" / "victim.txt").read_text() == "evil\n"


def test_large_files_are_read_in_place(project, start, tree):
    folder = project(
        {
            "train.py": """
                import mmap, os
                with open("data/train.bin", "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    print(len(mapped), mapped[-3:], os.path.getsize("data/train.bin"))
                    print(os.stat("data/train.bin").st_ino == os.fstat(file.fileno()).st_ino)
                open("data/index.txt", "w").write("written beside it")
                print(sorted(os.listdir("data")))
            """,
            "data/train.bin": "",
        }
    )
    size = 300 << 20
    with open(folder / "data" / "train.bin", "r+b") as file:
        file.seek(size - 3)
        file.write(b"end")
    before = tree(folder)
    overlay, finished = start(folder / "train.py")
    shown = ["314572800 b'end' 314572800", "True", "['index.txt', 'train.bin']"]
    assert finished.stdout.splitlines() == shown
    assert tree(folder) == before
    written = sum(p.lstat().st_blocks * 512 for p in overlay.scratch.rglob("*") if p.is_file())
    copied = [p for p in overlay.scratch.rglob("train.bin") if not p.is_symlink()]
    assert copied == []
    assert written < size // 10 + (300 << 20)


DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        os.closerange(0, 100)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"], {})
    os._exit(0)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
print(open(sys.argv[1]).read())
"""


def test_a_daemon_without_session_and_environment_is_ended(project, start, tmp_path, alive):
    folder = project({"train.py": DAEMON})
    _, finished = start(folder / "train.py", str(tmp_path / "pid"))
    assert (finished.returncode, finished.exceeded) == (0, None)
    assert not alive(int(finished.stdout))


HUNG = {
    "ignores SIGTERM": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
    "blocks every signal": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(1000)",
    "is stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "exit handler": "import atexit; atexit.register(time.sleep, 1000)",
    "thread": "import threading; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "swallows everything": """
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
""",
    "closed its output": "os.close(1); os.close(2); time.sleep(1000)",
}


@pytest.mark.parametrize("how", HUNG)
def test_what_hangs_is_ended_by_the_time_limit(project, start, how):
    folder = project({"train.py": f"import os, signal, time\n{HUNG[how]}\n"})
    started = time.monotonic()
    _, finished = start(folder / "train.py", seconds=1.0)
    assert finished.exceeded is not None
    assert finished.exceeded.bound is Bound.TIME
    assert str(finished.exceeded) == "over the time limit: 1 s are over; --timeout sets it"
    assert time.monotonic() - started < 60


def test_a_flood_of_output_is_read_and_forgotten(project, start):
    text = """
        import os, sys
        block = b"x" * (1 << 20)
        for i in range(256):
            os.write(1, block)
            os.write(2, block)
    """
    _, finished = start(project({"train.py": text}) / "train.py")
    assert (finished.returncode, finished.exceeded) == (0, None)
    assert (len(finished.stdout), len(finished.stderr)) == (8 << 20, 8 << 20)
    assert finished.stdout_cut
    assert finished.stderr_cut


def test_endless_output_is_ended(project, start):
    text = "import os\nwhile True: os.write(1, b'x' * (1 << 20))\n"
    _, finished = start(project({"train.py": text}) / "train.py", output=64 << 20)
    assert str(finished.exceeded) == "over the output limit: more than 64 MiB printed"


def test_memory_without_end_is_ended(project, start):
    text = """
        import os, time
        kept = []
        if os.fork() == 0:  # in whichever process
            while True:
                kept.append(bytearray(b"x") * (16 << 20))
                time.sleep(0.01)
        time.sleep(1000)
    """
    _, finished = start(project({"train.py": text}) / "train.py", memory=400 << 20)
    assert finished.exceeded is not None
    assert finished.exceeded.bound is Bound.MEMORY
    assert "400 MiB allowed; --memory-limit sets it" in finished.exceeded.message


def test_shared_pages_and_mapped_files_are_not_counted_again(project, start):
    text = """
        import mmap, os, time
        size = 200 << 20
        kept = bytearray(b"x") * size
        children = []
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(2)
                os._exit(0)
        with open("large.bin", "wb") as file:
            file.write(kept)
        with open("large.bin", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            print(sum(mapped[i] for i in range(0, size, 4096)))
        for _ in range(4):
            os.wait()
    """
    _, finished = start(project({"train.py": text}) / "train.py", memory=400 << 20)
    assert (finished.exceeded, finished.returncode) == (None, 0)


@pytest.mark.parametrize("name", ["'endless.bin'", "tempfile.mktemp()"])
def test_writing_without_end_is_ended(project, start, name):
    text = f"""
        import tempfile
        with open({name}, "wb") as file:
            while True:
                file.write(bytes(1 << 20))
    """
    _, finished = start(project({"train.py": text}) / "train.py", disk=100 << 20)
    assert finished.exceeded is not None
    assert finished.exceeded.bound is Bound.DISK
    assert "100 MiB allowed; --disk-limit sets it" in finished.exceeded.message


def test_processes_without_end_are_ended(project, start):
    text = """
        import os, time
        for _ in range(9):
            os.fork()
        os.setsid() if os.getpid() % 2 and os.getpgrp() != os.getpid() else None
        time.sleep(1000)
    """
    overlay, finished = start(project({"train.py": text}) / "train.py", processes=40)
    assert finished.exceeded is not None
    assert finished.exceeded.bound is Bound.PROCESSES
    assert "40 allowed" in finished.exceeded.message
    assert _processes_in(overlay.scratch) == []


def _processes_in(scratch: Path) -> list[str]:
    """The processes whose environment names ``scratch``."""
    wanted, found = os.fsencode(scratch), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


DEATHS = {
    "os.kill(os.getpid(), signal.SIGSEGV)": -11,
    "__import__('ctypes').string_at(0)": -11,
    "os.abort()": -6,
    "os._exit(3)": 3,
    "exec('def f(): f()\\nf()')": 1,
    "input()": 1,
}


@pytest.mark.parametrize("how", DEATHS)
def test_what_dies_shows_its_status(project, start, how):
    folder = project({"train.py": f"import os, signal, sys\n{how}\n"})
    _, finished = start(folder / "train.py")
    assert (finished.returncode, finished.exceeded) == (DEATHS[how], None)
    assert list(folder.glob("core*")) == []


def test_signals_do_not_leave_the_run(project, start, protection):
    text = """
        import os, signal, subprocess
        for target in (os.getppid(), 1, -1):
            try:
                os.kill(target, signal.SIGCONT)
            except PermissionError:
                print("refused")
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        os.kill(child.pid, 0)
        os.kill(child.pid, signal.SIGKILL)
        print(child.wait())
    """
    _, finished = start(project({"train.py": text}) / "train.py", env=protection)
    # The kernel passes over whom "all processes" does not reach, and calls that a success.
    refusals = 2 if not protection else 3
    assert finished.stdout.split() == ["refused"] * refusals + ["-9"]


def test_a_run_that_ends_its_supervisor_is_ended(project, start, unconfined, alive):
    text = """
        import ctypes, os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        print(child.pid, flush=True)
        ctypes.CDLL(None).kill(os.getppid(), 9)  # past os.kill
        time.sleep(1000)
    """
    overlay, finished = start(project({"train.py": text}) / "train.py", env=unconfined)
    assert finished.exceeded is not None
    assert finished.exceeded.bound is Bound.WATCH
    assert not alive(int(finished.stdout))
    assert _processes_in(overlay.scratch) == []


# -- as a user runs it

TRAIN = """
import os, sys, time, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
GROWS = "kept = []\nwhile True:\n    kept.append(bytearray(b'x') * (32 << 20))\n"
FILLS = (
    "with open('full.bin', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))\n"
)


@pytest.fixture
def verify(project, tmp_path, tree, monkeypatch, capsys):
    """``torchopt verify`` of TRAIN, with texts behind the original's and the rewrite's; gives exit status and output."""

    def go(original: str, rewritten: str, *flags: str) -> tuple[int, str, str]:
        folder = project({"train.py": TRAIN + original, "rewritten.py": TRAIN + rewritten})
        before = tree(folder)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        status = main(["verify", "train.py", "rewritten.py", "--no-timing", *flags])
        assert tree(folder) == before
        return (status, *capsys.readouterr())

    return go


@pytest.mark.slow
@pytest.mark.torch
def test_a_rewrite_over_its_memory_limit_is_not_equivalent(verify):
    status, out, _ = verify("", GROWS, "--memory-limit", "1.5GiB")
    assert status == ExitCode.NOT_EQUIVALENT
    first = out.splitlines()[0]
    assert first.startswith(
        "Not equivalent (exact): resource-limit: is ended after 4 steps, where the original does not: "
        "over the memory limit: "
    )
    assert first.endswith("in use, 1.50 GiB allowed; --memory-limit sets it")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "flags", "line"),
    [
        (GROWS, ["--memory-limit", "1.5GiB"], "1.50 GiB allowed; --memory-limit sets it"),
        (FILLS, ["--disk-limit", "600M"], "600 MiB allowed; --disk-limit sets it"),
        ("time.sleep(1000)", ["--timeout", "40"], "40 s are over; --timeout sets it"),
        (
            "import atexit; atexit.register(time.sleep, 1000)",
            ["--timeout", "40"],
            "a thread or an exit handler keeps its process: 40 s are over; --timeout sets it",
        ),
    ],
    ids=["memory", "disk", "time", "exit"],
)
def test_an_original_over_a_limit_leaves_nothing_to_compare(verify, text, flags, line):
    status, out, err = verify(text, text, *flags)
    assert (status, out) == (ExitCode.USAGE, "")
    told = err.splitlines()[-1]  # below what a run of half a minute tells of its progress
    assert told.startswith("train.py: nothing to compare: ended after 4 of 20 steps, over the ")
    assert told.endswith(line)


@pytest.mark.slow
@pytest.mark.torch
def test_a_rewrite_over_its_time_limit_is_inconclusive(verify):
    status, out, _ = verify("", "time.sleep(1000)", "--timeout", "60")
    assert status == ExitCode.FINDINGS
    assert out.startswith(
        "Inconclusive (exact): time-limit: only 4 steps at the time limit of 60 s"
    )


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("import ctypes; ctypes.string_at(0)", "the process is ended by SIGSEGV"),
        ("os._exit(0)", "the process leaves with status 0 past Python's own exit (os._exit?)"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_an_original_that_dies_has_failed(verify, text, ending):
    status, out, _ = verify(text, text)
    assert status == ExitCode.SCRIPT_FAILED
    assert out.splitlines()[0] == f"Original failed: {ending}"


@pytest.mark.torch
@pytest.mark.slow
def test_a_script_that_swallows_its_end_and_goes_silent_is_ended(project, observe, monkeypatch):
    text = TRAIN.replace("range(4)", "range(3)").replace(
        "    optimizer.step()", "    step_and_hang()"
    )
    helper = """
def step_and_hang():
    try:
        optimizer.step()
    except BaseException:
        time.sleep(1000)
"""
    folder = project({"train.py": text.replace("for step", helper + "for step")})
    started = time.monotonic()
    silent = observe(folder, steps=2)
    assert (silent.status, silent.rounds) == (Status.STOPPED, 2)
    assert time.monotonic() - started < 115


# -- experiment trackers, for real

TRACKED = {
    "wandb": """
        import wandb
        run = wandb.init(project="p", settings=wandb.Settings(console="off"))
        for i in range(3):
            run.log({"loss": 1.0 / (i + 1)})
        run.finish()
        print("tracked", run.settings.mode if hasattr(run.settings, "mode") else "")
    """,
    "tensorboard": """
        from torch.utils.tensorboard import SummaryWriter
        with SummaryWriter() as writer:
            for i in range(3):
                writer.add_scalar("loss", 1.0 / (i + 1), i)
        import os
        print("tracked", len(os.listdir("runs")))
    """,
    "mlflow": """
        import mlflow
        mlflow.set_experiment("e")
        with mlflow.start_run():
            mlflow.log_param("lr", 0.1)
            mlflow.log_metric("loss", 0.5)
        print("tracked")
    """,
    "torch": """
        import os, torch
        print(torch.hub.get_dir())
        os.makedirs(torch.hub.get_dir(), exist_ok=True)
        torch.save(torch.nn.Linear(1, 1).state_dict(), os.path.join(torch.hub.get_dir(), "x.pt"))
        torch.load(os.path.join(torch.hub.get_dir(), "x.pt"))
        print("tracked")
    """,
    "matplotlib": """
        import matplotlib.pyplot as plt
        plt.plot([1, 2])
        plt.savefig("loss.png")
        print("tracked")
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("library", TRACKED)
def test_trackers_and_caches_write_nothing_of_the_users(users, start, tree, protection, library):
    pytest.importorskip(library)
    train = users / "project" / "train.py"
    train.write_text(textwrap.dedent(TRACKED[library]))
    before = tree(users)
    overlay, finished = start(train, env={"HOME": str(users / "home"), **protection}, seconds=300.0)
    assert finished.returncode == 0, finished.stderr
    assert "tracked" in finished.stdout
    assert tree(users) == before
    assert _processes_in(overlay.scratch) == []
