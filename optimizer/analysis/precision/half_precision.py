"""What in the code of a training step does not survive half precision, or float16 alone.

Which operations autocast runs in which type, and which it leaves to their inputs:
https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..devices.host_data import HostData
from ..networks.forward_code import called_names, method_name
from ..obstacles import Obstacle, ProbabilityLoss
from ..program.scopes import Iterated
from ..program.syntax import Module
from ..program.trees import is_text
from ..values.composition import call_arguments
from ..values.constants import constant
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from ..values.values import Attribute, Class, Display, External, Literal, Made
from .covariances import is_covariance_difference
from .float32_values import Float32Values
from .float_only import float_only
from .product_distances import is_product_distance

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
_SAME_TYPE_WRITES = frozenset(
    "index_add_ index_copy_ index_put_ scatter_add_ masked_scatter_ put_ index_reduce_ scatter_reduce_ "
    "addmm_ addbmm_ baddbmm_ addmv_ addr_ lerp_".split()
)
_SAME_TYPE_METHODS = frozenset(
    {"lerp", "index_add", "index_copy", "index_reduce", "masked_scatter", "scatter_reduce"}
)
_SAME_TYPE_FUNCTIONS = _SAME_TYPE_METHODS | {"allclose", "inner", "isclose"}
_ONE_TYPE = _SAME_TYPE_WRITES | _SAME_TYPE_METHODS | {"scatter", "scatter_"}
_SOLVERS = ("torchdiffeq.", "torchsde.", "torchcde.", "torchdyn.")
_OTHER_TYPES = frozenset(
    f"torch.{name}"
    for name in "bool uint8 int8 int16 int32 int64 short int long complex64 complex128".split()
)
_SPARSE_METHODS = frozenset({"to_sparse", "to_sparse_csr", "to_sparse_coo", "sparse_mask"})
_GRADIENT_HOOKS = frozenset(
    "register_hook register_full_backward_hook register_full_backward_pre_hook register_backward_hook "
    "register_post_accumulate_grad_hook register_comm_hook".split()
)


_OF_PROBABILITIES = (
    "binary cross entropy of probabilities raises under autocast; BCEWithLogitsLoss, on the values before the sigmoid, "
    "does not"
)
_DISTANCE = "squared distances made of a matrix product lose their digits in half precision"
_COVARIANCE = "differences of Gram matrices or covariances, also from the identity, lose their digits in half precision"
_EQUATION = "a solver of differential equations picks its steps by errors smaller than the rounding of half precision"
_SCALARS = (bool, int, float, type(None))
_Finding = tuple[str, bool] | None


def half_precision_obstacles(resolver: Resolver, nodes: Iterable[Reached]) -> Iterator[Obstacle]:
    """What stands in the way of running ``nodes`` under autocast."""
    for reached in nodes:
        node = reached.node
        finding: _Finding = None
        if isinstance(node, ast.Call):
            finding = _first(resolver, reached, _CALL_CHECKS)
        elif isinstance(node, ast.Assign):
            finding = _indexed_write(resolver, node, reached.module)
        elif isinstance(node, ast.Compare) and _tests_float_type(resolver, node, reached.module):
            finding = ("tests the type of a tensor", False)
        if finding is None and is_product_distance(resolver, node, reached.module):
            finding = (_DISTANCE, False)
        if finding is None and is_covariance_difference(resolver, node, reached.module):
            finding = (_COVARIANCE, False)
        if finding is not None:
            kind = ProbabilityLoss if finding[0] is _OF_PROBABILITIES else Obstacle
            yield kind(reached.module, node, *finding)


def _first(
    resolver: Resolver,
    reached: Reached,
    checks: Iterable[Callable[[Resolver, Reached], _Finding]],
) -> _Finding:
    return next((found for check in checks if (found := check(resolver, reached))), None)


def _tests_float_type(resolver: Resolver, node: ast.Compare, module: Module) -> bool:
    """Whether ``node`` compares a ``.dtype`` with anything but types that autocast leaves alone."""
    sides = [node.left, *node.comparators]
    if not any(isinstance(side, ast.Attribute) and side.attr == "dtype" for side in sides):
        return False
    named = {name for side in sides for name in resolver.names(side, module)}
    return not named or not named <= _OTHER_TYPES


def _loss_of_probabilities(resolver: Resolver, reached: Reached) -> _Finding:
    if not called_names(resolver, reached) & _PROBABILITY_LOSSES:
        return None
    return _OF_PROBABILITIES, False


def _complex_numbers(resolver: Resolver, reached: Reached) -> _Finding:
    names = called_names(resolver, reached)
    method = method_name(resolver, reached)
    if any(n.startswith(_COMPLEX) for n in names) or method in {"stft", "istft"}:
        return "Fourier transforms and complex numbers have no half-precision form", False
    return None


def _for_float32_alone(resolver: Resolver, reached: Reached) -> _Finding:
    node, module = reached.node, reached.module
    assert isinstance(node, ast.Call)
    operation = float_only(resolver, node, module)
    if operation is None:
        return None
    known = Float32Values(resolver, through_casts=True)
    if not all(known.is_other(operand, module) for operand in operation.operands):
        return operation.refusal, False
    exact = Float32Values(resolver, through_casts=False)
    if operation.is_volume:
        return (
            f"{operation.spoken}, a change of volume, is part of a likelihood that wants float32",
            False,
        )
    if operation.magnifies and not all(exact.is_other(o, module) for o in operation.operands):
        return operation.unsteady, False
    return None


def _write_in_place(resolver: Resolver, reached: Reached) -> _Finding:
    node = reached.node
    assert isinstance(node, ast.Call)
    if _all_in_float32(resolver, node, reached.module):
        return None
    method = method_name(resolver, reached)
    names = called_names(resolver, reached)
    if method in _SAME_TYPE_WRITES | _SAME_TYPE_METHODS:
        return f"`.{method}()` wants both tensors in the same type", False
    source = call_argument(node, "src", 2) or call_argument(node, "value")
    if method in {"scatter_", "scatter"} and (source is None or constant(source) is None):
        return f"`.{method}()` wants both tensors in the same type", False
    if any(n.startswith("torch.") for n in names):
        if any(k.arg == "out" for k in node.keywords):
            return "`out=` tensors keep their type under autocast", False
        source = call_argument(node, "src", 3) or call_argument(node, "value")
        is_scattered = "torch.scatter" in names and (source is None or constant(source) is None)
        if is_scattered or any(n.rpartition(".")[2] in _SAME_TYPE_FUNCTIONS for n in names):
            return f"`{min(names)}` wants both tensors in the same type", False
    return None


def _all_in_float32(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is a method of a tensor that is float32 whatever autocast does, and given nothing of another type."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _ONE_TYPE:
        return False
    known = Float32Values(resolver, through_casts=True, by_autocast=False)
    return all(known.is_other(one, module) for one in (call.func.value, *call_arguments(call)))


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


def _captured(resolver: Resolver, reached: Reached) -> _Finding:
    names = called_names(resolver, reached)
    if any(n.startswith(("torch.func.", "functorch.", "torch.vmap")) for n in names):
        return "function transforms (`torch.func`) are not understood under autocast", False
    return None


def _gradient_hook(resolver: Resolver, reached: Reached) -> _Finding:
    if method_name(resolver, reached) in _GRADIENT_HOOKS:
        return "a hook sees the gradients before they are unscaled", True
    return None


def _indexed_write(resolver: Resolver, node: ast.Assign, module: Module) -> _Finding:
    """``x[mask] = y``: with a tensor for an index, both sides must be of one type.

    A number takes the type of what it is written to, ``y.to(x.dtype)`` has it, and an array of NumPy's knows no autocast.
    """
    if _is_scalar(resolver, node.value, module):
        return None
    for target in node.targets:
        if (
            isinstance(target, ast.Subscript)
            and not _is_of_type_of(target.value, node.value)
            and _may_be_tensor_index(resolver, target.slice, module)
            and not _is_collection(resolver, target.value, module)
            and not HostData(resolver).is_data(target.value, module)
        ):
            return "a write through a tensor index wants both sides in the same type", False
    return None


def _differential_equation(resolver: Resolver, reached: Reached) -> _Finding:
    if not any(name.startswith(_SOLVERS) for name in called_names(resolver, reached)):
        return None
    return _EQUATION, False


def _is_scalar(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a number or a truth value, or None, which no tensor takes: then the write does not run."""
    if constant(node) is not None or is_number(resolver, node, module):
        return True
    values = resolver.values(node, module)
    return all(isinstance(v, Literal) and isinstance(v.value, _SCALARS) for v in values)


def _is_of_type_of(tensor: ast.expr, value: ast.expr) -> bool:
    """Whether ``value`` is cast to the type of ``tensor``: ``y.to(x.dtype)``, ``y.type_as(x)``."""
    match value:
        case ast.Call(func=ast.Attribute(attr="to" | "type"), args=[ast.Attribute(given, "dtype")]):
            pass
        case ast.Call(func=ast.Attribute(attr="to" | "type_as"), args=[given]):
            pass
        case _:
            return False
    return ast.dump(given) == ast.dump(tensor)


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


def _may_be_tensor_index(resolver: Resolver, index: ast.expr, module: Module) -> bool:
    if isinstance(index, ast.Tuple):
        return not any(map(is_text, index.elts)) and any(
            _may_be_tensor_index(resolver, part, module) for part in index.elts
        )
    if is_text(index):
        return False  # a key of a dict
    if isinstance(index, ast.Compare):
        return True
    if isinstance(index, ast.Constant | ast.Slice | ast.UnaryOp | ast.BinOp):
        return False
    if isinstance(index, ast.Name):
        found = module.scope(index).lookup(index.id)
        sources = [binding.source for binding in found[1]] if found else []
        if sources and all(isinstance(source, Iterated) for source in sources):
            return False
    return not is_number(resolver, index, module, whole=True)


_CALL_CHECKS: tuple[Callable[[Resolver, Reached], _Finding], ...] = (
    _loss_of_probabilities,
    _complex_numbers,
    _for_float32_alone,
    _write_in_place,
    _custom_function,
    _sparse,
    _captured,
    _gradient_hook,
    _differential_equation,
)
