"""What a file calls the processes that torchrun starts, and the edits that make it know them.

torchrun tells each process its place by environment variables
(https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables). Every file that needs one of them reads
it itself, so that nothing has to be handed from file to file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from ..rewriting.edits import AddImport, FileEdit, InsertBefore
from .facts import Fact
from .obstacles import Obstacle
from .references import quoted, reference
from .syntax import Module


class Place(Enum):
    """One of torchrun's variables."""

    RANK = "RANK"
    LOCAL_RANK = "LOCAL_RANK"
    WORLD_SIZE = "WORLD_SIZE"

    @property
    def alone(self) -> int:
        """What it is in a process that torchrun has not started."""
        return 1 if self is Place.WORLD_SIZE else 0


_COMMENT = (
    "# torchrun starts one process per GPU and tells it its place; without it there is one process."
)


class Helper(Enum):
    """A function that a file gets where it needs it; ``value`` is its code."""

    SUM = '''\
def sum_over_processes(value):
    """The sum of what each process has counted in its share of the data."""
    if WORLD_SIZE == 1:
        return value
    total = {torch}.as_tensor(value, dtype={torch}.float64, device={cpu}).detach().clone()
    {dist}.all_reduce(total)
    if {torch}.is_tensor(value):
        return total.to(value)
    number = total.item()
    return int(number) if isinstance(value, int) and number.is_integer() else number
'''
    FIRST = '''\
def of_first_process(value):
    """The number that the first process has measured, so that all of them decide alike."""
    if WORLD_SIZE == 1:
        return value
    number = {torch}.tensor(float(value), dtype={torch}.float64)
    {dist}.broadcast(number, 0)
    return number.item()
'''

    SUMS = '''\
def sums_over_processes(*values):
    """The sums of several numbers that each process has counted in its share of the data."""
    if WORLD_SIZE == 1:
        return values
    numbers = [value.item() if {torch}.is_tensor(value) else value for value in values]
    totals = {torch}.tensor(numbers, dtype={torch}.float64)
    {dist}.all_reduce(totals)
    return [
        total.to(value) if {torch}.is_tensor(value) else type(value)(total.item())
        for value, total in zip(values, totals)
    ]
'''

    @property
    def function(self) -> str:
        """What the function is called."""
        return self.value.removeprefix("def ").partition("(")[0]


_TAKEN = frozenset(
    {place.name for place in Place}
    | {helper.function for helper in Helper}
    | {"dist", "DistributedSampler"}
)


def taken_name(module: Module) -> Fact | None:
    """Where ``module`` has given one of the names that will be needed to something of its own."""
    for scope in module.scopes.by_node.values():
        for name, bindings in scope.bindings.items():
            if name in _TAKEN:
                node = bindings[0].node
                imports = {"torch.distributed", "DistributedSampler"}
                statement = module.statement(node) if not isinstance(node, ast.arg) else node
                if isinstance(statement, ast.Import | ast.ImportFrom) and any(
                    alias.name in imports for alias in statement.names
                ):
                    continue
                return Obstacle(module, node, f"`{name}` is a name of the script's own")
    return None


class ProcessNames:
    """Collects which files need which variables and imports."""

    def __init__(self, entry: Module) -> None:
        self._entry = entry
        self._places: dict[Module, set[Place]] = {}
        self._helpers: dict[Module, set[Helper]] = {}
        self._imports: dict[Module, list[AddImport]] = {}

    def name(self, place: Place, module: Module) -> str:
        """How ``module`` calls ``place``."""
        self._places.setdefault(module, set()).add(place)
        return place.name

    def helper(self, helper: Helper, module: Module) -> str:
        """How ``module`` calls the function of ``helper``."""
        self._helpers.setdefault(module, set()).add(helper)
        self.name(Place.WORLD_SIZE, module)
        self.distributed(module)
        self.spelled(module, "torch")
        return helper.function

    def distributed(self, module: Module) -> str:
        """How ``module`` calls ``torch.distributed``."""
        known = reference(module, "torch.distributed")
        if not known.edits and "." not in known.code:
            return known.code
        self._import(module, AddImport("torch.distributed", alias="dist"))
        return "dist"

    def imported(self, module: Module, package: str, name: str) -> str:
        """How ``module`` calls ``name`` of ``package``, imported from there when it is not yet."""
        known = reference(module, f"{package}.{name}")
        if not known.edits and "." not in known.code:
            return known.code
        self._import(module, AddImport(package, name))
        return name

    def spelled(self, module: Module, name: str) -> str:
        """How ``module`` calls the library's ``name``, whose package is imported when it is not yet."""
        known = reference(module, name)
        for edit in known.edits:
            assert isinstance(edit.edit, AddImport)
            self._import(module, edit.edit)
        return known.code

    def _import(self, module: Module, edit: AddImport) -> None:
        wanted = self._imports.setdefault(module, [])
        if edit not in wanted:
            wanted.append(edit)

    def edits(self) -> Iterator[FileEdit]:
        """The definitions and imports that were asked for."""
        for module, places in self._places.items():
            environment = self.spelled(module, "os")
            rows = [
                f"{place.name} = int({environment}.environ.get({quoted(module, place.name)}, {place.alone}))"
                for place in Place
                if place in places
            ]
            if module is self._entry:
                rows.insert(0, _COMMENT)
            for helper in Helper:
                if helper in self._helpers.get(module, ()):
                    code = helper.value.format(
                        torch=self.spelled(module, "torch"),
                        dist=self.distributed(module),
                        cpu=quoted(module, "cpu"),
                    )
                    rows += ["", "", code.rstrip()]
            target = module.span(first_statement(module))
            code = "\n".join(rows)
            yield FileEdit(module.path, InsertBefore(target, code, apart=True, outside=True))
        for module, wanted in self._imports.items():
            for edit in sorted(wanted, key=lambda e: (e.module, e.name or "")):
                yield FileEdit(module.path, edit)


def first_statement(module: Module) -> ast.stmt:
    """The first statement of ``module`` below its docstring and its imports."""
    body = module.tree.body
    start = 1 if ast.get_docstring(module.tree) is not None and len(body) > 1 else 0
    return next((s for s in body[start:] if not _imports(s)), body[-1])


def _imports(statement: ast.stmt) -> bool:
    """Whether ``statement`` does nothing but import, maybe under a condition or in a ``try``."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Try(body=body, handlers=handlers):
            return all(map(_imports, body)) and all(
                all(_imports(s) or isinstance(s, ast.Assign | ast.Pass) for s in handler.body)
                for handler in handlers
            )
        case _:
            return False
