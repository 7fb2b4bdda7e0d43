"""The passes of a Lightning Trainer, what they mean for workers, and who copies the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.loading.batch_memory import pinning_refused
from torchopt_cli.optimizer.analysis.loading.passes import passes_repeat
from torchopt_cli.optimizer.analysis.loading.workers import persistence_refused, workers_refused
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.options import Options

Script = Callable[..., TrainingScript]
HEAD = """\
import torch
import lightning as L
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, names):
        self.names = names
        self.size = 8

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return torch.zeros(self.size) + Image.open(self.names[i]).size[0]


class Data(L.LightningDataModule):
    def setup(self, stage=None):
        self.train_set = Files("ab")
        self.train_set.size = 4
        self.val_set = Files("cd")

    def train_dataloader(self):
        return DataLoader(self.train_set)

    def val_dataloader(self):
        return [DataLoader(self.val_set)]


"""
NET = """\
class Net(L.LightningModule):
    def training_step(self, batch, index):
        return self.layer(batch)
"""


def runs(script: Script, code: str, net: str = NET) -> TrainingScript:
    return script(HEAD + net + "\n\n" + dedent(code))


def told(understood: TrainingScript) -> Iterator[str]:
    for run in understood.trainer_runs.all:
        lines = [loader.module.code(loader.arguments["dataset"].value) for loader in run.loaders]
        yield f"{', '.join(lines)}{' again and again' if run.repeats else ''}"


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("L.Trainer().fit(Net(), DataLoader(Files('x')))", ["Files('x') again and again"]),
        (
            """\
            train, val = DataLoader(Files("t")), DataLoader(Files("v"))
            trainer = L.Trainer()
            trainer.fit(Net(), train_dataloaders=train, val_dataloaders=[val])
            trainer.test(Net(), val)
            """,
            ['Files("t"), Files("v") again and again', 'Files("v")'],
        ),
        (
            "L.Trainer().fit(Net(), datamodule=Data())",
            ["self.train_set, self.val_set again and again"],
        ),
        (
            "data = Data()\nL.Trainer().fit(Net(), data)",
            ["self.train_set, self.val_set again and again"],
        ),
        ("L.Trainer().validate(Net(), datamodule=Data())", ["self.val_set"]),
        ("L.Trainer().test(Net(), datamodule=Data())", []),
        (
            "L.Trainer(reload_dataloaders_every_n_epochs=1).fit(Net(), datamodule=Data())",
            ["self.train_set, self.val_set"],
        ),
        (
            "L.Trainer(reload_dataloaders_every_n_epochs=0).fit(Net(), DataLoader(Files('x')))",
            ["Files('x') again and again"],
        ),
        ("Other().fit(Net(), DataLoader(Files('x')))", []),
    ],
)
def test_the_loaders_of_a_run(script: Script, code: str, passes: list[str]) -> None:
    assert list(told(runs(script, code))) == passes


def test_loaders_that_the_network_makes(script: Script) -> None:
    net = NET + "    def train_dataloader(self):\n        return DataLoader(Files('n'))\n"
    understood = runs(script, "L.Trainer().fit(Net())", net)
    assert list(told(understood)) == ["Files('n') again and again"]


FIT = "L.Trainer().fit(Net(), datamodule=Data())"


def refusals(understood: TrainingScript) -> list[str | None]:
    return [workers_refused(understood, loader, Options()) for loader in understood.loaders]


def test_set_up_of_a_data_module_does_not_hold_workers_back(script: Script) -> None:
    understood = runs(script, FIT)
    assert refusals(understood) == [None, None]
    assert all(passes_repeat(understood, loader) for loader in understood.loaders)
    assert not any(persistence_refused(understood, loader) for loader in understood.loaders)


@pytest.mark.parametrize(
    "hook",
    [
        "self.trainer.datamodule.train_set.size = 6",
        "self.trainer.train_dataloader.dataset.size += 1",
        "self.trainer.train_dataloader.dataset.grow()",
        "grow(self.trainer.datamodule.train_set)",
        "trainer = self.trainer\n    trainer.datamodule.train_set.size = 6",
    ],
)
def test_a_hook_that_may_change_the_dataset(script: Script, hook: str) -> None:
    net = NET + indent(f"def on_train_epoch_start(self):\n    {hook}\n", "    ")
    assert all(
        reason and "while the Trainer goes over it" in reason
        for reason in refusals(runs(script, FIT, net))
    )


@pytest.mark.parametrize(
    "hook",
    [
        "self.log('batches', len(self.trainer.train_dataloader))",
        "self.log('classes', self.trainer.datamodule.num_classes)",
        "self.train_loader = 3",
    ],
)
def test_a_hook_that_only_asks(script: Script, hook: str) -> None:
    net = NET + indent(f"def on_train_epoch_start(self):\n    {hook}\n", "    ")
    assert refusals(runs(script, FIT, net)) == [None, None]


def test_a_data_module_that_changes_its_dataset(script: Script) -> None:
    hook = "    def on_train_epoch_start(self):\n        self.train_set.size += 1\n\n\n"
    understood = script(HEAD.rstrip("\n") + "\n\n" + hook + NET + "\n\n" + FIT + "\n")
    assert (refusals(understood)[0] or "").startswith("`self.train_set.size` (line ")


def test_a_change_between_two_runs_only_ends_the_workers(script: Script) -> None:
    code = """\
        def main():
            files = Files("ab")
            loader = DataLoader(files)
            trainer = L.Trainer()
            trainer.fit(Net(), loader)
            files.size = 3
            trainer.fit(Net(), loader)


        main()
    """
    understood = runs(script, code)
    loader = understood.loaders[-1]
    assert workers_refused(understood, loader, Options()) is None
    assert "changes the dataset between passes" in (persistence_refused(understood, loader) or "")


def test_the_same_loader_for_training_and_validation(script: Script) -> None:
    code = "loader = DataLoader(Files('x'))\nL.Trainer().fit(Net(), loader, loader)"
    understood = runs(script, code)
    reason = persistence_refused(understood, understood.loaders[-1])
    assert reason == "it is gone over twice at the same time"


def test_a_loop_by_hand_beside_the_trainer(script: Script) -> None:
    code = """\
        loader = DataLoader(Files("x"))


        class Show(L.Callback):
            def on_train_epoch_end(self, trainer, module):
                for batch in loader:
                    print(batch)


        L.Trainer(callbacks=[Show()]).fit(Net(), loader)
    """
    understood = runs(script, code)
    reason = persistence_refused(understood, understood.loaders[-1]) or ""
    assert reason.endswith("while the Trainer's is under way")


@pytest.mark.parametrize(
    ("trainer", "net", "reason"),
    [
        ("L.Trainer()", NET, None),
        ("L.Trainer(accelerator='gpu')", NET, None),
        ("L.Trainer(accelerator='cpu')", NET, "no copy of its batches to a GPU was found"),
        (
            "L.Trainer()",
            NET + "    def on_before_batch_transfer(self, batch, i):\n        return batch * 2\n",
            "`on_before_batch_transfer` (line 36 of {path}) may change its batches before they are copied",
        ),
    ],
)
def test_who_copies_the_batches(script: Script, trainer: str, net: str, reason: str | None) -> None:
    understood = runs(script, f"{trainer}.fit(Net(), datamodule=Data())", net)
    wanted = reason and reason.format(path=understood.entry.path)
    assert pinning_refused(understood, understood.loaders[0]) == wanted
