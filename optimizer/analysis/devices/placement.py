"""Where tensors are put: which calls move to a device, and which expressions hold something on one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress

from ..calls.signatures import argument_for, call_argument, gathered_for
from ..facts import DeviceKind
from ..program.classes import kept_as
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Parameter
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import External, Made
from .devices import device_kind

_ON_GPU = frozenset({DeviceKind.CUDA, DeviceKind.OTHER, DeviceKind.CHOSEN})
_SETTINGS = frozenset({"builtins.dict", "types.SimpleNamespace", "argparse.Namespace"})
"""What keeps what it is given, a device's name for one."""
_HOST_LIBRARIES = ("os.", "pathlib.", "glob.", "json.", "math.", "builtins.len", "builtins.str")
_DEFAULT_DEVICE = frozenset({"torch.set_default_device", "torch.set_default_tensor_type"})


def move_target(resolver: Resolver, call: ast.Call, module: Module) -> DeviceKind | None:
    """The device ``x.to(..)``, ``x.cuda(..)`` or ``x.type(..)`` moves ``x`` to; None when it moves nothing.

    ``UNKNOWN`` where the argument of ``to`` may be a device or something else.
    """
    if not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "cuda":
        return DeviceKind.CUDA
    if call.func.attr == "to":
        target = call_argument(call, "device", 0)
        if target is None or _is_dtype(resolver, target, module):
            return None
        return device_kind(resolver, target, module)
    if call.func.attr == "type":
        target = call_argument(call, "dtype", 0)
        names = resolver.names(target, module) if target is not None else frozenset[str]()
        on_gpu = {name.startswith("torch.cuda.") for name in names}
        if True in on_gpu:
            return DeviceKind.CHOSEN if False in on_gpu else DeviceKind.CUDA
    return None


def _is_dtype(resolver: Resolver, expression: ast.expr, module: Module) -> bool:
    names = resolver.names(expression, module)
    return bool(names) and all(name.startswith("torch.") for name in names)


def puts_on_gpu(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether the result of ``call`` itself may be on a GPU: a move to one, or ``device=`` one."""
    if move_target(resolver, call, module) in _ON_GPU:
        return True
    if _makes_no_tensor(resolver, call, module):
        return False
    device = call_argument(call, "device")
    if device is not None and device_kind(resolver, device, module) in _ON_GPU:
        return True
    return any(n.startswith("torch.cuda.") for n in resolver.maker_names(call, module)) and any(
        name.endswith("Tensor") for name in resolver.names(call.func, module)
    )


def _makes_no_tensor(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` gives a path, a text or settings: ``os.path.join(..)``, ``SimpleNamespace(device="cuda")``."""
    names = resolver.names(call.func, module)
    return bool(names) and all(n in _SETTINGS or n.startswith(_HOST_LIBRARIES) for n in names)


def on_gpu(resolver: Resolver, expression: ast.expr, module: Module) -> ast.expr | None:
    """The call that puts (a part of) ``expression`` on a GPU, None when there is none in sight."""
    return _GpuTrace(resolver).find(expression, module)


def default_device_call(resolver: Resolver, module: Module) -> ast.Call | None:
    """A call in ``module`` that makes a GPU the default for every new tensor."""
    for call in module.calls:
        if call.args and resolver.names(call.func, module) & _DEFAULT_DEVICE:
            kind = device_kind(resolver, call.args[0], module)
            names = set(resolver.names(call.args[0], module))
            with suppress(LookupError):
                names.add(str(resolver.literal(call.args[0], module)))
            if kind in _ON_GPU or any(name.startswith("torch.cuda.") for name in names):
                return call
    return None


class _GpuTrace:
    """Follows names, attributes, parameters and results back to a call that puts them on a GPU."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._seen: set[ast.AST] = set()

    def find(self, node: ast.expr, module: Module) -> ast.expr | None:
        if node in self._seen:
            return None
        self._seen.add(node)
        match node:
            case ast.Call():
                return self._call(node, module)
            case ast.Name():
                return self._name(node, module)
            case ast.Attribute():
                return self._attribute(node, module)
            case ast.Subscript() | ast.Starred() | ast.NamedExpr():
                return self.find(node.value, module)
            case ast.Tuple() | ast.List():
                return self._any(node.elts, module)
            case ast.Dict():
                return self._any(node.values, module)
            case ast.IfExp():
                return self._any([node.body, node.orelse], module)
            case ast.BinOp():
                return self._any([node.left, node.right], module)
            case ast.ListComp() | ast.GeneratorExp():
                return self.find(node.elt, module)
            case _:
                return None

    def _any(self, nodes: list[ast.expr], module: Module) -> ast.expr | None:
        found = (self.find(node, module) for node in nodes)
        return next((call for call in found if call is not None), None)

    def _call(self, node: ast.Call, module: Module) -> ast.expr | None:
        if puts_on_gpu(self._resolver, node, module):
            return node
        method = node.func if isinstance(node.func, ast.Attribute) else None
        if method is not None and method.attr in {"cpu", "numpy", "tolist", "item"}:
            return None
        for value, owner in self._returned(node, module):
            found = self.find(value, owner)
            if found is not None:
                return found
        if self._resolver.names(node.func, module) or self._is_layer(node.func, module):
            return self._of_arguments(node, module)
        return self.find(method.value, module) if method is not None else None

    def _is_layer(self, func: ast.expr, module: Module) -> bool:
        """Whether ``func`` is a network of PyTorch's, whose results are where its input is."""
        return any(
            isinstance(value, Made)
            and isinstance(value.maker, External)
            and value.maker.name.startswith("torch.nn.")
            for value in self._resolver.values(func, module)
        )

    def _returned(self, call: ast.Call, module: Module) -> Iterator[tuple[ast.expr, Module]]:
        for callee in self._resolver.callees(call, module):
            if isinstance(callee.node, ast.FunctionDef) and callee.node.name != "__init__":
                for inner in walk(callee.node):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield inner.value, callee.module

    def _unpacked(self, source: Assigned, module: Module) -> ast.expr | None:
        """What is assigned; of ``model, tokenizer = load()`` only the part that the variable gets."""
        value, path = source.value, source.path
        returned = list(self._returned(value, module)) if isinstance(value, ast.Call) else []
        tuples = [(v, owner) for v, owner in returned if isinstance(v, ast.Tuple)]
        if not path or not tuples or len(tuples) != len(returned):
            return self.find(unpacked_element(value, path), module)
        found = (self.find(unpacked_element(v, path), owner) for v, owner in tuples)
        return next((call for call in found if call is not None), None)

    def _of_arguments(self, node: ast.Call, module: Module) -> ast.expr | None:
        if not _makes_no_tensor(self._resolver, node, module):
            return self._any(node.args, module)
        kept = self._resolver.names(node.func, module) <= _SETTINGS
        return self._any([k.value for k in node.keywords], module) if kept else None

    def _name(self, node: ast.Name, module: Module) -> ast.expr | None:
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None:
            return None
        owner, bindings = found
        for binding in reaching_bindings(module, owner, bindings, scope, node):
            source = binding.source
            if isinstance(source, Assigned):
                call = self._unpacked(source, module)
            elif isinstance(source, Parameter) and not isinstance(source.function, ast.Lambda):
                call = self._argument(source.function, node.id)
            else:
                call = None
            if call is not None:
                return call
        return None

    def _argument(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> ast.expr | None:
        for site in self._resolver.call_sites(function):
            given = gathered_for(function, name, site.call, site.bound)
            passed = argument_for(function, name, site.call, site.bound)
            if passed is not None and passed.given is not None:
                given.append(passed.given)
            call = self._any(given, site.module)
            if call is not None:
                return call
        return None

    def _attribute(self, node: ast.Attribute, module: Module) -> ast.expr | None:
        cls = module.enclosing_class(node)
        if cls is not None and isinstance(node.value, ast.Name):
            kept = kept_as(self._resolver, cls, module, node.attr)
            found = (self._any([value], where) for value, _, where in kept)
            return next((call for call in found if call is not None), None)
        return self.find(node.value, module)
