"""Which expressions are PIL images of 8 bits a channel, and which library datasets give such images."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import External, Made, Value

_EIGHT_BIT_MODES = frozenset({"L", "LA", "RGB", "RGBA", "YCbCr", "HSV", "LAB", "CMYK"})
_PIL_METHODS = frozenset(
    "resize crop transpose rotate copy filter transform effect_spread reduce".split()
)
"""Methods of PIL images that keep their mode."""
_FUNCTIONS = frozenset(
    f"torchvision.transforms.functional.{name}"
    for name in "hflip vflip crop center_crop resize resized_crop pad rotate affine adjust_brightness adjust_contrast "
    "adjust_saturation adjust_hue adjust_gamma adjust_sharpness gaussian_blur invert autocontrast equalize".split()
) | frozenset(f"PIL.ImageOps.{name}" for name in "mirror flip fit pad expand autocontrast".split())
_ONE_CHANNEL = frozenset({"MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "USPS"})
_DATASETS = _ONE_CHANNEL | frozenset(
    "CIFAR10 CIFAR100 SVHN STL10 ImageFolder ImageNet FakeData CelebA Flowers102 Food101 OxfordIIITPet StanfordCars "
    "DTD EuroSAT FGVCAircraft GTSRB PCAM SUN397 Omniglot SEMEION Imagenette Country211 Places365 RenderedSST2".split()
)


def gives_bytes(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` makes a dataset of torchvision's whose items are (image of 8 bits a channel, target)."""
    names = resolver.names(call.func, module)
    known = {f"torchvision.datasets.{name}" for name in _DATASETS}
    if len(names) != 1 or not names <= known:
        return False
    return call_argument(call, "loader") is None and not any(
        keyword.arg is None for keyword in call.keywords
    )


def library_transform(call: ast.Call) -> ast.expr | None:
    """The ``transform`` of a call that makes one of torchvision's datasets, given by keyword or, for some, by position."""
    given = call_argument(call, "transform")
    if given is not None:
        return given
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    positions = {
        "ImageFolder": 1,
        "FakeData": 3,
        **dict.fromkeys([*_ONE_CHANNEL, "CIFAR10", "CIFAR100"], 2),
    }
    positions.pop("EMNIST")
    positions.pop("QMNIST")
    return call_argument(call, "transform", positions[name]) if name in positions else None


def is_pil_image(resolver: Resolver, expression: ast.expr, module: Module) -> bool:
    """Whether ``expression`` is surely a PIL image of 8 bits a channel."""
    values = resolver.values(expression, module)
    return bool(values) and all(is_pil_value(resolver, value) for value in values)


def is_pil_value(resolver: Resolver, value: Value, steps: int = 8) -> bool:
    """Whether ``value`` is surely a PIL image of 8 bits a channel, made in at most so many ``steps``."""
    if not (steps and isinstance(value, Made) and isinstance(value.maker, External)):
        return False
    name = value.maker.name
    if name in _FUNCTIONS:
        image = call_argument(value.call, "img", 0) or call_argument(value.call, "image", 0)
        values = resolver.values(image, value.module) if image is not None else frozenset[Value]()
        return bool(values) and all(is_pil_value(resolver, v, steps - 1) for v in values)
    if not name.startswith("PIL.Image."):
        return False
    function = value.call.func
    method = name.rpartition(".")[2]
    if method == "convert":
        return _names_mode(resolver, call_argument(value.call, "mode", 0), value.module)
    if name == "PIL.Image.new":
        return _names_mode(resolver, call_argument(value.call, "mode", 0), value.module)
    if method not in _PIL_METHODS or not isinstance(function, ast.Attribute):
        return False
    owners = resolver.values(function.value, value.module)
    return bool(owners) and all(is_pil_value(resolver, v, steps - 1) for v in owners)


def _names_mode(resolver: Resolver, mode: ast.expr | None, module: Module) -> bool:
    if mode is None:
        return False
    try:
        return resolver.literal(mode, module) in _EIGHT_BIT_MODES
    except LookupError:
        return False
