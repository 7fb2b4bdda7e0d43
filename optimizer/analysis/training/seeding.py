"""Whether a script's runs can be repeated: which random generators it seeds and draws from, and what it asks of cuDNN."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..facts import Fact
from ..program.syntax import Module, first_name, last_identifier
from ..values.resolver import Resolver

_SEEDS = {
    "torch.manual_seed": ("torch",),
    "torch.random.manual_seed": ("torch",),
    "torch.seed": (),
    "numpy.random.seed": ("numpy",),
    "random.seed": ("random",),
}
_ALL = ("torch", "numpy", "random")
_SEED_ALL = frozenset({"seed_everything", "set_seed", "set_determinism", "enable_full_determinism"})
"""Functions of Lightning, Transformers, Accelerate and MONAI that seed all three generators."""
_NO_DRAWS = frozenset(
    "seed getstate setstate get_state set_state Random SystemRandom RandomState Generator default_rng SeedSequence "
    "BitGenerator MT19937 PCG64 PCG64DXSM Philox SFC64".split()
)
_CUDNN = "torch.backends.cudnn."
_DETERMINISTIC_CALLS = frozenset(
    {"torch.use_deterministic_algorithms", "torch.set_deterministic_debug_mode"}
)
_DRAWS = frozenset(
    "beta betavariate binomial bytes chisquare choice choices dirichlet expovariate exponential gamma gammavariate gauss "
    "geometric getrandbits laplace logistic lognormal lognormvariate multinomial multivariate_normal normal normalvariate "
    "pareto permutation poisson rand randbytes randint randn random random_integers random_sample randrange rayleigh sample "
    "shuffle standard_normal triangular uniform vonmises weibull zipf".split()
)
_FUNCTIONS = frozenset(
    {
        *_DRAWS,
        *_SEED_ALL,
        *(name.rpartition(".")[2] for name in (*_SEEDS, *_DETERMINISTIC_CALLS)),
    }
)
"""The usual names of the functions that seed and draw."""


class Wish(Enum):
    """What a setting asks for."""

    DETERMINISTIC = "the same algorithms in every run"
    BENCHMARK = "the fastest algorithms, measured in every run"


@dataclass(frozen=True, eq=False)
class Seed(Fact):
    """A call that seeds the global generators of ``libraries``: of ``torch``, ``numpy`` and ``random``."""

    libraries: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Draw(Fact):
    """A draw from the global generator of ``library``, ``numpy`` or ``random``."""

    library: str


@dataclass(frozen=True, eq=False)
class KernelChoice(Fact):
    """A setting by which PyTorch chooses among algorithms that may differ in the last bits."""

    wish: Wish


@dataclass(frozen=True, eq=False)
class Seeding:
    """All of them, in source order per module, whether or not they are seen to run."""

    seeds: tuple[Seed, ...]
    draws: tuple[Draw, ...]
    choices: tuple[KernelChoice, ...]

    def is_seeded(self, library: str) -> bool:
        return any(library in seed.libraries for seed in self.seeds)

    def first_draw(self, library: str) -> Draw | None:
        return next((draw for draw in self.draws if draw.library == library), None)

    def choice(self, wish: Wish) -> KernelChoice | None:
        """The last setting that asks for ``wish``."""
        return next((c for c in reversed(self.choices) if c.wish is wish), None)


def find_seeding(resolver: Resolver) -> Seeding:
    """What the modules of the project seed, draw and set."""
    seeds: list[Seed] = []
    draws: list[Draw] = []
    choices: list[KernelChoice] = []
    for module in resolver.project.modules:
        for call in module.calls:
            if not _may_be_of_a_library(call.func, module):
                continue
            for name in resolver.names(call.func, module):
                seeded = _seeded(name)
                drawn = _drawn(name)
                if seeded:
                    seeds.append(Seed(module, call, seeded))
                elif drawn is not None:
                    draws.append(Draw(module, call, drawn))
                elif name in _DETERMINISTIC_CALLS and not _says(call.args[:1], False):
                    choices.append(KernelChoice(module, call, Wish.DETERMINISTIC))
        if "cudnn" in module.source.text:
            choices += _cudnn_settings(resolver, module)
    return Seeding(tuple(seeds), tuple(draws), tuple(choices))


def _may_be_of_a_library(function: ast.expr, module: Module) -> bool:
    """Whether ``function`` may seed or draw: what is not read off an import does only by the usual names."""
    owner = first_name(function)
    imported = owner is not None and owner.id in module.imported_once
    return imported or last_identifier(function) in _FUNCTIONS


def _seeded(name: str) -> tuple[str, ...]:
    if name.rpartition(".")[2] in _SEED_ALL and "." in name:
        return _ALL
    return _SEEDS.get(name, ())


def _drawn(name: str) -> str | None:
    owner, _, function = name.rpartition(".")
    if function in _NO_DRAWS or not function[:1].islower():
        return None
    return {"random": "random", "numpy.random": "numpy"}.get(owner)


def _cudnn_settings(resolver: Resolver, module: Module) -> Iterator[KernelChoice]:
    for node in module.nodes:
        if isinstance(node, ast.Assign) and _says([node.value], True):
            for target in node.targets:
                names = resolver.names(target, module) if isinstance(target, ast.Attribute) else ()
                if f"{_CUDNN}deterministic" in names:
                    yield KernelChoice(module, node, Wish.DETERMINISTIC)
                elif f"{_CUDNN}benchmark" in names:
                    yield KernelChoice(module, node, Wish.BENCHMARK)


def _says(values: list[ast.expr], truth: bool) -> bool:
    return any(isinstance(value, ast.Constant) and value.value is truth for value in values)
