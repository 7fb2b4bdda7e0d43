"""Where a loop writes to what its dataset holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.dataset_views import write_to_dataset
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.options import Options, Target

Script = Callable[..., TrainingScript]
OWN = "return self.images[i], 0"


@pytest.mark.parametrize(
    ("arguments", "item", "loop", "written"),
    [
        ("batch_size=None", OWN, "x.mul_(2)", "x.mul_(2)"),
        ("batch_size=None", OWN, "x += 1", "x += 1"),
        ("batch_size=None", OWN, "x[0] = 1", "x[0]"),
        ("batch_size=None", "image = self.images[i]\n        return image, 0", "x += 1", "x += 1"),
        ("batch_size=None", "return torch.from_numpy(self.images[i]), 0", "x += 1", "x += 1"),
        ("collate_fn=lambda b: b[0]", OWN, "x.mul_(2)", "x.mul_(2)"),
        ("collate_fn=unzip", OWN, "for t in x:\n        t.mul_(2)", "t.mul_(2)"),
        ("batch_size=None", OWN, "x = x + 1", None),
        ("batch_size=None", OWN, "x = x.cuda()\n    x.mul_(2)", None),
        ("batch_size=None", "return self.images[i] * 2, 0", "x.mul_(2)", None),
        ("batch_size=None", "return self.images[i].clone(), 0", "x.mul_(2)", None),
        ("batch_size=8", OWN, "x.mul_(2)", None),
        ("", OWN, "x.mul_(2)", None),
        ("collate_fn=stack", OWN, "x.mul_(2)", None),
        ("collate_fn=torch.utils.data.default_collate", OWN, "x.mul_(2)", None),
    ],
)
def test_writes(script: Script, arguments: str, item: str, loop: str, written: str | None) -> None:
    assert _written(script, arguments, item, loop) == written


def test_device_that_may_be_the_cpu(script: Script) -> None:
    loop = "x = x.to(device)\n    x.mul_(2)"
    assert _written(script, "batch_size=None", OWN, loop) is None
    assert _written(script, "batch_size=None", OWN, loop, Target.CPU) == "x.mul_(2)"


def _written(
    script: Script, arguments: str, item: str, loop: str, target: Target = Target.CUDA
) -> str | None:
    understood = script(f"""\
import torch
from torch.utils.data import DataLoader, Dataset
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
class Images(Dataset):
    def __init__(self):
        self.images = torch.load("images")
    def __getitem__(self, i):
        {item}
def unzip(items):
    return list(zip(*items))
def stack(items):
    return torch.stack([x for x, y in items]), [y for x, y in items]
loader = DataLoader(Images(), {arguments})
for x, y in loader:
    {loop}
""")
    (loader,) = understood.loaders
    options = Options(target=target)
    fact = write_to_dataset(understood, loader, understood.datasets[loader], options)
    return None if fact is None else fact.code
