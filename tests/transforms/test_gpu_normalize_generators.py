"""gpu-normalize: batches that reach the loop through a generator of the script's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Check = Callable[..., None]

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


{generator}


loader = DataLoader(datasets.CIFAR10("data", transform=transforms.{transform}()), batch_size=4)
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
{loop}
"""
CYCLE = """\
def cycle(batches):
    while True:
        for batch in batches:
            yield batch"""
CYCLE_FROM = """\
def cycle(batches):
    while True:
        yield from batches"""
LOG_EVERY = """\
class Logger:
    def log_every(self, iterable, freq):
        for i, batch in enumerate(iterable):
            yield batch
            if i % freq == 0 or i == len(iterable) - 1:
                print(i)"""
NEXT = """\
endless = cycle(loader)
for step in range(100):
    images, labels = next(endless)
    images = {images}
    model(images).sum().backward()"""
KEPT = """\
class Trainer:
    def __init__(self, loader):
        self.batches = cycle(loader)

    def train(self):
        for step in range(100):
            images = {images}
            model(images).sum().backward()


Trainer(loader).train()"""
LOGGED = """\
logger = Logger()
for i, (images, labels) in enumerate(logger.log_every(loader, 10)):
    images = {images}
    model(images).sum().backward()"""


def script(generator: str, loop: str, transform: str, images: str, copied: str = "images") -> str:
    device = f"{copied}.to(device)"
    loop = loop.format(images=images.format(device))
    return SCRIPT.format(generator=generator, loop=loop, transform=transform)


@pytest.mark.parametrize(
    ("generator", "loop", "copied"),
    [
        (CYCLE, NEXT, "images"),
        (CYCLE_FROM, NEXT, "images"),
        (CYCLE, KEPT, "next(self.batches)[0]"),
        (LOG_EVERY, LOGGED, "images"),
    ],
)
def test_batches_of_a_generator(
    rewrite: Callable[..., object], generator: str, loop: str, copied: str
) -> None:
    source = script(generator, loop, "ToTensor", "{}", copied)
    text: str = rewrite(source, ["gpu-normalize"]).files[0].text  # type: ignore[attr-defined]
    assert "transform=transforms.PILToTensor()" in text
    assert f"images = {copied}.to(device).float().div_(255)" in text


@pytest.mark.parametrize(
    ("generator", "loop", "reason"),
    [
        (CYCLE.replace("yield batch", "yield batch[0].mean(), batch[1]"), NEXT, "the host uses"),
        (CYCLE + "\n            yield batch", NEXT, "yields in several places"),
        (CYCLE, NEXT + "\nplot(endless)", "its loader is also used in `plot(endless)`"),
        (CYCLE, NEXT + "\nplot(cycle)", "who gets"),
        (
            CYCLE,
            NEXT.replace("for step", "if toy:\n    endless = iter(toys)\nfor step"),
            "may be something else than a loader of these images",
        ),
    ],
)
def test_generators_that_are_not_followed(
    rewrite: Callable[..., object], generator: str, loop: str, reason: str
) -> None:
    source = script(generator, loop, "ToTensor", "{}")
    (file,) = rewrite(source, ["gpu-normalize"]).files  # type: ignore[attr-defined]
    assert file.text == source
    assert any(reason in skip.message for skip in file.skips), file.skips


OVER_ITSELF = """\
from tqdm import tqdm

for epoch in range(3):
    if epoch:
        loader = {wrapped}
    for images, labels in loader:
        images = {images}
        model(images).sum().backward()"""


def test_a_bar_over_the_loader_takes_its_name_in_every_epoch(
    rewrite: Callable[..., object],
) -> None:
    loop = OVER_ITSELF.replace("{wrapped}", "tqdm(loader)")
    source = script("", loop, "ToTensor", "{}")
    text: str = rewrite(source, ["gpu-normalize"]).files[0].text  # type: ignore[attr-defined]
    assert "images = images.to(device).float().div_(255)" in text


def test_a_loader_that_is_counted_again_in_every_epoch(rewrite: Callable[..., object]) -> None:
    loop = OVER_ITSELF.replace("{wrapped}", "enumerate(loader)")
    source = script("", loop, "ToTensor", "{}")
    (file,) = rewrite(source, ["gpu-normalize"]).files  # type: ignore[attr-defined]
    assert file.text == source
    assert file.skips, "a reason says why"
