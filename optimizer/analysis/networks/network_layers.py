"""The layers and operations networks are made of, by their library names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..facts import CallFact, Model
from ..program.classes import class_attribute
from ..values.resolver import Resolver
from ..values.values import Function
from .forward_code import forward_code, layer_classes

_CONVOLUTIONS = frozenset(
    f"{kind}{size}d"
    for kind in ("Conv", "ConvTranspose", "LazyConv", "LazyConvTranspose", "conv", "conv_transpose")
    for size in (1, 2, 3)
)
_PRODUCTS = frozenset(
    "matmul mm bmm mv addmm baddbmm addbmm einsum tensordot linear bilinear chain_matmul inner outer "
    "scaled_dot_product_attention multi_head_attention_forward".split()
)
_PRODUCT_METHODS = frozenset("matmul mm bmm mv addmm baddbmm addbmm".split())
_LINEAR = frozenset({"Linear", "LazyLinear", "Bilinear"})
_CELLS = frozenset({"RNNCell", "LSTMCell", "GRUCell"})
_RECURRENT = frozenset({"RNN", "LSTM", "GRU"})
_KINDS = ("linear", "convolution", "recurrent", "cell")
_ATTENTION = frozenset(
    "MultiheadAttention Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer "
    "TransformerDecoderLayer".split()
)
_NN = ("torch.nn.", "torch.")
_CONVOLUTIONAL_LIBRARIES = ("torchvision.models.", "segmentation_models_pytorch.")
_NOT_CONVOLUTIONAL = ("vit_", "swin", "maxvit", "VisionTransformer", "SwinTransformer")

_WITH_WEIGHTS = (
    "Linear",
    "Bilinear",
    "Conv",
    "BatchNorm",
    "LayerNorm",
    "GroupNorm",
    "Embedding",
    "LSTM",
    "GRU",
    "RNN",
    "Transformer",
    "MultiheadAttention",
)
_NETWORK_LIBRARIES = ("torchvision.", "timm.", "transformers.", "segmentation_models_pytorch.")


@dataclass(frozen=True, eq=False)
class NetworkLayers:
    """What some networks are made of.

    ``linear`` are fully connected layers, ``products`` other matrix products (attention among them),
    ``convolutions`` convolutions, library networks known to consist of them included, ``recurrent`` recurrent layers, and
    ``cells`` those that run step by step, as linear layers do.
    """

    linear: tuple[CallFact, ...]
    products: tuple[Reached, ...]
    convolutions: tuple[CallFact, ...]
    recurrent: tuple[CallFact, ...]
    cells: tuple[CallFact, ...]


def network_layers(resolver: Resolver, models: Iterable[Model]) -> NetworkLayers:
    """The layers of ``models``, each place once."""
    found: dict[str, list[CallFact]] = {kind: [] for kind in _KINDS}
    products: list[Reached] = []
    for reached in network_code(resolver, tuple(models)):
        node = reached.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            products.append(reached)
        if not isinstance(node, ast.Call):
            continue
        names = resolver.names(node.func, reached.module)
        for name in sorted(names):
            kind = _kind(name)
            if kind in found:
                found[kind].append(CallFact(reached.module, node, name))
            elif kind == "product":
                products.append(reached)
        if (
            not names
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _PRODUCT_METHODS
        ):
            products.append(reached)
    linear, convolutions, recurrent, cells = (tuple(found[kind]) for kind in _KINDS)
    return NetworkLayers(linear, tuple(products), convolutions, recurrent, cells)


def _kind(name: str) -> str | None:
    """What sort of layer or operation a library's ``name`` is."""
    last = name.rpartition(".")[2]
    if name.startswith(_CONVOLUTIONAL_LIBRARIES):
        return None if last.startswith(_NOT_CONVOLUTIONAL) else "convolution"
    if not name.startswith(_NN):
        return None
    sorts = {
        "linear": _LINEAR,
        "convolution": _CONVOLUTIONS,
        "recurrent": _RECURRENT,
        "cell": _CELLS,
        "product": _ATTENTION | _PRODUCTS,
    }
    return next((kind for kind, names in sorts.items() if last in names), None)


def is_attention(name: str) -> bool:
    """Whether a library's ``name`` is a layer of attention, or the function that computes it."""
    last = name.rpartition(".")[2]
    return name.startswith(_NN) and (last in _ATTENTION or "attention" in last)


def has_parameters(resolver: Resolver, model: Model) -> bool:
    """Whether ``model`` certainly has parameters."""
    if model.library_name is not None and model.library_name.startswith(_NETWORK_LIBRARIES):
        return True
    return any(
        name.startswith(_NETWORK_LIBRARIES)
        or name == "torch.nn.Parameter"
        or (name.startswith("torch.nn.") and name.rpartition(".")[2].startswith(_WITH_WEIGHTS))
        for reached in network_code(resolver, (model,))
        if isinstance(reached.node, ast.Call)
        for name in resolver.names(reached.node.func, reached.module)
    )


def network_code(resolver: Resolver, models: tuple[Model, ...]) -> Iterator[Reached]:
    """Every node that makes ``models`` or runs in their forward passes, each once."""
    seen: set[ast.AST] = set()
    for reached in _code(resolver, models):
        if reached.node not in seen:
            seen.add(reached.node)
            yield reached


def _code(resolver: Resolver, models: tuple[Model, ...]) -> Iterator[Reached]:
    for model in models:
        yield from reached_nodes(resolver, [model.node], model.module)
    for cls in layer_classes(resolver, models):
        for value in class_attribute(resolver, cls, "__init__"):
            if isinstance(value, Function) and isinstance(value.node, ast.FunctionDef):
                yield from reached_nodes(resolver, value.node.body, value.module)
        # Layers given as attributes of the class itself, and lists of them.
        fields = [s for s in cls.node.body if isinstance(s, ast.Assign | ast.AnnAssign)]
        yield from (Reached(node, cls.module, False) for node in lexical_nodes(fields))
    yield from forward_code(resolver, models)
