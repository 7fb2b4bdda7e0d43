"""The slow work that makes an item of a dataset, and whether every epoch makes the same items of it."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass
from enum import Enum

from ..facts import Fact
from ..program.syntax import Module
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import Attribute, Element, External, Made, Unknown, Value
from .datasets import Dataset
from .held_objects import Holding, holding_of
from .item_state import stored_changes
from .random_draws import draws_random_numbers

_DECODES = re.compile(
    r"^(?:PIL\.Image\.open|cv2\.imread|imageio\.(?:v\d\.)?imread|skimage\.io\.imread|torchvision\.io\.(?:read_image|"
    r"decode_image|decode_jpeg|read_video)|torchaudio\.load|librosa\.load|soundfile\.read|scipy\.io\.wavfile\.read|"
    r"nibabel\.load|pydicom\.dcmread)$"
)
_PARSES = re.compile(
    r"^(?:pandas\.read_\w+|json\.loads?|csv\.(?:Dict)?[rR]eader|numpy\.(?:loadtxt|genfromtxt)|yaml\.\w*load|"
    r"xml\.etree\.ElementTree\.(?:parse|fromstring)|nltk\.\w*tokenize|scipy\.io\.loadmat)$"
)
_TOKENIZES = frozenset({"tokenize", "encode_plus", "word_tokenize"})
_KNOWN_LIBRARIES = frozenset(
    "torch torchvision torchaudio PIL numpy cv2 builtins pathlib os json csv pandas re math string collections io "
    "skimage scipy imageio librosa soundfile nltk nibabel pydicom yaml xml unicodedata transformers tokenizers copy".split()
)
_DRAWING_METHODS = frozenset(
    "random_ uniform_ normal_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ bernoulli".split()
)
_OTHER_EACH_TIME = frozenset({"os.urandom", "torch.seed", "torch.initial_seed", "builtins.next"})


class WorkKind(Enum):
    """``DECODE``: a file becomes an image or a sound. ``PARSE``: a text becomes numbers, records or tokens."""

    DECODE = "decode"
    PARSE = "parse"


@dataclass(frozen=True, eq=False)
class Work(Fact):
    """A call that makes an item slow."""

    node: ast.Call
    kind: WorkKind


def item_work(resolver: Resolver, dataset: Dataset) -> tuple[Work, ...]:
    """The slow calls in the project's own code that makes an item of ``dataset``."""
    found: list[Work] = []
    for reached in dataset.item_code:
        if isinstance(reached.node, ast.Call):
            kind = _kind(resolver, reached.node, reached.module)
            if kind is not None:
                found.append(Work(reached.module, reached.node, kind))
    return tuple(found)


def _kind(resolver: Resolver, call: ast.Call, module: Module) -> WorkKind | None:
    for name in resolver.names(call.func, module):
        if _DECODES.match(name):
            return WorkKind.DECODE
        if _PARSES.match(name):
            return WorkKind.PARSE
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _TOKENIZES
    return WorkKind.PARSE if is_method else None


def is_deterministic(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether every epoch makes the same items: all that runs is known, draws nothing and keeps nothing."""
    if draws_random_numbers(resolver, dataset) or any(stored_changes(resolver, dataset.item_code)):
        return False
    if isinstance(dataset.node, ast.expr) and not dataset.item_code:
        values = resolver.values(dataset.node, dataset.module)
        return all(_is_known(value) for value in composed_of(resolver, values))
    return all(
        _repeats(resolver, reached.node, reached.module)
        for reached in dataset.item_code
        if isinstance(reached.node, ast.Call)
    )


def _repeats(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in _DRAWING_METHODS:
        return False
    for value in resolver.values(call.func, module):
        if not all(_is_known(part) for part in composed_of(resolver, [value])):
            return False
    return True


def _is_known(value: Value) -> bool:
    while isinstance(value, Attribute | Element):
        value = value.of
    made = value.maker if isinstance(value, Made) else value
    if isinstance(made, External):
        if made.name in _OTHER_EACH_TIME or holding_of(made.name) is Holding.GENERATOR:
            return False
        library, _, name = made.name.partition(".")
        if library == "builtins":
            return hasattr(builtins, name.partition(".")[0])
        return library in _KNOWN_LIBRARIES or library.startswith("<")
    return not isinstance(made, Unknown)
