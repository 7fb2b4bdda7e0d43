"""Which values are certainly float32 in code that runs under autocast.

What autocast computes in float32 by itself is in
https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-autocast-to-float32.
"""

from __future__ import annotations

import ast

from ..networks.buffers import is_buffer
from ..networks.called_layers import called_layers, library_layer
from ..program.syntax import Module, last_identifier
from ..tensors.returned_values import returned_by
from ..values.resolver import Resolver
from .float_values import FloatTrace

_IN_FLOAT32 = frozenset(
    "acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh tan softplus softmax log_softmax "
    "softmin logsumexp layer_norm group_norm rms_norm norm vector_norm matrix_norm prod cumprod cumsum sum cdist dist "
    "cosine_similarity normalize".split()
)
_FLOAT32_LAYERS = frozenset(
    "Softmax LogSoftmax Softmin Softplus LayerNorm GroupNorm RMSNorm CosineSimilarity".split()
)
"""Functions, methods and layers that autocast runs in float32."""
_MADE = frozenset(
    "arange empty eye full linspace logspace normal ones rand randint randn randperm tensor zeros".split()
)
"""Functions whose result is of a type of their own."""
_SAME_TYPE = frozenset(
    "abs add addcdiv addcmul cat clamp clip concat cos deg2rad detach diag diag_embed diagonal div "
    "empty_like expand expand_as flatten flip full_like gather index_select lgamma masked_fill max maximum mean min "
    "minimum mul narrow neg ones_like permute rand_like randn_like relu repeat requires_grad_ reshape roll select sigmoid sin "
    "softsign sqrt square squeeze stack sub t tanh transpose tril triu unbind unsqueeze view view_as where zeros_like "
    "std var".split()
)
"""Functions and methods whose result is of the type of their operands."""

_FULL = frozenset(f"torch.{name}" for name in ("float", "float32", "double", "float64"))


class Float32Values(FloatTrace):
    """``through_casts``: what is cast to float32 counts, whatever it was made of.

    Without it only what weights and constants are made of does: a batch has often been measured, or been through a network.
    ``by_autocast``: so does what autocast computes in float32 on a GPU. On a CPU it leaves a softmax in half precision.
    """

    def __init__(
        self, resolver: Resolver, *, through_casts: bool, by_autocast: bool = True
    ) -> None:
        super().__init__(resolver, {})
        self._through_casts = through_casts
        self._by_autocast = through_casts and by_autocast
        self._called: set[ast.Call] = set()

    def is_other(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` certainly is float32, or no floating-point number at all."""
        match node:
            case ast.Constant():
                return True
            case ast.UnaryOp(operand=operand) | ast.Starred(value=operand):
                return self.is_other(operand, module)
            case ast.BinOp(op=ast.Pow()) if self._by_autocast:
                return True
            case ast.BinOp(left=left, op=op, right=right):
                return not isinstance(op, ast.MatMult) and self._all([left, right], module)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._all(elements, module)
            case ast.IfExp(body=body, orelse=orelse):
                return self._all([body, orelse], module)
            case ast.Subscript(value=value):
                return self.is_other(value, module)
            case ast.Call() if (found := self._call(node, module)) is not None:
                return found
            case ast.Attribute(attr=name) if name in {"shape", "device", "dtype"}:
                return True
            case ast.Attribute() if is_buffer(self._resolver, node, module):
                return True
            case _:
                return super().is_other(node, module)

    def _gives_batches(self, node: ast.expr, module: Module) -> bool:
        return self._through_casts and super()._gives_batches(node, module)

    def _all(self, nodes: list[ast.expr], module: Module) -> bool:
        return all(self.is_other(node, module) for node in nodes)

    def _call(self, call: ast.Call, module: Module) -> bool | None:
        """Whether the result of ``call`` is float32; None where the call is none that is known here."""
        names = self._resolver.names(call.func, module)
        function = last_identifier(call.func) or ""
        given = [*call.args, *(k.value for k in call.keywords if k.arg not in {"dim", "device"})]
        if not names and (returned := self._returned(call, module)) is not None:
            return returned
        if not names and isinstance(call.func, ast.Attribute):
            given = [call.func.value, *given]
            if self._is_cast(call, module):
                return self._through_casts or self.is_other(call.func.value, module)
        elif not names or not all(
            n.partition(".")[0] in {"torch", "math", "builtins"} for n in names
        ):
            return None
        elif all(n.startswith("math.") or n in {"builtins.float", "builtins.len"} for n in names):
            return True
        elif function in _MADE:
            dtype = next((k.value for k in call.keywords if k.arg == "dtype"), None)
            return dtype is None or self._is_full(dtype, module)
        if function in _IN_FLOAT32:
            return self._by_autocast or self._all(given, module)
        return self._all(given, module) if function in _SAME_TYPE else None

    def _returned(self, call: ast.Call, module: Module) -> bool | None:
        """Whether what functions and layers return to ``call`` is float32; None where it calls none."""
        functions = self._resolver.callees(call, module)
        if functions:
            return call not in self._called and all(
                value is not None and self._inside(call, value, function.module)
                for function in functions
                for value in returned_by(function) or [None]
            )
        layers = {
            library_layer(self._resolver, value)
            for value in called_layers(self._resolver, call.func, module)
        }
        if not layers or None in layers:
            return None
        if layers <= _FLOAT32_LAYERS:
            return self._by_autocast or self._all(call.args, module)
        return False

    def _inside(self, call: ast.Call, value: ast.expr, module: Module) -> bool:
        self._called.add(call)
        found = self.is_other(value, module)
        self._called.discard(call)
        return found

    def _is_cast(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is ``x.float()``, ``x.double()`` or ``x.to(torch.float32)``."""
        function = last_identifier(call.func)
        if function in {"float", "double"}:
            return True
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return function in {"to", "type"} and any(self._is_full(one, module) for one in given)

    def _is_full(self, dtype: ast.expr, module: Module) -> bool:
        names = self._resolver.names(dtype, module)
        return bool(names) and names <= _FULL
