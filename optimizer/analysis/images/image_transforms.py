"""The torchvision transforms that a dataset's images go through, in order, and the shape they come out with."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact
from ..loading.datasets import Dataset
from ..program.syntax import Module
from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.values import Display, External, Made, whole_number

_PACKAGES = frozenset({"torchvision.transforms", "torchvision.transforms.v2"})
_SAME_SIZE = frozenset(
    "ToTensor PILToTensor ToImage ToDtype ConvertImageDtype Normalize Grayscale RandomGrayscale ColorJitter GaussianBlur "
    "RandomHorizontalFlip RandomVerticalFlip RandomErasing RandomInvert RandomSolarize RandomPosterize RandomEqualize "
    "RandomAutocontrast RandomAdjustSharpness TrivialAugmentWide RandAugment AutoAugment AugMix RandomAffine "
    "RandomPerspective".split()
)
_NONE: frozenset[ast.Call] = frozenset()
_CROPS = frozenset({"RandomResizedCrop", "RandomCrop", "CenterCrop"})
"""Transforms whose result has the size of their first argument, a number standing for a square."""
_KNOWN_SHAPES = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", "SVHN"), (3, 32, 32)),
    **dict.fromkeys(("MNIST", "FashionMNIST", "KMNIST", "QMNIST"), (1, 28, 28)),
}


@dataclass(frozen=True, eq=False)
class ImageTransform(Fact):
    """One transform, such as ``RandomCrop(32)``; ``name`` is its class, empty for one that is not torchvision's."""

    node: ast.expr
    name: str

    @property
    def is_random(self) -> bool:
        """Whether it may do something else each time; a transform that is not known may."""
        return self.name not in _DETERMINISTIC


_DETERMINISTIC = frozenset(
    "Resize CenterCrop Pad Grayscale ToTensor PILToTensor ToImage ToPILImage ToDtype ConvertImageDtype Normalize "
    "FiveCrop TenCrop".split()
)


@dataclass(frozen=True)
class ImageShape:
    """What one image is after its transforms. ``dtype`` is torch's name of it."""

    channels: int
    height: int
    width: int
    dtype: str

    @property
    def size(self) -> int:
        """In bytes."""
        return self.channels * self.height * self.width * (4 if self.dtype == "float32" else 1)


def image_transforms(resolver: Resolver, dataset: Dataset) -> tuple[ImageTransform, ...]:
    """The transforms that are handed to ``dataset`` where it is made; empty when there is not one sequence of them."""
    if not isinstance(dataset.node, ast.Call):
        return ()
    found = [
        sequence
        for argument in call_arguments(dataset.node)
        if (sequence := _sequence(resolver, argument, dataset.module))
    ]
    return found[0] if len(found) == 1 else ()


def image_shape(resolver: Resolver, dataset: Dataset) -> ImageShape | None:
    """The shape of the images of ``dataset``, None when the script does not tell.

    Sizes that are command-line options are taken at their defaults.
    """
    transforms = image_transforms(resolver, dataset)
    library = dataset.name.strip("`").rpartition(".")
    known = _KNOWN_SHAPES.get(library[2]) if library[0] == "torchvision.datasets" else None
    names = [transform.name for transform in transforms]
    if "ToTensor" in names or "Normalize" in names:
        dtype = "float32"
    elif {"PILToTensor", "ToImage"} & set(names) and "ToDtype" not in names:
        dtype = "uint8"
    else:
        return None
    size = _size(resolver, transforms, known[1:] if known else None)
    channels = _channels(resolver, transforms, known[0] if known else _loaded_channels(dataset))
    return ImageShape(channels, *size, dtype) if channels and size else None


def _sequence(
    resolver: Resolver, expression: ast.expr, module: Module, within: frozenset[ast.Call] = _NONE
) -> tuple[ImageTransform, ...]:
    """The transforms that ``expression`` is, ``within`` the sequences around it: not those of one of these again.

    ``self.transform = Compose([crop, self.transform])`` holds, for all that is known, itself.
    """
    values = list(resolver.values(expression, module))
    if len(values) != 1:
        return ()
    match values[0]:
        case Made(call, owner, External(name)) if _is_torchvision(name, "Compose"):
            steps = call_argument(call, "transforms", 0)
            if steps is None or call in within:
                return ()
            return tuple(_steps(resolver, steps, owner, within | {call}))
        case Made(call, owner, External(name)) if _is_torchvision(name):
            return (ImageTransform(owner, call, name.rpartition(".")[2]),)
        case _:
            return ()


def _steps(
    resolver: Resolver, listed: ast.expr, module: Module, within: frozenset[ast.Call]
) -> Iterator[ImageTransform]:
    for element, owner in _written(resolver, listed, module):
        inner = _sequence(resolver, element, owner, within)
        yield from inner or [ImageTransform(owner, element, "")]


def _written(resolver: Resolver, listed: ast.expr, module: Module) -> list[tuple[ast.expr, Module]]:
    """The elements of the one list or tuple that ``listed`` is; none when it is something else."""
    match list(resolver.values(listed, module)):
        case [Display(ast.List(elts=elements) | ast.Tuple(elts=elements), owner)]:
            return [(element, owner) for element in elements]
        case _:
            return []


def _is_torchvision(name: str, last: str = "") -> bool:
    package, _, own = name.rpartition(".")
    return package in _PACKAGES and (own == last if last else own[:1].isupper())


def _size(
    resolver: Resolver, transforms: Sequence[ImageTransform], known: tuple[int, ...] | None
) -> tuple[int, int] | None:
    for transform in reversed(transforms):
        if transform.name in _SAME_SIZE:
            continue
        call = transform.node
        size = call_argument(call, "size", 0) if isinstance(call, ast.Call) else None
        if size is None or transform.name not in {*_CROPS, "Resize"}:
            return None
        return _two_numbers(resolver, size, transform)
    return (known[0], known[1]) if known else None


def _two_numbers(
    resolver: Resolver, size: ast.expr, transform: ImageTransform
) -> tuple[int, int] | None:
    sides = [whole_number(resolver.values(*e)) for e in _written(resolver, size, transform.module)]
    match sides:
        case [int() as height, int() as width]:
            return height, width
        case [_, *_]:
            return None
        case _:
            pass
    side = whole_number(resolver.values(size, transform.module))
    # Resize(256) makes the shorter side 256; the other depends on the image.
    return (side, side) if side and transform.name != "Resize" else None


def _loaded_channels(dataset: Dataset) -> int | None:
    """The channels of images as they are read, where that is said: by ``convert("RGB")``, or by torchvision."""
    if dataset.name == "`torchvision.datasets.ImageFolder`":
        return 3
    modes = {
        reached.node.args[0].value
        for reached in dataset.item_code
        if isinstance(reached.node, ast.Call)
        and isinstance(reached.node.func, ast.Attribute)
        and reached.node.func.attr == "convert"
        and reached.node.args
        and isinstance(reached.node.args[0], ast.Constant)
    }
    return {"RGB": 3, "L": 1}.get(str(modes.pop())) if len(modes) == 1 else None


def _channels(
    resolver: Resolver, transforms: Sequence[ImageTransform], known: int | None
) -> int | None:
    for transform in reversed(transforms):
        call = transform.node
        if not isinstance(call, ast.Call):
            continue
        if transform.name == "Normalize":
            mean = call_argument(call, "mean", 0)
            numbers = _written(resolver, mean, transform.module) if mean is not None else []
            if len(numbers) > 1:
                return len(numbers)
        if transform.name == "Grayscale":
            count = call_argument(call, "num_output_channels", 0)
            return 1 if count is None else whole_number(resolver.values(count, transform.module))
    return known
