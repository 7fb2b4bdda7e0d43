"""Samplers of PyTorch that say no more than ``shuffle`` would: ``DataLoader(data, sampler=RandomSampler(data))``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..facts import DataLoader
from ..program.module_names import name_reads
from ..values.resolver import Resolver
from ..values.values import External, Made

_SHUFFLES = {
    "torch.utils.data.RandomSampler": True,
    "torch.utils.data.SequentialSampler": False,
}


@dataclass(frozen=True)
class LibrarySampler:
    """The ``call`` that makes the sampler of a loader, and nothing else's."""

    call: ast.Call
    shuffles: bool


def library_sampler(resolver: Resolver, loader: DataLoader) -> LibrarySampler | None:
    """The sampler of ``loader`` where it goes over all of its dataset, in order or shuffled."""
    given, dataset = loader.arguments.get("sampler"), loader.arguments.get("dataset")
    if given is None or dataset is None or given.module is not loader.module:
        return None
    values = list(resolver.values(given.value, given.module))
    made = values[0] if len(values) == 1 else None
    if not (isinstance(made, Made) and isinstance(made.maker, External)):
        return None
    shuffles, call = _SHUFFLES.get(made.maker.name), made.call
    module = loader.module
    same = (
        made.module is module
        and isinstance(dataset.value, ast.Name | ast.Attribute)
        and not call.keywords
        and [ast.dump(argument) for argument in call.args] == [ast.dump(dataset.value)]
        and module.function(call) is module.function(loader.node)
    )
    if (
        shuffles is None
        or not same
        or not (given.value is call or _is_for_it_alone(given.value, loader))
    ):
        return None
    return LibrarySampler(call, shuffles)


def _is_for_it_alone(sampler: ast.expr, loader: DataLoader) -> bool:
    """Whether ``sampler`` is a variable that is bound once and read for ``loader`` alone."""
    module = loader.module
    if not isinstance(sampler, ast.Name):
        return False
    owner = module.scope(sampler).lookup(sampler.id)
    if owner is None or len(owner[1]) != 1:
        return False
    return all(loader.node in module.ancestors(read) for read in name_reads(sampler, module))
