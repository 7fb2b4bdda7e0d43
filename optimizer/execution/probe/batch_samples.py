"""How many samples a batch has, whose tensors may be those of the whole batch or, in a list, of one sample each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

_OUTPUTS = 16


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, and in the attributes of output objects.

    Packed sequences padded again, and their lengths: how they are sorted is no value.
    """
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, PackedSequence):
        yield from pad_packed_sequence(thing, batch_first=True)
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from tensors_in(value)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from tensors_in(value)
    elif hasattr(thing, "__dict__") and not isinstance(thing, (nn.Module, type)):
        for value in vars(thing).values():
            if isinstance(value, Tensor):
                yield value


def outputs_of(output: Any) -> list[Tensor]:
    """The first of the tensors in what a module gave; of a dict for each sample, each of its keys in one tensor for all."""
    return list(tensors_in(_joined(output)))[:_OUTPUTS]


def count_samples(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor with a dimension, else of itself, else 1."""
    for tensor in tensors_in(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def count_read(batch: Any, asked: int) -> int:
    """How many samples a loader gave, which was ``asked`` for so many: that many, where anything in the batch has as many."""
    lengths = set(map(_length, _parts(batch)))
    if isinstance(batch, (list, tuple)) and not any(isinstance(one, Tensor) for one in batch):
        lengths.add(len(batch))
    return asked if asked in lengths else count_samples(batch)


def listed_samples(inputs: Any) -> Sequence[Any]:
    """The list that is the first argument of a call, which may be one of samples; empty where it is none.

    ``inputs`` are the arguments by position and by name, or something else, which has none.
    """
    positional, *named = inputs if isinstance(inputs, tuple) and len(inputs) == 2 else (None,)
    if not isinstance(positional, tuple) or not isinstance(named[0], Mapping):
        return ()
    first = next(iter((*positional, *named[0].values())), None)
    return first if isinstance(first, (list, tuple)) else ()


def is_per_sample(output: Any, samples: Sequence[Any]) -> bool:
    """Whether a module that was given the list ``samples`` gave a dict, or another object, for each of them.

    A tensor for each may as well be of a view of the whole batch.
    """
    if not samples or not isinstance(output, (list, tuple)) or len(output) != len(samples):
        return False
    return all(
        isinstance(one, Mapping) or (hasattr(one, "__dict__") and not isinstance(one, Tensor))
        for one in output
    )


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, (list, tuple)) else ()


def _length(thing: Any) -> int | None:
    if isinstance(thing, Tensor):
        return int(thing.shape[0]) if thing.dim() else None
    return len(thing) if isinstance(thing, (list, tuple)) else None


def _joined(output: Any) -> Any:
    """Of a list of dicts with tensors under the same keys, one behind the other, one dict; else ``output``."""
    if not isinstance(output, (list, tuple)) or not output:
        return output
    if not all(isinstance(one, Mapping) and one.keys() == output[0].keys() for one in output):
        return output
    joined: dict[Any, Tensor] = {}
    for key in output[0]:
        parts = [one[key] for one in output]
        if not all(isinstance(part, Tensor) and part.dim() for part in parts):
            return output
        if len({(part.shape[1:], part.dtype, part.device) for part in parts}) > 1:
            return output
        joined[key] = torch.cat(parts)
    return joined
