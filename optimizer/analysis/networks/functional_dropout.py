"""Calls of ``F.dropout`` and its relatives that do not say whether the network trains.

``torch.nn.functional.dropout`` drops out whenever it runs: unlike ``nn.Dropout``, ``model.eval()`` does not reach it
(https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.classes import class_attribute
from ..program.project import Project
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, Function
from .models import is_module_class

TRAINING_POSITION = 2
"""Of ``training`` among the parameters of the functions below, whose default for it is True."""
_FUNCTIONS = frozenset(f"torch.nn.functional.dropout{n}" for n in ("", "1d", "2d", "3d"))
_WANTED_AT_TEST_TIME = re.compile(
    r"\bmc_?drop|monte[\s_-]*carlo|bayes|uncertainty|always[\s_-]on|test[\s_-]time[\s_-]dropout",
    re.IGNORECASE,
)
_MC = re.compile(r"\bMC\b|\bmc_|_mc\b|MCDrop")
_PHASES = frozenset(
    "train training eval evaluate evaluation evaluating test testing infer inference phase mode stage val valid "
    "validation predict mc".split()
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, eq=False)
class FunctionalDropout(Fact):
    """A call of a functional dropout without ``training=``.

    ``instance`` is how the method around it calls its network; ``obstacle`` says why the network's mode may not be
    what decides about this dropout, None when it is.
    """

    node: ast.Call
    instance: str
    obstacle: str | None


def find_functional_dropouts(resolver: Resolver) -> tuple[FunctionalDropout, ...]:
    """Every call of a functional dropout that drops out whatever mode its network is in."""
    return tuple(
        _fact(resolver, call, module)
        for module in resolver.project.modules
        if "dropout" in module.source.text
        for call in module.calls
        if resolver.names(call.func, module) & _FUNCTIONS
        and call_argument(call, "training", TRAINING_POSITION) is None
    )


def _fact(resolver: Resolver, call: ast.Call, module: Module) -> FunctionalDropout:
    method = _method_around(resolver, call, module)
    instance = method.args.args[0].arg if method is not None else ""
    return FunctionalDropout(module, call, instance, _obstacle(resolver, call, module, method))


def _method_around(resolver: Resolver, call: ast.Call, module: Module) -> FunctionNode | None:
    """The method of a network in whose body ``call`` stands, functions defined inside included."""
    child: ast.AST = call
    for ancestor in module.ancestors(call):
        if isinstance(ancestor, ast.ClassDef):
            is_method = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if not is_method or not is_module_class(resolver, Class(ancestor, module)):
                return None
            assert isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            names = {ast.unparse(decorator) for decorator in child.decorator_list}
            has_instance = bool(child.args.args) and not names & {"staticmethod", "classmethod"}
            return child if has_instance else None
        child = ancestor
    return None


def _obstacle(
    resolver: Resolver, call: ast.Call, module: Module, method: FunctionNode | None
) -> str | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return "its arguments are passed through `*` or `**` and may say `training` already"
    if len(resolver.values(call.func, module)) > 1:
        return f"`{module.code(call.func)}` may be another function too"
    if method is None:
        return "it stands in no method of a network, so there is no `self.training` to ask"
    cls = Class(_class_of(method, module), module)
    return (
        _not_the_instance(call, module, method)
        or _own_mode(resolver, cls)
        or _asked_already(resolver, call, module, method)
        or _wanted_always(resolver.project, cls, method)
    )


def _class_of(method: FunctionNode, module: Module) -> ast.ClassDef:
    owner = module.parents[method]
    assert isinstance(owner, ast.ClassDef)
    return owner


def _not_the_instance(call: ast.Call, module: Module, method: FunctionNode) -> str | None:
    name = method.args.args[0].arg
    found = module.scope(call).lookup(name)
    if found is not None and found[0].node is method:
        bindings = found[1]
        if len(bindings) == 1 and isinstance(bindings[0].source, Parameter):
            return None
    return f"`{name}` is not the network where it runs"


def _own_mode(resolver: Resolver, cls: Class) -> str | None:
    for name in ("train", "eval", "training"):
        if any(
            isinstance(value, Function) for value in class_attribute(resolver, cls, name)
        ) or any(getattr(statement, "name", "") == name for statement in cls.node.body):
            return f"`{cls.node.name}` defines `{name}` itself"
    return None


def _asked_already(
    resolver: Resolver, call: ast.Call, module: Module, method: FunctionNode
) -> str | None:
    """Whether code around the call decides by the mode, or by something that may be named after it."""
    if set(_words(method.name)) & _PHASES:
        return f"it runs in `{method.name}`, which may belong to one mode"
    for node in walk(method):
        if isinstance(node, ast.Attribute) and node.attr == "training":
            parent = module.parents[node]
            said = isinstance(parent, ast.keyword) and parent.arg == "training"
            if not said and not isinstance(parent, ast.Call):
                return f"`{method.name}` asks `{module.code(node)}` itself"
    places = [(call, module), *((s.call, s.module) for s in resolver.call_sites(method))]
    for place, owner in places if method.name != "forward" else places[:1]:
        for condition in _conditions(place, owner):
            words = {word for name in _identifiers(condition) for word in _words(name)}
            if words & _PHASES:
                return f"`{owner.code(condition)}` decides whether it runs"
    for argument in (*call.args[1:], *(k.value for k in call.keywords)):
        if {word for name in _identifiers(argument) for word in _words(name)} & _PHASES:
            return f"`{module.code(argument)}` may depend on the mode"
    return None


def _wanted_always(project: Project, cls: Class, method: FunctionNode) -> str | None:
    """Whether the sources speak of dropout that is meant to stay on: Monte Carlo dropout, a generator's noise."""
    if "generator" in _words(cls.node.name):
        return f"the dropout of `{cls.node.name}` may be its source of noise"
    for module in project.modules:
        for number, line in enumerate(module.lines, start=1):
            if _WANTED_AT_TEST_TIME.search(line) or _MC.search(line):
                return f"{module.place(number)} may mean to keep dropout on in evaluation"
    return None


def _conditions(node: ast.AST, module: Module) -> Iterator[ast.expr]:
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.If | ast.IfExp | ast.While) and child is not ancestor.test:
            yield ancestor.test
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _early_returns(ancestor)
            return
        child = ancestor


def _early_returns(function: FunctionNode) -> Iterator[ast.expr]:
    """The conditions under which ``function`` returns before its end."""
    for statement in function.body:
        if isinstance(statement, ast.If) and any(
            isinstance(node, ast.Return) for node in walk(statement)
        ):
            yield statement.test


def _identifiers(expression: ast.AST) -> Iterator[str]:
    for node in walk(expression):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _words(name: str) -> Iterator[str]:
    """The words of an identifier, in lower case: ``is_training`` and ``isTraining`` have ``training``."""
    return (word.lower() for word in _WORD.findall(name))
