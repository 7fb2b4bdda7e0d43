import importlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from torchopt_cli.optimizer.execution.probe.checkpoints import (  # noqa: E402
    SavedTensors,
    describe,
)
from torchopt_cli.optimizer.execution.probe.modes import heeds_mode, told_mode  # noqa: E402


@pytest.mark.parametrize(
    ("module", "heeds"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU()), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), True),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), True),
        (nn.BatchNorm1d(2), True),
        (nn.InstanceNorm1d(2), False),
        (nn.InstanceNorm1d(2, track_running_stats=True), True),
        (nn.GRU(2, 2, num_layers=2, dropout=0.1), True),
        (nn.GRU(2, 2, num_layers=2), True),
        (nn.GRU(2, 2), False),
        (nn.MultiheadAttention(2, 1), True),
        (nn.TransformerEncoderLayer(2, 1, 2, dropout=0.0), True),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)), True),
        (nn.utils.spectral_norm(nn.Linear(2, 2)), True),
        (nn.utils.weight_norm(nn.Linear(2, 2)), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), False),
    ],
)
def test_torchs_layers(module: nn.Module, heeds: bool) -> None:
    assert heeds_mode(module) is heeds


@pytest.mark.parametrize(
    ("forward", "helper", "heeds"),
    [
        ("return self.fc(x)", "", False),
        ("return self.fc(x) * (2 if self.training else 1)", "", True),
        ("return self.fc(x) * (2 if getattr(self, 'training') else 1)", "", True),
        ("return scaled(self, x)", "return net.fc(x) * (2 if net.training else 1)", True),
        ("return self.fc(x)  # as in training", "", False),
    ],
)
def test_classes_of_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forward: str, helper: str, heeds: bool
) -> None:
    name = f"net_{abs(hash((forward, helper)))}"
    (tmp_path / f"{name}.py").write_text(
        "from torch import nn\n\n"
        f"def scaled(net, x):\n    {helper or 'return x'}\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(2, 2)\n\n"
        f"    def forward(self, x):\n        {forward}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    net = importlib.import_module(name).Net()
    assert heeds_mode(net) is heeds
    assert heeds_mode(nn.Sequential(net)) is heeds


def test_what_is_hung_on_a_layer_may_do_anything() -> None:
    hooked, replaced = nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *told: None)
    replaced.forward = lambda x: x  # pyright: ignore[reportAttributeAccessIssue]
    assert heeds_mode(hooked)
    assert heeds_mode(replaced)


def test_code_without_a_source_may_do_anything() -> None:
    names: dict[str, type] = {"nn": nn}
    exec("class Net(nn.Module):\n    def forward(self, x):\n        return x\n", names)
    assert heeds_mode(names["Net"]())


def test_the_mode_that_a_saved_module_is_in() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1))
    assert told_mode(network) == "in training mode"
    network.eval()
    assert told_mode(network) == "in eval mode"
    network[2].train()
    assert told_mode(network) == "in eval mode, but 2 in training mode"
    network[0].train()  # nothing hangs on that
    assert told_mode(network) == "in eval mode, but 2 in training mode"
    assert told_mode(nn.Linear(2, 2)) is None


def test_it_is_told_of_a_module_in_a_checkpoint(tmp_path: Path) -> None:
    saved = describe({"best": nn.Dropout(0.1).eval()}, {}, SavedTensors(tmp_path, 0))
    assert saved["best"] == {"kind": "Dropout", "value": "in eval mode"}
