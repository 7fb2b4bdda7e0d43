"""The layers and operations networks are made of, by their library names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .classes import class_attribute
from .facts import CallFact, Model
from .forward_code import forward_code, layer_classes
from .reach import Reached, lexical_nodes, reached_nodes
from .resolver import Resolver
from .values import Function

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

    ``linear`` are fully connected layers, ``products`` other matrix products (attention among them), ``convolutions``
    convolutions, library networks known to consist of them included.
    """

    linear: tuple[CallFact, ...]
    products: tuple[Reached, ...]
    convolutions: tuple[CallFact, ...]


def network_layers(resolver: Resolver, models: Iterable[Model]) -> NetworkLayers:
    """The layers of ``models``, each place once."""
    models = tuple(models)
    linear: list[CallFact] = []
    products: list[Reached] = []
    convolutions: list[CallFact] = []
    for reached in network_code(resolver, models):
        node = reached.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            products.append(reached)
        if not isinstance(node, ast.Call):
            continue
        names = resolver.names(node.func, reached.module)
        for name in sorted(names):
            last = name.rpartition(".")[2]
            fact = CallFact(reached.module, node, name)
            if name.startswith(_CONVOLUTIONAL_LIBRARIES):
                if not last.startswith(_NOT_CONVOLUTIONAL):
                    convolutions.append(fact)
            elif not name.startswith(_NN):
                continue
            elif last in _CONVOLUTIONS:
                convolutions.append(fact)
            elif last in _LINEAR:
                linear.append(fact)
            elif last in _ATTENTION | _PRODUCTS:
                products.append(reached)
        if (
            not names
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _PRODUCT_METHODS
        ):
            products.append(reached)
    return NetworkLayers(tuple(linear), tuple(products), tuple(convolutions))


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
