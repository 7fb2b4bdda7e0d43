"""A grammar of training scripts: what people write for imports, devices, data, networks, steps and evaluations, mixed.

Every script it makes runs: on the CPU, in memory, in a fraction of a second, unless it hard-codes CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

from hypothesis import strategies as st

Draw = st.DrawFn


@dataclass(frozen=True)
class GeneratedScript:
    """``runs_on_cpu``: whether the script asks for its device instead of naming CUDA."""

    text: str
    runs_on_cpu: bool


@dataclass(frozen=True)
class _Names:
    """How the script spells its libraries."""

    torch: str
    nn: str
    functional: str
    imports: str


_SPELLINGS = (
    _Names(
        "torch", "nn", "F", "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F"
    ),
    _Names(
        "torch",
        "nn",
        "F",
        "import torch\nfrom torch import nn\nfrom torch.nn import functional as F",
    ),
    _Names("th", "th.nn", "th.nn.functional", "import torch as th"),
    _Names("torch", "torch.nn", "torch.nn.functional", "import torch"),
)

_COMMENTS = ("", "", "", "# TODO: tune", "# train the network", "#### data ####", "# noqa")


@dataclass(frozen=True)
class _Device:
    """``setup`` statements, and how networks and tensors get there (``{0}`` is the tensor)."""

    setup: str
    network: str
    tensor: str
    runs_on_cpu: bool


_DEVICES = (
    _Device(
        'device = {t}.device("cuda" if {t}.cuda.is_available() else "cpu")',
        "{0} = {0}.to(device)",
        "{0}.to(device)",
        True,
    ),
    _Device(
        'device = "cuda" if {t}.cuda.is_available() else "cpu"',
        "{0}.to(device)",
        "{0}.to(device)",
        True,
    ),
    _Device(
        "use_cuda = {t}.cuda.is_available()",
        "if use_cuda:\n    {0}.cuda()",
        "({0}.cuda() if use_cuda else {0})",
        True,
    ),
    _Device(
        'device = {t}.device("cuda:0" if {t}.cuda.is_available() and not args.cpu else "cpu")',
        "{0}.to(device)",
        "{0}.to(device)",
        True,
    ),
    _Device("", "{0} = {0}.cuda()", "{0}.cuda()", False),
    _Device('device = {t}.device("cuda")', "{0}.to(device)", "{0}.to(device)", False),
    _Device("", "{0}", "{0}", True),
)


def _comment(draw: Draw) -> str:
    text = draw(st.sampled_from(_COMMENTS))
    return f"{text}\n" if text else ""


def _body(code: str) -> str:
    return indent(dedent(code).strip("\n"), "    ") + "\n"


# Data


def _data(draw: Draw, names: _Names) -> tuple[str, str]:
    """Statements that make ``train_set`` and ``test_set``, and the imports they need; images are 3 x 12 x 12."""
    t = names.torch
    kind = draw(st.sampled_from(("pil", "pil", "tensors", "arrays", "fake")))
    if kind == "tensors":
        return (
            f"train_set = TensorDataset({t}.randn(24, 3, 12, 12), {t}.randint(0, 4, (24,)))\n"
            f"test_set = TensorDataset({t}.randn(10, 3, 12, 12), {t}.randint(0, 4, (10,)))\n",
            "from torch.utils.data import TensorDataset",
        )
    if kind == "arrays":
        return (
            dedent(f"""\
            class Arrays(Dataset):
                def __init__(self, length):
                    self.values = np.random.RandomState(length).rand(length, 3, 12, 12).astype("float32")

                def __len__(self):
                    return len(self.values)

                def __getitem__(self, index):
                    value = np.tanh(self.values[index] * 2.0 - 1.0)
                    return {t}.from_numpy(value), index % 4


            train_set, test_set = Arrays(24), Arrays(10)
            """),
            "import numpy as np\nfrom torch.utils.data import Dataset",
        )
    compose = _compose(draw)
    if kind == "fake":
        return (
            f"{compose}"
            "train_set = datasets.FakeData(24, (3, 12, 12), 4, transform=transform)\n"
            "test_set = datasets.FakeData(10, (3, 12, 12), 4, transform=transform)\n",
            "from torchvision import datasets, transforms",
        )
    return (
        dedent("""\
        class Pictures(Dataset):
            def __init__(self, length, transform=None):
                pixels = np.random.RandomState(length)
                self.pictures = [
                    Image.fromarray(pixels.randint(0, 255, (16, 16, 3)).astype("uint8")) for _ in range(length)
                ]
                self.transform = transform

            def __len__(self):
                return len(self.pictures)

            def __getitem__(self, index):
                picture = self.pictures[index].convert("RGB")
                if self.transform:
                    picture = self.transform(picture)
                return picture, index % 4


        """)
        + compose
        + "train_set = Pictures(24, transform)\ntest_set = Pictures(10, transform=transform)\n",
        "import numpy as np\nfrom PIL import Image\nfrom torch.utils.data import Dataset\n"
        "from torchvision import transforms",
    )


def _compose(draw: Draw) -> str:
    steps = ["transforms.Resize(12)"] if draw(st.booleans()) else ["transforms.CenterCrop(12)"]
    steps.append("transforms.ToTensor()")
    if draw(st.booleans()):
        mean = draw(st.sampled_from(("[0.5, 0.5, 0.5]", "(0.485, 0.456, 0.406)", "mean")))
        steps.append(
            f"transforms.Normalize({mean}, [0.25] * 3)"
            if draw(st.booleans())
            else f"transforms.Normalize(mean={mean}, std=(0.5, 0.5, 0.5))"
        )
    joined = ", ".join(steps)
    return f"mean = (0.4, 0.5, 0.6)\ntransform = transforms.Compose([{joined}])\n"


def _loaders(draw: Draw) -> str:
    extra = draw(
        st.sampled_from(
            (
                "",
                ", num_workers=0",
                ", pin_memory=False",
                ", drop_last=False",
                ", **loader_kwargs",
                ", num_workers=args.workers",
            )
        )
    )
    before = "loader_kwargs = {'num_workers': 0}\n" if "**" in extra else ""
    batch = draw(st.sampled_from(("batch_size=8", "8", "args.batch_size")))
    shuffle = draw(st.sampled_from((", shuffle=True", "")))
    return (
        f"{before}train_loader = DataLoader(train_set, {batch}{shuffle}{extra})\n"
        f"test_loader = DataLoader(test_set, batch_size=4{extra})\n"
    )


# The network


def _network(draw: Draw, names: _Names) -> str:
    nn, fn, t = names.nn, names.functional, names.torch
    if draw(st.booleans()):
        activation = draw(
            st.sampled_from(
                (f"{nn}.ReLU()", f"{nn}.Tanh()", f"{nn}.LeakyReLU(0.2)", f"{nn}.ReLU(True)")
            )
        )
        norm = draw(st.sampled_from((f"{nn}.BatchNorm2d(6), ", f"{nn}.Dropout(0.0), ", "")))
        return (
            f"model = {nn}.Sequential(\n    {nn}.Conv2d(3, 6, 3, padding=1), {norm}{activation}, "
            f"{nn}.AdaptiveAvgPool2d(1), {nn}.Flatten(), {nn}.Linear(6, 4)\n)\n"
        )
    flatten = draw(
        st.sampled_from(("x.view(x.size(0), -1)", f"{t}.flatten(x, 1)", "x.reshape(len(x), -1)"))
    )
    activation = draw(
        st.sampled_from(
            (
                "self.relu(self.conv(x))",
                f"{fn}.relu(self.conv(x))",
                "self.relu(self.norm(self.conv(x)))",
            )
        )
    )
    dropout = draw(
        st.sampled_from(
            (
                f"        x = {fn}.dropout(x, 0.0)\n",
                f"        x = {fn}.dropout(x, p=0.0, training=self.training)\n",
                "",
            )
        )
    )
    residual = "        x = x + self.conv2(x)\n" if draw(st.booleans()) else ""
    return (
        f"class Net({nn}.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.conv = {nn}.Conv2d(3, 6, 3, padding=1)\n"
        f"        self.conv2 = {nn}.Conv2d(6, 6, 3, padding=1)\n"
        f"        self.norm = {nn}.BatchNorm2d(6)\n"
        f"        self.relu = {nn}.ReLU()\n"
        f"        self.pool = {nn}.MaxPool2d(4)\n"
        f"        self.fc = {nn}.Linear(54, 4)\n"
        "\n"
        "    def forward(self, x):\n"
        f"        x = {activation}\n"
        f"{residual}"
        "        x = self.pool(x)\n"
        f"        x = {flatten}\n"
        f"{dropout}"
        "        return self.fc(x)\n"
        "\n\n"
        "model = Net()\n"
    )


def _optimizer(draw: Draw, names: _Names) -> str:
    optim = f"{names.torch}.optim"
    made = draw(
        st.sampled_from(
            (
                f"{optim}.SGD(model.parameters(), lr=0.05)",
                f"{optim}.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)",
                f"{optim}.Adam(model.parameters(), lr=args.lr)",
                f"{optim}.AdamW([{{'params': model.parameters()}}], lr=0.01)",
                f"{optim}.RMSprop(model.parameters(), lr=0.01)",
                f"{optim}.Adagrad(model.parameters(), 0.01)",
            )
        )
    )
    scheduler = (
        f"scheduler = {optim}.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)\n"
        if draw(st.booleans())
        else ""
    )
    return f"optimizer = {made}\n{scheduler}"


# Training and evaluation


def _step(draw: Draw, names: _Names, device: _Device) -> list[str]:
    """The statements of one training step on ``x`` and ``y``."""
    fn = names.functional
    lines = [f"x = {device.tensor.format('x')}", f"y = {device.tensor.format('y')}"]
    if draw(st.booleans()):
        lines = [f"x, y = {device.tensor.format('x')}, {device.tensor.format('y')}"]
    lines = [] if device.tensor == "{0}" else lines
    zero = draw(
        st.sampled_from(
            (
                ["optimizer.zero_grad()"],
                ["model.zero_grad()"],
                ["optimizer.zero_grad(set_to_none=False)"],
                [
                    "for p in model.parameters():",
                    "    if p.grad is not None:",
                    "        p.grad.zero_()",
                ],
            )
        )
    )
    forward = draw(
        st.sampled_from(
            (
                ["output = model(x)", "loss = criterion(output, y)"],
                ["output = model(x)", f"loss = {fn}.cross_entropy(output, y)"],
                ["output = model(x)", f"loss = {fn}.nll_loss({fn}.log_softmax(output, dim=1), y)"],
                [
                    "output = model(x)",
                    f"loss = criterion(output, y) + 0.01 * {fn}.mse_loss(output.softmax(1)[:, 0], y.float())",
                ],
            )
        )
    )
    clip = (
        [f"{names.nn}.utils.clip_grad_norm_(model.parameters(), 1.0)"]
        if draw(st.booleans())
        else []
    )
    lines += [*zero, *forward]
    if not clip and draw(st.booleans()):
        lines.append("loss.backward(); optimizer.step()")
    else:
        lines += ["loss.backward()", *clip, "optimizer.step()"]
    return lines


def _metrics(draw: Draw) -> tuple[list[str], list[str], list[str]]:
    """Statements before a training epoch, in each of its steps, and behind it."""
    return draw(
        st.sampled_from(
            (
                (
                    ["total = 0.0"],
                    ["total += loss.item()"],
                    ['print("loss", epoch, "%.3f" % (total / len(train_loader)))'],
                ),
                (
                    ["total = 0"],
                    ["total += loss.item() * len(x)"],
                    ["print(f'loss {total / len(train_set):.3f}')"],
                ),
                (
                    ["losses = []"],
                    ["losses.append(loss.item())"],
                    ["print('loss {:.3f}'.format(sum(losses) / len(losses)))"],
                ),
                (
                    ["losses = []"],
                    ["losses.append(loss.detach().cpu().numpy())"],
                    ["print('loss %.3f' % np.mean(losses))"],
                ),
                ([], ["if step % 2 == 0:", "    print(epoch, step, round(loss.item(), 3))"], []),
                ([], ["print('%d %.3f' % (step, loss.item()))"], []),
                (
                    ["total, hits = 0.0, 0"],
                    ["total += float(loss)", "hits += (output.argmax(1) == y).sum().item()"],
                    ["print('%.3f' % total, hits)"],
                ),
                (
                    ["best = 1e9"],
                    ["if loss.item() < best:", "    best = loss.item()"],
                    ["print('best %.3f' % best)"],
                ),
                (["total = 0"], ["total += loss"], ["print('%.3f' % float(total))"]),
            )
        )
    )


def _training(draw: Draw, names: _Names, device: _Device) -> str:
    before, during, behind = _metrics(draw)
    step = [*_step(draw, names, device), *during]
    if draw(st.sampled_from((False, False, True))):
        step.append(f"{names.torch}.cuda.empty_cache()")
    loop = draw(
        st.sampled_from(
            (
                "for step, (x, y) in enumerate(train_loader):",
                "for step, batch in enumerate(train_loader):",
            )
        )
    )
    if "batch" in loop:
        step.insert(0, "x, y = batch")
    mode = draw(st.sampled_from(([], ["model.train()"], ["model.train(True)"])))
    return "\n".join([*mode, *before, loop, *(f"    {line}" for line in step), *behind]) + "\n"


def _evaluation(draw: Draw, names: _Names, device: _Device) -> str:
    t, fn = names.torch, names.functional
    mode = draw(st.sampled_from((["model.eval()"], ["model.eval()"], [])))
    measure = draw(
        st.sampled_from(
            (
                ["correct += (output.argmax(1) == y).sum().item()"],
                [
                    "pred = output.max(1, keepdim=True)[1]",
                    "correct += pred.eq(y.view_as(pred)).sum().item()",
                ],
                [f"_, pred = {t}.max(output.data, 1)", "correct += (pred == y).sum().item()"],
                [f"correct += {fn}.cross_entropy(output, y).item()"],
            )
        )
    )
    copies = (
        []
        if device.tensor == "{0}"
        else [f"x, y = {device.tensor.format('x')}, {device.tensor.format('y')}"]
    )
    loop = [
        "for x, y in test_loader:",
        *(f"    {line}" for line in [*copies, "output = model(x)", *measure]),
    ]
    if draw(st.booleans()):
        loop = [f"with {t}.no_grad():", *(f"    {line}" for line in loop)]
    return (
        "\n".join([*mode, "correct = 0", *loop, "print('test %.2f' % (correct / len(test_set)))"])
        + "\n"
    )


@st.composite
def training_scripts(draw: Draw) -> GeneratedScript:
    """Training scripts of two epochs on 24 images."""
    names = draw(st.sampled_from(_SPELLINGS))
    device = draw(st.sampled_from(_DEVICES))
    t = names.torch
    data, data_imports = _data(draw, names)
    network = _network(draw, names)
    setup = "".join(
        [
            f"{t}.manual_seed(0)\n",
            f"{device.setup.format(t=t)}\n" if device.setup else "",
            _comment(draw),
            data,
            _loaders(draw),
            _comment(draw),
            network,
            f"{device.network.format('model')}\n" if device.network != "{0}" else "",
            f"criterion = {names.nn}.CrossEntropyLoss()\n",
            _optimizer(draw, names),
        ]
    )
    training, evaluation = _training(draw, names, device), _evaluation(draw, names, device)
    schedule = "scheduler.step()\n" if "scheduler = " in setup else ""
    save = draw(st.sampled_from(("", f'{t}.save(model.state_dict(), "model.pt")\n')))
    main = _main(draw, training, evaluation, schedule, save)
    imports = "\n".join(
        [
            "import argparse",
            names.imports,
            "from torch.utils.data import DataLoader",
            *dict.fromkeys([*data_imports.splitlines(), "import numpy as np"]),
        ]
    )
    options = dedent("""\
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch_size", default=8, type=int)
    parser.add_argument("--workers", type=int, default=0, help="loader workers")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    """)
    text = f"{imports}\n\n{options}\n{setup}\n{main}"
    if draw(st.sampled_from((False, False, False, True))):
        text = text.replace("    ", "\t") if "    Image" not in text else text
    if draw(st.sampled_from((False, False, False, False, True))):
        text = text.replace("\n", "\r\n")
    if draw(st.sampled_from((False, False, False, True))):
        text = text.rstrip("\r\n")
    return GeneratedScript(text, device.runs_on_cpu)


def _main(draw: Draw, training: str, evaluation: str, schedule: str, save: str) -> str:
    """The epochs: flat, in functions, or in functions behind a main guard."""
    layout = draw(st.sampled_from(("flat", "functions", "guard")))
    if layout == "flat":
        return f"for epoch in range(2):\n{_body(training + schedule + evaluation)}\n{save}"
    functions = f"def train(epoch):\n{_body(training)}\n\ndef test():\n{_body(evaluation)}\n\n"
    epochs = (
        f"for epoch in range(2):\n    train(epoch)\n    test()\n{indent(schedule, '    ')}{save}"
    )
    if layout == "functions":
        return functions + epochs
    return f"{functions}if __name__ == '__main__':\n{_body(epochs)}"
