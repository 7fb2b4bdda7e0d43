from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.images.image_transforms import (
    ImageShape,
    image_shape,
    image_transforms,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

SCRIPT = """
    from torchvision.transforms import *
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms
    side = 24

    def build(size):
        return transforms.Compose([Resize(32), RandomCrop(size), ToTensor()])

    loader = DataLoader(datasets.ImageFolder("data", {transform}))
"""


def seen(found: TrainingScript) -> tuple[list[tuple[str, bool]], ImageShape | None]:
    (dataset,) = found.datasets[found.loaders[0]]
    steps = image_transforms(found.resolver, dataset)
    return [(s.name, s.is_random) for s in steps], image_shape(found.resolver, dataset)


@pytest.mark.parametrize(
    ("transform", "names", "shape"),
    [
        ("build(side)", ["Resize", "RandomCrop", "ToTensor"], ImageShape(3, 24, 24, "float32")),
        ("transform=Compose([CenterCrop((8, 16)), ToTensor()])", ["CenterCrop", "ToTensor"], ImageShape(3, 8, 16, "float32")),
        ("Compose([Compose([CenterCrop(8)]), PILToTensor()])", ["CenterCrop", "PILToTensor"], ImageShape(3, 8, 8, "uint8")),
        ("Compose([Resize(32), ToTensor()])", ["Resize", "ToTensor"], None),
        ("Compose([print, ToTensor()])", ["", "ToTensor"], None),
        ("ToTensor()", ["ToTensor"], None),
        ("print", [], None),
    ],
)  # fmt: skip
def test_the_transforms_and_what_they_make(
    script: Callable[..., TrainingScript],
    transform: str,
    names: list[str],
    shape: ImageShape | None,
) -> None:
    steps, found = seen(script(SCRIPT.format(transform=transform)))
    assert [name for name, _ in steps] == names
    assert found == shape


def test_which_are_random(script: Callable[..., TrainingScript]) -> None:
    steps, _ = seen(
        script(SCRIPT.format(transform="Compose([Resize(8), ColorJitter(), ToTensor(), print])"))
    )
    assert [is_random for _, is_random in steps] == [False, True, False, True]


def test_a_sequence_that_may_hold_itself(script: Callable[..., TrainingScript]) -> None:
    steps, _ = seen(
        script(
            """
            from torch.utils.data import DataLoader
            from torchvision import datasets
            from torchvision.transforms import CenterCrop, Compose

            class Data:
                def __init__(self):
                    self.transform = Compose([CenterCrop(8), self.transform])
                    self.loader = DataLoader(datasets.ImageFolder("data", self.transform))

            data = Data()
            """
        )
    )
    assert [name for name, _ in steps] == ["CenterCrop", ""]


def test_bytes_of_an_image() -> None:
    assert ImageShape(3, 512, 512, "float32").size == 3_145_728
    assert ImageShape(3, 512, 512, "uint8").size == 786_432
