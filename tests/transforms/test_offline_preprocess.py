from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]
SCRIPT = """
import csv, json, random
import cv2
import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms as T

class Own(Dataset):
    def __init__(self, paths, transform=None):
        self.paths, self.transform = paths, transform
        self.rng = np.random.default_rng(0)
        self.cache = {{}}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        {item}

train_set = {dataset}
loader = DataLoader(train_set, batch_size=8)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range({epochs}):
    for images in loader:
        model(images).mean().backward()
        optimizer.step()
"""
OPEN = "return self.transform(Image.open(self.paths[index]))"


def training(dataset: str, item: str = OPEN, epochs: int = 9) -> str:
    return SCRIPT.format(dataset=dataset, item=item, epochs=epochs)


def own(*steps: str) -> str:
    return f"Own([], T.Compose([{', '.join(steps)}]))"


def folder(*steps: str) -> str:
    return f'datasets.ImageFolder("data", T.Compose([{", ".join(steps)}]))'


def fixed(applied: str) -> str:
    return (
        f"every epoch decodes each file and applies {applied} with the same result, before anything random: store the "
        "files that way once"
    )


def same(work: str) -> str:
    return (
        f"nothing random happens to an item, so every epoch does the same work again ({work}): make the items once and "
        "store them"
    )


def parsed(work: str) -> str:
    return f"every epoch parses the same texts again ({work}): store what comes out once"


@pytest.mark.parametrize("make", [own, folder])
def test_resizing_before_anything_random(check_advised: Check, make: Callable[..., str]) -> None:
    steps = ["T.Resize(256)", "T.RandomCrop(224)", "T.ToTensor()"]
    check_advised(training(make(*steps)), fixed("`T.Resize(256)`"))
    check_advised(
        training(make("T.Grayscale()", "T.Resize((64, 64))", "T.Pad(2)", "T.ColorJitter(0.1)")),
        fixed("`T.Grayscale()` and `T.Resize((64, 64))`"),
    )


@pytest.mark.parametrize(
    ("dataset", "item", "work"),
    [
        (own("T.Resize(64)", "T.ToTensor()"), OPEN, "`Image.open`, `Resize` and `ToTensor`"),
        ("datasets.MNIST('data', transform=T.ToTensor())", "pass", "`ToTensor`"),
        (
            "Own([])",
            "return torch.from_numpy(cv2.resize(cv2.imread(self.paths[index]), (32, 32)))",
            "`cv2.imread`",
        ),
        ("Own([])", "return torch.tensor(pd.read_csv(self.paths[index]).values)", "`pd.read_csv`"),
    ],
)
def test_items_that_are_the_same_in_every_epoch(
    check_advised: Check, dataset: str, item: str, work: str
) -> None:
    check_advised(training(dataset, item), same(work))


@pytest.mark.parametrize(
    ("item", "work"),
    [
        ("return torch.tensor(json.loads(self.paths[index])) + random.random()", "`json.loads`"),
        (
            "return torch.tensor(pd.read_csv(self.paths[index]).values) * self.rng.random()",
            "`pd.read_csv`",
        ),
    ],
)
def test_parsing_beside_random_numbers(check_advised: Check, item: str, work: str) -> None:
    check_advised(training("Own([])", item), parsed(work))


@pytest.mark.parametrize(
    ("dataset", "item"),
    [
        (folder("T.RandomResizedCrop(224)", "T.ToTensor()"), "pass"),
        (folder("T.RandomCrop(64)", "T.Resize(32)"), "pass"),
        (folder("augment", "T.Resize(32)"), "pass"),
        (folder("T.ToTensor()", "T.RandomCrop(64)"), "pass"),
        ('datasets.CIFAR10("data", transform=T.Compose([T.Resize(64), T.RandomCrop(60)]))', "pass"),
        ("Own([])", "return self.paths[index]"),
        ("Own([])", "return torch.tensor(self.paths[index])"),
        ("Own([])", "return Image.open(self.paths[index]).rotate(random.random())"),
        ("Own([])", "return Image.open(self.paths[index]).rotate(self.rng.random())"),
        ("Own([])", "return np.asarray(Image.open(self.paths[index])) + np.random.rand(3)"),
        ("Own([])", "return torch.zeros(3).normal_() + cv2.imread(self.paths[index])"),
        ("Own([], unknown)", OPEN),
        ("Own([], lambda image: image.rotate(random.random()))", OPEN),
        (
            "Own([])",
            "self.cache[index] = self.cache.get(index) or cv2.imread(self.paths[index]); return self.cache[index]",
        ),
        ("datasets.FakeData(transform=T.ToTensor())", "pass"),
        ("torch.utils.data.TensorDataset(torch.ones(3))", "pass"),
        ("unknown", "pass"),
    ],
)
def test_silent_where_nothing_is_sure_to_repeat(
    check_advised: Check, dataset: str, item: str
) -> None:
    check_advised(training(dataset, item))


def test_silent_when_there_is_one_epoch(check_advised: Check) -> None:
    script = training(own("T.Resize(64)", "T.ToTensor()")).replace(
        "for epoch in range(9):", "if True:"
    )
    check_advised(script)


def test_code_in_another_file(check_advised: Check) -> None:
    files = {
        "train.py": training("Records([])", "pass").replace(
            "class Own", "from data import Records\n\nclass Own"
        ),
        "data.py": """
            import json

            class Records:
                def __init__(self, paths):
                    self.paths = paths

                def __len__(self):
                    return len(self.paths)

                def __getitem__(self, index):
                    return read(self.paths[index])

            def read(path):
                with open(path) as f:
                    return json.load(f)
        """,
    }
    check_advised(files, same("`json.load`"))


def test_what_it_names_is_in_the_script_as_it_was(rewrite: Callable[..., RewriteResult]) -> None:
    dataset = (
        "datasets.MNIST('data', transform=T.Compose([T.ToTensor(), T.Normalize([0.5], [0.5])]))"
    )
    script = training(dataset, "pass").replace("nn.Linear(2, 1)", "nn.Linear(2, 1).cuda()")
    script = script.replace("model(images)", "model(images.cuda())").replace(
        "images in", "images, _ in"
    )
    result = rewrite(script, ["gpu-normalize", "offline-preprocess"])
    assert "PILToTensor" in result.files[0].text
    (given,) = result.files[0].advice
    assert given.message == same("`ToTensor` and `Normalize`")


def test_a_comment_silences_it(check_advised: Check) -> None:
    line = (
        f"{folder('T.Resize(64)', 'T.ToTensor()')}  # torchopt: ignore[offline-preprocess] measured"
    )
    check_advised(training(line))
