"""How PyTorch's functions, layers and losses reduce what they are given, what indexing takes of it, and Python's functions of numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..program.trees import is_none, walk
from ..values.resolver import Resolver
from ..values.values import External, Made
from .followed_calls import Frame
from .gradient_penalties import GRAD, is_of_inputs
from .loss_forms import is_loss, is_set_outside_init, size_at, whose_sizes
from .mean_losses import averages
from .permutations import is_permutation
from .reductions import EACH, REDUCED, Reduced, Reduction, added, crossed, elementwise
from .tensor_reductions import tensor_reduction

_Asked: TypeAlias = Callable[[ast.expr, Module, Frame], Reduced]
_FACTORIES = frozenset("zeros ones full empty".split())
_DRAWS = re.compile(r"\brand|random|\bnormal\b|bernoulli|multinomial|distributions")
SEVERAL_PARTS = frozenset({Reduction.GIVEN, Reduction.RESULT})
"""What may be a tuple or a dict of tensors."""
_LENGTHS: dict[Reduced, Reduction] = {
    Reduction.FIXED: Reduction.FIXED,
    Reduction.GIVEN: Reduction.COUNT,
    Reduction.SAMPLES: Reduction.COUNT,
    Reduction.SIZES: Reduction.FIXED,
}
"""What the length of a value is. That of a network's results may be how many there are for each sample."""
_SEVERAL_RESULTS = frozenset(
    {"torch.nn.RNN", "torch.nn.LSTM", "torch.nn.GRU", "torch.nn.MultiheadAttention"}
)
_OF_NETWORK = frozenset({Reduction.SAMPLES, Reduction.RESULT})
TRANSPOSED = frozenset({"T", "mT", "H", "mH"})
_SEQUENCES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict"})
_NUMBERS_DRAWN = frozenset(
    {"numpy.random.beta", "numpy.random.uniform", "numpy.random.rand", "numpy.random.random"}
    | {"random.random", "random.uniform", "random.betavariate"}
    | {"numpy.random.randint", "random.randint", "random.randrange"}
)
"""Functions that draw one number, for a batch or the share of it that a process has."""
_NUMBERS = frozenset({"builtins.float", "builtins.int", "builtins.abs"})


class LibraryReductions:
    """Answers for calls, attributes and subscripts; ``of`` is asked how what they are given is reduced."""

    def __init__(self, resolver: Resolver, of: _Asked) -> None:
        self._resolver, self._of = resolver, of

    def call(self, call: ast.Call, names: frozenset[str], module: Module, frame: Frame) -> Reduced:
        kinds = [self._of(a, module, frame) for a in call.args]
        named = [self._of(keyword.value, module, frame) for keyword in call.keywords]
        short = {name.rpartition(".")[2] for name in names}
        if names == frozenset({"builtins.len"}):
            return _LENGTHS.get(kinds[0]) if kinds else None
        if names == GRAD:
            return self._input_gradient(call, module, frame)
        if names <= _SEQUENCES and len(kinds) == 1 and kinds[0] in SEVERAL_PARTS:
            return kinds[0]
        if names <= _NUMBERS and len(kinds) == 1:
            return elementwise(kinds) if "builtins.abs" in names else kinds[0]
        if len(short) == 1 and all(name.startswith(("torch.", "F.")) for name in names):
            (function,) = short
            if is_loss(function):
                return self._loss_call([(call, module)], kinds)
            if function in _FACTORIES:
                sizes = [self._of(x, module, frame) for a in call.args if (x := whose_sizes(a))]
                per_sample = bool({Reduction.COUNT, Reduction.SIZES} & {*kinds} or EACH & {*sizes})
                return Reduction.GIVEN if per_sample else elementwise(kinds)
            if call.args:
                return self.tensor_call(call, function, call.args[0], call.args[1:], module, frame)
        if any(_DRAWS.search(name) for name in names - _NUMBERS_DRAWN):
            return None
        return Reduction.FIXED if {*kinds, *named} <= {Reduction.FIXED} else None

    def _input_gradient(self, call: ast.Call, module: Module, frame: Frame) -> Reduced:
        """What comes back to each sample that a network is given, from what it makes of that sample: a penalty is made of it.

        With a mean as output it would be the smaller, the more samples there are.
        """
        outputs, weights = call_argument(call, "outputs", 0), call_argument(call, "grad_outputs", 2)
        if outputs is None or not is_of_inputs(self._resolver, call, module):
            return None
        of = self._of(outputs, module, frame)
        summed = of is Reduction.SUM and weights is None
        each = of in _OF_NETWORK and weights is not None and not _calculates(weights)
        return Reduction.RESULT if summed or each else None

    def tensor_call(
        self,
        call: ast.Call,
        function: str,
        tensor: ast.expr,
        arguments: Sequence[ast.expr],
        module: Module,
        frame: Frame,
    ) -> Reduced:
        if function == "size":
            if arguments:
                return self.size(tensor, arguments[0], module, frame)
            return _sizes(self._of(tensor, module, frame))
        kinds = [self._of(argument, module, frame) for argument in arguments]
        keywords = [(word, self._of(word.value, module, frame)) for word in call.keywords]
        of = self._of(tensor, module, frame)
        return tensor_reduction(function, of, arguments, kinds, keywords)

    def layer_call(
        self, call: ast.Call, layers: Sequence[Made], module: Module, frame: Frame
    ) -> Reduced:
        """A call of layers of PyTorch: losses, or layers that compute sample by sample."""
        kinds = [self._of(argument, module, frame) for argument in call.args]
        names = [x.maker.name for x in layers if isinstance(x.maker, External)]
        losses = [name.endswith("Loss") for name in names]
        if all(losses):
            return self._loss_call([(layer.call, layer.module) for layer in layers], kinds)
        if any(losses) or REDUCED & set(kinds):
            return None  # what a layer makes of a mean is none of samples any more
        return Reduction.RESULT if _SEVERAL_RESULTS & set(names) else Reduction.SAMPLES

    def _loss_call(
        self, told: Sequence[tuple[ast.Call, Module]], kinds: Sequence[Reduced]
    ) -> Reduced:
        """A loss of PyTorch, which may be any of those that the calls ``told`` make or compute."""
        if {*REDUCED, Reduction.WHOLE} & set(kinds) or elementwise(kinds) is Reduction.MIXED:
            return Reduction.MIXED
        found: set[Reduced] = set()
        for call, module in told:
            reduction = call_argument(call, "reduction")
            match reduction:
                case ast.Constant(value="none"):
                    found.add(Reduction.SAMPLES)
                case ast.Constant(value="sum"):
                    found.add(Reduction.SUM)
                case ast.Constant(value="batchmean"):
                    found.add(Reduction.MEAN)
                case _:
                    is_mean = averages(self._resolver, call, module)
                    found.add(Reduction.MEAN if is_mean else None)
        return added(found)

    def size(self, tensor: ast.expr, dimension: ast.expr, module: Module, frame: Frame) -> Reduced:
        of = self._of(tensor, module, frame)
        if of in EACH:
            return size_at(dimension)
        return of if of is Reduction.FIXED else None

    def attribute(self, node: ast.Attribute, module: Module, frame: Frame) -> Reduced:
        owner = self._of(node.value, module, frame)
        if node.attr in TRANSPOSED:
            return Reduction.FIXED if owner is Reduction.FIXED else None
        if node.attr == "shape":
            return _sizes(owner)
        cls = module.enclosing_class(node)
        inside = module.function(node)
        if cls is not None and inside is not None and isinstance(node.value, ast.Name):
            own = inside.args.args[:1]
            if own and own[0].arg == node.value.id and is_set_outside_init(cls, node):
                return None
        return owner if owner in {*EACH, Reduction.FIXED} else None

    def subscript(self, node: ast.Subscript, module: Module, frame: Frame) -> Reduced:
        sizes = whose_sizes(node.value)
        if sizes is not None:
            return self.size(sizes, node.slice, module, frame)
        owner, index = self._of(node.value, module, frame), node.slice
        if owner is Reduction.FIXED:
            return self._of_index(index, module, frame)
        if owner is Reduction.SIZES:
            return size_at(index)
        if owner not in EACH:
            return None
        first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
        if is_permutation(self._resolver, first, module):
            others = index.elts[1:] if isinstance(index, ast.Tuple) else []
            return owner if self._are_fixed(others, module, frame) else None
        if is_none(first):
            return crossed(owner)
        match index:
            case ast.Constant(value=str()):
                return owner
            case ast.Constant(value=int()):  # one of the parts of a batch, of several results
                return owner if owner in SEVERAL_PARTS else None
            case _:
                return owner if self.is_beside_samples(index, module, frame) else None

    def is_beside_samples(self, index: ast.expr, module: Module, frame: Frame) -> bool:
        """Whether ``index`` takes the same of every sample: ``[:, 2:5]``."""
        match index:
            case ast.Tuple(elts=[ast.Slice(lower=None, upper=None, step=None), *others]):
                return self._are_fixed(others, module, frame)
            case _:
                return False

    def _are_fixed(self, indices: Sequence[ast.expr], module: Module, frame: Frame) -> bool:
        kinds = {self._of_index(part, module, frame) for part in indices}
        return kinds <= {Reduction.FIXED}

    def _of_index(self, index: ast.expr, module: Module, frame: Frame) -> Reduced:
        if isinstance(index, ast.Slice):
            bounds = [b for b in (index.lower, index.upper, index.step) if b is not None]
            return elementwise([Reduction.FIXED, *(self._of(b, module, frame) for b in bounds)])
        if isinstance(index, ast.Tuple):
            return elementwise([self._of_index(part, module, frame) for part in index.elts])
        return self._of(index, module, frame)


def _sizes(tensor: Reduced) -> Reduced:
    """What the shape of ``tensor`` is."""
    if tensor in EACH:
        return Reduction.SIZES
    return tensor if tensor is Reduction.FIXED else None


def _calculates(expression: ast.expr) -> bool:
    return any(isinstance(node, ast.BinOp) for node in walk(expression))
