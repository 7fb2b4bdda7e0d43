"""Whether all batches of a loader have one shape, but for a smaller last one."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..facts import Argument, DataLoader
from ..values.composition import call_arguments, composed_of
from ..values.resolver import Resolver
from ..values.values import Display, Element, External, Literal, Made, Option, Value
from .dataset_changes import changes_of_dataset
from .datasets import ITERABLE_DATASET, Dataset, DatasetKind, find_datasets

_FIXED_DATASETS = frozenset(
    f"torchvision.datasets.{name}"
    for name in "MNIST FashionMNIST KMNIST QMNIST EMNIST USPS CIFAR10 CIFAR100 SVHN STL10 FakeData PCAM".split()
)
_CROPS = frozenset({"CenterCrop", "RandomCrop", "RandomResizedCrop", "FiveCrop", "TenCrop"})
_KEEP_SHAPE = frozenset(
    "ToTensor PILToTensor ToImage ToDtype ConvertImageDtype Normalize RandomHorizontalFlip RandomVerticalFlip "
    "ColorJitter Grayscale RandomGrayscale RandomErasing GaussianBlur RandomAffine RandomAutocontrast RandAugment "
    "AutoAugment TrivialAugmentWide AugMix RandomEqualize RandomPosterize RandomSolarize RandomInvert "
    "RandomAdjustSharpness RandomPerspective".split()
)
_TRANSFORMS = ("torchvision.transforms.", "torchvision.transforms.v2.")


def varying_shape(resolver: Resolver, loader: DataLoader) -> str | None:
    """Why the batches of ``loader`` may differ in shape; None when they are proven not to.

    Two proofs count: samples are stacked as they are, which fails unless they have one shape; or every image ends up
    in a fixed size.
    """
    if loader.opaque is not None:
        return f"`{loader.module.code(loader.opaque)}` may hold a `collate_fn`"
    if _given(resolver, loader.arguments.get("collate_fn")):
        return "a `collate_fn` makes the batches, which may be padded or resized one by one"
    grouping = _grouping(resolver, loader)
    if grouping is not None:
        return grouping
    datasets = find_datasets(resolver, loader)
    for dataset in datasets:
        reason = _of_dataset(resolver, loader, dataset)
        if reason is not None:
            return reason
    if _stacks(resolver, loader.arguments.get("batch_size")):
        return None
    for dataset in datasets:
        if not _fixed_size(resolver, dataset):
            if _holds_one_size(resolver, dataset):
                return f"images of {dataset.name} may differ in size: not all transforms are known to keep it"
            return f"samples of {dataset.name} are loaded one by one and may differ in size"
    return None


def _given(resolver: Resolver, argument: Argument | None) -> bool:
    if argument is None:
        return False
    values = resolver.values(argument.value, argument.module)
    return not all(
        (isinstance(v, Literal) and v.value is None)
        or (isinstance(v, External) and v.name.endswith(".default_collate"))
        for v in values
    )


def _grouping(resolver: Resolver, loader: DataLoader) -> str | None:
    """Why samples of like size may be batched together."""
    for keyword in ("batch_sampler", "sampler"):
        argument = loader.arguments.get(keyword)
        if argument is None:
            continue
        for value in resolver.values(argument.value, argument.module):
            if isinstance(value, Literal) and value.value is None:
                continue
            library = isinstance(value, Made) and isinstance(value.maker, External)
            if not library or keyword == "batch_sampler":
                return f"its `{keyword}` may batch samples of like size"
            if not value.maker.name.startswith("torch.utils.data."):  # type: ignore[union-attr]
                return f"its `{keyword}` may batch samples of like size"
    return None


def _of_dataset(resolver: Resolver, loader: DataLoader, dataset: Dataset) -> str | None:
    if dataset.kind in {DatasetKind.UNKNOWN, DatasetKind.FOREIGN}:
        return f"{dataset.name} cannot be followed"
    if dataset.cls is not None:
        if ITERABLE_DATASET in resolver.base_names(dataset.cls):
            return f"{dataset.name} is iterable and may order its samples by size"
        if next(changes_of_dataset(resolver, loader, dataset), None) is not None:
            return f"{dataset.name} is changed while it is in use"
    return None


def _stacks(resolver: Resolver, argument: Argument | None) -> bool:
    """Whether several samples make a batch: then they have one shape, or stacking fails."""
    if argument is None:
        return False
    values = resolver.values(argument.value, argument.module)
    return bool(values) and all(_is_several(resolver, value) for value in values)


def _is_several(resolver: Resolver, value: Value) -> bool:
    match value:
        case Literal(int() as number):
            return number > 1
        case Option(default=ast.expr() as default, module=module):
            return all(
                isinstance(v, Literal) and isinstance(v.value, int) and v.value > 1
                for v in resolver.values(default, module)
            )
        case Display(ast.BinOp(left=left, op=ast.Mult() | ast.Add(), right=right), module):
            sides = [*resolver.values(left, module), *resolver.values(right, module)]
            return any(_is_several(resolver, side) for side in sides) and all(
                isinstance(side, Literal | Option) for side in sides
            )
        case _:
            return False


def _holds_one_size(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether the images of ``dataset`` are of one size before they are transformed."""
    if not isinstance(dataset.node, ast.Call):
        return False
    names = resolver.names(dataset.node.func, dataset.module)
    return bool(names) and names <= _FIXED_DATASETS


def _fixed_size(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether every item of ``dataset`` is an image of one size."""
    node = dataset.node
    if dataset.kind is DatasetKind.IN_MEMORY or not isinstance(node, ast.Call):
        return dataset.kind is DatasetKind.IN_MEMORY and isinstance(node, ast.Call)
    given: list[Value] = []
    for argument in call_arguments(node):
        given += resolver.values(argument, dataset.module)
    pipelines = [v for v in given if _transform_name(v) == "Compose"]
    if _holds_one_size(resolver, dataset):
        return all(
            _keeps_shape(resolver, value)
            for value in composed_of(resolver, given)
            if isinstance(value, Made | Element)
        )
    if dataset.cls is not None or not pipelines:
        return False
    return all(_ends_fixed(resolver, pipeline) for pipeline in pipelines)


def _transform_name(value: Value) -> str:
    if isinstance(value, Made) and isinstance(value.maker, External):
        name = value.maker.name
        if name.startswith(_TRANSFORMS):
            return name.rpartition(".")[2]
    return ""


def _keeps_shape(resolver: Resolver, value: Value) -> bool:
    is_kept = _keeps_size(value) or _transform_name(value) == "Compose"
    return is_kept or _sets_size(resolver, value)


def _keeps_size(value: Value) -> bool:
    """Whether a transform gives images of the size that it is given; a rotation may grow them to hold their corners."""
    name = _transform_name(value)
    if name == "RandomRotation" and isinstance(value, Made):
        return call_argument(value.call, "expand", 2) is None
    return name in _KEEP_SHAPE


def _ends_fixed(resolver: Resolver, pipeline: Value) -> bool:
    """Whether a ``Compose`` brings images to one size, and what follows keeps it."""
    assert isinstance(pipeline, Made)
    steps = call_argument(pipeline.call, "transforms", 0)
    if not isinstance(steps, ast.List | ast.Tuple):
        return False
    fixed = False
    for step in steps.elts:
        values = resolver.values(step, pipeline.module)
        if all(_sets_size(resolver, value) for value in values):
            fixed = True
        elif not all(_keeps_size(value) for value in values):
            fixed = fixed and all(_transform_name(value) == "Resize" for value in values)
    return fixed


def _sets_size(resolver: Resolver, value: Value) -> bool:
    """Whether a transform gives one size whatever comes in: a crop, or a ``Resize`` to height and width."""
    name = _transform_name(value)
    if name in _CROPS:
        return True
    if name != "Resize" or not isinstance(value, Made):
        return False
    size = call_argument(value.call, "size", 0)
    if size is None:
        return False
    return all(
        isinstance(v, Display)
        and isinstance(v.node, ast.Tuple | ast.List)
        and len(v.node.elts) == 2
        for v in resolver.values(size, value.module)
    )
