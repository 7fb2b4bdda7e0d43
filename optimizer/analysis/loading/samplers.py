"""Whether a loader's sampler may run ahead of the training loop, as it does when workers prefetch batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..facts import Argument, DataLoader, Fact
from ..values.resolver import Resolver
from ..values.values import Class, External, Literal, Made, Value

_LIBRARY = "torch.utils.data."
_HARMLESS = frozenset({"set_epoch"})


def sampler_obstacle(resolver: Resolver, loader: DataLoader) -> Fact | str | None:
    """Why the sampler must not run ahead: a place that reads or changes it while the loop runs, or a reason in words.

    None when the loader has no sampler of its own, or one that is independent of the loop.
    """
    for keyword in ("sampler", "batch_sampler"):
        argument = loader.arguments.get(keyword)
        if argument is not None:
            for value in _samplers(resolver, argument):
                found = _obstacle(resolver, value, keyword)
                if found is not None:
                    return found
    return None


def _samplers(resolver: Resolver, argument: Argument) -> Iterator[Value]:
    """The values of a sampler argument and of the samplers handed to those."""
    for value in resolver.values(argument.value, argument.module):
        yield value
        if isinstance(value, Made) and _is_library(value):
            for inner in value.call.args[:1]:
                for part in resolver.values(inner, value.module):
                    if isinstance(part, Made) and isinstance(part.maker, Class):
                        yield part


def _is_library(value: Made) -> bool:
    return isinstance(value.maker, External) and value.maker.name.startswith(_LIBRARY)


def _obstacle(resolver: Resolver, value: Value, keyword: str) -> Fact | str | None:
    if isinstance(value, Literal) and value.value is None:
        return None
    if isinstance(value, Made):
        if _is_library(value) or _is_plain_dataset(resolver, value):
            return None
        if isinstance(value.maker, Class):
            return _touched_from_outside(resolver, value)
        return f"its {keyword} comes from `{value.maker.name}`, which may depend on the loop"
    return f"its {keyword} cannot be traced"


def _is_plain_dataset(resolver: Resolver, value: Made) -> bool:
    """Whether a value inside a library sampler is its data source and no sampler at all."""
    return isinstance(value.maker, Class) and not any(
        statement.name == "__iter__"
        for statement in value.maker.node.body
        if isinstance(statement, ast.FunctionDef)
    )


def _touched_from_outside(resolver: Resolver, sampler: Made) -> Fact | None:
    """Where something other than the sampler itself reads or changes its attributes."""
    for module in resolver.project.modules:
        for node in module.nodes:
            if (
                isinstance(node, ast.Attribute)
                and node.attr not in _HARMLESS
                and sampler in resolver.values(node.value, module)
            ):
                return Fact(module, node)
    return None
