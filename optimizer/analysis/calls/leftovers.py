"""Functions and classes that no code of the project names: leftovers, which never run.

They are told by names alone, before anything is known of what values are: what a leftover passes to a function is none of
the values that the function gets. What gets at definitions by a text that is computed may run whatever it can see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from typing import TypeAlias, TypeGuard

from ..program.project import Project
from ..program.scopes import Imported, Scope
from ..program.sharing import other_importer
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from .plain_functions import PlainFunctions

_FIND_ANYTHING = frozenset(
    "import_module __import__ __subclasses__ instantiate instantiate_class get_class get_method locate import_string build_from_cfg "
    "LightningCLI CLI".split()
)
"""Functions that get at definitions of any file by a text, of a configuration file, too."""
_SEE_THE_FILE = frozenset({"eval", "exec", "globals"})
"""Functions that get at the definitions of the file that calls them, and at what these see."""
_SEE_THE_FILE_ALONE = frozenset({"Fire", "vars", "dir", "locals"})
"""Functions that do where they are called without arguments."""
_TRAINING = frozenset({"backward", "fit", "train"})
Definition: TypeAlias = ast.FunctionDef | ast.ClassDef


class Leftovers:
    """The leftovers at the top of the files of ``project``.

    Those of the entry are among them where its start comes to a training and no other file imports it: else others run them.
    """

    def __init__(self, project: Project, plain: PlainFunctions) -> None:
        self._project = project
        self._waiting: dict[str, list[Definition]] = {}
        self._pending: list[tuple[ast.AST, Module]] = []
        self._homes: dict[Definition, Module] = {}
        for module in project.modules:
            self._sort(module)
        self.given = frozenset(m for m in project.modules if m.name in plain.given_modules)
        """The files that may be kept under another name, and looked into by a text: ``getattr(models, args.arch)``."""
        self._see(self.given)
        self._follow_all()
        own = [name for name, found in self._waiting.items() if any(map(self._is_own, found))]
        if own and (
            not _starts_training(project) or other_importer(project, project.entry) is not None
        ):
            for name in own:
                self._name(name)
            self._follow_all()
        self._nodes = frozenset(d for found in self._waiting.values() for d in found)

    def hold(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` is code of a leftover, or for the own start of a file that is only imported."""
        is_leftover = not self._nodes.isdisjoint(module.ancestors(node))
        return (is_leftover and module.function(node) is not None) or module.leaves_out(node)

    def _is_own(self, definition: Definition) -> bool:
        return self._homes[definition] is self._project.entry

    def _sort(self, module: Module) -> None:
        for statement in module.tree.body:
            if _needs_its_name(statement):
                self._waiting.setdefault(statement.name, []).append(statement)
                self._homes[statement] = module
            elif module is not self._project.entry and statement in module.main_only:
                assert isinstance(statement, ast.If)
                self._pending += [(other, module) for other in statement.orelse]
            elif not _exports(statement):
                self._pending.append((statement, module))

    def _follow_all(self) -> None:
        while self._pending:
            self._follow(*self._pending.pop())

    def _follow(self, code: ast.AST, module: Module) -> None:
        for node in walk(code):
            for name in _named(node):
                self._name(name)
            if finds_anything(node):
                self._see(self._project.modules)
            elif _sees_the_file(node):
                self._see(seen_from(self._project, module))

    def _name(self, name: str) -> None:
        for definition in self._waiting.pop(name, ()):
            self._pending.append((definition, self._homes[definition]))

    def _see(self, modules: Iterable[Module]) -> None:
        """Take it that whatever is in ``modules`` may run, and what they have imported by its name."""
        modules = [*modules]
        seen = {*modules} | star_imported(self._project, modules)
        for name in [d.name for d, home in self._homes.items() if home in seen]:
            self._name(name)
        for name in imported_names(seen):
            self._name(name)


def _starts_training(project: Project) -> bool:
    """Whether a start of the entry comes to a training, by the names that it says."""
    tops: dict[str, list[ast.AST]] = {}
    pending: list[ast.AST] = []
    for module in project.modules:
        for statement in module.tree.body:
            if isinstance(statement, Definition):
                tops.setdefault(statement.name, []).append(statement)
            elif module is project.entry:
                pending.append(statement)
    while pending:
        for node in walk(pending.pop()):
            if isinstance(node, ast.Attribute) and node.attr in _TRAINING:
                return True
            for name in _named(node):
                pending += tops.pop(name, ())
    return False


def _needs_its_name(definition: ast.AST) -> TypeGuard[Definition]:
    """Whether the code of ``definition`` is reached by its name alone: no decorator and no base class has heard of it."""
    match definition:
        case ast.FunctionDef(name=name):
            return not definition.decorator_list and not name.startswith("__")
        case ast.ClassDef():
            bases = [ast.unparse(base) for base in definition.bases]
            return not (definition.decorator_list or definition.keywords) and bases in (
                [],
                ["object"],
            )
        case _:
            return False


def _exports(statement: ast.stmt) -> bool:
    """Whether ``statement`` fills ``__all__``: what a star import brings is used by its name, or not at all."""
    match statement:
        case ast.Assign(targets=[ast.Name("__all__")]) | ast.AugAssign(target=ast.Name("__all__")):
            return True
        case _:
            return False


def finds_anything(node: ast.AST) -> bool:
    """Whether ``node`` gets at definitions of any file by a text."""
    match node:
        case ast.Call(func=function):
            return last_identifier(function) in _FIND_ANYTHING
        case ast.Attribute(ast.Name("sys"), "modules"):
            return True
        case _:
            return False


def evaluates_text(node: ast.AST) -> bool:
    """Whether ``node`` gets at the definitions of its own file, and at what these see, by a text."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _SEE_THE_FILE
    )


def _sees_the_file(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    bare = not node.args and last_identifier(node.func) in _SEE_THE_FILE_ALONE
    return bare or evaluates_text(node)


def seen_from(project: Project, module: Module) -> Set[Module]:
    """``module`` and the files that its own names are, which a text can spell: ``eval("models.Net")``."""
    found = {module}
    for source in _imported(module.scopes.by_node[module.tree]):
        of_package = project.find_submodule(module, source)
        imported = of_package or (None if source.attribute else project.find(module, source))
        found |= {imported} if imported is not None else set()
    return found | star_imported(project, found)


def star_imported(project: Project, modules: Iterable[Module]) -> Set[Module]:
    """The files whose names ``modules`` take over, in any number of steps: ``from .vgg import *``."""
    found: set[Module] = set()
    pending = [*modules]
    while pending:
        module = pending.pop()
        stars = module.scopes.by_node[module.tree].star_imports
        new = {each for star in stars if (each := project.find(module, star)) is not None} - found
        found |= new
        pending += new
    return found


def imported_names(modules: Iterable[Module]) -> Iterator[str]:
    """What ``modules`` have imported from other files by its name."""
    for module in modules:
        for source in _imported(module.scopes.by_node[module.tree]):
            if source.attribute is not None:
                yield source.attribute


def _imported(scope: Scope) -> Iterator[Imported]:
    """The imports that bind names of ``scope``."""
    for bindings in scope.bindings.values():
        for binding in bindings:
            if isinstance(binding.source, Imported):
                yield binding.source


def _named(node: ast.AST) -> Iterable[str]:
    """The names by which ``node`` may stand for a definition: what a text says, too, and what an import renames."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
        case ast.alias(name=name, asname=str()):
            return [name.rpartition(".")[2]]
        case ast.Constant(value=str() as text):
            return text.replace(":", ".").split(".")
        case _:
            return ()
