"""Networks that have the same parameters in the same order, each its own: a target network and the one that it follows.

The one is a deep copy of the other, or both are made by equal calls. Where such calls share a part (an encoder that both are
given), it is the same parameter at the same place of both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ..calls.signatures import argument_for
from ..facts import Fact, Model
from ..obstacles import Obstacle
from ..program.classes import class_attribute
from ..program.reaching import bindings_of
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, Module, first_name, last_identifier
from ..program.trees import is_name, walk
from ..values.resolver import Resolver
from ..values.values import Class, External, Literal, Made
from .forward_code import layer_classes
from .models import is_module_class, is_module_value, model_of, unwrap
from .network_layers import has_parameters, network_code

Place = tuple[ast.expr, Module]
Pair = tuple[Place, Place]
_REPEATING = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
_COPY = "copy.deepcopy"
_DEEPEST = 4
"""So many functions may hand the networks on to each other."""
_PURE = frozenset(
    f"builtins.{name}" for name in "len int float bool str max min abs sum tuple list".split()
) | {"numpy.prod", "numpy.array", "math.prod"}
"""Functions that return the same for the same arguments."""
_REBUILDS = frozenset(
    {"weight_norm", "spectral_norm", "remove_weight_norm", "remove_spectral_norm"}
)
_REGISTERS = frozenset({"add_module", "register_module", "register_parameter"})
_OWN = frozenset({"data", "weight", "bias"})


class EqualNetworks:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def obstacle(self, target: ast.expr, source: ast.expr, module: Module) -> Obstacle | None:
        """What keeps ``target`` and ``source`` from certainly being equal; None where they are."""
        pairs = list(self._pairs((target, module), (source, module)))
        made: dict[ast.Call, Model] = {}
        for pair in pairs:
            found = self._made_alike(*pair)
            if not found:
                code, other = module.code(target), module.code(source)
                why = f"`{code}` is not seen to be a copy of `{other}`, or made like it"
                return Obstacle(module, target, why)
            made |= {model.node: model for model in found}
        if not pairs:
            return Obstacle(module, target, "nothing in sight calls the function")
        models = tuple(made.values())
        if not all(has_parameters(self._resolver, model) for model in models):
            return Obstacle(
                module, target, f"`{module.code(target)}` is not seen to have parameters"
            )
        return (
            self._rebuilt(made, pairs)
            or self._replaces_layers(models)
            or self._shared_memory(models)
        )

    def _pairs(self, target: Place, source: Place, depth: int = 0) -> Iterator[Pair]:
        """The two expressions as the callers of the function around them give them."""
        functions = {self._function(place) for place in (target, source)} - {None}
        if not functions:
            yield target, source
            return
        function = functions.pop()
        if functions or function is None or depth > _DEEPEST:
            return
        for site in self._resolver.call_sites(function):
            given: list[Place] = []
            for node, module in (target, source):
                if self._function((node, module)) is None:
                    given.append((node, module))
                elif isinstance(node, ast.Name):
                    passed = argument_for(function, node.id, site.call, site.bound)
                    if passed is not None and passed.given is not None:
                        given.append((passed.given, site.module))
            if len(given) == 2:
                yield from self._pairs(given[0], given[1], depth + 1)
            else:
                yield target, source

    def _function(self, place: Place) -> FunctionNode | None:
        """The function of which the variable that ``place`` begins with is a parameter, ``self`` aside."""
        node, module = place
        name = first_name(node)
        if name is None:
            return None
        for binding in bindings_of(module, name):
            source = binding.source
            if isinstance(source, Parameter) and isinstance(
                source.function, ast.FunctionDef | ast.AsyncFunctionDef
            ):
                return None if self._is_self(name, module) else source.function
        return None

    def _is_self(self, name: ast.Name, module: Module) -> bool:
        return name.id == "self" and module.enclosing_class(name) is not None

    # How the networks are made

    def _made_alike(self, target: Place, source: Place) -> list[Model]:
        """What makes the two networks, where all of it makes equal ones; else nothing."""
        targets, sources = self._origins(*target), self._origins(*source)
        if not targets or not sources:
            return []
        models = list((targets | sources).values())
        alike = all(
            self._runs_once(model) or self._is_of_one_owner(model, target, source)
            for model in models
        )
        return models if alike and all(self._equal(models[0], m) for m in models[1:]) else []

    def _is_of_one_owner(self, model: Model, target: Place, source: Place) -> bool:
        """Whether the networks are of one object, or of one run of a function, which made both: ``self.net`` and ``self.target``."""
        function = model.function
        if function is None or _is_repeated(model):
            return False
        (one, module), (other, at) = target, source
        if isinstance(one, ast.Name) and isinstance(other, ast.Name):
            return module.function(one) is function and at.function(other) is function
        if _owner(one) != _owner(other) or model.module.enclosing_class(model.node) is None:
            return False
        return function.name == "__init__" or len(self._resolver.call_sites(function)) <= 1

    def _runs_once(self, made: Fact, depth: int = 0) -> bool:
        """Whether every run of the call ``made`` makes an equal network, since there is but one."""
        if _is_repeated(made) or depth > _DEEPEST:
            return False
        if made.function is None:
            return True
        sites = self._resolver.call_sites(made.function)
        return len(sites) == 1 and self._runs_once(Fact(sites[0].module, sites[0].call), depth + 1)

    def _origins(self, node: ast.expr, module: Module, depth: int = 0) -> dict[ast.Call, Model]:
        """The calls that make ``node``, copies being followed to what they copy; nothing where one is not known."""
        found: dict[ast.Call, Model] = {}
        for value in unwrap(self._resolver, self._resolver.values(node, module)):
            match value:
                case Literal(None):  # `self.target = None`, before it is made
                    continue
                case Made(call, at, External(name)) if name == _COPY and call.args:
                    copied = self._origins(call.args[0], at, depth + 1) if depth < 3 else {}
                    if not copied:
                        return {}
                    found |= copied
                case _:
                    model = model_of(self._resolver, value)
                    if model is None:
                        return {}
                    found[model.node] = model
        return found

    def _equal(self, one: Model, other: Model) -> bool:
        if one.node is other.node:
            return True
        if (one.cls, one.library_name) != (other.cls, other.library_name):
            return False
        if one.module is not other.module or one.function is not other.function:
            return False
        given, others = _given(one.node), _given(other.node)
        return [ast.dump(node) for node in given] == [ast.dump(node) for node in others] and all(
            self._same(a, b, one.module) for a, b in zip(given, others, strict=True)
        )

    def _same(self, one: ast.expr, other: ast.expr, module: Module) -> bool:
        """Whether two expressions that read alike have the same value."""
        for a, b in zip(walk(one), walk(other), strict=True):
            if isinstance(a, ast.Name) and isinstance(b, ast.Name):
                if set(bindings_of(module, a)) != set(bindings_of(module, b)):
                    return False
            elif isinstance(a, ast.Call):
                if not self._gives_the_same(a, module):
                    return False
            elif isinstance(a, ast.Await | ast.Yield | ast.NamedExpr | ast.Lambda):
                return False
        return True

    def _gives_the_same(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` returns the same for the same arguments, or makes a new layer of the same shape."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "prod":
            return True
        values = self._resolver.values(call.func, module)
        return all(
            (
                isinstance(value, External)
                and (value.name in _PURE or re.fullmatch(r"torch\.nn\.[A-Z]\w*", value.name))
            )
            or (isinstance(value, Class) and is_module_class(self._resolver, value))
            for value in values
        )

    # What is done to them later

    def _rebuilt(self, made: dict[ast.Call, Model], pairs: Sequence[Pair]) -> Obstacle | None:
        """Where a part of one of the networks is replaced once it is made."""
        for module in self._resolver.project.modules:
            for node in module.nodes_of(ast.Assign):
                if isinstance(node.value, ast.Constant | ast.Compare):
                    continue
                if _is_mirrored(node, module, pairs) or self._is_copied_later(node, module, pairs):
                    continue
                for target in node.targets:
                    if isinstance(target, ast.Attribute | ast.Subscript) and self._is_part(
                        target.value, module, made
                    ):
                        return Obstacle(module, node, "a part of one of the networks is set")
            for call in module.calls:
                if self._rebuilds(call, module, made):
                    return Obstacle(module, call, "a part of one of the networks is replaced")
        return None

    def _is_copied_later(self, node: ast.Assign, module: Module, pairs: Sequence[Pair]) -> bool:
        """Whether one network of each pair is a copy that is made once ``node`` has run."""
        for pair in pairs:
            copies = next((found for place in pair if (found := self._copies(place))), ())
            facts = [Fact(copy.module, copy.call) for copy in copies]
            if not facts or not all(self._runs_below(fact, node, module) for fact in facts):
                return False
        return True

    def _runs_below(self, fact: Fact, node: ast.stmt, module: Module, depth: int = 0) -> bool:
        """Whether ``fact``, or every call of the function that it is in, stands in the block of ``node`` and below it."""
        block, around = module.block(node), {fact.node, *fact.module.ancestors(fact.node)}
        if not around.isdisjoint(block[block.index(node) + 1 :]):
            return True
        if fact.function is None or depth > _DEEPEST:
            return False
        sites = self._resolver.call_sites(fact.function)
        return bool(sites) and all(
            self._runs_below(Fact(site.module, site.call), node, module, depth + 1)
            for site in sites
        )

    def _copies(self, place: Place) -> frozenset[Made]:
        """The calls of ``copy.deepcopy`` that ``place`` is made by; nothing where it may be something else."""
        values = unwrap(self._resolver, self._resolver.values(*place))
        copies = frozenset(v for v in values if isinstance(v, Made) and v.maker == External(_COPY))
        return copies if len(copies) == len(values) else frozenset()

    def _rebuilds(self, call: ast.Call, module: Module, made: dict[ast.Call, Model]) -> bool:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method in _REGISTERS and isinstance(call.func, ast.Attribute):
            return self._is_part(call.func.value, module, made)
        names = self._resolver.names(call.func, module)
        rebuilds = any(
            name == "builtins.setattr"
            or name.startswith(("torch.nn.utils.parametri", "torch.nn.utils.prune"))
            or (name.startswith("torch.nn.utils.") and name.rpartition(".")[2] in _REBUILDS)
            for name in names
        )
        return rebuilds and any(self._is_part(node, module, made) for node in call.args)

    def _is_part(self, node: ast.expr, module: Module, made: dict[ast.Call, Model]) -> bool:
        """Whether ``node`` is one of the networks or a part of it, seen from outside."""
        holder = node
        while True:
            origins = self._origins(holder, module)
            if not made.keys().isdisjoint(origins):
                return True
            if not isinstance(holder, ast.Attribute | ast.Subscript):
                return False
            holder = holder.value

    def _shared_memory(self, models: tuple[Model, ...]) -> Obstacle | None:
        """Where two parameters of a network may be views of one memory."""
        for reached in network_code(self._resolver, models):
            node, module = reached.node, reached.module
            if isinstance(node, ast.Call) and "torch.nn.Parameter" in self._resolver.names(
                node.func, module
            ):
                given = node.args[0] if node.args else None
                if isinstance(given, ast.Attribute | ast.Subscript) or (
                    isinstance(given, ast.Name) and len(_parameters_of(given, module)) > 1
                ):
                    return Obstacle(module, node, "two parameters may be views of one memory")
        return next(rebound_memory(self._resolver), None)

    def _replaces_layers(self, models: tuple[Model, ...]) -> Obstacle | None:
        """A method by which a network replaces its own layers once it is made."""
        for cls in layer_classes(self._resolver, models):
            for name in ("parameters", "named_parameters"):
                if class_attribute(self._resolver, cls, name):
                    return Obstacle(cls.module, cls.node, f"a network has `{name}` of its own")
            for method in cls.node.body:
                if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
                    continue
                sites = self._resolver.call_sites(method)
                if sites and all(_is_in_init(site.call, site.module) for site in sites):
                    continue
                for node in walk(method):
                    if self._sets_layer(node, cls.module):
                        return Obstacle(cls.module, node, "a network replaces a part of itself")
        return None

    def _sets_layer(self, node: ast.AST, module: Module) -> bool:
        if isinstance(node, ast.Call):
            return last_identifier(node.func) in _REGISTERS | {"setattr"}
        if not isinstance(node, ast.Assign):
            return False
        return any(_is_of_self(target) for target in node.targets) and any(
            is_module_value(self._resolver, value)
            or (isinstance(value, Made) and value.maker == External("torch.nn.Parameter"))
            for value in self._resolver.values(node.value, module)
        )


def rebound_memory(resolver: Resolver) -> Iterator[Obstacle]:
    """Where a parameter is given the memory of another one: ``a.data = b.data``."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Assign):
            sets = any(isinstance(t, ast.Attribute) and t.attr == "data" for t in node.targets)
            if sets and isinstance(node.value, ast.Attribute) and node.value.attr in _OWN:
                yield Obstacle(module, node, "parameters may share their memory")


def _parameters_of(name: ast.Name, module: Module) -> list[ast.Name]:
    """The places where the tensor ``name`` is made a parameter."""
    calls = (module.parents[use] for use in module.names_of(name.id))
    return [
        name
        for call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute | ast.Name)
        and ast.unparse(call.func).endswith("Parameter")
    ]


def _is_of_self(target: ast.expr) -> bool:
    """Whether ``target`` is an attribute of ``self``, or a part of one."""
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return False
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return is_name(target, "self")


def _is_repeated(made: Fact) -> bool:
    """Whether a loop, a comprehension or a function without a name may run the call ``made`` several times."""
    if made.module.loops(made.node):
        return True
    for around in made.module.ancestors(made.node):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(around, _REPEATING):
            return True
    return False


def _is_mirrored(node: ast.Assign, module: Module, pairs: Sequence[Pair]) -> bool:
    """Whether the statement beside ``node`` does the same to the other network of a pair."""
    block, text = module.block(node), ast.unparse(node)
    index = block.index(node)
    beside = {
        ast.unparse(s) for s in (*block[max(index - 1, 0) : index], *block[index + 1 : index + 2])
    }
    for (target, _), (source, _) in pairs:
        one, other = ast.unparse(target), ast.unparse(source)
        for this, that in ((one, other), (other, one)):
            mirrored = re.sub(rf"(?<![\w.]){re.escape(this)}(?!\w)", that, text)
            if mirrored != text and mirrored in beside:
                return True
    return False


def _is_in_init(call: ast.Call, module: Module) -> bool:
    function = module.function(call)
    return function is not None and function.name == "__init__"


def _owner(node: ast.expr) -> str:
    """``self`` of ``self.net``; nothing for a variable."""
    return ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]
