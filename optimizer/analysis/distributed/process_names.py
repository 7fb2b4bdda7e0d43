"""What a file calls the processes that torchrun starts, and the edits that make it know them.

torchrun tells each process its place by environment variables
(https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables). Every file that needs one of them reads
it itself, so that nothing has to be handed from file to file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from enum import Enum

from ...rewriting.edits import AddImport, Edit, FileEdit, InsertBefore, Span
from ..editing.references import quoted, reference
from ..facts import Fact
from ..obstacles import Obstacle
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module


class Place(Enum):
    """One of torchrun's variables."""

    RANK = "RANK"
    LOCAL_RANK = "LOCAL_RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"

    @property
    def alone(self) -> int:
        """What it is in a process that torchrun has not started."""
        return 1 if self in {Place.WORLD_SIZE, Place.LOCAL_WORLD_SIZE} else 0

    def read(self, system: str, module: Module) -> str:
        """The code that reads it, for a ``module`` that calls ``os`` ``system``."""
        return f"int({system}.environ.get({quoted(module, self.name)}, {self.alone}))"


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
    | {"DistributedSampler"}
)


def taken_name(module: Module) -> Fact | None:
    """Where ``module`` has given one of the names that will be needed to something of its own.

    A file that several scripts use may have it already, from the change of another one.
    """
    for scope in module.scopes.by_node.values():
        for name, bindings in scope.bindings.items():
            if name in _TAKEN and not _is_known(name, module):
                node = bindings[0].node
                statement = module.statement(node) if not isinstance(node, ast.arg) else node
                if isinstance(statement, ast.ImportFrom) and any(
                    alias.name == "DistributedSampler" for alias in statement.names
                ):
                    continue
                return Obstacle(module, node, f"`{name}` is a name of the script's own")
    return None


def _is_known(name: str, module: Module) -> bool:
    """Whether ``module`` calls the place, or the function, so already that has this ``name`` here."""
    match module.scopes.by_node[module.tree].bindings.get(name, []):
        case [Binding(node=ast.FunctionDef() as function)]:
            written = [each.value for each in Helper if each.function == name]
            return any(f'"""{ast.get_docstring(function)}"""' in code for code in written)
        case [Binding(source=Assigned(value=value, path=()))] if name in Place.__members__:
            return ast.unparse(value) == f"int(os.environ.get({name!r}, {Place[name].alone}))"
        case _:
            return False


class ProcessNames:
    """Collects which files need which variables and imports."""

    def __init__(self, entry: Module) -> None:
        self._entry = entry
        self._places: dict[Module, set[Place]] = {}
        self._helpers: dict[Module, set[Helper]] = {}
        self._imports: dict[Module, list[AddImport]] = {}
        self._alone_where_imported = False

    def alone_where_imported(self) -> None:
        """Let a worker process that imports the script know of no other processes: it is none of torchrun's."""
        self._alone_where_imported = True

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
        name = known.code if not known.edits and "." not in known.code else "dist"
        scopes = [s for s in module.scopes.by_node.values() if name in s.bindings]
        if name == known.code and scopes == [module.scopes.by_node[module.tree]]:
            return name
        if scopes:  # a name of the script's own, such as that of a distance
            return f"{self.spelled(module, 'torch')}.distributed"
        self._import(module, AddImport("torch.distributed", alias=name))
        return name

    def imported(self, module: Module, package: str, name: str) -> str:
        """How ``module`` calls ``name`` of ``package``, imported from there when it is not yet."""
        known = reference(module, f"{package}.{name}")
        if not known.edits and "." not in known.code:
            return known.code
        self._import(module, AddImport(package, name))
        return name

    @property
    def has_helpers(self) -> bool:
        """Whether a file needs one of the functions, all of which hand tensors from process to process."""
        return any(self._helpers.values())

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

    def edits(self, others: Iterable[FileEdit]) -> Iterator[FileEdit]:
        """The definitions and imports that were asked for, above all that ``others`` change."""
        lines: dict[Module, list[int]] = {module: [sys.maxsize] for module in self._places}
        for module, found in lines.items():
            found += [_line(other.edit) for other in others if other.path == module.path]
        for module, places in self._places.items():
            statement = _below_imports(module, min(lines[module]))
            environment = self._environment(module, statement)
            rows = [
                f"{place.name} = {place.read(environment, module)}"
                for place in Place
                if place in places and not _is_known(place.name, module)
            ]
            if module is self._entry:
                rows.insert(0, _COMMENT)
                if self._alone_where_imported:
                    used = [place for place in Place if place in places]
                    names = ", ".join(place.name for place in used)
                    alone = ", ".join(str(place.alone) for place in used)
                    main = f"__name__ != {quoted(module, '__main__')}"
                    rows.append(f"if {main}:  # a worker of a DataLoader that imports this file")
                    rows.append(f"    {names} = {alone}")
            for helper in Helper:
                wanted = helper in self._helpers.get(module, ())
                if wanted and not _is_known(helper.function, module):
                    code = helper.value.format(
                        torch=self.spelled(module, "torch"),
                        dist=self.distributed(module),
                        cpu=quoted(module, "cpu"),
                    )
                    rows += ["", "", code.rstrip()]
            if rows:
                code = "\n".join(rows)
                edit = InsertBefore(module.span(statement), code, apart=True, outside=True)
                yield FileEdit(module.path, edit)
        for module, wanted in self._imports.items():
            for edit in sorted(wanted, key=lambda e: (e.module, e.name or "")):
                yield FileEdit(module.path, edit)

    def _environment(self, module: Module, statement: ast.stmt) -> str:
        """How ``module`` calls ``os`` at ``statement``, above which it may not be imported yet."""
        spelled = self.spelled(module, "os")
        bindings = module.scopes.by_node[module.tree].bindings.get(spelled.partition(".")[0], ())
        lines = [module.statement(binding.node).lineno for binding in bindings]
        if lines and min(lines) > statement.lineno:
            self._import(module, AddImport("os"))
            return "os"
        return spelled


def _line(edit: Edit) -> int:
    """The first line that ``edit`` is about."""
    spans = [value for value in vars(edit).values() if isinstance(value, Span)]
    return min((span.line for span in spans), default=sys.maxsize)


def _below_imports(module: Module, used: int) -> ast.stmt:
    """The statement of ``module`` above which a name that line ``used`` needs is defined best.

    It is the first below the docstring and the imports, also below those that stand behind a ``__version__ = ...``.
    """
    body = module.tree.body
    start = 1 if ast.get_docstring(module.tree) is not None and len(body) > 1 else 0
    best = body[start]
    for statement, following in zip(body[start:], [*body[start + 1 :], body[-1]], strict=True):
        if _imports(statement):
            best = following
        elif hasattr(statement, "body") or (statement.end_lineno or statement.lineno) >= used:
            break
    return best


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
