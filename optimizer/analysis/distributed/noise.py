"""Noise that every process would draw alike, because the script has seeded what it draws from."""

from __future__ import annotations

import ast

from ..calls.reach import reached_nodes
from ..loading.random_draws import is_draw
from ..program.syntax import Module
from ..script import TrainingScript
from ..training.setup_place import training_blocks
from ..training.steps import StepCode
from ..values.resolver import Resolver

_SHAPED = frozenset({"numpy.random.rand", "numpy.random.randn"})
"""What is given the shape of what it draws in so many arguments."""


def draws_noise_alike(script: TrainingScript, step: StepCode) -> bool:
    """Whether ``step`` draws arrays from numpy's generator, seeded, and nothing else does from where it begins.

    What is drawn elsewhere, such as which samples there are, has to stay the same in all processes.
    """
    resolver = script.resolver
    if not script.seeding.is_seeded("numpy"):
        return False
    inside = {reached.node for reached in step.nodes(resolver)}
    is_noise = False
    for block in list(training_blocks(script, methods=True))[-1:]:
        for reached in reached_nodes(resolver, [block.trains], block.module):
            node, module = reached.node, reached.module
            if not isinstance(node, ast.Call) or not _is_numpy_draw(resolver, node, module):
                continue
            if node not in inside:
                return False
            is_noise = is_noise or _is_array(resolver, node, module)
    return is_noise


def _is_numpy_draw(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    names = resolver.names(call.func, module)
    return any(name.startswith("numpy.random.") and is_draw(name) for name in names)


def _is_array(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` draws several numbers at once."""
    if any(keyword.arg == "size" for keyword in call.keywords):
        return True
    if call.args and resolver.names(call.func, module) & _SHAPED:
        return True
    return any(isinstance(argument, ast.Tuple | ast.List) for argument in call.args)
