"""Seeds of random generators, which have to be the same in every process: one that is itself drawn is that of the first."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from ...rewriting.edits import FileEdit
from ..editing.replacing import replacement
from ..program.syntax import Module
from ..script import TrainingScript
from ..training.seeding import Seed
from .divergence import Divergence
from .process_names import Helper, ProcessNames

_DRAWS = {
    "randint": frozenset({"random.randint", "numpy.random.randint"}),
    "randrange": frozenset({"random.randrange"}),
    "randbelow": frozenset({"secrets.randbelow"}),
    "int": frozenset({"builtins.int"}),
}
"""What makes whole numbers that a seed may be, by the last word of its name."""


class CommonSeeds:
    """Which generators are seeded alike in every process, once the first has drawn the seeds ``drawn`` for all."""

    def __init__(
        self,
        script: TrainingScript,
        divergence: Divergence | None = None,
        drawn: Iterable[tuple[ast.Call, Module]] = (),
    ) -> None:
        self.drawn = tuple(drawn)
        self._script, self._known = script, divergence

    def is_alike(self, seed: Seed) -> bool:
        """Whether ``seed`` seeds every process with the same number; one that is given none takes what the system offers."""
        given = _arguments(seed)
        if len(seed.libraries) == 1 and not given:
            return False
        return not any(_is_none(each) or self.differs(each, seed.module) for each in given)

    def are_alike(self, library: str) -> bool:
        """Whether the generator of ``library`` is seeded, and all its seeds are the same in every process."""
        seeds = [seed for seed in self._script.seeding.seeds if library in seed.libraries]
        return bool(seeds) and all(map(self.is_alike, seeds))

    def differs(self, expression: ast.expr, module: Module) -> bool:
        """Whether ``expression``, a seed or a generator, may be another one in every process."""
        if isinstance(expression, ast.Constant):
            return False
        return self._divergence.of(expression, module)

    @cached_property
    def _divergence(self) -> Divergence:
        return self._known or Divergence(self._script.resolver, self._script.loaders, (), ())

    def edits(self, names: ProcessNames) -> Iterator[FileEdit]:
        """The edits by which every process takes the seed that the first one has drawn."""
        for call, module in self.drawn:
            code = f"int({names.helper(Helper.FIRST, module)}({module.code(call)}))"
            yield replacement(module, call, code)


def find_common_seeds(script: TrainingScript) -> CommonSeeds:
    """The seeds of ``script``, and the draws that the first process makes for all."""
    given = [argument for seed in script.seeding.seeds for argument in _arguments(seed)]
    if all(isinstance(argument, ast.Constant) for argument in given):
        return CommonSeeds(script)
    alone = Divergence(script.resolver, script.loaders, (), ())
    seeds = CommonSeeds(script, alone)
    apart = [seed for seed in script.seeding.seeds if not seeds.is_alike(seed)]
    drawn: list[tuple[ast.Call, Module]] = []
    for call, module in _draws(script) if apart else ():
        with_it = alone.agreeing([call])
        settled = any(map(CommonSeeds(script, with_it).is_alike, apart))
        if settled and _is_reached_by_all(call, module, with_it):
            drawn.append((call, module))
    return CommonSeeds(script, alone.agreeing([call for call, _ in drawn]), drawn)


def _arguments(seed: Seed) -> list[ast.expr]:
    if not isinstance(seed.node, ast.Call):
        return []
    return [*seed.node.args, *(keyword.value for keyword in seed.node.keywords)]


def _is_none(given: ast.expr) -> bool:
    return isinstance(given, ast.Constant) and given.value is None


def _draws(script: TrainingScript) -> Iterator[tuple[ast.Call, Module]]:
    """The calls that draw a whole number once."""
    for module in script.modules:
        for word, wanted in _DRAWS.items():
            for call in module.calls_named(word):
                function = module.function(call)
                runs = function in script.functions_run if function else module is script.entry
                names = script.resolver.names(call.func, module)
                if runs and names and names <= wanted and not module.loops(call):
                    yield call, module


def _is_reached_by_all(call: ast.Call, module: Module, divergence: Divergence) -> bool:
    """Whether no condition around ``call`` holds in some of the processes only."""
    if divergence.decides(call, module) is not None:
        return False
    child: ast.AST = call
    for around in module.ancestors(call):
        match around:
            case ast.stmt():
                return True
            case ast.IfExp(test=test) if child is not test:
                asked = [test]
            case ast.BoolOp(values=values) if isinstance(child, ast.expr):
                asked = values[: values.index(child)]
            case (
                ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp()
            ):
                return False
            case _:
                asked = []
        if any(divergence.of(test, module) for test in asked):
            return False
        child = around
    return True
