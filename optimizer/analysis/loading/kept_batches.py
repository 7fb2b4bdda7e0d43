"""Where a script keeps the batches of a whole pass as they come: ``batches = list(loader)``, ``labels.append(y)``.

A batch from a worker lies in shared memory that the process holds by an open file, and most systems allow 1024 of those
(https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor). A copy, on a GPU or by ``clone()``, needs none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...options import Options
from ..calls.signatures import argument_for, call_argument
from ..devices.placement import move_target
from ..facts import DataLoader, DeviceKind, Fact
from ..program.scopes import Assigned, Binding, Parameter
from ..program.syntax import FunctionNode, LoopNode, Module
from ..program.trees import walk
from ..script import TrainingScript
from ..training.loops import iterated_loaders
from ..values.values import Display, External, Made, whole_number
from .batches import BatchTrace, Parts, Place
from .iterations import Iteration, batches_of_pass, draws_of, loops_around

FEW = 256
"""As many batches as may be kept, of some tensors each."""
_MAY_BE_NO_COPY = frozenset({"cpu", "contiguous", "long", "float", "type"})
_KEEPING_NODES = (
    ast.Call,
    ast.Starred,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.AugAssign,
    ast.Assign,
)
_KEEPING_METHODS = frozenset("append appendleft add insert extend put put_nowait".split())
_DROPPING_METHODS = frozenset("clear pop popleft popitem get get_nowait".split())
_KEEPING_FUNCTIONS = frozenset(
    {
        *(f"builtins.{name}" for name in ("list", "tuple", "sorted", "dict")),
        *(f"itertools.{name}" for name in ("cycle", "tee")),
        "collections.deque",
    }
)
_CONTAINERS = frozenset(
    {"builtins.dict", "builtins.list", "collections.defaultdict", "collections.OrderedDict"}
)


def kept_batches(script: TrainingScript, loader: DataLoader, options: Options) -> tuple[Fact, ...]:
    """What keeps the batches of a pass over ``loader`` in the memory that its workers would fill."""
    if _has_other_memory(script, loader, options):
        return ()
    finder = _Finder(script, loader, options)
    return tuple(
        Fact(module, node)
        for module in script.modules
        for node in module.nodes_of(*_KEEPING_NODES)
        if finder.keeps(node, module)
    )


def _has_other_memory(script: TrainingScript, loader: DataLoader, options: Options) -> bool:
    """Whether batches come pinned, as copies, or the script chose another way of sharing memory."""
    pinned = loader.arguments.get("pin_memory")
    if pinned is not None and script.targets_cuda(options):
        return script.resolver.is_always(pinned.value, pinned.module, True)
    return any(module.calls_named("set_sharing_strategy") for module in script.modules)


class _StorageTrace(BatchTrace):
    """Tells the memory a loader filled also behind conversions that may find nothing to convert: ``y.long()``."""

    def __init__(self, script: TrainingScript, options: Options) -> None:
        super().__init__(script.resolver, script.loaders)
        self._gpu = {DeviceKind.CUDA}
        if script.targets_cuda(options):
            self._gpu.add(DeviceKind.CHOSEN)

    def _method(self, node: ast.Call, function: ast.Attribute, module: Module) -> Parts:
        moved = function.attr in _MAY_BE_NO_COPY or function.attr == "to"
        if moved and move_target(self._resolver, node, module) not in self._gpu:
            copy = call_argument(node, "copy")
            if copy is None:
                return self.parts(function.value, module)
        return super()._method(node, function, module)


class _Finder:
    def __init__(self, script: TrainingScript, loader: DataLoader, options: Options) -> None:
        self._script = script
        self._loader = loader
        self._trace = _StorageTrace(script, options)
        self._kinds = {loop.node: loop for loop in script.loops}
        self._passes = [i for i in script.iterations if loader in i.loaders]

    def keeps(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` keeps the batches of a pass, or one more of them each time."""
        match node:
            case ast.ListComp(elt=kept) | ast.SetComp(elt=kept) | ast.DictComp(value=kept):
                return self._all_in(node.generators, kept, module)
            case ast.Starred(value=value, ctx=ast.Load()):
                return self._goes_over(value, module)
            case ast.Call():
                return self._by_call(node, module)
            case ast.AugAssign(target=target, op=ast.Add(), value=kept):
                is_list = isinstance(kept, ast.List | ast.Tuple | ast.ListComp)
                return is_list and self._one_more(node, target, kept, module)
            case ast.Assign(targets=[target], value=kept):
                return self._by_assignment(node, target, kept, module)
            case _:
                return False

    def _by_call(self, call: ast.Call, module: Module) -> bool:
        match call:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=[*_, kept]) if (
                method in _KEEPING_METHODS
            ):
                # Elements of an array are numbers of their own, those of a tensor are views.
                numbers = method == "extend" and _ends_with(kept, "numpy")
                return not numbers and self._one_more(call, receiver, kept, module)
            case ast.Call(args=[over, *_]):
                names = self._script.resolver.names(call.func, module)
                if not names & _KEEPING_FUNCTIONS or _has_length(call):
                    return False
                if isinstance(over, ast.GeneratorExp):
                    return self._all_in(over.generators, over.elt, module)
                return self._goes_over(over, module)
            case _:
                return False

    def _by_assignment(
        self, node: ast.Assign, target: ast.expr, value: ast.expr, module: Module
    ) -> bool:
        match target, value:
            case ast.Subscript(value=container, slice=key), _:
                return (
                    not isinstance(key, ast.Constant)
                    and self._is_container(container, module)
                    and self._one_more(node, container, value, module)
                )
            case ast.Name(id=name), ast.BinOp(left=ast.Name(id=old), op=ast.Add()) if name == old:
                added = value.right
                is_list = isinstance(added, ast.List | ast.Tuple | ast.ListComp)
                return is_list and self._one_more(node, target, added, module)
            case _:
                return False

    def _all_in(self, generators: list[ast.comprehension], kept: ast.expr, module: Module) -> bool:
        over = any(self._goes_over(generator.iter, module) for generator in generators)
        return over and self._is_loaded(kept, module)

    def _goes_over(self, iterable: ast.expr, module: Module) -> bool:
        """Whether ``iterable`` gives all batches of a pass."""
        if isinstance(iterable, ast.Call) and "itertools.islice" in self._script.resolver.names(
            iterable.func, module
        ):
            stop = iterable.args[-1] if len(iterable.args) == 2 else iterable.args[2]
            return not self._is_few(stop, module) and self._goes_over(iterable.args[0], module)
        resolver, loaders = self._script.resolver, self._script.loaders
        return self._loader in iterated_loaders(resolver, loaders, iterable, module)[0]

    def _one_more(self, node: ast.AST, holder: ast.expr, kept: ast.expr, module: Module) -> bool:
        """Whether ``node`` puts a part of every batch into ``holder``, which is there for the whole pass."""
        if not self._is_loaded(kept, module):
            return False
        loops = self._loops_of_batches(node, module)
        return bool(loops) and all(
            not self._is_bounded(node, holder, loop, module)
            and self._outlives(holder, loop, module, frozenset())
            for loop in loops
        )

    def _is_loaded(self, node: ast.expr, module: Module) -> bool:
        return any(
            part is not None and part.loader is self._loader and part.place is Place.LOADED
            for part in self._trace.parts(node, module)
        )

    def _loops_of_batches(self, node: ast.AST, module: Module) -> list[LoopNode]:
        """The loops around ``node`` that go over the loader, or draw from an iterator over it."""
        resolver = self._script.resolver
        around = [loop.node for loop in loops_around(resolver, node, module)]
        over = [loop for loop in around if self._loader in self._kinds[loop].loaders]
        return over[:1] or [loop for loop in around if loop in self._drawing()][:1]

    def _drawing(self) -> set[LoopNode]:
        """The innermost loops that take batches from iterators made outside of them."""
        return {
            loop
            for iteration in self._passes
            if iteration.by_hand
            for draw in draws_of(self._script.resolver, iteration)
            for loop in draw.module.loops(draw.node)[:1]
            if loop not in iteration.module.loops(iteration.node)
        }

    def _is_bounded(self, node: ast.AST, holder: ast.expr, loop: LoopNode, module: Module) -> bool:
        """Whether but a few batches are kept at a time."""
        iteration: Iteration | None = next((i for i in self._passes if i.node is loop), None)
        if iteration is not None and (batches_of_pass(iteration) or FEW + 1) <= FEW:
            return True
        for ancestor in module.ancestors(node):
            if isinstance(ancestor, ast.If) and self._is_for_few(ancestor, node, module):
                return True
            if ancestor is loop:
                break
        values = self._script.resolver.values(holder, module)
        return any(isinstance(v, Made) and _has_length(v.call) for v in values)

    def _is_for_few(self, branch: ast.If, node: ast.AST, module: Module) -> bool:
        """Whether ``branch`` lets ``node`` run a few times: ``if len(images) < 10``, ``if step == 0``."""
        if not any(node in set(walk(statement)) for statement in branch.body):
            return False
        tests = branch.test.values if isinstance(branch.test, ast.BoolOp) else [branch.test]
        if isinstance(branch.test, ast.BoolOp) and not isinstance(branch.test.op, ast.And):
            return False
        for test in tests:
            match test:
                case ast.Compare(
                    left=ast.Name() | ast.Call(func=ast.Name(id="len")),
                    ops=[ast.Lt() | ast.LtE() | ast.Eq()],
                    comparators=[most],
                ) if self._is_few(most, module):
                    return True
                case _:
                    pass
        return False

    def _is_few(self, count: ast.expr, module: Module) -> bool:
        number = whole_number(self._script.resolver.values(count, module))
        return number is not None and number <= FEW

    def _is_container(self, node: ast.expr, module: Module) -> bool:
        return any(
            (isinstance(v, Display) and isinstance(v.node, ast.Dict | ast.List | ast.DictComp))
            or (
                isinstance(v, Made)
                and isinstance(v.maker, External)
                and v.maker.name in _CONTAINERS
            )
            for v in self._script.resolver.values(node, module)
        )

    def _outlives(
        self, holder: ast.expr, loop: LoopNode, module: Module, within: frozenset[FunctionNode]
    ) -> bool:
        """Whether ``holder`` is there before ``loop``, and is not emptied in it."""
        body = {n for statement in loop.body for n in walk(statement)}
        if any(_drops(n, holder) for n in body):
            return False
        root = holder
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return False
        found = module.scope(root).lookup(root.id)
        if found is None or isinstance(found[0].node, ast.Module | ast.ClassDef):
            return not any(
                _is_new(binding, body, module) for binding in (found[1] if found else ())
            )
        function = module.function(root)
        if function is None or found[0].node is not function or loop in set(walk(function)):
            return not any(_is_new(binding, body, module) for binding in found[1])
        if function in within or not all(isinstance(b.source, Parameter) for b in found[1]):
            return False  # a variable of a function that is called for every batch
        return any(
            each is not None and self._outlives(each, loop, owner, within | {function})
            for each, owner in self._given(function, root.id)
        )

    def _given(self, function: FunctionNode, name: str) -> Iterator[tuple[ast.expr | None, Module]]:
        for site in self._script.resolver.call_sites(function):
            passed = argument_for(function, name, site.call, site.bound)
            given = passed.given if passed is not None else None
            if given is None and site.bound and isinstance(site.call.func, ast.Attribute):
                given = site.call.func.value
            yield given, site.module


def _is_new(binding: Binding, body: set[ast.AST], module: Module) -> bool:
    """Whether ``binding`` begins anew in ``body``: not ``labels += [y]``, nor ``labels = labels + [y]``."""
    match module.parents[binding.node], binding.source:
        case ast.AugAssign(), _:
            return False
        case _, Assigned(ast.BinOp(left=ast.Name(id=old))) if old == binding.name:
            return False
        case _:
            return binding.node in body


def _drops(node: ast.AST, holder: ast.expr) -> bool:
    """Whether ``node`` takes something out of ``holder``, or begins a new one."""
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
            dropped = receiver if method in _DROPPING_METHODS else None
        case ast.Assign(targets=[ast.Attribute() as dropped]):
            pass
        case ast.Delete(targets=[ast.Subscript(value=dropped)]):
            pass
        case _:
            return False
    return dropped is not None and ast.unparse(dropped) == ast.unparse(holder)


def _has_length(call: ast.Call) -> bool:
    """Whether ``call`` makes a container that lets go of what no longer fits: ``deque(maxlen=10)``."""
    most = call_argument(
        call, "maxlen", 1 if isinstance(call.func, ast.Name) and call.func.id == "deque" else None
    )
    return most is not None and not (isinstance(most, ast.Constant) and most.value is None)


def _ends_with(node: ast.expr, method: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=last)):
            return last == method
        case _:
            return False
