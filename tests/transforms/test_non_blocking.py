"""Copies of batches that do not wait."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

Check = Callable[..., None]

IMPORTS = """\
import os
import torch
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader
from torchvision import datasets
from tqdm import tqdm

use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
model = nn.Linear(784, 10).to(device)
loader = DataLoader(datasets.MNIST("data"), 64, pin_memory=use_cuda)
"""


def script(loop: str) -> str:
    return IMPORTS + dedent(loop)


NB = "non_blocking=True"

LOOPS = {
    "to": "for x, y in loader:\n    x, y = x.to(device{0}), y.to(device{0})\n",
    "cuda": "for x, y in loader:\n    if use_cuda:\n        x = x.cuda({1})\n",
    "cuda with a rank": "for x, y in loader:\n    x = x.cuda(0{0})\n",
    "rank of the environment": (
        'local_rank = int(os.environ["LOCAL_RANK"])\nfor x, y in loader:\n    x = x.to(local_rank{0})\n'
    ),
    "in a branch, then a network that works in place": (
        "net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())\n"
        "for x, y in loader:\n    if use_cuda:\n        x, y = x.cuda({1}), y.cuda({1})\n    net(x)\n"
    ),
    "in one of two branches, then a network that works in place": (
        "net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())\n"
        "for x, y in loader:\n    if use_cuda:\n        x = Variable(x.cuda({1}))\n"
        "    else:\n        x = Variable(x)\n    net(x)\n"
    ),
    "in an expression, then a network that works in place": (
        "net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())\n"
        "for x, y in loader:\n    x = x.cuda({1}) if use_cuda else x\n    net(x)\n"
    ),
    "from a generator": (
        "def endless():\n    while True:\n        for x, y in loader:\n            yield x\n\n\n"
        "batches = endless()\nfor step in range(1000):\n    x = next(batches).to(device{0})\n"
    ),
    "of a list or a tensor, in training and in evaluation": "\n\n".join(
        f"def {name}():\n    for x, y in loader:\n        if type(x) == type([]):\n"
        "            x[0] = x[0].to(device{0})\n        else:\n            x = x.to(device{0})\n"
        for name in ("train", "test")
    ),
    "with a dtype": "for x, y in loader:\n    x = x.to(device, torch.float32{0})\n",
    "keyword": "for x, y in loader:\n    x = x.to(device=device{0})\n",
    "inside the call": "for x, y in loader:\n    model(x.to(device{0}))\n",
    "of the model": "for x, y in loader:\n    x = x.to(next(model.parameters()).device{0})\n",
    "view": "for x, y in loader:\n    x = x.view(-1, 784).to(device{0})\n",
    "reshape": "for x, y in loader:\n    x = x.reshape(x.size(0), -1).to(device{0})\n",
    "element": "for batch in loader:\n    x = batch[0].to(device{0})\n",
    "slice": "for x, y in loader:\n    x = x[:, 0].to(device{0})\n",
    "enumerate and tqdm": "for i, (x, y) in enumerate(tqdm(loader)):\n    x = x.to(device{0})\n",
    "dict": "for batch in loader:\n    batch = {{k: v.to(device{0}) for k, v in batch.items()}}\n",
    "dict item": 'for batch in loader:\n    x = batch["image"].to(device{0})\n',
    "dict in place": (
        "for batch in loader:\n    for key in batch.keys():\n        batch[key] = batch[key].to(device{0})\n"
    ),
    "dict in place, in two loops": "".join(
        "for batch in loader:\n    for key, value in batch.items():\n        batch[key] = value.to(device{0})\n"
        for name in ("train", "test")
    ),
    "list": "for batch in loader:\n    x, y = [t.to(device{0}) for t in batch]\n",
    "generator": "for batch in loader:\n    x, y = (t.to(device{0}) for t in batch)\n",
    "map": "for batch in loader:\n    x, y = map(lambda t: t.to(device{0}), batch)\n",
    "nested": "for x, (y, z) in loader:\n    z = z.to(device{0})\n",
    "legacy Variable": "for x, y in loader:\n    x = Variable(x).cuda({1})\n",
    "two loaders": (
        "second = DataLoader(datasets.MNIST('b'), pin_memory=True)\n"
        "for (a, _), (b, _) in zip(loader, second):\n    a, b = a.to(device{0}), b.to(device{0})\n"
    ),
    "by hand": "batches = iter(loader)\nx, y = next(batches)\nx = x.to(device{0})\n",
    "helper": (
        "def move(batch, target):\n    return [t.to(target{0}) for t in batch]\n\n\n"
        "for batch in loader:\n    x, y = move(batch, device)\n"
    ),
    "function": (
        "def train(model, batches, device):\n    for x, y in batches:\n        model(x.to(device{0}))\n\n\n"
        "train(model, loader, device)\n"
    ),
    "method": (
        "class Trainer:\n    def __init__(self, batches):\n        self.batches = batches\n        self.device = device\n\n"
        "    def fit(self):\n        for x, y in self.batches:\n            model(x.to(self.device{0}))\n\n\n"
        "Trainer(loader).fit()\n"
    ),
    "source is read afterwards": "for x, y in loader:\n    z = x.to(device{0})\n    print(x.mean())\n",
    "copy is written to": "for x, y in loader:\n    x = x.to(device{0})\n    x += 1\n    x[0] = 2\n    x.mul_(2)\n",
    "source is written to before": "for x, y in loader:\n    x[0] = 2\n    x = x.to(device{0})\n",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_copies_of_pinned_batches(check_transformed: Check, loop: str) -> None:
    check_transformed(script(loop.format("", "")), script(loop.format(f", {NB}", NB)))


CONVERTED = {
    "to float": ("x.float().to(device)", "x.to(device, {0}).float()"),
    "to integers": ("y.long().cuda()", "y.cuda({0}).long()"),
    "keyword": ("x.double().to(device=device)", "x.to(device=device, {0}).double()"),
    "by its type": ("x.to(torch.float32).to(device)", "x.to(device, {0}).to(torch.float32)"),
    "view of it": ("x.float().view(64, -1).to(device)", "x.to(device, {0}).float().view(64, -1)"),
    "of a view": ("x[0].view(-1).half().to(device)", "x[0].view(-1).to(device, {0}).half()"),
    "element": (
        "x[:, 0].unsqueeze(1).long().to(device)",
        "x[:, 0].unsqueeze(1).to(device, {0}).long()",
    ),
}


@pytest.mark.parametrize(("copy", "becomes"), CONVERTED.values(), ids=CONVERTED)
def test_batches_that_are_converted_first(
    check_transformed: Check, copy: str, becomes: str
) -> None:
    loop = "for x, y in loader:\n    z = model({0})\n"
    check_transformed(script(loop.format(copy)), script(loop.format(becomes.format(NB))))


NOT_MOVED = {
    "type of the host": "x.type(torch.FloatTensor).to(device)",
    "to a type that is not seen": "x.to(kind).to(device)",
    "bytes": "x.byte().to(device)",
    "computed": "(x / 255).float().to(device)",
    "in a second line": "x.float(\n    ).to(device)",
}


@pytest.mark.parametrize("copy", NOT_MOVED.values(), ids=NOT_MOVED)
def test_what_must_be_converted_first(check_noop: Check, copy: str) -> None:
    check_noop(script(f"def train(kind):\n    for x, y in loader:\n        z = {copy}\n"))


def test_a_conversion_that_apples_gpu_needs_on_the_host(check_noop: Check) -> None:
    """It has no float64: ``x.to("mps").float()`` fails where ``x.float().to("mps")`` does not."""
    choice = "device = torch.device('mps' if torch.backends.mps.is_available() else device)\n"
    check_noop(script(f"{choice}for x, y in loader:\n    x = x.float().to(device)\n"))


def test_a_converted_batch_that_is_written_to(check_noop: Check) -> None:
    """Where it is of that type already, the conversion gives the batch itself."""
    loop = "for x, y in loader:\n    z = x.float().to(device)\n    x.zero_()\n"
    check_noop(script(loop), "the batch is written to while the copy may still read it")


def test_after_pinning(check_with: Check) -> None:
    before = (
        IMPORTS.replace(", pin_memory=use_cuda", "{}")
        + "for x, y in loader:\n    x = x.to(device{})\n"
    )
    check_with(
        ["pin-memory", "non-blocking"],
        before.format("", ""),
        before.format(", pin_memory=use_cuda", f", {NB}"),
    )


LEFT_ALONE = {
    "said already": ("for x, y in loader:\n    x = x.to(device, non_blocking=True)\n", None),
    "said by position": ("for x, y in loader:\n    x = x.cuda(0, False)\n", None),
    "model": ("model.to(device)\nmodel.cuda()\n", None),
    "to the host": (
        "for x, y in loader:\n    x = x.to('cpu')\n    y = model(x.to(torch.float16)).cpu()\n",
        None,
    ),
    "output to the host": ("for x, y in loader:\n    z = model(x).to('cpu')\n", None),
    "dtype only": ("for x, y in loader:\n    x = x.to(torch.float16)\n", None),
    "something else": ("for x, y in loader:\n    z = torch.ones(3).to(device)\n", None),
    "computed": (
        "for x, y in loader:\n    x = x.sqrt().to(device)\n",
        "`x.sqrt()` is computed from the batch, and its new memory is not pinned",
    ),
    "arithmetic": (
        "for x, y in loader:\n    x = (x / 255).to(device)\n",
        "`x / 255` is computed from the batch",
    ),
    "tensor index": (
        "for x, y in loader:\n    x = x[y].to(device)\n",
        "`x[y]` is computed from the batch",
    ),
    "library function": (
        "for x, y in loader:\n    x = torch.cat([x, x]).to(device)\n",
        "is computed from the batch",
    ),
    "type": (
        "for x, y in loader:\n    x = x.type(torch.cuda.FloatTensor)\n",
        "`.type(..)` converts while it copies",
    ),
    "unpinned loader": (
        "other = DataLoader(datasets.MNIST('b'))\nfor x, y in other:\n    x = x.to(device)\n",
        "the loader (line 13) does not pin its memory",
    ),
    "loader that says no": (
        "other = DataLoader(datasets.MNIST('b'), pin_memory=False)\nfor x, y in other:\n    x = x.to(device)\n",
        "does not pin its memory",
    ),
    "loader whose settings are not in sight": (
        "import config\nother = DataLoader(datasets.MNIST('b'), **config.loader)\n"
        "for x, y in other:\n    x = x.to(device)\n",
        "is not known to pin its memory, which `config.loader` may say",
    ),
    "helper of two loaders, one unpinned": (
        """\
        other = DataLoader(datasets.MNIST('b'))
        def move(t):
            return t.to(device)
        for x, y in loader:
            move(x)
        for x, y in other:
            move(x)
        """,
        "the loader (line 13) does not pin its memory",
    ),
    "helper for other things too": (
        """\
        def move(t):
            return t.to(device)
        for x, y in loader:
            move(x)
        move(torch.ones(3))
        """,
        "`t` may be something else than a batch of a loader",
    ),
    "moved before in a branch": (
        "for x, y in loader:\n    if use_cuda:\n        x = x.cuda(0, True)\n    x = x.to(device)\n",
        "`x` may be on the device already",
    ),
    "written by item": (
        "for x, y in loader:\n    z = x.to(device)\n    x[0] = 1\n",
        "the batch is written to while the copy may still read it (line 15)",
    ),
    "written in place": (
        "for x, y in loader:\n    z = x.to(device)\n    x.zero_()\n",
        "the batch is written to",
    ),
    "augmented": (
        "for x, y in loader:\n    z = x.to(device)\n    x += 1\n",
        "the batch is written to",
    ),
    "out argument": (
        "for x, y in loader:\n    z = x.to(device)\n    torch.neg(y, out=x)\n",
        "the batch is written to",
    ),
    "written through a view": (
        "for x, y in loader:\n    z = x.to(device)\n    first = x[0]\n    first.zero_()\n",
        "the batch is written to",
    ),
    "written in a function": (
        """\
        def clear(t):
            t.zero_()
        for x, y in loader:
            z = x.to(device)
            clear(x)
        """,
        "the batch is written to",
    ),
    "written by its other name behind a branch": (
        """\
        for x, y in loader:
            raw = x
            if use_cuda:
                x = x.cuda()
            raw += 1
        """,
        "the batch is written to",
    ),
    "written in the branch": (
        """\
        for x, y in loader:
            if use_cuda:
                z = x.cuda()
                x += 1
        """,
        "the batch is written to",
    ),
    "written where the copy may have failed": (
        """\
        for x, y in loader:
            try:
                z = x.to(device)
                x = z
            except RuntimeError:
                pass
            x += 1
        """,
        "the batch is written to",
    ),
    "written in a later branch": (
        """\
        for x, y in loader:
            if use_cuda:
                z = x.to(device)
            if len(x) > 9:
                x = z
            x += 1
        """,
        "the batch is written to",
    ),
    "written in an inner loop": (
        """\
        for x, y in loader:
            k = 0
            while k < 3:
                x.add_(1)
                z = x.to(device)
                k += 1
        """,
        "the batch is written to",
    ),
}


@pytest.mark.parametrize(("loop", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_left_alone(check_noop: Check, loop: str, reason: str | None) -> None:
    check_noop(script(loop), reason)


BATCH_OBJECTS = {
    "of the project": (
        """\
        class Batch:
            def __init__(self, items):
                self.images = torch.stack(items)

            def pin_memory(self):
                return self

            def to(self, device):
                self.images = self.images.to(device)
                return self


        for batch in DataLoader(data, 64, collate_fn=Batch, pin_memory=True):
            batch = batch.to(device)
        """,
        "the batch may be a `Batch`, whose `to` takes no `non_blocking`",
    ),
    "of the project, in a tuple": (
        """\
        class Images:
            def to(self, device):
                return self


        def collate(items):
            return Images(), torch.tensor([label for _, label in items])


        for x, y in DataLoader(data, 64, collate_fn=collate, pin_memory=True):
            x = x.to(device)
        """,
        "the batch may be a `Images`, whose `to` takes no `non_blocking`",
    ),
    "of a library, from a function": (
        """\
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")


        def collate(items):
            return tokenizer.pad(items, return_tensors="pt")


        for batch in DataLoader(data, 64, collate_fn=collate, pin_memory=True):
            batch.to(device)
        """,
        "whether `batch.to` takes `non_blocking` is not known: a `collate_fn` makes the batch",
    ),
    "handed to a function": (
        """\
        from data import collate


        def move(batch):
            return batch.to(device)


        for batch in DataLoader(data, 64, collate_fn=collate, pin_memory=True):
            move(batch)
        """,
        "whether `batch.to` takes `non_blocking` is not known",
    ),
    "of a library, from a collator": (
        """\
        from transformers import AutoTokenizer, DataCollatorWithPadding

        collator = DataCollatorWithPadding(AutoTokenizer.from_pretrained("bert-base-cased"))
        for step, batch in enumerate(DataLoader(data, 64, collate_fn=collator, pin_memory=True)):
            batch = batch.to(device)
        """,
        "whether `batch.to` takes `non_blocking` is not known",
    ),
}


@pytest.mark.parametrize(("loop", "reason"), BATCH_OBJECTS.values(), ids=BATCH_OBJECTS)
def test_batches_that_may_be_no_tensors(check_noop: Check, loop: str, reason: str) -> None:
    check_noop(script('data = datasets.MNIST("data")\n') + dedent(loop), reason)


TENSORS_OF_A_COLLATE_FN = {
    "one": (
        "def collate(items):\n    return torch.stack(items)\n",
        "x = batch.to(device{0})",
    ),
    "a tuple": (
        "def collate(items):\n    x, y = zip(*items)\n    return torch.stack(x), torch.tensor(y)\n",
        "x = batch[0].to(device{0})",
    ),
    "an object's parts": (
        "from transformers import default_data_collator as collate\n",
        'x = batch["input_ids"].to(device{0})',
    ),
    "what a partial function gives": (
        "from functools import partial\n\n\ndef stacked(items, scale):\n"
        "    return torch.stack(items)\n\n\ncollate = partial(stacked, scale=2)\n",
        "x = batch.to(device{0})",
    ),
    "an element that is handed to a function": (
        "from data import collate\n\n\ndef move(x):\n    return x.to(device{0})\n\n\n",
        "z = move(batch[0])",
    ),
    "what is assigned again": (
        "from data import collate\n",
        "(x, y) = batch\n    x = x.to(device{0})\n    x = x.contiguous()",
    ),
    "a tuple, beside another class": (
        "class Box:\n    def to(self, device):\n        return self\n\n\n"
        "def collate(items):\n    x, y = zip(*items)\n    return torch.stack(x), torch.tensor(y)\n",
        "x = batch[0].to(device{0})",
    ),
    "an object that takes the argument": (
        "class Batch:\n    def to(self, device, **settings):\n        return self\n\n\n"
        "def collate(items):\n    return torch.stack(items)\n",
        "x = batch.to(device{0})",
    ),
}


@pytest.mark.parametrize(
    ("collate", "copy"), TENSORS_OF_A_COLLATE_FN.values(), ids=TENSORS_OF_A_COLLATE_FN
)
def test_tensors_of_a_collate_fn(check_transformed: Check, collate: str, copy: str) -> None:
    loop = (
        'loader = DataLoader(datasets.MNIST("data"), 64, collate_fn=collate, pin_memory=True)\n'
        f"for batch in loader:\n    {copy}\n"
    )
    before = script("") + collate + loop
    check_transformed(before.format(""), before.format(f", {NB}"))


WRITES = {
    "array that shares the memory": "    array = x.numpy()\n    array[0] = 1\n",
    "array filled in place": "    np.copyto(x.numpy(), 0)\n",
    "shuffled": "    np.random.shuffle(np.asarray(x))\n",
    "activation in place": "    nn.functional.relu(x, inplace=True)\n",
    "function in place": "    torch.relu_(x)\n",
    "filled anew": "    nn.init.normal_(x)\n",
    "data": "    x.data.fill_(0)\n",
    "view in place": "    x.t().zero_()\n",
    "masked": "    x[y > 3] *= 0\n",
    "patches exchanged": "    x[:, 3:5] = x[torch.randperm(64), 3:5]\n",
    "other name": "    other = x\n    other -= 1\n",
    "module in place": "    nn.Sequential(nn.ReLU(inplace=True), nn.Flatten())(x)\n",
    "module in place behind a view": "    nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU(inplace=True)))(x)\n",
    "module in place in a list": "    nn.Sequential(*[nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True)])(x)\n",
    "module in place in a row that grows": (
        "    net = nn.Flatten()\n    for _ in range(3):\n        net = nn.Sequential(net, nn.ReLU(inplace=True))\n    net(x)\n"
    ),
    "row replaced by something else": "    x[0] = y[0]\n",
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_batch_written_to_after_the_copy(check_noop: Check, write: str) -> None:
    loop = "import numpy as np\nfor x, y in loader:\n    z = x.to(device)\n" + write
    check_noop(script(loop), "the batch is written to while the copy may still read it")


def test_what_a_layer_makes_of_the_batch_is_written_to(check_transformed: Check) -> None:
    loop = (
        "for x, y in loader:\n    z = x.to(device{0})\n"
        "    nn.Sequential(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh()), nn.ReLU(inplace=True))(x)\n"
    )
    before = script(loop)
    check_transformed(before.format(""), before.format(f", {NB}"))


def test_batch_of_a_generator_written_to_after_the_copy(check_noop: Check) -> None:
    loop = """
    def endless():
        while True:
            for x, y in loader:
                yield x
                x.zero_()


    batches = endless()
    for step in range(1000):
        z = next(batches).to(device)
    """
    check_noop(script(loop), "the batch is written to while the copy may still read it")


WRITES_OF_DICTS = {
    "item in place": "    z = batch['x'].to(device)\n    batch['x'] += 1\n",
    "each in place": "    z = [t.to(device) for t in batch]\n    for t in batch:\n        t.zero_()\n",
    "some item": "    for key in batch.keys():\n        z = batch[key].to(device)\n        batch[key][0] = 1\n",
}


@pytest.mark.parametrize("loop", WRITES_OF_DICTS.values(), ids=WRITES_OF_DICTS)
def test_parts_of_a_batch_written_to_after_the_copy(check_noop: Check, loop: str) -> None:
    check_noop(script("for batch in loader:\n" + loop), "the batch is written to")


COMPUTED = {
    "padded": "nn.functional.pad(x, (1, 1))",
    "one hot": "nn.functional.one_hot(y, 10)",
    "stacked anew": "torch.stack([t for t in x])",
    "made contiguous": "x.transpose(1, 2).contiguous()",
    "by way of an array": "torch.from_numpy(x.numpy())",
    "noise": "torch.randn_like(x)",
}


@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
def test_computed_from_the_batch(check_noop: Check, computed: str) -> None:
    loop = f"for x, y in loader:\n    z = {computed}.to(device)\n"
    check_noop(script(loop), "is computed from the batch, and its new memory is not pinned")


def test_masked_before_the_copy(check_noop: Check) -> None:
    loop = """\
        def mask(inputs):
            labels = inputs.clone()
            inputs[labels > 3] = 0
            return inputs, labels
        for x, y in loader:
            original = x.to(device)
            inputs, labels = mask(x)
    """
    check_noop(script(loop), "the batch is written to")


def test_helper_that_also_brings_results_back(check_noop: Check) -> None:
    loop = """\
        def move(t, where):
            return t.to(where)
        for x, y in loader:
            out = move(model(move(x, device)), "cpu")
    """
    check_noop(script(loop), "`t` may be something else than a batch of a loader")


def test_cpu_target(check_noop: Check) -> None:
    check_noop(script(LOOPS["to"].format("")), target="cpu")


VERIFIED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
dataset = datasets.FakeData(24, (3, 8, 8), 4, transform=augment)
loader = DataLoader(dataset, batch_size=8, shuffle=True, pin_memory=True)
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
