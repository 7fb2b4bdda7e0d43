"""Operations that CUDA computes in float32 and float64 alone, and what magnifies the rounding of half precision.

Autocast hands them on as they are: given what it made half they raise ``"cholesky_cusolver" not implemented for 'Half'``.
The names are those of PyTorch's own list of operations (``op_db`` in ``torch.testing._internal.common_methods_invocations``,
as of 2.14) whose ``dtypesIfCUDA`` has float32, and neither float16 nor bfloat16. What autocast makes float32 itself, such as
``cdist``, is not among them: https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-autocast-to-float32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import Reached
from ..networks.forward_code import called_names, method_name
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Made

_DECOMPOSITIONS = frozenset(
    "inverse inv svd svdvals det logdet slogdet cholesky cholesky_solve cholesky_inverse qr geqrf ormqr orgqr eig eigh "
    "eigvals eigvalsh symeig pinverse pinv lstsq solve lu lu_solve lu_unpack matrix_exp matrix_power matrix_rank "
    "triangular_solve householder_product svd_lowrank pca_lowrank lobpcg".split()
)
_VOLUMES = frozenset({"det", "logdet", "slogdet"})
"""Changes of volume: a likelihood is made of them, as in a normalizing flow, and wants float32 whatever they are taken of."""
_WITH_KERNELS = frozenset({"matrix_exp", "matrix_power"})
"""Decompositions that CUDA computes in half precision, too."""
_NO_METHODS = frozenset({"solve", "eig", "lu", "pinv", "lobpcg"})
"""Names that methods of other things than tensors have."""
_WITHOUT_ARGUMENTS = frozenset({"inverse", "det", "logdet", "slogdet"})
"""Methods of tensors that take nothing: ``flow.inverse(z)`` is that of something else."""
_NORMS = frozenset(
    {"norm", "vector_norm", "matrix_norm", "cross", "multi_dot", "vecdot", "diagonal"}
)
_STATISTICS = frozenset("quantile nanquantile histc histogram histogramdd igamma igammac".split())
_STATISTIC_METHODS = frozenset("quantile nanquantile histc histogram igamma igammac".split())
_SPECIAL = frozenset(
    "zeta ndtri log_ndtr erfcx airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t "
    "chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w gammainc gammaincc hermite_polynomial_h "
    "hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p modified_bessel_i0 modified_bessel_i1 "
    "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w spherical_bessel_j0".split()
)
_CTC = frozenset({"torch.nn.CTCLoss", "torch.nn.functional.ctc_loss", "torch.ctc_loss"})
_DISTRIBUTIONS = frozenset({"MultivariateNormal", "LowRankMultivariateNormal", "Wishart"})
"""Distributions that decompose a matrix when they are made, and solve with it for probabilities."""
_SIMPLEX_DISTRIBUTIONS = frozenset({"Beta", "Dirichlet"})
"""Distributions whose samples have a derivative in float32 only (``_dirichlet_grad``)."""


@dataclass(frozen=True)
class FloatOnly:
    """An operation on ``operands``, called ``name``. ``magnifies`` says that it magnifies what was rounded before."""

    spoken: str
    name: str
    operands: tuple[ast.expr, ...]
    magnifies: bool

    @property
    def has_kernel(self) -> bool:
        """Whether it runs in half precision all the same."""
        return self.name in _WITH_KERNELS

    @property
    def is_volume(self) -> bool:
        """Whether it is a change of volume, of which likelihoods are made."""
        return self.name in _VOLUMES

    @property
    def refusal(self) -> str:
        """What is to be said where an operand may be half."""
        if self.has_kernel:
            return self.unsteady
        return f"{self.spoken} is not implemented for half precision"

    @property
    def unsteady(self) -> str:
        """What is to be said where the operands are float32 again, or half precision has a kernel."""
        return f"{self.spoken} magnifies the rounding of half precision"


def float_only(resolver: Resolver, call: ast.Call, module: Module) -> FloatOnly | None:
    """The operation for float32 alone that ``call`` is; None where it is another."""
    reached = Reached(call, module, True)
    for name in sorted(called_names(resolver, reached)):
        package, _, last = name.rpartition(".")
        given = tuple(_given(call))
        if package == "torch.linalg" and last not in _NORMS:
            return FloatOnly(f"`{name}`", last, given, True)
        if package == "torch" and last in _DECOMPOSITIONS:
            return FloatOnly(f"`{name}`", last, given, True)
        if (package == "torch" and last in _STATISTICS) or (
            package == "torch.special" and last in _SPECIAL
        ):
            return FloatOnly(f"`{name}`", last, given, False)
        if name in _CTC:
            return FloatOnly(f"`{name}`", last, given[:1], False)
        if package.startswith("torch.distributions") and last in _DISTRIBUTIONS:
            return FloatOnly(f"what decomposes a matrix in `{last}`", last, given, True)
    return _method(resolver, call, reached)


def _method(resolver: Resolver, call: ast.Call, reached: Reached) -> FloatOnly | None:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return None
    spoken = f"`.{function.attr}()`"
    if method_name(resolver, reached) == function.attr:
        operands = (function.value, *_given(call))
        is_tensors = function.attr not in _WITHOUT_ARGUMENTS or not (call.args or call.keywords)
        if function.attr in _DECOMPOSITIONS - _NO_METHODS and is_tensors:
            return FloatOnly(spoken, function.attr, operands, True)
        if function.attr in _STATISTIC_METHODS:
            return FloatOnly(spoken, function.attr, operands, False)
    if function.attr not in {"log_prob", "rsample"}:
        return None
    makers = resolver.maker_names(function.value, reached.module)
    made = {n.rpartition(".")[2] for n in makers if n.startswith("torch.distributions")}
    if made & _DISTRIBUTIONS and function.attr == "log_prob":
        return FloatOnly(
            f"what solves by a matrix in `{min(made)}.log_prob`",
            "log_prob",
            tuple(_given(call)),
            True,
        )
    if made & _SIMPLEX_DISTRIBUTIONS and function.attr == "rsample":
        operands = _made_of(resolver, function.value, reached.module)
        return FloatOnly(f"the derivative of `{min(made)}.rsample`", "rsample", operands, False)
    return None


def _made_of(resolver: Resolver, made: ast.expr, module: Module) -> tuple[ast.expr, ...]:
    """What the distribution ``made`` is made of, as far as that stands in the same file."""
    calls = [
        v.call for v in resolver.values(made, module) if isinstance(v, Made) and v.module is module
    ]
    return tuple(given for call in calls for given in _given(call)) or (made,)


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of ``call`` that may be tensors."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if not isinstance(argument, ast.Constant):
            yield argument
