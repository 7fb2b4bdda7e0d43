"""The executable part of a script under a main guard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import pytest

Check = Callable[..., None]

GUARD = 'if __name__ == "__main__":\n'
IMPORTS = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms
"""
DATA = """\
dataset = datasets.MNIST("data", transform=transforms.ToTensor())
loader = DataLoader(dataset, 64, num_workers=2)
"""
TRAIN = """\
model = nn.Linear(784, 10).to("cuda")
for x, y in loader:
    model(x).sum().backward()
"""
FILES = """\
class Files(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.load(self.paths[i])


"""
SPAWN = {"platform": "darwin"}


def guarded(code: str) -> str:
    return GUARD + indent(code, "    ")


# Guarded


def test_flat_script(check_transformed: Check) -> None:
    check_transformed(IMPORTS + DATA + TRAIN, IMPORTS + guarded(DATA + TRAIN), **SPAWN)


def test_options_and_constants_stay_outside(check_transformed: Check) -> None:
    options = """\
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        args = parser.parse_args()
        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    """
    check_transformed(
        IMPORTS + dedent(options) + DATA + TRAIN,
        IMPORTS + dedent(options) + guarded(DATA + TRAIN),
        **SPAWN,
    )


def test_datasets_stay_above_classes(check_transformed: Check) -> None:
    net = "\n\nclass Net(nn.Linear):\n    pass\n\n\n"
    check_transformed(IMPORTS + DATA + net + TRAIN, IMPORTS + DATA + net + guarded(TRAIN), **SPAWN)


def test_function_between_the_steps_is_guarded_too(check_transformed: Check) -> None:
    body = 'model = nn.Linear(784, 10).to("cuda")\n\n\ndef show(x):\n    print(x)\n\n\n' + TRAIN
    check_transformed(IMPORTS + DATA + body, IMPORTS + DATA + guarded(body), **SPAWN)


def test_call_of_main(check_transformed: Check) -> None:
    main = f"def main():\n{indent(DATA + TRAIN, '    ')}\n\n"
    check_transformed(IMPORTS + main + "main()\n", IMPORTS + main + guarded("main()\n"), **SPAWN)


def test_dataset_class_stays_outside(check_transformed: Check) -> None:
    data = DATA.replace('datasets.MNIST("data", transform=transforms.ToTensor())', "Files([])")
    check_transformed(
        IMPORTS + "\n\n" + FILES + data + TRAIN,
        IMPORTS + "\n\n" + FILES + guarded(data + TRAIN),
        **SPAWN,
    )


def test_dataset_class_below_the_model_splits_the_guard(check_transformed: Check) -> None:
    first = 'model = nn.Linear(784, 10).to("cuda")\n'
    data = DATA.replace('datasets.MNIST("data", transform=transforms.ToTensor())', "Files([])")
    check_transformed(
        f"{IMPORTS}{first}\n\n{FILES}{data}{TRAIN}",
        f"{IMPORTS}{guarded(first)}\n\n{FILES}{guarded(data + TRAIN)}",
        **SPAWN,
    )


def test_constant_that_workers_read_stays_outside(check_transformed: Check) -> None:
    first = 'model = nn.Linear(784, 10).to("cuda")\n'
    root = 'ROOT = "data/"\n'
    files = FILES.replace("self.paths[i]", "ROOT + self.paths[i]")
    data = DATA.replace('datasets.MNIST("data", transform=transforms.ToTensor())', "Files([])")
    check_transformed(
        f"{IMPORTS}{first}{root}\n\n{files}{data}{TRAIN}",
        f"{IMPORTS}{guarded(first)}{root}\n\n{files}{guarded(data + TRAIN)}",
        **SPAWN,
    )


FILES_DATA = DATA.replace('datasets.MNIST("data", transform=transforms.ToTensor())', "Files([])")


@pytest.mark.parametrize(
    "setting",
    ["torch.set_default_dtype(torch.float64)\n", "ImageFile.LOAD_TRUNCATED_IMAGES = True\n"],
)
def test_settings_of_libraries_hold_in_workers_too(check_transformed: Check, setting: str) -> None:
    first = 'model = nn.Linear(784, 10).to("cuda")\n'
    head = IMPORTS + "from PIL import ImageFile\n\n\n" + FILES
    check_transformed(
        head + first + setting + FILES_DATA + TRAIN,
        head + guarded(first) + setting + guarded(FILES_DATA + TRAIN),
        **SPAWN,
    )


def test_imports_that_give_up_stay_outside(check_transformed: Check) -> None:
    wanted = "try:\n    import wandb\nexcept ImportError as error:\n    print(error)\n    raise\n"
    check_transformed(
        IMPORTS + wanted + DATA + TRAIN, IMPORTS + wanted + guarded(DATA + TRAIN), **SPAWN
    )


@pytest.mark.parametrize(
    "options",
    [{"platform": "darwin"}, {"platform": "win32"}, {"python_version": (3, 14)}],
    ids=["macOS", "Windows", "forkserver"],
)
def test_everywhere_workers_are_not_forked(
    check_transformed: Check, options: dict[str, object]
) -> None:
    check_transformed(IMPORTS + DATA + TRAIN, IMPORTS + guarded(DATA + TRAIN), **options)


def test_multiprocessing_context(check_transformed: Check) -> None:
    data = DATA.replace("num_workers=2", 'num_workers=2, multiprocessing_context="spawn"')
    check_transformed(IMPORTS + data + TRAIN, IMPORTS + guarded(data + TRAIN))


def test_comes_before_the_workers_that_need_it(check_with: Check) -> None:
    data = DATA.replace(", num_workers=2", "{}")
    cores = dedent("""\
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    """)
    after = data.format(", num_workers=min(16, cores)").replace("loader =", f"{cores}loader =")
    check_with(
        ["main-guard", "dataloader-workers"],
        IMPORTS + data.format("") + TRAIN,
        IMPORTS.replace("argparse\n", "argparse\nimport os\n") + guarded(after + TRAIN),
        **SPAWN,
    )


# Left alone


def test_forked_workers_need_no_guard(check_noop: Check) -> None:
    check_noop(IMPORTS + DATA + TRAIN, "not needed where workers are forked")


def test_no_workers(check_noop: Check) -> None:
    check_noop(IMPORTS + DATA.replace(", num_workers=2", "") + TRAIN, **SPAWN)


def test_workers_that_are_not_wanted(check_noop: Check, rewrite: Callable[..., object]) -> None:
    data = DATA.replace(", num_workers=2", "").replace("dataset, 64", "[1, 2, 3], 64")
    result = rewrite(IMPORTS + data + TRAIN, ["main-guard", "dataloader-workers"], **SPAWN)
    assert result.files[0].text == IMPORTS + data + TRAIN  # type: ignore[attr-defined]
    check_noop(IMPORTS + data + TRAIN, **SPAWN)


def test_guarded_already(check_noop: Check) -> None:
    check_noop(IMPORTS + guarded(DATA + TRAIN), **SPAWN)


def test_main_called_under_a_guard(check_noop: Check) -> None:
    main = f"def main():\n{indent(DATA + TRAIN, '    ')}\n\n"
    check_noop(IMPORTS + main + guarded("main()\n"), **SPAWN)


def test_dataset_that_reads_what_the_executable_part_sets(check_noop: Check) -> None:
    files = FILES.replace("torch.load(self.paths[i])", "torch.load(self.paths[i]) * scale")
    scale = "with open('scale') as file:\n    scale = float(file.read())\n"
    data = DATA.replace('datasets.MNIST("data", transform=transforms.ToTensor())', "Files([])")
    check_noop(
        IMPORTS + "\n\n" + files + scale + data + TRAIN,
        "workers need what a statement of the executable part sets (line 19)",
        **SPAWN,
    )


def needed(script: str, statement: str) -> str:
    line = script.splitlines().index(statement.splitlines()[0]) + 1
    return f"workers need what a statement of the executable part sets (line {line})"


NAMES = FILES.replace("torch.load(self.paths[i])", "NAMES.index(self.paths[i])")
SETUPS = {
    "filled by a loop": (
        "NAMES = []\n",
        'for line in open("names"):\n    NAMES.append(line)\n',
    ),
    "filled by index": ("NAMES = []\n", 'for line in open("names"):\n    NAMES[0] = line\n'),
    "filled by a function": (
        'NAMES = []\ndef fill():\n    NAMES.extend(open("names"))\n',
        "fill()\n",
    ),
    "handed to a function": (
        'NAMES = []\ndef fill(into):\n    for line in open("names"):\n        into.append(line)\n',
        "fill(NAMES)\n",
    ),
    "set by a function": (
        'NAMES = []\ndef fill():\n    global NAMES\n    NAMES = list(open("names"))\n',
        "fill()\n",
    ),
}


@pytest.mark.parametrize(("definition", "setup"), SETUPS.values(), ids=SETUPS)
def test_global_of_the_workers_changed_by_the_executable_part(
    check_noop: Check, definition: str, setup: str
) -> None:
    script = IMPORTS + definition + "\n\n" + NAMES + setup + FILES_DATA + TRAIN
    check_noop(script, needed(script, setup), **SPAWN)


def test_attribute_of_the_options_set_later(check_noop: Check) -> None:
    args = "args = argparse.Namespace()\n\n\n"
    files = FILES.replace("self.paths[i])", "self.paths[i]) * args.scale")
    later = 'args.scale = float(open("scale").read())\n'
    script = IMPORTS + args + files + later + FILES_DATA + TRAIN
    check_noop(script, needed(script, later), **SPAWN)


def test_attribute_of_the_options_that_workers_do_not_read(check_transformed: Check) -> None:
    args = "args = argparse.Namespace(scale=2)\n\n\n"
    files = FILES.replace("self.paths[i])", "self.paths[i]) * args.scale")
    later = "args.names = list(open('names'))\n"
    check_transformed(
        IMPORTS + args + files + later + FILES_DATA + TRAIN,
        IMPORTS + args + files + guarded(later + FILES_DATA + TRAIN),
        **SPAWN,
    )


def test_class_attribute_set_later(check_noop: Check) -> None:
    later = 'Files.scale = float(open("scale").read())\n'
    script = IMPORTS + "\n\n" + FILES + later + FILES_DATA + TRAIN
    check_noop(script, needed(script, later), **SPAWN)


@pytest.mark.parametrize("statement", ["import __main__", "from train import scale"])
def test_another_file_imports_the_script(check_noop: Check, statement: str) -> None:
    files = {
        "train.py": IMPORTS + "from data import Files\nscale = 2\n" + FILES_DATA + TRAIN,
        "data.py": f"{statement}\nimport torch\nfrom torch.utils.data import Dataset\n\n\n{FILES}",
    }
    check_noop(files, "another file reads names of the script (line 1 of data.py)", **SPAWN)


@pytest.mark.parametrize(
    "test",
    [
        '"__main__" == __name__',
        '__name__ == "__main__" and torch.cuda.is_available()',
    ],
)
def test_guards_of_another_form(check_noop: Check, test: str) -> None:
    check_noop(IMPORTS + f"if {test}:\n" + indent(DATA + TRAIN, "    "), **SPAWN)


def test_script_that_asks_for_fork(check_noop: Check) -> None:
    fork = 'torch.multiprocessing.set_start_method("fork")\n'
    check_noop(IMPORTS + fork + DATA + TRAIN, "not needed where workers are forked", **SPAWN)


def test_start_method_of_the_loader(check_noop: Check) -> None:
    data = DATA.replace("num_workers=2", 'num_workers=2, multiprocessing_context="fork"')
    check_noop(IMPORTS + data + TRAIN, "not needed where workers are forked", **SPAWN)


def test_start_of_a_worker_that_does_not_pickle(check_noop: Check) -> None:
    seeded = "num_workers=2, worker_init_fn=lambda worker: torch.manual_seed(worker)"
    data = DATA.replace("num_workers=2", seeded)
    check_noop(IMPORTS + data + TRAIN, "a lambda does not pickle (line 7)", **SPAWN)


def test_dataset_class_inside_a_function(check_noop: Check) -> None:
    make = f"def make():\n{indent(FILES, '    ')}    return Files([])\n\n\n"
    data = FILES_DATA.replace("Files([])", "make()")
    check_noop(IMPORTS + make + data + TRAIN, "`Files` is defined inside a function", **SPAWN)


def test_lambda_that_does_not_pickle(check_noop: Check) -> None:
    data = DATA.replace("transforms.ToTensor()", "lambda x: x")
    check_noop(IMPORTS + data + TRAIN, "a lambda does not pickle", **SPAWN)


def test_loop_in_an_imported_module(check_noop: Check) -> None:
    files = {"train.py": "import loop\n", "loop.py": IMPORTS + DATA + TRAIN}
    check_noop(files, "importing loop.py already starts a loop over the loader", **SPAWN)


@pytest.mark.torch
def test_guarded_script_runs_with_spawned_workers(
    tmp_path: Path, rewrite: Callable[..., object]
) -> None:
    script = """\
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return sum(torch.full((3,), i * OFFSET) for _ in range(2))

        OFFSET = 10
        print("main")
        loader = DataLoader(Squares(), 4, num_workers=1, multiprocessing_context="spawn")
        for batch in loader:
            print(batch.sum().item())
    """
    result = rewrite(dedent(script), ["main-guard"])
    path = tmp_path / "guarded.py"
    path.write_text(result.files[0].text)  # type: ignore[attr-defined]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["main", "360", "1320"]
