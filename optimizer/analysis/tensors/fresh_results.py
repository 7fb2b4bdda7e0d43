"""Which expressions are new tensors that nothing else reads: the next operation may overwrite them.

A tensor may be overwritten if it has memory of its own, is used once, and is not kept for the backward pass by what computed
it. Convolutions, linear layers, normalizations and pools keep their input and not their output
(https://github.com/pytorch/pytorch/blob/main/tools/autograd/derivatives.yaml); sigmoid, tanh, exp or ReLU keep their output.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..program.classes import first_party_bases
from ..program.name_uses import NameUses
from ..program.reaching import is_read, reaching_bindings
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module
from ..torch_names import REWEIGHTING
from ..values.resolver import Resolver
from ..values.values import Class, External, Instance, Made, Value

_DIMENSIONS = ("1d", "2d", "3d")
_SAFE_LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in (
        *(f"{kind}{n}" for kind in ("Conv", "ConvTranspose", "BatchNorm") for n in _DIMENSIONS),
        # Pools of one dimension return views.
        *(
            f"{kind}Pool{n}"
            for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax")
            for n in ("2d", "3d")
        ),
        "SyncBatchNorm",
        "GroupNorm",
        "LayerNorm",
        "Upsample",
    )
)
_SAFE_FUNCTIONS = frozenset(
    {
        "torch.add",
        "torch.sub",
        "torch.cat",
        *(f"torch.nn.functional.conv{n}" for n in _DIMENSIONS),
        *(f"torch.nn.functional.conv_transpose{n}" for n in _DIMENSIONS),
        *(f"torch.nn.functional.{kind}_pool{n}" for kind in ("max", "avg") for n in ("2d", "3d")),
        "torch.nn.functional.batch_norm",
        "torch.nn.functional.group_norm",
        "torch.nn.functional.layer_norm",
    }
)
_LINEAR = frozenset({"torch.nn.Linear", "torch.nn.functional.linear"})
_OF_SEQUENCES = (
    "torch.nn.Embedding",
    "torch.nn.MultiheadAttention",
    "torch.nn.Transformer",
    "torch.nn.LSTM",
    "torch.nn.GRU",
    "torch.nn.RNN",
    "torch.nn.functional.embedding",
)
_REPEATING = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Lambda,
    ast.GeneratorExp,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
)


class FreshResults:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._uses = NameUses()
        self._linear_is_safe = not any(
            name.startswith(_OF_SEQUENCES)
            for module in resolver.project.modules
            for call in module.calls
            for name in resolver.names(call.func, module)
        )

    def layer_objection(self, layer: ast.expr, module: Module) -> str | None:
        """Why the result of ``layer`` must not be overwritten, None when it may be."""
        return self.values_objection(self._resolver.values(layer, module))

    def values_objection(
        self, layers: Iterable[Value], within: frozenset[Value] = frozenset()
    ) -> str | None:
        """As :meth:`layer_objection`, for what a layer may be.

        ``within`` are the layers it is part of: ``net = nn.Sequential(first, net)`` leads back to itself.
        """
        others = (layer for layer in layers if layer not in within)
        return next(filter(None, (self._value_objection(each, within) for each in others)), None)

    def objection(self, tensor: ast.expr, module: Module) -> str | None:
        """Why the tensor that ``tensor`` computes must not be overwritten where it is used, None when it may be."""
        match tensor:
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                return None
            case ast.Call():
                return self._result_objection(tensor, module)
            case ast.Name():
                return self._variable_objection(tensor, module)
            case _:
                return f"`{ast.unparse(tensor)}` may be read again"

    def _result_objection(self, call: ast.Call, module: Module) -> str | None:
        if any(keyword.arg in {"out", None} for keyword in call.keywords):
            return "its input may be written to memory of another tensor"
        if self._is_replaced(call.func, module):
            return f"a derived class replaces `{ast.unparse(call.func)}`"
        for value in self._resolver.values(call.func, module):
            if isinstance(value, External):
                if value.name in _SAFE_FUNCTIONS:
                    continue
                if value.name in _LINEAR and self._linear_is_safe:
                    continue
                return f"what `{ast.unparse(call.func)}` returns may be a view, or be kept for the backward pass"
            why = self._value_objection(value, frozenset())
            if why is not None:
                return why
        return None

    def _is_replaced(self, layer: ast.expr, module: Module) -> bool:
        """Whether ``self.norm`` is assigned again in a class derived from that of ``self``."""
        if not isinstance(layer, ast.Attribute):
            return False
        owners = self._resolver.values(layer.value, module)
        classes = {owner.cls.node for owner in owners if isinstance(owner, Instance)}
        return any(
            classes & {base.node for base in first_party_bases(self._resolver, Class(cls, other))}
            for other in self._resolver.project.modules
            for cls, name in other.self_assignments
            if name == layer.attr and cls not in classes
        )

    def _value_objection(self, value: Value, within: frozenset[Value]) -> str | None:
        if not (isinstance(value, Made) and isinstance(value.maker, External)):
            return "what computes its input cannot be told"
        name, given = value.maker.name, value.call.args
        if name in _SAFE_LAYERS or (name in _LINEAR and self._linear_is_safe):
            return None
        if given and (name in REWEIGHTING or name == "torch.nn.Sequential"):
            last = given[0] if name in REWEIGHTING else given[-1]
            if not isinstance(last, ast.Starred):
                layers = self._resolver.values(last, value.module)
                return self.values_objection(layers, within | {value})
        if name in _LINEAR:
            return "the linear layer before it may return a view"
        return f"what `{name}` returns may be a view, or be kept for the backward pass"

    # Variables

    def _variable_objection(self, use: ast.Name, module: Module) -> str | None:
        again = f"`{use.id}` may be read again"
        scope = module.scope(use)
        found = scope.lookup(use.id)
        function = module.function(use)
        if found is None or function is None or found[0].node is not function:
            return again
        if not _keeps_its_mode(ast.unparse(function)):
            return f"`{function.name}` changes whether gradients are recorded, or reads its own variables by name"
        for binding in reaching_bindings(module, found[0], found[1], scope, use):
            why = self._binding_objection(binding, use, module)
            if why is not None:
                return why
        return None

    def _binding_objection(self, binding: Binding, use: ast.Name, module: Module) -> str | None:
        again = f"`{use.id}` may be read again"
        if any(
            other is not use for other in self._uses.of(binding, module) if is_read(other, module)
        ):
            return again
        if isinstance(binding.node, ast.arg):
            return f"`{use.id}` belongs to the caller"
        statement = module.statement(binding.node)
        if any(loop not in module.ancestors(binding.node) for loop in _repeats(use, module)):
            return again
        if _contexts(statement, module) != _contexts(use, module):
            return f"`{use.id}` is computed in another context (`with`)"
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add | ast.Sub):
            # `out += shortcut`: the sum overwrites what `out` was.
            assert isinstance(statement.target, ast.Name)
            return self._variable_objection(statement.target, module)
        source = binding.source
        is_plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if not is_plain or not isinstance(source, Assigned) or source.path:
            return again
        return self.objection(source.value, module)


def _repeats(node: ast.AST, module: Module) -> Iterator[ast.AST]:
    """What around ``node``, within its function, may run it again or later."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if isinstance(ancestor, _REPEATING):
            yield ancestor


def _contexts(node: ast.AST, module: Module) -> list[ast.AST]:
    return [a for a in module.ancestors(node) if isinstance(a, ast.With | ast.AsyncWith)]


def _keeps_its_mode(code: str) -> bool:
    return not any(word in code for word in ("set_grad_enabled", "locals()", "exec(", "vars()"))
