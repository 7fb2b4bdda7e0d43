"""What every transform is: a class that reads facts and answers with changes, skips and advice.

To add a transform, add a module to this package with one :class:`Transform` subclass. Nothing else has to be told.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import ClassVar

from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, NewFile, Span


class Stage(IntEnum):
    """When a transform runs; transforms of one stage run in order of ``rank``, then name."""

    DEVICE = 10
    DATA = 20
    EVALUATION = 30
    PRECISION = 40
    MEMORY_FORMAT = 50
    COMPILE = 60
    DISTRIBUTED = 70
    ADVICE = 80


class StepPart(str, Enum):
    """The part of a training step that a transform makes shorter; what a profile bounds its gain by."""

    LOADING = "making batches, which workers do beside the rest"
    DATA = "waiting for data"
    COPIES = "copies to the device"
    PRODUCTS = "matrix products and convolutions"
    CONVOLUTIONS = "convolutions"
    ATTENTION = "softmax, masks and products of batches of matrices"
    SMALL_OPERATORS = "everything but products in forward and backward pass"
    OPTIMIZER = "the optimizer's step"
    CLEARING = "clearing gradients"
    SYNCS = "waiting for values"
    EVALUATION = "evaluation"
    SCRIPT = "the rest of the script"


@dataclass(frozen=True)
class Change:
    """One thing a transform wants to do, all or nothing.

    ``path`` and ``span`` are where the user should look; ``message`` says what is done, ``reason`` why it is safe
    here. ``edits`` may touch several files; ``files`` are made with them. ``launch`` is the command that starts the
    script from then on, where that is another than ``python``. ``on_cpu`` says of a change by a transform that works
    ``only_on_cuda`` that this one works on a CPU. ``only_launched`` says that nothing of it acts in a process that was started by
    itself: other scripts with the same code stay what they were.
    """

    transform: str
    tier: Tier
    path: Path
    span: Span
    message: str
    reason: str
    edits: tuple[FileEdit, ...]
    files: tuple[NewFile, ...] = ()
    launch: str | None = None
    on_cpu: bool = False
    only_launched: bool = False


@dataclass(frozen=True)
class Skip:
    """A place where a transform could have applied and did not; ``message`` names the precondition that failed.

    ``unreached`` says that this script is not seen to come there; of a module of several scripts another one may tell more.
    """

    transform: str
    path: Path
    span: Span
    message: str
    unreached: bool = False


@dataclass(frozen=True)
class Advice:
    """Something the user may want to know or do; ``message`` says it in one sentence. Nothing is changed."""

    transform: str
    path: Path
    span: Span
    message: str


@dataclass(frozen=True)
class Example:
    """A script before and after the transform; shown by ``torchopt explain`` and run as a test.

    Where nothing is changed ``after`` is None and ``advice`` holds what is said about the script. ``options`` are the
    fields of :class:`Options` that it takes, where the defaults do not do.
    """

    before: str
    after: str | None = None
    advice: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict[str, object])


class Transform(ABC):
    """A source transform.

    ``name`` is the contract with the user (``--select``, suppressions, JSON, docs); the module is the same name with
    underscores and its docstring is the user's documentation. ``tier`` is what its mildest changes may do to the numbers:
    each :class:`Change` has a tier of its own. ``opt_in`` transforms run only when selected by name.
    One that ``advises`` is also asked where the user's tier forbids its changes. One that is ``asked_by`` an option, a
    field of :class:`Options`, runs whenever that is given, whatever the tier and the selection, and never otherwise.
    One that ``looks_at_original`` only gives advice, about the script as the user wrote it. ``relieves`` is the part of
    a step that it makes shorter, None when it is none in particular. One that works ``only_on_cuda`` leaves a run on a CPU
    what it was, unless that is the target or the change says otherwise. One that ``rests_first`` is asked until it changes nothing
    more, before the next one sees what it made: its changes build on each other.
    """

    name: ClassVar[str]
    tier: ClassVar[Tier]
    stage: ClassVar[Stage]
    rank: ClassVar[int] = 0
    opt_in: ClassVar[bool] = False
    advises: ClassVar[bool] = False
    asked_by: ClassVar[str | None] = None
    looks_at_original: ClassVar[bool] = False
    relieves: ClassVar[StepPart | None] = None
    only_on_cuda: ClassVar[bool] = False
    rests_first: ClassVar[bool] = False
    example: ClassVar[Example]

    @abstractmethod
    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip | Advice]:
        """Yield what to change in ``script``, what was left alone, with the reason, and what to tell the user.

        Must be idempotent: planned again on its own result it yields no Change.
        """

    def is_asked_for(self, options: Options) -> bool:
        """Whether the option that asks for this transform is given."""
        return self.asked_by is not None and getattr(options, self.asked_by) is not None

    def change(
        self, path: Path, span: Span, message: str, reason: str, edits: tuple[FileEdit, ...]
    ) -> Change:
        """A Change of this transform, at its own tier; ``dataclasses.replace(change, tier=..)`` gives it another."""
        return Change(self.name, self.tier, path, span, message, reason, edits)

    def skip(self, path: Path, span: Span, message: str) -> Skip:
        """A Skip of this transform."""
        return Skip(self.name, path, span, message)

    def advice(self, path: Path, span: Span, message: str) -> Advice:
        """Advice of this transform."""
        return Advice(self.name, path, span, message)

    @property
    def kind(self) -> str:
        """What it may do to a script, in one word: its tier."""
        return self.tier.label

    @classmethod
    def documentation(cls) -> str:
        """The docstring of the transform's module, dedented."""
        module = inspect.getmodule(cls)
        return inspect.cleandoc(module.__doc__ or "") if module else ""


class Advisor(Transform):
    """A transform that changes nothing and gives advice on the script as the others leave it, or if it so says as the user wrote it."""

    tier = Tier.EXACT
    stage = Stage.ADVICE
    advises = True

    @property
    def kind(self) -> str:
        return "advice"
