"""Every transform's documented example is what the transform really does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.transforms.base import Transform
from torchopt_cli.transforms.registry import all_transforms


@pytest.mark.parametrize("transform", all_transforms(), ids=lambda t: t.name)
def test_example_is_true(
    transform: Transform, check_with: Callable[..., None], check_advised: Callable[..., None]
) -> None:
    example = transform.example
    if example.after is None:
        check_advised(example.before, *example.advice, names=[transform.name])
        return
    assert example.before != example.after
    check_with([transform.name], example.before, example.after, **example.options)


@pytest.mark.parametrize("transform", all_transforms(), ids=lambda t: t.name)
def test_documentation_says_what_why_and_when_not(transform: Transform) -> None:
    text = transform.documentation()
    assert len(text.splitlines()) >= 5
    assert "https://" in text, "name the source of the claim"


def test_module_is_named_after_the_transform() -> None:
    for transform in all_transforms():
        module = type(transform).__module__.rpartition(".")[2]
        assert module.replace("_", "-") == transform.name
