"""Activations that may overwrite their input, and many that may not."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

Check = Callable[..., None]

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
"""


def network(layers: str, forward: str, imports: str = IMPORTS, extra: str = "") -> str:
    """A network that makes ``layers`` and runs ``forward``; ``extra`` stands below it."""
    head = "\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    return (
        imports
        + head
        + indent(dedent(layers).lstrip("\n"), " " * 8)
        + "\n    def forward(self, x):\n"
        + indent(dedent(forward).lstrip("\n"), " " * 8)
        + dedent(extra)
    )


def sequence(layers: str, extra: str = "") -> str:
    return network(f"self.net = nn.Sequential({layers})\n", "return self.net(x)\n", extra=extra)


CONV = "self.conv = nn.Conv2d(3, 3, 3, padding=1)\nself.bn = nn.BatchNorm2d(3)\n"


# In a sequence


@pytest.mark.parametrize(
    "before",
    [
        "nn.Conv2d(3, 3, 3)",
        "nn.ConvTranspose2d(3, 3, 3)",
        "nn.Linear(3, 3)",
        "nn.BatchNorm1d(3)",
        "nn.GroupNorm(1, 3)",
        "nn.MaxPool2d(2)",
        "nn.AvgPool2d(2)",
        "nn.Upsample(scale_factor=2)",
        "nn.utils.spectral_norm(nn.Conv2d(3, 3, 3))",
        "nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3))",
    ],
)
def test_layer_before_it_keeps_its_input_only(check_transformed: Check, before: str) -> None:
    text = sequence(f"\n    {before},\n    nn.ReLU(),\n")
    check_transformed(text, text.replace("nn.ReLU()", "nn.ReLU(inplace=True)"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nn.LeakyReLU()", "nn.LeakyReLU(inplace=True)"),
        ("nn.LeakyReLU(0.2)", "nn.LeakyReLU(0.2, inplace=True)"),
        ("nn.ReLU6()", "nn.ReLU6(inplace=True)"),
        ("nn.Hardtanh(-2, 2)", "nn.Hardtanh(-2, 2, inplace=True)"),
    ],
)
def test_activations(check_transformed: Check, before: str, after: str) -> None:
    conv = "nn.Conv2d(3, 3, 3), "
    check_transformed(sequence(conv + before), sequence(conv + after))


@pytest.mark.parametrize(
    "before",
    [
        "nn.Sigmoid()",
        "nn.Tanh()",
        "nn.Softmax(1)",
        "nn.ReLU(inplace=True)",
        "nn.Flatten()",
        "nn.Identity()",
        "nn.Dropout2d(0.1)",
        "nn.InstanceNorm2d(3)",
        "nn.MaxPool1d(2)",
        "nn.PixelShuffle(2)",
        "nn.LSTM(3, 3)",
        "nn.Unflatten(1, (3, 1))",
        "Own()",
        "nn.Sequential(nn.Conv2d(3, 3, 3), nn.Sigmoid())",
        "nn.Conv2d(3, 3, 3) if torch.cuda.is_available() else nn.Identity()",
        "layer",
    ],
)
def test_layer_before_it_is_not_safe(check_noop: Check, before: str) -> None:
    own = "\n\nclass Own(nn.Module):\n    def forward(self, x):\n        return x\n"
    check_noop(sequence(f"nn.Conv2d(3, 3, 3), {before}, nn.ReLU()", own), reason="not in-place")


@pytest.mark.parametrize(
    "layers",
    [
        "nn.Conv2d(3, 3, 3), nn.ReLU(True)",
        "nn.Conv2d(3, 3, 3), nn.ReLU(inplace=False)",
        "nn.Conv2d(3, 3, 3), nn.LeakyReLU(0.2, True)",
        "nn.Conv2d(3, 3, 3), nn.ELU()",
        "nn.Conv2d(3, 3, 3), nn.SiLU()",
        "nn.Conv2d(3, 3, 3), nn.GELU()",
        "nn.Conv2d(3, 3, 3), nn.Dropout()",
        "nn.Conv2d(3, 3, 3), nn.ReLU(**options)",
    ],
)
def test_says_so_or_is_another(check_noop: Check, layers: str) -> None:
    check_noop(sequence(layers))


def test_negative_slope(check_noop: Check) -> None:
    check_noop(sequence("nn.Conv2d(3, 3, 3), nn.LeakyReLU(-0.2)"), reason="slope")
    check_noop(sequence("nn.Conv2d(3, 3, 3), nn.LeakyReLU(slope)"), reason="slope")


def test_first_of_its_sequence(check_noop: Check) -> None:
    check_noop(sequence("nn.ReLU(), nn.Conv2d(3, 3, 3)"), reason="comes first")


def test_sequence_at_module_level_and_aliases(check_transformed: Check) -> None:
    before = (
        "from torch.nn import *\n\nnet = Sequential(Linear(2, 2), ReLU(), Linear(2, 2), ReLU())\n"
    )
    check_transformed(before, before.replace("ReLU()", "ReLU(inplace=True)"))
    before = "import torch as th\n\nnet = th.nn.Sequential(th.nn.Linear(2, 2), th.nn.ReLU())\n"
    check_transformed(before, before.replace("ReLU()", "ReLU(inplace=True)"))


def test_linear_layers_on_sequences_return_views(check_noop: Check) -> None:
    layers = "nn.Embedding(10, 3), nn.Linear(3, 3), nn.ReLU()"
    check_noop(sequence(layers), reason="linear layer before it may return a view")


# Lists of layers


BLOCKS = """
def block(width, normalize=True):
    layers = [nn.Conv2d(3, width, 3)]
    if normalize:
        layers.append(nn.BatchNorm2d(width))
    layers.append(nn.LeakyReLU(0.2))
    return layers

net = nn.Sequential(*block(3, False), *block(3), nn.Conv2d(3, 1, 3))
"""


def test_list_that_is_returned(check_transformed: Check) -> None:
    after = BLOCKS.replace("LeakyReLU(0.2)", "LeakyReLU(0.2, inplace=True)")
    check_transformed(IMPORTS + BLOCKS, IMPORTS + after)


def test_list_that_is_built_in_a_loop(check_transformed: Check) -> None:
    before = """
    layers = []
    for width in (3, 6):
        if width > 3:
            layers += [nn.MaxPool2d(2)]
        layers += [nn.Conv2d(3, width, 3), nn.ReLU()]
        layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU())
    net = nn.Sequential(*layers)
    """
    text = IMPORTS + dedent(before)
    check_transformed(text, text.replace("ReLU()", "ReLU(inplace=True)"))


@pytest.mark.parametrize(
    "text",
    [
        BLOCKS.replace("layers.append(nn.BatchNorm2d(width))", "layers.append(nn.Tanh())"),
        BLOCKS.replace("[nn.Conv2d(3, width, 3)]", "[]"),
        BLOCKS + "layers = block(3)\nx = layers[0](torch.zeros(1, 3, 9, 9))\n",
        BLOCKS + "for layer in block(3):\n    print(layer)\n",
        BLOCKS + "blocks = [block]\n",
        BLOCKS.replace("    return", "    layers.insert(1, nn.Sigmoid())\n    return"),
        BLOCKS.replace("    return", "    shuffle(layers)\n    return"),
        BLOCKS.replace(
            "nn.Sequential(*block(3, False)", "nn.ModuleList(block(3)), nn.Sequential(*block(3)"
        ),
        BLOCKS + "features = net[:2]\n",
        BLOCKS + "for layer in net:\n    x = layer(x)\n",
        BLOCKS + "for i, layer in enumerate(net):\n    x = layer(x)\n",
        BLOCKS + "outputs = [layer(x) for layer in net]\n",
        BLOCKS + "half = nn.Sequential(*list(net.children())[:2])\n",
        BLOCKS
        + "nets = nn.ModuleList([net])\nfor n in nets:\n    for layer in n:\n        x = layer(x)\n",
        BLOCKS + "nets = nn.ModuleList([net])\nx = nets[0][1](x)\n",
        BLOCKS + "x = next(iter(net))(x)\n",
        BLOCKS + "layers = list(net)\nx = layers[0](x)\n",
        BLOCKS + "def run(n, x):\n    for layer in n:\n        x = layer(x)\n\nrun(net, 1)\n",
        BLOCKS + "net[0] = nn.Identity()\n",
        BLOCKS + "net.insert(1, nn.Sigmoid())\n",
        BLOCKS + "first = net._modules['0']\n",
    ],
)
def test_list_or_sequence_that_is_taken_apart(check_noop: Check, text: str) -> None:
    check_noop(IMPORTS + text, reason="in-place")


def test_lists_of_sequences_are_run_whole(check_transformed: Check) -> None:
    text = IMPORTS + BLOCKS + "nets = nn.ModuleList([net])\nfor n in nets:\n    x = n(x)\n"
    check_transformed(text, text.replace("LeakyReLU(0.2)", "LeakyReLU(0.2, inplace=True)"))


def test_initialization_takes_nothing_apart(check_transformed: Check) -> None:
    init = """
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight)
    net[0].weight.data.fill_(1.0)
    """
    text = IMPORTS + BLOCKS + dedent(init)
    check_transformed(text, text.replace("LeakyReLU(0.2)", "LeakyReLU(0.2, inplace=True)"))


# In forward


@pytest.mark.parametrize(
    "forward",
    [
        "return F.relu(self.conv(x)@)\n",
        "return F.relu(self.bn(self.conv(x))@)\n",
        "x = self.conv(x)\nx = F.relu(x@)\nreturn x\n",
        "return F.relu(self.conv(x) + x@)\n",
        "out = self.bn(x)\nout += x\nreturn F.relu(out@)\n",
        "return F.leaky_relu(self.conv(x), 0.1@)\n",
        "return F.relu6(F.max_pool2d(x, 2)@)\n",
        "return nn.functional.relu(torch.cat([x, x], 1)@)\n",
        "with torch.no_grad():\n    x = self.conv(x)\n    return F.relu(x@)\n",
    ],
)
def test_function(check_transformed: Check, forward: str) -> None:
    check_transformed(
        network(CONV, forward.replace("@", "")),
        network(CONV, forward.replace("@", ", inplace=True")),
    )


@pytest.mark.parametrize(
    "forward",
    [
        "return F.relu(x)\n",
        "return F.relu(x.view(-1))\n",
        "return F.relu(torch.sigmoid(self.conv(x)))\n",
        "return F.relu(F.relu(self.conv(x), inplace=True))\n",
        "return F.relu(F.dropout(self.conv(x), training=self.training))\n",
        "return F.relu(x * 2)\n",
        "return F.relu(self.conv(x).view(x.size(0), -1))\n",
        "out = self.conv(x)\nreturn F.relu(out) + out\n",
        "out = self.conv(x)\nfeatures = [out]\nreturn F.relu(out), features\n",
        "out = self.conv(x)\nself.last = out\nreturn F.relu(out)\n",
        "out = self.conv(x)\nkept = out\nreturn F.relu(out), kept\n",
        "out = self.conv(x)\nread = lambda: out\nz = F.relu(out)\nz = z + read()\nout = z\nreturn out\n",
        "out = self.conv(x)\ndef read():\n    return out\nz = F.relu(out)\nz = z + read()\nout = z\nreturn out\n",
        "self.last = self.conv(x)\nreturn F.relu(self.last)\n",
        "out = x\nout += 1\nreturn F.relu(out)\n",
        "out = self.conv(x)\nkept = out\nout += 1\nreturn F.relu(out)\n",
        "out = self.conv(x)\nfor _ in range(2):\n    y = F.relu(out)\nreturn y\n",
        "out = self.conv(x)\nif x.sum() > 0:\n    out = x\nreturn F.relu(out)\n",
        "out = self.conv(x)\nreturn [F.relu(out) for _ in range(2)]\n",
        "out = self.conv(x)\nwhile F.relu(out).sum() > 0:\n    x = x - 1\nreturn x\n",
        "out = self.conv(x)\nreturn lambda: F.relu(out)\n",
        "a, b = self.conv(x).chunk(2, 1)\nreturn F.relu(a)\n",
        "a = b = self.conv(x)\nreturn F.relu(a)\n",
        "with torch.inference_mode():\n    out = self.conv(x)\nreturn F.relu(out)\n",
        "out = self.conv(x)\nwith torch.no_grad():\n    return F.relu(out)\n",
        "out = self.conv(x)\ntorch.set_grad_enabled(False)\nout = F.relu(out)\nreturn out\n",
        "out = torch.add(x, x, out=self.buffer)\nreturn F.relu(out)\n",
        "return F.relu(out := self.conv(x)) + out\n",
        "out = self.conv(x)\nlater = lambda: out\nreturn F.relu(out), later\n",
        "return F.relu(helper(x))\n",
        "return F.relu(self.unknown(x))\n",
        "return F.relu(x[0])\n",
        "return F.relu(torch.exp(x))\n",
    ],
)
def test_input_of_function_may_be_read_again(check_noop: Check, forward: str) -> None:
    own = "\n\ndef helper(x):\n    return x\n"
    check_noop(network(CONV, forward, extra=own), reason="not in-place")


def test_module_that_runs_at_safe_places_only(check_transformed: Check) -> None:
    forward = """
        out = self.relu(self.bn(self.conv(x)))
        out = self.bn(out)
        out += x
        return self.relu(out)
    """
    before = network(CONV + "self.relu = nn.ReLU()\n", forward)
    check_transformed(before, before.replace("nn.ReLU()", "nn.ReLU(inplace=True)"))


@pytest.mark.parametrize(
    "forward",
    [
        "return self.relu(self.relu(self.conv(x)))\n",
        "return self.relu(self.bn(x)) + self.relu(x)\n",
        "act = self.relu\nreturn act(x)\n",
        "return helper(self.relu, self.conv(x))\n",
        "return self.conv(x)\n",
        "return self.relu.forward(self.conv(x))\n",
        "return getattr(self, 're' + 'lu')(x) + self.relu(self.conv(x))\n",
    ],
)
def test_module_that_also_runs_elsewhere(check_noop: Check, forward: str) -> None:
    own = "\n\ndef helper(f, x):\n    return f(x)\n"
    check_noop(network(CONV + "self.relu = nn.ReLU()\n", forward, extra=own), reason="in-place")


def test_module_shared_by_a_sequence(check_noop: Check) -> None:
    layers = (
        "act = nn.ReLU()\nself.net = nn.Sequential(nn.Conv2d(3, 3, 3), act, nn.Sigmoid(), act)\n"
    )
    check_noop(network(layers, "return self.net(x)\n"), reason="not in-place")


def test_module_used_from_another_file(check_noop: Check) -> None:
    model = network(CONV + "self.relu = nn.ReLU()\n", "return self.relu(self.conv(x))\n")
    main = "import torch\nfrom model import Net\n\nnet = Net()\ny = net.relu(torch.ones(3))\n"
    check_noop({"train.py": main, "model.py": model}, reason="not in-place")


def test_subclass_runs_or_replaces_it(check_noop: Check) -> None:
    runs = "\n\nclass Other(Net):\n    def forward(self, x):\n        return self.relu(x)\n"
    replaces = "\n\nclass Other(Net):\n    def __init__(self):\n        super().__init__()\n        self.conv = nn.Identity()\n"
    own = "\n\nclass Other(Net):\n    def __init__(self):\n        super().__init__()\n        self.relu = nn.ReLU()\n"
    layers, forward = CONV + "self.relu = nn.ReLU()\n", "return self.relu(self.conv(x))\n"
    check_noop(network(layers, forward, extra=runs), reason="not in-place")
    check_noop(network(layers, forward, extra=replaces), reason="a derived class replaces")
    check_noop(
        network("self.relu = nn.ReLU()\n", "return self.relu(x)\n", extra=own),
        reason="not in-place",
    )


# Scripts in which nothing is overwritten


@pytest.mark.parametrize(
    "extra",
    [
        "\nnet = Net()\nnet.net[0].register_forward_hook(print)\n",
        "\nnet = Net()\nnet.register_full_backward_hook(print)\n",
        "\nfrom torch.utils.checkpoint import checkpoint\nnet = Net()\nchecked = checkpoint(net, torch.ones(3))\n",
        "\nfrom torchvision.models.feature_extraction import create_feature_extractor\nnet = create_feature_extractor(Net(), ['net'])\n",
        "\nnet = torch.compile(Net())\n",
        "\nnet = Net()\nnet.compile()\n",
        "\nnet = torch.jit.script(Net())\n",
        "\nnet = Net()\nnet.net = nn.Identity()\n",
        "\nnet = Net()\nprint(net)\n",
        "\nnet = Net()\nprint(f'trains {net}')\n",
        "\nnet = Net()\ntorch.save(net, 'net.pt')\n",
        "\nnet = Net()\ntorch.save({'net': net, 'epoch': 1}, 'net.pt')\n",
        "\nfrom captum.attr import Saliency\nsaliency = Saliency(Net())\n",
    ],
)
def test_somebody_looks_inside(check_noop: Check, extra: str) -> None:
    check_noop(sequence("nn.Conv2d(3, 3, 3), nn.ReLU()", extra=extra), reason="in-place")


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("net.net[0].register_forward_hook(print)\n", "net.net[0].register_forward_hook"),
        ("x = [layer(torch.ones(3)) for layer in net.net]\n", "layer(torch.ones(3))"),
        ("kept = [layer.result for layer in net.net]\n", "net.net"),
    ],
)
def test_what_looks_inside_is_told(check_noop: Check, extra: str, code: str) -> None:
    text = sequence("nn.Conv2d(3, 3, 3), nn.ReLU()", extra=f"\nnet = Net()\n{extra}")
    check_noop(text, reason=f"`{code}` may look at results between layers")


@pytest.mark.parametrize(
    "own",
    [
        "net = Net()\nprint(net)\n",
        "for layer in Net().net.children():\n    print(layer(x))\n",
        "net = Net()\nnet.net[1].register_forward_hook(print)\n",
        "net = torch.jit.script(Net())\n",
    ],
)
def test_what_an_imported_file_does_as_a_script_looks_at_nothing(
    check_transformed: Check, check_noop: Check, own: str
) -> None:
    network = sequence("nn.Conv2d(3, 3, 3), nn.ReLU()")
    started = network + "\n\nif __name__ == '__main__':\n" + indent(own, "    ")
    entry = "from net import Net\n\nmodel = Net()\n"
    before = {"train.py": entry, "net.py": started}
    after = {"train.py": entry, "net.py": started.replace("ReLU()", "ReLU(inplace=True)")}
    check_transformed(before, after)
    check_noop(started)


@pytest.mark.parametrize(
    "items", ["[Net() for _ in range(depths[0])]", "[nn.Conv2d(widths[i], 3, 3) for i in range(2)]"]
)
def test_settings_of_layers_are_no_layers(check_transformed: Check, items: str) -> None:
    extra = f"\nwidths = [3, 3]\ndepths = [1, 2]\nstage = nn.Sequential(*{items})\n"
    text = sequence("nn.Conv2d(3, 3, 3), nn.ReLU()", extra=extra)
    check_transformed(text, text.replace("ReLU()", "ReLU(inplace=True)"))


def test_types_with_parameters_are_no_layers(check_transformed: Check) -> None:
    text = sequence("nn.Conv2d(3, 3, 3), nn.ReLU()", extra="\nmoves = list[int](board.moves)\n")
    check_transformed(text, text.replace("ReLU()", "ReLU(inplace=True)"))


def test_layers_in_other_layers_are_layers(check_noop: Check) -> None:
    for part in ("net.net[0]", "layers[0]"):
        extra = (
            f"\nnet = Net()\nstage = nn.Sequential(*[nn.Sequential({part}) for i in range(2)])\n"
        )
        check_noop(sequence("nn.Conv2d(3, 3, 3), nn.ReLU()", extra=extra), reason="in-place")


def test_numbers_that_lightning_keeps_for_a_network_do_not_show_it(
    check_transformed: Check,
) -> None:
    told = "        print(f'epoch {self.current_epoch}, step {self.global_step}')\n"
    text = sequence("nn.Conv2d(3, 3, 3), nn.ReLU()").replace("nn.Module)", "L.LightningModule)")
    text = text.replace("import torch\n", "import torch\nimport lightning as L\n", 1)
    text += "\n    def on_train_epoch_end(self):\n" + told
    check_transformed(text, text.replace("nn.ReLU()", "nn.ReLU(inplace=True)"))


LEAKY = "nn.Conv2d(3, 3, 3), nn.LeakyReLU(0.2)"
SHIFT = """
def shift(rows):
    rows += 1
    return rows

def again(rows):
    return shift(rows)

def run(net):
    return net(torch.ones(1, 3, 9, 9))

rows = torch.ones(1, 3, 9, 9)
"""


@pytest.mark.parametrize(
    ("layers", "forward", "extra"),
    [
        (f"{LEAKY}, nn.Dropout(0.5, inplace=True)", "return self.net(x)\n", ""),
        (f"{LEAKY}, nn.Dropout(0.5, True)", "return self.net(x)\n", ""),
        (f"{LEAKY}, nn.ELU(inplace=True)", "return self.net(x)\n", ""),
        (LEAKY, "x = self.net(x)\nx += 1\nreturn x\n", ""),
        (LEAKY, "x = self.net(x)\nx[x > 1] = 0\nreturn x\n", ""),
        (LEAKY, "return self.net(x).clamp_(0, 1)\n", ""),
        (LEAKY, "x = self.net(x)\nreturn x.mul_(2)\n", ""),
        (LEAKY, "x = self.net(x)\nreturn F.relu_(x)\n", ""),
        (LEAKY, "return F.relu(self.net(x), inplace=True)\n", ""),
        (LEAKY, "return self.net(x)\n", "\nout = Net()(torch.ones(1, 3, 9, 9))\nout += 1\n"),
        (LEAKY, "return self.net(x)\n", "\nnet = Net()\nnet(torch.ones(1, 3, 9, 9)).add_(1)\n"),
        (LEAKY, "return self.net(x)\n", f"{SHIFT}out = Net()(rows)\nshift(out)\n"),
        (LEAKY, "return self.net(x)\n", f"{SHIFT}shift(Net()(rows))\n"),
        (LEAKY, "return self.net(x)\n", f"{SHIFT}out = run(Net())\nshift(again(out))\n"),
        (LEAKY, "return self.net(x)\n", f"{SHIFT}out = run(Net())\nshift(out)\n"),
        (LEAKY, "return self.net(x)\n", f"{SHIFT}shift(*find())\n"),
        (LEAKY, "x = self.net(x)\nshift(x)\nreturn x\n", SHIFT),
    ],
)
def test_result_is_overwritten_later(
    check_noop: Check, layers: str, forward: str, extra: str
) -> None:
    text = network(f"self.net = nn.Sequential({layers})\n", forward, extra=extra)
    check_noop(text, reason="may overwrite its result")


def test_other_things_are_overwritten(check_transformed: Check) -> None:
    layers = f"self.net = nn.Sequential({LEAKY})\nself.bn = nn.BatchNorm2d(3)\n"
    forward = "out = self.bn(x)\nout += self.net(x)\nreturn out\n"
    extra = """
        net = Net()
        net.bn.weight.data.normal_(1.0, 0.02)
        nn.init.zeros_(net.bn.bias)
        steps, total = 0, 0.0
        for p in net.parameters():
            p.data.clamp_(-1, 1)
            steps += 1
        total += net(torch.ones(1, 3, 9, 9)).mean().item()
    """
    text = network(layers, forward, extra=extra)
    check_transformed(text, text.replace("LeakyReLU(0.2)", "LeakyReLU(0.2, inplace=True)"))


def test_a_function_overwrites_what_a_dataset_gives_it(check_transformed: Check) -> None:
    rows = """
class Rows:
    def __getitem__(self, item):
        row = self.rows[item]
        row = again(row)
        return shift(row)
"""
    layers = f"self.net = nn.Sequential({LEAKY})\n"
    text = network(layers, "return self.net(x)\n", extra=SHIFT + rows)
    check_transformed(text, text.replace("LeakyReLU(0.2)", "LeakyReLU(0.2, inplace=True)"))


def test_with_compile_nothing_is_gained(check_with: Check) -> None:
    script = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from data import train_set

        model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        @for epoch in range(100):
            for x, y in DataLoader(train_set, batch_size=32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
    """
    check_with(
        ["compile", "inplace-activation"],
        script.replace("@", ""),
        script.replace("@", "model.compile()\n        "),
    )


@pytest.mark.slow
@pytest.mark.torch
def test_same_numbers(check_verified: Check) -> None:
    layers = """
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 3, 3, padding=1),
            nn.ReLU6(),
            nn.MaxPool2d(1),
            nn.Hardtanh(),
        )
        self.bn = nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, 2)
    """
    forward = """
        out = self.bn(self.net(x))
        out += x
        out = F.relu(out)
        return self.fc(F.leaky_relu(out + x, 0.1).mean((2, 3)))
    """
    loop = """

        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            images = torch.randn(4, 3, 8, 8, requires_grad=True)
            loss = F.cross_entropy(model(images), torch.randint(2, (4,)))
            (slope,) = torch.autograd.grad(loss, images, create_graph=True)
            optimizer.zero_grad()
            (loss + slope.square().sum()).backward()
            optimizer.step()
            print(loss.item())
    """
    check_verified(network(layers, forward, extra=loop))
