"""``ddp``: which network is wrapped, and which step trains it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

from .test_ddp import FLAT, code

GPUS = {"gpus": 2}
TRAINED = "model.parameters()"
NETWORK = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(8, 5)
        self.classifier = nn.Linear(5, 3)

    def forward(self, x):
        return self.classifier(self.backbone(x).relu())

model = Net()
"""
MADE = "model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))\n"
LOOKED_AT = """\
        if epoch % 2:
            with torch.no_grad():
                print(model(x).argmax(1))
"""
OTHER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))


def pretrain():
    net = nn.Linear(8, 8)
    adam = torch.optim.Adam(net.parameters())
    for x, _ in DataLoader(data, batch_size=4):
        adam.zero_grad()
        loss = nn.functional.mse_loss(net(x), x)
        loss.backward()
        adam.step()


if __name__ == "__main__":
    pretrain()
"""


@pytest.mark.parametrize(
    "groups",
    [
        "[{'params': model.backbone.parameters()}, {'params': model.classifier.parameters(), 'lr': 1.0}]",
        "list(model.backbone.parameters()) + list(model.classifier.parameters())",
        "model.classifier.parameters()",
    ],
)
def test_groups_of_parts_of_one_network(rewrite: Callable[..., RewriteResult], groups: str) -> None:
    source = FLAT.replace(MADE, NETWORK).replace(TRAINED, groups)
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "    ddp_model = DistributedDataParallel(model)\n" in text
    assert "cross_entropy(ddp_model(x), y)" in text


@pytest.mark.parametrize(
    ("forward", "trained"),
    [
        ("self.classifier(self.backbone(x).detach())", "model.classifier.parameters()"),
        ("self.classifier(self.features(x))", "model.classifier.parameters()"),
        ("self.classifier(self.features(x))", TRAINED),
    ],
)
def test_parts_that_get_no_gradients(
    rewrite: Callable[..., RewriteResult], forward: str, trained: str
) -> None:
    features = (
        "    @torch.no_grad()\n    def features(self, x):\n        return self.backbone(x)\n\n"
    )
    network = NETWORK.replace("    def forward", f"{features}    def forward")
    network = network.replace("self.classifier(self.backbone(x).relu())", forward)
    source = FLAT.replace(MADE, network).replace(TRAINED, trained)
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "DistributedDataParallel(model, find_unused_parameters=True)\n" in text


def test_a_network_that_is_wrapped_in_either_branch(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """As scripts do that load what they go on with in one of them."""
    either = """\
if os.path.isfile("last.pt"):
    model.load_state_dict(torch.load("last.pt"))
    model = nn.DataParallel(model)
else:
    print("from the beginning")
    model = nn.DataParallel(model)
"""
    source = "import os\n" + FLAT.replace("optimizer = ", f"{either}optimizer = ")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert text.count("    if WORLD_SIZE > 1:\n        model = DistributedDataParallel(") == 2
    assert text.count("torch.manual_seed(torch.initial_seed() + RANK)") == 1
    for test in ("if epochs:\n    print", "elif epochs:\n    print"):
        twice = source.replace("else:\n    print", test)
        assert "DistributedDataParallel" not in code(rewrite(twice, ["ddp"], **GPUS))


OTHERS = """\
teacher = nn.DataParallel(nn.Linear(8, 3))
teacher.load_state_dict(torch.load("teacher.pt"))
model = nn.DataParallel(model)
"""


def test_networks_in_data_parallel_that_are_not_trained(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """A teacher, and what another function evaluates, keep to the GPU of their process."""
    evaluate = (
        "def evaluate():\n    net = nn.DataParallel(nn.Linear(8, 3))\n    net(data[:][0])\n\n\n"
    )
    source = FLAT.replace("optimizer = ", f"{OTHERS}\n{evaluate}optimizer = ").replace(
        "loss = ", "with torch.no_grad():\n            wanted = teacher(x)\n        loss = "
    )
    text = code(rewrite(f"{source}evaluate()\n", ["ddp"], **GPUS))
    own = "device_ids=[LOCAL_RANK] if WORLD_SIZE > 1 else None"
    assert text.count(own) == 2
    assert "    model = DistributedDataParallel(" in text


def test_a_teacher_alone_in_data_parallel(rewrite: Callable[..., RewriteResult]) -> None:
    """The network that is trained is wrapped, not what is."""
    others = OTHERS.replace("model = nn.DataParallel(model)\n", "")
    source = FLAT.replace("optimizer = ", f"{others}optimizer = ").replace(
        "loss = ", "with torch.no_grad():\n            wanted = teacher(x)\n        loss = "
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "ddp_model = DistributedDataParallel(model)" in text
    assert "device_ids=[LOCAL_RANK] if WORLD_SIZE > 1 else None" in text
    assert "cross_entropy(ddp_model(x), y)" in text


def test_a_network_that_is_run_by_its_method(rewrite: Callable[..., RewriteResult]) -> None:
    text = code(rewrite(FLAT.replace("model(x)", "model.forward(x)"), ["ddp"], **GPUS))
    assert "ddp_model = DistributedDataParallel(model)" in text
    assert "cross_entropy(ddp_model.forward(x), y)" in text


def test_a_layer_in_data_parallel(rewrite: Callable[..., RewriteResult]) -> None:
    part = "model[0] = nn.DataParallel(model[0])\n"
    text = code(rewrite(FLAT.replace("optimizer = ", f"{part}optimizer = "), ["ddp"], **GPUS))
    assert "model[0] = nn.DataParallel(" in text
    assert "device_ids=[LOCAL_RANK] if WORLD_SIZE > 1 else None" in text
    assert "ddp_model = DistributedDataParallel(model)" in text


@pytest.mark.parametrize(
    ("devices", "kept"), [("range(2)", "range(2)"), ("device_ids=[0, 1]", "[0, 1]"), ("", "None")]
)
def test_a_part_that_is_spread_in_the_forward_pass(
    rewrite: Callable[..., RewriteResult], devices: str, kept: str
) -> None:
    """It is one reason more to distribute, without any number of GPUs asked for, and keeps to the GPU of its process."""
    spread = f"nn.parallel.data_parallel(self.backbone, x{', ' * bool(devices)}{devices})"
    source = FLAT.replace(MADE, NETWORK.replace("self.backbone(x)", spread))
    text = "".join(code(rewrite(source, ["ddp"])).split())
    assert f"[LOCAL_RANK]ifWORLD_SIZE>1else{kept}".replace(" ", "") in text
    assert "ddp_model=DistributedDataParallel(model)" in text


@pytest.mark.parametrize(
    ("before", "made", "reason"),
    [
        (
            "class Spread(nn.DataParallel):\n    pass\n\n",
            "model = Spread(model)\n",
            "`Spread`, a `DataParallel` of the script's own, spreads the network",
        ),
        (
            "from torch.nn.parallel import parallel_apply, replicate\n",
            "replicas = replicate(model, [0, 1])\n",
            "`replicate` spreads the network over GPUs by hand",
        ),
    ],
)
def test_a_network_that_is_spread_by_hand(
    rewrite: Callable[..., RewriteResult], before: str, made: str, reason: str
) -> None:
    (file,) = rewrite(FLAT.replace(MADE, before + MADE + made), ["ddp"], **GPUS).files
    assert not file.changes
    assert reason in file.skips[0].message


def test_parts_of_two_networks(rewrite: Callable[..., RewriteResult]) -> None:
    two = f"{NETWORK}other = Net()\n"
    groups = "[*model.backbone.parameters(), *other.classifier.parameters()]"
    source = FLAT.replace(MADE, two).replace(TRAINED, groups)
    (file,) = rewrite(source, ["ddp"], **GPUS).files
    assert not file.changes
    assert "is not seen to be one network" in file.skips[0].message


def test_a_network_that_is_looked_at_beside_its_step(rewrite: Callable[..., RewriteResult]) -> None:
    source = FLAT.replace("    print(epoch", f"{LOOKED_AT}    print(epoch")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "cross_entropy(ddp_model(x), y)" in text
    assert "told = model(x).argmax(1)\n" in text


def test_a_step_of_an_imported_script_that_is_not_run(
    rewrite: Callable[..., RewriteResult],
) -> None:
    start = FLAT.index("data = ")
    source = FLAT[:start] + "from pretrain import data\n" + FLAT[FLAT.index("loader = ") :]
    files = {"train.py": source, "pretrain.py": OTHER}
    text = code(rewrite(files, ["ddp"], **GPUS))
    assert "    ddp_model = DistributedDataParallel(model)\n" in text
    called = {
        **files,
        "train.py": source.replace("import data\n", "import data, pretrain\n\npretrain()\n"),
    }
    first, *_ = rewrite(called, ["ddp"], **GPUS).files
    assert not first.changes


def test_a_network_that_is_loaded_behind_the_training(
    rewrite: Callable[..., RewriteResult],
) -> None:
    saved = "    torch.save(model.state_dict(), 'model.pt')\n"
    loaded = f"{MADE}model.load_state_dict(torch.load('model.pt'))\nprint(model(data[0][0]))\n"
    text = code(rewrite(FLAT + saved + loaded, ["ddp"], **GPUS))
    assert "cross_entropy(ddp_model(x), y)" in text
    assert f"{MADE}if WORLD_SIZE > 1:\n    dist.barrier()  # until it is saved\n" in text
