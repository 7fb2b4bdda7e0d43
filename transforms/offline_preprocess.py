"""Names work in a dataset that gives the same result in every epoch and could be done once, before training.

A `Dataset` makes every item anew in every epoch. Random augmentation has to be done then; what comes before anything
random does not: decoding a large photo and resizing it to 256 pixels, parsing a CSV or JSON file, cutting text into
tokens. Done once and stored, it costs nothing in the epochs after. Photos resized offline also decode faster, which
is often the larger part. Nothing is changed: where the results are stored, and whether there is room for them, is
for the user to say.

Silent: for datasets that only look their items up, for those gone over once, for work behind a random step or behind
code that is not known, and for cheap steps alone.

Source: https://docs.pytorch.org/docs/stable/data.html#map-style-datasets and
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from ..optimizer.analysis.images.image_transforms import ImageTransform, image_transforms
from ..optimizer.analysis.loading.datasets import Dataset, DatasetKind
from ..optimizer.analysis.loading.item_cost import only_indexes
from ..optimizer.analysis.loading.item_work import Work, WorkKind, is_deterministic, item_work
from ..optimizer.analysis.loading.passes import passes_repeat
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options
from .base import Advice, Advisor, Example

_WORTH_STORING = frozenset({"Resize", "CenterCrop", "Grayscale"})
"""Transforms that leave less to load and to decode."""
_READ_FILES = frozenset(
    f"torchvision.datasets.{name}"
    for name in "ImageFolder CelebA Flowers102 Food101 OxfordIIITPet StanfordCars ImageNet Places365 Caltech101".split()
)
"""Datasets of torchvision that decode image files for each item."""


class OfflinePreprocess(Advisor):
    name = "offline-preprocess"
    looks_at_original = True  # others replace what it names
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            augment = transforms.Compose(
                [transforms.Resize(256), transforms.RandomCrop(224), transforms.ToTensor()]
            )
            train_set = datasets.ImageFolder("photos", augment)
            train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(224 * 224 * 3, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(10):
                for images, labels in train_loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        """,
        advice=(
            "every epoch decodes each file and applies `transforms.Resize(256)` with the same result, before anything random: "
            "store the files that way once",
        ),
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Advice]:
        loaders = dict.fromkeys(x for loop in script.training_loops for x in loop.loaders)
        datasets = {
            dataset.node: dataset
            for loader in loaders
            if passes_repeat(script, loader)
            for dataset in script.datasets[loader]
        }
        for dataset in datasets.values():
            message = _message(script, dataset)
            if message is not None:
                yield self.advice(dataset.path, dataset.span, message)


def _message(script: TrainingScript, dataset: Dataset) -> str | None:
    is_made = dataset.kind in {DatasetKind.OWN, DatasetKind.LIBRARY}
    if not is_made or only_indexes(script.resolver, dataset):
        return None
    work = item_work(script.resolver, dataset)
    steps = image_transforms(script.resolver, dataset)
    named = all(step.name for step in steps)
    if (work or steps) and named and is_deterministic(script.resolver, dataset):
        done = [*(_called(w) for w in work), *(f"`{step.name}`" for step in steps)]
        return (
            f"nothing random happens to an item, so every epoch does the same work again ({_listed(done)}): make the "
            "items once and store them"
        )
    parsed = [_called(w) for w in work if w.kind is WorkKind.PARSE]
    if parsed:
        return f"every epoch parses the same texts again ({_listed(parsed)}): store what comes out once"
    applied = [f"`{step.excerpt}`" for step in _worth_storing(steps)]
    if applied and _reads_images(dataset, work):
        return (
            f"every epoch decodes each file and applies {_listed(applied)} with the same result, before anything "
            "random: store the files that way once"
        )
    return None


def _worth_storing(steps: Sequence[ImageTransform]) -> Sequence[ImageTransform]:
    """The steps before the first random one, up to the last whose result is cheaper to load than the file is."""
    fixed = list(takewhile(lambda step: not step.is_random, steps))
    while fixed and fixed[-1].name not in _WORTH_STORING:
        fixed.pop()
    return fixed


def _reads_images(dataset: Dataset, work: Sequence[Work]) -> bool:
    from_folders = dataset.kind is DatasetKind.LIBRARY and dataset.name.strip("`") in _READ_FILES
    return from_folders or any(w.kind is WorkKind.DECODE for w in work)


def _called(work: Work) -> str:
    return f"`{work.module.code(work.node.func)}`"


def _listed(parts: Sequence[str]) -> str:
    *first, last = dict.fromkeys(parts)
    return f"{', '.join(first)} and {last}" if first else last
