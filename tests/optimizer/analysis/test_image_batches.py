"""Pipelines of images, what they are applied to and where the images are copied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.images.image_pipelines import find_image_pipelines
from torchopt_cli.optimizer.analysis.images.pil_images import is_pil_image
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
IMPORTS = (
    "from torchvision import transforms\nfrom torchvision.transforms import v2\nimport torch\n"
)


@pytest.mark.parametrize(
    ("code", "removed", "obstacle"),
    [
        ("[transforms.Resize(3), transforms.ToTensor()]", 0, None),
        ("[transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))]", 1, None),
        ("[v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]", 1, None),
        ("[v2.ToImage(), v2.ToDtype(torch.float32, True), v2.Normalize([0.5], [0.5])]", 2, None),
        ("[v2.ToDtype(torch.float32, scale=True)]", 1, "no `ToImage()`"),
        ("[len, transforms.ToTensor()]", 0, "`len`"),
        ("[transforms.ToTensor(), len]", 1, "`len`"),
        ("[transforms.RandomApply([transforms.Pad(2)]), transforms.ToTensor()]", 0, None),
        ("[transforms.RandomApply([len]), transforms.ToTensor()]", 0, "RandomApply"),
    ],
)
def test_pipelines(script: Script, code: str, removed: int, obstacle: str | None) -> None:
    found = find_image_pipelines(script(f"{IMPORTS}t = {code}\n").resolver)
    assert len(found) == 1
    assert len(found[0].removed) == removed
    if obstacle is None:
        assert found[0].obstacle is None
    else:
        assert obstacle in (found[0].obstacle or "")


def test_conversion_without_scaling_is_no_pipeline(script: Script) -> None:
    code = "t = [v2.ToImage(), v2.ToDtype(torch.float32), v2.ToDtype(torch.uint8, scale=True)]\n"
    assert find_image_pipelines(script(IMPORTS + code).resolver) == ()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("Image.open(p).convert('RGB')", True),
        ("Image.open(p).convert('L').resize((3, 3)).transpose(1)", True),
        ("Image.open(p).convert('F')", False),
        ("Image.open(p).convert('1')", False),
        ("Image.open(p).convert(mode)", False),
        ("Image.open(p)", False),
        ("Image.open(p).convert('RGB').getdata()", False),
        ("Image.fromarray(p)", False),
        ("Image.fromarray(p).convert('RGB')", True),
        ("Image.new('RGB', (3, 3))", True),
        ("TF.hflip(Image.open(p).convert('RGB'))", True),
        ("TF.hflip(p)", False),
        ("TF.to_tensor(Image.open(p).convert('RGB'))", False),
    ],
)
def test_images_of_eight_bits(script: Script, expression: str, expected: bool) -> None:
    code = "import sys\nfrom PIL import Image\nimport torchvision.transforms.functional as TF\n"
    code += f"p = mode = sys.argv[1]\nASK({expression})\n"
    understood = script(code)
    (call,) = [c for c in understood.entry.calls if understood.entry.code(c.func) == "ASK"]
    assert is_pil_image(understood.resolver, call.args[0], understood.entry) is expected


DATA = """\
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
a = datasets.MNIST("a", transform=transforms.ToTensor())
b = datasets.MNIST("b", transform=transforms.ToTensor())
"""


def test_pipelines_meet_where_their_images_are_copied(script: Script) -> None:
    together = "def run(loader):\n    for x, y in loader:\n        x.to(device)\nrun(DataLoader(a))\nrun(DataLoader(b))\n"
    (batches,) = script(DATA + together).image_batches
    assert len(batches.pipelines) == 2
    assert [copy.code for copy in batches.copies] == ["x.to(device)"]
    assert batches.obstacle is None


def test_pipelines_that_do_not_meet(script: Script) -> None:
    apart = (
        "for x, y in DataLoader(a):\n    x.to(device)\nfor x, y in DataLoader(b):\n    x.sum()\n"
    )
    first, second = script(DATA + apart).image_batches
    assert first.obstacle is None
    assert second.obstacle is not None
    assert "`x.sum()`" in second.obstacle.message


def test_the_type_of_a_copy_is_left_out(script: Script) -> None:
    loop = "for x, y in DataLoader(a):\n    x.to(device, dtype=torch.float32)\n"
    batches = script(DATA + loop).image_batches
    assert [copy.copying for copy in batches[0].copies] == ["x.to(device)"]
