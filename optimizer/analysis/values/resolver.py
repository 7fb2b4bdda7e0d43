"""Traces expressions to the values they may have, across functions, classes and first-party modules.

The trace is flow-sensitive within a scope (see :mod:`..program.reaching`) and context-insensitive across calls: a parameter
may be whatever any call of the project passes. A set with an :class:`Unknown` in it is not exhaustive.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..calls.call_index import Call, CallIndex
from ..calls.leftovers import Leftovers
from ..calls.started_code import StartedCode
from ..distributed.spawned import process_starts
from ..program.classes import (
    class_attribute,
    defines_methods_only,
    find_decorated,
    find_subclasses,
    first_party_bases,
    self_attribute,
)
from ..program.project import Project
from ..program.syntax import FunctionNode, Module
from .compound_values import attribute_values, call_values, subscript_values
from .named_values import attribute_once_imported, imported_values, name_values
from .options import declared_options, parser_defaults
from .questions import Answers, Questions
from .values import (
    Class,
    Display,
    External,
    Function,
    Instance,
    Literal,
    Made,
    Names,
    Unknown,
    Value,
    external,
    union,
    without_rounds,
)

MOST_VALUES = 1_700
"""Three times the 563 that any expression may be in fourteen collections of scripts (Lightning-bolts; 229 in the others).
What layers are made of by functions that are handed from class to class may be a million things, which nobody can use."""
Values = frozenset[Value]
_NONE: Values = frozenset()


class Resolver:
    """Answers what an expression of ``project`` may be. Answers are remembered; the project does not change."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._questions = Questions()
        self._values = Answers[ast.expr, Values](_NONE, _not_exhaustive, without_rounds)
        self._attributes = Answers[tuple[Module, str], Values](
            _NONE, _not_exhaustive, without_rounds
        )
        self._call_sites = Answers[FunctionNode, tuple[CallSite, ...]]((), None)
        self._imported_names: dict[Module, dict[str, Values]] = {}
        self._names: dict[ast.expr, frozenset[str]] = {}
        self._base_names: dict[ast.ClassDef, frozenset[str]] = {}
        self._callees = Answers[tuple[ast.Call, Module], tuple[Function, ...]](
            (), None, changed=self._note, settled=lambda key: self._calls.settle(*key)
        )
        self._known_methods: dict[tuple[Class | Instance, str], tuple[Function, ...]] = {}
        self._calls = CallIndex(project)
        self._to_ask: dict[str, list[Call]] = {}
        """The calls of each kind asked about since the outermost open question was that are still to be."""
        self._asked_in = 0
        self.called: dict[ast.Call, tuple[tuple[FunctionNode | ast.Lambda, Module], ...]] = {}
        """What :func:`..calls.reach.called` found."""
        self.made: dict[ast.ClassDef, list[Made]] | None = None
        """What is made of each class, once that is known: see :mod:`..networks.models`."""
        self._subclasses: dict[ast.ClassDef, list[Class]] = {}
        self._decorated: dict[ast.AST, list[Value]] = {}
        self._subclasses = find_subclasses(self)
        self._decorated = find_decorated(self)

    @property
    def is_tracing(self) -> bool:
        """Whether an answer is being looked for: what is found until then may lack what cycles lead to."""
        return self._questions.open

    def values(self, expression: ast.expr, module: Module) -> Values:
        """What ``expression`` may evaluate to; never empty, an :class:`Unknown` stands for no answer."""
        if known := self._values.final.get(expression):
            return known
        if of_library := self._library_values(expression, module):
            return of_library
        found = self._questions.ask(
            expression, self._values, lambda: _bounded(self._evaluate(expression, module))
        )
        # Within a trace, no values means a cycle that adds nothing to the other possibilities.
        if found or self.is_tracing:
            return found
        return frozenset([Unknown("depends only on itself")])

    def _library_values(self, expression: ast.expr, module: Module) -> Values | None:
        """What ``torch.nn.Linear`` and its like may be: most of a script's expressions, so told without a trace."""
        if isinstance(expression, ast.Name):
            found = self._library_names(module).get(expression.id)
        elif isinstance(expression, ast.Attribute):
            base = self._values.final.get(expression.value) or self._library_values(
                expression.value, module
            )
            if base is None or len(base) > 1:
                return None
            (owner,) = base
            if not isinstance(owner, External):
                return None
            found = external(f"{owner.name}.{expression.attr}")
        else:
            return None
        if found is not None:
            self._values.final[expression] = found
        return found

    def _library_names(self, module: Module) -> dict[str, Values]:
        """What the names are that ``module`` binds once, importing them from a library."""
        known = self._imported_names.get(module)
        if known is None:
            known = self._imported_names[module] = {
                name: values
                for name, source in module.imported_once.items()
                if self.project.find(module, source) is None
                and isinstance(
                    next(iter(values := imported_values(self, source, module))), External
                )
            }
        return known

    @cached_property
    def options(self) -> dict[str, tuple[ast.Call, Module]]:
        """The ``add_argument`` calls of the project by what they fill."""
        return declared_options(self.project)

    @cached_property
    def process_starts(self) -> list[tuple[ast.Call, Module, str]]:
        """The calls of the project that start processes and threads, judged by their names: see :mod:`..distributed.spawned`."""
        return process_starts(self.project)

    @cached_property
    def set_defaults(self) -> dict[str, list[tuple[ast.keyword, Module]]]:
        """What the parsers of the project set beside options, by the attribute: ``set_defaults(func=train)``."""
        return parser_defaults(self.project)

    def names(self, expression: ast.expr, module: Module) -> frozenset[str]:
        """The library names ``expression`` may stand for."""
        known = self._names.get(expression)
        if known is not None:
            return known
        values = self.values(expression, module)
        found = Names([v.name for v in values if isinstance(v, External)])
        if expression in self._values.final:
            self._names[expression] = found
        return found

    def maker_names(self, expression: ast.expr, module: Module) -> frozenset[str]:
        """The library callables whose result ``expression`` may be."""
        return Names(
            v.maker.name
            for v in self.values(expression, module)
            if isinstance(v, Made) and isinstance(v.maker, External)
        )

    def literal(self, expression: ast.expr, module: Module) -> object:
        """The one literal value of ``expression``; raises :class:`LookupError` when there is no single one."""
        values = self.values(expression, module)
        if len(values) == 1 and isinstance(value := next(iter(values)), Literal):
            return value.value
        raise LookupError(ast.unparse(expression))

    def is_always(self, expression: ast.expr, module: Module, wanted: object) -> bool:
        """Whether ``expression`` is certainly the constant ``wanted``: True, False or None."""
        values = self.values(expression, module)
        return bool(values) and all(isinstance(v, Literal) and v.value is wanted for v in values)

    def call_sites(self, function: FunctionNode) -> tuple[CallSite, ...]:
        """The calls of the project that reach ``function`` (for a method: through an instance or a class)."""
        return self._questions.ask(
            function, self._call_sites, lambda: tuple(self._find_call_sites(function))
        )

    def may_reach(self, call: ast.Call, module: Module, function: FunctionNode) -> bool:
        """Whether ``call`` may reach ``function`` by its names alone: no object stands for what is only called by its own."""
        return self._calls.may_reach(call, module, function)

    def callees(self, call: ast.Call, module: Module) -> tuple[Function, ...]:
        """The first-party functions ``call`` may run: functions, methods, ``__init__`` and ``forward``."""
        return self._questions.ask(
            (call, module), self._callees, lambda: tuple(self._find_callees(call, module))
        )

    @property
    def leftovers(self) -> Leftovers:
        """The functions and classes that nothing names."""
        return self._calls.leftovers

    @cached_property
    def started(self) -> StartedCode:
        """Which functions and classes of imported files a start of the script may come to."""
        return StartedCode(self)

    def classes(self, expression: ast.expr, module: Module) -> Iterator[Class]:
        """The first-party classes that ``expression`` may be an object of."""
        for value in self.values(expression, module):
            if isinstance(value, Instance):
                yield value.cls
            elif isinstance(value, Made) and isinstance(value.maker, Class):
                yield value.maker

    def _find_callees(self, call: ast.Call, module: Module) -> list[Function]:
        found: list[Function] = []
        for value in self.values(call.func, module):
            if isinstance(value, Function):
                found.append(value)
            elif isinstance(value, Class):
                found.extend(self._methods(value, "__init__"))
            elif isinstance(value, Instance):
                found.extend(self._methods(value, "forward") or self._methods(value, "__call__"))
            elif isinstance(value, Made) and isinstance(value.maker, Class):
                maker = value.maker
                found.extend(self._methods(maker, "forward") or self._methods(maker, "__call__"))
        return found

    def base_names(self, cls: Class) -> frozenset[str]:
        """The library classes a first-party class derives from, directly or not."""
        known = self._base_names.get(cls.node)
        if known is None:
            known = Names(
                name
                for ancestor in (cls, *first_party_bases(self, cls))
                for base in ancestor.node.bases
                for name in self.names(base, ancestor.module)
            )
            if not self.is_tracing:
                self._base_names[cls.node] = known
        return known

    def subclasses(self, cls: Class) -> tuple[Class, ...]:
        """The first-party classes that derive from ``cls``, directly or not."""
        return tuple(self._subclasses.get(cls.node, ()))

    def _methods(self, of: Class | Instance, name: str) -> tuple[Function, ...]:
        """The methods ``name`` of an object made by the class ``of``, or of the ``self`` that ``of`` is."""
        known = self._known_methods.get((of, name))
        if known is not None:
            return known
        if isinstance(of, Instance):
            values, classes = self_attribute(self, of.cls, name), (of.cls, *self.subclasses(of.cls))
        else:
            values, classes = class_attribute(self, of, name), (of,)
        found = tuple(value for value in values if isinstance(value, Function))
        if not self.is_tracing or defines_methods_only(self, classes, name):
            self._known_methods[of, name] = found
        return found

    def or_else(self, found: Values, *, stands_for_none: Value) -> Values:
        """``found``, or what stands for there being nothing: within a cycle only once nothing more can be found."""
        return self._questions.or_else(found, frozenset([stands_for_none]))

    def is_known(self, expression: ast.expr) -> bool:
        """Whether what ``expression`` may be is found already, whatever is still being traced."""
        return expression in self._values.final

    def _find_call_sites(self, function: FunctionNode) -> list[CallSite]:
        if self._asked_in != self._questions.answered:
            self._asked_in = self._questions.answered
            self._to_ask.clear()
        for kind in self._calls.open_kinds(function):
            # Asked about once, the calls tell by themselves what becomes of them: there may be thousands, for thousands of functions.
            if kind in self._to_ask:
                self._questions.lean_on_outermost()
            else:
                self._to_ask[kind] = self._calls.open_calls(kind)[::-1]
            self._ask_about(self._to_ask[kind])
        return [CallSite(*site) for site in self._calls.sites(function)]

    def _ask_about(self, calls: list[Call]) -> None:
        """Ask about ``calls`` from the last to the first. What is asked meanwhile goes on with the same list."""
        while calls:
            call, module = calls.pop()
            try:
                self.callees(call, module)
            except BaseException:
                calls.append((call, module))
                raise

    def _note(self, key: tuple[ast.Call, Module], callees: tuple[Function, ...]) -> None:
        for function in self._calls.note(*key, callees):
            self._questions.ask_again(function)

    def _evaluate(self, node: ast.expr, module: Module) -> Values:
        match node:
            case ast.Name():
                return name_values(self, node.id, node, module)
            case ast.Attribute():
                return attribute_values(self, node, module)
            case ast.Call():
                return call_values(self, node, module)
            case ast.Constant():
                return frozenset([Literal(node.value, node, module)])
            case ast.IfExp():
                return self.values(node.body, module) | self.values(node.orelse, module)
            case ast.BoolOp():
                return union(self.values(v, module) for v in node.values)
            case ast.NamedExpr():
                return self.values(node.value, module)
            case ast.Subscript():
                return subscript_values(self, node, module)
            case ast.Lambda():
                return frozenset([Function(node, module)])
            case ast.Starred() | ast.Await():
                return frozenset([Unknown("starred or awaited expression")])
            case _:
                return frozenset([Display(node, module)])

    def decorated(self, function: FunctionNode) -> Sequence[Value]:
        """The classes and functions that have ``function`` for their decorator, which gives them back as they are."""
        return self._decorated.get(function, ())

    def module_attribute(self, module: Module, name: str) -> Values:
        """What the attribute ``name`` of a first-party module may be once the module is imported."""
        return self._questions.ask(
            (module, name), self._attributes, lambda: attribute_once_imported(self, module, name)
        )


@dataclass(frozen=True)
class CallSite:
    """A call that reaches a first-party function; ``bound`` when the instance fills its first parameter."""

    call: ast.Call
    module: Module
    bound: bool


def _bounded(values: Values) -> Values:
    return values if len(values) <= MOST_VALUES else frozenset([Unknown("it may be too much")])


def _not_exhaustive(values: Values) -> Values:
    return values | {Unknown("the trace is too long")}
