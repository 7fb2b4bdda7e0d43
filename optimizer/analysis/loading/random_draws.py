"""Whether making a batch draws random numbers, so that other processes would draw other ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..calls.reach import Reached
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import External, Made, Value
from .datasets import Dataset

_DRAWING_FUNCTIONS = re.compile(
    r"^(?:random|numpy\.random|torch\.(?:rand|normal|bernoulli|multinomial))"
)
_DRAWING_METHODS = frozenset(
    "bernoulli bernoulli_ multinomial normal_ random_ uniform_ exponential_ geometric_ log_normal_ cauchy_".split()
)
"""Methods of tensors."""
_DRAWING_OBJECTS = re.compile(
    r"Random|Auto|RandAug|Augment|Jitter|Erasing|AugMix|MixUp|CutMix|Noise|FakeData"
)


def draws_random_numbers(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether ``dataset`` augments or invents its items at random, as far as names tell."""
    values: set[Value] = set()
    if isinstance(dataset.node, ast.expr):
        values |= resolver.values(dataset.node, dataset.module)
    return code_draws(resolver, dataset.item_code, values)


def code_draws(resolver: Resolver, code: Iterable[Reached], values: Iterable[Value] = ()) -> bool:
    """Whether ``code``, or what ``values`` are composed of, draws random numbers, as far as names tell."""
    called = [
        (reached.node.func, reached.module)
        for reached in code
        if isinstance(reached.node, ast.Call)
    ]
    if any(isinstance(f, ast.Attribute) and f.attr in _DRAWING_METHODS for f, _ in called):
        return True
    every = set(values).union(*(resolver.values(function, module) for function, module in called))
    return any(_draws(value) for value in composed_of(resolver, every))


def is_draw(name: str) -> bool:
    """Whether the library function ``name`` draws random numbers."""
    return bool(_DRAWING_FUNCTIONS.search(name))


def _draws(value: Value) -> bool:
    made = value.maker if isinstance(value, Made) else value
    return isinstance(made, External) and bool(
        is_draw(made.name)
        or _DRAWING_OBJECTS.search(made.name.rpartition(".")[2])
        or made.name.startswith("albumentations.")
    )
