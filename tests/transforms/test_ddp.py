from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest

from torchopt_cli.optimizer.options import Target
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

GPUS = {"gpus": 2}
SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 5)
        self.second = nn.Linear(5, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def train(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(3):
        loss = train(model, loader, criterion, optimizer)
        print(epoch, loss)
        torch.save({"model": model.state_dict(), "epoch": epoch}, "checkpoint.pt")


if __name__ == "__main__":
    main()
"""
FLAT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""
MODEL = "model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))\n"
AFTER = """\
import atexit
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


# torchrun starts one process per GPU and tells it its place; without it there is one process.
RANK = int(os.environ.get("RANK", 0))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def sum_over_processes(value):
    \"\"\"The sum of what each process has counted in its share of the data.\"\"\"
    if WORLD_SIZE == 1:
        return value
    total = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
    dist.all_reduce(total)
    if torch.is_tensor(value):
        return total.to(value)
    number = total.item()
    return int(number) if isinstance(value, int) and number.is_integer() else number


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 5)
        self.second = nn.Linear(5, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def train(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total += loss.item()
    total = sum_over_processes(total) / WORLD_SIZE
    return total / len(loader)


def main():
    if WORLD_SIZE > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        )
        atexit.register(time.sleep, 0.1)  # lets its threads finish
        atexit.register(dist.destroy_process_group)  # also behind an error

    torch.manual_seed(1)
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    assert 16 % WORLD_SIZE == 0, "every process gets an equal part of every batch"
    train_sampler = DistributedSampler(data, seed=1) if WORLD_SIZE > 1 else None
    loader = DataLoader(
        data,
        batch_size=16 // WORLD_SIZE,
        shuffle=train_sampler is None,
        sampler=train_sampler,
    )
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    ddp_model = model
    if WORLD_SIZE > 1:
        ddp_model = DistributedDataParallel(model)
        # every process draws its own dropout masks and augmentations
        torch.manual_seed(torch.initial_seed() + RANK)

    for epoch in range(3):
        if WORLD_SIZE > 1:
            loader.sampler.set_epoch(epoch)  # another order in every epoch
        loss = train(ddp_model, loader, criterion, optimizer)
        if RANK == 0:
            print(epoch, loss)
            torch.save({"model": model.state_dict(), "epoch": epoch}, "checkpoint.pt")


if __name__ == "__main__":
    main()
"""
FLAT_AFTER = '''\
import atexit
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# torchrun starts one process per GPU and tells it its place; without it there is one process.
RANK = int(os.environ.get("RANK", 0))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def sum_over_processes(value):
    """The sum of what each process has counted in its share of the data."""
    if WORLD_SIZE == 1:
        return value
    total = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
    dist.all_reduce(total)
    if torch.is_tensor(value):
        return total.to(value)
    number = total.item()
    return int(number) if isinstance(value, int) and number.is_integer() else number


if WORLD_SIZE > 1:
    if torch.cuda.is_available():
        torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    )
    atexit.register(time.sleep, 0.1)  # lets its threads finish
    atexit.register(dist.destroy_process_group)  # also behind an error

data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
assert 16 % WORLD_SIZE == 0, "every process gets an equal part of every batch"
train_sampler = DistributedSampler(data) if WORLD_SIZE > 1 else None
loader = DataLoader(
    data,
    batch_size=16 // WORLD_SIZE,
    shuffle=train_sampler is None,
    sampler=train_sampler,
)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

ddp_model = model
if WORLD_SIZE > 1:
    ddp_model = DistributedDataParallel(model)
    # every process draws its own dropout masks and augmentations
    torch.manual_seed(torch.initial_seed() + RANK)

for epoch in range(2):
    if WORLD_SIZE > 1:
        loader.sampler.set_epoch(epoch)  # another order in every epoch
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp_model(x), y)
        loss.backward()
        optimizer.step()
    global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
    if RANK == 0:
        print(epoch, global_loss)
'''


def code(result: RewriteResult, name: str = "train.py") -> str:
    errors = [error.message for file in result.files for error in file.errors]
    assert errors == []
    return next(file.text for file in result.files if file.path.name == name)


def rows(text: str) -> list[str]:
    return [row.strip() for row in text.splitlines()]


@pytest.mark.parametrize(("before", "after"), [(SCRIPT, AFTER), (FLAT, FLAT_AFTER)])
def test_a_script_for_one_gpu(
    check_transformed: Callable[..., None], before: str, after: str
) -> None:
    check_transformed(before, after, **GPUS)


def test_all_that_is_added_has_the_quotes_of_the_file(
    rewrite: Callable[..., RewriteResult],
) -> None:
    text = code(rewrite(SCRIPT.replace('"', "'"), ["ddp"], **GPUS))
    assert "init_process_group(" in text
    assert [row for row in rows(text) if '"' in row and '"""' not in row] == []


@pytest.mark.parametrize(
    ("wrapping", "wrapped"),
    [
        (
            "model = nn.DataParallel(model).cuda()",
            """\
if WORLD_SIZE > 1:
    model = DistributedDataParallel(model.cuda(), device_ids=[LOCAL_RANK])
else:
    model = nn.DataParallel(model).cuda()
""",
        ),
        (
            "model = nn.DataParallel(model, device_ids=[0, 1])\nmodel.cuda()",
            """\
if WORLD_SIZE > 1:
    model = DistributedDataParallel(model.cuda(), device_ids=[LOCAL_RANK])
else:
    model = nn.DataParallel(model, device_ids=[0, 1])
model.cuda()
""",
        ),
        (
            "model.cuda()\nif torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)",
            """\
if WORLD_SIZE > 1:
    model = DistributedDataParallel(
        model, device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None
    )
elif torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
""",
        ),
        (
            "if torch.cuda.device_count() > 1:\n"
            "    model = nn.DataParallel(model)\n"
            "if torch.cuda.is_available():\n"
            "    model.cuda()",
            """\
if torch.cuda.device_count() > 1:
    if WORLD_SIZE == 1:
        model = nn.DataParallel(model)
if torch.cuda.is_available():
    model.cuda()
if WORLD_SIZE > 1:
    model = DistributedDataParallel(
        model, device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None
    )
""",
        ),
        (
            "if torch.cuda.is_available():\n"
            "    model = nn.DataParallel(model).cuda()\n"
            "    torch.backends.cudnn.benchmark = True",
            """\
if torch.cuda.is_available():
    if WORLD_SIZE == 1:
        model = nn.DataParallel(model).cuda()
    torch.backends.cudnn.benchmark = True
if WORLD_SIZE > 1:
    model = DistributedDataParallel(model.cuda(), device_ids=[LOCAL_RANK])
""",
        ),
        (
            "if torch.cuda.device_count() == 1:\n"
            "    model.cuda()\n"
            "elif torch.cuda.device_count() > 1:\n"
            "    model = nn.DataParallel(model).cuda()",
            """\
elif torch.cuda.device_count() > 1:
    if WORLD_SIZE == 1:
        model = nn.DataParallel(model).cuda()
if WORLD_SIZE > 1:
    model = DistributedDataParallel(model.cuda(), device_ids=[LOCAL_RANK])
""",
        ),
    ],
)
def test_data_parallel_is_replaced_in_place_by_default(
    rewrite: Callable[..., RewriteResult], wrapping: str, wrapped: str
) -> None:
    result = rewrite(FLAT.replace(MODEL, MODEL + wrapping + "\n"), ["ddp"])
    assert wrapped in code(result)
    assert "model(x)" in code(result)
    assert "\nif WORLD_SIZE > 1:\n    # every process draws its own" in code(result)
    assert result.launch == "torchrun --standalone --nproc-per-node gpu train.py"


def test_a_loss_that_a_function_is_handed_may_compare_samples_too(
    check_noop: Callable[..., None],
) -> None:
    step = "        loss.backward()\n        optimizer.step()\n"
    assert step in FLAT
    helper = "def update(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n\n\n"
    handed = FLAT.replace(step, "        update(loss, optimizer)\n").replace(MODEL, helper + MODEL)
    similar = handed.replace("model(x), y)", "model(x) @ model(x).t(), y)")
    check_noop(similar, "may compare the samples", **GPUS)


def test_a_part_in_data_parallel_keeps_to_its_gpu(rewrite: Callable[..., RewriteResult]) -> None:
    inside = SCRIPT.replace("nn.Linear(8, 5)", "nn.DataParallel(nn.Linear(8, 5))")
    text = code(rewrite(inside, ["ddp"]))
    assert (
        """\
        self.first = nn.DataParallel(
            nn.Linear(8, 5), device_ids=[LOCAL_RANK] if WORLD_SIZE > 1 else None
        )
"""
        in text
    )
    assert "ddp_model = DistributedDataParallel(model)" in text
    outside = SCRIPT.replace(
        "    model = Net()\n",
        "    model = Net()\n    model.first = nn.DataParallel(model.first, [0, 1])\n",
    )
    text = code(rewrite(outside, ["ddp"]))
    assert "[LOCAL_RANK] if WORLD_SIZE > 1 else [0, 1]" in text
    assert "ddp_model = DistributedDataParallel(model)" in text


def test_a_single_gpu_is_enough_unless_more_are_asked_for(check_noop: Callable[..., None]) -> None:
    check_noop(SCRIPT)
    check_noop(SCRIPT, gpus=1)


def test_data_parallel_stays_in_one_process_on_a_cpu(check_noop: Callable[..., None]) -> None:
    wrapped = FLAT.replace(MODEL, f"{MODEL}model = nn.DataParallel(model)\n")
    check_noop(wrapped, "runs on the CPU, in one process", target=Target.CPU)


@pytest.mark.parametrize(
    ("replaced", "by", "reason"),
    [
        (
            "shuffle=True",
            "sampler=torch.utils.data.RandomSampler(data, True)",
            "a `sampler` of its own",
        ),
        (
            "batch_size=16, shuffle=True",
            "**dict(batch_size=16)",
            "its `batch_size` comes by a dict",
        ),
        ("batch_size=16, ", "", "its `batch_size` is not given"),
        ("for epoch in range(2):", "while True:", "epochs are not counted"),
        (
            "cross_entropy(model(x), y)",
            "cross_entropy(model(x), y, reduction='none').norm()",
            "not known to be a mean",
        ),
        (
            "data = ",
            "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'\ndata = ",
            "the script shows itself one GPU",
        ),
        (
            "data = ",
            "import os, sys\nshown = 1; os.environ['CUDA_VISIBLE_DEVICES'] = sys.argv[1]\ndata = ",
            "the script chooses the GPUs it sees",
        ),
        ("cross_entropy(model(x), y)", "kl_div(model(x), y)", "not known to be a mean"),
        (
            "cross_entropy(model(x), y)",
            "cross_entropy(model(x), y) ** 2",
            "hangs on a mean or a sum over the samples",
        ),
        ("model(x), y)", "model(x) @ model(x).t(), y)", "may compare the samples"),
        (
            "        loss.backward()",
            "        loss.backward(torch.ones(()))",
            "arguments of its own",
        ),
        (MODEL, MODEL + "model.cuda(1)\n", "every process would use the GPU `1`"),
        (
            "        loss.backward()",
            "        torch.autograd.grad(loss, x)\n        loss.backward()",
            "which no other process hears of",
        ),
        (
            "    for x, y in loader:",
            "    model[0].requires_grad_(epoch > 0)\n    for x, y in loader:",
            "what is trained changes",
        ),
        (MODEL, MODEL + "torch.cuda.set_device(1)\n", "chooses its GPU itself"),
        (
            MODEL,
            MODEL + "device = torch.device('cuda:0')\ntorch.cuda.set_device(device)\n",
            "chooses its GPU itself",
        ),
        (MODEL, MODEL + "model.to(f'cuda:{find_gpu()}')\n", "use the GPU `find_gpu()`"),
        (
            MODEL,
            MODEL + "model[0].to('cuda:0')\nmodel[1].to('cuda:1')\n",
            "several GPUs, `cuda:0` and `cuda:1`",
        ),
        (MODEL, MODEL + "RANK = 3\n", "`RANK` is a name of the script's own"),
        (MODEL, MODEL + "ddp_model = 3\n", "`ddp_model` is a name of the script's own"),
        ("model(x), y)", "nn.DataParallel(model)(x), y)", "not simply kept in a variable"),
        (
            MODEL,
            MODEL + "model = nn.DataParallel(model)\nif halves:\n    model.half()\n",
            "another type once it is wrapped",
        ),
        (
            "loader = ",
            "data, _ = torch.utils.data.random_split(data, [30, 10])\nloader = ",
            "without a seed",
        ),
        (
            "torch.optim.SGD(model.parameters(), lr=0.1)",
            "torch.optim.LBFGS(model.parameters())",
            "LBFGS",
        ),
        (
            "for epoch in",
            "other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)\nfor epoch in",
            "what the optimizers train is not seen",
        ),
        (
            "    print(epoch, loss.item())",
            "    model = nn.Linear(8, 3)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
            "what the optimizer trains is not seen to be one network",
        ),
        (
            "        loss.backward()",
            "        if loss.item() < 0.1:\n            break\n        loss.backward()",
            "would stop by what each process has measured",
        ),
        (
            "    print(epoch, loss.item())",
            "    for x, y in loader:\n        model(x)",
            "the loop that goes over it is not for training alone",
        ),
    ],
)
def test_left_alone(check_noop: Callable[..., None], replaced: str, by: str, reason: str) -> None:
    assert replaced in FLAT
    check_noop(FLAT.replace(replaced, by), reason, **GPUS)


@pytest.mark.parametrize(
    "loss", ["multilabel_soft_margin_loss(model(x), y)", "huber_loss(model(x), y)"]
)
def test_other_means(rewrite: Callable[..., RewriteResult], loss: str) -> None:
    source = FLAT.replace("cross_entropy(model(x), y)", loss)
    assert "DistributedDataParallel(model)" in code(rewrite(source, ["ddp"], **GPUS))


GATHERED = """\
images = DataLoader(torch.load("images.pt"), batch_size=8, shuffle=True)
features = []
for x, _ in images:
    features.append(x.cpu())
data = TensorDataset(torch.cat(features), torch.load("labels.pt"))
"""


def test_data_gathered_in_an_order_of_its_own(
    check_noop: Callable[..., None], rewrite: Callable[..., RewriteResult]
) -> None:
    source = FLAT.replace(FLAT[FLAT.index("data = ") : FLAT.index("loader = ")], GATHERED)
    check_noop(source, "another order in every process (seed torch)", **GPUS)
    for same in (
        source.replace("images = ", "torch.manual_seed(0)\nimages = "),
        source.replace("batch_size=8, shuffle=True", "batch_size=8, shuffle=False"),
    ):
        assert "set_epoch" in code(rewrite(same, ["ddp"], **GPUS))


def test_one_of_several_optimizers(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None]
) -> None:
    """A test that chooses the optimizer makes one, whatever is chosen."""
    one = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    other = "optimizer = torch.optim.Adam({}.parameters())\n"
    choice = f"import sys\nif sys.argv[1:]:\n    {one}else:\n    {other}"
    distributed = code(rewrite(FLAT.replace(one, choice.format("model")), ["ddp"], **GPUS))
    assert "ddp_model = DistributedDataParallel(" in distributed
    check_noop(
        FLAT.replace(one, choice.format("nn.Linear(2, 3)")),
        "what the optimizer trains is not seen to be one network",
        **GPUS,
    )
    lbfgs = choice.format("model").replace("Adam", "LBFGS")
    check_noop(FLAT.replace(one, lbfgs), "LBFGS", **GPUS)
    second = other.format("model")[12:-1]
    by_key = f"import sys\noptimizer = {{'sgd': {one[12:-1]}, 'adam': {second}}}[sys.argv[1]]\n"
    distributed = code(rewrite(FLAT.replace(one, by_key), ["ddp"], **GPUS))
    assert "ddp_model = DistributedDataParallel(" in distributed


def test_an_optimizer_that_takes_the_place_of_another(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """As one with a lower rate in each epoch: whichever steps, its gradients are those of the wrapped network."""
    again = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (epoch + 1))\n"
    source = FLAT.replace("    for x, y in", again + "    for x, y in")
    assert "ddp_model = DistributedDataParallel(" in code(rewrite(source, ["ddp"], **GPUS))


def test_an_optimizer_that_nothing_calls_for(rewrite: Callable[..., RewriteResult]) -> None:
    left_over = "import torch\n__all__ = ['make']\ndef make(model):\n    return torch.optim.Adam(model.parameters())\n"

    def take_turns(train: str) -> bool:
        result = rewrite({"train.py": train, "parts.py": left_over}, ["ddp"], **GPUS)
        return any(
            "what the optimizers train is not seen" in s.message
            for f in result.files
            for s in f.skips
        )

    assert not take_turns("from parts import make\n" + FLAT)
    assert take_turns(f"from parts import make\n{FLAT}make(nn.Linear(2, 3))\n")


@pytest.mark.parametrize(
    "running",
    [
        "torch.distributed.init_process_group('nccl')",
        "model = nn.parallel.DistributedDataParallel(model)",
        "torch.multiprocessing.spawn(print)",
    ],
)
def test_what_is_distributed_stays(check_noop: Callable[..., None], running: str) -> None:
    check_noop(FLAT.replace(MODEL, f"{MODEL}{running}\n"), **GPUS)


def test_only_the_first_process_acts(rewrite: Callable[..., RewriteResult]) -> None:
    acting = """\
    if epoch % 2 or epoch > 5:
        print("a")
    elif epoch:
        print("b")
    for name in ["x", "y"]:
        print(name)
    with open("log.txt", "a") as log:
        log.write("c")
    kept = print("d")
    best = max(epoch, 2)
    if best == 2:
        best = 3
        torch.save(model.state_dict(), "best.pt")
    print(model(data[0][0]))
    print(model(data[0][0]), model(data[1][0]))
"""
    text = code(rewrite(FLAT + acting, ["ddp"], **GPUS))
    assert text.endswith("""\
    global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
    if RANK == 0:
        print(epoch, global_loss)
        if epoch % 2 or epoch > 5:
            print("a")
        elif epoch:
            print("b")
        for name in ["x", "y"]:
            print(name)
        with open("log.txt", "a") as log:
            log.write("c")
    kept = print("d")
    best = max(epoch, 2)
    if best == 2:
        best = 3
        if RANK == 0:
            torch.save(model.state_dict(), "best.pt")
    told = model(data[0][0])
    if RANK == 0:
        print(told)
    print(model(data[0][0]), model(data[1][0]))
""")


def test_what_all_processes_do_stays_above_what_the_first_one_tells(
    rewrite: Callable[..., RewriteResult],
) -> None:
    told = 'print("start")\nprint("on", torch.cuda.device_count(), "GPUs")\ndata = '
    source = FLAT.replace("data = ", told)
    source = source.replace("range(2):\n", "range(2):\n    # the next\n    print(epoch)\n")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert text.index("\nRANK = ") < text.index('\nif RANK == 0:\n    print("start")\n\nif WORLD')
    assert '\n\nif RANK == 0:\n    print("on"' in text
    assert (
        """\
for epoch in range(2):
    if WORLD_SIZE > 1:
        loader.sampler.set_epoch(epoch)  # another order in every epoch
    if RANK == 0:
        # the next
        print(epoch)
    for x, y in loader:
"""
        in text
    )


def test_one_condition_is_not_put_around_another(rewrite: Callable[..., RewriteResult]) -> None:
    text = code(
        rewrite(
            FLAT.replace("    print(", "    if epoch or x is y:\n        print("), ["ddp"], **GPUS
        )
    )
    assert "    if RANK == 0 and (epoch or x is y):\n        print(" in text


def test_progress_bars(rewrite: Callable[..., RewriteResult]) -> None:
    bar = "from tqdm import tqdm\n" + FLAT.replace("in loader:", "in tqdm(loader):")
    text = code(rewrite(bar, ["ddp"], **GPUS))
    assert "    for x, y in tqdm(loader, disable=RANK > 0):" in text


def test_data_is_prepared_by_the_first_process(rewrite: Callable[..., RewriteResult]) -> None:
    download = "from torchvision import datasets\n" + FLAT.replace(
        "data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))",
        "data = datasets.MNIST('data', download=True)",
    )
    text = code(rewrite(download, ["ddp"], **GPUS))
    assert (
        """\
if RANK > 0:
    dist.barrier()  # the first process prepares the data
data = datasets.MNIST('data', download=True)
if RANK == 0 and WORLD_SIZE > 1:
    dist.barrier()
"""
        in text
    )
    assert text.index("timeout=timedelta(hours=2)") < text.index("if RANK > 0:")


WHILE = FLAT.replace("for epoch in range(2):\n", "epoch = 0\nwhile epoch < 2:\n    epoch += 1\n")


def test_epochs_that_a_while_loop_counts(rewrite: Callable[..., RewriteResult]) -> None:
    text = code(rewrite(WHILE, ["ddp"], **GPUS))
    assert (
        "    if WORLD_SIZE > 1:\n"
        "        loader.sampler.set_epoch(epoch)  # another order in every epoch\n"
        "    epoch += 1\n"
    ) in text


@pytest.mark.parametrize(
    "counted",
    [
        "    epoch += 2\n",
        "    if epoch == 0:\n        epoch += 1\n",
        "    epoch += 1\n    epoch = epoch % 3\n",
    ],
)
def test_epochs_that_are_not_counted(check_noop: Callable[..., None], counted: str) -> None:
    source = WHILE.replace("    epoch += 1\n", counted)
    check_noop(source, "the epochs are not counted by a variable", **GPUS)


def between_barriers(text: str) -> list[str]:
    """What the first process does while the others wait."""
    waits = "dist.barrier()  # the first process prepares the data\n"
    return [part.split("dist.barrier()")[0] for part in text.split(waits)[1:]]


MADE = "def make(model):\n    model = nn.DataParallel(model)\n    return model\n\n\n"
WRAPPED = "model = nn.DataParallel(model)\n"
DOWNLOADED = FLAT.replace(
    "from torch import nn\n", "from torch import nn\nfrom torchvision import datasets\n"
).replace(
    "data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))",
    "data = datasets.MNIST('data', download=True)",
)


@pytest.mark.parametrize("wrapped", [WRAPPED, MADE + "model = make(model)\n"])
def test_data_that_is_prepared_before_and_behind_the_wrapping(
    rewrite: Callable[..., RewriteResult], wrapped: str
) -> None:
    """All processes make a DistributedDataParallel together: none of them can wait for another meanwhile."""
    other = "test_data = datasets.MNIST('data', train=False, download=True)\n"
    text = code(rewrite(DOWNLOADED.replace(MODEL, MODEL + wrapped + other), ["ddp"], **GPUS))
    before, behind = between_barriers(text)
    assert "data = " in before
    assert "test_data = " in behind
    for alone in (before, behind):
        assert "DataParallel" not in alone
        assert "make(" not in alone


def test_data_that_is_prepared_in_one_go(rewrite: Callable[..., RewriteResult]) -> None:
    other = "test_data = datasets.MNIST('data', train=False, download=True)\n"
    text = code(rewrite(DOWNLOADED.replace(MODEL, MODEL + other), ["ddp"], **GPUS))
    (alone,) = between_barriers(text)
    assert "test_data" in alone


def test_what_is_written_by_a_branch_that_ends_the_script(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """The first process would leave the others waiting."""
    tested = "import os, sys\nif os.path.exists('model.pt'):\n    torch.save(model(data[0][0]), 'out.pt')\n    sys.exit()\n"
    text = code(
        rewrite(DOWNLOADED.replace("optimizer = ", tested + "optimizer = "), ["ddp"], **GPUS)
    )
    (alone,) = between_barriers(text)
    assert "torch.save" not in alone
    assert "if RANK == 0:\n        torch.save(" in text


def test_data_that_is_prepared_where_the_network_is_wrapped(
    check_noop: Callable[..., None],
) -> None:
    setup = (
        "def setup(model):\n    data = datasets.MNIST('data', download=True)\n"
        "    model = nn.DataParallel(model)\n    return data, model\n\n\n"
    )
    source = DOWNLOADED.replace("data = datasets.MNIST('data', download=True)\n", "")
    source = source.replace(MODEL, "").replace(
        "loader = ", f"{setup}{MODEL}data, model = setup(model)\nloader = "
    )
    check_noop(source, "the first process would wait for the others here", **GPUS)


def test_data_that_is_prepared_behind_a_common_decision(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """What the first process decides for all, none of them can wait for beforehand."""
    resumed = """\
import os, time
name = time.strftime("%j.pt")
data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
if not os.path.isfile(name):
    data = datasets.MNIST('data', download=True)
else:
    model.load_state_dict(torch.load(name, map_location="cpu"))
"""
    source = DOWNLOADED.replace(MODEL, "").replace(
        "data = datasets.MNIST('data', download=True)\n", MODEL + resumed
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "if of_first_process(not os.path.isfile(name)):" in text
    (alone,) = between_barriers(text)
    assert "of_first_process" not in alone
    assert "data = datasets.MNIST('data', download=True)" in alone


def test_data_that_is_prepared_with_a_shared_evaluation(check_noop: Callable[..., None]) -> None:
    evaluate = """\
def evaluate():
    right = 0
    model.eval()
    with torch.no_grad():
        for x, y in test_loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right


def remember():
    if not os.path.exists("first.txt"):
        with open("first.txt", "w") as file:
            file.write(str(evaluate()))


test_loader = DataLoader(data, batch_size=16)
remember()
"""
    source = "import os\n" + FLAT.replace("optimizer = ", evaluate + "optimizer = ")
    source = source.replace("    print(epoch, loss.item())", "    print(evaluate())")
    check_noop(source, "the first process would wait for the others here", **GPUS)


@pytest.mark.parametrize(
    ("run", "waits"),
    [
        ("os.system('wget %s; unzip points.zip' % address)", True),
        ("subprocess.check_call(['curl', '-O', address])", True),
        ("os.system('echo ' + address)", False),
    ],
)
def test_programs_that_fetch_data(
    rewrite: Callable[..., RewriteResult], run: str, waits: bool
) -> None:
    fetched = "import os\nimport subprocess\nimport sys\n\naddress = sys.argv[1]\n"
    fetched += f"if not os.path.exists('points'):\n    {run}\n"
    source = FLAT.replace("data = ", fetched + "data = ")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert ("dist.barrier()  # the first process prepares the data" in text) is waits


def test_a_dataset_made_ahead_of_its_loader_waits_for_the_first_process(
    rewrite: Callable[..., RewriteResult],
) -> None:
    inline = "from torchvision import datasets\n" + FLAT.replace(
        "DataLoader(data,", "DataLoader(datasets.MNIST('data', download=True),"
    )
    text = code(rewrite(inline, ["ddp"], **GPUS))
    assert (
        """\
if RANK > 0:
    dist.barrier()  # the first process prepares the data
train_set = datasets.MNIST('data', download=True)
"""
        in text
    )
    assert text.index("loader = DataLoader(") < text.index("if RANK == 0 and WORLD_SIZE > 1:")


def test_data_that_is_written_over_and_over_is_no_preparation(
    check_noop: Callable[..., None],
) -> None:
    writing = "def write():\n    with open('data.txt', 'w') as file:\n        file.write('1')\n\n\nwrite()\n"
    before, after = FLAT.split("data = ")[0], FLAT[len(FLAT.split("data = ")[0]) :]
    check_noop(before + writing + after, "every process would write this anew", **GPUS)


def test_arguments_that_come_by_a_dict(rewrite: Callable[..., RewriteResult]) -> None:
    by_dict = FLAT.replace("batch_size=16, shuffle=True", "**options").replace(
        "loader = ", "options = dict(batch_size=16, shuffle=True)\nloader = "
    )
    assert """\
options = dict(batch_size=16, shuffle=True)
assert (
    options["batch_size"] % WORLD_SIZE == 0
), "every process gets an equal part of every batch"
train_sampler = (
    DistributedSampler(data, shuffle=options["shuffle"]) if WORLD_SIZE > 1 else None
)
loader = DataLoader(
    data,
    sampler=train_sampler,
    **{
        **options,
        "batch_size": options["batch_size"] // WORLD_SIZE,
        "shuffle": options["shuffle"] and train_sampler is None,
    }
)
""" in code(rewrite(by_dict + 'options["shuffle"] = False\n', ["ddp"], **GPUS))


@pytest.mark.parametrize(
    ("before", "workers", "after"),
    [
        (
            "cores = os.cpu_count() or 1\n",
            "min(8, cores)",
            "cores = os.cpu_count() or 1\n"
            "# processes on the same machine share its cores\n"
            "cores = max(1, cores // LOCAL_WORLD_SIZE)\n",
        ),
        ("", "os.cpu_count()", "num_workers=max(1, os.cpu_count() // LOCAL_WORLD_SIZE)"),
        (
            "",
            "os.cpu_count() or 1",
            "num_workers=max(1, (os.cpu_count() or 1) // LOCAL_WORLD_SIZE)",
        ),
        (
            "",
            "os.cpu_count() - 1",
            "num_workers=max(1, (os.cpu_count() - 1) // LOCAL_WORLD_SIZE)",
        ),
        (
            "",
            "int(os.cpu_count() / 2)",
            "num_workers=max(1, int(os.cpu_count() / 2) // LOCAL_WORLD_SIZE)",
        ),
        (
            "",
            "max(1, os.cpu_count() // 2)",
            "num_workers=max(1, os.cpu_count() // 2 // LOCAL_WORLD_SIZE)",
        ),
        ("", "4", "num_workers=4"),
    ],
    ids=["variable", "call", "expression", "all but one", "half", "one at least", "number"],
)
def test_processes_share_the_cores_that_workers_are_counted_from(
    rewrite: Callable[..., RewriteResult], before: str, workers: str, after: str
) -> None:
    counted = FLAT.replace("shuffle=True)", f"shuffle=True, num_workers={workers})")
    counted = "import os\n" + counted.replace("loader = ", before + "loader = ")
    text = code(rewrite(counted, ["ddp"], **GPUS))
    assert after in text
    reads = 'LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_WORLD_SIZE", 1))'
    assert (reads in text) is (workers != "4")


def test_an_argument_that_may_be_put_into_the_dict_later(
    rewrite: Callable[..., RewriteResult],
) -> None:
    by_dict = FLAT.replace("batch_size=16, shuffle=True", "**options").replace(
        "loader = ",
        "options = {'batch_size': 16}\n"
        "if torch.cuda.is_available():\n    options.update({'shuffle': True})\nloader = ",
    )
    text = code(rewrite(by_dict, ["ddp"], **GPUS)).replace("'", '"')
    assert 'DistributedSampler(data, shuffle=options.get("shuffle", False))' in text
    assert '"shuffle": options.get("shuffle", False) and train_sampler is None,' in text
    assert 'options["batch_size"] // WORLD_SIZE' in text


def test_a_dict_that_another_file_fills(rewrite: Callable[..., RewriteResult]) -> None:
    loading = """\
from torch.utils.data import DataLoader


def make_loader(data, options):
    return DataLoader(data, **options)
"""
    source = "from loading import make_loader\n" + FLAT.replace(
        "loader = DataLoader(data, batch_size=16, shuffle=True)",
        "size = 16\noptions = {'batch_size': size, 'shuffle': True}\n"
        "loader = make_loader(data, options)",
    )
    found = rewrite({"train.py": source, "loading.py": loading}, ["ddp"], **GPUS)
    assert not any(file.errors for file in found.files)


ACCURACY = """\
def accuracy(output, target):
    _, pred = output.topk(1)
    return pred.t().eq(target.view(1, -1)).float().sum() / len(target)


data = """


def test_what_only_measures_may_mix_samples(rewrite: Callable[..., RewriteResult]) -> None:
    measured = FLAT.replace("data = ", ACCURACY, 1).replace(
        "        loss.backward()\n",
        "        measured = accuracy(model[:2](x), y)\n        loss.backward()\n",
    )
    measured = measured.replace("model[:2](x)", "y[:, None].float()")
    assert "DistributedDataParallel(model)" in code(rewrite(measured, ["ddp"], **GPUS))


def test_the_sampler_does_as_the_loader_did(rewrite: Callable[..., RewriteResult]) -> None:
    def sampler(arguments: str, before: str = "") -> str:
        text = FLAT.replace("batch_size=16, shuffle=True", arguments).replace(
            "data = ", before + "data = "
        )
        after = code(rewrite(text, ["ddp"], **GPUS))
        return next(row for row in rows(after) if row.startswith("train_sampler ="))

    ends = " if WORLD_SIZE > 1 else None"
    assert (
        sampler("batch_size=16") == f"train_sampler = DistributedSampler(data, shuffle=False){ends}"
    )
    assert sampler("batch_size=16, shuffle=True, drop_last=True") == (
        f"train_sampler = DistributedSampler(data, drop_last=True){ends}"
    )
    assert sampler("16, True", "torch.manual_seed(7)\n") == (
        f"train_sampler = DistributedSampler(data, seed=7){ends}"
    )


def test_without_shuffling_all_epochs_are_alike(rewrite: Callable[..., RewriteResult]) -> None:
    text = code(rewrite(FLAT.replace(", shuffle=True", ""), ["ddp"], **GPUS))
    assert "set_epoch" not in text
    assert "shuffle=False)" in text


def test_a_gpu_named_by_number_is_any_gpu(rewrite: Callable[..., RewriteResult]) -> None:
    named = FLAT.replace(
        MODEL, MODEL + "model.to('cuda:0' if torch.cuda.is_available() else 'cpu')\n"
    )
    assert "model.to('cuda' if torch" in code(rewrite(named, ["ddp"], **GPUS))


@pytest.mark.parametrize(
    ("chosen", "given"),
    [
        ("model.cuda(0)", "model.cuda(LOCAL_RANK)"),
        ("model.cuda(device=0)", "model.cuda(device=LOCAL_RANK)"),
        ("torch.cuda.set_device(0)", "torch.cuda.set_device(LOCAL_RANK)"),
        ("model.to(torch.device('cuda', 0))", "model.to(torch.device('cuda', LOCAL_RANK))"),
    ],
)
def test_the_first_gpu_is_that_of_the_process(
    rewrite: Callable[..., RewriteResult], chosen: str, given: str
) -> None:
    text = code(rewrite(FLAT.replace(MODEL, f"{MODEL}{chosen}\n"), ["ddp"], **GPUS))
    assert f"{given}\n" in text


@pytest.mark.parametrize(
    ("chosen", "given"),
    [
        ("f'cuda:{%s}'", "f'cuda:{LOCAL_RANK if WORLD_SIZE > 1 else args.gpu}'"),
        ("'cuda:%%d' %% %s", "'cuda:%d' % (LOCAL_RANK if WORLD_SIZE > 1 else args.gpu)"),
        ("'cuda:{}'.format(%s)", "'cuda:{}'.format(LOCAL_RANK if WORLD_SIZE > 1 else args.gpu)"),
        ("'cuda:' + str(%s)", "'cuda:' + str(LOCAL_RANK if WORLD_SIZE > 1 else args.gpu)"),
        (
            "torch.device('cuda', %s)",
            "torch.device('cuda', LOCAL_RANK if WORLD_SIZE > 1 else args.gpu)",
        ),
    ],
)
def test_a_gpu_that_an_option_chooses_stays_that_of_one_process(
    rewrite: Callable[..., RewriteResult], chosen: str, given: str
) -> None:
    option = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--gpu', type=int, default=0)
args = parser.parse_args()
"""
    moved = f"{MODEL}model.to({chosen % 'args.gpu'})\n"
    text = code(rewrite(option + FLAT.replace(MODEL, moved), ["ddp"], **GPUS))
    assert f"model.to({given})\n" in text


OPTION = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--gpu', default='0')
args = parser.parse_args()
"""


def test_several_gpus_that_the_script_shows_itself(rewrite: Callable[..., RewriteResult]) -> None:
    shown = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '2,3'\n" + FLAT
    assert "WORLD_SIZE" in code(rewrite(shown, ["ddp"], **GPUS))


@pytest.mark.parametrize(
    "value", ["args.gpu", "str(args.gpu)", "sys.argv[1]", "','.join(map(str, args.gpus))"]
)
@pytest.mark.parametrize("wrapped", ["", "model = nn.DataParallel(model)\n"])
def test_the_gpus_that_the_script_is_told_to_see(
    rewrite: Callable[..., RewriteResult], value: str, wrapped: str
) -> None:
    """Each of torchrun's processes has its own."""
    shown = OPTION + (
        f"import os\nimport sys\n\nif args.gpu:\n    os.environ['CUDA_VISIBLE_DEVICES'] = {value}\n"
    )
    result = rewrite(shown + FLAT.replace(MODEL, MODEL + wrapped), ["ddp"], **GPUS)
    kept = f"    if WORLD_SIZE == 1:\n        os.environ['CUDA_VISIBLE_DEVICES'] = {value}\n"
    assert f"if args.gpu:\n{kept}" in code(result)
    assert code(result).index("WORLD_SIZE = int") < code(result).index("if args.gpu")
    (change,) = result.files[0].changes
    assert f"torchrun takes the GPUs that it sees, whatever `{value}` says" in change.reason


def test_the_first_of_several_gpus(rewrite: Callable[..., RewriteResult]) -> None:
    chosen = "gpus = [int(number) for number in args.gpu.split(',')]\n"
    moved = f"{chosen}torch.cuda.set_device('cuda:{{}}'.format(gpus[0]))\n{MODEL}"
    wrapped = "model = nn.DataParallel(model, device_ids=gpus)\n"
    text = code(rewrite(OPTION + FLAT.replace(MODEL, moved + wrapped), ["ddp"], **GPUS))
    assert "'cuda:{}'.format(LOCAL_RANK if WORLD_SIZE > 1 else gpus[0])" in text


VAE_LOSS = """\
def loss_function(out, x):
    error = nn.functional.mse_loss(out, x, reduction='sum')
    return error - 0.5 * torch.sum(1 + out - out.exp())


data = """


@pytest.mark.parametrize(
    ("before", "loss"),
    [
        (FLAT, "nn.functional.cross_entropy(model(x), y, reduction='sum')"),
        (FLAT, "nn.CrossEntropyLoss(reduction='sum')(model(x), y)"),
        (FLAT, "nn.functional.cross_entropy(model(x), y, reduction='none').sum()"),
        (FLAT.replace("data = ", VAE_LOSS, 1), "loss_function(model(x), x[:, :3])"),
    ],
)
def test_a_sum_is_no_mean(rewrite: Callable[..., RewriteResult], before: str, loss: str) -> None:
    source = before.replace("nn.functional.cross_entropy(model(x), y)", loss)
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "        (loss * WORLD_SIZE).backward()\n" in text


def test_a_sum_by_the_number_of_samples_is_a_mean(rewrite: Callable[..., RewriteResult]) -> None:
    source = FLAT.replace("model(x), y)", "model(x), y, reduction='sum') / len(x)")
    assert "        loss.backward()\n" in code(rewrite(source, ["ddp"], **GPUS))


LOG = """\
import sys

log = open('log.txt', 'w')
"""
LOG_THAT_RESUMES = """\
class Log:
    def __init__(self, path):
        self.file = open(path)
        self.lines = [line for line in self.file]
        self.file.close()
        self.file = open(path, 'a')

    def tell(self, text):
        if self.file is not None:
            self.file.write(text)
            if self.file.isatty():
                self.file.flush()

log = Log('log.txt')
"""
LOG_OF_A_CLASS = """\
class Log:
    def __init__(self, path):
        self.file = open(path, mode='a')

    def tell(self, text):
        print(text, file=self.file)
        self.file.flush()

log = Log('log.txt')
"""


@pytest.mark.parametrize(
    ("opened", "told", "becomes"),
    [
        (LOG, "log.write(f'{epoch}\\n')", "open('log.txt' if RANK == 0 else os.devnull, 'w')"),
        (
            LOG.replace("log =", "rows =") + "import csv\nlog = csv.writer(rows)\n",
            "log.writerow([epoch])",
            "open('log.txt' if RANK == 0 else os.devnull, 'w')",
        ),
        (
            LOG_OF_A_CLASS,
            "log.tell(str(epoch))",
            "open(path if RANK == 0 else os.devnull, mode='a')",
        ),
        (
            LOG_THAT_RESUMES,
            "log.tell(str(epoch))",
            "open(path if RANK == 0 else os.devnull, 'a')",
        ),
    ],
)
def test_logs_that_are_kept_open(
    rewrite: Callable[..., RewriteResult], opened: str, told: str, becomes: str
) -> None:
    loop = "    for x, y in loader:"
    source = FLAT.replace("data = ", f"{opened}\ndata = ", 1).replace(loop, f"    {told}\n{loop}")
    assert becomes in code(rewrite(source, ["ddp"], **GPUS))


def test_a_log_that_is_more_than_written(check_noop: Callable[..., None]) -> None:
    source = FLAT.replace("data = ", f"{LOG}print(log.name)\ndata = ", 1)
    check_noop(source, "every process would write this anew", **GPUS)


def test_room_for_a_sampler(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None]
) -> None:
    """As scripts leave it that are made from an example for several processes."""
    room = "batch_size=16, shuffle=(train_sampler is None), sampler=train_sampler"
    source = FLAT.replace("loader = ", "train_sampler = None\nloader = ", 1)
    source = source.replace("batch_size=16, shuffle=True", room, 1)
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "train_sampler = DistributedSampler(data) if WORLD_SIZE > 1 else None\n" in text
    divided = room.replace("16", "16 // WORLD_SIZE")
    assert divided in text or ",\n    ".join(divided.split(", ")) in text
    other = source.replace(MODEL, MODEL + "other = DataLoader(data, sampler=train_sampler)\n")
    check_noop(other, "`train_sampler` is a name of the script's own", **GPUS)
    made = source.replace("loader = DataLoader(", "def load():\n    return DataLoader(", 1)
    inside = made.replace(MODEL, f"loader = load()\n{MODEL}")
    check_noop(inside, "`train_sampler` is a name of the script's own", **GPUS)


SIZE = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--size', type=int, default=16)
args = parser.parse_args()
"""


@pytest.mark.parametrize(
    "use",
    [
        "if args.size > 256:\n    print('large')",
        "args.epochs = 3 * 128 // args.size",
        "steps = math.ceil(len(data) / args.size)",
        "rate = 0.1 * args.size / 256\noptimizer = torch.optim.SGD(model.parameters(), lr=rate)",
        "args.lr = 0.1\nargs.lr *= args.size / 256\noptimizer = torch.optim.SGD(model.parameters(), args.lr)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * args.size / 256)",
    ],
)
def test_what_is_worked_out_of_the_size_of_a_batch(
    rewrite: Callable[..., RewriteResult], use: str
) -> None:
    source = SIZE + "import math\n" + FLAT.replace("batch_size=16", "batch_size=args.size")
    if "optimizer" in use:
        source = "\n".join(r for r in source.split("\n") if not r.startswith("optimizer = "))
    source = source.replace(MODEL, f"{MODEL}{use}\n")
    assert "batch_size=args.size // WORLD_SIZE" in code(rewrite(source, ["ddp"], **GPUS))


@pytest.mark.parametrize(
    "use",
    [
        "state = torch.zeros(args.size, 3)",
        "state = torch.zeros(2 * args.size)",
        "rows = 2 * args.size\nstate = torch.zeros(rows)",
        "state = torch.zeros(len(data)).view(len(data) // args.size, -1)",
        "args.size = 3 * args.size",
    ],
)
def test_what_has_the_size_of_a_batch(check_noop: Callable[..., None], use: str) -> None:
    source = SIZE + FLAT.replace("batch_size=16", "batch_size=args.size")
    check_noop(source.replace(MODEL, f"{MODEL}{use}\n"), "has other uses than", **GPUS)


def test_a_wrapped_network_of_several_lines(rewrite: Callable[..., RewriteResult]) -> None:
    wrapped = (
        "if device:\n    model.to(device)\n    model = nn.DataParallel(\n        model\n    )\n"
    )
    source = FLAT.replace(MODEL, f"device = torch.device('cuda')\n{MODEL}{wrapped}")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert (
        "    if WORLD_SIZE == 1:\n        model = nn.DataParallel(\n            model\n        )\n"
        in text
    )


FOCAL = """\
class Focal(nn.Module):
    def forward(self, scores, target):
        each = nn.functional.cross_entropy(scores, target, reduction='none')
        loss = (1 - torch.exp(-each)) ** 2 * each
        return loss.mean()


data = """


def test_the_loss_of_a_class(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None]
) -> None:
    source = FLAT.replace("nn.functional.cross_entropy(model(x), y)", "Focal()(model(x), y)")
    assert "DistributedDataParallel(" in code(
        rewrite(source.replace("data = ", FOCAL, 1), ["ddp"], **GPUS)
    )
    told = source.replace("    for x, y", "    total = 0.0\n    for x, y")
    told = told.replace(
        "        optimizer.step()\n",
        "        optimizer.step()\n        total += loss.item()\n    print(total / len(loader))\n",
    )
    either = FOCAL.replace(
        "return loss.mean()",
        "if self.training:\n            return loss.mean()\n        return loss.mean()",
    )
    text = code(rewrite(told.replace("data = ", either, 1), ["ddp"], **GPUS))
    assert "    total = sum_over_processes(total) / WORLD_SIZE\n" in text
    of_mean = FOCAL.replace(", reduction='none'", "")
    check_noop(source.replace("data = ", of_mean, 1), "hangs on a mean or a sum", **GPUS)


def test_a_mean_over_words(rewrite: Callable[..., RewriteResult]) -> None:
    loss = "nn.functional.cross_entropy(model(x), y, reduction='none')"
    masked = f"({loss} * (y > 0)).sum() / (y > 0).sum()"
    source = FLAT.replace("nn.functional.cross_entropy(model(x), y)", masked)
    (change,) = rewrite(source, ["ddp"], **GPUS).files[0].changes
    assert "the loss is a mean that weighs samples, taken in each process" in change.reason


ACCUMULATED = (
    FLAT.replace("    for x, y in loader", "    for i, (x, y) in enumerate(loader)")
    .replace("        optimizer.zero_grad()\n", "")
    .replace(
        "        optimizer.step()\n",
        "        if (i + 1) % 4 == 0 or i + 1 == len(loader):\n"
        "            optimizer.step()\n            optimizer.zero_grad()\n",
    )
)


def test_gradients_of_several_batches_are_exchanged_once(
    rewrite: Callable[..., RewriteResult],
) -> None:
    assert """\
        exchanges = WORLD_SIZE == 1 or (i + 1) % 4 == 0 or i + 1 == len(loader)
        with nullcontext() if exchanges else ddp_model.no_sync():
            loss = nn.functional.cross_entropy(ddp_model(x), y)
            loss.backward()
        if (i + 1) % 4 == 0""" in code(rewrite(ACCUMULATED, ["ddp"], **GPUS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(i + 1) % 4 == 0 or i + 1 == len(loader)", "i > 4"),
        ("(i + 1) % 4 == 0 or", "(i + 1) % int(input()) == 0 or"),
        ("        loss = ", "        i = i + 1\n        loss = "),
        ("        loss.backward()", "        i = i + 1\n        loss.backward()"),
    ],
)
def test_which_batch_is_the_last_one_has_to_be_known_ahead(
    rewrite: Callable[..., RewriteResult], old: str, new: str
) -> None:
    assert old in ACCUMULATED
    text = code(rewrite(ACCUMULATED.replace(old, new), ["ddp"], **GPUS))
    assert ("no_sync" in text) is (new == "        i = i + 1\n        loss = ")


def test_synchronized_batchnorm_when_asked_for(rewrite: Callable[..., RewriteResult]) -> None:
    norm = FLAT.replace("nn.ReLU()", "nn.BatchNorm1d(5)")
    plain = rewrite(norm, ["ddp"], **GPUS)
    assert "--sync-batchnorm" in plain.files[0].changes[0].reason
    text = code(rewrite(norm, ["ddp"], sync_batchnorm=True, **GPUS))
    assert "DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))" in text


def test_a_layer_without_gradients_is_looked_for(rewrite: Callable[..., RewriteResult]) -> None:
    spare = SCRIPT.replace(
        "        self.first =", "        self.spare = nn.Linear(8, 5)\n        self.first ="
    )
    assert "DistributedDataParallel(model, find_unused_parameters=True)" in code(
        rewrite(spare, ["ddp"], **GPUS)
    )


FORWARD = "        return self.second(torch.relu(self.first(x)))"
VARYING = [
    "if torch.rand(1) < 0.5:\n    return self.second(x[:, :5])",
    "skip = random.random() < 0.5\nif not skip:\n    x = x + self.third(x)",
    "x = x + self.third(x) if random.random() < 0.5 else x",
    "if x.isnan().any():\n    x = self.third(x)",
    "for layer in self.blocks:\n    if random.random() < 0.1:\n        continue\n    x = layer(x)",
    "for layer in self.blocks[: random.randint(1, 2)]:\n    x = layer(x)",
    "x = self.blocks[self.third(x).mean(0).argmax() % 2](x)",
    "if self.stage > 0:\n    x = self.third(x)",
]
CONSTANT = [
    "if x.dim() == 3:\n    x = x.flatten(1)",
    "if self.width > 4:\n    x = self.third(x)\nelse:\n    x = torch.relu(self.third(x))",
    "if self.shortcut is not None:\n    x = self.shortcut(x)",
    "if random.random() < 0.5:\n    x = x.flip(-1)",
    "for layer in self.blocks:\n    x = layer(x)",
    "x = self.blocks[1](self.blocks[0](x))",
    "if self.training:\n    x = torch.relu(x)",
]


def choosing(body: str, stage: str) -> str:
    layers = (
        "        self.shortcut, self.width, self.stage = None, 8, 0\n"
        "        self.third = nn.Linear(8, 8)\n"
        "        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])\n"
        "        self.first ="
    )
    read = "        x = self.third(self.blocks[0](x))\n"
    text = "import random\n" + SCRIPT.replace("        self.first =", layers, 1)
    text = text.replace(FORWARD, read + indent(body, " " * 8) + "\n" + FORWARD, 1)
    return text.replace("    model.train()\n", f"    model.train()\n{stage}", 1)


@pytest.mark.parametrize("body", VARYING)
def test_layers_that_are_left_out_now_and_then_are_looked_for(
    rewrite: Callable[..., RewriteResult], body: str
) -> None:
    stage = "    for level in range(2):\n        model.stage = level\n" if "stage" in body else ""
    text = code(rewrite(choosing(body, stage), ["ddp"], **GPUS))
    assert "DistributedDataParallel(model, find_unused_parameters=True)" in text


LEFT_OUT = [
    ("logits, _ = model(x)", "return logits, aux"),
    ("logits, aux = model(x)\n        seen = aux.detach().mean()", "return logits, aux"),
    (
        "logits, aux = model(x)\n        hits = (aux.argmax(1) == y).sum().item()",
        "return logits, aux",
    ),
    ("out = model(x)\n        logits = out[0]", "return logits, aux"),
    ("logits = model(x)[0]", "return logits, aux"),
    ("logits = model(x)['logits']", "return {'logits': logits, 'aux': aux}"),
    ("logits = model(x).logits", "out = Out(logits=logits, aux=aux)\n        return out"),
    ("logits = chosen(model(x))", "return logits, aux"),
]
ALL_USED = [
    ("logits, aux = model(x)\n        logits = logits + aux", "return logits, aux"),
    ("logits, _ = model(x)", "return logits, x"),
    ("logits, _ = model(x)", "return logits + aux, aux"),
    ("logits = sum(model(x))", "return logits, aux"),
    ("logits, aux = model(x)", "return logits + aux, self.mix(logits)"),
]


def with_two_heads(read: str, returned: str) -> str:
    text = SCRIPT.replace(
        "        self.first =", "        self.head = nn.Linear(5, 3)\n        self.first =", 1
    )
    heads = "        x = torch.relu(self.first(x))\n        logits = self.second(x)\n"
    heads += f"        aux = self.head(x)\n        {returned}\n\n"
    heads += "    def mix(self, logits):\n        return self.second.weight.sum() * logits"
    text = text.replace(FORWARD, heads, 1)
    text = text.replace("criterion(model(x), y)", "criterion(logits, y)", 1)
    text = text.replace("        loss = ", f"        {read}\n        loss = ", 1)
    helpers = "Out = namedtuple('Out', 'logits aux')\n\n\ndef chosen(outputs):\n    return outputs[0]\n\n\n"
    return "from collections import namedtuple\n" + text.replace("class Net", helpers + "class Net")


@pytest.mark.parametrize(("read", "returned"), LEFT_OUT)
def test_layers_whose_output_the_loss_leaves_out_are_looked_for(
    rewrite: Callable[..., RewriteResult], read: str, returned: str
) -> None:
    text = code(rewrite(with_two_heads(read, returned), ["ddp"], **GPUS))
    assert "DistributedDataParallel(model, find_unused_parameters=True)" in text


@pytest.mark.parametrize(("read", "returned"), ALL_USED)
def test_outputs_that_share_all_layers_with_the_loss_are_not(
    rewrite: Callable[..., RewriteResult], read: str, returned: str
) -> None:
    text = code(rewrite(with_two_heads(read, returned), ["ddp"], **GPUS))
    assert "DistributedDataParallel(model)" in text


@pytest.mark.parametrize(
    ("given", "test", "found"),
    [("i", "level > 2", True), ("None", "level is not None", False), ("i", "level is None", False)],
)
def test_layers_that_a_count_of_steps_leaves_out_are_looked_for(
    rewrite: Callable[..., RewriteResult], given: str, test: str, found: bool
) -> None:
    source = choosing(f"if {test}:\n    x = self.third(x)", "")
    source = source.replace("def forward(self, x):", "def forward(self, x, level=0):")
    source = source.replace("for x, y in loader:", "for i, (x, y) in enumerate(loader):")
    source = source.replace("model(x)", f"model(x, {given})")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert ("find_unused_parameters=True" in text) is found
    assert "DistributedDataParallel(model" in text


@pytest.mark.parametrize("body", CONSTANT)
def test_layers_that_always_run_are_not_looked_for(
    rewrite: Callable[..., RewriteResult], body: str
) -> None:
    assert "DistributedDataParallel(model)" in code(rewrite(choosing(body, ""), ["ddp"], **GPUS))


def test_what_needs_the_network_itself_gets_it(rewrite: Callable[..., RewriteResult]) -> None:
    saving = SCRIPT.replace(
        "    return total / len(loader)",
        "    torch.save(model.state_dict(), 'last.pt')\n    return total / len(loader)",
    )
    text = code(rewrite(saving, ["ddp"], **GPUS))
    assert "torch.save((model.module if WORLD_SIZE > 1 else model).state_dict(), 'last.pt')" in text
    assert "train(ddp_model, loader, criterion, optimizer)" in text


PROJECT = {
    "train.py": """\
import torch
from data import make_loader
from engine import fit
from network import make_network

torch.manual_seed(0)
loader = make_loader(16)
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for epoch in range(2):
    fit(network, loader, optimizer)
""",
    "network.py": """\
from torch import nn


def make_network():
    model = nn.Linear(8, 3)
    model = nn.DataParallel(model)
    return model
""",
    "data.py": """\
import torch
from torch.utils.data import DataLoader, TensorDataset


def make_loader(size):
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
    return DataLoader(data, batch_size=size, shuffle=True)
""",
    "engine.py": """\
import torch


def fit(network, loader, optimizer):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
""",
}


def test_a_project_of_several_files(rewrite: Callable[..., RewriteResult]) -> None:
    result = rewrite(PROJECT, ["ddp"])
    assert {file.path.name for file in result.files if file.changed} == {
        "train.py",
        "network.py",
        "data.py",
        "engine.py",
        "launch_train.sh",
        "launch_train.sbatch",
    }
    assert "    if WORLD_SIZE > 1:\n        model = Distributed" in code(result, "network.py")
    assert "sampler=train_sampler" in code(result, "data.py")
    assert "    if RANK == 0:\n        print(global_loss)" in code(result, "engine.py")
    assert "loader.sampler.set_epoch(epoch)" in code(result)


def test_of_several_files_all_are_changed_or_none(
    rewrite: Callable[..., RewriteResult], tmp_path: Path
) -> None:
    guarded = PROJECT | {"engine.py": "# torchopt: ignore-file\n" + PROJECT["engine.py"]}
    result = rewrite(guarded, ["ddp"])
    assert not any(file.changed for file in result.files)
    assert not (tmp_path / "launch_train.sh").exists()
    assert any("suppressed" in skip.message for file in result.files for skip in file.skips)


def test_launchers(rewrite: Callable[..., RewriteResult], tmp_path: Path) -> None:
    arguments = ("--name", "it's $HOME", "--lr=0.1")
    result = rewrite(FLAT, ["ddp"], script_arguments=arguments, gpus=8)
    made = {file.path.name: file for file in result.files if file.created}
    assert sorted(made) == ["launch_train.sbatch", "launch_train.sh"]
    assert made["launch_train.sh"].original.executable
    assert "#SBATCH --gpus-per-node=8" in made["launch_train.sbatch"].text
    launcher = tmp_path / "launch_train.sh"
    launcher.write_text(made["launch_train.sh"].text)
    fake = tmp_path / "bin" / "torchrun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    fake.chmod(0o755)

    def started(*more: str, **variables: str) -> list[str]:
        env = {"PATH": f"{fake.parent}:{os.environ['PATH']}", **variables}
        command = ["bash", str(launcher), *more]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    script = [f"{tmp_path}/train.py", *arguments]
    assert started("--epochs", "2") == [
        "--standalone",
        "--nproc-per-node",
        "8",
        *script,
        "--epochs",
        "2",
    ]
    assert started(NNODES="2", RDZV_ENDPOINT="a:1", GPUS="4") == [
        *(
            "--nnodes",
            "2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-id",
            "train",
            "--rdzv-endpoint",
            "a:1",
        ),
        *("--nproc-per-node", "4", *script),
    ]


def test_a_module_of_a_package_is_launched_as_one(
    rewrite: Callable[..., RewriteResult], tmp_path: Path
) -> None:
    """Relative imports: torchrun cannot start it by its path."""
    relative = FLAT.replace("import torch\n", "import torch\nfrom . import names\n", 1)
    files = {"its/own/train.py": relative, "its/own/names.py": "", "its/own/__init__.py": ""}
    result = rewrite(files | {"its/__init__.py": ""}, ["ddp"], **GPUS)
    made = {file.path.name: file.text for file in result.files if file.created}
    command = "torchrun --standalone --nproc-per-node 2 --module its.own.train"
    assert [change.launch for file in result.files for change in file.changes] == [command]
    assert "Submit it from the folder of `its`." in made["launch_train.sbatch"]
    assert 'srun ./its/own/launch_train.sh "$@"' in made["launch_train.sbatch"]
    launcher = tmp_path / "its" / "own" / "launch_train.sh"
    launcher.write_text(made["launch_train.sh"])
    fake = tmp_path / "bin" / "torchrun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n')
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:{os.environ['PATH']}", "PYTHONPATH": "mine", "CDPATH": "."}
    shell = ["bash", "own/launch_train.sh", "--lr", "1"]
    told = subprocess.run(
        shell, cwd=tmp_path / "its", env=env, capture_output=True, text=True, check=True
    )
    arguments = "--standalone --nproc-per-node 2 --module its.own.train --lr 1"
    assert told.stdout.split(" ", 1) == [f"{tmp_path}:mine", f"{arguments}\n"]


def test_a_launcher_of_the_users_own_stays(
    rewrite: Callable[..., RewriteResult], tmp_path: Path
) -> None:
    (tmp_path / "launch_train.sh").write_text("mine\n")
    result = rewrite(FLAT, ["ddp"], **GPUS)
    assert [file.path.name for file in result.files if file.created] == ["launch_train.sbatch"]
    assert "launch_train.sh is there already" in result.files[0].changes[0].reason


def test_shell_scripts_that_start_one_process_are_told(
    rewrite: Callable[..., RewriteResult], tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(
        "# python train.py\nCUDA_VISIBLE_DEVICES=0 python3 -u ./train.py --lr 1\npython other_train.py\n"
    )
    (tmp_path / "train_all.sh").write_text("python train.pyc\npython -m train\n")
    result = rewrite(FLAT, ["ddp"], **GPUS)
    command = "torchrun --standalone --nproc-per-node 2 train.py"
    assert [given.message for given in result.files[0].advice] == [
        f"line 2 of run.sh starts it as one process; all GPUs: `{command}`"
    ]


def losses(folder: Path, script: str, processes: int) -> list[float]:
    """What ``script`` prints when it runs in ``folder``, as numbers, but for the number of the epoch."""
    (folder / "run.py").write_text(script)
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(starter if processes > 1 else []), "run.py"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(row.split()[-1]) for row in done.stdout.splitlines()]


def test_one_run_is_logged_and_a_folder_may_be_there(rewrite: Callable[..., RewriteResult]) -> None:
    logged = FLAT.replace(
        "for epoch",
        "run = wandb.init(project='x')\nif not os.path.exists('out'):\n    os.makedirs('out')\nfor epoch",
    )
    text = code(
        rewrite("import os\nimport wandb\n" + logged + "    wandb.log({})\n", ["ddp"], **GPUS)
    )
    assert "run = wandb.init(project='x', mode=None if RANK == 0 else 'disabled')" in text
    assert "os.makedirs('out', exist_ok=True)" in text
    assert text.endswith("        print(epoch, global_loss)\n        wandb.log({})\n")


def test_a_progress_bar_of_the_scripts_own(rewrite: Callable[..., RewriteResult]) -> None:
    bar = "def bar(i):\n    sys.stdout.write(str(i))\n    sys.stdout.flush()\n\n\n"
    source = "import sys\n" + FLAT.replace("data = ", bar + "data = ", 1) + "    bar(epoch)\n"
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert bar in text
    assert text.endswith("        print(epoch, global_loss)\n        bar(epoch)\n")


def test_a_function_that_trains_is_no_progress_bar(rewrite: Callable[..., RewriteResult]) -> None:
    before, loop = FLAT.split("for epoch in range(2):\n")
    body = loop.rpartition("    print(epoch")[0]
    body = body.replace("nn.functional.cross_entropy(", "criterion(")
    source = (
        before
        + "criterion = nn.CrossEntropyLoss()\n"
        + "def train(epoch):\n"
        + body
        + "        print(epoch, loss.item())\n"
        + "\n\nfor epoch in range(2):\n    train(epoch)\n"
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "        if RANK == 0:\n            print(epoch, global_loss)\n" in text
    assert text.endswith("    train(epoch)\n")


def test_loggers_of_functions_log_once(rewrite: Callable[..., RewriteResult]) -> None:
    source = (
        "import tensorboard_logger\n" + FLAT + "    tensorboard_logger.log_value('x', 1, epoch)\n"
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    told = "print(epoch, global_loss)\n        tensorboard_logger.log_value('x', 1, epoch)\n"
    assert text.endswith(f"    if RANK == 0:\n        {told}")


def test_checkpoints_are_read_onto_any_gpu_and_not_before_they_are_saved(
    rewrite: Callable[..., RewriteResult],
) -> None:
    resumed = FLAT.replace(
        "for epoch",
        "state = torch.load('old.pt')\nmodel.load_state_dict(state['model'])\nfor epoch",
    )
    after = (
        "torch.save(model.state_dict(), 'new.pt')\nmodel.load_state_dict(torch.load('new.pt'))\n"
    )
    text = code(rewrite(resumed + after, ["ddp"], **GPUS))
    assert "\nstate = torch.load('old.pt', map_location='cpu')\n" in text
    assert text.endswith("""\
if RANK == 0:
    torch.save(model.state_dict(), 'new.pt')
if WORLD_SIZE > 1:
    dist.barrier()  # until it is saved
model.load_state_dict(torch.load('new.pt', map_location='cpu'))
""")


def test_one_of_several_networks(rewrite: Callable[..., RewriteResult]) -> None:
    chosen = FLAT.replace(
        MODEL, "model = nn.Linear(8, 3) if len(data) > 9 else nn.Linear(8, 3, False)\n"
    )
    assert "ddp_model(x)" in code(rewrite(chosen, ["ddp"], **GPUS))


INSIDE = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 3)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        out = self.backbone(x)
        if y is not None:
            return self.loss(out, y)
        return out


model = nn.DataParallel(Net()).cuda()
"""


@pytest.mark.parametrize(
    ("returned", "step"),
    [
        ("self.loss(out, y)", "loss = model(x, y).mean()"),
        ("out, self.loss(out, y)", "_, loss = model(x, y)\n        loss = loss.mean()"),
    ],
)
def test_a_loss_inside_the_network(
    rewrite: Callable[..., RewriteResult], returned: str, step: str
) -> None:
    source = FLAT.replace(MODEL, INSIDE.replace("self.loss(out, y)", returned))
    source = source.replace("loss = nn.functional.cross_entropy(model(x), y)", step)
    text = code(rewrite(source, ["ddp"]))
    assert "model = DistributedDataParallel(Net().cuda(), device_ids=[LOCAL_RANK])" in text
    assert step in text


def test_a_sum_inside_the_network(check_noop: Callable[..., None]) -> None:
    summed = INSIDE.replace("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(reduction='sum')")
    source = FLAT.replace(MODEL, summed)
    step = "loss = model(x, y).mean()"
    check_noop(
        source.replace("loss = nn.functional.cross_entropy(model(x), y)", step),
        "not known to be a mean",
    )


@pytest.mark.slow
@pytest.mark.torch
def test_two_processes_train_as_one(rewrite: Callable[..., RewriteResult], tmp_path: Path) -> None:
    after = code(rewrite(SCRIPT, ["ddp"], **GPUS))
    before = losses(tmp_path, SCRIPT, 1)
    assert losses(tmp_path, after, 1) == before  # alone it is the very same training
    # one process, in the order of a DistributedSampler
    ordered = after.replace("if WORLD_SIZE > 1 else None", "if WORLD_SIZE else None")
    ordered = ordered.replace(
        "    if WORLD_SIZE > 1:\n            loader", "    if WORLD_SIZE:\n            loader"
    )
    assert ordered.count("> 1") == after.count("> 1") - 2
    ordered = ordered.replace(
        "DistributedSampler(data, seed=1)", "DistributedSampler(data, 1, 0, seed=1)"
    )
    losses(tmp_path, ordered, 1)
    one = torch_load(tmp_path / "checkpoint.pt")
    assert len(losses(tmp_path, after, 2)) == len(before)  # told once
    two = torch_load(tmp_path / "checkpoint.pt")
    assert one.keys() == two.keys()
    for name, weights in one.items():
        np.testing.assert_allclose(weights, two[name], rtol=1e-4, atol=1e-6)


def torch_load(path: Path) -> dict[str, Any]:
    """The weights in the checkpoint that ``SCRIPT`` saves, as arrays."""
    import torch

    weights: dict[str, Any] = torch.load(path)["model"]
    return {name: weight.numpy() for name, weight in weights.items()}
