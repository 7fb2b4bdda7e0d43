"""Whether every training step gives gradients to the same parameters.

Autograd gives a gradient to each parameter in the graph of the loss, be it full of zeros. Which parameters those are is
the same in every step when no branch, and no loop of varying length, decides what runs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

from ..calls.reach import Reached, reached_nodes
from ..facts import Model
from ..networks.forward_code import forward_code, layer_classes
from ..networks.networks import Networks
from ..obstacles import Obstacle
from ..optimizers.gradient_clearing import cleared_by
from ..program.syntax import Module
from ..program.trees import walk
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Class, Display, External, Function, Instance, Made
from .gradients import Gradients

_CHOOSE = frozenset(
    "builtins.getattr builtins.max builtins.min builtins.next builtins.sorted builtins.filter random.choice "
    "random.choices random.sample torch.set_grad_enabled".split()
)
_SKIPS_CLUSTERS = "AdaptiveLogSoftmaxWithLoss"
_PACKAGES = frozenset({"torch", "torchvision", "numpy"}) | sys.stdlib_module_names
_CONTAINERS = frozenset({"torch.nn.Sequential", "torch.nn.ModuleList"})


def varying_graph(resolver: Resolver, step: StepCode, networks: Iterable[Model]) -> Obstacle | None:
    """What may let ``step`` give gradients to other parameters than the step before; None when nothing does."""
    networks = tuple(networks)
    frozen = _freezes(resolver)
    if frozen is not None:
        return frozen
    for network in networks:
        name = network.library_name
        if name is not None and not _is_plain_library_network(name):
            return Obstacle(network.module, network.node, f"what `{name}` runs is not known")
    if not step.regions or step.callers:
        return Obstacle(step.module, step.node, "what computes the loss is not seen")
    for reached in [*_loss_code(resolver, step), *forward_code(resolver, networks)]:
        why = _varies(resolver, reached.node, reached.module)
        if why is not None:
            return Obstacle(reached.module, _located(reached), why)
    return _foreign_parts(resolver, networks)


def _loss_code(resolver: Resolver, step: StepCode) -> Iterator[Reached]:
    """What runs from the batch to the loss, but for what holds no graph and for what clears gradients."""
    gradients = Gradients(resolver, Networks(resolver))
    for region in step.regions:
        for statement in region.statements:
            match statement:
                case ast.Assign(value=value) if gradients.free(value, step.module):
                    continue
                case ast.For() if cleared_by(statement) is not None:
                    continue
                case _:
                    yield from reached_nodes(resolver, [statement], step.module)
    for backward in step.backwards:
        yield from reached_nodes(resolver, [backward.loss], step.module)


def _foreign_parts(resolver: Resolver, networks: Iterable[Model]) -> Obstacle | None:
    """A part of ``networks``, however deep in containers, of which it is not known what it runs."""
    roots: list[tuple[ast.AST, Module]] = [(n.node, n.module) for n in networks]
    roots += [(cls.node, cls.module) for cls in layer_classes(resolver, networks)]
    for root, module in roots:
        for call in walk(root):
            if not isinstance(call, ast.Call):
                continue
            names = resolver.names(call.func, module)
            held = _held(call) if names & _CONTAINERS else []
            unknown = not all(
                isinstance(value, Made | Display)
                for part in held
                for value in resolver.values(part, module)
            )
            if unknown or any(name.partition(".")[0] not in _PACKAGES for name in names):
                why = f"what all layers of `{module.code(call.func)}` run is not known"
                return Obstacle(module, call, why)
    return None


def _held(container: ast.Call) -> list[ast.expr]:
    """The layers written out in the arguments of ``container``."""
    parts: list[ast.expr] = []
    for argument in container.args:
        parts += argument.elts if isinstance(argument, ast.List) else [argument]
    return [part for part in parts if not isinstance(part, ast.Starred)]


def _is_plain_library_network(name: str) -> bool:
    return name.startswith("torch.nn.") or (
        name.startswith("torchvision.models.") and name.count(".") == 2
    )


def _located(reached: Reached) -> ast.AST:
    node = reached.node
    return node.iter if isinstance(node, ast.comprehension) else node


def _freezes(resolver: Resolver) -> Obstacle | None:
    for module in resolver.project.modules:
        if _SKIPS_CLUSTERS in module.source.text:
            why = f"`{_SKIPS_CLUSTERS}` uses the parameters of those clusters that a batch has"
            return Obstacle(module, module.tree, why)
        for node in module.nodes:
            match node:
                case (
                    ast.Attribute(attr="requires_grad", ctx=ast.Store())
                    | ast.Attribute(attr="requires_grad_")
                ):
                    return Obstacle(module, node, "parameters may be frozen for some steps")
                case _:
                    pass
    return None


def _varies(resolver: Resolver, node: ast.AST, module: Module) -> str | None:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) if _tests_type(test):
            return None
        case ast.Try() | ast.If() | ast.IfExp() | ast.While() | ast.Match() | ast.BoolOp():
            return "a branch may decide which parameters take part"
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
            if not _is_fixed(resolver, iterated, module):
                return "a loop of varying length may decide which parameters take part"
        case ast.Subscript(slice=index, ctx=ast.Load()) if _picks_one(index):
            return "an index may decide which parameters take part"
        case ast.Call(func=function):
            if resolver.names(function, module) & _CHOOSE:
                return "a value or a name may decide which parameters take part"
            if isinstance(function, ast.Attribute) and _is_self(function.value):
                return _foreign(resolver, function, module)
        case _:
            pass
    return None


def _is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id == "self"


def _foreign(resolver: Resolver, layer: ast.Attribute, module: Module) -> str | None:
    """Why it is not known what the layer ``self.<name>`` runs; None for torch's layers and the script's own."""
    values = resolver.values(layer, module)
    if len(values) > 1:
        return f"`{module.code(layer)}` may be one of several layers"
    for value in values:
        match value:
            case Made(_, _, External(name)) | External(name):
                if name.partition(".")[0] not in _PACKAGES:
                    return f"what `{name}` runs is not known"
            case Made() | Function() | Class() | Instance():
                pass
            case _:
                return f"what `{module.code(layer)}` runs is not known"
    return None


def _tests_type(test: ast.expr) -> bool:
    """Whether ``test`` is about the type of a value, which is the same in every step."""
    match test:
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tests_type(operand)
        case _:
            return False


def _picks_one(index: ast.expr) -> bool:
    """Whether ``index`` may take one of several values out of a list or dict, or some of them.

    With several indices at once only tensors can be indexed.
    """
    match index:
        case ast.Constant() | ast.Tuple() | ast.UnaryOp(operand=ast.Constant()):
            return False
        case ast.Slice(lower=lower, upper=upper, step=step):
            return any(bound is not None and _picks_one(bound) for bound in (lower, upper, step))
        case _:
            return True


def _is_fixed(resolver: Resolver, iterated: ast.expr, module: Module) -> bool:
    """Whether going over ``iterated`` takes the same number of passes in every step."""
    match iterated:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Attribute(
            value=ast.Attribute() as holder
        ):  # `self.transformer.h`: layers in layers
            return _is_fixed(resolver, holder, module) and Networks(resolver).is_network(
                holder, module
            )
        case ast.Call(func=ast.Name(id="enumerate" | "reversed"), args=[inner]):
            return _is_fixed(resolver, inner, module)
        case ast.Call(func=ast.Name(id="zip"), args=several, keywords=[]) if several:
            return all(_is_fixed(resolver, each, module) for each in several)
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant()]):
            return True
        case _:
            return False
