"""Training that starts its processes by itself, with ``torch.multiprocessing.spawn``, as torchrun could start them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from ...rewriting.edits import FileEdit, ReplaceStatement
from ..calls.signatures import call_argument
from ..editing.imports import orphaned_imports
from ..editing.replacing import replacement
from ..facts import CallFact, Fact
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..program.trees import is_true
from ..script import TrainingScript
from ..values.resolver import Resolver
from ..values.values import External, Function, Literal, Made, Value
from .process_names import Place, ProcessNames, taken_name
from .spawned import RANK
from .spawning_process import SpawningProcess

SPAWN = "torch.multiprocessing.spawn"
_IMPORTED = frozenset({"torch.multiprocessing", SPAWN})
_GROUP = "torch.distributed.init_process_group"
_COUNT = "torch.cuda.device_count"
_ADDRESS = frozenset({"MASTER_ADDR", "MASTER_PORT"})
_DEVICE_CALLS = frozenset({"torch.cuda.set_device", "torch.device", "torch.cuda.device"})
_OF_ALL = frozenset(
    {
        "builtins.print",
        "torch.manual_seed",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
        "numpy.random.seed",
        "random.seed",
    }
)
"""Functions that are given the number of a process among all of them."""
_DEVICE_METHODS = frozenset({"to", "cuda"})
_DEVICE_KEYWORDS = frozenset({"device", "device_id", "device_ids", "output_device", "map_location"})


@dataclass(frozen=True, eq=False)
class SpawnedTraining(Fact):
    """The statement that starts the processes, and the ``edits`` by which torchrun does."""

    edits: tuple[FileEdit, ...]


def spawn_calls(resolver: Resolver) -> tuple[CallFact, ...]:
    """The calls of ``torch.multiprocessing.spawn``."""
    return tuple(
        CallFact(module, call, SPAWN)
        for module in resolver.project.modules
        for call in module.calls_named("spawn")
        if SPAWN in resolver.names(call.func, module)
    )


def spawned_training(script: TrainingScript, call: CallFact) -> SpawnedTraining | Obstacle:
    """How the processes that ``call`` starts are started by torchrun instead, or why they are not."""
    try:
        return _Plan(script, call).training()
    except _NotProvenError as error:
        return error.obstacle


class _NotProvenError(Exception):
    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__()
        self.obstacle = obstacle


class _Plan:
    def __init__(self, script: TrainingScript, call: CallFact) -> None:
        self._script, self._call, self._module = script, call, call.module
        self._resolver = script.resolver
        self._names = ProcessNames(script.entry)

    def training(self) -> SpawnedTraining:
        for module in self._script.modules:
            taken = taken_name(module)
            if isinstance(taken, Obstacle):
                raise _NotProvenError(taken)
        statement = self._statement()
        arguments = call_argument(self._call.node, "args", 1)
        if arguments is not None and not isinstance(arguments, ast.Tuple):
            self._refuse(arguments, "what the processes are given is no tuple")
        given = arguments.elts if isinstance(arguments, ast.Tuple) else []
        counted = [*self._count(given)]
        self._group(given)
        edits = [*counted, *self._addresses(), *self._devices()]
        edits.append(self._started(statement, given))
        edits[:0] = self._names.edits(edits)
        edits += orphaned_imports(
            self._resolver.project, self._module, [self._call.node.func], _IMPORTED
        )
        return SpawnedTraining(self._module, statement, tuple(edits))

    def _refuse(self, node: ast.AST, why: str, module: Module | None = None) -> NoReturn:
        raise _NotProvenError(Obstacle(module or self._module, node, why))

    # The start

    def _statement(self) -> ast.Expr:
        """The statement, behind which nothing happens, and ahead of it nothing that only one process may do."""
        module, call = self._module, self._call.node
        statement = module.parents[call]
        if not isinstance(statement, ast.Expr):
            self._refuse(call, "what starting the processes gives is used")
        if any(k.arg not in {"fn", "args", "nprocs", "join"} for k in call.keywords):
            self._refuse(call, "the processes are started in a way of their own")
        join = call_argument(call, "join", 3)
        if join is not None and not is_true(join):
            self._refuse(call, "the script goes on while its processes run")
        started = call_argument(call, "fn", 0)
        functions = [] if started is None else [*self._resolver.values(started, module)]
        known = len(functions) == 1 and isinstance(functions[0], Function)
        if not isinstance(started, ast.Name) or not known:
            self._refuse(call, "the function that the processes run is not one that is known")
        around = [*self._beside(statement)]
        for_one = SpawningProcess(self._resolver, module, around).for_one_only()
        if for_one is not None:
            raise _NotProvenError(for_one)
        return statement

    def _beside(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """The statements around ``statement`` that run with it: of its function, and around the calls of that."""
        module = self._module
        current: ast.AST = statement
        while not isinstance(current, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(current, ast.stmt):
                # What stands ahead of the guard runs in processes that are started by importing it, too.
                behind = current.lineno if current in module.main_guards else 0
                beside = (s for s in module.block(current) if s is not current)
                yield from (s for s in beside if s.lineno > behind)
            if isinstance(current, ast.For | ast.While | ast.Try | ast.With):
                self._refuse(
                    current, "the processes are started in a loop, or their errors are caught"
                )
            current = module.parents[current]
        if isinstance(current, ast.Module):
            return
        sites = self._resolver.call_sites(current)
        if len(sites) != 1 or sites[0].module is not module:
            self._refuse(
                current, "the function that starts the processes is not called in one place"
            )
        outer = module.statement(sites[0].call)
        if not isinstance(outer, ast.Expr):
            self._refuse(outer, "what starting the processes gives is used")
        yield from self._beside(outer)

    def _started(self, statement: ast.Expr, given: list[ast.expr]) -> FileEdit:
        module = self._module
        function = call_argument(self._call.node, "fn", 0)
        assert function is not None
        rank = self._names.name(Place.RANK, module)
        count = self._count_code(given)
        rows = [rank, *(count if self._is_count(one) else module.code(one) for one in given)]
        code = f"{module.code(function)}({', '.join(rows)})"
        return FileEdit(module.path, ReplaceStatement(module.span(statement), code))

    # How many there are

    def _number(self) -> ast.expr:
        number = call_argument(self._call.node, "nprocs", 2)
        if number is None:
            self._refuse(self._call.node, "a single process is started")
        return number

    def _is_count(self, expression: ast.expr) -> bool:
        """Whether ``expression`` asks for the number of GPUs anew, as the number of processes does."""
        number = self._number()
        return not isinstance(number, ast.Name) and self._module.code(
            expression
        ) == self._module.code(number)

    def _count_code(self, given: list[ast.expr]) -> str:
        if any(map(self._is_count, given)):
            return self._names.name(Place.WORLD_SIZE, self._module)
        return ""

    def _count(self, given: list[ast.expr]) -> Iterator[FileEdit]:
        """The edit by which the number of processes is torchrun's."""
        module, number = self._module, self._number()
        values = self._resolver.values(number, module)
        if not values or not all(map(_is_number_of_gpus, values)):
            self._refuse(number, "how many processes there are is for the script to say")
        for other in self._script.modules:
            for call in other.calls_named("device_count"):
                if other.function(call) not in {None, module.function(self._call.node)}:
                    self._refuse(call, "the processes count the GPUs themselves", other)
        if not isinstance(number, ast.Name):
            return
        found = module.scope(number).lookup(number.id)
        bindings = found[0].bindings[number.id] if found is not None else []
        assigned = [
            s
            for binding in bindings
            if isinstance(s := module.statement(binding.node), ast.Assign)
            and len(s.targets) == 1
            and isinstance(s.targets[0], ast.Name)
        ]
        if len(assigned) != 1 or len(bindings) != 1:
            self._refuse(number, "how many processes there are is not said in one place")
        world = self._names.name(Place.WORLD_SIZE, module)
        yield replacement(module, assigned[0].value, world)

    def _group(self, given: list[ast.expr]) -> None:
        """The one place where the processes meet, by their place and number."""
        calls = [
            (module, call)
            for module in self._script.modules
            for call in module.calls
            if _GROUP in self._resolver.names(call.func, module)
        ]
        if len(calls) != 1:
            self._refuse(self._call.node, "the processes do not meet in one place")
        module, call = calls[0]
        method = call_argument(call, "init_method", 1)
        own = not (isinstance(method, ast.Constant) and method.value in {None, "env://"})
        if method is not None and own:
            self._refuse(call, "the processes meet at an address of the script's own", module)
        rank, world = call_argument(call, "rank"), call_argument(call, "world_size")
        if rank is None or not self._is_rank(rank, module):
            self._refuse(call, "the rank of a process is not the number it is started with", module)
        counted = [self._number(), *(one for one in given if self._is_count(one))]
        wanted = [self._resolver.values(one, self._module) for one in counted]
        if world is None or self._resolver.values(world, module) not in wanted:
            why = "the number of processes that meet is not that of those started"
            self._refuse(call, why, module)

    def _addresses(self) -> Iterator[FileEdit]:
        """The edits by which an address that torchrun has given stays."""
        for module in self._script.modules:
            for statement in module.nodes_of(ast.Assign):
                target = statement.targets[0]
                if (
                    isinstance(target, ast.Subscript)
                    and isinstance(target.slice, ast.Constant)
                    and target.slice.value in _ADDRESS
                    and "os.environ" in self._resolver.names(target.value, module)
                ):
                    where, key = module.code(target.value), module.code(target.slice)
                    code = f"{where}.setdefault({key}, {module.code(statement.value)})"
                    yield FileEdit(module.path, ReplaceStatement(module.span(statement), code))

    # The number of a process: of all, and on its node

    def _is_rank(self, expression: ast.expr, module: Module) -> bool:
        values = self._resolver.values(expression, module)
        return bool(values) and all(map(_is_rank_value, values))

    def _devices(self) -> Iterator[FileEdit]:
        """The edits by which the number of a process names a GPU of its node."""
        for module in self._script.modules:
            for node in [*module.nodes_of(ast.Name), *module.nodes_of(ast.Attribute)]:
                if not isinstance(node.ctx, ast.Load) or not self._may_be_rank(node, module):
                    continue
                if not self._is_rank(node, module):
                    self._refuse(
                        node, "it may be the number of a process, and something else", module
                    )
                if self._names_device(node, module):
                    mine = self._names.name(Place.LOCAL_RANK, module)
                    yield replacement(module, node, mine)
                elif not self._passes_on(node, module):
                    why = "whether this means a GPU of this machine or a process of all is not seen"
                    self._refuse(node, why, module)

    def _may_be_rank(self, node: ast.expr, module: Module) -> bool:
        return any(map(_is_rank_value, self._resolver.values(node, module)))

    def _names_device(self, node: ast.expr, module: Module) -> bool:
        parent: ast.AST = module.parents[node]
        if isinstance(parent, ast.List | ast.Tuple) and len(parent.elts) == 1:
            node, parent = parent, module.parents[parent]
        while isinstance(parent, ast.IfExp) and parent.test is not node:
            node, parent = parent, module.parents[parent]
        if isinstance(parent, ast.FormattedValue):
            text = module.parents[parent]
            assert isinstance(text, ast.JoinedStr)
            return module.code(text).lstrip("rRfF\"'").startswith("cuda:")
        if isinstance(parent, ast.keyword):
            return parent.arg in _DEVICE_KEYWORDS
        if not isinstance(parent, ast.Call) or node is parent.func:
            return False
        function = parent.func
        if isinstance(function, ast.Attribute) and function.attr in _DEVICE_METHODS:
            return True
        return bool(_DEVICE_CALLS & self._resolver.names(function, module))

    def _passes_on(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is compared, told, kept under a name or handed to a function of the script's own."""
        parent: ast.AST = module.parents[node]
        while isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
            node, parent = parent, module.parents[parent]
            if isinstance(parent, ast.Call):  # a seed and the number
                return bool(_OF_ALL & self._resolver.names(parent.func, module))
        match parent:
            case ast.Compare() | ast.FormattedValue() | ast.BoolOp() | ast.UnaryOp():
                return not isinstance(parent, ast.UnaryOp) or isinstance(parent.op, ast.Not)
            case ast.If(test=test) | ast.IfExp(test=test):
                return test is node
            case ast.Assign(value=value):
                return value is node
            case ast.keyword(arg=name):
                call = module.parents[parent]
                own = isinstance(call, ast.Call) and self._resolver.callees(call, module)
                return name in {"rank", "seed"} or bool(own)
            case ast.Call():
                names = self._resolver.names(parent.func, module)
                return bool(self._resolver.callees(parent, module)) or bool(_OF_ALL & names)
            case _:
                return False


def _is_rank_value(value: Value) -> bool:
    return isinstance(value, Made) and value.maker == RANK


def _is_number_of_gpus(value: Value) -> bool:
    if isinstance(value, Literal):
        return isinstance(value.value, int)
    return isinstance(value, Made) and value.maker == External(_COUNT)
