"""In which mode, train or eval, networks are where loops over data start: ``model.eval()`` and ``model.train()``, in order of execution."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import lexical_nodes, reached_nodes
from ..facts import Fact, Loop, LoopKind, Model
from ..program.classes import class_attribute
from ..program.syntax import LoopNode, Module, first_name
from ..program.trees import walk
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import External, Function, Made
from .forward_code import layer_classes
from .models import models_in


class Mode(Enum):
    """``INITIAL`` is the mode a network is made in, which is train mode; ``UNKNOWN`` what cannot be told."""

    INITIAL = "initial"
    TRAIN = "train"
    EVAL = "eval"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class ModeSlip(Fact):
    """A loop that runs ``network`` in another mode than such loops want.

    ``wanted`` is the mode to set before it. ``restore`` when train mode must be set again behind it, since nothing else
    would do it. ``obstacle`` says why that is not done, None when it can be.
    """

    node: LoopNode
    network: str
    wanted: Mode
    restore: bool
    obstacle: str | None


_FRAMEWORKS = frozenset(
    "lightning pytorch_lightning ignite fastai catalyst mmengine mmcv composer skorch".split()
)
_DEPENDENT = ("BatchNorm", "Dropout", "SyncBatchNorm", "Transformer", "AlphaDropout", "RReLU")


def find_mode_slips(resolver: Resolver, loops: tuple[Loop, ...]) -> tuple[ModeSlip, ...]:
    """Evaluation loops that run a network in train mode, and training loops that do not go back to it."""
    if any(_imports_framework(module) for module in resolver.project.modules):
        return ()
    kinds = {LoopKind.EVALUATION: Mode.EVAL, LoopKind.TRAINING: Mode.TRAIN}
    trained_loaders = {
        loader.node for loop in loops if loop.kind is LoopKind.TRAINING for loader in loop.loaders
    }
    found: list[ModeSlip] = []
    for loop in loops:
        wanted = kinds.get(loop.kind)
        if wanted is None:
            continue
        if wanted is Mode.TRAIN and not loop.optimizer_steps:
            continue  # gradients of the input, such as an attack on the network, are taken in either mode
        over_training_data = any(loader.node in trained_loaders for loader in loop.loaders)
        if wanted is Mode.EVAL and over_training_data:
            continue  # perhaps to estimate the statistics of batch normalization
        seen: set[str] = set()
        for forward in loop.forwards:
            code = forward.module.code(forward.network)
            models = models_in(resolver, resolver.values(forward.network, forward.module))
            if forward.module is not loop.module or code in seen or len(models) != 1:
                continue
            seen.add(code)
            slip = _slip(resolver, loop, forward.network, models[0], wanted)
            if slip is not None:
                found.append(slip)
    return tuple(found)


def _imports_framework(module: Module) -> bool:
    """Whether a library that runs training loops, and sets the modes for them, is used."""
    for node in module.nodes_of(ast.Import, ast.ImportFrom):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif not node.level:
            names = [node.module or ""]
        if any(name.partition(".")[0] in _FRAMEWORKS for name in names):
            return True
    return False


def _slip(
    resolver: Resolver, loop: Loop, called: ast.expr, model: Model, wanted: Mode
) -> ModeSlip | None:
    if not depends_on_mode(resolver, model):
        return None
    history = _History(resolver, model)
    if history.is_set_in(loop):
        return None
    ways = history.before(loop.node, loop.module)
    train = {Mode.TRAIN, Mode.INITIAL}
    if wanted is Mode.EVAL:
        slips = any(way <= train for way in ways)
    else:
        # Eval mode throughout is meant (a frozen network); to start in one mode and to go on in the other is not.
        modes = {mode for way in ways for mode in way}
        slips = Mode.EVAL in modes and bool(modes & train) and Mode.UNKNOWN not in modes
    if not slips:
        return None
    restore = wanted is Mode.EVAL and history.is_repeated(loop.node, loop.module)
    restore = restore and not history.returns_to_training()
    obstacle = _obstacle(resolver, loop, called, model)
    code = loop.module.code(called)
    return ModeSlip(loop.module, loop.node, code, wanted, restore, obstacle)


def depends_on_mode(resolver: Resolver, model: Model) -> bool:
    """Whether the network computes something else in train mode than in eval mode."""
    if model.cls is None:
        name = model.library_name or ""
        if name.startswith(("torchvision.models.", "timm.")):
            return True
    roots: list[tuple[ast.AST, Module]] = [(model.node, model.module)]
    roots += [(cls.node, cls.module) for cls in layer_classes(resolver, [model])]
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "training")
        or (isinstance(node, ast.Call) and _makes_dependent(resolver, node, module))
        for root, module in roots
        for node in walk(root)
    )


def _makes_dependent(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    return any(
        name.startswith("torch.nn.") and name.rpartition(".")[2].startswith(_DEPENDENT)
        for name in resolver.names(call.func, module)
    )


def _obstacle(resolver: Resolver, loop: Loop, called: ast.expr, model: Model) -> str | None:
    code = loop.module.code(called)
    if not isinstance(called, ast.Name | ast.Attribute):
        return f"`{code}` is no variable"
    root = first_name(called)
    if root is None:
        return f"`{code}` is no variable"
    for node in lexical_nodes([loop.node]):
        if isinstance(node, ast.Name) and node.id == root.id and not isinstance(node.ctx, ast.Load):
            return f"the loop itself assigns `{root.id}`"
    function, owner = loop.module.function(called), loop.module.function(loop.node)
    if function is not owner:
        return f"`{code}` is run by another function"
    cls = model.cls
    for name in ("train", "eval") if cls is not None else ():
        assert cls is not None
        if any(isinstance(v, Function) for v in class_attribute(resolver, cls, name)):
            return f"the network defines `{name}` itself"
    return None


class _History:
    """Goes back from a place to the calls that last set the mode of one network."""

    def __init__(self, resolver: Resolver, model: Model) -> None:
        self._resolver = resolver
        self._model = model
        self._active: set[ast.AST] = set()

    def is_set_in(self, loop: Loop) -> bool:
        """Whether the passes of ``loop`` set a mode themselves."""
        return any(
            self._event(reached.node, reached.module) is not None
            for reached in reached_nodes(self._resolver, loop.node.body, loop.module)
        )

    def before(self, statement: ast.stmt, module: Module) -> list[set[Mode]]:
        """The modes in which ``statement`` may start, for each way that leads to it."""
        if statement in self._active:
            return []
        self._active.add(statement)
        try:
            return self._before(statement, module)
        finally:
            self._active.discard(statement)

    def _before(self, statement: ast.stmt, module: Module) -> list[set[Mode]]:
        found: set[Mode] = set()
        current: ast.AST = statement
        while True:
            block = module.block(current) if isinstance(current, ast.stmt) else []
            for earlier in reversed(block[: block.index(current)] if block else []):  # type: ignore[arg-type]
                modes, certain = self._set_by(earlier, module)
                found |= modes
                if certain:
                    return [found]
            parent = module.parents[current]
            if isinstance(parent, ast.For | ast.AsyncFor | ast.While) and current is not statement:
                found |= self._left_by([parent], module)
            elif isinstance(parent, ast.For | ast.AsyncFor | ast.While):
                found |= self._left_by(parent.body, module)
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                return self._at_calls(parent, module, found)
            if isinstance(parent, ast.Module):
                return [found | {Mode.INITIAL}]
            if isinstance(parent, ast.ClassDef):
                return [{Mode.UNKNOWN}]
            current = parent

    def _at_calls(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, found: set[Mode]
    ) -> list[set[Mode]]:
        sites = self._resolver.call_sites(function)
        if not sites:
            return [found | {Mode.UNKNOWN}]
        return [
            found | way
            for site in sites
            for way in self.before(site.module.statement(site.call), site.module)
        ]

    def _left_by(self, statements: list[ast.stmt] | list[ast.AST], module: Module) -> set[Mode]:
        """The modes that a pass over ``statements`` leaves behind, as far as it sets any."""
        found: set[Mode] = set()
        for statement in reversed(statements):
            assert isinstance(statement, ast.stmt)
            modes, certain = self._set_by(statement, module)
            found |= modes
            if certain:
                break
        return found

    def _set_by(self, statement: ast.stmt, module: Module) -> tuple[set[Mode], bool]:
        """The modes ``statement`` may leave behind, and whether it certainly sets one."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return set(), False
        events = [
            mode
            for reached in reached_nodes(self._resolver, [statement], module)
            if (mode := self._event(reached.node, reached.module)) is not None
        ]
        if not events:
            return set(), False
        if len(set(events)) == 1:
            return set(events), not isinstance(statement, ast.If | ast.While | ast.Try)
        return {self._last(statement, module) or Mode.UNKNOWN}, False

    def _last(self, statement: ast.stmt, module: Module) -> Mode | None:
        """The mode that the last of several calls in a simple statement or loop sets."""
        last: Mode | None = None
        if isinstance(statement, ast.For | ast.While | ast.With):
            for inner in statement.body:
                modes, certain = self._set_by(inner, module)
                if modes:
                    last = next(iter(modes)) if certain and len(modes) == 1 else Mode.UNKNOWN
        return last

    def _event(self, node: ast.AST, module: Module) -> Mode | None:
        if isinstance(node, ast.Attribute) and node.attr == "training":
            return Mode.UNKNOWN if isinstance(node.ctx, ast.Store) else None
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return None
        if node.func.attr not in {"train", "eval"} or not self._is_it(node.func.value, module):
            return None
        if node.func.attr == "eval":
            return Mode.EVAL
        given = [*node.args, *(k.value for k in node.keywords)]
        if not given:
            return Mode.TRAIN
        if isinstance(given[0], ast.Constant) and len(given) == 1:
            return Mode.TRAIN if given[0].value else Mode.EVAL
        return Mode.UNKNOWN

    def _is_it(self, expression: ast.expr, module: Module) -> bool:
        """Whether ``expression`` may be the network, or one it is a part of."""
        values = self._resolver.values(expression, module)
        if all(isinstance(value, External) for value in values):
            return False
        models = models_in(self._resolver, values)
        if not models or any(model.node is self._model.node for model in models):
            return True
        # A network that is made inside of another, or given to it, has the mode of the whole.
        made_inside = self._model.module.enclosing_class(self._model.node) is not None
        return made_inside or any(
            isinstance(part, Made) and part.call is self._model.node
            for part in composed_of(self._resolver, values)
        )

    def is_repeated(self, node: ast.AST, module: Module) -> bool:
        """Whether a loop runs ``node`` again, directly or through calls."""
        if node in self._active:
            return False
        if module.loops(node):
            return True
        function = module.function(node)
        if function is None:
            return False
        self._active.add(node)
        sites = self._resolver.call_sites(function)
        repeated = any(self.is_repeated(site.call, site.module) for site in sites)
        self._active.discard(node)
        return repeated

    def returns_to_training(self) -> bool:
        """Whether the network is set to train mode again and again."""
        return any(
            self._event(call, module) is Mode.TRAIN and self.is_repeated(call, module)
            for module in self._resolver.project.modules
            for call in _mode_calls(module)
        )


def _mode_calls(module: Module) -> Iterable[ast.Call]:
    return (c for c in module.calls if isinstance(c.func, ast.Attribute) and c.func.attr == "train")
