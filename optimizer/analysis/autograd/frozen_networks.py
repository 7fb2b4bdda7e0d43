"""Networks that training steps run although nothing trains them: teachers, target networks, frozen encoders.

Gradients recorded for one cost a backward pass through it whose result nobody reads. It can do without where no optimizer
has its parameters, nothing looks at their gradients, and what goes into it carries none: then its results are
constants of the step, and the gradients of all else are the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..facts import CallFact, Fact, Loop, LoopKind, Model, Optimizer
from ..loading.batches import BatchTrace
from ..networks.forward_code import make_one_of
from ..networks.models import (
    deep_copies,
    is_deep_copy,
    is_module_class,
    is_module_value,
    models_and_copies,
    unwrap,
)
from ..networks.network_layers import has_parameters, network_code
from ..networks.shared_parts import shared_part
from ..networks.trained import trained_receivers
from ..program.classes import class_attribute
from ..program.syntax import Module
from ..program.trees import walk
from ..training.steps import StepCode
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Literal, Made, Option
from .constant_values import ConstantValues
from .grad_modes import GradModes

_GRADIENTS = frozenset(
    "grad retain_grad register_hook register_post_accumulate_grad_hook register_backward_hook "
    "register_full_backward_hook register_full_backward_pre_hook".split()
)
"""Attributes by which code looks at gradients."""
_LISTED = frozenset({"append", "extend", "add", "insert"})
_TAKERS = frozenset(
    {
        "builtins.print",
        "builtins.isinstance",
        "builtins.hasattr",
        "builtins.super",
        "builtins.type",
        "copy.deepcopy",
        "torch.compile",
        "torch.save",
        "torch.nn.parallel.DataParallel",
    }
)
"""What may be given a network and neither trains it nor makes it a part of another."""


@dataclass(frozen=True, eq=False)
class FrozenForward(Fact):
    """Sibling ``statements`` of a training step that only run networks which nothing trains; ``node`` is the first of them.

    ``networks`` is the code of the networks that they call, in their order.
    """

    statements: tuple[ast.stmt, ...]
    networks: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class KeptGradients(Fact):
    """The call of a network that no optimizer is given, and ``why`` its gradients stay on all the same."""

    why: str


def find_frozen(
    resolver: Resolver,
    batches: BatchTrace,
    models: tuple[Model, ...],
    optimizers: tuple[Optimizer, ...],
    loops: tuple[Loop, ...],
    steps: tuple[StepCode, ...],
) -> tuple[tuple[FrozenForward, ...], tuple[KeptGradients, ...]]:
    """The forward passes of training steps that need no gradients, and those where that is not certain."""
    trained: dict[ast.Call, Model] = {}
    for optimizer in optimizers:
        found = trained_receivers(resolver, optimizer, copies=True)
        if not found:
            return (), ()
        trained |= {model.node: model for model in found}
    networks = (*models, *deep_copies(resolver))
    candidates = [model for model in networks if model.node not in trained]
    candidates = [model for model in candidates if has_parameters(resolver, model)]
    if not (trained and candidates):
        return (), ()
    search = _Search(resolver, batches, candidates, tuple(trained.values()), steps)
    search.run(loops)
    return tuple(search.found), tuple(search.kept)


class _Search:
    def __init__(
        self,
        resolver: Resolver,
        batches: BatchTrace,
        candidates: list[Model],
        trained: tuple[Model, ...],
        steps: tuple[StepCode, ...],
    ) -> None:
        self._resolver = resolver
        self._candidates = {model.node: model for model in candidates}
        self._trained = trained
        self._steps = steps
        self._modes = GradModes(resolver)
        self._constants = ConstantValues(resolver, batches, self._is_frozen_call)
        self._refusals: dict[ast.Call, str | None] = {}
        self.found: list[FrozenForward] = []
        self.kept: list[KeptGradients] = []

    def run(self, loops: tuple[Loop, ...]) -> None:
        calls: dict[ast.Call, CallFact] = {}
        for loop in loops:
            if loop.kind is LoopKind.TRAINING and self._trains(loop):
                calls |= {call.node: call for call in loop.forwards}
        told: set[ast.Call] = set()
        runs: dict[ast.stmt, FrozenForward] = {}
        for fact in calls.values():
            networks = self._networks(fact.node, fact.module)
            if not networks or self._modes.decided(fact.node, fact.module):
                continue
            if not self._is_given_constants(fact):
                continue  # gradients may flow through it, as those of a perceptual loss do
            why = next((r for n in networks if (r := self._refusal(n)) is not None), None)
            if why is None:
                why = self._statement_refusal(fact)
            if why == "":
                continue
            if why is None:
                statement = fact.module.statement(fact.node)
                earlier = runs[statement].networks if statement in runs else ()
                networks_run = (*earlier, ast.unparse(fact.node.func))
                runs[statement] = FrozenForward(fact.module, statement, (statement,), networks_run)
            elif networks[0].node not in told:
                told.add(networks[0].node)
                self.kept.append(KeptGradients(fact.module, fact.node, why))
        self.found = list(_joined(runs))

    def _trains(self, loop: Loop) -> bool:
        """Whether a trained network runs in ``loop``, so that losses have gradients without the others."""
        nodes = {model.node for model in self._trained}
        return any(
            model.node in nodes
            for call in loop.forwards
            for model in models_and_copies(
                self._resolver, self._resolver.values(call.node.func, call.module)
            )
        )

    def _networks(self, call: ast.Call, module: Module) -> list[Model]:
        """The networks ``call`` runs if all of them are candidates."""
        cls = module.enclosing_class(call)
        if cls is not None and is_module_class(self._resolver, Class(cls, module)):
            return []
        models = models_and_copies(self._resolver, self._resolver.values(call.func, module))
        return list(models) if all(m.node in self._candidates for m in models) else []

    def _is_frozen_call(self, call: ast.Call, module: Module) -> bool:
        networks = self._networks(call, module)
        return bool(networks) and all(self._refusal(n) in (None, "") for n in networks)

    def _is_given_constants(self, fact: CallFact) -> bool:
        given = [*fact.node.args, *(keyword.value for keyword in fact.node.keywords)]
        return all(self._constants.is_constant(value, fact.module) for value in given)

    def _statement_refusal(self, fact: CallFact) -> str | None:
        """Why this call has to keep its gradients."""
        statement = fact.module.statement(fact.node)
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if value is None or not self._constants.is_constant(value, fact.module):
            return "it runs in one statement with what may be trained"
        for step in self._steps:
            for backward in step.backwards:
                if self._constants.is_constant(backward.loss, backward.module):
                    return "a backward pass begins at what it returns"
        return None

    # What the script does with a network

    def _refusal(self, model: Model) -> str | None:
        """Why ``model`` has to keep its gradients; empty where they are off already, and nothing is to be said."""
        if model.node not in self._refusals:
            self._refusals[model.node] = ""  # asked again while it is being answered
            self._refusals[model.node] = self._find_refusal(model)
        return self._refusals[model.node]

    def _find_refusal(self, model: Model) -> str | None:
        if make_one_of(self._resolver, (model,), self._trained):
            return "an optimizer may have a part of it"
        given = [*model.node.args, *(keyword.value for keyword in model.node.keywords)]
        of_network = any(_is_reference(v) and self._is_network(v, model.module) for v in given)
        if of_network and not is_deep_copy(self._resolver, model):
            return "it is made of another network"
        common = self._common_weight(model)
        if common is not None:
            return f"its code uses `{common}`, which may be trained elsewhere"
        for module in self._resolver.project.modules:
            found = self._looks_at_gradients(module)
            calls = (self._call(call, module, model) for call in module.calls)
            found = found or next((why for why in calls if why is not None), None)
            found = found if found is not None else self._joined_to_others(module, model)
            if found is not None:
                return found
        return None

    def _common_weight(self, model: Model) -> str | None:
        """A weight or layer that is a variable of a whole file, and that the code of ``model`` reads."""
        is_copy = is_deep_copy(self._resolver, model)
        copied = frozenset(walk(model.node)) if is_copy else frozenset[ast.AST]()
        for reached in network_code(self._resolver, (model,)):
            node, module = reached.node, reached.module
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node in copied:
                continue  # the name of the network that it is a copy of
            found = module.scope(node).lookup(node.id)
            if found is None or not isinstance(found[0].node, ast.Module):
                continue
            if any(
                isinstance(v, Made) and self._is_weight(v)
                for v in self._resolver.values(node, module)
            ):
                return node.id
        return None

    def _is_weight(self, value: Made) -> bool:
        is_parameter = (
            isinstance(value.maker, External) and value.maker.name == "torch.nn.Parameter"
        )
        return is_parameter or is_module_value(self._resolver, value)

    def _looks_at_gradients(self, module: Module) -> str | None:
        for node in module.nodes_of(ast.Attribute):
            if node.attr in _GRADIENTS and not self._is_setting(node, module):
                return f"`.{node.attr}` looks at gradients ({module.place(node)})"
        return None

    def _joined_to_others(self, module: Module, model: Model) -> str | None:
        """How ``model`` comes to share parameters with what is trained, or may."""
        for node in module.nodes_of(ast.List, ast.Set, ast.Dict):
            values = node.values if isinstance(node, ast.Dict) else node.elts
            if any(self._is(value, module, model) for value in values):
                return "it is put into a list, where an optimizer may find it"
        for node in module.nodes_of(ast.Assign):
            owners = [t.value for t in node.targets if isinstance(t, ast.Attribute)]
            if self._is(node.value, module, model):
                if any(self._is_network(owner, module) for owner in owners):
                    return "it is made a part of another network"
            elif (
                not isinstance(node.value, ast.Call | ast.Constant)
                and any(self._holder(owner, module, model) for owner in owners)
                and not self._is_setting_of_layers(node.value, module)
            ):
                return f"`{module.code(node.value)}`, which becomes a part of it, may be trained elsewhere ({module.place(node)})"
        part = shared_part(self._resolver, module, lambda node: self._is(node, module, model))
        if part is not None:
            where = module.place(part)
            return f"`{module.code(part)}`, a part of it, may be trained elsewhere ({where})"
        return None

    def _is_setting_of_layers(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` has no weight: a width, an option, a class of layers (``self.norm_layer = norm_layer``)."""
        if is_number(self._resolver, node, module):
            return True
        values = self._resolver.values(node, module)
        return bool(values) and all(
            isinstance(value, Literal | Option | Class)
            or (isinstance(value, External) and value.name.startswith("torch."))
            for value in values
        )

    def _is_network(self, node: ast.expr, module: Module) -> bool:
        cls = module.enclosing_class(node)
        if cls is not None and isinstance(node, ast.Name) and node.id == "self":
            return is_module_class(self._resolver, Class(cls, module))
        values = unwrap(self._resolver, self._resolver.values(node, module))
        return any(is_module_value(self._resolver, value) for value in values)

    def _is_setting(self, node: ast.Attribute, module: Module) -> bool:
        """Whether ``node`` only forgets a gradient: ``p.grad = None``."""
        parent = module.parents[node]
        return (
            isinstance(parent, ast.Assign)
            and node in parent.targets
            and isinstance(parent.value, ast.Constant)
        )

    def _is(self, node: ast.expr, module: Module, model: Model) -> bool:
        if not _is_reference(node):
            return False
        found = models_and_copies(self._resolver, self._resolver.values(node, module))
        return any(one.node is model.node for one in found)

    def _holder(self, node: ast.expr, module: Module, model: Model) -> bool:
        """Whether ``node`` is ``model`` or a part of it: ``model.layers[0]``."""
        holder = node
        while not self._is(holder, module, model):
            if not isinstance(holder, ast.Attribute | ast.Subscript | ast.Call):
                return False
            holder = holder.func if isinstance(holder, ast.Call) else holder.value
        return True

    def _call(self, call: ast.Call, module: Module, model: Model) -> str | None:
        function = call.func
        if isinstance(function, ast.Attribute):
            if function.attr in {"parameters", "named_parameters"}:
                return self._parameters(call, function.value, module, model)
            if function.attr == "requires_grad_" and self._is(function.value, module, model):
                return ""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(self._is(value, module, model) for value in given):
            return None
        for callee in self._resolver.values(function, module):
            match callee:
                case External(name) if name in _TAKERS:
                    continue
                case Function():
                    continue
                case Class() if not is_module_class(self._resolver, callee) and any(
                    isinstance(v, Function)
                    for v in class_attribute(self._resolver, callee, "__init__")
                ):
                    continue
                case _:
                    return f"`{ast.unparse(function)}` is given it ({module.place(call)})"
        return None

    def _parameters(
        self, call: ast.Call, receiver: ast.expr, module: Module, model: Model
    ) -> str | None:
        """What is done with parameters of ``model``: a loop may read, write or count them, nothing may collect them."""
        if not self._holder(receiver, module, model):
            return None
        user = module.parents[call]
        if isinstance(user, ast.Call) and ast.unparse(user.func) in {"zip", "enumerate"}:
            user = module.parents[user]
        where = module.place(call)
        if isinstance(user, ast.For):
            inside = list(walk(user))
            if any(isinstance(n, ast.Attribute) and n.attr in _LISTED for n in inside):
                return f"its parameters are collected ({where})"
            if any(
                isinstance(n, ast.Attribute) and n.attr in {"requires_grad", "requires_grad_"}
                for n in inside
            ):
                return ""
            return None
        if isinstance(user, ast.comprehension):
            listed = module.parents[user]
            if isinstance(listed, ast.ListComp) and _is_cut(listed.elt):
                return None  # a list for `torch._foreach_lerp_` and the like, as a loop would go over it
            around = module.parents[listed]
            if isinstance(around, ast.Call) and ast.unparse(around.func) in {"sum", "any", "all"}:
                return None
        return f"its parameters go elsewhere ({where})"


def _is_cut(node: ast.expr) -> bool:
    """Whether nothing that is trained as ``node`` gets the gradients of the parameter it is taken from: ``p.data``."""
    return isinstance(node, ast.Attribute) and node.attr == "data"


def _is_reference(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Starred)


def _joined(runs: dict[ast.stmt, FrozenForward]) -> Iterator[FrozenForward]:
    """Neighbouring statements as one."""
    done: set[ast.stmt] = set()
    for statement, first in runs.items():
        if statement in done:
            continue
        block = first.module.block(statement)
        start = block.index(statement)
        while start > 0 and block[start - 1] in runs:
            start -= 1
        end = start
        while end < len(block) and block[end] in runs:
            end += 1
        together = tuple(block[start:end])
        done.update(together)
        networks = (network for s in together for network in runs[s].networks)
        yield FrozenForward(first.module, together[0], together, tuple(dict.fromkeys(networks)))
