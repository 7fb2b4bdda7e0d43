"""Where images become floats in a dataset's transforms: ``ToTensor``, and ``Normalize`` behind it."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact, excerpt
from ..program.syntax import Module
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.values import Display, External, Literal, Made

_V1 = "torchvision.transforms."
_V2 = "torchvision.transforms.v2."
COMPOSE = frozenset({f"{_V1}Compose", f"{_V2}Compose"})
_TO_TENSOR = frozenset({f"{_V1}ToTensor", f"{_V2}ToTensor"})
_TO_DTYPE = f"{_V2}ToDtype"
_NORMALIZE = frozenset({f"{_V1}Normalize", f"{_V2}Normalize"})
_TO_IMAGE = frozenset({f"{_V2}ToImage", f"{_V2}PILToTensor"})
_KEEP_BYTES = frozenset(
    "Resize Scale CenterCrop RandomCrop RandomResizedCrop RandomSizedCrop RandomHorizontalFlip RandomVerticalFlip "
    "RandomRotation RandomAffine RandomPerspective ColorJitter Grayscale RandomGrayscale Pad GaussianBlur RandomInvert "
    "RandomPosterize RandomSolarize RandomAdjustSharpness RandomAutocontrast RandomEqualize AutoAugment RandAugment "
    "TrivialAugmentWide AugMix ElasticTransform RGB".split()
)
"""Transforms that make images of 8 bits a channel from such images, PIL's as well as tensors."""
_CHOOSING = frozenset({"RandomApply", "RandomChoice", "RandomOrder", "Compose"})
"""Transforms that run others, given as a list."""


@dataclass(frozen=True, eq=False)
class Normalization(Fact):
    """A ``Normalize(mean, std)`` and its numbers, one for each channel."""

    node: ast.Call
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mean_node: ast.expr
    std_node: ast.expr

    @property
    def is_uniform(self) -> bool:
        """Whether every channel has the same numbers."""
        return len(set(self.mean)) == len(set(self.std)) == 1


@dataclass(frozen=True, eq=False)
class ImagePipeline(Fact):
    """A transform of images that ends in floats; ``node`` is the call that makes the converting one.

    ``display`` is the list it is an element of, at ``index``, if any, and ``normalization`` what stands behind it there.
    ``by_dtype`` says that ``ToDtype(float32, scale=True)`` converts, not ``ToTensor``. ``obstacle`` says why the images
    before the conversion may not be bytes, or what needs the floats.
    """

    node: ast.Call
    display: ast.List | ast.Tuple | None
    index: int
    by_dtype: bool
    normalization: Normalization | None
    obstacle: str | None

    @property
    def root(self) -> ast.List | ast.Tuple | ast.Call:
        """The expression that is the pipeline: the list of transforms, or the one transform."""
        return self.display or self.node

    @property
    def removed(self) -> list[ast.expr]:
        """The elements of the list that go when the images stay bytes."""
        if self.display is None:
            return []
        return self.display.elts[self.index + (not self.by_dtype) :]


def find_image_pipelines(resolver: Resolver) -> tuple[ImagePipeline, ...]:
    """Every transform of the project that makes floats of images, in source order per module."""
    found: list[ImagePipeline] = []
    for module in resolver.project.modules:
        for call in module.calls:
            names = resolver.names(call.func, module)
            if names & _TO_TENSOR or (_TO_DTYPE in names and _is_scaling(resolver, call, module)):
                found.append(_pipeline(resolver, call, module, _TO_DTYPE in names))
    return tuple(found)


def _is_scaling(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    dtype = call_argument(call, "dtype", 0)
    scale = call_argument(call, "scale", 1)
    return (
        dtype is not None
        and resolver.names(dtype, module) <= {"torch.float32", "torch.float"}
        and bool(resolver.names(dtype, module))
        and isinstance(scale, ast.Constant)
        and scale.value is True
    )


def _pipeline(resolver: Resolver, call: ast.Call, module: Module, by_dtype: bool) -> ImagePipeline:
    parent = module.parents[call]
    if not isinstance(parent, ast.List | ast.Tuple):
        obstacle = "`ToDtype` stands alone" if by_dtype else None
        return ImagePipeline(module, call, None, 0, by_dtype, None, obstacle)
    index = parent.elts.index(call)
    normalization, obstacle = None, None
    rest = parent.elts[index + 1 :]
    if rest:
        normalization = _normalization(resolver, rest[0], module)
        behind = rest[0] if normalization is None else rest[1] if len(rest) > 1 else None
        if behind is not None:
            obstacle = f"`{excerpt(module, behind)}` works on the floats behind it"
            if _is_made_by(resolver, behind, module, _NORMALIZE):
                obstacle = f"the numbers of `{excerpt(module, behind)}` are not written out"
    before = parent.elts[:index]
    obstacle = obstacle or _unknown_images(resolver, before, module, by_dtype)
    return ImagePipeline(module, call, parent, index, by_dtype, normalization, obstacle)


def _unknown_images(
    resolver: Resolver, before: list[ast.expr], module: Module, by_dtype: bool
) -> str | None:
    """Why what ``before`` makes may not be images of 8 bits a channel: PIL images, or for ``ToDtype`` a tensor."""
    converting = [e for e in before if _is_made_by(resolver, e, module, _TO_IMAGE)]
    if by_dtype and not converting:
        return "no `ToImage()` stands before it"
    for element in before:
        if not (by_dtype and element in converting) and not _keeps_bytes(resolver, element, module):
            return f"what `{excerpt(module, element)}` makes of an image is not known"
    return None


def _keeps_bytes(resolver: Resolver, element: ast.expr, module: Module) -> bool:
    values = resolver.values(element, module)
    for value in values:
        if not (isinstance(value, Made) and isinstance(value.maker, External)):
            return False
        package, _, name = value.maker.name.rpartition(".")
        if f"{package}." not in {_V1, _V2}:
            return False
        if name in _CHOOSING:
            given = call_argument(value.call, "transforms", 0)
            parts = resolver.values(given, value.module) if given is not None else ()
            for part in parts:
                if not (
                    isinstance(part, Display)
                    and isinstance(part.node, ast.List | ast.Tuple)
                    and all(_keeps_bytes(resolver, e, part.module) for e in part.node.elts)
                ):
                    return False
        elif name not in _KEEP_BYTES:
            return False
    return bool(values)


def _is_made_by(
    resolver: Resolver, expression: ast.expr, module: Module, names: frozenset[str]
) -> bool:
    return bool(resolver.maker_names(expression, module) & names)


def _normalization(
    resolver: Resolver, expression: ast.expr, module: Module
) -> Normalization | None:
    values = resolver.values(expression, module)
    made = next(iter(values))
    if len(values) != 1 or not isinstance(made, Made) or not isinstance(made.maker, External):
        return None
    mean = call_argument(made.call, "mean", 0)
    std = call_argument(made.call, "std", 1)
    if made.maker.name not in _NORMALIZE or mean is None or std is None:
        return None
    means, stds = (_numbers(resolver, node, made.module) for node in (mean, std))
    if means is None or stds is None or len(means) != len(stds) or not all(stds):
        return None
    return Normalization(made.module, made.call, means, stds, mean, std)


def _numbers(resolver: Resolver, expression: ast.expr, module: Module) -> tuple[float, ...] | None:
    values = resolver.values(expression, module)
    value = next(iter(values))
    if len(values) != 1 or not isinstance(value, Display | Literal):
        return None
    node = value.node
    number = constant(node)
    if number is not None and math.isfinite(number):
        return (number,)
    times = 1
    match node:
        case ast.BinOp(
            left=ast.List() | ast.Tuple() as repeated,
            op=ast.Mult(),
            right=ast.Constant(value=int() as times),
        ):
            node = repeated
        case _:
            pass
    if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
        return None
    numbers = [constant(part) for part in node.elts] * times
    found = tuple(number for number in numbers if number is not None and math.isfinite(number))
    return found if len(found) == len(numbers) else None
