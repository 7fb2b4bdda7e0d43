"""Batches in pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.options import Target

Check = Callable[..., None]

IMPORTS = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms
"""
TRAIN = """\
model = nn.Linear(784, 10).cuda()
for x, y in loader:
    model(x.cuda()).sum().backward()
"""
DEVICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
TO_DEVICE = TRAIN.replace(".cuda()", ".to(device)")
MNIST = 'dataset = datasets.MNIST("data")\n'


def script(loader: str, train: str = TRAIN, dataset: str = MNIST) -> str:
    return IMPORTS + dedent(dataset) + dedent(loader) + dedent(train)


# What is emitted


TWO_LOADERS = """\
use_cuda = torch.cuda.is_available()
if {}:
    loader = DataLoader(dataset, 4, pin_memory=True)
else:
    loader = DataLoader(dataset, 4, pin_memory=False)
"""


def test_loader_of_runs_without_a_gpu(check_noop: Check) -> None:
    said = "this loader is made where the script uses no GPU (`use_cuda`)"
    check_noop(script(TWO_LOADERS.format("use_cuda")), said)
    turned = TWO_LOADERS.replace("True", "no").replace("False", "True").replace("no)", "False)")
    check_noop(script(turned.format("not use_cuda")), said)


def test_loader_of_runs_on_one_gpu(check_transformed: Check) -> None:
    source = TWO_LOADERS.format("use_cuda and torch.cuda.device_count() > 1")
    check_transformed(script(source), script(source.replace("False", "use_cuda")))


def test_cuda_only_script(check_transformed: Check) -> None:
    check_transformed(
        script("loader = DataLoader(dataset, 4)\n"),
        script("loader = DataLoader(dataset, 4, pin_memory=True)\n"),
    )


@pytest.mark.parametrize(
    "train",
    [
        TRAIN.replace("    model(x.cuda())", "    x = x.contiguous()\n    model(x.cuda())"),
        "def to_gpu(x):\n    x = x.contiguous()\n    return x.cuda()\n"
        + TRAIN.replace("x.cuda()", "to_gpu(x)"),
        "inputs = torch.empty(4, 784).cuda()\n"
        + TRAIN.replace(
            "    model(x.cuda())", "    inputs.data.resize_(x.size()).copy_(x)\n    model(inputs)"
        ),
    ],
)
def test_copies_of_other_forms(check_transformed: Check, train: str) -> None:
    check_transformed(
        script("loader = DataLoader(dataset, 4)\n", train),
        script("loader = DataLoader(dataset, 4, pin_memory=True)\n", train),
    )


def test_a_copy_to_the_host_is_none(check_noop: Check) -> None:
    train = "inputs = torch.empty(4, 784)\nfor x, y in loader:\n    inputs.copy_(x)\nmodel = nn.Linear(784, 10).cuda()\n"
    check_noop(script("loader = DataLoader(dataset, 4)\n", train), "no copy of its batches")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dataset, pin_memory=False", "dataset, pin_memory=True"),
        (
            "dataset, 4, True, None, None, 2, None, False",
            "dataset, 4, True, None, None, 2, None, True",
        ),
        ("dataset, **{'batch_size': 4}", "dataset, **{'batch_size': 4, 'pin_memory': True}"),
        ("**dict(dataset=dataset, pin_memory=False)", "**dict(dataset=dataset, pin_memory=True)"),
    ],
)
def test_false_and_keyword_dicts(check_transformed: Check, before: str, after: str) -> None:
    check_transformed(
        script(f"loader = DataLoader({before})\n"), script(f"loader = DataLoader({after})\n")
    )


@pytest.mark.parametrize(
    ("setting", "condition"),
    [
        (DEVICE, 'device.type == "cuda"'),
        ("use_cuda = torch.cuda.is_available()\n" + DEVICE, "use_cuda"),
        (
            "args = argparse.Namespace()\nargs.cuda = torch.cuda.is_available()\n" + DEVICE,
            "args.cuda",
        ),
        ('device = "cuda" if torch.cuda.is_available() else "cpu"\n', 'device == "cuda"'),
        ('device = torch.device("cuda")\n', "True"),
    ],
)
def test_the_script_s_own_condition(check_transformed: Check, setting: str, condition: str) -> None:
    check_transformed(
        script(setting + "loader = DataLoader(dataset)\n", TO_DEVICE),
        script(setting + f"loader = DataLoader(dataset, pin_memory={condition})\n", TO_DEVICE),
    )


IS_THERE_ONE = "torch.cuda.is_available()"


@pytest.mark.parametrize(
    ("setting", "condition"),
    [
        ("loader = DataLoader(dataset{})\n" + DEVICE, IS_THERE_ONE),
        (
            f"if dataset:\n{indent(DEVICE, '    ')}" + "loader = DataLoader(dataset{})\n",
            IS_THERE_ONE,
        ),
        (DEVICE + "loader = DataLoader(dataset{})\n" + 'device = torch.device("cuda:1")\n', "True"),
    ],
    ids=["set below", "set in a branch", "set again"],
)
def test_a_name_that_may_not_hold_is_not_used(
    check_transformed: Check, setting: str, condition: str
) -> None:
    check_transformed(
        script(setting.format(""), TO_DEVICE),
        script(setting.format(f", pin_memory={condition}"), TO_DEVICE),
    )


def test_device_of_the_file_seen_from_a_function(check_transformed: Check) -> None:
    make = """\
        def make():
            return DataLoader(dataset{})


        {}loader = make()
    """
    condition = ', pin_memory=device.type == "cuda"'
    check_transformed(
        script(dedent(make).format("", DEVICE), TO_DEVICE),
        script(dedent(make).format(condition, DEVICE), TO_DEVICE),
    )
    too_late = "def make():\n    return DataLoader(dataset{})\n\n\nloader = make()\n" + DEVICE
    check_transformed(
        script(too_late.format(""), TO_DEVICE),
        script(too_late.format(f", pin_memory={IS_THERE_ONE}"), TO_DEVICE),
    )


WITHOUT_A_NAME = """
    import argparse

    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms


    def make():
        digits = datasets.MNIST("data", transform=transforms.ToTensor())
        return DataLoader(digits{0})


    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = nn.Linear(784, 10)
    {1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in make():
        {2}
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.flatten(1)), y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("move", "copy", "condition"),
    [
        (
            "if torch.cuda.is_available():\n    model.cuda()",
            "if torch.cuda.is_available():\n        x, y = x.cuda(), y.cuda()",
            "torch.cuda.is_available()",
        ),
        (
            "model.to(args.device)",
            "x, y = x.to(args.device), y.to(args.device)",
            'torch.device(args.device).type == "cuda"',
        ),
        ("model.cuda()", "x, y = x.cuda(), y.cuda()", "True"),
    ],
)
def test_a_device_without_a_name_of_its_own(
    check_transformed: Check, move: str, copy: str, condition: str
) -> None:
    before, after = (
        dedent(WITHOUT_A_NAME).format(argument, move, copy)
        for argument in ("", f", pin_memory={condition}")
    )
    check_transformed(before, after, target=Target.CUDA)


def test_quotes_are_those_of_the_file(check_transformed: Check) -> None:
    make = "loader = DataLoader(dataset{})\n"
    device = DEVICE.replace('"', "'")
    check_transformed(
        script(device + make.format(""), TO_DEVICE).replace('"', "'"),
        script(device + make.format(", pin_memory=device.type == 'cuda'"), TO_DEVICE).replace(
            '"', "'"
        ),
    )


def test_device_as_a_parameter(check_transformed: Check) -> None:
    make = (
        "def make(device):\n    return DataLoader(dataset{})\n\n\n"
        + DEVICE
        + "loader = make(device)\n"
    )
    check_transformed(
        script(make.format(""), TO_DEVICE),
        script(make.format(', pin_memory=device.type == "cuda"'), TO_DEVICE),
    )


SHARED = """\
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Client:
    def __init__(self, args):
        self.args = args
        device = {}
        digits = datasets.MNIST("data", transform=transforms.ToTensor())
        self.loader = DataLoader(digits{})

    def train(self, model, optimizer):
        for x, y in self.loader:
            x, y = x.to(self.args.device), y.to(self.args.device)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x.flatten(1)), y).backward()
            optimizer.step()
"""
MAIN = """\
import argparse

import torch

from client import Client

args = argparse.ArgumentParser().parse_args()
args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(784, 10).to(args.device)
Client(args).train(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.parametrize(
    ("device", "is_shared", "condition"),
    [
        ("args.device", False, 'args.device.type == "cuda"'),
        ("args.device", True, "torch.cuda.is_available()"),
        ("torch.device(args.device)", True, 'device.type == "cuda"'),
    ],
)
def test_a_function_that_another_script_uses_with_other_devices(
    check_transformed: Check, device: str, is_shared: bool, condition: str
) -> None:
    before = {"main.py": MAIN, "client.py": SHARED.format(device, "")}
    if is_shared:
        before["other.py"] = MAIN.replace("torch.device(", "str(")
    after = {**before, "client.py": SHARED.format(device, f", pin_memory={condition}")}
    check_transformed(before, after)


@pytest.mark.parametrize(
    "loader",
    [
        "kwargs = {{'num_workers': 1{}}} if use_cuda else {{}}\nloader = DataLoader(dataset, **kwargs)\n",
        """\
kwargs = {{'batch_size': 4}}
if use_cuda:
    kwargs.update({{'num_workers': 1{}}})
loader = DataLoader(dataset, **kwargs)
""",
    ],
)
def test_dict_that_is_only_used_on_cuda(check_transformed: Check, loader: str) -> None:
    flag = "use_cuda = torch.cuda.is_available()\n"
    check_transformed(
        script(flag + loader.format("")), script(flag + loader.format(", 'pin_memory': True"))
    )


def test_dict_of_a_loader_that_says_it_in_its_call(check_transformed: Check) -> None:
    loader = """\
        kwargs = {{"batch_size": 4}}
        loader = DataLoader(dataset{}, **kwargs)
        other = DataLoader(dataset, pin_memory=True, **kwargs)
    """
    check_transformed(script(loader.format("")), script(loader.format(", pin_memory=True")))


COPIES = {
    "cuda with a rank": "for x, y in loader:\n    model(x.cuda(0))\n",
    "inside the call": "for x, y in loader:\n    model(x.to('cuda'))\n",
    "enumerate and tqdm": "for i, (x, y) in enumerate(tqdm(loader)):\n    x = x.to('cuda')\n",
    "dict": "for batch in loader:\n    batch = {k: v.to('cuda') for k, v in batch.items()}\n",
    "nested": "for x, (y, z) in loader:\n    z = z.to('cuda')\n",
    "by hand": "batches = iter(loader)\nx, y = next(batches)\nx = x.to('cuda')\n",
    "helper": "def move(t):\n    return t.to('cuda')\nfor x, y in loader:\n    model(move(x))\n",
    "legacy type": "for x, y in loader:\n    x = x.type(torch.cuda.FloatTensor)\n",
    "attribute": """\
class Trainer:
    def fit(self, batches):
        for self.x, y in batches:
            y = y.cuda()
Trainer().fit(loader)
""",
}


@pytest.mark.parametrize("loop", COPIES.values(), ids=COPIES)
def test_ways_to_copy(check_transformed: Check, loop: str) -> None:
    train = "from tqdm import tqdm\nmodel = nn.Linear(784, 10).cuda()\n" + loop
    check_transformed(
        script("loader = DataLoader(dataset)\n", train),
        script("loader = DataLoader(dataset, pin_memory=True)\n", train),
    )


# What is left alone


def test_cpu_script(check_noop: Check) -> None:
    train = TRAIN.replace(".cuda()", "")
    check_noop(script("loader = DataLoader(dataset)\n", train), "the script does not use a GPU")


def test_cpu_target(check_noop: Check) -> None:
    check_noop(script("loader = DataLoader(dataset)\n"), "does not use a GPU", target="cpu")


@pytest.mark.parametrize("value", ["True", "args.pin", "torch.cuda.is_available()"])
def test_said_already(check_noop: Check, value: str) -> None:
    check_noop(
        script(
            f"args = argparse.Namespace(pin=False)\nloader = DataLoader(dataset, pin_memory={value})\n"
        )
    )


def test_false_by_a_parameter(check_noop: Check) -> None:
    loader = """\
        def make(pin=False):
            return DataLoader(dataset, pin_memory=pin)
        loader = make()
    """
    check_noop(script(loader), "`pin_memory=pin` is always False")


@pytest.mark.parametrize(
    "condition", ['device == "cuda"', '"cuda" == device', '(True if device == "cuda" else False)']
)
def test_false_by_a_device_that_equals_no_text(check_noop: Check, condition: str) -> None:
    """``torch.device("cuda") == "cuda"`` is False, ``device.type`` is the text."""
    loader = (
        f"device = torch.device('cuda')\nloader = DataLoader(dataset, pin_memory={condition})\n"
    )
    check_noop(script(loader), f"`pin_memory={condition.strip('()')}` is always False")


@pytest.mark.parametrize("device", ['"cuda"', "args.device", 'torch.device("cuda").type'])
def test_true_by_a_device_that_may_be_the_text(check_noop: Check, device: str) -> None:
    loader = f"args = argparse.Namespace(device=name)\nloader = DataLoader(dataset, pin_memory={device} == 'cuda')\n"
    check_noop(script(loader), silent=True)


def test_no_copy(check_noop: Check) -> None:
    train = "model = nn.Linear(784, 10).cuda()\nfor x, y in loader:\n    print(x)\n"
    check_noop(script("loader = DataLoader(dataset)\n", train), "no copy of its batches to a GPU")


def test_copy_to_the_host(check_noop: Check) -> None:
    train = (
        "model = nn.Linear(784, 10).cuda()\nfor x, y in loader:\n    print(x.cpu(), y.to('cpu'))\n"
    )
    check_noop(script("loader = DataLoader(dataset)\n", train), "no copy of its batches to a GPU")


def test_copy_of_a_converted_batch(check_transformed: Callable[..., None]) -> None:
    """Which can be converted on the GPU: see `non-blocking`."""
    train = "for x, y in loader:\n    x = x.float().cuda()\n"
    check_transformed(
        script("loader = DataLoader(dataset)\n", train),
        script("loader = DataLoader(dataset, pin_memory=True)\n", train),
    )


def test_copy_of_something_computed(check_noop: Check) -> None:
    train = "for x, y in loader:\n    x = (x / 255).cuda()\n"
    check_noop(
        script("loader = DataLoader(dataset)\n", train),
        "not the batch itself but computed from it (line 9)",
    )


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (
            "dataset = TensorDataset(torch.rand(9, 3).cuda())\n",
            "`torch.rand(9, 3).cuda()` uses the GPU",
        ),
        ("dataset = torch.rand(9, 3, device='cuda')\n", "on the GPU already"),
        ("dataset = torch.rand(9, 3)\ndataset = dataset.cuda()\n", "on the GPU already"),
        (
            "images = torch.rand(9, 3, device='cuda')\ndataset = TensorDataset(images)\n",
            "on the GPU already",
        ),
        (
            """\
            class Items(Dataset):
                def __getitem__(self, i):
                    return torch.load(str(i)).to("cuda")
            dataset = Items()
            """,
            "on the GPU already",
        ),
    ],
)
def test_batches_on_the_gpu(check_noop: Check, dataset: str, said: str) -> None:
    said = "its batches may be on the GPU already"
    check_noop(script("loader = DataLoader(dataset)\n", dataset=dataset), said)


def test_batches_that_go_to_a_device_out_of_sight(check_noop: Check) -> None:
    train = """\
        class Client:
            def __init__(self, device):
                self.loader = DataLoader(dataset, 4)
                self.device = device
            def train(self, model):
                for x, y in self.loader:
                    model(x.to(self.device)).sum().backward()
    """
    said = "its batches go to `self.device`, which could not be traced to a device"
    check_noop(script("", train), said, target=Target.CUDA)


def test_collate_function_that_copies(check_noop: Check) -> None:
    loader = """\
        def collate(batch):
            return torch.stack(batch).cuda(), 0
        loader = DataLoader(dataset, collate_fn=collate)
    """
    check_noop(script(loader), "on the GPU already (line 8)")


BATCH = """\
class Batch:
    def __init__(self, items):
        self.x = torch.stack(items)
{}
def collate(items):
    return Batch(items)

loader = DataLoader(dataset, collate_fn=collate{})
"""
BATCH_LOOP = "for batch in loader:\n    print(batch.x.cuda())\n"


def test_batch_of_a_class_that_cannot_be_pinned(check_noop: Check) -> None:
    check_noop(
        script(BATCH.format("", ""), BATCH_LOOP), "`Batch` objects, which have no pin_memory()"
    )


def test_batch_of_a_class_that_can_be_pinned(check_transformed: Check) -> None:
    method = (
        "    def pin_memory(self):\n        self.x = self.x.pin_memory()\n        return self\n"
    )
    check_transformed(
        script(BATCH.format(method, ""), BATCH_LOOP),
        script(BATCH.format(method, ", pin_memory=True"), BATCH_LOOP),
    )


def test_dataclass_cannot_be_pinned(check_noop: Check) -> None:
    loader = """\
        from dataclasses import dataclass
        @dataclass
        class Batch:
            x: torch.Tensor
        def collate(items):
            return Batch(torch.stack(items))
        loader = DataLoader(dataset, collate_fn=collate)
    """
    check_noop(script(loader, BATCH_LOOP), "`Batch` objects, which have no pin_memory()")


@pytest.mark.parametrize(
    "batch", ["torch.stack(items).to_sparse()", "torch.sparse_coo_tensor(*zip(*items))"]
)
def test_sparse_batches(check_noop: Check, batch: str) -> None:
    loader = f"""\
        def collate(items):
            return {batch}, 0
        loader = DataLoader(dataset, collate_fn=collate)
    """
    check_noop(script(loader), "its batches are sparse tensors (line 8)")


OTHER_DEVICES = {
    "Apple": 'device = torch.device("mps")\n',
    "TPU": "import torch_xla.core.xla_model as xm\ndevice = xm.xla_device()\n",
    "host": 'device = "cpu"\n',
    "host by default": (
        'parser = argparse.ArgumentParser()\nparser.add_argument("--device", default="cpu")\n'
        "device = parser.parse_args().device\n"
    ),
}


@pytest.mark.parametrize("device", OTHER_DEVICES.values(), ids=OTHER_DEVICES)
def test_other_devices(check_noop: Check, device: str) -> None:
    check_noop(script(device + "loader = DataLoader(dataset)\n", TO_DEVICE), "does not use a GPU")


LOOPS_WITHOUT_COPIES = {
    "only counted": "print(len(loader))\n",
    "only the size is used": "for x, y in loader:\n    z = torch.randn(x.size(0), 3).cuda()\n",
    "prepared by a library": (
        "from somewhere import Accelerator\nloader = Accelerator().prepare(loader)\n"
        "for x, y in loader:\n    model(x).sum().backward()\n"
    ),
}


@pytest.mark.parametrize("loop", LOOPS_WITHOUT_COPIES.values(), ids=LOOPS_WITHOUT_COPIES)
def test_batches_that_are_not_copied(check_noop: Check, loop: str) -> None:
    train = "model = nn.Linear(784, 10).cuda()\n" + loop
    check_noop(script("loader = DataLoader(dataset)\n", train), "no copy of its batches to a GPU")


COMPUTED = {
    "one hot": "nn.functional.one_hot(y, 10)",
    "by way of an array": "torch.tensor(x.numpy())",
    "joined": "torch.cat([x, x])",
    "pinned by hand": "x.pin_memory()",
}


@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
def test_copies_of_what_is_computed(check_noop: Check, computed: str) -> None:
    train = f"for x, y in loader:\n    z = {computed}.cuda()\n"
    check_noop(
        script("loader = DataLoader(dataset)\n", train), "not the batch itself but computed from it"
    )


def test_arrays(check_noop: Check) -> None:
    loader = """\
        import numpy as np
        def collate(items):
            return np.stack(items)
        loader = DataLoader(dataset, collate_fn=collate)
    """
    train = "for batch in loader:\n    torch.from_numpy(batch).cuda()\n"
    check_noop(script(loader, train), "not the batch itself but computed from it")


def test_dataset_that_keeps_its_items_on_a_device_it_is_given(check_noop: Check) -> None:
    dataset = """\
        class Items(Dataset):
            def __init__(self, device):
                self.x = torch.rand(9, 3, device=device)
            def __getitem__(self, i):
                return self.x[i], 0
        dataset = Items("cuda")
    """
    said = "on the GPU already (line 10)"
    check_noop(script("loader = DataLoader(dataset)\n", dataset=dataset), said)


def test_stream_of_batches_on_the_gpu(check_noop: Check) -> None:
    dataset = """\
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                for i in range(9):
                    yield torch.rand(3).cuda(), 0
        dataset = Stream()
    """
    said = "on the GPU already (line 9)"
    check_noop(script("loader = DataLoader(dataset)\n", dataset=dataset), said)


OTHER_LOADERS = {
    "of another library": "from torch_geometric.loader import DataLoader\nloader = DataLoader(dataset)\n",
    "of the project": (
        "class DataLoader:\n    def __init__(self, dataset):\n        self.dataset = dataset\n"
        "loader = DataLoader(dataset)\n"
    ),
    "derived, pinned by its class": (
        "class Pinned(DataLoader):\n    def __init__(self, dataset):\n"
        "        super().__init__(dataset, pin_memory=True)\nloader = Pinned(dataset)\n"
    ),
}


@pytest.mark.parametrize("loader", OTHER_LOADERS.values(), ids=OTHER_LOADERS)
def test_other_loaders(check_noop: Check, loader: str) -> None:
    check_noop(script(loader))


def test_dataset_that_cannot_be_traced(check_noop: Check) -> None:
    check_noop(
        script("loader = DataLoader(dataset)\n", dataset="dataset = globals()['d']\n"),
        "what `dataset` is cannot be traced",
    )


def test_arguments_that_cannot_be_resolved(check_noop: Check) -> None:
    loader = "import json\nloader = DataLoader(dataset, **json.load(open('x')))\n"
    check_noop(script(loader), "cannot be resolved, it may say so already")


@pytest.mark.parametrize(
    "call",
    [
        'torch.set_default_device("cuda")',
        "torch.set_default_tensor_type(torch.cuda.FloatTensor)",
        'torch.set_default_tensor_type("torch.cuda.FloatTensor")',
    ],
)
def test_default_device(check_noop: Check, call: str) -> None:
    loader = f"{call}\nloader = DataLoader(dataset)\n"
    check_noop(script(loader), "new tensors are made on the GPU by default")


def test_keyword_dict_shared_with_a_loader_that_must_not(check_noop: Check) -> None:
    loader = """\
        kwargs = {"batch_size": 4}
        loader = DataLoader(dataset, **kwargs)
        other = DataLoader(TensorDataset(torch.rand(9, 3).cuda()), **kwargs)
    """
    check_noop(script(loader), "it shares its arguments with a loader that must not")


VERIFIED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
dataset = datasets.FakeData(24, (3, 8, 8), 4, transform=augment)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""


@pytest.mark.torch
@pytest.mark.slow
def test_training_is_the_same(check_verified: Check) -> None:
    check_verified(VERIFIED)


def test_said_in_a_dict_afterwards(check_noop: Check) -> None:
    """Said in the call as well, it would be given twice."""
    loader = """\
        kwargs = dict(batch_size=64)
        if torch.cuda.is_available():
            kwargs.update(pin_memory=False)
        loader = DataLoader(dataset, **kwargs)
    """
    check_noop(script(loader), "is put into a keyword dict at line")


LIGHTNING = """\
import torch
import lightning as L
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets


class Net(L.LightningModule):
    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.layer(x), y)


loader = DataLoader(datasets.MNIST("data"), 4{})
trainer = L.Trainer(max_epochs=3{})
trainer.fit(Net(), loader)
"""


@pytest.mark.parametrize(
    ("accelerator", "value"),
    [
        ("", "torch.cuda.is_available()"),
        (', accelerator="auto"', "torch.cuda.is_available()"),
        (', accelerator="gpu"', "True"),
    ],
)
def test_batches_that_lightning_copies(
    check_transformed: Check, accelerator: str, value: str
) -> None:
    check_transformed(
        LIGHTNING.format("", accelerator), LIGHTNING.format(f", pin_memory={value}", accelerator)
    )


def test_a_trainer_on_the_cpu(check_noop: Check) -> None:
    check_noop(LIGHTNING.format("", ', accelerator="cpu"'), "the script does not use a GPU")


ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets

accelerator = Accelerator({})
loader = DataLoader(datasets.MNIST("data"), 4{})
model = nn.Linear(784, 10)
model, loader = accelerator.prepare(model, loader)
for x, y in loader:
    accelerator.backward(model(x).sum())
"""


@pytest.mark.parametrize("where", ["", "cpu=args.cpu"])
def test_batches_that_accelerate_copies(check_transformed: Check, where: str) -> None:
    check_transformed(
        ACCELERATE.format(where, ""),
        ACCELERATE.format(where, ", pin_memory=torch.cuda.is_available()"),
        target=Target.CUDA,
    )


def test_batches_that_accelerate_leaves_on_the_host(check_noop: Check) -> None:
    text = ACCELERATE.format("device_placement=False", "")
    check_noop(text, "no copy of its batches to a GPU", target=Target.CUDA)


def test_items_that_may_lie_on_the_gpu(check_noop: Check) -> None:
    items = "from torch.utils.data import TensorDataset\nfrom cache import latents\n"
    text = items + ACCELERATE.replace('datasets.MNIST("data")', "TensorDataset(latents)")
    check_noop(text.format("", ""), "which may be the GPU's", target=Target.CUDA)


ENDLESS = """
def endless(loader):
    batches = iter(loader)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            batches = iter(loader)
            yield next(batches)

loader = DataLoader(dataset, 4{})
"""


@pytest.mark.parametrize(
    ("bar", "header"),
    [
        ("bar = tqdm(enumerate(endless(loader)))", "for i, (x, y) in bar:"),
        ("bar = tqdm(endless(loader))", "for x, y in bar:"),
        ("loader = tqdm(endless(loader))", "for x, y in loader:"),
        ("", "for x, y in tqdm(endless(loader)):"),
    ],
)
def test_progress_bar_over_an_endless_generator(
    check_transformed: Check, bar: str, header: str
) -> None:
    train = TRAIN.replace("for x, y in loader:", f"{bar}\n{header}")
    before = "from tqdm import tqdm\n" + script(ENDLESS.format(""), train)
    after = "from tqdm import tqdm\n" + script(ENDLESS.format(", pin_memory=True"), train)
    check_transformed(before, after)


def test_a_loader_that_is_made_again_when_it_ends(check_transformed: Check) -> None:
    make = """
    def batches(dataset):
        loader = DataLoader(dataset, 4{0})
        loader = iter(loader)
        while True:
            try:
                yield next(loader)
            except StopIteration:
                loader = DataLoader(dataset, 4{0})
                loader = iter(loader)
                yield next(loader)
    """
    train = TRAIN.replace("for x, y in loader:", "for x, y in batches(dataset):")
    check_transformed(
        script(make.format(""), train), script(make.format(", pin_memory=True"), train)
    )
