"""What in the code of a network keeps ``torch.compile`` from paying, or from working.

What its tracer follows and what it breaks off at:
https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_faq.html
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..calls.reach import Reached, lexical_nodes, never_runs
from ..calls.signatures import call_argument
from ..facts import Fact, Model
from ..networks.buffers import is_buffer
from ..networks.forward_code import called_names, forward_code, layer_classes, method_name
from ..program.reaching import assigned_values
from ..program.scopes import Assigned
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, Display, Value

_RECURRENT = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"})
_TRACED = frozenset({"torch", "torchvision", "timm", "transformers", "einops", "numpy"})
"""Libraries whose layers and functions the compiler follows: PyTorch's own, NumPy's calls, and those of the suites it is
measured on in every night (https://hud.pytorch.org/benchmark/compilers)."""
_KNOWN = _TRACED | sys.stdlib_module_names | {"builtins"}
_CONTAINERS = frozenset({"torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict"})
_ADDING = frozenset({"append", "extend", "insert", "add_module"})
_TENSOR_TESTS = frozenset(
    "any all item sum max min mean norm isnan isinf isfinite equal allclose is_nonzero nonzero count_nonzero".split()
)
_BY_VALUES = frozenset("unique unique_consecutive nonzero argwhere masked_select bincount".split())
"""What gives as many values as it finds: such shapes the compiler does not follow."""
_MASKS = frozenset(
    "bool eq ne gt lt ge le isnan isinf isfinite logical_and logical_or logical_not logical_xor isclose isin".split()
)
_BY_VALUE = "the shape of a result depends on the values in a tensor"
_DRAWN = frozenset(f"torch.{name}" for name in "rand randn randint randperm multinomial".split())
_TO_PYTHON = frozenset({"item", "tolist", "numpy", "is_nonzero"})
_AROUND_LOOPS = frozenset(f"builtins.{name}" for name in ("reversed", "enumerate", "zip", "list"))
_NUMBERS = frozenset({"builtins.int", "builtins.float", "builtins.bool"})
_LEGACY_CONSTRUCTORS = frozenset(
    f"torch.{prefix}{kind}Tensor"
    for prefix in ("", "cuda.")
    for kind in ("", "Float", "Double", "Half", "Long", "Int", "Byte", "Bool")
)


@dataclass(frozen=True, eq=False)
class CompileObstacle(Fact):
    """Code that ``torch.compile`` cannot take, or gains nothing from; ``message`` says why."""

    message: str


def compile_obstacles(resolver: Resolver, network: Model) -> Iterator[CompileObstacle]:
    """What keeps ``network`` from being compiled, in its own forward code and in the layers it is made of."""
    maker = network.library_name
    if maker is not None and _is_foreign(maker) and not _is_torchvision(network.node):
        yield CompileObstacle(network.module, network.node, _unseen(maker))
    if maker is not None:
        yield from _recurrent_layers(resolver, walk(network.node), network.module)
    for cls in layer_classes(resolver, [network]):
        layers = lexical_nodes(_method_bodies(cls))
        yield from _recurrent_layers(resolver, layers, cls.module)
        yield from _foreign_layers(resolver, cls)
    for reached in forward_code(resolver, [network]):
        message = _obstacle(resolver, reached)
        if message is not None:
            yield CompileObstacle(reached.module, reached.node, message)


def _recurrent_layers(
    resolver: Resolver, nodes: Iterable[ast.AST], module: Module
) -> Iterator[CompileObstacle]:
    for node in nodes:
        if isinstance(node, ast.Call):
            for name in resolver.names(node.func, module):
                package, _, last = name.rpartition(".")
                if package == "torch.nn" and last in _RECURRENT:
                    why = f"recurrent layers (`nn.{last}`) gain nothing from being compiled"
                    yield CompileObstacle(module, node, why)


def _foreign_layers(resolver: Resolver, cls: Class) -> Iterator[CompileObstacle]:
    """Those in containers; what is called by name shows in the forward code."""
    for put_in, module in _put_in_containers(resolver, cls):
        made = [(put_in, resolver.maker_names(put_in, module))]
        made += [
            (n, resolver.names(n.func, module)) for n in walk(put_in) if isinstance(n, ast.Call)
        ]
        for node, makers in made:
            for name in sorted(filter(_is_foreign, makers)):
                if not _is_torchvision(node):
                    yield CompileObstacle(module, node, _unseen(name))


def _put_in_containers(resolver: Resolver, cls: Class) -> Iterator[tuple[ast.expr, Module]]:
    """What ``cls`` makes its containers of layers of, by way of lists too, and what it adds to them later."""
    module = cls.module
    calls = [node for node in lexical_nodes(_method_bodies(cls)) if isinstance(node, ast.Call)]
    lists: set[Value] = set()
    for call in calls:
        if resolver.names(call.func, module) & _CONTAINERS:
            for argument in call.args:
                yield argument, module
                given = argument.value if isinstance(argument, ast.Starred) else argument
                lists.update(v for v in resolver.values(given, module) if isinstance(v, Display))
    yield from ((v.node, v.module) for v in lists if isinstance(v, Display))
    for call in calls:
        match call.func:
            case ast.Attribute(value=holder, attr=method) if method in _ADDING:
                is_container = resolver.maker_names(holder, module) & _CONTAINERS
                if is_container or resolver.values(holder, module) & lists:
                    yield from ((argument, module) for argument in call.args)
            case _:
                pass


def _is_foreign(name: str) -> bool:
    if name.startswith("torch.hub."):
        return True  # whatever the repository it names holds
    return name.partition(".")[0] not in _KNOWN and not name.startswith("<")


def _is_torchvision(node: ast.AST) -> bool:
    """Whether ``node`` is ``torch.hub.load("pytorch/vision:v0.10.0", ...)``."""
    repository = call_argument(node, "repo_or_dir", 0) if isinstance(node, ast.Call) else None
    return isinstance(repository, ast.Constant) and str(repository.value).startswith(
        "pytorch/vision"
    )


def _unseen(name: str) -> str:
    return f"whether `{name}` can be compiled is not known"


def _method_bodies(cls: Class) -> list[ast.AST]:
    return [s for m in cls.node.body if isinstance(m, ast.FunctionDef) for s in m.body]


def _obstacle(resolver: Resolver, reached: Reached) -> str | None:
    match reached.node:
        case ast.Call():
            return _call(resolver, reached)
        case (
            ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test)
        ):
            return _data_dependent(resolver, test, reached)
        case ast.Slice():
            return _cut_by_values(resolver, reached.node, reached)
        case ast.Subscript():
            return _BY_VALUE if _takes_by_mask(reached.node, reached.module) else None
        case ast.For(iter=iterable):
            return _loop_over_shape(resolver, iterable, reached)
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.SetComp():
            loops = reached.node.generators
            found = (_loop_over_shape(resolver, loop.iter, reached) for loop in loops)
            return next(filter(None, found), None)
        case ast.AugAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            return f"`self.{name}` changes in every pass, and each value is compiled anew"
        case _:
            return None


def _call(resolver: Resolver, reached: Reached) -> str | None:
    names = called_names(resolver, reached)
    method = method_name(resolver, reached)
    if method == "backward" or "torch.autograd.backward" in names:
        return "a backward pass inside of it is no part of a graph"
    if "torch.autograd.grad" in names:
        return "gradients that are taken inside of it break the graph"
    if method in _TO_PYTHON:
        return f"`.{method}()` takes a value out of the graph"
    if names & _NUMBERS and isinstance(reached.node, ast.Call):
        return _number_of_tensor(resolver, reached.node, reached.module)
    if method in _BY_VALUES or any(n.removeprefix("torch.") in _BY_VALUES for n in names):
        return _BY_VALUE
    if method == "requires_grad_" and _asks_for_gradients(reached.node):
        return (
            "a tensor made in it asks for gradients (`.requires_grad_()`), which breaks the graph"
        )
    if names & _LEGACY_CONSTRUCTORS or method == "new":
        return "a legacy tensor constructor cannot be traced"
    if any(n.startswith("numpy.random.") for n in names):
        return "NumPy's random numbers cannot be traced"
    if "builtins.print" in names:
        return "printing breaks the graph"
    if any(n.startswith("torch.nn.utils.rnn.") for n in names):
        return "packed sequences have another shape in every batch"
    return next((_unseen(name) for name in sorted(names) if _is_foreign(name)), None)


def _cut_by_values(resolver: Resolver, part: ast.Slice, reached: Reached) -> str | None:
    """``x[:, :t + 1]`` where ``t`` is a tensor, such as a point in time that was drawn."""
    for bound in (part.lower, part.upper):
        for node in _with_values(bound, reached) if bound is not None else ():
            if not isinstance(node, ast.Call):
                continue
            is_drawn = called_names(resolver, Reached(node, reached.module, False)) & _DRAWN
            if is_drawn or _is_tensor_test(resolver, node, reached.module):
                return _BY_VALUE
    return None


def _takes_by_mask(subscript: ast.Subscript, module: Module) -> bool:
    """Whether ``x[x > 0]`` is read, that is, as many values as the mask has: ``x[mask] = 0`` changes no shape."""
    if isinstance(subscript.ctx, ast.Store) and not isinstance(
        module.parents[subscript], ast.AugAssign
    ):
        return False
    index = subscript.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(
        _is_mask(value)
        for part in parts
        for value in ([part] if not isinstance(part, ast.Name) else assigned_values(module, part))
    )


def _is_mask(value: ast.expr) -> bool:
    """Whether ``value`` is computed by comparing tensors, or out of what was."""
    match value:
        case ast.Compare(ops=operators):
            return not any(
                isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in operators
            )
        case ast.UnaryOp(ast.Invert(), inner):
            return isinstance(inner, ast.Name) or _is_mask(inner)
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
            return _is_mask(left) or _is_mask(right)
        case ast.Call(func):
            return last_identifier(func) in _MASKS
        case _:
            return False


def _number_of_tensor(resolver: Resolver, call: ast.Call, module: Module) -> str | None:
    """``int(self.pointer)`` of a buffer and ``float(x.max())``, which is ``.item()`` by another name."""
    for given in call.args[:1]:
        holder = given.value if isinstance(given, ast.Subscript) else given
        is_tensor = isinstance(holder, ast.Attribute) and is_buffer(resolver, holder, module)
        if is_tensor or _is_tensor_test(resolver, given, module):
            return f"`{module.code(call)}` takes a value out of the graph"
    return None


def _asks_for_gradients(call: ast.AST) -> bool:
    given = call_argument(call, "requires_grad", 0) if isinstance(call, ast.Call) else None
    return not (isinstance(given, ast.Constant) and given.value is False)


def _data_dependent(resolver: Resolver, test: ast.expr, reached: Reached) -> str | None:
    """A branch on the value of a tensor."""
    module = reached.module
    branches = "a branch depends on the values in a tensor"
    if any(_is_tensor_test(resolver, node, module) for node in walk(test)):
        return branches
    return branches if any(_is_buffer_read(resolver, n, module) for n in walk(test)) else None


def _is_tensor_test(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """``x.max()``, ``torch.isnan(x)``: a tensor whose value Python may ask for."""
    if not isinstance(node, ast.Call):
        return False
    inner = Reached(node, module, False)
    if method_name(resolver, inner) in _TENSOR_TESTS:
        return True
    split = (name.rpartition(".") for name in called_names(resolver, inner))
    return any(package == "torch" and last in _TENSOR_TESTS for package, _, last in split)


def _is_buffer_read(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """A buffer whose values a condition asks for: not its shape, nor whether it is there."""
    if not (isinstance(node, ast.Attribute) and is_buffer(resolver, node, module)):
        return False
    match module.parents.get(node):
        case ast.Attribute() | ast.Call():
            return False
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
        case _:
            return True


def _loop_over_shape(resolver: Resolver, iterable: ast.expr, reached: Reached) -> str | None:
    """A loop over a dimension of the input: it is unrolled, for every length anew."""
    if not isinstance(iterable, ast.Call):
        return None
    names = resolver.names(iterable.func, reached.module)
    if names & _AROUND_LOOPS:
        inner = (_loop_over_shape(resolver, given, reached) for given in iterable.args)
        return next(filter(None, inner), None)
    if "builtins.range" not in names:
        return None
    for node in [inner for argument in iterable.args for inner in _with_values(argument, reached)]:
        is_size = isinstance(node, ast.Call) and method_name(
            resolver, Reached(node, reached.module, False)
        ) in {"size", "dim"}
        if is_size or (isinstance(node, ast.Attribute) and node.attr == "shape"):
            return "a loop over a dimension of the input is unrolled"
    return None


def _with_values(node: ast.expr, reached: Reached) -> Iterator[ast.AST]:
    """The nodes of ``node`` and of what is assigned to the local names in it."""
    for inner in walk(node):
        yield inner
        if isinstance(inner, ast.Name):
            found = reached.module.scope(inner).lookup(inner.id)
            for binding in found[1] if found else ():
                if isinstance(binding.source, Assigned):
                    yield from walk(binding.source.value)


def script_compile_obstacle(resolver: Resolver) -> CompileObstacle | None:
    """What about the script as a whole keeps its networks from being compiled."""
    for module in resolver.project.modules:
        for call in module.calls:
            message = _in_script(resolver, Reached(call, module, True))
            if message is not None and not never_runs(resolver, call, module):
                return CompileObstacle(module, call, message)
    return None


def _in_script(resolver: Resolver, reached: Reached) -> str | None:
    names = called_names(resolver, reached) - _FOR_TORCHSCRIPT
    for prefix, message in _SCRIPT_WIDE:
        if any(n.startswith(prefix) for n in names):
            return message
    function = reached.node.func if isinstance(reached.node, ast.Call) else None
    method = function.attr if isinstance(function, ast.Attribute) else None
    if method in _HOOKS:
        return "hooks on modules may not run once the network is compiled"
    if method in {"to_sparse", "to_sparse_csr", "to_sparse_coo"}:
        return "sparse tensors are not compiled"
    if method in {"add_graph", "share_memory"}:
        return f"`.{method}()` needs the network uncompiled"
    return None


_SCRIPT_WIDE = (
    ("torch.compile", "it is compiled already"),
    ("torch._dynamo", "it is compiled already"),
    ("torch.jit.load", "the script loads a network in TorchScript"),
    ("torch.jit.", "the script exports the network with TorchScript"),
    ("torch.onnx.", "the script exports the network to ONNX"),
    ("torch.export.", "the script exports the network"),
    ("torch.fx.", "the script rewrites the network with FX"),
    ("torch.ao.quantization.", "the script quantizes the network"),
    ("torch.quantization.", "the script quantizes the network"),
    ("torch.cuda.graph", "the step is captured in a CUDA graph"),
    ("torch.cuda.CUDAGraph", "the step is captured in a CUDA graph"),
    ("torch.cuda.make_graphed_callables", "the step is captured in a CUDA graph"),
    ("torch.nn.parallel.DataParallel", "DataParallel replicas are not compiled"),
    ("torch.nn.parallel.data_parallel", "DataParallel replicas are not compiled"),
    ("torch.nn.parallel.parallel_apply", "DataParallel replicas are not compiled"),
    ("torch.sparse", "sparse tensors are not compiled"),
    ("torch.spmm", "sparse tensors are not compiled"),
    ("torch.func.", "the script uses function transforms"),
    ("functorch.", "the script uses function transforms"),
)
_FOR_TORCHSCRIPT = frozenset(
    f"torch.jit.{name}"
    for name in (
        "Final annotate export ignore is_scripting is_tracing unused "
        "_overload _overload_method _unwrap_optional script_if_tracing"
    ).split()
)
"""What code says so that TorchScript could take it: of no effect where nobody exports it."""
_HOOKS = frozenset(
    "register_forward_hook register_forward_pre_hook register_full_backward_hook register_backward_hook "
    "register_full_backward_pre_hook".split()
)
