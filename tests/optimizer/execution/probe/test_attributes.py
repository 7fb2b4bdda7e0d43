from types import SimpleNamespace

import torch
from torch import nn

from torchopt_cli.optimizer.execution.probe.attributes import told_attributes


class History:
    def __init__(self) -> None:
        self.epoch = 3
        self.losses = [0.5, (1, {"a": None})]
        self.best = torch.ones(1)
        self._scratch = 4


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.accuracies = [0.25]
        self.onehot = torch.zeros(2)
        self.fc = nn.Linear(2, 2)
        self.inner = Leaf()


class Leaf(nn.Module):
    depth = 7

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.penalty = 0.1


def test_told_attributes_of_an_object():
    told = {"epoch": 3, "losses": [0.5, (1, {"a": None})]}
    assert dict(told_attributes(History())) == told


def test_those_of_a_module_and_of_the_modules_in_it():
    assert dict(told_attributes(Tree())) == {"accuracies": [0.25], "inner.penalty": 0.1}


def test_of_librarys_classes_none_are_told():
    assert not dict(told_attributes(nn.Linear(2, 2)))
    assert not dict(told_attributes(SimpleNamespace(a=1)))
    assert not dict(told_attributes(3))


def test_what_holds_itself_or_a_whole_memory_is_not_told():
    history = History()
    history.losses.append(history.losses)
    history.seen = list(range(20_000))
    history.text = "to be or not to be " * 50_000
    assert dict(told_attributes(history)) == {"epoch": 3}


class Trainer:
    def __init__(self) -> None:
        self.history = History()
        self.net = Tree()
        self.kind = History
        self.history.trainer = self


def test_objects_in_objects_and_networks_are_told():
    trainer = Trainer()
    names = {"history.epoch": 3, "history.losses": trainer.history.losses, "net": trainer.net}
    assert dict(told_attributes(trainer)) == names


def test_of_a_network_that_knows_its_trainer_no_networks_are_told():
    trainer = Trainer()
    trainer.net.trainer = trainer
    assert {"trainer.history.epoch", "accuracies"} < {
        name for name, _ in told_attributes(trainer.net)
    }
    assert not any(isinstance(value, nn.Module) for _, value in told_attributes(trainer.net))


def test_what_goes_deep_ends():
    chain = last = History()
    for _ in range(9):
        last.inner = last = History()
    assert max(name.count("inner") for name, _ in told_attributes(chain)) == 4
