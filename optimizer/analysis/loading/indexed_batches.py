"""What speaks against cutting the batches of a DataLoader out of tensors at once."""

from __future__ import annotations

import ast
from collections.abc import Set

from ..facts import Argument, DataLoader, Fact, seen_at
from ..program.syntax import first_name
from ..training.loops import WRAPPING_ITERATORS
from ..values.object_flow import ObjectFlow, Use
from ..values.resolver import Resolver
from ..values.values import External, Made
from .last_batches import known_size, may_be_none
from .loaders import DATALOADER

_SAID_IN_CALL = ("dataset", "batch_size", "shuffle", "sampler", "drop_last", "generator")
_SAMPLERS = frozenset(
    f"torch.utils.data.{name}"
    for name in ("RandomSampler", "SequentialSampler", "WeightedRandomSampler")
)
"""Those that give whole numbers of Python, of which a list is an index."""
GOES_OVER = WRAPPING_ITERATORS | {
    "builtins.isinstance",
    "builtins.len",
    "torch.optim.swa_utils.update_bn",
}
"""Functions that only go over a loader, or look at what it is."""


def indexing_refused(resolver: Resolver, loader: DataLoader) -> str | None:
    """Why ``loader``, whose items are rows of tensors, must go on stacking them; None when nothing speaks against it."""
    for find in (_arguments, _order, _uses):
        reason = find(resolver, loader)
        if reason is not None:
            return reason
    return None


def can_repeat(node: ast.expr) -> bool:
    """Whether ``node`` can be written twice: a variable, or an element of one."""
    if isinstance(node, ast.Subscript):
        return can_repeat(node.value) and isinstance(node.slice, ast.Constant | ast.Name)
    return first_name(node) is not None


def _arguments(resolver: Resolver, loader: DataLoader) -> str | None:
    module, arguments = loader.module, loader.arguments
    if loader.opaque is not None:
        return f"`{module.code(loader.opaque)}` is not known"
    if resolver.names(loader.node.func, module) != frozenset({DATALOADER}):
        return "its class is the script's own"
    for name in ("batch_sampler", "collate_fn"):
        if is_given(resolver, arguments.get(name)):
            return f"its `{name}` makes the batches"
    written = [*loader.node.args, *(keyword.value for keyword in loader.node.keywords)]
    for name in _SAID_IN_CALL:
        given = arguments.get(name)
        if given is not None and given.value not in written:
            return f"its `{name}` comes by a dict"
    if len(loader.node.args) > 2:
        return "whether it shuffles is said by position"
    size = arguments.get("batch_size")
    if size is None or known_size(resolver, size) == 1:
        return "every batch is one sample"
    if any(may_be_none(value) for value in resolver.values(size.value, module)):
        return "its batch size may be None"
    return None


def _order(resolver: Resolver, loader: DataLoader) -> str | None:
    """Whether a sampler can say the order of the samples."""
    shuffle, sampler, generator = map(loader.arguments.get, ("shuffle", "sampler", "generator"))
    if shuffle is not None and not (_is_bool(shuffle) or can_repeat(shuffle.value)):
        return f"whether it shuffles is worked out in its call (`{_code(shuffle)}`)"
    if sampler is not None and is_given(resolver, sampler):
        for value in resolver.values(sampler.value, sampler.module):
            maker = value.maker if isinstance(value, Made) else None
            if not isinstance(maker, External) or maker.name not in _SAMPLERS:
                return f"whether its sampler gives plain indices is not known (`{_code(sampler)}`)"
    if generator is not None and not can_repeat(generator.value):
        return f"its generator is made in its call (`{_code(generator)}`)"
    return None


def _uses(resolver: Resolver, loader: DataLoader) -> str | None:
    use = other_use(resolver, loader, GOES_OVER | {"builtins.zip"})
    if use is None:
        return None
    return f"what it is asked for may depend on how it makes its batches{seen_at(use, loader)}"


def other_use(resolver: Resolver, loader: DataLoader, harmless: Set[str]) -> Fact | None:
    """Where more is done with ``loader`` than to go over it, and to hand it to functions that are ``harmless``."""
    for use in ObjectFlow(resolver).follow(loader.node, loader.module):
        if not _only_goes_over(resolver, use, harmless):
            return Fact(use.module, use.parent)
    return None


def _only_goes_over(resolver: Resolver, use: Use, harmless: Set[str]) -> bool:
    call = use.argument_of
    if call is not None:
        names = resolver.names(call.func, use.module)
        return bool(names) and names <= harmless
    match use.parent:
        case ast.For(iter=iterable) | ast.comprehension(iter=iterable):
            return iterable is use.node
        case ast.Attribute(attr="dataset", ctx=ast.Load()) | ast.YieldFrom():
            return True
        case _:
            return False


def is_given(resolver: Resolver, argument: Argument | None) -> bool:
    """Whether ``argument`` may be anything but None."""
    return argument is not None and not resolver.is_always(argument.value, argument.module, None)


def _is_bool(argument: Argument) -> bool:
    return isinstance(argument.value, ast.Constant) and isinstance(argument.value.value, bool)


def _code(argument: Argument) -> str:
    return argument.module.code(argument.value)
