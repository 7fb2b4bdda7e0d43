"""Which functions and classes of imported files a start of the script may come to.

A file of helpers has more in it than any one script uses, and another script that is imported for one of its classes has
a training of its own. What no code that runs refers to is another script's to change. References are told by their names:
``engine.train`` is the ``train`` of whatever file there is. Where something is looked up by a name that is computed, all may run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from itertools import chain
from typing import NamedTuple

from ..program.scopes import Defined, Imported
from ..program.syntax import Module, first_name
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, External, FirstPartyModule
from .leftovers import Definition, evaluates_text, finds_anything, imported_names, seen_from

_LOOK_INTO = frozenset({"getattr", "vars", "dir"})
_TOLD_OF_SUBCLASSES = "__init_subclass__"


class _Reference(NamedTuple):
    """``name`` of the file ``module``; of whichever file where that is None."""

    module: Module | None
    name: str


class StartedCode:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._reached: set[ast.AST] | None = None

    def leaves_out(self, definition: ast.AST, module: Module) -> bool:
        """Whether no start of the script comes to ``definition``, at the top of the imported file ``module``."""
        if module is self._resolver.project.entry or not isinstance(definition, Definition):
            return False
        if self._reached is None:
            self._reached = set(self._reach())
        return definition not in self._reached

    def _reach(self) -> Iterator[ast.AST]:
        """The definitions at the top of imported files that may run."""
        entry, modules = self._resolver.project.entry, self._resolver.project.modules
        waiting: dict[str, list[tuple[Definition, Module]]] = {}
        pending: list[tuple[ast.AST, Module]] = [(entry.tree, entry)]
        for module in modules:
            for statement in module.tree.body if module is not entry else ():
                if isinstance(statement, Definition) and self._needs_its_name(statement, module):
                    waiting.setdefault(statement.name, []).append((statement, module))
                else:
                    pending.append((statement, module))
        while pending:
            code, module = pending.pop()
            yield code
            for node in walk(code):
                if module.leaves_out(node):
                    continue
                searched = self._searched(node, module)
                imports = (_Reference(None, name) for name in imported_names(searched))
                for reference in chain(self._references(node, module), imports):
                    for definition in [*waiting.get(reference.name, ())]:
                        if reference.module in (None, definition[1]):
                            pending.append(definition)
                            waiting[reference.name].remove(definition)
                for definition in [*chain.from_iterable(waiting.values())] if searched else ():
                    if definition[1] in searched:
                        pending.append(definition)
                        waiting[definition[0].name].remove(definition)

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
                    return set()
            case _:
                return set()
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
