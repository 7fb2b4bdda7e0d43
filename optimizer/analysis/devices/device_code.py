"""Writes the code that makes a tensor on its device."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...rewriting.edits import FileEdit
from ..calls.signatures import call_argument
from ..editing.references import Reference, reference
from ..editing.splice import Piece, added_argument, bounds, spliced, without_keyword, without_method
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from .host_data import HostData
from .legacy_tensors import DEFAULT_DTYPE, legacy_dtype, takes_sizes

_TAKES_DTYPE = frozenset(
    f"torch.{n}" for n in "zeros ones empty zeros_like ones_like empty_like".split()
)
"""Factories that fill any dtype with the same values: the cast behind them can be part of them."""
_FILLED_WITH: dict[object, str] = {0: "zeros", 1: "ones"}


_CASTS = {
    **{"float": "float32", "double": "float64", "long": "long", "int": "int32"},
    **{"bool": "bool", "half": "float16", "bfloat16": "bfloat16"},
}
"""The methods that cast, and to what."""
_SYNONYMS = {**_CASTS, "int64": "long"}
"""What ``torch.float`` and ``torch.int64`` are told as."""


@dataclass(frozen=True)
class NewCode:
    """The code of an expression; ``edits`` add the imports it needs. ``dropped`` are the nodes it does without."""

    code: str
    edits: tuple[FileEdit, ...] = ()
    dropped: tuple[ast.AST, ...] = ()


class DeviceCode:
    """Writes for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._host = HostData(resolver)

    def constructed(
        self,
        root: ast.expr,
        factory: ast.Call,
        steps: tuple[ast.Call, ...],
        device: str,
        module: Module,
        move: ast.Call | None = None,
        dtype: ast.expr | None = None,
    ) -> NewCode | str:
        """The code of ``root``, in which ``factory`` is followed by ``steps`` and ``move``, on ``device``.

        In words what keeps it from being written, if anything does.
        """
        legacy = legacy_dtype(self._resolver.names(factory.func, module))
        if legacy is not None:
            step = steps[0] if steps else None
            made = self.legacy(factory, step, legacy, device, module)
            if made is None:
                return f"what `{ast.unparse(factory)}` is given may be sizes or data"
            replaced, new = made
            start, end = bounds(module, replaced)
            pieces, edits = [Piece(start, end, new.code)], new.edits
            steps = tuple(s for s in steps if s is not replaced)
            repeated = [s for s in steps[:1] if self._cast_to(s, module) == legacy]
            pieces += [without_method(module, s) for s in repeated]
            steps = steps[len(repeated) :]
            if not steps and dtype is not None and self._dtype_named(dtype, module) == legacy:
                dtype = None  # it is made of that type
            return self._finished(root, pieces, edits, steps, device, move, dtype, module)
        argument, edits = f"device={device}", ()
        cast = self._cast(factory, steps, module) if dtype is None else None
        if cast is not None:
            argument, edits = f"dtype={cast.code}, {argument}", cast.edits
        elif dtype is not None and self._takes_dtype(factory, steps, module):
            argument = f"dtype={self._dtype_code(dtype, move, module)}, {argument}"
            dtype = None
        added = added_argument(module, factory, argument)
        if added is None:
            return "comments stand where the device would be written; left on the host"
        pieces = [added]
        if cast is not None:
            pieces.append(without_method(module, steps[0]))
            steps = ()
        pieces += [
            without_keyword(module, factory, k) for k in factory.keywords if k.arg == "pin_memory"
        ]
        return self._finished(root, pieces, edits, steps, device, move, dtype, module)

    def _dtype_named(self, dtype: ast.expr, module: Module) -> str | None:
        """The one dtype that ``torch.float`` or ``torch.float32`` is, as legacy types are told."""
        names = {name.removeprefix("torch.") for name in self._resolver.names(dtype, module)}
        found = {_SYNONYMS.get(name, name) for name in names}
        return found.pop() if len(found) == 1 else None

    def _takes_dtype(self, factory: ast.Call, steps: tuple[ast.Call, ...], module: Module) -> bool:
        """Whether a cast right behind ``factory`` can be part of it."""
        names = self._resolver.names(factory.func, module)
        return names <= _TAKES_DTYPE and not steps and call_argument(factory, "dtype") is None

    def _cast(
        self, factory: ast.Call, steps: tuple[ast.Call, ...], module: Module
    ) -> Reference | None:
        """The dtype of ``torch.zeros(n).long()``, and of ``torch.tensor(0).float()``."""
        if len(steps) != 1:
            return None
        dtype = self._cast_to(steps[0], module)
        if dtype is None:
            return None
        names = self._resolver.names(factory.func, module)
        is_small = names == frozenset({"torch.tensor"}) and _is_small_int(factory)
        if not is_small and not self._takes_dtype(factory, (), module):
            return None
        return reference(module, f"torch.{dtype}")

    def _cast_to(self, step: ast.Call, module: Module) -> str | None:
        """The dtype that ``.long()`` or ``.type(torch.LongTensor)`` makes of a tensor."""
        dtype, method = self._type_named(step, module), step.func
        if dtype is None and isinstance(method, ast.Attribute) and not (step.args or step.keywords):
            return _CASTS.get(method.attr)
        return dtype

    def _type_named(self, step: ast.Call, module: Module) -> str | None:
        """The dtype of ``x.type(torch.LongTensor)``, which is a type of the host: the cast would move the tensor back there."""
        if not (isinstance(step.func, ast.Attribute) and step.func.attr == "type" and step.args):
            return None
        given = step.args[0]
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            return legacy_dtype(frozenset({given.value}))
        return legacy_dtype(self._resolver.names(given, module))

    def _finished(
        self,
        root: ast.expr,
        pieces: list[Piece],
        edits: tuple[FileEdit, ...],
        steps: tuple[ast.Call, ...],
        device: str,
        move: ast.Call | None,
        dtype: ast.expr | None,
        module: Module,
    ) -> NewCode:
        for step in steps:
            named = self._type_named(step, module)
            if _moves_to(step, device, module):
                pieces.append(without_method(module, step))
            elif named is not None:
                kind = reference(module, f"torch.{named}")
                gone = without_method(module, step)
                pieces.append(Piece(gone.start, gone.end, f".to({kind.code})"))
                edits = (*edits, *kind.edits)
        if move is not None and dtype is None:
            pieces.append(without_method(module, move))
        elif move is not None and dtype is not None and getattr(move.func, "attr", "") == "to":
            start = bounds(module, move.func)[1]
            pieces.append(Piece(start, bounds(module, move)[1], f"({module.code(dtype)})"))
        return NewCode(spliced(module, root, pieces), edits)

    def _dtype_code(self, dtype: ast.expr, move: ast.Call | None, module: Module) -> str:
        code = module.code(dtype)
        is_like = move is not None and getattr(move.func, "attr", "") == "type_as"
        return f"{code}.dtype" if is_like else code

    def legacy(
        self, call: ast.Call, step: ast.Call | None, dtype: str, device: str, module: Module
    ) -> tuple[ast.Call, NewCode] | None:
        """A typed constructor in today's words: the part it replaces (with ``.fill_()`` behind it) and its code."""
        sizes = takes_sizes(self._host, call, module)
        if sizes is None:
            return None
        if not sizes:
            return call, self._of_data(call.args[0], dtype, device, module)
        method = step.func.attr if step and isinstance(step.func, ast.Attribute) else ""
        if step is not None and method == "fill_" and len(step.args) == 1:
            value = step.args[0]
            filled = _FILLED_WITH.get(value.value) if isinstance(value, ast.Constant) else None
            if filled is None:
                return step, self._full(call, value, dtype, device, module)
            return step, self._sized(filled, call, dtype, device, module)
        if step is not None and method == "zero_":
            return step, self._sized("zeros", call, dtype, device, module)
        return call, self._sized("empty", call, dtype, device, module)

    def _sized(self, name: str, call: ast.Call, dtype: str, device: str, module: Module) -> NewCode:
        sizes = ", ".join(module.code(argument) for argument in call.args) or "0"
        return self._call(name, sizes, dtype, device, module, says_dtype=dtype != DEFAULT_DTYPE)

    def _full(
        self, call: ast.Call, value: ast.expr, dtype: str, device: str, module: Module
    ) -> NewCode:
        codes = [module.code(argument) for argument in call.args] or ["0"]
        is_shape = len(call.args) == 1 and self._host.is_shape(call.args[0])
        size = codes[0] if is_shape else f"({', '.join(codes)}{',' if len(codes) == 1 else ''})"
        is_float = isinstance(value, ast.Constant) and isinstance(value.value, float)
        says_dtype = not (is_float and dtype == DEFAULT_DTYPE)
        arguments = f"{size}, {module.code(value)}"
        return self._call("full", arguments, dtype, device, module, says_dtype=says_dtype)

    def _of_data(self, data: ast.expr, dtype: str, device: str, module: Module) -> NewCode:
        shape = self._filled_shape(data, module)
        if shape is None or not isinstance(data, ast.Call):
            code = module.code(data)
            says_dtype = _inferred_dtype(data) != dtype
            return self._call("tensor", code, dtype, device, module, says_dtype=says_dtype)
        name = next(iter(self._resolver.names(data.func, module))).rpartition(".")[2]
        new = self._call(
            name, module.code(shape), dtype, device, module, says_dtype=dtype != DEFAULT_DTYPE
        )
        return NewCode(new.code, new.edits, (data.func,))

    def _filled_shape(self, data: ast.expr, module: Module) -> ast.expr | None:
        """The shape of ``np.ones(shape)`` or ``np.zeros(shape)``, which torch can make itself."""
        if not isinstance(data, ast.Call) or len(data.args) != 1 or data.keywords:
            return None
        names = self._resolver.names(data.func, module)
        if names not in (frozenset({"numpy.ones"}), frozenset({"numpy.zeros"})):
            return None
        shape = data.args[0]
        plain = isinstance(shape, ast.Tuple) or self._host.is_shape(shape)
        return shape if plain or self._host.is_int(shape, module) else None

    def _call(
        self,
        name: str,
        arguments: str,
        dtype: str,
        device: str,
        module: Module,
        *,
        says_dtype: bool,
    ) -> NewCode:
        function, kind = reference(module, f"torch.{name}"), reference(module, f"torch.{dtype}")
        said = f", dtype={kind.code}" if says_dtype else ""
        edits = (*function.edits, *(kind.edits if says_dtype else ()))
        return NewCode(f"{function.code}({arguments}{said}, device={device})", edits)


def _is_small_int(factory: ast.Call) -> bool:
    """Whether ``torch.tensor(7)`` makes a whole number that is the same in every type."""
    match factory:
        case ast.Call(args=[ast.Constant(int(number))], keywords=[]):
            return not isinstance(number, bool) and number <= 2**7
        case _:
            return False


def _inferred_dtype(data: ast.expr) -> str | None:
    """The dtype ``torch.tensor`` gives a list of numbers, None when they are not written out."""
    numbers = [node.value for node in walk(data) if isinstance(node, ast.Constant)]
    written_out = all(
        isinstance(node, ast.List | ast.Tuple | ast.UnaryOp | ast.USub | ast.Constant | ast.Load)
        for node in walk(data)
    )
    if not numbers or not written_out:
        return None
    if all(type(number) is int for number in numbers):
        return "long"
    return "float32" if all(type(n) in {int, float} for n in numbers) else None


def _moves_to(step: ast.Call, device: str, module: Module) -> bool:
    """Whether ``step`` does nothing but move to a GPU, or to ``device``: ``.cuda()``, ``.to(device)``."""
    if not isinstance(step.func, ast.Attribute):
        return False
    if step.func.attr == "cuda":
        return True
    is_move = step.func.attr == "to" and len(step.args) == 1 and not step.keywords
    return is_move and module.code(step.args[0]) == device
