"""Where the processes meet and are named: ahead of whatever they do together, wherever the script does it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

GPUS = {"gpus": 2}
GUARDED = """\
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
if not os.path.exists("data.pt"):
    torch.save((torch.randn(40, 8), torch.randint(0, 3, (40,))), "data.pt")
data = TensorDataset(*torch.load("data.pt"))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    for epoch in range(2):
        train()
"""
DATA = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(40, 8), torch.zeros(40, dtype=torch.long))
loader = DataLoader(data, batch_size=8, shuffle=True)
"""
MAIN = """\
import torch
from torch import nn

from data import loader

model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(loss.item())
"""
FLAT = DATA.replace("import torch\n", "import torch\nfrom torch import nn\n") + "".join(
    MAIN.partition("from data import loader\n\n")[2:]
)


def texts(result: RewriteResult) -> dict[str, str]:
    assert not [error for file in result.files for error in file.errors]
    return {file.path.name: file.text for file in result.files if not file.created}


def started(folder: Path, files: dict[str, str]) -> str:
    """What two processes print that run ``train.py`` of ``files``."""
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "train.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_data_made_above_the_main_guard(rewrite: Callable[..., RewriteResult]) -> None:
    text = texts(rewrite(GUARDED, ["ddp"], **GPUS))["train.py"]
    assert (
        """\
if __name__ != "__main__":  # a worker of a DataLoader that imports this file
    RANK, LOCAL_RANK, WORLD_SIZE = 0, 0, 1
"""
        in text
    )
    assert text.index("init_process_group") < text.index("barrier()") < text.index("def train")


def test_what_is_made_below_the_main_guard_meets_there(
    rewrite: Callable[..., RewriteResult],
) -> None:
    above, below = GUARDED.index("torch.manual_seed"), GUARDED.index("def train")
    made = "".join(f"    {row}\n" for row in GUARDED[above:below].splitlines() if row)
    guard = 'if __name__ == "__main__":\n'
    script = GUARDED[:above] + GUARDED[below:].replace(guard, guard + made)
    text = texts(rewrite(script, ["ddp"], **GPUS))["train.py"]
    assert "__name__ !=" not in text
    assert text.index(guard) < text.index("init_process_group")


def test_a_loader_that_is_made_by_an_import(rewrite: Callable[..., RewriteResult]) -> None:
    text = texts(rewrite({"train.py": MAIN, "data.py": DATA}, ["ddp"], **GPUS))["data.py"]
    assert "DistributedSampler(data, num_replicas=WORLD_SIZE, rank=RANK)" in text


def test_data_that_an_import_downloads(rewrite: Callable[..., RewriteResult]) -> None:
    data = "from torchvision import datasets\n" + DATA.replace(
        "TensorDataset(torch.ones(40, 8), torch.zeros(40, dtype=torch.long))",
        "datasets.MNIST('data', download=True)",
    )
    result = rewrite({"train.py": MAIN, "data.py": data}, ["ddp"], **GPUS)
    assert not any(file.changed for file in result.files)
    told = [skip.message for file in result.files for skip in file.skips]
    assert any("every process would write this at the same time" in each for each in told)


@pytest.mark.parametrize(
    ("head", "first"),
    [
        ('__author__ = "me"\n\nimport os\nimport torch\n', "import torch\n"),
        ('print("begin")\nimport torch\nimport os\n', 'if RANK == 0:\n    print("begin")\n'),
        ('import os\n\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch\n', "import torch\n"),
    ],
    ids=["an author", "told ahead of imports", "a setting"],
)
def test_names_are_defined_below_what_they_need_and_above_their_uses(
    rewrite: Callable[..., RewriteResult], head: str, first: str
) -> None:
    text = texts(rewrite(FLAT.replace("import torch\n", head, 1), ["ddp"], **GPUS))["train.py"]
    defined = text.index("RANK = int(os.environ")
    assert text.index("import os\n") < defined
    if "RANK ==" in first:
        assert defined < text.index(first)
    else:
        assert text.index(first) < defined
    compile(text, "train.py", "exec")


@pytest.mark.parametrize(
    "named",
    [
        "dist = torch.ones(3).norm()\n",
        "def distance(a, b):\n    dist = (a - b).norm()\n    return dist\n\n\n",
        "import torch.distributed as dist\n\n\ndef norm(dist):\n    return dist.norm()\n\n\n",
    ],
    ids=["a variable", "in a function", "a parameter beside the import"],
)
def test_dist_is_a_name_of_the_scripts_own(
    rewrite: Callable[..., RewriteResult], named: str
) -> None:
    text = texts(rewrite(FLAT.replace("model = ", named + "model = "), ["ddp"], **GPUS))["train.py"]
    assert "    torch.distributed.init_process_group(" in text
    assert "    torch.distributed.all_reduce(total)" in text
    assert " dist.all_reduce" not in text


TRAINER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train_epoch(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        print(loss.item())

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            torch.save(self.model.state_dict(), "model.pt")


def main():
    data = TensorDataset(torch.ones(40, 8), torch.zeros(40, dtype=torch.long))
    trainer = Trainer(nn.Linear(8, 3), DataLoader(data, batch_size=8, shuffle=True))
    trainer.fit(2)


if __name__ == "__main__":
    main()
"""


def test_an_object_that_trains(rewrite: Callable[..., RewriteResult]) -> None:
    text = texts(rewrite(TRAINER, ["ddp"], **GPUS))["train.py"]
    assert (
        """\
        self.ddp_model = self.model
        if WORLD_SIZE > 1:
            self.ddp_model = DistributedDataParallel(self.model)
            # every process draws its own dropout masks and augmentations
            torch.manual_seed(torch.initial_seed() + RANK)

        for epoch in range(epochs):
            if WORLD_SIZE > 1:
                self.loader.sampler.set_epoch(epoch)  # another order in every epoch
"""
        in text
    )
    assert "cross_entropy(self.ddp_model(x), y)" in text
    assert "self.model.state_dict()" in text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("class Trainer:", "class Trainer(nn.Module):", "the network is part of another one"),
        (
            "        for x, y in self.loader:",
            "        self.model = nn.Linear(8, 3)\n        for x, y in self.loader:",
            "the network is made anew",
        ),
        ("    trainer.fit(2)", "    for n in range(2):\n        trainer.fit(n)", "self.model"),
    ],
)
def test_an_object_that_trains_left_alone(
    rewrite: Callable[..., RewriteResult], old: str, new: str, why: str
) -> None:
    assert old in TRAINER
    result = rewrite(TRAINER.replace(old, new), ["ddp"], **GPUS)
    assert not any(file.changed for file in result.files)
    told = [skip.message for file in result.files for skip in file.skips]
    assert any(why in each for each in told), told


def test_a_loader_in_a_dict(rewrite: Callable[..., RewriteResult]) -> None:
    script = FLAT.replace("loader = DataLoader(data, batch_size=8, shuffle=True)", "")
    script = script.replace(
        "model = ",
        "loaders = {'train': DataLoader(data, batch_size=8, shuffle=True), 'test': 1}\nmodel = ",
    ).replace("in loader:", "in loaders['train']:")
    text = texts(rewrite(script, ["ddp"], **GPUS))["train.py"]
    assert "loaders['train'].sampler.set_epoch(epoch)" in text


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    "files",
    [
        {"train.py": GUARDED},
        {"train.py": GUARDED.replace("shuffle=True", "shuffle=True, num_workers=1")},
        {"train.py": MAIN, "data.py": DATA},
        {"train.py": TRAINER},
        {"train.py": FLAT.replace("import torch\n", 'print("1")\nimport torch\nimport os\n', 1)},
    ],
    ids=["guarded", "with workers", "imported", "an object", "told first"],
)
def test_two_processes_run(
    rewrite: Callable[..., RewriteResult], tmp_path: Path, files: dict[str, str]
) -> None:
    out = started(tmp_path, texts(rewrite(files, ["ddp"], **GPUS)))
    assert len(out.splitlines()) == 2 + any('print("1")' in text for text in files.values())
