"""Which functions and classes of imported files a start of the script may come to.

A file of helpers has more in it than any one script uses, and another script that is imported for one of its classes has
a training of its own. What no code that runs refers to is another script's to change. References are told by their names:
``engine.train`` is the ``train`` of whatever file there is. Where something is looked up by a name that is computed, all may run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..program.scopes import Defined, Imported
from ..program.syntax import Module, first_name
from ..program.trees import is_true, walk
from ..values.values import Class, External, FirstPartyModule
from .leftovers import (
    Definition,
    evaluates_text,
    finds_anything,
    imported_names,
    seen_from,
    star_imported,
)

if TYPE_CHECKING:
    from ..values.resolver import Resolver

_LOOK_INTO = frozenset({"getattr", "vars", "dir"})
_TOLD_OF_SUBCLASSES = "__init_subclass__"
_UNPICKLE = frozenset({"torch.load", "pickle.load", "dill.load", "cloudpickle.load", "joblib.load"})
"""Functions that may make objects of classes that only the file they read names."""


class _Reference(NamedTuple):
    """``name`` of the file ``module``; of whichever file where that is None."""

    module: Module | None
    name: str


class _Waiting:
    """The definitions at the top of imported files that nothing has come to yet."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[tuple[Definition, Module]]] = {}

    def add(self, definition: Definition, module: Module) -> None:
        self._by_name.setdefault(definition.name, []).append((definition, module))

    def take(self, references: Iterable[_Reference]) -> list[tuple[Definition, Module]]:
        """Those that one of ``references`` may mean; they wait no longer."""
        taken: list[tuple[Definition, Module]] = []
        for reference in references:
            found = self._by_name.pop(reference.name, [])
            meant = [each for each in found if reference.module in (None, each[1])]
            taken += meant
            if len(meant) < len(found):
                self._by_name[reference.name] = [each for each in found if each not in meant]
        return taken

    def take_all_of(self, modules: Set[Module]) -> list[tuple[Definition, Module]]:
        """Those of ``modules``, and what these have imported by its name; they wait no longer."""
        if not modules:
            return []
        names = [n for n, found in self._by_name.items() if any(m in modules for _, m in found)]
        own = [_Reference(module, name) for name in names for module in modules]
        return self.take([*own, *(_Reference(None, name) for name in imported_names(modules))])


class StartedCode:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._waiting = _Waiting()
        self._pending: list[tuple[ast.AST, Module]] = []

    def leaves_out(self, definition: ast.AST, module: Module) -> bool:
        """Whether no start of the script is seen to come to ``definition``, at the top of the imported file ``module``."""
        if module is self._resolver.project.entry or not isinstance(definition, Definition):
            return False
        return definition not in self._reached

    def leaves_out_code(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` is code of such a definition, and nothing that is not seen may come to it either."""
        if module is self._resolver.project.entry or module.function(node) is None:
            return False
        around = (each for each in module.ancestors(node) if module.parents[each] is module.tree)
        definition = next(around, None)
        return isinstance(definition, Definition) and definition not in self._may_be_reached

    @cached_property
    def _reached(self) -> Set[ast.AST]:
        """The statements at the top of files that may run."""
        project = self._resolver.project
        self._pending.append((project.entry.tree, project.entry))
        for module in project.modules:
            for statement in module.tree.body if module is not project.entry else ():
                if isinstance(statement, Definition) and self._needs_its_name(statement, module):
                    self._waiting.add(statement, module)
                else:
                    self._pending.append((statement, module))
        return frozenset(self._follow())

    @cached_property
    def _may_be_reached(self) -> Set[ast.AST]:
        """Those, and what may run without being seen to: of a file that may be kept under another name, or of one that is read."""
        project, reached = self._resolver.project, self._reached
        for given in self._resolver.leftovers.given:
            self._pending += self._waiting.take_all_of(seen_from(project, given))
        if self._unpickles():
            imported = (_Reference(None, name) for name in imported_names(project.modules))
            self._pending += self._waiting.take(imported)
            self._pending += self._waiting.take_all_of(star_imported(project, project.modules))
        return reached | frozenset(self._follow())

    def _follow(self) -> Iterator[ast.AST]:
        """The code that is pending, and what it leads to."""
        while self._pending:
            code, module = self._pending.pop()
            yield code
            for node in walk(code):
                if not module.leaves_out(node):
                    self._pending += self._waiting.take(self._references(node, module))
                    self._pending += self._waiting.take_all_of(self._searched(node, module))

    def _unpickles(self) -> bool:
        """Whether a file may be read that names the classes of the objects in it."""
        return any(
            not self._resolver.names(call.func, module).isdisjoint(_UNPICKLE)
            and not any(k.arg == "weights_only" and is_true(k.value) for k in call.keywords)
            for module in self._resolver.project.modules
            for call in module.calls_named("load")
        )

    def _needs_its_name(self, definition: Definition, module: Module) -> bool:
        """Whether nothing else knows ``definition`` once it is made: no decorator, metaclass or base class."""
        if definition.decorator_list:
            return False
        return isinstance(definition, ast.FunctionDef) or self._is_plain(definition, frozenset())

    def _is_plain(self, cls: ast.ClassDef, within: frozenset[ast.AST]) -> bool:
        """Whether no base class of ``cls`` keeps a list of what derives from it."""
        if cls in within or cls.keywords or cls.decorator_list:
            return False
        if any(getattr(part, "name", "") == _TOLD_OF_SUBCLASSES for part in cls.body):
            return False
        module = next(m for m in self._resolver.project.modules if cls in m.parents)
        for expression in cls.bases:
            for base in self._resolver.values(expression, module):
                match base:
                    case External(name) if name.startswith(("torch.", "builtins.object")):
                        pass
                    case Class(node) if self._is_plain(node, within | {cls}):
                        pass
                    case _:
                        return False
        return True

    def _references(self, node: ast.AST, module: Module) -> Iterator[_Reference]:
        """What ``node`` may mean of the definitions of the project."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                found = module.scope(node).lookup(name)
                if found is None:
                    yield _Reference(None, name)
                    return
                for binding in found[1]:
                    if isinstance(binding.source, Imported):
                        yield _Reference(None, binding.source.attribute or name)
                    elif isinstance(binding.source, Defined):
                        yield _Reference(module, name)
            case ast.Attribute(value=owner, attr=name, ctx=ast.Load()):
                if self._may_be_module(owner, module):
                    yield _Reference(None, name)
            case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str() as text), *_]):
                yield _Reference(None, text)
            case ast.Constant(str() as text) if "." in text or ":" in text:
                yield from (_Reference(None, n) for n in text.replace(":", ".").split("."))
            case _:
                pass

    def _searched(self, node: ast.AST, module: Module) -> Set[Module]:
        """The files of which ``node`` may get at a definition without its name: ``getattr(models, args.arch)``."""
        owner: ast.expr | None = None
        match node:
            case _ if evaluates_text(node):
                return seen_from(self._resolver.project, module)
            case _ if finds_anything(node):
                return {*self._resolver.project.modules}
            case ast.Attribute(owner, "__dict__"):
                pass
            case ast.Call(func=ast.Name(id=name), args=[owner, *more]) if name in _LOOK_INTO:
                if more and isinstance(more[0], ast.Constant):
                    return frozenset()
            case _:
                return frozenset()
        values = self._resolver.values(owner, module)
        homes = [v.module for v in values if isinstance(v, FirstPartyModule)]
        return {seen for home in homes for seen in seen_from(self._resolver.project, home)}

    def _may_be_module(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` may be a file of the project, or something that is in a package."""
        root = first_name(node)
        found = module.scope(root).lookup(root.id) if root is not None else None
        if found is not None and any(isinstance(b.source, Imported) for b in found[1]):
            return True
        return any(isinstance(v, FirstPartyModule) for v in self._resolver.values(node, module))
