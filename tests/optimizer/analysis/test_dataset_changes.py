"""Where a script changes a dataset behind its workers' backs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.dataset_changes import changes_of_dataset
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
