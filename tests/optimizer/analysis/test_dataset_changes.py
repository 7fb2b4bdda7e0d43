"""Where a script changes a dataset behind its workers' backs."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.analysis.loading.dataset_changes import changes_of_dataset
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
from torch.utils.data import DataLoader
class Items:
    def __init__(self):
        self.level, self.rows = 0, []
    def harder(self):
        self.level += 1
    def describe(self):
        return self.level
    def __getitem__(self, i):
        return open(i)
data = Items()
other = Items()
"""
LOADER = "loader = DataLoader(data)\n"


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (LOADER + "data.level = 2\n", ["data.level"]),
        (LOADER + "loader.dataset.level = 2\n", ["loader.dataset.level"]),
        (LOADER + "data.rows[0] = 2\n", ["data.rows[0]"]),
        (LOADER + "data.harder()\n", ["data.harder"]),
        (LOADER + "loader.dataset.harder()\n", ["loader.dataset.harder"]),
        (LOADER + "loader.dataset.describe()\n", []),
        (LOADER + "def f(d):\n    d.level = 3\nf(data)\n", ["d.level"]),
        (LOADER + "print(data.level, data.describe())\n", []),
        (LOADER + "other.level = 2\n", []),
        (LOADER + "data = 3\n", []),
        ("data.level = 2\n" + LOADER, []),
        ("for i in range(3):\n    data.level = 2\n" + LOADER, []),
        ("for i in range(3):\n    data.level = 2\n    " + LOADER, ["data.level"]),
        ("def f():\n    data.level = 2\n" + LOADER + "f()\n", ["data.level"]),
    ],
)
def test_changes(script: Script, code: str, changed: list[str]) -> None:
    understood = script(HEAD + code)
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = changes_of_dataset(understood.resolver, loader, dataset)
    assert [change.code for change in found] == changed


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("def f():\n    return DataLoader(Sorted(['b', 'a']))\nf()\n", []),
        ("for i in range(3):\n    data = Sorted(['b', 'a'])\n    loader = DataLoader(data)\n", []),
        ("names = ['b']\ndef f():\n    return DataLoader(Sorted(names))\nf()\n", ["names.sort"]),
        (
            "names = ['b']\nfor i in range(3):\n    loader = DataLoader(Sorted(names))\n",
            ["names.sort"],
        ),
        ("loader = DataLoader(Sorted(names := ['b']))\nother = Sorted(names)\n", ["names.sort"]),
    ],
)
def test_what_a_constructor_changes(script: Script, code: str, changed: list[str]) -> None:
    sorts = (
        "class Sorted(Items):\n    def __init__(self, names):\n"
        "        names.sort()\n        self.level = names\n"
    )
    understood = script(HEAD + sorts + code)
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = changes_of_dataset(understood.resolver, loader, dataset)
    assert [change.code for change in found] == changed


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (LOADER + "files.append(1)\n", ["files.append"]),
        (LOADER + "files[0] = 1\n", ["files[0]"]),
        (LOADER + "files += [1]\n", ["files += [1]"]),
        ("files += [1]\n" + LOADER, []),
        (LOADER + "files.index(1)\n", []),
        ("for i in range(3):\n    files.append(1)\n" + LOADER, []),
        (LOADER + "buffer.push(1)\n", ["buffer.push"]),
        (LOADER + "buffer.items.append(1)\n", ["buffer.items.append"]),
        (LOADER + "loader.dataset.buffer.push(1)\n", ["loader.dataset.buffer.push"]),
        (LOADER + "loader.dataset.buffer.size()\n", []),
        (LOADER + "buffer.size()\n", []),
        (LOADER + "args.level = 3\n", ["args.level"]),
        (LOADER + "args.lr = 3\n", []),
        ("", []),
    ],
)
def test_what_the_dataset_was_given(script: Script, code: str, changed: list[str]) -> None:
    head = """\
import argparse
from torch.utils.data import DataLoader
class Buffer:
    def __init__(self):
        self.items = []
    def push(self, x):
        self.items.append(x)
    def size(self):
        return len(self.items)
class Items:
    def __init__(self, files, buffer, args, names):
        self.files, self.buffer, self.args = files, buffer, args
    def __getitem__(self, i):
        return open(self.files[i]), self.buffer.items[i], self.args.level
def read_names():
    names = []
    for line in open("names"):
        names.append(line)
    return names
args = argparse.ArgumentParser().parse_args()
files, buffer = [], Buffer()
data = Items(files, buffer, args, read_names())
"""
    understood = script(head + (code or LOADER))
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = changes_of_dataset(understood.resolver, loader, dataset)
    assert [change.code for change in found] == changed


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("crop.size = 3\n", ["crop.size"]),
        ("loader.collate_fn.size = 3\n", ["loader.collate_fn.size"]),
        ("loader.collate_fn.grow()\n", ["loader.collate_fn.grow"]),
        ("crop.calls = 3\n", []),
        ("crop(data)\n", []),
        ("part.indices = [1]\n", ["part.indices"]),
        ("part.indices[0] = 1\n", ["part.indices[0]"]),
        ("loader.dataset.dataset.level = 1\n", ["loader.dataset.dataset.level"]),
        ("setattr(data, 'level', 1)\n", ["setattr(data, 'level', 1)"]),
        ("setattr(other, 'level', 1)\n", []),
        ("for i in range(3):\n    SIZES['crop'] = i\n", ["SIZES['crop']"]),
        ("SIZES.update(crop=3)\n", ["SIZES.update"]),
        ("print(SIZES['crop'])\n", []),
        ("RATES['lr'] = 3\n", []),
    ],
)
def test_what_else_workers_have_copies_of(script: Script, code: str, changed: list[str]) -> None:
    head = f"""\
{HEAD}
from torch.utils.data import Subset
SIZES, RATES = {{"crop": 2}}, {{}}
SIZES["most"] = 9
class Crop:
    def __init__(self):
        self.size = self.calls = 2
    def grow(self):
        self.size += 1
    def __call__(self, rows):
        return rows[: self.size + SIZES["crop"]]
crop = Crop()
part = Subset(data, [0, 1])
loader = DataLoader(part, collate_fn=crop)
"""
    understood = script(head + code)
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = changes_of_dataset(understood.resolver, loader, dataset)
    assert [change.code for change in found] == changed


SETTINGS = """\
class Settings:
    size = 2
    def parse(self, text):
        self.size = int(text)
settings = Settings()
"""
DATA = """\
from torch.utils.data import DataLoader
from settings import settings
class Items:
    def __getitem__(self, i):
        return settings.size
def make():
    return DataLoader(Items())
def make_both():
    return make(), make()
"""


@pytest.mark.parametrize(
    ("main", "changed"),
    [
        ("settings.parse('3')\nloader = make()\n", []),
        ("def main():\n    settings.parse('3')\n    loader, _ = make_both()\nmain()\n", []),
        ("def main():\n    loader, _ = make_both()\n    settings.parse('3')\nmain()\n", ["settings.parse"]),
        ("for i in range(3):\n    settings.parse(i)\n    loader = make()\n", ["settings.parse"]),
        ("loader = make()\ndef main():\n    settings.parse('3')\n    make()\nmain()\n", ["settings.parse"]),
        ("def again():\n    settings.parse('3')\nloader = make()\nagain()\n", ["settings.parse"]),
        ("loader = make()\nimport tool\n", []),
    ],
)  # fmt: skip
def test_set_up_above_the_call_that_makes_the_loader(
    script: Script, main: str, changed: list[str]
) -> None:
    tool = "from data import make\nfrom settings import settings\nif __name__ == '__main__':\n    make()\n    settings.parse('4')\n"
    assert _changes_of_settings(script, main, tool) == changed


@pytest.mark.parametrize(
    ("main", "changed"),
    [
        ("import tool\ndef main():\n    loader = make()\nmain()\n", []),
        ("def main():\n    import tool\n    loader = make()\nmain()\n", ["settings.parse"]),
    ],
)
def test_what_an_imported_file_does_when_it_is_loaded(
    script: Script, main: str, changed: list[str]
) -> None:
    tool = "from settings import settings\nsettings.parse('4')\n"
    assert _changes_of_settings(script, main, tool) == changed


def _changes_of_settings(script: Script, main: str, tool: str) -> list[str]:
    understood = script(
        {
            "train.py": f"from data import make, make_both\nfrom settings import settings\n{main}",
            "data.py": DATA,
            "settings.py": SETTINGS,
            "tool.py": tool,
        }
    )
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = changes_of_dataset(understood.resolver, loader, dataset)
    return [fact.code for fact in found]


CLASS = """\
import heapq
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
FLIP = 0.5
settings = {"crop": 8, "lr": 0.1}
class Config:
    size = 2
    lr = 0.1
class Pairs:
    rate = 0.5
    def __init__(self, pairs, transform=None, config=None):
        self.pairs, self.transform, self.config = pairs, transform, config
        self.order = list(range(len(pairs)))
    def shuffle(self):
        random.shuffle(self.order)
    def part(self):
        return self.pairs
    @classmethod
    def anneal(cls, rate):
        cls.rate = rate
    def __getitem__(self, i):
        image = open(self.pairs[self.order[i]]).read(settings["crop"])
        rate = self.rate * Config.size * self.config["size"]
        return self.transform(image), rate
def read():
    return [line for line in open("pairs")]
def stir(items):
    random.shuffle(items)
flip = transforms.RandomHorizontalFlip()
config = {"size": 3, "lr": 0.1 * 2}
data = Pairs(read(), transforms.Compose([flip]), config)
part = Subset(data, list(range(9)))
loader = DataLoader(part)
rng = np.random.default_rng(0)
"""


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("random.shuffle(data.pairs)", ["random.shuffle(data.pairs)"]),
        ("np.random.shuffle(data.order)", ["np.random.shuffle(data.order)"]),
        ("rng.shuffle(data.order)", ["rng.shuffle(data.order)"]),
        ("heapq.heapify(data.order)", ["heapq.heapify(data.order)"]),
        ("np.add(data.order, 1, out=data.order)", ["np.add(data.order, 1, out=data.order)"]),
        ("data.order.sort()", ["data.order.sort"]),
        ("data.frame.drop(columns='a', inplace=True)", ["data.frame.drop"]),
        ("data.frame.drop(columns='a')", []),
        ("order = data.order\nrandom.shuffle(order)", ["random.shuffle(order)"]),
        ("a, order = data.pairs, data.order\nrandom.shuffle(order)", ["random.shuffle(order)"]),
        ("random.shuffle(data.part())", ["random.shuffle(data.part())"]),
        ("stir(data.order)", ["random.shuffle(items)"]),
        ("order = [0, 1]\nstir(order)", []),
        ("order = list(data.order)\nrandom.shuffle(order)", []),
        ("pairs = data.pairs[:]\nrandom.shuffle(pairs)", []),
        ("pairs = sorted(data.pairs)\npairs.append(1)", []),
        ("counts = {}\nfor pair in data.pairs:\n    counts[pair] = 1", []),
        ("item, label = data[0]\nitem.mul_(2)\nitem += label", []),
        ("for item, label in data:\n    item.mul_(2)", []),
        ("for item, label in loader:\n    item.mul_(2)", []),
        ("random.shuffle(loader.dataset.dataset.pairs)", ["random.shuffle(loader.dataset.dataset.pairs)"]),
        ("random.shuffle(part.indices)", ["random.shuffle(part.indices)"]),
        ("part.dataset.transform = None", ["part.dataset.transform"]),
        ("part.dataset.shuffle()", ["part.dataset.shuffle"]),
        ("vars(data)['pairs'] = []", ["vars(data)['pairs']"]),
        ("flip.p = 0.1", ["flip.p"]),
        ("for step in data.transform.transforms:\n    step.p = 0.1", ["step.p"]),
        ("again = data.shuffle\nagain()", ["data.shuffle"]),
        ("hooks = [data.part]", []),
        ("Pairs.rate = 0.1", ["Pairs.rate"]),
        ("type(data).rate = 0.1", ["type(data).rate"]),
        ("data.__class__.rate = 0.1", ["data.__class__.rate"]),
        ("setattr(Pairs, 'rate', 0.1)", ["setattr(Pairs, 'rate', 0.1)"]),
        ("Pairs.anneal(0.1)", ["Pairs.anneal"]),
        ("Pairs.version = 2", []),
        ("Config.size = 3", ["Config.size"]),
        ("Config.lr = 3", []),
        ("settings['crop'] = 3", ["settings['crop']"]),
        ("settings['lr'] = 3", []),
        ("settings.update(lr=3)", []),
        ("settings.update(crop=3)", ["settings.update"]),
        ("settings.clear()", ["settings.clear"]),
        ("config['size'] = 3", ["config['size']"]),
        ("config['lr'] *= 0.5", []),
        ("rate = config['lr']\nrate *= 0.5", []),
        ("rate = config['lr']\nif resumed:\n    rate = float(line)\nrate *= config['decay']", []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["loop", "function"])
def test_changes_between_passes(script: Script, code: str, changed: list[str], place: str) -> None:
    head = "for epoch in range(3):\n" if place == "loop" else "def prepare(epoch):\n"
    call = "" if place == "loop" else "for epoch in range(3):\n    prepare(epoch)\n"
    assert _changes(script, CLASS + head + indent(code, "    ") + "\n" + call) == changed


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("stir(pairs)\nloader = DataLoader(Pairs(pairs))\n", []),
        ("loader = DataLoader(Pairs(stir(pairs)))\n", []),
        ("stir(pairs)\nloader = DataLoader(Pairs(pairs))\nstir(pairs)\n", ["random.shuffle(items)"]),
        ("for i in range(3):\n    stir(pairs)\n    loader = DataLoader(Pairs(pairs))\n", ["random.shuffle(items)"]),
        ("stir(pairs)\nloader = DataLoader(Pairs(pairs))\nhooks = [stir]\n", ["random.shuffle(items)"]),
    ],
)  # fmt: skip
def test_helper_of_the_preparation(script: Script, code: str, changed: list[str]) -> None:
    head = CLASS.partition("data = Pairs")[0].replace("(items)\n", "(items)\n    return items\n", 1)
    assert _changes(script, f"{head}pairs = read()\n{code}") == changed


def test_global_of_another_file(script: Script) -> None:
    data = "CROP, LR = 3, 0.1\nclass Items:\n    def __getitem__(self, i):\n        return open(i).read(CROP)\n"
    main = (
        "from torch.utils.data import DataLoader\nimport data\nloader = DataLoader(data.Items())\n"
        "for i in range(3):\n    data.CROP = i\n    data.LR = i\n"
    )
    assert _changes(script, {"train.py": main, "data.py": data}) == ["data.CROP"]


def _changes(script: Script, files: str | dict[str, str]) -> list[str]:
    understood = script(files)
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    return [c.code for c in changes_of_dataset(understood.resolver, loader, dataset)]


IN_TURN = """\
from torch.utils.data import DataLoader
class Shift:
    def __init__(self):
        self.mean = [1, 2]
    def draw(self):
        self.mean.reverse()
    def __call__(self, image):
        for channel, mean in zip(image, self.mean):
            channel.sub_(mean)
        return image
class Words:
    def __init__(self):
        self.ids = {}
    @classmethod
    def load(cls, path):
        return cls()
    def index(self, word, add):
        if add:
            self.ids[word] = len(self.ids)
        return self.ids[word]
class Texts:
    def __init__(self, words, transform):
        self.words, self.transform = words, transform
        self.rows = [line for line in open("rows")]
        self.read()
    def read(self):
        for i, row in enumerate(self.rows):
            self.rows[i] = self.words.index(row, False)
    def __getitem__(self, i):
        self.transform.draw()
        return self.transform(open(self.rows[i]))
words, shift = Words.load("words"), Shift()
data = Texts(words, shift)
other = Texts(words, shift)
"""


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (LOADER, []),
        (LOADER + "shift.draw()\n", ["shift.draw"]),
        (LOADER + "data.read()\n", ["self.words.index", "data.read"]),
        (LOADER + "last = Texts(words, shift)\n", ["self.words.index"]),
    ],
)
def test_what_items_and_constructors_change(script: Script, code: str, changed: list[str]) -> None:
    """Workers see what they change themselves, and what the constructors of datasets did before the loader was made."""
    understood = script(IN_TURN + code)
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = [c.code for c in changes_of_dataset(understood.resolver, loader, dataset)]
    assert sorted(found) == sorted(changed)
