"""Which loaders only train, and what is known of their last, shorter batch."""

from __future__ import annotations

import ast

from ..calls.reach import never_runs
from ..calls.signatures import call_argument
from ..facts import Argument, DataLoader, Loop, LoopKind
from ..program.classes import class_attribute
from ..program.statements import only_one_runs
from ..program.syntax import first_name
from ..program.trees import is_true
from ..values.resolver import Resolver
from ..values.values import External, Literal, Made, Option, Value, whole_number
from .datasets import Dataset, DatasetKind, find_datasets, is_iterable
from .iterations import Iteration

_LENGTHS = {
    "torchvision.datasets.MNIST": 60_000,
    "torchvision.datasets.FashionMNIST": 60_000,
    "torchvision.datasets.KMNIST": 60_000,
    "torchvision.datasets.CIFAR10": 50_000,
    "torchvision.datasets.CIFAR100": 50_000,
}
_TRAIN = 1  # position of `train` among the parameters of those


def only_trains(
    resolver: Resolver,
    loader: DataLoader,
    loops: tuple[Loop, ...],
    iterations: tuple[Iteration, ...],
) -> str | None:
    """Why ``loader`` may serve more than training; None when it is only gone over by training loops of its own."""
    mine = [loop for loop in loops if loader in loop.loaders]
    if not any(loop.kind is LoopKind.TRAINING for loop in mine):
        return "no training loop is seen that goes over it"
    if any(
        loop.kind is not LoopKind.TRAINING
        or loader not in loop.trained
        or not only_one_runs(loop.trained)
        for loop in mine
    ):
        return "the loop that goes over it is not for training alone"
    nodes = {loop.node for loop in mine}
    for iteration in iterations:
        if loader in iteration.loaders and iteration.node not in nodes and not iteration.takes_one:
            return f"it is also gone over in `{iteration.excerpt}`"
    module, node = loader.module, loader.node
    repeats = (
        ast.comprehension | ast.ListComp | ast.DictComp | ast.GeneratorExp | ast.For | ast.While
    )
    if any(isinstance(ancestor, repeats) for ancestor in module.ancestors(node)):
        return "one call makes several loaders"
    function = loader.function
    if function is not None:
        sites = resolver.call_sites(function)
        if sum(not never_runs(resolver, site.call, site.module) for site in sites) > 1:
            return f"`{function.name}` makes several loaders"
    return None


def full_batches(resolver: Resolver, loader: DataLoader) -> tuple[str | None, str]:
    """An expression, valid in the loader's call, that is true when there is a full batch; else None and why.

    ``True`` where the length of the dataset is known.
    """
    size, dataset = loader.arguments.get("batch_size"), loader.arguments.get("dataset")
    if size is None or dataset is None:
        return None, "it has no batch size, so every batch is one sample"
    if any(may_be_none(value) for value in resolver.values(size.value, size.module)):
        return None, "its batch size may be None"
    largest = known_size(resolver, size)
    if largest is not None and largest <= 1:
        return None, "every batch is one sample"
    found = find_datasets(resolver, loader)
    if any(is_iterable(resolver, each) for each in found):
        return None, "its workers would each leave out samples of a dataset that is only iterated"
    if largest is not None and _shortest(resolver, dataset) >= 10 * largest:
        return "True", ""
    if dataset.module is not loader.module or size.module is not loader.module:
        return None, "there may be less than one batch, and nothing here says how many samples"
    if not found or not all(_has_length(resolver, each) for each in found):
        return None, "there may be less than one batch: the length of its dataset is not known"
    if not first_name(dataset.value) or not (largest is not None or first_name(size.value)):
        return None, "there may be less than one batch, and no variable holds its dataset"
    module = loader.module
    return f"len({module.code(dataset.value)}) >= {module.code(size.value)}", ""


def known_size(resolver: Resolver, size: Argument) -> int | None:
    """The whole number that the argument ``size`` is, an option being its default; None where it is not known."""
    return whole_number(resolver.values(size.value, size.module))


def may_be_none(value: Value) -> bool:
    """Whether ``value`` is None, or an option that is unless it is given."""
    match value:
        case Literal(value=None):
            return True
        case Option(default=default):
            return default is None or (isinstance(default, ast.Constant) and default.value is None)
        case _:
            return False


def _shortest(resolver: Resolver, dataset: Argument) -> int:
    """The least number of samples ``dataset`` can have, as far as its name tells."""
    shortest: list[int] = []
    for value in resolver.values(dataset.value, dataset.module):
        name = (
            value.maker.name
            if isinstance(value, Made) and isinstance(value.maker, External)
            else ""
        )
        train = call_argument(value.call, "train", _TRAIN) if isinstance(value, Made) else None
        is_train = train is None or is_true(train)
        shortest.append(_LENGTHS.get(name, 0) if is_train else 0)
    return min(shortest, default=0)


def _has_length(resolver: Resolver, dataset: Dataset) -> bool:
    if dataset.kind is DatasetKind.OWN and dataset.cls is not None:
        return bool(class_attribute(resolver, dataset.cls, "__len__"))
    return dataset.kind in {DatasetKind.LIBRARY, DatasetKind.IN_MEMORY}
