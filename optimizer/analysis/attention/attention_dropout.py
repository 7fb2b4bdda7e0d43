"""The dropout of attention that is written out, as ``scaled_dot_product_attention`` takes it: a share, and zero in evaluation."""

from __future__ import annotations

import ast
from functools import cached_property

from ..calls.signatures import call_argument
from ..networks.models import is_module_value
from ..program.syntax import Module
from ..values.outside_writes import outside_values
from ..values.resolver import Resolver
from ..values.values import External, Literal, Made, Value
from .attention_chains import DROPOUT_LAYER
from .attention_masks import choice_operand


class AttentionDropout:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def objection(self, call: ast.Call, module: Module) -> str | None:
        """Why ``call`` may be something else than dropout, or its share cannot be told; None where it is a function of PyTorch."""
        if self._resolver.names(call.func, module):
            return None
        code = module.code(call.func)
        if not isinstance(call.func, ast.Attribute | ast.Name):
            return f"`{code}` has no name"
        if not all(map(_is_dropout, self._resolver.values(call.func, module))):
            return f"`{code}` is not dropout in all cases"
        if isinstance(call.func, ast.Attribute):
            for value, owner in outside_values(self._resolver, call.func.attr):
                layers = self._resolver.values(value, owner) if value is not None else ()
                if not layers or not all(map(_is_dropout, layers)):
                    where = f" ({owner.place(value)})" if value else ""
                    return f"another layer is put in the place of `{code}`{where}"
        return None

    def code(self, call: ast.Call, module: Module) -> str | None:
        """The share to pass; None where nothing is dropped."""
        if self._resolver.maker_names(call.func, module) == DROPOUT_LAYER:
            layer = module.code(call.func)
            instance, _, _ = layer.rpartition(".")
            owner = layer if not instance or self._modes_are_set_apart else instance
            return f"{layer}.p if {owner}.training else 0.0"
        share, training = call_argument(call, "p", 1), call_argument(call, "training", 2)
        training = training or call_argument(call, "train", 2)
        code = "0.5" if share is None else choice_operand(share, module)
        if isinstance(training, ast.Constant) and training.value is False:
            return None
        if training is not None and not isinstance(training, ast.Constant):
            return f"{code} if {choice_operand(training, module)} else 0.0"
        return code

    def is_zero(self, call: ast.Call, module: Module) -> bool:
        """Whether dropout does nothing, whoever makes the network."""
        if self._resolver.maker_names(call.func, module) != DROPOUT_LAYER:
            share = call_argument(call, "p", 1)
            return share is not None and self._is_zero_number(share, module)
        layers = [v for v in self._resolver.values(call.func, module) if isinstance(v, Made)]
        shares = [(call_argument(v.call, "p", 0), v.module) for v in layers]
        return bool(shares) and all(
            share is not None and self._is_zero_number(share, owner) for share, owner in shares
        )

    def _is_zero_number(self, node: ast.expr, module: Module) -> bool:
        values = self._resolver.values(node, module)
        return bool(values) and all(isinstance(v, Literal) and v.value == 0 for v in values)

    @cached_property
    def _modes_are_set_apart(self) -> bool:
        """Whether a layer may train while the network around it does not: the script sets the mode of something that is not seen to be
        a whole network, as for Monte Carlo dropout."""
        for module in self._resolver.project.modules:
            for call in (*module.calls_named("train"), *module.calls_named("eval")):
                if isinstance(call.func, ast.Attribute):
                    values = self._resolver.values(call.func.value, module)
                    if not values or any(self._may_be_dropout(value) for value in values):
                        return True
            for node in module.nodes_of(ast.Attribute):
                if node.attr == "training" and isinstance(node.ctx, ast.Store):
                    return True
        return False

    def _may_be_dropout(self, value: Value) -> bool:
        return _is_dropout(value) or not is_module_value(self._resolver, value)


def _is_dropout(value: Value) -> bool:
    return (
        isinstance(value, Made)
        and isinstance(value.maker, External)
        and value.maker.name in DROPOUT_LAYER
    )
