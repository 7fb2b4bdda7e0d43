"""Code whose results depend on the last bits of float32: coarser matrix products would change more than rounding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain

from ..autograd.gradient_graphs import may_build_gradient_graph
from ..calls.reach import never_runs
from ..calls.signatures import call_argument
from ..distributed.counts import is_count
from ..distributed.exchanged_numbers import is_of_exchanged_numbers
from ..facts import Fact
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..syncs.loop_definitions import arithmetic_root, handed_over
from ..syncs.meters import gives_to_meter
from ..values.resolver import Resolver
from .covariances import is_covariance_difference
from .kept_float32 import products_in_float32, regions_in_float32, uses_autocast
from .product_angles import ProductAngles
from .product_distances import is_product_distance

_NORMS = frozenset("norm vector_norm matrix_norm cross vecdot diagonal multi_dot".split())
_DECOMPOSITIONS = frozenset(
    "inverse svd det logdet slogdet cholesky cholesky_solve qr eig eigh symeig pinverse lstsq lu "
    "lu_solve matrix_exp matrix_power triangular_solve".split()
)
_DERIVATIVES = ("torch.autograd.functional.", "torch.func.", "functorch.")
_CHECKS = frozenset(
    {
        "torch.autograd.gradcheck",
        "torch.autograd.gradgradcheck",
        "torch.testing.assert_close",
        "torch.testing.assert_allclose",
    }
)


def needs_float32_products(resolver: Resolver) -> Fact | None:
    """The first place of the project that wants matrix products in full float32; None when nothing is seen to."""
    angles = ProductAngles(resolver)
    under_autocast = uses_autocast(resolver)
    return next(
        (
            found
            for module in resolver.project.modules
            for found in chain(
                _careful_calls(resolver, module),
                _rounded_products(resolver, module, angles),
                _precise_types(resolver, module),
                regions_in_float32(resolver, module),
                products_in_float32(resolver, module) if under_autocast else (),
            )
            if not never_runs(resolver, found.node, found.module)
        ),
        None,
    )


def _careful_calls(resolver: Resolver, module: Module) -> Iterator[Obstacle]:
    for call in module.calls:
        why = _why(resolver.names(call.func, module), call)
        if why is None and may_build_gradient_graph(resolver, call, module):
            why = "gradients are differentiated, which magnifies rounding"
        if why is None and isinstance(call.func, ast.Attribute) and not call.args:
            is_double = call.func.attr == "double" and not resolver.names(call.func, module)
            is_used = is_double and not (
                _is_summed_up(resolver, call, module) or is_count(call.func.value, module)
            )
            why = "float64 is used for precision" if is_used else None
        if why is not None:
            yield Obstacle(module, call, why)


def _rounded_products(
    resolver: Resolver, module: Module, angles: ProductAngles
) -> Iterator[Obstacle]:
    for node in module.nodes_of(ast.BinOp, ast.AugAssign, ast.Call):
        if is_product_distance(resolver, node, module):
            why = "squared distances are made of a matrix product, where rounding cancels badly"
            yield Obstacle(module, node, why)
        elif is_covariance_difference(resolver, node, module):
            why = "Gram matrices or covariances are subtracted, or the identity from one, which magnifies rounding"
            yield Obstacle(module, node, why)
        elif (product := angles.product(node, module)) is not None:
            why = "angles are made of a matrix product, and lose their phase with its digits"
            yield Obstacle(product[1], product[0], why)


def _precise_types(resolver: Resolver, module: Module) -> Iterator[Obstacle]:
    for node in module.nodes_of(ast.Attribute, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            continue
        last = node.attr if isinstance(node, ast.Attribute) else node.id
        if (
            last in {"float64", "double", "complex64", "complex128"}
            and any(name.startswith("torch.") for name in resolver.names(node, module))
            and not is_of_exchanged_numbers(resolver, node, module)
        ):
            yield Obstacle(module, node, f"`torch.{last}` is used for precision")


def _is_summed_up(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` converts a result that is only added to a sum: ``total += loss.detach().double()``.

    So is what a meter is given: ``losses.update(loss.double(), x.size(0))``.
    """
    receiver = getattr(call.func, "value", None)
    is_result = isinstance(receiver, ast.Call) and getattr(receiver.func, "attr", "") == "detach"
    root = arithmetic_root(module, call)
    parent = module.parents[root]
    if is_result or (isinstance(parent, ast.AugAssign) and parent.value is root):
        return True
    handed = handed_over(module, root)
    return handed is not None and gives_to_meter(resolver, module.statement(call), module)


def _why(names: frozenset[str], call: ast.Call) -> str | None:
    for name in sorted(names):
        package, _, last = name.rpartition(".")
        if package == "torch.linalg" and last not in _NORMS:
            return f"`{name}` depends on the last bits of its input"
        if package == "torch" and last in _DECOMPOSITIONS:
            return f"`{name}` depends on the last bits of its input"
        if name == "torch.cdist" and _is_euclidean(call):
            return (
                "`torch.cdist` takes distances from matrix products, where rounding cancels badly"
            )
        if name in _CHECKS:
            return f"`{name}` compares numbers closely"
        if name.startswith(_DERIVATIVES):
            return f"`{name}` takes derivatives that magnify rounding"
        if name.startswith(("torch.fft.", "torch.optim.LBFGS")):
            return f"`{name}` works with small differences"
    return None


def _is_euclidean(call: ast.Call) -> bool:
    """Whether ``torch.cdist`` may take Euclidean distances; others are not made of products."""
    p = call_argument(call, "p", 2)
    return not (isinstance(p, ast.Constant) and p.value != 2)
