"""What becomes of a tensor that is passed to a call."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..autograd.gradients import Gradients
from ..autograd.graph_names import (
    BACKWARD_METHODS,
    GRAPH_FREE_METHODS,
    REPORTING_METHODS,
    TENSOR_METHODS,
    gives_no_graph,
    mutates,
    needs_graph,
    passes_graph_on,
)
from ..networks.models import is_loss_name
from ..networks.networks import Networks
from ..program.parameters import parameter_named
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Attribute, Class, External, Function, Instance, Made, Value
from .signatures import parameter_of

_LOGGERS = ("logging.", "wandb.", "tensorboardX.", "torch.utils.tensorboard.", "tqdm.")
_CONTAINERS = frozenset(
    f"torch.nn.{name}"
    for name in (
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "TransformerEncoder",
        "TransformerDecoder",
    )
)
_METRICS = ("torchmetrics.", "monai.metrics.", "pytorch_lightning.metrics.")
"""Packages whose objects add up what they are given; layers of others keep nothing of it."""
_PRINTS = frozenset({"builtins.print", "builtins.str", "builtins.repr"})


@dataclass(frozen=True)
class Effect:
    """What one callee does with an argument.

    ``in_result``: the result holds it. ``kept_in``: so does this object. ``enters``: it becomes these parameters.
    ``any_forward``: a layer that is not known may get it. ``escape`` says why it cannot be followed; ``prints`` that it is turned into text, ``formats`` that it is as by
    ``str.format``. Not ``certain`` when what comes out may be no tensor with a graph.
    """

    in_result: bool = False
    kept_in: ast.expr | None = None
    enters: tuple[tuple[Function, ast.arg], ...] = ()
    any_forward: bool = False
    escape: str | None = None
    prints: bool = False
    formats: bool = False
    certain: bool = True


_ENDS = Effect()
_CALCULATION = (
    ast.BinOp,
    ast.UnaryOp,
    ast.Constant,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)
_GOES_ON = Effect(in_result=True)


class CallEffects:
    """Answers for one project."""

    def __init__(self, resolver: Resolver, gradients: Gradients, networks: Networks) -> None:
        self._resolver = resolver
        self._gradients = gradients
        self._networks = networks

    def of(self, call: ast.Call, given: ast.expr, module: Module) -> list[Effect]:
        """What ``call`` may do with its argument ``given``, for each thing it may call."""
        if given is call.func:
            return [_GOES_ON]
        values = self._networks.unwrapped(call.func, module)
        return [self._passed(call, given, value, module) for value in values]

    def feeds_loss(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` computes a loss."""
        return any(_is_loss(value) for value in self._resolver.values(call.func, module))

    def _passed(self, call: ast.Call, given: ast.expr, callee: Value, module: Module) -> Effect:
        func = call.func
        match callee:
            case External(name):
                return self._to_library(call, name, module)
            case Function() | Class() | Instance() | Made(_, _, Class()):
                return self._to_project(call, given, callee, module)
            case Attribute(Class() as cls, "apply") if "torch.autograd.Function" in (
                self._resolver.base_names(cls)
            ):
                return _GOES_ON
            case _ if self._networks.is_call(call, module):
                return Effect(in_result=True, any_forward=not _is_leaf(callee))
            case Made(_, _, External(name)) if is_loss_name(name):
                return _GOES_ON
            case Made(_, _, External(name)) if name.endswith("Scaler"):
                return Effect(
                    escape="reaches a backward pass"
                )  # timm's NativeScaler, called with the loss
            case Made(_, _, External(name)) if passes_graph_on(name):
                kept_in = func if name.startswith(_METRICS) else None
                return Effect(in_result=True, kept_in=kept_in, any_forward=True, certain=False)
            case _ if isinstance(func, ast.Attribute):
                return self._to_method(call, func, module)
            case _:
                return _lost(call)

    def _to_library(self, call: ast.Call, name: str, module: Module) -> Effect:
        if needs_graph(name):
            return Effect(escape="reaches autograd")
        if name == "torch.save":
            return Effect(escape="is saved")
        if name in _PRINTS:
            return Effect(prints=True)
        if gives_no_graph(name):
            return _ENDS
        if not passes_graph_on(name) or self._calls_back(call, module):
            return _lost(call)
        return _GOES_ON

    def _calls_back(self, call: ast.Call, module: Module) -> bool:
        """Whether a library is given a first-party function, which may get the tensor too (``map(f, outputs)``)."""
        return any(
            isinstance(value, Function)
            for argument in [*call.args, *(k.value for k in call.keywords)]
            for value in self._resolver.values(argument, module)
        )

    def _to_project(self, call: ast.Call, given: ast.expr, callee: Value, module: Module) -> Effect:
        if isinstance(callee, Function):
            functions = [callee]
        elif isinstance(callee, Made) and isinstance(callee.maker, Class):
            functions = self._networks.forwards_of(callee.maker) or self._callees(call, module)
        else:
            functions = self._callees(call, module)
        enters: list[tuple[Function, ast.arg]] = []
        for function in functions:
            if isinstance(function.node, ast.Lambda) and _only_calculates(function.node):
                return _GOES_ON
            name = parameter_of(function.node, given, call, function.bound)
            argument = parameter_named(function.node, name)
            if argument is None:
                return _lost(call)
            enters.append((function, argument))
        if enters:
            return Effect(enters=tuple(enters))
        return _lost(call) if isinstance(callee, Class) else _GOES_ON

    def _callees(self, call: ast.Call, module: Module) -> list[Function]:
        return list(self._resolver.callees(call, module))

    def _to_method(self, call: ast.Call, func: ast.Attribute, module: Module) -> Effect:
        method, receiver = func.attr, func.value
        makers = self._resolver.maker_names(receiver, module)
        if method == "format":
            return _ENDS if _has_specs(receiver) else Effect(prints=True, formats=True)
        if method in BACKWARD_METHODS:
            return Effect(escape="reaches a backward pass")
        reports = bool(makers) and all(m.startswith(_LOGGERS) or gives_no_graph(m) for m in makers)
        steps_schedule = method == "step" and any("lr_scheduler" in maker for maker in makers)
        if method in REPORTING_METHODS or steps_schedule:
            return _ENDS
        if mutates(method):
            is_object = bool(makers) and not any(m.startswith("torch.") for m in makers)
            return Effect(in_result=True, kept_in=receiver, certain=not is_object)
        is_scaler = method == "scale" and any(maker.endswith("GradScaler") for maker in makers)
        if is_scaler or method in TENSOR_METHODS or self._networks.is_network(receiver, module):
            return _GOES_ON
        return _ENDS if reports or method in GRAPH_FREE_METHODS else _lost(call)


def _only_calculates(function: ast.Lambda) -> bool:
    """Whether a lambda gives back its arguments, or what arithmetic makes of them: ``lambda x: x``."""
    own = {argument.arg for argument in function.args.args}
    return all(
        node.id in own if isinstance(node, ast.Name) else isinstance(node, _CALCULATION)
        for node in walk(function.body)
    )


def _lost(call: ast.Call) -> Effect:
    return Effect(escape=f"is passed to `{ast.unparse(call.func)}`, which could not be followed,")


def _is_leaf(callee: Value) -> bool:
    """Whether a network is a single layer of torch, which runs no other network."""
    return (
        isinstance(callee, Made)
        and isinstance(callee.maker, External)
        and callee.maker.name.startswith("torch.nn.")
        and callee.maker.name not in _CONTAINERS
    )


def _is_loss(callee: Value) -> bool:
    match callee:
        case Made(_, _, External(name)):
            return is_loss_name(name)
        case Made(_, _, Class(node)):
            return node.name.endswith(("Loss", "Criterion"))
        case External(name):
            last = name.rpartition(".")[2]
            return name.startswith("torch.nn.functional.") and (
                last.endswith(("_loss", "cross_entropy", "_with_logits")) or last == "kl_div"
            )
        case _:
            return False


def _has_specs(text: ast.expr) -> bool:
    """Whether every replacement field of a format string says how to write a number (``{:.4f}``)."""
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return False
    fields = text.value.split("{")[1:]
    return bool(fields) and all(":" in field.split("}")[0] for field in fields)
