"""Networks of layers so small that the host takes longer to launch them than a GPU to compute them.

A step of such a network takes as long as Python needs for its operations. What lets the GPU compute faster saves nothing there, and what
adds operations, as autocast does with its conversions, costs time.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..facts import CallFact, DataLoader, Model
from ..precision.environments import LARGEST_SPACE, LONGEST_ROLLOUT, drawn_rows, steps_environment
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..tensors.size_bounds import Bounds, range_bounds, size_bounds
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Class, External, Instance, Made
from .forward_code import forward_code, layer_classes, networks_run
from .network_layers import network_code, network_layers
from .networks import MODULE_METHODS

MOST_PRODUCTS = 80_000_000
"""Multiplications in one layer for one batch. Forward and backward pass do six float32 operations for each. The slowest GPU
with tensor cores that is widely rented, a T4, does 8.1e12 of them a second (https://www.nvidia.com/en-us/data-center/tesla-t4/), so that
this many take it 60 microseconds. The host takes longer for a layer: the four of corpus/mlp_many_steps, with two norms and
the update of all, took 2.3 ms beside an H200, and 2.7 ms with autocast (benchmarks/results/small-networks-cuda.json)."""
MOST_LAYERS_AS_THEY_ARE = 6
"""The call of a compiled network costs the host as much by itself as it saves in six layers that small: 65 microseconds became 111 for
one layer with its activation, 189 became 196 for six, 345 became 300 for twelve (torch 2.14 on a CPU, forward and backward). Beside the
H200 the steps of two networks of four such layers became 9 and 12 % longer."""

_LAYERS = frozenset(
    "Linear Identity Sequential ModuleList ModuleDict Module Flatten BatchNorm1d LayerNorm Dropout AlphaDropout Embedding Parameter "
    "ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish Hardswish Hardsigmoid Hardtanh Sigmoid Tanh Softplus Softsign "
    "Softmax LogSoftmax LogSigmoid CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss KLDivLoss "
    "GaussianNLLLoss PoissonNLLLoss".split()
)
"""Of ``torch.nn``: a product for each row, or nothing that takes long for a row."""
_REPEATING = frozenset(
    "expand expand_as repeat repeat_interleave tile unfold meshgrid "
    "cartesian_prod broadcast_to vmap cdist outer pdist combinations matmul mm bmm mv addmm baddbmm addbmm einsum tensordot "
    "linear bilinear chain_matmul inner kron scaled_dot_product_attention".split()
)
"""Make more rows of a batch than it has samples, or are products themselves."""
_TURNING = frozenset("unsqueeze permute transpose swapaxes movedim unflatten stack".split())
"""Make other axes, and so other rows, or what is repeated when it meets a tensor of more axes."""
_RESHAPING = frozenset({"view", "reshape", "flatten"})
_LIBRARIES = ("torch.", "builtins.", "math.", "numpy.", "collections.", "functools.", "itertools.")
_LONG = ("torch.fft.", "torch.linalg.", "torch.ops.")


@dataclass(frozen=True)
class SmallLayers:
    """``rows`` are those of a batch, ``weights`` the most that a layer has; ``layers`` how many a network has, None where unknown.

    ``guessed`` says that the script learns from an environment, and leaves some of it to that.
    """

    rows: int
    weights: int
    layers: int | None
    guessed: bool = False

    def __str__(self) -> str:
        told = f"its layers have {self.weights:,} weights at most, for {self.rows:,} rows a batch"
        return f"{told} (guessed where its environment decides)" if self.guessed else told


def small_layers(resolver: Resolver, step: StepCode) -> SmallLayers | None:
    """What the networks of ``step`` consist of, where that is nothing but layers of at most :data:`MOST_PRODUCTS` for its batches.

    Where the script learns from an environment, sizes that it does not tell are those of :mod:`~..precision.environments`.
    """
    told = _rows(resolver, step)
    acts = not step.loop.loaders and steps_environment(resolver)
    if acts and told is None:
        told = drawn_rows(resolver, step)
    rows = LONGEST_ROLLOUT if acts and told is None else told
    if rows is None:
        return None
    nodes = list(step.nodes(resolver, into_forward=True))
    networks = networks_run(resolver, nodes)
    code = network_code(resolver, networks)
    if not networks or not all(_is_row_by_row(resolver, reached) for reached in code):
        return None
    features = [_features(resolver, layer) for layer in network_layers(resolver, networks).linear]
    unknown = (1, LARGEST_SPACE) if acts else None
    sizes = [(taken or unknown, given or unknown) for taken, given in features]
    known = [(taken, given) for taken, given in sizes if taken is not None and given is not None]
    weights = max((taken[1] * given[1] for taken, given in known), default=0)
    if not known or len(known) < len(sizes) or rows * weights > MOST_PRODUCTS:
        return None
    # What layers take and none gives: what a sample is flattened to.
    inputs = {n for taken, _ in known for n in taken} - {n for _, given in known for n in given}
    if any(_regroups(resolver, node, inputs) for node in forward_code(resolver, networks)):
        return None
    # Rewards and values get axes of their own; observations, which are what goes in, are rows from the start.
    around = step.nodes(resolver) if acts else nodes
    if any(
        _repeats(resolver, node) or (not acts and _regroups(resolver, node, inputs))
        for node in around
    ):
        return None
    counts = [_layers(resolver, network) for network in networks]
    layers = None if None in counts else max(count or 0 for count in counts)
    return SmallLayers(rows, weights, layers, guessed=told is None or known != features)


def _rows(resolver: Resolver, step: StepCode) -> int | None:
    """How many samples a batch of the step has, at most; None where that is not told."""
    loaders = step.loop.loaders
    if not loaders:
        return _cut_rows(resolver, step)
    sizes = [_batch_size(resolver, loader) for loader in loaders]
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _batch_size(resolver: Resolver, loader: DataLoader) -> int | None:
    """The most samples that ``loader`` puts into a batch, by its own arguments or those of its ``BatchSampler``."""
    if loader.opaque is not None:
        return None
    batcher = loader.arguments.get("batch_sampler")
    if batcher is None:
        argument = loader.arguments.get("batch_size")
        if argument is None:
            return 1
        size, module = argument.value, argument.module
    else:
        match list(resolver.values(batcher.value, batcher.module)):
            case [Made(call, module, External("torch.utils.data.BatchSampler"))]:
                size = call_argument(call, "batch_size", 1)
            case _:
                return None
    bounds = None if size is None else size_bounds(resolver, size, module)
    return None if bounds is None else bounds[1]


def _cut_rows(resolver: Resolver, step: StepCode) -> int | None:
    """Of ``for i in range(0, n, size)``, where batches are ``data[i : i + size]``."""
    match step.loop.node:
        case ast.For(target=ast.Name(id=start), iter=ast.Call(args=[_, _, stride]) as counting):
            pass
        case _:
            return None
    module = step.loop.module
    if resolver.names(counting.func, module) != frozenset({"builtins.range"}):
        return None
    bounds = size_bounds(resolver, stride, module)
    cut = any(
        isinstance(node, ast.Slice)
        and isinstance(node.lower, ast.Name)
        and node.lower.id == start
        and node.upper is not None
        and module.code(stride) in module.code(node.upper)
        for statement in step.loop.node.body
        for node in walk(statement)
    )
    return bounds[1] if cut and bounds is not None else None


def _is_row_by_row(resolver: Resolver, reached: Reached) -> bool:
    """Whether a node of a network is no layer, or one whose cost is known to be small for a row."""
    node = reached.node
    if not isinstance(node, ast.Call):
        return not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
    if reached.module.enclosing_class(node) is not None and _is_unknown_layer(resolver, reached):
        return False
    for name in resolver.names(node.func, reached.module):
        owner, _, last = name.rpartition(".")
        if (owner == "torch.nn" and last not in _LAYERS) or last.startswith("conv"):
            return False
        if not name.startswith(_LIBRARIES) or name.startswith(_LONG):
            return False
        if owner == "builtins" and not hasattr(builtins, last):  # of a module that is not there
            return False
    return True


def _is_unknown_layer(resolver: Resolver, reached: Reached) -> bool:
    """Whether this calls an attribute of the network of which nothing is known."""
    node = reached.node
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as func):
            if func.attr in MODULE_METHODS:
                return False
            values = resolver.values(func, reached.module)
            return not resolver.callees(node, reached.module) and not all(
                isinstance(value, External | Made | Class | Instance) for value in values
            )
        case _:
            return False


def _features(resolver: Resolver, layer: CallFact) -> tuple[Bounds | None, Bounds | None]:
    """How many features ``layer`` takes and gives for a row."""
    arguments = (
        call_argument(layer.node, "in_features", 0),
        call_argument(layer.node, "out_features", 1),
    )
    taken, given = (
        None if argument is None else size_bounds(resolver, argument, layer.module)
        for argument in arguments
    )
    return taken, given


def _repeats(resolver: Resolver, reached: Reached) -> bool:
    """Whether a node may make more rows than there are samples, by its name or as a product."""
    node = reached.node
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return _is_named(resolver, reached, _REPEATING)


def _regroups(resolver: Resolver, reached: Reached, inputs: Set[int]) -> bool:
    """Whether a node may make other rows than the samples of the batch."""
    node, module = reached.node, reached.module
    if isinstance(node, ast.Subscript):
        return any(isinstance(n, ast.Constant) and n.value is None for n in walk(node.slice))
    if _is_named(resolver, reached, _RESHAPING):
        assert isinstance(node, ast.Call)
        return not _keeps_samples(resolver, node, last_identifier(node.func), module, inputs)
    return _repeats(resolver, reached) or _is_named(resolver, reached, _TURNING)


def _is_named(resolver: Resolver, reached: Reached, names: Set[str]) -> bool:
    """Whether a node calls one of ``names``, and no layer or function of the script's own that is called so."""
    node, module = reached.node, reached.module
    return (
        isinstance(node, ast.Call)
        and last_identifier(node.func) in names
        and not resolver.callees(node, module)
        and not resolver.maker_names(node.func, module)
    )


def _keeps_samples(
    resolver: Resolver, call: ast.Call, name: str, module: Module, inputs: Set[int]
) -> bool:
    """Whether a sample is a row afterwards: ``x.flatten(1)``, ``x.view(len(x), -1)``, ``x.view(-1, 784)`` for layers of 784."""
    arguments: Sequence[ast.expr] = call.args
    if resolver.names(call.func, module):  # torch.flatten(x, 1)
        arguments = arguments[1:]
    if name == "flatten":
        return len(arguments) == 1 and size_bounds(resolver, arguments[0], module) == (1, 1)
    match arguments:
        case [first, ast.UnaryOp(ast.USub(), ast.Constant(1))]:
            return isinstance(first, ast.Call | ast.Subscript)
        case [ast.UnaryOp(ast.USub(), ast.Constant(1)), width]:
            bounds = size_bounds(resolver, width, module)
            return bounds is not None and bounds[0] == bounds[1] and bounds[0] in inputs | {1}
        case [ast.UnaryOp(ast.USub(), ast.Constant(1))]:
            return True
        case _:
            return False


def _layers(resolver: Resolver, network: Model) -> int | None:
    """How many linear layers ``network`` has, at most; None where its code does not tell."""
    if len(layer_classes(resolver, [network])) > 1:
        return None
    times = [_times(resolver, layer) for layer in network_layers(resolver, [network]).linear]
    known = [time for time in times if time is not None]
    return sum(known) if len(known) == len(times) else None


def _times(resolver: Resolver, layer: CallFact) -> int | None:
    """How often the call is made: as often as the loops around it go round."""
    total = 1
    for iterable in _iterables(layer):
        span = range_bounds(resolver, iterable, layer.module)
        if span is None:
            return None
        total *= max(0, span[1] - span[0])
    return total


def _iterables(layer: CallFact) -> Iterator[ast.expr]:
    module = layer.module
    for loop in module.loops(layer.node):
        yield loop.test if isinstance(loop, ast.While) else loop.iter
    node: ast.AST = layer.node
    while not isinstance(node := module.parents[node], ast.stmt):
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            yield from (generator.iter for generator in node.generators)
