"""What in the code of a training step does not survive half precision, or float16 alone.

Which operations autocast runs in which type, and which it leaves to their inputs:
https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from .constants import constant
from .dataflow import dotted
from .facts import Fact
from .forward_code import called_names, method_name
from .reach import Reached
from .resolver import Resolver
from .scopes import Assigned, Iterated
from .signatures import call_argument
from .syntax import Module
from .values import Attribute, Class, Display, External, Made

FLOAT16_MAX = 65504.0
FLOAT16_TINY = 2.0**-25
"""What is no larger rounds to zero: half of the smallest subnormal number."""

_PROBABILITY_LOSSES = frozenset(
    {"torch.nn.BCELoss", "torch.nn.functional.binary_cross_entropy", "torch.binary_cross_entropy"}
)
_COMPLEX = (
    "torch.fft.",
    "torch.stft",
    "torch.istft",
    "torch.complex",
    "torch.view_as_complex",
    "torch.polar",
    "torchaudio.transforms.Spectrogram",
    "torchaudio.transforms.MelSpectrogram",
)
_DECOMPOSITIONS = frozenset(
    "inverse inv svd svdvals det logdet slogdet cholesky cholesky_solve qr eig eigh eigvals eigvalsh symeig pinverse "
    "pinv lstsq solve lu lu_solve matrix_exp matrix_power matrix_rank triangular_solve householder_product".split()
)
_FLOAT_ONLY = frozenset({"quantile", "nanquantile", "histc", "histogram", "histogramdd"})
_NORMS = frozenset(
    {"norm", "vector_norm", "matrix_norm", "cross", "multi_dot", "vecdot", "diagonal"}
)
_SAME_TYPE_WRITES = frozenset(
    "index_add_ index_copy_ index_put_ scatter_add_ masked_scatter_ put_ index_reduce_ scatter_reduce_ "
    "addmm_ addbmm_ baddbmm_ addmv_ addr_ lerp_".split()
)
_SAME_TYPE_METHODS = frozenset({"lerp", "index_add", "index_copy", "masked_scatter"})
_SPARSE_METHODS = frozenset({"to_sparse", "to_sparse_csr", "to_sparse_coo", "sparse_mask"})
_GRADIENT_HOOKS = frozenset(
    "register_hook register_full_backward_hook register_full_backward_pre_hook register_backward_hook "
    "register_post_accumulate_grad_hook register_comm_hook".split()
)
_MATRIX_PRODUCTS = frozenset({"torch.mm", "torch.bmm", "torch.matmul"})


@dataclass(frozen=True, eq=False)
class Obstacle(Fact):
    """Code that half precision breaks; only float16 when ``float16_only``. ``message`` says how."""

    message: str
    float16_only: bool = False


_Finding = tuple[str, bool] | None


def half_precision_obstacles(resolver: Resolver, nodes: Iterable[Reached]) -> Iterator[Obstacle]:
    """What stands in the way of running ``nodes`` under autocast."""
    for reached in nodes:
        node = reached.node
        finding: _Finding = None
        if isinstance(node, ast.Call):
            finding = _first(resolver, reached, _CALL_CHECKS)
        elif isinstance(node, ast.BinOp):
            finding = _operator(resolver, node, reached.module)
        elif isinstance(node, ast.Assign):
            finding = _indexed_write(resolver, node, reached.module)
        elif isinstance(node, ast.Compare) and any(
            isinstance(n, ast.Attribute) and n.attr == "dtype" for n in ast.walk(node)
        ):
            finding = ("tests the type of a tensor", False)
        if finding is not None:
            yield Obstacle(reached.module, node, *finding)


def _first(
    resolver: Resolver,
    reached: Reached,
    checks: Iterable[Callable[[Resolver, Reached], _Finding]],
) -> _Finding:
    return next((found for check in checks if (found := check(resolver, reached))), None)


def _loss_of_probabilities(resolver: Resolver, reached: Reached) -> _Finding:
    if not called_names(resolver, reached) & _PROBABILITY_LOSSES:
        return None
    advice = "BCEWithLogitsLoss, on the values before the sigmoid, does not"
    return f"binary cross entropy of probabilities raises under autocast; {advice}", False


def _complex_numbers(resolver: Resolver, reached: Reached) -> _Finding:
    names = called_names(resolver, reached)
    method = method_name(resolver, reached)
    if any(n.startswith(_COMPLEX) for n in names) or method in {"stft", "istft"}:
        return "Fourier transforms and complex numbers have no half-precision form", False
    return None


def _decomposition(resolver: Resolver, reached: Reached) -> _Finding:
    for name in called_names(resolver, reached):
        package, _, last = name.rpartition(".")
        if package == "torch.linalg" and last not in _NORMS:
            return f"`{name}` is not implemented for half precision", False
        if package == "torch" and last in _DECOMPOSITIONS | _FLOAT_ONLY:
            return f"`{name}` is not implemented for half precision", False
    method = method_name(resolver, reached)
    if method in (_DECOMPOSITIONS | _FLOAT_ONLY) - {"solve", "eig", "lu"}:
        return f"`.{method}()` is not implemented for half precision", False
    return None


def _write_in_place(resolver: Resolver, reached: Reached) -> _Finding:
    node = reached.node
    assert isinstance(node, ast.Call)
    method = method_name(resolver, reached)
    names = called_names(resolver, reached)
    if method in _SAME_TYPE_WRITES | _SAME_TYPE_METHODS:
        return f"`.{method}()` wants both tensors in the same type", False
    source = call_argument(node, "src", 2) or call_argument(node, "value")
    if method in {"scatter_", "scatter"} and not _is_number(source):
        return f"`.{method}()` wants both tensors in the same type", False
    if any(n.startswith("torch.") for n in names):
        if any(k.arg == "out" for k in node.keywords):
            return "`out=` tensors keep their type under autocast", False
        if any(n.rpartition(".")[2] in _SAME_TYPE_METHODS for n in names):
            return f"`{min(names)}` wants both tensors in the same type", False
    return None


def _is_number(node: ast.expr | None) -> bool:
    return node is not None and constant(node) is not None


def _custom_function(resolver: Resolver, reached: Reached) -> _Finding:
    node = reached.node
    assert isinstance(node, ast.Call)
    for value in resolver.values(node.func, reached.module):
        cls = value.of if isinstance(value, Attribute) and value.name == "apply" else None
        if not isinstance(cls, Class) or _casts_by_itself(resolver, cls):
            continue
        if "torch.autograd.Function" in resolver.base_names(cls):
            name = cls.node.name
            return f"the autograd function `{name}` lacks `torch.amp.custom_fwd`", False
    return None


def _casts_by_itself(resolver: Resolver, cls: Class) -> bool:
    for statement in cls.node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
            decorators = [
                d.func if isinstance(d, ast.Call) else d for d in statement.decorator_list
            ]
            names = {n for d in decorators for n in resolver.names(d, cls.module)}
            return any(n.endswith(".custom_fwd") for n in names)
    return False


def _sparse(resolver: Resolver, reached: Reached) -> _Finding:
    names = called_names(resolver, reached)
    if any(n.startswith(("torch.sparse", "torch.spmm", "torch.hspmm", "torch.smm")) for n in names):
        return "sparse matrix products have no half-precision form", False
    if method_name(resolver, reached) in _SPARSE_METHODS:
        return "sparse tensors have no half-precision products", False
    return None


def _numpy(resolver: Resolver, reached: Reached) -> _Finding:
    if method_name(resolver, reached) == "numpy" and not reached.direct:
        return "NumPy has no bfloat16: a forward pass that leaves PyTorch cannot run in it", False
    return None


def _captured(resolver: Resolver, reached: Reached) -> _Finding:
    names = called_names(resolver, reached)
    if any(n.startswith(("torch.func.", "functorch.", "torch.vmap")) for n in names):
        return "function transforms (`torch.func`) are not understood under autocast", False
    return None


def _large_constant(resolver: Resolver, reached: Reached) -> _Finding:
    node = reached.node
    assert isinstance(node, ast.Call)
    method = method_name(resolver, reached)
    values: list[ast.expr | None] = []
    if method in {"masked_fill", "masked_fill_"}:
        values = [call_argument(node, "value", 1)]
    elif called_names(resolver, reached) & {"torch.masked_fill", "torch.where"}:
        values = list(node.args[1:])
    for value in values:
        number = constant(value) if value is not None else None
        if number is not None and FLOAT16_MAX < abs(number) < math.inf:
            return f"the constant {number:g} overflows in float16", True
    return None


def _clamp(resolver: Resolver, reached: Reached) -> _Finding:
    node = reached.node
    assert isinstance(node, ast.Call)
    method = method_name(resolver, reached)
    if method not in {"clamp", "clamp_", "clamp_min", "clip"}:
        if not called_names(resolver, reached) & {"torch.clamp", "torch.clip"}:
            return None
        bound = call_argument(node, "min", 1)
    else:
        bound = call_argument(node, "min", 0)
    return _vanishing(bound)


def _vanishing(node: ast.expr | None) -> _Finding:
    number = constant(node) if node is not None else None
    if number is not None and 0 < abs(number) <= FLOAT16_TINY:
        return f"the constant {number:g} is zero in float16", True
    return None


def _gradient_hook(resolver: Resolver, reached: Reached) -> _Finding:
    if method_name(resolver, reached) in _GRADIENT_HOOKS:
        return "a hook sees the gradients before they are unscaled", True
    return None


def _gram_product(resolver: Resolver, reached: Reached) -> _Finding:
    node = reached.node
    assert isinstance(node, ast.Call)
    operands: list[ast.expr] = []
    if called_names(resolver, reached) & _MATRIX_PRODUCTS and len(node.args) == 2:
        operands = node.args
    elif method_name(resolver, reached) in {"mm", "bmm", "matmul"} and len(node.args) == 1:
        assert isinstance(node.func, ast.Attribute)
        operands = [node.func.value, node.args[0]]
    return _gram(operands, reached.module) if operands else None


def _operator(resolver: Resolver, node: ast.BinOp, module: Module) -> _Finding:
    if isinstance(node.op, ast.MatMult):
        return _gram([node.left, node.right], module)
    if isinstance(node.op, ast.Add):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if _vanishing(side) and not _is_number(other):
                return _vanishing(side)
    return None


def _gram(operands: list[ast.expr], module: Module) -> _Finding:
    """A matrix times its own transpose: sums of squares, which float16 cannot hold for long rows."""
    roots = [_untransposed(operand, module) for operand in operands]
    if roots[0] is not None and roots[0] == roots[1]:
        return (
            "the product of a matrix with its own transpose (a Gram matrix) can overflow in float16",
            True,
        )
    return None


def _untransposed(node: ast.expr, module: Module) -> str | None:
    if _is_transposition(node):
        assert isinstance(node.func, ast.Attribute)
        return _untransposed(node.func.value, module)
    if isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}:
        return _untransposed(node.value, module)
    if isinstance(node, ast.Name):
        found = module.scope(node).lookup(node.id)
        source = found[1][0].source if found is not None and len(found[1]) == 1 else None
        value = source.value if isinstance(source, Assigned) else None
        if value is not None and _is_transposition(value):
            return _untransposed(value, module)
        if value is not None and _is_normalized(value):
            return None
    return dotted(node)


def _is_normalized(node: ast.expr) -> bool:
    """Whether ``node`` reads like rows of bounded length: something divided, or a call of ``normalize``."""
    if isinstance(node, ast.Call):
        function = node.func
        last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return "norm" in last
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def _is_transposition(node: ast.expr) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"t", "transpose", "permute", "swapaxes"}
    )


def _indexed_write(resolver: Resolver, node: ast.Assign, module: Module) -> _Finding:
    """``x[mask] = y``: with a tensor for an index, both sides must be of one type."""
    number = constant(node.value)
    for target in node.targets:
        if not isinstance(target, ast.Subscript):
            continue
        if number is not None:
            if FLOAT16_MAX < abs(number) < math.inf:
                return f"the constant {number:g} overflows in float16", True
        elif _may_be_tensor_index(target.slice, module) and not _is_collection(
            resolver, target.value, module
        ):
            return "a write through a tensor index wants both sides in the same type", False
    return None


def _is_collection(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a list or a dict of Python's."""
    values = resolver.values(node, module)
    return bool(values) and all(
        (
            isinstance(v, Display)
            and isinstance(v.node, ast.List | ast.Dict | ast.ListComp | ast.DictComp)
        )
        or (
            isinstance(v, Made)
            and isinstance(v.maker, External)
            and v.maker.name.startswith(("builtins.", "collections."))
        )
        for v in values
    )


def _may_be_tensor_index(index: ast.expr, module: Module) -> bool:
    if isinstance(index, ast.Tuple):
        return any(_may_be_tensor_index(part, module) for part in index.elts)
    if isinstance(index, ast.Compare):
        return True
    if isinstance(index, ast.Constant | ast.Slice | ast.UnaryOp | ast.JoinedStr | ast.BinOp):
        return False
    if isinstance(index, ast.Name):
        found = module.scope(index).lookup(index.id)
        sources = [binding.source for binding in found[1]] if found else []
        return not sources or not all(isinstance(source, Iterated) for source in sources)
    return True


_CALL_CHECKS: tuple[Callable[[Resolver, Reached], _Finding], ...] = (
    _loss_of_probabilities,
    _complex_numbers,
    _decomposition,
    _write_in_place,
    _custom_function,
    _sparse,
    _numpy,
    _captured,
    _large_constant,
    _clamp,
    _gradient_hook,
    _gram_product,
)
