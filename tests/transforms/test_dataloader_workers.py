"""Batches made in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from textwrap import dedent, indent
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torchopt_cli.optimizer.options import Target, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

IMPORTS = """\
import argparse
import os
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms  # so wide a line lets the edits keep to one line, whatever black would make
"""
FILES = """\
class Files(Dataset):
    def __init__(self, paths, transform=None):
        self.paths = paths
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]))


dataset = Files(os.listdir("data"), transforms.ToTensor())
"""
TRAIN = """\
model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
CORES = 'cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1\n'
CAPITALS = CORES.replace("cores =", "CORES =")
COUNT = "min(8, cores)"
ALIVE = f"num_workers={COUNT}, persistent_workers=True"
BESIDE_GPU = ALIVE.replace("8", "16")


def script(loader: str, dataset: str = FILES, train: str = TRAIN) -> str:
    return IMPORTS + dedent(dataset) + dedent(loader).lstrip("\n") + dedent(train)


def dataset_class(body: str, made_with: str = "Items()") -> str:
    """A dataset whose `__getitem__` reads a file, and whatever ``body`` adds."""
    return f"class Items(Dataset):\n{indent(dedent(body), '    ')}\ndataset = {made_with}\n"


# What gets workers


def test_count_left_out(check_transformed: Check) -> None:
    check_transformed(
        script("loader = DataLoader(dataset, 64)\n"),
        script(f"{CORES}loader = DataLoader(dataset, 64, {ALIVE})\n"),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dataset, 64, num_workers=0", f"dataset, 64, {ALIVE}"),
        (
            "dataset, 64, True, None, None, 0",
            f"dataset, 64, True, None, None, {COUNT}, persistent_workers=True",
        ),
        (
            "**dict(dataset=dataset, num_workers=0)",
            f"**dict(dataset=dataset, {ALIVE})",
        ),
        (
            "dataset, **{'num_workers': 0}",
            f"dataset, **{{'num_workers': {COUNT}, 'persistent_workers': True}}",
        ),
    ],
)
def test_literal_zero(check_transformed: Check, before: str, after: str) -> None:
    check_transformed(
        script(f"loader = DataLoader({before})\n"),
        script(f"{CORES}loader = DataLoader({after})\n"),
    )


def test_option_with_a_default_of_zero(check_transformed: Check) -> None:
    options = """\
        parser = argparse.ArgumentParser()
        {}parser.add_argument("--workers", default={})
        args = parser.parse_args()
        print("workers", args.workers)
        loader = DataLoader(dataset, 64, num_workers=args.workers{})
    """
    check_transformed(
        script(options.format("", "0", "")),
        script(options.format(f"{CORES}        ", COUNT, ", persistent_workers=args.workers > 0")),
    )


def test_help_text_that_states_the_default(rewrite: Callable[..., object]) -> None:
    options = """\
        parser = argparse.ArgumentParser()
        parser.add_argument("--workers", default=0, help="processes (default: 0)")
        args = parser.parse_args()
        loader = DataLoader(dataset, 64, num_workers=args.workers)
    """
    result = rewrite(script(options), ["dataloader-workers"])
    text = result.files[0].text  # type: ignore[attr-defined]
    assert 'help="processes (default: one per CPU core, up to 8)"' in text


def test_constant_of_zero(check_transformed: Check) -> None:
    check_transformed(
        script("WORKERS = 0\nloader = DataLoader(dataset, 64, num_workers=WORKERS)\n"),
        script(
            f"{CAPITALS}WORKERS = min(8, CORES)\n"
            "loader = DataLoader(dataset, 64, num_workers=WORKERS, persistent_workers=WORKERS > 0)\n"
        ),
    )


def test_default_of_a_parameter(check_transformed: Check) -> None:
    make = """\
        {}def make_loader(dataset, workers={}):
            return DataLoader(dataset, 64, num_workers=workers{})


        loader = make_loader(dataset)
    """
    check_transformed(
        script(make.format("", "0", "")),
        script(
            make.format(
                f"{CAPITALS}\n\n        ", "min(8, CORES)", ", persistent_workers=workers > 0"
            )
        ),
    )


def test_two_loaders_share_a_variable(check_transformed: Check) -> None:
    train = TRAIN + "for batch in val_loader:\n    model(batch)\n"
    check_transformed(
        script(
            "loader = DataLoader(dataset, 64)\nval_loader = DataLoader(dataset, 9)\n", train=train
        ),
        script(
            f"{CORES}num_workers = {COUNT}\n"
            "loader = DataLoader(dataset, 64, num_workers=num_workers, persistent_workers=num_workers > 0)\n"
            "val_loader = DataLoader(dataset, 9, num_workers=num_workers)\n",
            train=train,
        ),
    )


def test_the_variable_ends_the_list_of_settings_in_the_style_of_the_file(
    check_transformed: Check,
) -> None:
    loaders = """\
        BATCH_SIZE = 64
        {}
        # data
        loader = DataLoader(dataset, BATCH_SIZE{})
        val_loader = DataLoader(dataset, BATCH_SIZE{})
    """
    train = TRAIN + "    for batch in val_loader:\n        model(batch)\n"
    shared = ", num_workers=NUM_WORKERS, persistent_workers=NUM_WORKERS > 0"
    before = script(loaders.format("LEARNING_RATE = 0.1", "", ""), train=train)
    after = script(
        loaders.format(
            f"LEARNING_RATE = 0.1\n{CAPITALS}NUM_WORKERS = min(8, CORES)".replace(
                "\n", "\n" + " " * 8
            ),
            shared,
            shared,
        ),
        train=train,
    )
    check_transformed(before, after)


def test_the_cores_are_counted_beside_the_one_loader(check_transformed: Check) -> None:
    loader = "batch_size = 64\nepochs = 2\n{}loader = DataLoader(dataset, batch_size{})\n"
    more = ", num_workers=min(8, cores), persistent_workers=True"
    check_transformed(script(loader.format("", "")), script(loader.format(CORES, more)))


@pytest.mark.parametrize("target", [Target.CPU, Target.CUDA])
def test_processes_of_several_gpus_share_the_cores(
    check_transformed: Check, target: Target
) -> None:
    loader = "import horovod.torch as hvd\nhvd.init()\n{}loader = DataLoader(dataset, 64{})\n"
    shared = (
        "# processes on the same machine share its cores\n"
        "cores = max(1, cores // max(1, torch.cuda.device_count()))\n"
    )
    on_cpu = target is Target.CPU
    more = f", num_workers=min({8 if on_cpu else 16}, cores), persistent_workers=True"
    check_transformed(
        script(loader.format("", "")),
        script(loader.format(CORES if on_cpu else CORES + shared, more)),
        target=target,
    )


def test_one_process_does_not_share_the_cores(check_transformed: Check) -> None:
    """That an imported file has a function for several processes, which this script does not call, says nothing."""
    helpers = "import torch\n\ndef join():\n    torch.distributed.init_process_group()\n\ndef name(): ...\n"
    loader = "from helpers import name\n{}loader = DataLoader(dataset, batch_size=64{})\n"
    more = ", num_workers=min(8, cores), persistent_workers=True"
    check_transformed(
        {"train.py": script(loader.format("", "")), "helpers.py": helpers},
        {"train.py": script(loader.format(CORES, more)), "helpers.py": helpers},
    )


def test_loaders_of_two_functions_share_a_constant(check_transformed: Check) -> None:
    loaders = """\
        def train_loader(dataset):
            return DataLoader(dataset, 64{})


        def val_loader(dataset):
            return DataLoader(dataset, 64{})


        loader = train_loader(dataset)
    """
    train = TRAIN + "    for batch in val_loader(dataset):\n        model(batch)\n"
    before = script("\n\n" + dedent(loaders.format("", "")), train=train)
    kept = ", num_workers=NUM_WORKERS, persistent_workers=NUM_WORKERS > 0"
    after = script(
        f"{CAPITALS}NUM_WORKERS = min(8, CORES)\n\n\n"
        + dedent(loaders.format(kept, ", num_workers=NUM_WORKERS")),
        train=train,
    )
    check_transformed(before, after)


def test_a_taken_name_is_not_used(rewrite: Callable[..., object]) -> None:
    loaders = (
        "num_workers = 'some'\nloader = DataLoader(dataset, 64)\nother = DataLoader(dataset, 64)\n"
        "for batch in other:\n    print(batch)\n"
    )
    result = rewrite(script(loaders), ["dataloader-workers"])
    text = result.files[0].text  # type: ignore[attr-defined]
    assert f"n_workers = {COUNT}\n" in text
    assert "num_workers = 'some'\n" in text


def test_the_cores_are_counted_above_the_loop_that_makes_the_loaders(
    check_transformed: Check,
) -> None:
    train = """\
        def main():
            for fold in range(5):
                train_loader = DataLoader(dataset, fold{})
                test_loader = DataLoader(dataset, 9{})
                for epoch in range(3):
                    for batch in train_loader:
                        print(batch)
                for batch in test_loader:
                    print(batch)
        main()
    """
    kept = ", num_workers=num_workers, persistent_workers=num_workers > 0"
    head, loop, rest = train.partition("            for fold")
    counted = f"{head}            {CORES}            num_workers = {COUNT}\n{loop}{rest}"
    after = counted.format(kept, ", num_workers=num_workers")
    check_transformed(script("", train=train.format("", "")), script("", train=after))


@pytest.mark.parametrize("decorator", ["", "@torch.no_grad()\n"])
def test_the_cores_are_counted_above_a_function_that_a_loop_calls(
    check_transformed: Check, decorator: str
) -> None:
    train = f"""\
{decorator}def make(fold):
    return DataLoader(torch.utils.data.Subset(dataset, range(fold)){{}})


for fold in range(3):
    for batch in make(fold):
        print(batch)
"""
    capitals = COUNT.replace("cores", "CORES")
    check_transformed(
        script("\n\n", train=train.format("")),
        script("\n\n", train=f"{CAPITALS}\n\n{train.format(f', num_workers={capitals}')}"),
    )


def test_keyword_dict_of_two_loaders(check_transformed: Check) -> None:
    train = TRAIN + "    for batch in val_loader:\n        model(batch)\n"
    loaders = """\
        {}kwargs = {}
        loader = DataLoader(dataset, shuffle=True, **kwargs)
        val_loader = DataLoader(dataset, **kwargs)
    """
    check_transformed(
        script(loaders.format("", "{'batch_size': 64}"), train=train),
        script(
            loaders.format(
                CORES + " " * 8,
                f"{{'batch_size': 64, 'num_workers': {COUNT}, 'persistent_workers': True}}",
            ),
            train=train,
        ),
    )


@pytest.mark.parametrize(
    ("count", "kept"),
    [
        ("0", "takes its `num_workers`, too"),
        ("4", "takes what is said beside its `num_workers`, too"),
    ],
)
def test_keyword_dict_that_something_else_takes(check_noop: Check, count: str, kept: str) -> None:
    loader = f"""\
        kwargs = {{'batch_size': 64, 'num_workers': {count}}}
        loader = DataLoader(dataset, shuffle=True, **kwargs)
        replay = Replay(**kwargs)
    """
    check_noop(script(loader), f"`Replay(**kwargs)` (line 23) {kept}", workers=4)


def test_one_pass_needs_no_living_on(check_transformed: Check) -> None:
    train = "for batch in loader:\n    print(batch)\n"
    check_transformed(
        script("loader = DataLoader(dataset, 64)\n", train=train),
        script(f"{CORES}loader = DataLoader(dataset, 64, num_workers={COUNT})\n", train=train),
    )


@pytest.mark.parametrize(
    ("train", "lives"),
    [
        ("for epoch in range(3):\n    evaluate(train_loader)\nevaluate(loader)\n", False),
        ("for epoch in range(3):\n    evaluate(train_loader)\nevaluate(batches=loader)\n", False),
        ("for epoch in range(3):\n    test(train_loader)\ntest(loader)\n", False),
        ("for epoch in range(3):\n    evaluate(train_loader)\nfor it in (loader, train_loader):\n    evaluate(it)\n", False),
        ("for epoch in range(1):\n    evaluate(loader)\n", False),
        ("print(next(iter(loader)))\nfor epoch in range(3):\n    evaluate(train_loader)\nevaluate(loader)\n", False),
        ("for epoch in range(3):\n    test(train_loader)\n    test(loader)\n", True),
        ("for epoch in range(3):\n    for it in (loader, train_loader):\n        evaluate(it)\n", True),
        ("for epoch in range(3):\n    evaluate(globals()['train_loader'])\nevaluate(loader)\n", True),
        ("class Run:\n    def __init__(self, batches):\n        self.batches = batches\n    def fit(self):\n        for self.epoch in range(3):\n            for it in self.batches:\n                print(it)\nRun(loader).fit()\n", True),
        ("for name, epochs in zip('ab', [1, 2]):\n    evaluate(loader)\n", True),
    ],
)  # fmt: skip
def test_function_that_goes_over_several_loaders(
    rewrite: Callable[..., RewriteResult], train: str, lives: bool
) -> None:
    functions = """\
        def evaluate(batches):
            for batch in batches:
                print(batch)
        def test(batches):
            evaluate(batches)
    """
    loaders = (
        "train_loader = DataLoader(dataset, 64)\nloader = DataLoader(dataset, 32, num_workers=4)\n"
    )
    made = rewrite(script(loaders, train=dedent(functions) + train), ["dataloader-workers"])
    assert ("32, num_workers=4, persistent_workers=True" in made.files[0].text) is lives


MADE = "DataLoader(dataset, 64, num_workers=4)"
FIT_ALL = "for client in clients:\n    client.fit()\n"


@pytest.mark.parametrize(
    ("made", "lives"),
    [
        (
            f"clients = []\nfor part in parts:\n    loader = {MADE}\n    clients.append(Client(loader))\n{FIT_ALL}",
            False,
        ),
        (f"clients = [Client(batches={MADE}) for part in parts]\n{FIT_ALL}", False),
        (f"clients = [Owner() for part in range(50)]\n{FIT_ALL}", False),
        (
            f"def make():\n    return {MADE}\nclients = {{}}\nfor part in parts:\n    clients[part] = Client(make())\n"
            "for part in parts:\n    clients[part].fit()\n",
            False,
        ),
        (
            f"files = {{}}\nfor part in parts:\n    files[part] = []\n"
            f"clients = [Client({MADE}) for part, names in files.items()]\n{FIT_ALL}",
            False,
        ),
        (
            f"kept = []\nkept.extend(parts)\nclients = [Client({MADE}) for part in kept]\n{FIT_ALL}",
            False,
        ),
        (f"clients = [Client({MADE}) for part in ('train', 'val')]\n{FIT_ALL}", True),
        (
            f"phases = ['train', 'val']\nclients = [Client({MADE}) for part in phases]\n{FIT_ALL}",
            True,
        ),
        (f"for part in parts:\n    client = Client({MADE})\n    client.fit()\n", True),
        ("client = Owner()\nclient.fit()\n", True),
    ],
)
def test_workers_of_many_loaders_do_not_live_on(
    rewrite: Callable[..., RewriteResult], made: str, lives: bool
) -> None:
    classes = f"""\
        class Client:
            def __init__(self, batches):
                self.batches = batches
            def fit(self):
                for epoch in range(3):
                    for batch in self.batches:
                        print(batch)
        class Owner:
            def __init__(self):
                self.own = {MADE}
            def fit(self):
                for epoch in range(3):
                    for batch in self.own:
                        print(batch)
        parts = os.listdir("clients")
    """
    owner = classes if "Owner" in made else classes.replace(MADE, "()")
    (file,) = rewrite(script("", train=dedent(owner) + made), ["dataloader-workers"]).files
    assert ("num_workers=4, persistent_workers=True" in file.text) is lives
    if not lives:
        assert any("would live side by side" in s.message for s in file.skips)


def test_only_what_is_gone_over_again_is_said_to_live_on(
    rewrite: Callable[..., RewriteResult],
) -> None:
    loaders = "loader = DataLoader(dataset, 64)\ntest_loader = DataLoader(dataset, 32)\n"
    train = TRAIN + "for batch in test_loader:\n    print(batch)\n"
    (file,) = rewrite(script(loaders, train=train), ["dataloader-workers"]).files
    assert (
        "processes (`num_workers=min(8, cores)`), some of which live on" in file.changes[0].message
    )
    assert file.text.count("persistent_workers") == 1


def test_loader_made_for_every_epoch(check_transformed: Check) -> None:
    train = """\
        {}for epoch in range(3):
            loader = DataLoader(dataset, 64{})
            for batch in loader:
                print(batch)
    """
    check_transformed(
        script("", train=train.format("", "")),
        script("", train=train.format(CORES + " " * 8, f", num_workers={COUNT}")),
    )


def test_data_module_of_lightning(check_transformed: Check) -> None:
    module = """\
        import os
        import lightning as L
        from torch.utils.data import DataLoader
        from torchvision import datasets  # so wide a line lets the edits keep to one line, whatever black would make of it


        {}class Data(L.LightningDataModule):
            def __init__(self, batch_size=64, workers={}):
                super().__init__()
                self.batch_size = batch_size
                self.workers = workers

            def setup(self, stage=None):
                self.train_set = datasets.ImageFolder("train")

            def train_dataloader(self):
                return DataLoader({})


        class Net(L.LightningModule):
            def training_step(self, batch, index):
                return self(batch[0]).sum()


        L.Trainer(max_epochs=3).fit(Net(), datamodule=Data())
    """
    arguments = "self.train_set, self.batch_size, num_workers=self.workers"
    cores = "CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1\n\n\n        "
    check_transformed(
        module.format("", "0", arguments),
        module.format(
            cores.replace("'", '"'),
            "min(16, CORES)",
            f"\n{' ' * 20}{arguments}, persistent_workers=self.workers > 0\n{' ' * 16}",
        ),
    )


def test_loader_of_a_function_that_only_another_script_calls(check_transformed: Check) -> None:
    other = """\
        import argparse
        from torch.utils.data import DataLoader
        from torchvision import datasets

        def evaluate(loader):
            for batch in loader:
                pass

        def benchmark(options):
            for name in ["one", "two"]:
                evaluate(DataLoader(datasets.ImageFolder(name), num_workers=16))

        if __name__ == "__main__":
            options = argparse.Namespace(benchmark=True)
            if options.benchmark:
                benchmark(options)
    """
    made = 'files = datasets.ImageFolder("train")\nloader = DataLoader(files, num_workers=16{})\n'
    entry = (
        "from torch.utils.data import DataLoader\nfrom torchvision import datasets\n"
        "from other import evaluate\n" + made + "for epoch in range(9):\n    evaluate(loader)\n"
    )
    kept = ", persistent_workers=True"
    check_transformed(
        {"train.py": entry.format(""), "other.py": other},
        {"train.py": entry.format(kept), "other.py": other},
    )


def test_loader_in_another_file(check_transformed: Check) -> None:
    data = """\
        {}from torch.utils.data import DataLoader
        from torchvision import datasets, transforms  # a wide line ------------------------------------------------------

        def make_loader():
            folder = datasets.ImageFolder("data", transforms.ToTensor())
            {}return DataLoader(folder{})
    """
    entry = "import torch\nfrom data import make_loader\nloader = make_loader()\n" + TRAIN
    check_transformed(
        {"train.py": entry, "data.py": data.format("", "", "")},
        {
            "train.py": entry,
            "data.py": data.format("import os\n\n" + " " * 8, CORES + " " * 12, f", {ALIVE}"),
        },
    )


@pytest.mark.parametrize(
    "dataset",
    [
        'datasets.MNIST("data", transform=transforms.ToTensor())',
        'datasets.ImageFolder("data", transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()]))',
        'torch.utils.data.Subset(datasets.MNIST("data", transform=lambda x: np.array(x)), [1, 2])',
        'torch.utils.data.random_split(datasets.MNIST("data"), [5, 5])[0]',
        'torch.utils.data.ConcatDataset([datasets.MNIST("a"), datasets.MNIST("b")])',
        'datasets.MNIST("a") + datasets.MNIST("b")',
    ],
)
def test_library_datasets(check_transformed: Check, dataset: str) -> None:
    check_transformed(
        script("loader = DataLoader(dataset, 64)\n", f"dataset = {dataset}\n"),
        script(f"{CORES}loader = DataLoader(dataset, 64, {ALIVE})\n", f"dataset = {dataset}\n"),
    )


SAFE = {
    "lazy file": """\
        def __init__(self):
            self.file = None
        def __getitem__(self, i):
            if self.file is None:
                self.file = open("x")
            return np.load(self.file, i)
    """,
    "file of the item": """\
        def __getitem__(self, i):
            with open(str(i)) as file:
                return np.array(file.read().split())
    """,
    "generator of the item": """\
        def __getitem__(self, i):
            rng = np.random.default_rng(i)
            return Image.open(str(i)).rotate(rng.integers(9))
    """,
    "local containers": """\
        def __getitem__(self, i):
            out = {}
            out["image"] = np.load(str(i))
            parts = []
            parts.append(out["image"][0])
            out["sum"] = sum(parts)
            out["sum"] += 1
            return out
    """,
    "fresh copy changed": """\
        def __init__(self):
            self.images = np.load("images.npy")
        def __getitem__(self, i):
            image = self.images[i].copy()
            image[0] = 0
            return Image.fromarray(image).resize((8, 8))
    """,
    "text extended": """\
        def __init__(self):
            self.names = ["a", "b"]
        def __getitem__(self, i):
            name = self.names[i]
            name += ".png"
            return Image.open(name)
    """,
    "object of its own": """\
        def __getitem__(self, i):
            builder = Builder()
            builder.add(Image.open(str(i)))
            return builder.rows
    """,
    "transform whose name ends as that of a method that works in place": """\
        def __init__(self, transforms_=transforms.ToTensor()):
            self.transforms_ = transforms_
        def __getitem__(self, i):
            return self.transforms_(Image.open(str(i)))
    """,
    "read-out HDF5": """\
        def __init__(self):
            with h5py.File("x.h5") as file:
                self.images = file["images"][:]
        def __getitem__(self, i):
            return Image.fromarray(self.images[i])
    """,
    "shards": """\
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            for i in range(info.id, 100, info.num_workers):
                yield np.load(str(i))
    """,
}
BUILDER = """\
import h5py


class Builder:
    def __init__(self):
        self.rows = []

    def add(self, row):
        self.rows.append(row)


"""


@pytest.mark.parametrize("body", SAFE.values(), ids=SAFE)
def test_datasets_that_work_as_copies(check_transformed: Check, body: str) -> None:
    code = BUILDER + dataset_class(body)
    check_transformed(
        script("loader = DataLoader(dataset, 64)\n", code),
        script(f"{CORES}loader = DataLoader(dataset, 64, {BESIDE_GPU})\n", code),
        target=Target.CUDA,
    )


def test_a_stream_in_shares_is_another_training(
    check_noop: Check, check_transformed: Check
) -> None:
    """Each worker has a smaller last batch, and no batch holds samples of two shares: there are more steps, too."""
    code = "from torch.utils.data import IterableDataset\n" + dataset_class(SAFE["shards"]).replace(
        "Items(Dataset)", "Items(IterableDataset)"
    )
    before = script("loader = DataLoader(dataset, 64)\n", code)
    shares = "each worker cuts its own share of the stream"
    check_noop(before, shares, target=Target.CUDA, tier=Tier.NUMERIC)
    after = script(f"{CORES}loader = DataLoader(dataset, 64, {BESIDE_GPU})\n", code)
    check_transformed(before, after, target=Target.CUDA, tier=Tier.SEMANTIC)


@pytest.mark.parametrize("dataset", ["lazy file", "file of the item"])
def test_files_that_are_only_read_on_a_cpu(
    check_noop: Check, check_transformed: Check, dataset: str
) -> None:
    code = BUILDER + dataset_class(SAFE[dataset])
    before = script("loader = DataLoader(dataset, 64)\n", code)
    check_noop(before, reason="the training itself needs the CPU's cores")
    alive = "num_workers=2, persistent_workers=True"
    after = script(f"loader = DataLoader(dataset, 64, {alive})\n", code)
    check_transformed(before, after, workers=2)


def test_sampler_of_the_script_that_keeps_to_itself(check_transformed: Check) -> None:
    sampler = """\
        class Halves(torch.utils.data.Sampler):
            def __init__(self, n):
                self.n = n
            def __iter__(self):
                return iter(range(self.n // 2))
            def set_epoch(self, epoch):
                self.epoch = epoch
    """
    loader = "sampler = Halves(10)\n{}loader = DataLoader(dataset, sampler=sampler{})\n"
    train = TRAIN.replace("range(3):\n", "range(3):\n    sampler.set_epoch(epoch)\n")
    check_transformed(
        script(loader.format("", ""), FILES + dedent(sampler), train),
        script(loader.format(CORES, f", {ALIVE}"), FILES + dedent(sampler), train),
    )


# Workers that are there already


@pytest.mark.parametrize(
    ("count", "condition"),
    [
        ("4", "True"),
        ("args.workers", "args.workers > 0"),
        ("max(1, args.workers // 2)", "True"),
        ("os.cpu_count()", "True"),
        ("int(args.workers / 2)", "int(args.workers / 2) > 0"),
        ("vars(args)['workers'] if args else 0", None),
        ("config['workers']", "config['workers'] > 0"),
        ("config[read()]", None),
    ],
)
def test_present_workers_live_on(
    check_transformed: Check, check_noop: Check, count: str, condition: str | None
) -> None:
    options = """\
        parser = argparse.ArgumentParser()
        parser.add_argument("--workers", type=int, default=4)
        args = parser.parse_args()
        config = vars(args)
        loader = DataLoader(dataset, 64, num_workers={}{})
    """
    before = script(options.format(count, ""))
    if condition is None:
        check_noop(before, f"`persistent_workers=` would compute `{count}` a second time")
    else:
        after = script(options.format(count, f", persistent_workers={condition}"))
        check_transformed(before, after)


def test_present_workers_of_a_conditional_dict(check_transformed: Check) -> None:
    loader = """\
        {}kwargs = {{'num_workers': {}}} if torch.cuda.is_available() else {{}}
        loader = DataLoader(dataset, 64, **kwargs)
    """
    check_transformed(
        script(loader.format("", "24")),
        script(loader.format("", "24, 'persistent_workers': True")),
    )
    check_transformed(
        script(loader.format("", "1")),
        script(loader.format(f"{CORES}        ", "min(16, cores), 'persistent_workers': True")),
    )


def test_more_workers_beside_a_gpu_than_are_written(check_transformed: Check) -> None:
    loaders = """\
        loader = DataLoader(dataset, 64, num_workers={})
        other = DataLoader(dataset, 8, num_workers={}{})
        for batch in other:
            print(batch)
    """
    more = [f"max({count}, min(16, cores))" for count in (2, 4)]
    check_transformed(
        script(loaders.format(2, 4, "")),
        script(CORES + dedent(loaders.format(f"{more[0]}, persistent_workers=True", more[1], ""))),
        target=Target.CUDA,
    )
    alike = "num_workers = max(2, min(16, cores))\n"
    alive = "num_workers, persistent_workers=True"
    check_transformed(
        script(loaders.format("2, persistent_workers=True", 2, "")),
        script(f"{CORES}{alike}" + dedent(loaders.format(alive, "num_workers", ""))),
        target=Target.CUDA,
    )


def test_more_workers_than_are_written_if_asked_for(check_transformed: Check) -> None:
    loader = "loader = DataLoader(dataset, 64, num_workers={}, persistent_workers=True)\n"
    check_transformed(
        script(loader.format(2)), script(loader.format(4)), target=Target.CUDA, workers=4
    )


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        ("DataLoader(dataset, 64, num_workers=2)", dict(target=Target.CPU)),
        ("DataLoader(dataset, 64, num_workers=16)", dict(target=Target.CUDA)),
        ("DataLoader(dataset, 64, num_workers=4)", dict(target=Target.CUDA, workers=3)),
        ("DataLoader(dataset, 64, num_workers=2, worker_init_fn=print)", dict(target=Target.CUDA)),
        ("DataLoader(dataset, 64, num_workers=int(input()))", dict(target=Target.CUDA)),
        (
            "DataLoader(dataset, 64, num_workers=argparse.ArgumentParser().parse_args().workers)",
            dict(target=Target.CUDA),
        ),
    ],
)
def test_as_many_workers_as_are_written(
    rewrite: Callable[..., Any], loader: str, options: dict[str, Any]
) -> None:
    result = rewrite(script(f"loader = {loader}\n"), ["dataloader-workers"], **options)
    messages = [change.message for file in result.files for change in file.changes]
    assert not [message for message in messages if "num_workers" in message]


def test_workers_that_keep_something_stay_as_few(check_noop: Check) -> None:
    """What one worker has stored is there for more of the items that it makes."""
    code = dataset_class("""\
        def __init__(self):
            self.kept = {}

        def __len__(self):
            return 100

        def __getitem__(self, index):
            self.kept[index] = transforms.functional.to_tensor(Image.open(f"{index}.jpg"))
            return self.kept[index]
    """)
    loader = "loader = DataLoader(dataset, 64, num_workers=2, persistent_workers=True)\n"
    check_noop(script(loader, code), target=Target.CUDA)


@pytest.mark.parametrize(
    "arguments",
    [
        "num_workers=4, persistent_workers=False",
        "num_workers=4 if torch.cuda.is_available() else 0",
    ],
)
def test_present_workers_left_alone(check_noop: Check, arguments: str) -> None:
    check_noop(script(f"loader = DataLoader(dataset, 64, {arguments})\n"))


@pytest.mark.parametrize(
    ("loader", "train", "reason"),
    [
        (
            "DataLoader(dataset, num_workers=4, worker_init_fn=print)",
            TRAIN,
            "worker_init_fn would run once",
        ),
        (
            "DataLoader(dataset, num_workers=4)",
            TRAIN + "    dataset.transform = transforms.ToTensor()\n",
            "changes the dataset between passes",
        ),
        (
            "DataLoader(dataset, num_workers=4)",
            TRAIN + "        for other in loader:\n            print(other)\n",
            "a second pass over it starts",
        ),
        (
            "DataLoader(dataset, num_workers=4)",
            "batches = iter(loader)\n" + TRAIN + "    print(next(batches))\n",
            "an iterator made by hand",
        ),
        (
            "DataLoader(dataset, num_workers=4)",
            "for epoch in range(3):\n    for a, b in zip(loader, loader):\n        print(a, b)\n",
            "gone over twice at the same time",
        ),
    ],
)
def test_workers_that_must_not_live_on(
    check_noop: Check, loader: str, train: str, reason: str
) -> None:
    check_noop(script(f"loader = {loader}\n", train=train), reason)


MINED = dataset_class(
    """
    hard = None
    def choose(self, model):
        self.hard = [f"{model(i)}.png" for i in range(64)]
    def __getitem__(self, index):
        return Image.open(self.hard[index])
    """
)
EPOCH = """\
def epoch(loader):
    loader.dataset.choose(model)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
MADE = "loader = DataLoader(dataset, 64, num_workers=4)\n"


def test_what_a_function_chooses_before_each_pass(check_noop: Check) -> None:
    """The lines of the function have the choice above the loop; the loop that calls it has it between two passes."""
    train = f"{TRAIN.partition('for epoch')[0]}{EPOCH}for _ in range(3):\n    epoch(loader)\n"
    check_noop(
        script(MADE, MINED, train),
        "`loader.dataset.choose` (line 21) changes the dataset between passes",
    )


def test_what_a_function_chooses_once(rewrite: Callable[..., Any]) -> None:
    train = f"{TRAIN.partition('for epoch')[0]}{EPOCH}epoch(loader)\n"
    (file,) = rewrite(script(MADE, MINED, train), ["dataloader-workers"]).files
    assert not any("between passes" in skip.message for skip in file.skips)


@pytest.mark.parametrize(
    ("inside", "lives"), [("channel.sub_(mean)", True), ("self.last = channel", False)]
)
def test_what_a_transform_does_to_its_item(
    rewrite: Callable[..., RewriteResult], inside: str, lives: bool
) -> None:
    """An item is the workers' own, and so is what making it leaves in them."""
    code = f"""\
class Shift:
    def __init__(self):
        self.mean = (0.1, 0.2)

    def __call__(self, image):
        for channel, mean in zip(image, self.mean):
            {inside}
        return image


class Chain:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


{FILES.replace("transforms.ToTensor()", "Chain([transforms.ToTensor(), Shift()])")}"""
    (file,) = rewrite(script(MADE, code), ["dataloader-workers"]).files
    assert ("persistent_workers=True" in file.text) is lives
    assert not any("between passes" in skip.message for skip in file.skips)


def test_workers_there_are_keep_what_is_not_known(check_noop: Check) -> None:
    code = FILES.replace("self.transform = transform", "self.transform = Flips()")
    code = f"from elsewhere import Flips\n{code}"
    loader = "loader = DataLoader(dataset, 64, num_workers=4)\n"
    check_noop(script(loader, code), "what `self.transform` keeps between passes is not known")


@pytest.mark.parametrize(
    "change", ["random.shuffle(dataset.paths)", "reorder(dataset)", "Files.suffix = str(epoch)"]
)
def test_changes_between_and_during_passes(
    check_noop: Check, rewrite: Callable[..., RewriteResult], change: str
) -> None:
    code = FILES.replace("self.paths[index])", "self.paths[index] + self.suffix)").replace(
        "    def __init__", '    suffix = ".jpg"\n    def __init__', 1
    )
    code = f"import random\n{code}\n\ndef reorder(data):\n    data.paths.sort()\n"
    head = "loader = DataLoader(dataset, 64{})\n"
    before, loop, after = TRAIN.partition("    for batch in loader:\n")
    between = f"{before}    {change}\n{loop}{after}"
    during = f"{before}{loop}        {change}\n{after}"
    said = "changes what the dataset reads"
    check_noop(script(head.format(", num_workers=4"), code, between), f"{said} between passes")
    (file,) = rewrite(script(head.format(""), code, between), ["dataloader-workers"]).files
    assert "num_workers=" in file.text
    assert "persistent_workers" not in file.text
    check_noop(script(head.format(""), code, during), f"{said} while the loop runs")


def test_change_while_an_iterator_is_under_way(check_noop: Check) -> None:
    train = """\
        batches = iter(loader)
        for step in range(100):
            print(next(batches))
            dataset.paths.sort()
    """
    check_noop(
        script("loader = DataLoader(dataset, 64)\n", train=train),
        "changes what the dataset reads while",
    )


@pytest.mark.parametrize(
    "set_up", ["dataset.transform = transforms.ToTensor()\n", "config['lr'] = 0.1\nlr = 2 * 0.1\n"]
)
def test_what_is_set_before_the_first_pass(check_transformed: Check, set_up: str) -> None:
    train = (
        set_up + TRAIN + "    for group in optimizer.param_groups:\n        group['lr'] *= 0.5\n"
    )
    code = "config = {}\n" + FILES
    check_transformed(
        script("loader = DataLoader(dataset, num_workers=4)\n", code, train),
        script(
            "loader = DataLoader(dataset, num_workers=4, persistent_workers=True)\n", code, train
        ),
    )


@pytest.mark.parametrize("start", ["iter(loader)", "loader.__iter__()"])
def test_iterator_made_anew_under_the_same_name_lets_workers_live_on(
    check_transformed: Check, start: str
) -> None:
    train = f"""\
        batches = {start}
        for step in range(100):
            if step % 10 == 0:
                batches = {start}
            print(next(batches))
    """
    check_transformed(
        script("loader = DataLoader(dataset, num_workers=4)\n", train=train),
        script(
            "loader = DataLoader(dataset, num_workers=4, persistent_workers=True)\n", train=train
        ),
    )


@pytest.mark.parametrize(
    "iterable",
    [
        "enumerate(loader, start=epoch * len(loader))",
        "tqdm.tqdm(loader, desc=f'epoch {epoch}')",
        "enumerate(tqdm.tqdm(loader, f'epoch {epoch}'))",
    ],
)
def test_a_pass_that_is_told_the_epoch_repeats(check_transformed: Check, iterable: str) -> None:
    train = (
        f"import tqdm\nfor epoch in range(3):\n    for batch in {iterable}:\n        print(batch)\n"
    )
    loader = "loader = DataLoader(dataset, 64, num_workers=4{})\n"
    after = script(loader.format(", persistent_workers=True"), train=train)
    check_transformed(script(loader.format(""), train=train), after)


def test_loaders_of_one_function_of_which_some_are_made_for_a_single_pass(
    check_transformed: Check,
) -> None:
    code = FILES + dedent("""\
        def make(flag):
            return DataLoader(dataset, 64, shuffle=flag, num_workers=4{})
        def train():
            loader = make(True)
            for epoch in range(3):
                for batch in loader:
                    print(batch)
        def test():
            for batch in make(False):
                print(batch)
    """)
    main = "for trial in range(2):\n    train()\n    test()\n"
    after = script("", code.replace("{}", ", persistent_workers=True"), main)
    check_transformed(script("", code.replace("{}", ""), main), after)


# What is left alone

UNSAFE = {
    "only indexes": (
        """\
        def __init__(self):
            self.x, self.y = np.load("x.npy"), np.load("y.npy")
        def __getitem__(self, i):
            return torch.from_numpy(self.x[i]).float(), int(self.y[i])
        """,
        "items are only looked up in memory",
    ),
    "only fills memory": (
        """\
        def __init__(self):
            self.known = torch.load("known.pt")
        def __getitem__(self, i):
            mask = torch.ones(100, dtype=torch.bool)
            mask[self.known[i]] = False
            return torch.arange(100), mask, np.zeros(3)
        """,
        "items are only looked up in memory",
    ),
    "only indexes, its transform is None": (
        """\
        def __init__(self, transform=None):
            self.x, self.transform = np.load("x.npy"), transform
        def __getitem__(self, i):
            x = self.x[i]
            if self.transform is not None:
                x = self.transform(x)
            return x
        """,
        "items are only looked up in memory",
    ),
    "cache": (
        """\
        def __init__(self):
            self.cache = {}
        def __getitem__(self, i):
            if i not in self.cache:
                self.cache[i] = Image.open(str(i))
            return self.cache[i]
        """,
        "`self.cache[i] = Image.open(str(i))` changes what later items or the script may read",
    ),
    "cache under another name": (
        """\
        def __init__(self):
            self.cache = {}
        def __getitem__(self, i):
            cache = self.cache
            cache.setdefault(i, Image.open(str(i)))
            return cache[i]
        """,
        "`cache.setdefault(i, Image.open(str(i)))` changes",
    ),
    "cache in a helper": (
        """\
        def __init__(self):
            self.cache = {}
        def put(self, store, i):
            store[i] = Image.open(str(i))
        def __getitem__(self, i):
            self.put(self.cache, i)
            return self.cache[i]
        """,
        "`store[i] = Image.open(str(i))` changes",
    ),
    "counter": (
        """\
        def __init__(self):
            self.count = 0
        def __getitem__(self, i):
            self.count += 1
            return Image.open(str(i))
        """,
        "`self.count += 1` changes",
    ),
    "stored tensor changed in place": (
        """\
        def __init__(self):
            self.images = torch.load("x.pt")
        def __getitem__(self, i):
            image = self.images[i]
            image.mul_(2)
            return Image.fromarray(image)
        """,
        "`image.mul_(2)` changes",
    ),
    "generator kept lazily": (
        """\
        def __init__(self):
            self.rng = None
        def __getitem__(self, i):
            if self.rng is None:
                self.rng = np.random.default_rng(0)
            return Image.open(str(i)).rotate(self.rng.integers(9))
        """,
        "`self.rng = np.random.default_rng(0)` changes",
    ),
    "lru_cache": (
        """\
        @functools.lru_cache
        def load(self, i):
            return Image.open(str(i))
        def __getitem__(self, i):
            return self.load(i)
        """,
        "`load` keeps its results",
    ),
    "global": (
        """\
        def __getitem__(self, i):
            global seen
            seen = i
            return Image.open(str(i))
        """,
        "it sets the global `seen`",
    ),
    "open HDF5 file": (
        """\
        def __init__(self):
            self.images = h5py.File("x.h5")["images"]
        def __getitem__(self, i):
            return Image.fromarray(self.images[i])
        """,
        "`self.images` is opened before the workers start (`h5py.File`)",
    ),
    "LMDB": (
        """\
        def __init__(self):
            self.env = lmdb.open("x")
        def __getitem__(self, i):
            with self.env.begin() as txn:
                return Image.open(txn.get(str(i)))
        """,
        "`self.env` is opened before the workers start (`lmdb.open`)",
    ),
    "open file": (
        """\
        def __init__(self):
            self.file = open("x")
        def __getitem__(self, i):
            return np.load(self.file)
        """,
        "`self.file` is opened before",
    ),
    "generator": (
        """\
        def __init__(self):
            self.rng = np.random.RandomState(0)
        def __getitem__(self, i):
            return Image.open(str(i)).rotate(self.rng.randint(9))
        """,
        "`self.rng` is a random generator",
    ),
    "torch generator in the file": (
        """\
        def __getitem__(self, i):
            return torch.randn(3, generator=generator)
        """,
        "`generator` is a random generator",
    ),
    "iterator": (
        """\
        def __init__(self):
            self.lines = iter(["a", "b"])
        def __getitem__(self, i):
            return [Image.open(line) for line in self.lines]
        """,
        "`self.lines` is an iterator",
    ),
    "lock": (
        """\
        def __init__(self):
            self.lock = threading.Lock()
        def __getitem__(self, i):
            with self.lock:
                return Image.open(str(i))
        """,
        "`self.lock` belongs to this process",
    ),
    "unknown library object": (
        """\
        def __init__(self):
            self.reader = slides.Reader("x")
        def __getitem__(self, i):
            return self.reader.read_region(i)
        """,
        "`self.reader` comes from `slides.Reader`",
    ),
    "GPU tensors": (
        """\
        def __init__(self):
            self.images = torch.load("x.pt").cuda()
        def __getitem__(self, i):
            return transforms.functional.hflip(self.images[i]).cuda()
        """,
        "uses the GPU",
    ),
    "items on the device of the dataset": (
        """\
        def __init__(self, device=torch.device("cuda:0" if torch.cuda.is_available() else "cpu")):
            self.device = device
        def __getitem__(self, i):
            return transforms.functional.to_tensor(Image.open(str(i))).to(self.device)
        """,
        "uses the GPU",
    ),
    "stream": (
        """\
        def __iter__(self):
            for i in range(100):
                yield np.load(str(i))
        """,
        "does not ask get_worker_info() for its share",
    ),
    "loop variable": (
        """\
        def __getitem__(self, i):
            return Image.open(str(i)).rotate(epoch)
        """,
        "it reads the global `epoch`, which the script goes on changing",
    ),
}
SETUP = """\
import functools
import threading
import h5py
import lmdb
import slides
from torch.utils.data import IterableDataset
generator = torch.Generator()


"""


@pytest.mark.parametrize(("body", "reason"), UNSAFE.values(), ids=UNSAFE)
def test_datasets_that_do_not_work_as_copies(check_noop: Check, body: str, reason: str) -> None:
    code = SETUP + dataset_class(body)
    if "__iter__" in body:
        code = code.replace("Items(Dataset)", "Items(IterableDataset)")
    check_noop(script("loader = DataLoader(dataset, 64)\n", code), reason)


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (
            "torch.utils.data.TensorDataset(torch.rand(9, 3))",
            "a TensorDataset: items are only looked up",
        ),
        ("[(1, 2), (3, 4)]", "a list in memory: items are only looked up"),
        ("list(range(10))", "a sequence in memory: items are only"),
        (
            "torchtext.datasets.Multi30k()",
            "whether `torchtext.datasets.Multi30k` works in worker processes",
        ),
        ('datasets.LSUN("data")', "whether `torchvision.datasets.LSUN` works"),
        ("load_it()", "what `dataset` is cannot be traced"),
    ],
)
def test_other_datasets(check_noop: Check, dataset: str, reason: str) -> None:
    code = f"import torchtext\ndataset = {dataset}\n"
    code = code.replace("load_it()", 'globals()["it"]')
    check_noop(script("loader = DataLoader(dataset, 64)\n", code), reason)


def test_transform_with_a_generator(check_noop: Check) -> None:
    code = """\
        class Rotate:
            def __init__(self):
                self.rng = np.random.default_rng(0)
            def __call__(self, image):
                return image.rotate(self.rng.integers(9))
        dataset = datasets.ImageFolder("data", transforms.Compose([Rotate(), transforms.ToTensor()]))
    """
    check_noop(
        script("loader = DataLoader(dataset, 64)\n", code), "`self.rng` is a random generator"
    )


def test_wrapped_dataset_with_a_cache(check_noop: Check) -> None:
    code = FILES.replace("return self", "self.last = index\n        return self") + dedent(
        """\
        class Wrapper(Dataset):
            def __init__(self, inner):
                self.inner = inner
            def __getitem__(self, i):
                return transforms.functional.hflip(self.inner[i])
        dataset = Wrapper(dataset)
        """
    )
    check_noop(script("loader = DataLoader(dataset, 64)\n", code), "`self.last = index` changes")


@pytest.mark.parametrize(
    ("collate", "reason"),
    [
        ("return torch.stack(batch).cuda()", "`torch.stack(batch).cuda()` uses the GPU"),
        ("seen.append(len(batch))\n    return batch", "`seen.append(len(batch))` changes"),
    ],
)
def test_collate_function(check_noop: Check, collate: str, reason: str) -> None:
    code = f"{FILES}seen = []\ndef collate(batch):\n    {collate}\n"
    check_noop(script("loader = DataLoader(dataset, collate_fn=collate)\n", code), reason)


def test_a_collate_function_of_the_dataset_that_counts(check_noop: Check) -> None:
    """It counts in the workers, from zero in every pass unless they live on: nothing happens between passes."""
    method = "    def collate(self, batch):\n        self.paths += [batch]\n        return batch\n\n\ndataset ="
    code = FILES.replace("\n\ndataset =", "\n" + method)
    loader = "loader = DataLoader(dataset, num_workers=4, collate_fn=dataset.collate)\n"
    check_noop(script(loader, code), "changes what later items or the script may read")


def test_collate_function_of_an_unknown_library(check_noop: Check) -> None:
    loader = "import things\nloader = DataLoader(dataset, collate_fn=things.collate)\n"
    check_noop(script(loader), "whether `things.collate` works in worker processes is not known")


def test_sampler_that_the_loop_updates(check_noop: Check) -> None:
    sampler = """\
        class Prioritized(torch.utils.data.Sampler):
            def __iter__(self):
                return iter(self.order)
            def update(self, loss):
                self.order = [loss]
        sampler = Prioritized()
    """
    train = TRAIN + "        sampler.update(1.0)\n"
    loader = dedent(sampler) + "loader = DataLoader(dataset, sampler=sampler)\n"
    check_noop(script(loader, train=train), "`sampler.update` (line 35) depends on the sampler")


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        ("pick(\n    'train',\n)", "what `pick('train')` is cannot be traced"),
        ("missing.Photos()", "whether `missing.Photos` works"),
    ],
)
def test_datasets_are_named_in_one_line(check_noop: Check, dataset: str, named: str) -> None:
    loader = f"pick = {{}}.get\nloader = DataLoader({dataset})\n"
    check_noop(script(loader), named)


def test_sampler_of_a_library(check_noop: Check) -> None:
    loader = "import things\nloader = DataLoader(dataset, sampler=things.Sampler())\n"
    check_noop(script(loader), "its sampler comes from `things.Sampler`")


def test_batch_drawn_anew_in_every_step(check_noop: Check) -> None:
    train = "for step in range(100):\n    print(next(iter(loader)))\n"
    check_noop(
        script("loader = DataLoader(dataset)\n", train=train), "starts a new pass for every batch"
    )


FRAME = """\
import pandas as pd

class Rows(Dataset):
    def __init__(self, path):
        self.frame = pd.read_csv(path)
    def __len__(self):
        return len(self.frame)
    def __getitem__(self, i):
        return torch.tensor(self.frame.iloc[i]["x"])

dataset = Rows("rows.csv")
"""
SOME_BATCHES = """\
def loss_of(loader, batches):
    total = 0.0
    for i, x in enumerate(loader):
        if i < batches:
            total += model(x).sum().item()
        else:
            break
    return total

model = torch.nn.Linear(10, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if step % 50 == 0:
            print(loss_of({0}, 5))
"""


def test_some_batches_in_the_midst_of_a_pass(check_noop: Check) -> None:
    """Each time the workers would start anew, for rows that take less."""
    check_noop(
        script("loader = DataLoader(dataset, 8)\n", FRAME, SOME_BATCHES.format("loader")),
        "takes some batches in the midst of another pass, and would start the workers anew each time: a second pass",
    )


def test_some_batches_of_costly_items_in_the_midst_of_a_pass(check_transformed: Check) -> None:
    train = SOME_BATCHES.format("loader")
    workers = f"num_workers={COUNT}".replace("8", "16")
    check_transformed(
        script("loader = DataLoader(dataset, 8)\n", train=train),
        script(f"{CORES}loader = DataLoader(dataset, 8, {workers})\n", train=train),
    )


def test_some_batches_of_another_loader_in_the_midst_of_a_pass(check_transformed: Check) -> None:
    """Its workers live on."""
    loaders = "loader = DataLoader(dataset, 8)\nother = DataLoader(dataset, 16)\n"
    train = SOME_BATCHES.format("other")
    after = f"{CORES}num_workers = {BESIDE_GPU.partition('=')[2].partition(', p')[0]}\n" + (
        loaders.replace(")", ", num_workers=num_workers, persistent_workers=num_workers > 0)")
    )
    check_transformed(script(loaders, FRAME, train), script(after, FRAME, train))


def test_batch_drawn_by_a_loop_in_every_step(check_noop: Check) -> None:
    check_noop(
        """\
        import torch
        from PIL import Image
        from torch.utils.data import DataLoader, Dataset

        class Photos(Dataset):
            def __init__(self, folder):
                self.folder = folder
            def __len__(self):
                return 30
            def __getitem__(self, i):
                return torch.tensor(list(Image.open(f"{self.folder}/{i}.png").getdata()))

        def make(folder):
            return DataLoader(Photos(folder), num_workers=1)

        sources, targets = make("a"), make("b")
        for x in sources:
            for y in targets:
                break
            print(x.cuda(), y.cuda())
        """,
        "a second pass over it starts",
    )


SHORT = (
    "for i, x in enumerate(loader):\n    print(x)\n    if i {0}:\n        print(i)\n        break\n"
)


@pytest.mark.parametrize(
    ("train", "count"),
    [
        (SHORT.format("== 1"), 2),
        (SHORT.format(">= 3"), 4),
        (SHORT.format("> 14"), 16),
        (SHORT.format("== 1") + SHORT.format("== 4"), 5),
        ("for x in loader:\n    print(x)\n    break\n", 1),
    ],
)
def test_passes_that_end_early(check_noop: Check, train: str, count: int) -> None:
    source = script("loader = DataLoader(dataset)\n", train=train)
    check_noop(source, f"ends after {count} batch{'es' if count > 1 else ''}, ")


@pytest.mark.parametrize(
    "train",
    [
        SHORT.format("== 16"),
        SHORT.format("== stop"),
        SHORT.format("!= 3"),
        SHORT.format("== 1") + "for x in loader:\n    print(x)\n",
        SHORT.format("== 1").replace("break", "pass"),
        SHORT.format("== 1").replace("print(x)", "if x is None:\n        continue"),
        SHORT.format("== 1").replace("if i", "if j"),
    ],
)
def test_passes_that_may_go_on(rewrite: Callable[..., Any], train: str) -> None:
    result = rewrite(script("loader = DataLoader(dataset)\n", train=train), ["dataloader-workers"])
    assert "num_workers=" in result.files[0].text


@pytest.mark.parametrize(
    "loader",
    [
        "loader = DataLoader(dataset, batch_size=len(dataset))\n",
        "size = len(dataset)\nloader = DataLoader(dataset, size)\n",
    ],
)
def test_whole_dataset_in_one_batch(check_noop: Check, loader: str) -> None:
    check_noop(script(loader), "all of its dataset is one batch")


@pytest.mark.parametrize(
    "train",
    [
        "print(next(iter(loader)))\n",
        "batches = iter(loader)\nprint(next(batches))\n",
        "batches = iter(loader)\nprint(batches.__next__())\n",
    ],
)
def test_single_batch(check_noop: Check, train: str) -> None:
    source = script("loader = DataLoader(dataset)\n", train=train)
    check_noop(source, "a single batch is drawn from it")


@pytest.mark.parametrize(
    "train",
    [
        "batches = iter(loader)\nprint(next(batches), next(batches))\n",
        "batches = iter(loader)\nfor _ in range(9):\n    print(next(batches))\n",
        "batches = iter(loader)\ndef draw():\n    return next(batches)\nprint(draw(), draw())\n",
    ],
)
def test_more_batches_than_one(rewrite: Callable[..., Any], train: str) -> None:
    result = rewrite(script("loader = DataLoader(dataset)\n", train=train), ["dataloader-workers"])
    assert "num_workers=" in result.files[0].text


@pytest.mark.parametrize(
    ("keep", "code"),
    [
        ("kept.append(batch)", "kept.append(batch)"),
        ("kept.append([batch.to(device)])", None),
    ],
)
def test_batches_that_are_kept(
    check_noop: Check, rewrite: Callable[..., RewriteResult], keep: str, code: str | None
) -> None:
    head = "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nkept = []\n"
    source = script("loader = DataLoader(dataset, 64)\n", train=f"{head}{TRAIN}        {keep}\n")
    if code is None:
        (file,) = rewrite(source, ["dataloader-workers"], target=Target.CUDA).files
        assert "num_workers=" in file.text
        check_noop(source, f"`{keep}` (line 31) keeps the batches of a pass", target=Target.CPU)
    else:
        reason = f"`{code}` (line 31) keeps the batches of a pass as they come"
        check_noop(source, reason, target=Target.CUDA)


def test_tensors_that_are_kept_are_copied(check_transformed: Check) -> None:
    """Of the training loader and of the one that is evaluated, in one function."""
    loaders = """\
        train_loader = DataLoader(dataset, 64)
        loader = DataLoader(dataset, 32)
    """
    train = """\
        def labels_of(loader):
            kept = []
            for batch in loader:
                kept.append(batch)
            return torch.cat(kept)

        for epoch in range(3):
            print(labels_of(train_loader) == labels_of(loader))
    """
    after = f"""\
        {CORES}\
        num_workers = {COUNT}
        train_loader = DataLoader(dataset, 64, num_workers=num_workers, persistent_workers=num_workers > 0)
        loader = DataLoader(dataset, 32, num_workers=num_workers, persistent_workers=num_workers > 0)
    """
    check_transformed(
        script(loaders, train=train),
        script(after, train=train.replace("append(batch)", "append(batch.clone())")),
        target=Target.CPU,
    )


def test_batches_that_are_the_datasets_own(check_noop: Check) -> None:
    code = dataset_class("""\
        def __init__(self):
            self.images = torch.load("images")
        def __getitem__(self, i):
            return self.images[i], torch.fft.fft(self.images[i])
    """)
    train = TRAIN.replace("in loader:\n", "in loader:\n        batch[0].mul_(2)\n")
    check_noop(
        script("loader = DataLoader(dataset, batch_size=None)\n", code, train),
        "`batch[0].mul_(2)` (line 20) writes to what the dataset holds",
    )


def test_loader_that_nobody_goes_over(check_noop: Check) -> None:
    check_noop(script("loader = DataLoader(dataset)\n", train=""), "no loop over it was found")


@pytest.mark.parametrize("passes", [1, 5])
def test_loader_made_for_each_client_of_each_round(check_noop: Check, passes: int) -> None:
    train = f"""\
        model = torch.nn.Linear(10, 2)
        for turn in range(9):
            for client in range(99):
                loader = DataLoader(dataset, 4)
                for epoch in range({passes}):
                    for batch in loader:
                        model(batch)
    """
    if passes == 1:
        train = train.replace("for epoch in range(1):", "if client:")
    reason = "made anew for one pass, in the" if passes == 1 else "made anew in each turn of the"
    check_noop(script("", train=train), f"{reason} inner loop (line 23)")


def test_loader_made_for_each_fold_of_each_setting(
    rewrite: Callable[..., RewriteResult],
) -> None:
    train = """\
        for rate in (0.1, 0.01):
            for fold in range(5):
                loader = DataLoader(dataset, 4)
                model = torch.nn.Linear(10, 2)
                for epoch in range(5):
                    for batch in loader:
                        model(batch)
    """
    (file,) = rewrite(script("", train=train), ["dataloader-workers"]).files
    assert "persistent_workers=True" in file.text


_CLIENTS = """\
    class Client:
        def __init__(self, share):
            self.loader = DataLoader(share, 4)
        def train(self, model):
            for epoch in range(5):
                for batch in self.loader:
                    model(batch)
    model = torch.nn.Linear(10, 2)
    clients = [Client(dataset) for _ in range(100)]
    for turn in range(9):
        for client in clients:
            client.train(model)
"""


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("in clients:", "in clients:"),
        ("in clients:", "in __import__('random').sample(clients, 10):"),
        ("in clients:", "in list(clients):"),
        (
            "clients = [Client(dataset) for _ in range(100)]\n",
            "clients = []\nfor _ in range(100):\n    clients.append(Client(dataset))\n",
        ),
    ],
)
def test_loaders_of_many_clients(check_noop: Check, written: str, instead: str) -> None:
    train = "import random\n" + dedent(_CLIENTS).replace(written, instead)
    train = train.replace("__import__('random')", "random")
    check_noop(script("", train=train), "would start workers of its own in each of its turns")


@pytest.mark.parametrize("said", ["", ", num_workers=4"])
def test_workers_of_many_loaders_do_not_live_side_by_side(
    rewrite: Callable[..., RewriteResult], said: str
) -> None:
    train = f"""\
        model = torch.nn.Linear(10, 2)
        loaders = [DataLoader(dataset, 4{said}) for domain in open("domains")]
        for epoch in range(5):
            for batch in loaders[0]:
                model(batch)
    """
    (file,) = rewrite(script("", train=train), ["dataloader-workers"]).files
    assert "num_workers=" in file.text
    assert "persistent_workers" not in file.text
    assert not said or "would live side by side" in file.skips[0].message


def test_what_a_comprehension_goes_over_is_made_once(
    rewrite: Callable[..., RewriteResult],
) -> None:
    train = """\
        model = torch.nn.Linear(10, 2)
        loaders = [loader for loader in [DataLoader(dataset, 4)]]
        for epoch in range(5):
            for batch in loaders[0]:
                model(batch)
    """
    (file,) = rewrite(script("", train=train), ["dataloader-workers"]).files
    assert "persistent_workers=True" in file.text


@pytest.mark.parametrize(
    "splits", ['("train", "val")', '{"train": 1, "val": 2}', '{"train": 1}.items()', "SPLITS"]
)
def test_workers_of_the_loaders_of_splits_live_on(
    rewrite: Callable[..., RewriteResult], splits: str
) -> None:
    train = f"""\
        SPLITS = ["train", "val"]
        model = torch.nn.Linear(10, 2)
        loaders = {{split: DataLoader(dataset, 4) for split in {splits}}}
        for epoch in range(5):
            for split in ("train", "val"):
                for batch in loaders[split]:
                    model(batch)
    """
    (file,) = rewrite(script("", train=train), ["dataloader-workers"]).files
    assert "persistent_workers=True" in file.text


def test_loader_made_in_every_step(check_noop: Check) -> None:
    train = """\
        def look():
            for batch in DataLoader(dataset, 4):
                print(batch)
        for images in DataLoader(datasets.MNIST("data"), 2, num_workers=1):
            look()
    """
    check_noop(script("", train=train), "it is made anew in every pass of the loop")


def test_dataset_changed_in_the_loop(check_noop: Check) -> None:
    train = TRAIN + "        dataset.transform = transforms.RandomCrop(8)\n"
    check_noop(
        script("loader = DataLoader(dataset)\n", train=train),
        "changes the dataset while the loop runs",
    )


def test_arguments_that_cannot_be_resolved(check_noop: Check) -> None:
    loader = "import json\nloader = DataLoader(dataset, **json.load(open('x')))\n"
    check_noop(script(loader), "cannot be resolved, it may say how many workers there are")


def test_dict_that_is_updated_under_another_name(check_noop: Check) -> None:
    loader = """\
        def make(options):
            return DataLoader(dataset, **options)
        kwargs = {"batch_size": 4}
        if torch.cuda.is_available():
            kwargs.update({"num_workers": 24, "persistent_workers": True})
        loader = make(kwargs)
    """
    check_noop(script(loader))


def test_zero_with_another_use(check_noop: Check) -> None:
    loader = "COUNT = 0\nloader = DataLoader(dataset, num_workers=COUNT)\ntotal = COUNT + 1\n"
    check_noop(script(loader), "the 0 of its num_workers is also used elsewhere (line 23)")


def test_zero_in_a_configuration_dict(check_noop: Check) -> None:
    loader = """\
        config = {"workers": 0}
        loader = DataLoader(dataset, num_workers=config["workers"])
    """
    check_noop(script(loader), "its num_workers is the 0 (line 21), which is not followed further")


def test_zero_shared_with_a_loader_that_must_not(check_noop: Check) -> None:
    loader = """\
        W = 0
        loader = DataLoader(dataset, num_workers=W)
        other = DataLoader([1, 2, 3], num_workers=W)
        for x in other:
            print(x)
    """
    check_noop(script(loader), "it shares its num_workers with another loader (line 23)")


def test_default_device(check_noop: Check) -> None:
    loader = 'torch.set_default_device("cuda")\nloader = DataLoader(dataset)\n'
    check_noop(script(loader), "new tensors are made on the GPU by default")


# Where workers are not forked

SPAWN = {"platform": "darwin"}
GUARDED = 'if __name__ == "__main__":\n' + indent(
    "loader = DataLoader(dataset, 64)\n" + TRAIN, "    "
)


def test_the_script_can_be_shared_with_other_platforms(check_transformed: Check) -> None:
    after = GUARDED.replace("    loader", f"    {CORES}    loader")
    after = after.replace("64)", f"64, {ALIVE})")
    check_transformed(script("", train=GUARDED), script("", train=after))
    check_transformed(script("", train=GUARDED), script("", train=after), **SPAWN)


def test_the_cores_are_counted_on_every_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is emitted runs where the system says which cores are the process's, and where it does not."""
    names: dict[str, object] = {"os": os}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    exec(CORES, names)
    assert names["cores"] == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    exec(CORES, names)
    assert names["cores"] == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    exec(CORES, names)
    assert names["cores"] == 1


def test_processes_that_torchrun_starts_share_the_cores(check_transformed: Check) -> None:
    joins = "torch.distributed.init_process_group()\n"
    shares = (
        "# processes on the same machine share its cores\n"
        'cores = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))\n'
    )
    check_transformed(
        script(joins + "loader = DataLoader(dataset)\n"),
        script(joins + CORES + shares + f"loader = DataLoader(dataset, {ALIVE})\n"),
    )


def test_processes_of_the_script_itself_are_not_given_all_cores_each(
    check_noop: Check, rewrite: Callable[..., RewriteResult]
) -> None:
    train = """
        import torch.multiprocessing as mp

        def train(rank, arguments):
            loader = DataLoader(dataset, 64, **arguments)
            model = torch.nn.Linear(10, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

        if __name__ == "__main__":
            for rank in range(4):
                mp.Process(target=train, args=(rank, {})).start()
    """
    check_noop(script("", train=train), "each of the processes that `mp.Process(target=train")
    one = train.replace("for rank in range(4):", "if (rank := 0) == 0:")
    assert "num_workers" in rewrite(script("", train=one), ["dataloader-workers"]).files[0].text
    asked = rewrite(script("", train=train), ["dataloader-workers"], workers=2)
    assert '{"num_workers": 2}' in asked.files[0].text


def test_options_of_several_loaders_count_once(rewrite: Callable[..., object]) -> None:
    options = """\
        def make_loader(workers=0):
            return DataLoader(dataset, 64, num_workers=workers)
        OTHERS = 0
        loader = make_loader()
        other = DataLoader(dataset, 64, num_workers=OTHERS)
        third = DataLoader(dataset, 64)
    """
    train = TRAIN + "for batch in other:\n    print(batch)\nfor batch in third:\n    print(batch)\n"
    text = rewrite(script(options, train=train), ["dataloader-workers"]).files[0].text  # type: ignore[attr-defined]
    assert text.count("sched_getaffinity(0)") == 1
    assert text.count("min(8, CORES)") == 3
    assert text.index("CORES = ") < text.index("def make_loader")


def test_missing_guard(check_noop: Check) -> None:
    check_noop(script("loader = DataLoader(dataset)\n"), "is not under an `if __name__ ==", **SPAWN)


def test_python_3_14_forks_no_more(check_noop: Check) -> None:
    check_noop(
        script("loader = DataLoader(dataset)\n"), "import the script anew", python_version=(3, 14)
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            FILES.replace("transforms.ToTensor()", "lambda x: np.array(x)"),
            "a lambda does not pickle",
        ),
        (
            "def make():\n    def flip(x):\n        return x\n    return flip\n"
            + FILES.replace("transforms.ToTensor()", "make()"),
            "`flip` is defined inside a function and does not pickle",
        ),
    ],
)
def test_what_does_not_pickle(check_noop: Check, code: str, reason: str) -> None:
    check_noop(script("", code, GUARDED), reason, **SPAWN)
    lambdas_fork = script(
        "loader = DataLoader(dataset, num_workers=4, persistent_workers=True)\n", code
    )
    check_noop(lambdas_fork)


def test_name_under_the_guard_that_workers_read(check_noop: Check) -> None:
    code = FILES.replace("self.paths[index]", "ROOT + self.paths[index]")
    train = GUARDED.replace('"__main__":\n', '"__main__":\n    ROOT = "data/"\n')
    check_noop(script("", code, train), "workers read the global `ROOT`", **SPAWN)


def test_name_filled_under_the_guard_that_workers_read(check_noop: Check) -> None:
    code = "PARTS = []\n" + FILES.replace("self.paths[index]", "PARTS[0] + self.paths[index]")
    train = GUARDED.replace('"__main__":\n', '"__main__":\n    PARTS.append("data/")\n')
    check_noop(script("", code, train), "workers read the global `PARTS`", **SPAWN)


def test_dataset_class_under_the_guard(check_noop: Check) -> None:
    train = 'if __name__ == "__main__":\n' + indent(
        FILES + "loader = DataLoader(dataset)\n" + TRAIN, "    "
    )
    check_noop(script("", "", train), "`Files` is defined under the main guard", **SPAWN)


def test_script_that_asks_for_spawn(check_noop: Check) -> None:
    loader = 'torch.multiprocessing.set_start_method("spawn")\nloader = DataLoader(dataset)\n'
    check_noop(script(loader), "import the script anew")


# The reason


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (
            "transforms.RandomHorizontalFlip()",
            "its random draws come from the workers' generators now",
        ),
        ("transforms.ToTensor()", "it draws no random numbers"),
    ],
)
def test_reason_tells_about_random_draws(
    rewrite: Callable[..., object], transform: str, said: str
) -> None:
    code = FILES.replace("transforms.ToTensor()", transform)
    result = rewrite(script("loader = DataLoader(dataset)\n", code), ["dataloader-workers"])
    (change,) = result.files[0].changes  # type: ignore[attr-defined]
    assert said in change.reason


@pytest.mark.parametrize(
    "masked", ["batch * torch.bernoulli(half)", "batch * half.bernoulli()", "batch.random_(3)"]
)
def test_reason_tells_of_draws_in_the_collate_function(
    rewrite: Callable[..., object], masked: str
) -> None:
    collate = f"""
def collate(samples):
    batch = torch.stack([x for x, _ in samples])
    half = torch.full_like(batch, 0.5)
    return {masked}, torch.tensor([y for _, y in samples])


"""
    loader = "loader = DataLoader(dataset, collate_fn=collate)\n"
    result = rewrite(script(loader, FILES + collate), ["dataloader-workers"])
    (change,) = result.files[0].changes  # type: ignore[attr-defined]
    assert "its random draws come from the workers' generators now" in change.reason


@pytest.mark.parametrize("workers", ["", ", num_workers=2"])
def test_reason_tells_what_living_workers_draw(
    rewrite: Callable[..., object], workers: str
) -> None:
    loader = f"loader = DataLoader(dataset, shuffle=True{workers})\n"
    epochs = "for epoch in range(3):\n    for x, y in loader:\n        pass\n"
    result = rewrite(script(loader, FILES) + epochs, ["dataloader-workers"])
    (change,) = result.files[0].changes  # type: ignore[attr-defined]
    assert "gives other draws, such as the order of a shuffle" in change.reason


VERIFIED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
augment = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
dataset = datasets.FakeData(24, (3, 8, 8), 4, transform=augment)
loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""


@pytest.mark.torch
@pytest.mark.slow
def test_training_is_the_same(check_verified: Check) -> None:
    check_verified(VERIFIED)


@pytest.mark.parametrize("later", ["kwargs.update(num_workers=0)", "kwargs['num_workers'] = 0"])
def test_zero_put_into_a_dict_afterwards(check_noop: Check, later: str) -> None:
    """Said in the call as well, it would be given twice."""
    loader = f"""\
        kwargs = dict(batch_size=64)
        if torch.cuda.is_available():
            {later}
        loader = DataLoader(dataset, **kwargs)
    """
    check_noop(script(loader), "is put into a keyword dict at line")


@pytest.mark.parametrize("later", ["kwargs.update(num_workers=2)", "kwargs['num_workers'] = 2"])
def test_workers_put_into_a_dict_under_a_condition(check_noop: Check, later: str) -> None:
    """Without workers ``persistent_workers=True`` raises."""
    loader = f"""\
        kwargs = dict(batch_size=64)
        if torch.cuda.is_available():
            {later}
        loader = DataLoader(dataset, **kwargs)
    """
    check_noop(script(loader))


# Batches made ahead


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "loader = DataLoader(dataset, 64)\n",
            f"{CORES}loader = DataLoader(dataset, 64, {ALIVE}, prefetch_factor=4)\n",
        ),
        (
            "loader = DataLoader(dataset, 64, num_workers=2, persistent_workers=True)\n",
            "loader = DataLoader(dataset, 64, num_workers=2, persistent_workers=True, prefetch_factor=4)\n",
        ),
        (
            "loader = DataLoader(dataset, 64, num_workers=n, persistent_workers=n > 0)\n",
            "loader = DataLoader("
            "dataset, 64, num_workers=n, persistent_workers=n > 0, prefetch_factor=4 if n > 0 else None)\n",
        ),
    ],
)
def test_batches_ahead(check_transformed: Check, before: str, after: str) -> None:
    check_transformed(script(before), script(after), prefetch=4)


def test_batches_ahead_only_where_an_option_leaves_workers(check_transformed: Check) -> None:
    options = """\
        parser = argparse.ArgumentParser()
        parser.add_argument("--workers", type=int, default={})
        args = parser.parse_args()
        loader = DataLoader({})
        """
    loader = """
            dataset,
            64,
            num_workers=args.workers,
            persistent_workers=args.workers > 0,
            prefetch_factor=4 if args.workers > 0 else None,
        """
    check_transformed(
        script(options.format(0, "dataset, 64, num_workers=args.workers")),
        script(options.format(2, loader)),
        prefetch=4,
        workers=2,
    )


@pytest.mark.parametrize(
    "loader",
    [
        "loader = DataLoader(dataset, 64, num_workers=2, persistent_workers=True, prefetch_factor=8)\n",
        "loader = DataLoader(dataset, 64, num_workers=2, persistent_workers=True, **more)\n",
        "loader = DataLoader(dataset, 64, num_workers=len(parts), persistent_workers=True)\n",
    ],
)
def test_no_batches_ahead(check_noop: Check, loader: str) -> None:
    check_noop(script(loader), prefetch=4)


def test_no_batches_ahead_without_workers(check_noop: Check) -> None:
    check_noop(script("loader = DataLoader(dataset, 64)\n"), prefetch=4, workers=0)


# What loses its workers

ROWS = """\
from torch.utils.data import RandomSampler, SubsetRandomSampler, TensorDataset, random_split
x = torch.randn(500, 10)
dataset = TensorDataset(x)
"""
ROWS_TRAIN = TRAIN.replace("for batch in loader", "for batch, in loader")


def rows(loader: str, dataset: str = ROWS, train: str = ROWS_TRAIN) -> str:
    return script(f"loader = {loader}\n", dataset, train)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dataset, 64, num_workers=2", "dataset, 64"),
        (
            "dataset, batch_size=64, shuffle=True, num_workers=4, drop_last=True",
            "dataset, batch_size=64, shuffle=True, drop_last=True",
        ),
        (
            "dataset, 64, num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=60",
            "dataset, 64",
        ),
        ("dataset, 64, num_workers=2, multiprocessing_context='spawn'", "dataset, 64"),
        (
            "dataset, 64, num_workers=2, worker_init_fn=None, pin_memory=True",
            "dataset, 64, worker_init_fn=None, pin_memory=True",
        ),
        (
            "dataset, 64, sampler=RandomSampler(dataset), num_workers=2",
            "dataset, 64, sampler=RandomSampler(dataset)",
        ),
        (
            "random_split(dataset, [400, 100])[0], 64, num_workers=2",
            "random_split(dataset, [400, 100])[0], 64",
        ),
    ],
)
def test_rows_in_memory_lose_their_workers(
    check_transformed: Check, before: str, after: str
) -> None:
    check_transformed(rows(f"DataLoader({before})"), rows(f"DataLoader({after})"))


def test_rows_of_a_class_of_the_scripts_own_lose_their_workers(check_transformed: Check) -> None:
    own = """\
        class Rows(Dataset):
            def __init__(self, x):
                self.x = x
            def __len__(self):
                return len(self.x)
            def __getitem__(self, index):
                return (self.x[index],)
        dataset = Rows(torch.randn(500, 10))
    """
    before, after = "DataLoader(dataset, 64, num_workers=2)", "DataLoader(dataset, 64)"
    check_transformed(rows(before, own), rows(after, own))


def test_a_function_that_goes_over_either_of_two_loaders(rewrite: Callable[..., Any]) -> None:
    train = """\
        def validate(data):
            for batch, in tqdm(data):
                print(batch)

        for epoch in range(3):
            validate(loader)
        validate(test_loader)
    """
    loaders = (
        "DataLoader(dataset, 64, num_workers=2)\ntest_loader = DataLoader(dataset, num_workers=3)"
    )
    source = rows(loaders, train=dedent(train)).replace(
        "import torch\n", "import torch\nfrom tqdm import tqdm\n", 1
    )
    (file,) = rewrite(source, ["dataloader-workers"]).files
    assert "num_workers" not in file.text
    zipped = source.replace("tqdm(data)", "zip(data, test_loader)")
    (file,) = rewrite(zipped, ["dataloader-workers"]).files
    assert "num_workers=2" in file.text


def test_workers_that_lived_on_drew_one_seed(rewrite: Callable[..., RewriteResult]) -> None:
    loader = "DataLoader(dataset, 64, num_workers=2, persistent_workers=True)"
    result = rewrite(rows(loader), ["dataloader-workers"])
    (change,) = result.files[0].changes
    assert "draws a seed in every pass instead of once" in change.reason


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("num_workers=args.workers", "its `num_workers` is chosen elsewhere (`args.workers`)"),
        ("num_workers=2, worker_init_fn=print", "its `worker_init_fn` may do something else"),
        ("num_workers=2, collate_fn=stack", "its `collate_fn` may do something else"),
        ("num_workers=2, batch_size=None", "would get the dataset's own"),
        ("num_workers=2, sampler=Halves(5)", "when its sampler draws is not known (`Halves(5)`)"),
        (
            "num_workers=2, sampler=SubsetRandomSampler(range(9), torch.Generator())",
            "when its sampler draws is not known",
        ),
        ("num_workers=2, **more", "`more` is not known"),
        ("**{'num_workers': 2}", "its `num_workers` is chosen elsewhere (`2`)"),
    ],
)
def test_rows_in_memory_whose_workers_stay(check_noop: Check, arguments: str, reason: str) -> None:
    check_noop(rows(f"DataLoader(dataset, persistent_workers=True, {arguments})"), reason)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (
            "for epoch in range(3):\n    for a, b in zip(loader, loader):\n        print(a, b)\n",
            "random numbers may be drawn",
        ),
        (
            "for epoch in range(3):\n    for a, b in zip(range(3), loader):\n        print(a, b)\n",
            "what `zip(range(3), loader)` does",
        ),
        (
            "batches = iter(loader)\nnoise = torch.randn(3)\nfor i in range(3):\n    print(next(batches))\n",
            "random numbers may be drawn",
        ),
        (
            "for epoch in range(3):\n    for a, in loader:\n        x.mul_(2)\n",
            "`x.mul_` (line 14) changes what the dataset reads",
        ),
        (
            "for epoch in range(3):\n    for a, in loader:\n        x += a.mean()\n",
            "changes what the dataset reads",
        ),
        (
            "trainer.fit(loader)\nfor a, in loader:\n    print(a)\n",
            "what `trainer.fit(loader)` does with it is not known",
        ),
        ("def batches():\n    return DataLoader(dataset, 9)\n", "no loop over it was found"),
    ],
)
def test_passes_that_need_their_workers(check_noop: Check, train: str, reason: str) -> None:
    loader = "DataLoader(dataset, 64, shuffle=True, num_workers=2, persistent_workers=True)"
    check_noop(rows(loader, train=train), reason)


IMAGES = ROWS.replace("torch.randn(500, 10)", "torch.load('images.pt')")
NETWORK = "network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))\n"


@pytest.mark.parametrize(
    ("dataset", "kept"),
    [
        (ROWS.replace("500, 10", "500, 3, 224, 224"), True),
        (ROWS.replace("500, 10", "500, 3, 32, 32") + NETWORK, False),
        (IMAGES + NETWORK, True),
        (IMAGES, False),
    ],
)
def test_large_rows_keep_their_workers(
    rewrite: Callable[..., RewriteResult], dataset: str, kept: bool
) -> None:
    result = rewrite(
        rows("DataLoader(dataset, 64, num_workers=2)", dataset), ["dataloader-workers"]
    )
    assert ("num_workers=2" in result.files[0].text) == kept


def test_workers_that_are_asked_for_stay(rewrite: Callable[..., RewriteResult]) -> None:
    code = rows("DataLoader(dataset, 64, num_workers=2)")
    for workers, kept in ((4, True), (0, False)):
        result = rewrite(code, ["dataloader-workers"], workers=workers)
        assert ("num_workers=2" in result.files[0].text) == kept


def test_rows_without_workers_are_verified(check_verified: Check) -> None:
    loader = "loader = DataLoader(dataset, 16, shuffle=True, num_workers=2)\n"
    check_verified(script(loader, "torch.manual_seed(0)\n" + ROWS, ROWS_TRAIN))


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_and_draws_without_workers_are_what_they_were(shuffle: bool) -> None:
    """The claim, on the library itself."""
    data = TensorDataset(torch.arange(70.0).view(35, 2))
    found = []
    for workers in (0, 2):
        torch.manual_seed(3)
        loader = DataLoader(data, batch_size=8, shuffle=shuffle, num_workers=workers)
        batches = [batch for _ in range(2) for (batch,) in loader]
        found.append((torch.cat(batches), torch.get_rng_state()))
    (ours, our_state), (theirs, their_state) = found
    assert torch.equal(ours, theirs)
    assert torch.equal(our_state, their_state)


def test_loader_of_a_function_that_a_library_gets_the_entry_to_call(
    check_transformed: Check,
) -> None:
    """As clusters' launchers do: ``executor.submit(Trainer(options))`` calls the object."""
    launcher = """\
        import submitit
        import train

        class Trainer:
            def __call__(self):
                train.main()

        submitit.AutoExecutor("jobs").submit(Trainer())
    """
    main = """\
        from torch.utils.data import DataLoader
        from torchvision import datasets

        def main():
            files = datasets.ImageFolder("train")
            loader = DataLoader(files, num_workers=16{})
            for epoch in range(9):
                for batch in loader:
                    pass
    """
    check_transformed(
        {"launch.py": launcher, "train.py": main.format("")},
        {"launch.py": launcher, "train.py": main.format(", persistent_workers=True")},
    )


def test_a_tensor_is_looked_up_in_memory(check_noop: Check) -> None:
    source = """
        import torch
        from torch.utils.data import DataLoader

        x = torch.randn(512, 64)
        loader = DataLoader(x, batch_size=16)
        for batch in loader:
            print(batch)
    """
    check_noop(source, "a tensor: items are only looked up in memory")
