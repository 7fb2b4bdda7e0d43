"""The facts a :class:`~.script.TrainingScript` is made of. Each carries where it was seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..rewriting.edits import Span
from .program.syntax import FunctionNode, LoopNode, Module
from .values.values import Class, Value

_LINE_END = re.compile(r"\s*\\?\s*\n\s*")
_MORE_THAN_CODE = re.compile(r"#|\"\"\"|\'\'\'")


def _in_one_line(code: str, node: ast.AST) -> str:
    """``code``, that of ``node``, as it would read in one line."""
    if _MORE_THAN_CODE.search(code):
        return ast.unparse(node)
    spaced = _LINE_END.sub(" ", code)
    return re.sub(r"(?<=[(\[{]) |,? (?=[)\]}])", "", spaced)


def excerpt(module: Module, node: ast.AST) -> str:
    """The beginning of the code of ``node``, for messages: of a block its first line, of what goes over several lines all in one."""
    code = module.code(node)
    if "\n" in code and isinstance(node, ast.expr | ast.Assign | ast.Expr | ast.Return):
        code = _in_one_line(code, node)
    first = code.partition("\n")[0]
    return first if len(first) <= 60 else f"{first[:57]}..."


@dataclass(frozen=True, eq=False)
class Fact:
    """Something seen at ``node`` of ``module``."""

    module: Module
    node: ast.AST

    @property
    def path(self) -> Path:
        return self.module.path

    @property
    def span(self) -> Span:
        return self.module.span(self.node)

    @property
    def code(self) -> str:
        return self.module.code(self.node)

    @property
    def place(self) -> str:
        """Where it was seen, for messages: ``line 7 of data.py``."""
        return self.module.place(self.node)

    @property
    def excerpt(self) -> str:
        """The beginning of the code, for messages: see :func:`excerpt`."""
        return excerpt(self.module, self.node)

    @property
    def function(self) -> FunctionNode | None:
        return self.module.function(self.node)


def called_network(forward: ast.Call) -> ast.expr:
    """The network that a forward pass runs: the ``net`` of ``net(x)`` and of ``net.forward(x)``."""
    match forward.func:
        case ast.Attribute(network, "forward"):
            return network
        case called:
            return called


@dataclass(frozen=True, eq=False)
class CallFact(Fact):
    """A call of interest; ``name`` is what is called, a library name or a bare method name."""

    node: ast.Call
    name: str

    @property
    def network(self) -> ast.expr:
        """The network that it runs if it is a forward pass."""
        return called_network(self.node)


@dataclass(frozen=True, eq=False)
class Model(Fact):
    """The call that makes a neural network.

    ``cls`` is its first-party class; ``library_name`` what made it otherwise (``torchvision.models.resnet18``).
    """

    node: ast.Call
    cls: Class | None
    library_name: str | None


@dataclass(frozen=True, eq=False)
class Optimizer(Fact):
    """The call that makes an optimizer; ``library_name`` is its torch class.

    ``cls`` is set for a first-party class that derives from a torch optimizer or wraps one.
    """

    node: ast.Call
    library_name: str | None
    cls: Class | None


@dataclass(frozen=True, eq=False)
class Argument:
    """An argument of a call: the expression, the module it stands in, and the dict display it came through.

    ``display`` is set when the argument reached the call by ``**kwargs``.
    """

    value: ast.expr
    module: Module
    display: ast.Dict | ast.Call | None = None


@dataclass(frozen=True, eq=False)
class DataLoader(Fact):
    """A ``torch.utils.data.DataLoader(...)`` call, or that of ``super().__init__`` in a class derived from it.

    ``classes`` are then those whose objects it makes. ``arguments`` are those known by parameter name; ``opaque`` is the ``*args``/``**kwargs`` expression that may
    hold others, None when the arguments are all known. ``displays`` are the keyword dicts that reach the call.
    """

    node: ast.Call
    arguments: Mapping[str, Argument]
    opaque: ast.expr | None
    displays: tuple[tuple[ast.Dict | ast.Call, Module], ...]
    classes: frozenset[ast.ClassDef] = frozenset()


class LoopKind(Enum):
    """What a loop is for. An ``EPOCHS`` loop runs whole training loops."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    EPOCHS = "epochs"
    OTHER = "other"


@dataclass(frozen=True)
class Phase:
    """When a loop trains whose function evaluates in other calls: ``run_epoch(val_loader, train=False)``.

    ``condition`` holds then, a test of parameters of the function as it reads there. ``calls`` are those that train, with
    their modules, and ``trained`` the loaders that they go over, none of which the other calls do.
    """

    condition: str
    calls: tuple[tuple[ast.Call, Module], ...]
    trained: tuple[DataLoader, ...]


@dataclass(frozen=True, eq=False)
class Loop(Fact):
    """A ``for`` or ``while`` loop.

    ``loaders`` are the DataLoaders it iterates (through ``enumerate``, ``tqdm``, ``zip``, ``iter`` ...), empty when it
    iterates something else. ``batch_target`` is the part of the loop's target that holds the batch.
    ``forwards``, ``backwards`` and ``optimizer_steps`` are the calls its body reaches, also through functions. ``phase``
    is set where it trains in some calls of its function only.
    """

    node: LoopNode
    kind: LoopKind
    loaders: tuple[DataLoader, ...]
    batch_target: ast.expr | None
    forwards: tuple[CallFact, ...]
    backwards: tuple[CallFact, ...]
    optimizer_steps: tuple[CallFact, ...]
    phase: Phase | None = None

    @property
    def trained(self) -> tuple[DataLoader, ...]:
        """The loaders it trains on, if it trains."""
        return self.phase.trained if self.phase is not None else self.loaders


class DeviceKind(Enum):
    """Which device an expression names: always CUDA, always the CPU, never CUDA but another accelerator, or chosen when the script runs."""

    CUDA = "cuda"
    CPU = "cpu"
    OTHER = "other"
    CHOSEN = "chosen"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class DeviceName(Fact):
    """A name that holds a device (``device``, ``args.device``) or, when ``is_flag``, whether to use CUDA.

    ``code`` of the fact is the assigned expression; ``name`` is how the script calls it.
    """

    name: str
    kind: DeviceKind
    is_flag: bool
    value: Value | None = None


def seen_at(reason: Fact, place: Fact, said: str = "") -> str:
    """`` (`x.item()`)`` or `` (`x.item()` in model.py)``: where ``reason`` was seen; nothing when that is ``place``.

    Code that what is ``said`` of it names already is not named again.
    """
    if isinstance(reason.node, ast.Module):
        return ""
    if f"`{reason.excerpt}`" in said:
        return "" if reason.path == place.path else f" (in {reason.path.name})"
    if reason.path != place.path:
        return f" (`{reason.excerpt}` in {reason.path.name})"
    return "" if reason.span.line == place.span.line else f" (`{reason.excerpt}`)"


def not_one(found: Collection[Fact], one: str, several: str) -> str:
    """``no optimizer is seen`` or ``2 optimizers are seen, not one (lines 12 and 40)``; modules of their own by their files' names."""
    if not found:
        return f"no {one} is seen"
    lines = sorted({(fact.path.name, fact.span.line) for fact in found})
    several_files = len({name for name, _ in lines}) > 1
    places = [f"{name}:{line}" if several_files else str(line) for name, line in lines]
    listed = " and ".join(filter(None, [", ".join(places[:-1]), places[-1]]))
    where = listed if several_files else f"line{'s' if len(places) > 1 else ''} {listed}"
    return f"{len(found)} {several} are seen, not one ({where})"
