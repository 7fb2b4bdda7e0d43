"""Layers that run other kernels when gradients are off, and so round differently.

In eval mode and without gradients, ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` with ``batch_first=True`` take a
fast path (https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html); an encoder that is given a
padding mask then also writes zeros at padded positions. oneDNN's LSTM differs on the CPU, and compiled code always may.
"""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Made

_BATCH_FIRST_AT = {
    "torch.nn.TransformerEncoderLayer": 6,
    "torch.nn.Transformer": 10,
    "torch.nn.MultiheadAttention": 9,
}
_ALWAYS = ("torch.nn.LSTM", "torch.compile", "torch.jit.script", "torch.jit.trace")
_VISION = ("torchvision.models.vit_", "torchvision.models.<any>", "torchvision.models.get_model")


def fused_layers(resolver: Resolver) -> tuple[Fact, ...]:
    """The calls that make something which rounds differently when gradients are off."""
    return tuple(
        Fact(module, call)
        for module in resolver.project.modules
        for call in module.calls
        for name in resolver.names(call.func, module)
        if name in _ALWAYS or name.startswith(_VISION) or _is_batch_first(call, name)
    )


def _is_batch_first(call: ast.Call, name: str) -> bool:
    if name not in _BATCH_FIRST_AT:
        return False
    argument = call_argument(call, "batch_first", _BATCH_FIRST_AT[name])
    return argument is not None and not (isinstance(argument, ast.Constant) and not argument.value)


def zeroed_padding(resolver: Resolver) -> Fact | None:
    """A call of an encoder whose results at padded positions would become zero and may be used."""
    for module in resolver.project.modules:
        for call in module.calls:
            mask = call_argument(call, "src_key_padding_mask")
            if mask is not None and not _hides_padding(resolver, call, mask, module):
                return Fact(module, call)
    return None


def _hides_padding(resolver: Resolver, call: ast.Call, mask: ast.expr, module: Module) -> bool:
    if isinstance(mask, ast.Constant):
        return True
    for value in resolver.values(call.func, module):
        made = value.call if isinstance(value, Made) else None
        kinds = resolver.maker_names(call.func, module)
        if made is not None and list(kinds) == ["torch.nn.TransformerEncoder"]:
            nested = call_argument(made, "enable_nested_tensor", 3)
            off = isinstance(nested, ast.Constant) and nested.value is False
            if not off and call_argument(call, "mask", 1) is None:
                return False
        elif list(kinds) == ["torch.nn.Transformer"]:
            # The decoder looks at the encoder's results through its own mask.
            memory_mask = call_argument(call, "memory_key_padding_mask")
            if memory_mask is None or ast.dump(memory_mask) != ast.dump(mask):
                return False
        elif list(kinds) != ["torch.nn.TransformerEncoderLayer"]:
            return False
    return True
