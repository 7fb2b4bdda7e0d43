"""What parts of a loss are by their form: sizes, methods, networks with layers of their own."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class
from .reductions import Reduced, Reduction
from .tensor_reductions import dimensions

_MOVES = frozenset({"to", "cuda", "cpu", "float", "long", "clone", "detach"})


def is_set_outside_init(cls: ast.ClassDef, read: ast.Attribute) -> bool:
    """Whether a method other than ``__init__`` sets the attribute of the object that is read."""
    for method in cls.body:
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            for node in walk(method):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == read.attr
                    and isinstance(node.ctx, ast.Store)
                ):
                    return True
    return False


def whose_sizes(node: ast.expr) -> ast.expr | None:
    """``x`` in ``x.shape`` and ``x.size()``."""
    match node:
        case ast.Attribute(value=tensor, attr="shape"):
            return tensor
        case ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[], keywords=[]):
            return tensor
        case _:
            return None


def size_at(place: object) -> Reduced:
    """What the size is that stands at ``place`` in the shape of a tensor of the batch: an index, or a slice."""
    match place:
        case int() | ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant(value=int())):
            first = place == 0 or getattr(place, "value", None) == 0
            return Reduction.COUNT if first else Reduction.FIXED
        case ast.Slice(lower=ast.Constant(value=int(start))) if start > 0:
            return Reduction.FIXED
        case _:
            return None


def is_beside_samples(scatter: ast.Call) -> bool:
    """Whether ``x.scatter_(dim, ..)`` goes along another dimension than that of the samples."""
    told = call_argument(scatter, "dim", 0)
    return told is not None and all(n >= 1 for n in dimensions(told) or [0])


def is_enumerate(iterable: ast.expr) -> bool:
    """Whether it is ``enumerate(..)``."""
    return isinstance(iterable, ast.Call) and getattr(iterable.func, "id", None) == "enumerate"


def is_method(function: ast.FunctionDef, module: Module) -> bool:
    """Whether the first parameter of ``function`` is an object or a class."""
    return isinstance(module.parents.get(function), ast.ClassDef) and not any(
        getattr(d, "id", None) == "staticmethod" for d in function.decorator_list
    )


def makes_layers(resolver: Resolver, cls: Class) -> bool:
    """Whether a network makes layers of PyTorch that hold weights, as a criterion does not."""
    for node in walk(cls.node):
        if isinstance(node, ast.Call):
            for name in resolver.names(node.func, cls.module):
                if name.startswith(("torch.nn.", "torchvision.models.", "timm.")) and not (
                    name.endswith("Loss") or name.startswith("torch.nn.functional.")
                ):
                    return True
    return False


def is_loss(function: str) -> bool:
    """Whether a function of ``torch.nn.functional`` computes a loss, judged by its name."""
    return function.endswith("_loss") or "cross_entropy" in function or function == "kl_div"


def moved_batch(node: ast.expr) -> ast.expr | None:
    """``batch`` in ``[t.to(device) for t in batch]`` and ``{k: v.cuda() for k, v in batch.items()}``."""
    match node:
        case (
            ast.ListComp(elt=moved, generators=[one])
            | ast.GeneratorExp(elt=moved, generators=[one])
        ):
            batch, each = one.iter, one.target
        case ast.DictComp(
            value=moved,
            generators=[
                ast.comprehension(
                    target=ast.Tuple(elts=[_, each]),
                    iter=ast.Call(func=ast.Attribute(value=batch, attr="items")),
                ) as one
            ],
        ):
            pass
        case _:
            return None
    while isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute):
        if moved.func.attr not in _MOVES:
            return None
        moved = moved.func.value
    alike = isinstance(moved, ast.Name) and isinstance(each, ast.Name) and moved.id == each.id
    return batch if alike and not one.ifs else None
