"""Steps that half precision makes no faster: whose layers are small or recurrent, that compute no products, or that act as they compute."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence

from ..calls.reach import Reached
from ..facts import Fact
from ..networks.forward_code import called_names, library_networks
from ..networks.network_layers import is_attention, network_code, network_layers
from ..networks.networks import MODULE_METHODS
from ..networks.small_layers import small_layers
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Class, External, Instance, Made
from .environments import environment_steps
from .half_steps import HalfCode
from .matrix_products import is_half_product
from .recurrent_layers import recurrent_layers

_KNOWN = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages of which is known what they compute: by their names, or nothing that takes long."""
_WITHOUT_PRODUCTS = (
    "its networks compute no matrix products and no convolutions, and autocast makes nothing else faster "
    "(`--amp bf16` writes it all the same)"
)
_RECURRENT = (
    "its recurrent layers use TF32 by themselves where the GPU has it; autocast converts their weights to float16 in every step, and scales the loss, "
    "which together may take longer (`--amp fp16` writes it all the same)"
)
"""The two layers of 650 of corpus/rnn_lm, for 20 rows and 35 time steps, took 7.8 ms in float32 beside an H100, and 9.1 ms under
autocast with a scaler; 8.3 ms without one (benchmarks/results/recurrent-cuda.json)."""


def no_gain(resolver: Resolver, codes: Sequence[HalfCode]) -> str | None:
    """Why the training steps among ``codes`` take as long in half precision as in float32; None where they may not."""
    steps = [(half, half.code) for half in codes if isinstance(half.code, StepCode)]
    if not steps:
        return None
    if all(_computes_no_products(resolver, half, step) for half, step in steps):
        return _WITHOUT_PRODUCTS
    if all(_is_recurrent(resolver, half) for half, _ in steps):
        return _RECURRENT
    acts = [_action(resolver, half) for half, _ in steps]
    if acts[0] is not None and all(acts):
        return (
            f"its networks choose one action after the other (`{acts[0].excerpt}`): the GPU waits for the environment in between, "
            "and every conversion is one launch more (`--amp bf16` writes it all the same)"
        )
    found = [small_layers(resolver, step) for _, step in steps]
    if not all(found):
        return None
    return (
        f"{found[0]}: a GPU computes them in less time than it takes to launch them, and every conversion is one "
        "launch more (`--amp bf16` writes it all the same)"
    )


def _action(resolver: Resolver, half: HalfCode) -> Fact | None:
    """What acts in an environment among the code that would run in half precision."""
    return next((step for step in environment_steps(resolver) if step.node in half.covered), None)


def _is_recurrent(resolver: Resolver, half: HalfCode) -> bool:
    """Whether the networks have recurrent layers and, of what half precision makes faster, linear layers at most and the few
    products by which a decoder looks back."""
    layers = network_layers(resolver, half.networks)
    attends = any(
        is_attention(name)
        for product in layers.products
        for name in called_names(resolver, product)
    )
    if layers.convolutions or attends or not any(recurrent_layers(resolver, half.networks)):
        return False
    return _all_is_known(resolver, half)


def _computes_no_products(resolver: Resolver, half: HalfCode, step: StepCode) -> bool:
    """Whether everything is known that the step runs, and nothing of it is a matrix product or a convolution."""
    layers = network_layers(resolver, half.networks)
    if layers.linear or layers.products or layers.convolutions or layers.recurrent or layers.cells:
        return False
    if not _all_is_known(resolver, half):
        return False
    return not any(
        is_half_product(resolver, reached.node, reached.module)
        for reached in step.nodes(resolver, into_forward=True)
        if reached.node in half.covered
    )


def _all_is_known(resolver: Resolver, half: HalfCode) -> bool:
    """Whether the networks consist of nothing but PyTorch's own layers and functions."""
    libraries = [network.library_name or "" for network in library_networks(half.networks)]
    if not half.networks or not all(name.startswith("torch.nn.") for name in libraries):
        return False
    return not any(
        _may_compute(resolver, reached) for reached in network_code(resolver, half.networks)
    )


def _may_compute(resolver: Resolver, reached: Reached) -> bool:
    """Whether what a node of a network calls is a library's of which nothing is known, or not known itself."""
    node, module = reached.node, reached.module
    if not isinstance(node, ast.Call):
        return False
    names = called_names(resolver, reached)
    if names:
        return not all(name.partition(".")[0] in _KNOWN for name in names)
    if resolver.callees(node, module):
        return False
    match node.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=method):
            values = resolver.values(node.func, module)
            return method not in MODULE_METHODS and not all(
                isinstance(value, External | Made | Class | Instance) for value in values
            )
        case ast.Attribute():
            return False  # a method of a tensor, a list or a string
        case _:
            return True
