"""`channels-last`: networks whose every operation takes either layout, and the many that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.options import Target
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

SCRIPT = """\
import einops
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader

{network}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(train_set, batch_size=8, shuffle=True)
model = {make}
{move}
{after}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x, y = {copy}, y.to(device)
    {more}
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.AdaptiveAvgPool2d({size})
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8, 10)
        {layer}

    def forward(self, x):
        {before}
        x = F.relu(self.norm(self.conv(x)))
        {inside}
        x = self.pool(x)
        {flatten}
        return self.fc(self.drop(x))
"""
FORMAT = "memory_format=torch.channels_last"


def net(
    size: str = "1",
    layer: str = "self.act = nn.ReLU()",
    before: str = "shape = x.size()",
    inside: str = "x = self.act(x)",
    flatten: str = "x = torch.flatten(x, 1)",
) -> str:
    return NET.format(size=size, layer=layer, before=before, inside=inside, flatten=flatten)


def script(**parts: str) -> str:
    default = {
        "network": net(),
        "make": "Net()",
        "move": "model = model.to(device)",
        "after": "model.train()",
        "copy": "x.to(device)",
        "more": "pass",
    }
    return SCRIPT.format(**default | parts)


def transformed(**parts: str) -> tuple[str, str]:
    after = {"move": f"model = model.to(device, {FORMAT})", "copy": f"x.to(device, {FORMAT})"}
    return script(**parts), script(**parts | after)


def test_a_network_of_the_script(check_transformed: Check) -> None:
    check_transformed(*transformed())


def test_a_copy_of_a_network_has_its_layout(check_transformed: Check) -> None:
    before, after = transformed(after="import copy\n\nlocal = copy.deepcopy(model)")
    trained = ("(model.parameters", "(local.parameters"), ("(model(x)", "(local(x)")
    for old, new in trained:
        before, after = before.replace(old, new), after.replace(old, new)
    check_transformed(before, after)


def in_float32(text: str) -> str:
    return text.replace('    with torch.autocast("cuda", dtype=torch.bfloat16):\n    ', "")


def test_for_a_cpu_where_it_is_selected(check_transformed: Check, check_noop: Check) -> None:
    before, after = map(in_float32, transformed())
    assert "autocast" not in before
    check_transformed(before, after, target=Target.CPU)
    reason = "written where it is selected by name"
    check_noop(before, reason=reason, target=Target.CPU, select=frozenset())
    check_noop(before, reason="the step runs in float32", target=Target.CUDA)


@pytest.mark.parametrize(
    "make", ["torchvision.models.resnet18(num_classes=10)", "torchvision.models.vgg16_bn()"]
)
def test_torchvision(check_transformed: Check, make: str) -> None:
    check_transformed(*transformed(make=make))


def test_a_sequential(check_transformed: Check) -> None:
    make = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 10))"
    check_transformed(*transformed(make=make))


@pytest.mark.parametrize(
    "parts",
    [
        {"flatten": "x = x.view(x.size(0), -1)"},
        {"size": "(1, 1)", "flatten": "x = x.view(-1, 8)"},
        {"size": "(1, 1)", "flatten": "x = F.relu(x)\n        x = x.view(x.shape[0], -1)"},
        {"flatten": "x = x.mean(dim=(2, 3))"},
        {"size": "2", "flatten": "x = x.reshape(x.size(0), -1)"},
        {"size": "2", "flatten": "x = x.contiguous().view(x.size(0), -1)"},
        {"inside": "x = torch.cat([x, self.act(x)], 1)"},
        {"inside": "x = F.normalize(x, dim=1)"},
        {"inside": "x = x + torch.randn(1, 8, 6, 6, device=x.device)"},
        {"inside": "s = torch.squeeze(x)"},
        {
            "inside": "s = [x]\n        s.append(self.act(x))\n        s.reverse()\n        s.clear()"
        },
        {"inside": "x = x * torch.bernoulli(torch.tensor(0.9).float())"},
        {"inside": "self.loss = F.mse_loss(x, x.detach())"},
        {"inside": "with torch.no_grad():\n            x.mean()"},
        {
            "inside": "with torch.set_grad_enabled(torch.is_grad_enabled()):\n            x = F.relu(x)"
        },
        {
            "layer": "self.act = nn.LayerNorm(8)",
            "inside": "x = self.act(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)",
        },
        {"inside": "scores = einops.rearrange(x, 'b c h w -> b (h w) c') @ x.flatten(2)"},
    ],
)
def test_what_takes_either_layout(check_transformed: Check, parts: dict[str, str]) -> None:
    check_transformed(*transformed(network=net(**parts)))


BLOCK = """\
class Block(nn.Sequential):
    def __init__(self, channels):
        super().__init__({layers})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.block(x).mean(dim=(2, 3)))
"""
LAYERS = "nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU()"


def test_a_class_that_is_a_sequence(check_transformed: Check) -> None:
    check_transformed(*transformed(network=BLOCK.format(layers=LAYERS)))


@pytest.mark.parametrize("layers", [f"nn.Upsample(scale_factor=2), {LAYERS}", f"*[{LAYERS}]"])
def test_a_sequence_that_is_not_seen_to_begin_with_a_convolution(
    check_noop: Check, layers: str
) -> None:
    reason = "give its input to a convolution"
    check_noop(script(network=BLOCK.format(layers=layers)), reason=reason)


LISTED = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {made}
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))
"""
FILLED = """self.blocks = nn.ModuleList()
        channels = 3
        for width in (4, 8):
            self.blocks.append(nn.Sequential(nn.Conv2d(channels, width, 3), {last}))
            channels = width"""


@pytest.mark.parametrize(
    "made",
    [
        "self.blocks = nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)])",
        "self.blocks = nn.ModuleList(nn.Conv2d(3, 8, 3) for _ in range(1))",
        FILLED.format(last="nn.ReLU()"),
    ],
)
def test_a_list_of_layers(check_transformed: Check, made: str) -> None:
    check_transformed(*transformed(network=LISTED.format(made=made)))


@pytest.mark.parametrize(
    "made",
    [
        "self.blocks = nn.ModuleList([nn.Linear(32, 32), nn.Conv2d(3, 8, 3)])",
        "self.blocks = nn.ModuleList()",
        "self.blocks = nn.ModuleList(layers)",
    ],
)
def test_a_list_of_layers_that_may_begin_with_another(check_noop: Check, made: str) -> None:
    network = LISTED.format(
        made=f"self.conv = nn.Conv2d(8, 8, 1)\n        {made}", blocks="self.blocks"
    )
    check_noop(script(network=network), reason="not seen to give its input to a convolution")


def test_a_forward_of_several_methods(check_transformed: Check, check_noop: Check) -> None:
    network = net().replace("self.norm(self.conv(x))", "self.encode(x)")
    network += "\n    def encode(self, x):\n        return self.norm(self.conv(x))\n"
    check_transformed(*transformed(network=network))
    again = network.replace("return self.norm(self.conv(x))", "return self.encode(x)")
    check_noop(script(network=again), reason="not seen to give its input to a convolution")


def test_copies_under_a_test(check_transformed: Check) -> None:
    """As they were written before PyTorch 0.4: the network and its batches are on the GPU where there is one."""
    loop = "\n".join(
        [
            "if use_cuda:",
            "        x, y = {}, y.cuda()",
            "    x, y = torch.autograd.Variable(x), torch.autograd.Variable(y)",
        ]
    )
    move = "use_cuda = torch.cuda.is_available()\nif use_cuda:\n    model{}"
    source = script().replace("x, y = x.to(device), y.to(device)", loop)
    source = source.replace("model = model.to(device)", move)
    check_transformed(
        source.replace("{}, y.cuda()", "x.cuda(), y.cuda()").replace("model{}", "model.cuda()"),
        source.replace("{}, y.cuda()", f"x.cuda({FORMAT}), y.cuda()").replace(
            "model{}", f"model.cuda().to({FORMAT})"
        ),
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"size": "2", "flatten": "x = x.view(x.size(0), -1)"},
        {"size": "n", "flatten": "x = x.view(x.size(0), -1)"},
        {"size": "2", "flatten": "x += 1\n        x = (x * 2).view(-1, 8 * 2 * 2)"},
        {"inside": "s = x.flatten(2).view(x.size(0), -1)"},
        {"inside": "s = F.relu(x.view(len(x), -1))"},
        {
            "inside": "s = F.relu(self.fc(x[:, :, 0, 0]).sigmoid())\n        s = s.view(-1, 10, 1, 1)"
        },
        {
            "layer": "self.up = nn.Sequential(nn.Linear(8, 16), nn.ReLU())",
            "inside": "s = self.up(x.mean((2, 3)))\n        s = s.view(-1, *self.shape)",
        },
    ],
)
def test_a_view_that_flattens(check_transformed: Check, parts: dict[str, str]) -> None:
    before, after = transformed(network=net(**parts))
    check_transformed(before, after.replace(".view(", ".reshape("))


def test_a_table_of_counts_is_no_image(check_transformed: Check) -> None:
    """The network gives images back, so that what is made of them may be laid out as they are."""
    more = "counts = torch.bincount({}, minlength=4)\n    confusion = counts.view(2, 2)"
    network = net(flatten="return x").replace("self.drop = nn.Dropout(0.1)", "")
    check_transformed(*transformed(network=network, more=more.format("y.flatten()")))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"inside": "x.view(x.size(0), -1).mul_(2)"}, "`.view` fails"),
        ({"inside": "s = x.view(x.size(0), -1)\n        s += 1"}, "`.view` fails"),
        ({"inside": "s = x.view(x.size(0), -1)\n        s[0] = 1"}, "`.view` fails"),
        ({"inside": "s = x.view(x.size(0), -1)\n        F.relu(s, inplace=True)"}, "`.view` fails"),
        ({"inside": "self.s = x.view(x.size(0), -1)"}, "`.view` fails"),
        (
            {"layer": "self.act = nn.ReLU(True)", "inside": "self.act(x.view(x.size(0), -1))"},
            "`.view` fails",
        ),
        ({"inside": "x = x.view(x.size(0), 2, 4, 6, 6)"}, "`.view` fails"),
        ({"inside": "s = x.view(*x.shape[:1], -1)"}, "`.view` fails"),
        (
            {
                "layer": "self.up = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU())",
                "inside": "s = self.up(x)\n        s = s.view(-1, 4, 4, 4)",
            },
            "`.view` fails",
        ),
        ({"inside": "s = x.flatten(0, 1).view(-1)"}, "`.view` fails"),
        ({"inside": "x = self.drop(x)"}, "order of memory"),
        ({"inside": "x = F.dropout(x, 0.1, self.training)"}, "order of memory"),
        ({"inside": "x = x + torch.randn_like(x)"}, "torch.randn_like"),
        ({"inside": "x = x.as_strided((1, 1), (1, 1))"}, "`.as_strided`"),
        ({"inside": "x = x.unfold(2, 2, 2)"}, "`.unfold`"),
        ({"inside": "x = x[::2].resize_(3, 3)"}, "`.resize_`"),
        ({"inside": "x = squash(x)"}, "squash"),
        ({"layer": "self.act = nn.Conv3d(1, 1, 3)"}, "nn.Conv3d"),
        ({"layer": "self.act = nn.Conv1d(1, 1, 3)"}, "nn.Conv1d"),
        ({"layer": "self.act = nn.LSTM(1, 1)"}, "nn.LSTM"),
        ({"layer": "self.act = nn.Unflatten(1, (2, 2))"}, "nn.Unflatten"),
        ({"layer": "self.act = torchvision.models.video.r3d_18()"}, "not known"),
        ({"before": "x = x.unsqueeze(1)"}, "give its input to a convolution"),
        ({"before": "x = x.reshape(-1, 1, 28, 28)"}, "give its input to a convolution"),
    ],
)
def test_networks_that_must_not(check_noop: Check, parts: dict[str, str], reason: str) -> None:
    check_noop(script(network=net(**parts)), reason=reason)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"after": "model.apply(lambda m: None)\nnn.init.normal_(model.conv.weight)"}, "drawn"),
        ({"after": "for p in model.modules():\n    nn.init.kaiming_normal_(p.weight)"}, "drawn"),
        ({"after": "model.conv.weight.data.normal_(0, 0.02)"}, "drawn"),
        ({"after": "model.conv.register_forward_hook(keep)"}, "hook"),
        ({"after": "model = nn.DataParallel(model)"}, "DataParallel"),
        ({"after": "torch.onnx.export(model, x, 'model.onnx')"}, "torch.onnx.export"),
        (
            {"after": "v = nn.utils.parameters_to_vector(model.parameters())"},
            "parameters_to_vector",
        ),
        ({"more": "x = mix(x, y)"}, "not just a batch"),
        ({"more": "print(x.view(-1).mean())"}, "`.view`"),
        ({"more": "norm = sum(p.view(-1).norm() for p in model.parameters())"}, "`.view`"),
        ({"more": "noise = torch.rand_like(x)"}, "torch.rand_like"),
        ({"more": "model.cpu()\n    model.to(device)"}, "moved to a device"),
        ({"copy": "x.type(torch.cuda.FloatTensor)"}, "not copied by"),
        ({"make": "torchvision.models.segmentation.fcn_resnet50()"}, "not known"),
        ({"make": "torchvision.models.squeezenet1_0()"}, "not known"),
    ],
)
def test_scripts_that_must_not(check_noop: Check, parts: dict[str, str], reason: str) -> None:
    check_noop(script(**parts), reason=reason)


def test_images_that_are_an_object_of_a_collate_fn(check_noop: Check) -> None:
    images = """\
class Images:
    def __init__(self, tensors):
        self.tensors = tensors

    def to(self, device):
        return Images(self.tensors.to(device))


def collate(items):
    x, y = zip(*items)
    return Images(torch.stack(x)), torch.tensor(y)


"""
    source = script(network=images + net()).replace("shuffle=True", "collate_fn=collate")
    check_noop(source, "the batch may be a `Images`, whose `to` takes no `memory_format`")


def test_weights_drawn_by_a_function_after_the_move(check_noop: Check) -> None:
    network = net() + "\n\ndef init(m):\n    nn.init.normal_(m.weight)\n"
    check_noop(script(network=network, after="model.apply(init)"), reason="drawn")


def test_weights_drawn_before_the_move(check_transformed: Check) -> None:
    network = net() + "\n\ndef init(m):\n    nn.init.normal_(m.weight)\n"
    make = "Net()\nmodel.apply(init)"
    check_transformed(*transformed(network=network, make=make))


def test_labels_and_predictions_may_be_viewed(check_transformed: Check) -> None:
    check_transformed(*transformed(more="hits = model(x).argmax(1).eq(y.view(-1))"))


def test_outputs_that_are_images_may_not(check_noop: Check) -> None:
    make = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())"
    check_noop(script(make=make, more="flat = model(x).view(-1)"), reason="`.view`")


def test_a_loss_of_the_script_that_views_images(check_noop: Check) -> None:
    network = """\
class Dice(nn.Module):
    def forward(self, p, y):
        return (p.view(-1) * y.view(-1)).sum()
"""
    source = script(network=network, make="nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())")
    source = source.replace("F.cross_entropy(model(x), y)", "Dice()(model(x), y)")
    check_noop(source, reason="`.view`")


def test_a_loss_of_the_script_on_flat_outputs(check_transformed: Check) -> None:
    network = (
        net()
        + """
class Loss(nn.Module):
    def forward(self, p, y):
        return (p.view(-1) * y.view(-1)).sum()
"""
    )
    before, after = (
        text.replace("F.cross_entropy(model(x), y)", "Loss()(model(x), y)")
        for text in transformed(network=network)
    )
    check_transformed(before, after)


def test_an_optimizer_of_the_script_that_views_weights(check_noop: Check) -> None:
    network = (
        net()
        + """
class Normalized(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad /= p.view(-1).norm()
"""
    )
    source = script(network=network).replace("torch.optim.SGD(model", "Normalized(model")
    check_noop(source, reason="`.view`")


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("model.layer4 = Attention()", "exchanged"),
        ("model.avgpool = nn.Unfold(3)", "nn.Unfold"),
        ("model.layer1[0].conv1 = Attention()", "exchanged"),
    ],
)
def test_parts_exchanged(check_noop: Check, part: str, reason: str) -> None:
    network = "class Attention(nn.Module):\n    def forward(self, x):\n        return x.view(2)\n"
    make = f"torchvision.models.resnet18()\n{part}"
    check_noop(script(network=network, make=make), reason=reason)


def test_a_head_exchanged(check_transformed: Check) -> None:
    make = "torchvision.models.resnet18()\nmodel.fc = nn.Linear(512, 10)"
    check_transformed(*transformed(make=make))


def test_in_float32_it_seldom_pays(check_noop: Check) -> None:
    source = script().replace('torch.autocast("cuda", dtype=torch.bfloat16)', "open('log')")
    check_noop(source, reason="float32")


def test_with_autocast_it_follows(rewrite: Callable[..., object]) -> None:
    source = script().replace(
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n        loss', "    loss"
    )
    result = rewrite(source, ["autocast", "channels-last"])
    names = {c.transform for file in result.files for c in file.changes}  # type: ignore[attr-defined]
    assert names == {"autocast", "channels-last"}


def test_cuda_methods_and_an_alias(check_transformed: Check) -> None:
    before, _ = transformed(move="model.cuda()", copy="x.cuda(non_blocking=True)")
    before = before.replace("import torch\n", "import torch as th\n").replace("torch.", "th.")
    before = before.replace("import th.nn.functional", "import torch.nn.functional")
    before = before.replace("from th.utils", "from torch.utils")
    format_ = "memory_format=th.channels_last"
    after = before.replace("model.cuda()", f"model.cuda().to({format_})")
    after = after.replace("non_blocking=True)", f"non_blocking=True, {format_})")
    check_transformed(before, after)


def test_network_loop_and_evaluation_in_several_files(check_transformed: Check) -> None:
    train = """\
        import torch
        from torch.utils.data import DataLoader
        from data import train_set, test_set
        from engine import train, test
        from model import Net

        device = "cuda"
        model = Net().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, DataLoader(train_set, batch_size=8), optimizer, device)
        test(model, DataLoader(test_set, batch_size=8), device)
    """
    model = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n" + net()
    engine = """\
        import torch
        import torch.nn.functional as F


        def train(model, loader, optimizer, device):
            for batch in loader:
                x = batch["image"].to(device)
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), batch["label"].to(device))
                loss.backward()
                optimizer.step()


        def test(model, loader, device):
            model.eval()
            with torch.no_grad():
                for batch in loader:
                    print(model(batch["image"].to(device)))
    """
    files = {"train.py": train, "model.py": model, "engine.py": engine}
    after = {
        "train.py": train.replace("Net().to(device)", f"Net().to(device, {FORMAT})"),
        "model.py": model,
        "engine.py": engine.replace('["image"].to(device)', f'["image"].to(device, {FORMAT})'),
    }
    check_transformed(files, after)


@pytest.mark.parametrize(
    ("second", "is_image"),
    [
        ("self.one(second)", True),
        ("self.fc(second)", False),
        ("self.one(second[:, :3])", False),
        ("self.one(x) * second", False),
    ],
)
def test_two_views_of_a_batch(check_transformed: Check, second: str, is_image: bool) -> None:
    """What goes into a convolution has channels; a further argument may have none."""
    network = f"""{net()}

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = Net()
        self.fc = nn.Linear(8, 10)

    def forward(self, x, second):
        return self.one(x) + {second}
"""
    given = f"z.to(device, {FORMAT})" if is_image else "z.to(device)"
    before, after = (
        text.replace("x, y in loader", "x, z, y in loader")
        .replace("    pass", f"    z = {copied}")
        .replace("model(x)", "model(x, z)")
        for text, copied in zip(
            transformed(network=network, make="Pair()"), ("z.to(device)", given), strict=True
        )
    )
    check_transformed(before, after)


def test_images_normalized_on_the_device(check_transformed: Check) -> None:
    network = (
        net()
        + """

def normalize(images):
    return images.float().div_(255)
"""
    )
    before, after = (
        text.replace("    x, y = ", "    x, y = normalize(").replace(", y.to", "), y.to")
        for text in transformed(network=network)
    )
    check_transformed(before, after)


def test_a_function_that_copies_images_and_labels(check_noop: Check) -> None:
    network = (
        net()
        + """

def on_device(t):
    return t.to(device)
"""
    )
    source = script(network=network).replace(
        "x.to(device), y.to(device)", "on_device(x), on_device(y)"
    )
    check_noop(source, reason="not just a batch")


@pytest.mark.parametrize(
    "copy",
    [
        "x, y = [t.to(device) for t in (x, y)]",
        "x, y = (t.to(device) for t in (x, y))",
        "x, y = map(lambda t: t.to(device), (x, y))",
    ],
)
def test_images_and_labels_copied_by_one_expression(check_noop: Check, copy: str) -> None:
    source = script().replace("x, y = x.to(device), y.to(device)", copy)
    check_noop(source, reason="not just a batch")


def test_several_crops_of_an_image(check_noop: Check) -> None:
    check_noop(script(more="x = x.flatten(0, 1)"), reason="not just a batch")


def test_images_changed_in_one_branch(check_noop: Check) -> None:
    check_noop(script(more="x = mix(x) if mixing else x"), reason="not just a batch")
    check_noop(script(more="if mixing: x = mix(x)"), reason="not just a batch")


@pytest.mark.parametrize(
    ("move", "after"),
    [
        ("Net().to(device) if gpu else Net()", f"Net().to(device, {FORMAT}) if gpu else Net()"),
        (
            "Net() if not gpu else Net().to(device)",
            f"Net() if not gpu else Net().to(device, {FORMAT})",
        ),
    ],
)
def test_a_network_made_in_both_branches(check_transformed: Check, move: str, after: str) -> None:
    before = script(make=move, move="")
    check_transformed(before, script(make=after, move="", copy=f"x.to(device, {FORMAT})"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("Net().to(device) if gpu else Net().to(device)", "moved to a device 2 times"),
        ("Net().to(device) if gpu else torchvision.models.resnet18()", "several networks"),
    ],
)
def test_different_networks_in_both_branches(check_noop: Check, make: str, reason: str) -> None:
    check_noop(script(make=make, move=""), reason=reason)


def test_one_of_several_networks(check_transformed: Check, check_noop: Check) -> None:
    chosen = "Net() if small else torchvision.models.resnet18()"
    move, copy = f"model = model.to(device, {FORMAT})", f"x.to(device, {FORMAT})"
    check_transformed(script(make=chosen), script(make=chosen, move=move, copy=copy))
    unknown = chosen.replace("resnet18", "densenet121")
    check_noop(script(make=unknown), reason="densenet121` is not known")


def test_two_networks(check_noop: Check) -> None:
    source = script(network=net() + "\nother = Net().to(device)", more="z = other(x)")
    check_noop(source, reason="several networks")


def test_linear_networks_say_nothing(check_noop: Check) -> None:
    check_noop(script(make="nn.Sequential(nn.Flatten(), nn.Linear(8, 10))"))


def test_a_script_that_chooses_formats(check_noop: Check) -> None:
    check_noop(script(move=f"model.to({FORMAT})\nmodel.to(device)"))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    "head",
    [
        "nn.Flatten(), nn.Linear(144, 2)).to(device)",
        "View()).to(device)",
    ],
)
def test_verified(check_verified: Check, head: str) -> None:
    check_verified(
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class View(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(144, 2)

    def forward(self, x):
        return self.fc(x.view(x.size(0), -1))

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(20, 3, 8, 8), torch.randint(2, (20,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), HEAD
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
""".replace("HEAD", head)
    )


def test_of_two_steps_that_in_float32_is_named(rewrite: Callable[..., RewriteResult]) -> None:
    plain = """
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
"""
    text = script() + plain
    (skip,) = [skip for file in rewrite(text, ["channels-last"]).files for skip in file.skips]
    assert "float32" in skip.message
    assert ".backward()" in text.splitlines()[skip.line - 1]
    assert skip.line > text[: -len(plain)].count("\n")
