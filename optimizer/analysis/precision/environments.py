"""Scripts that learn from what an environment gives them: reinforcement learning, as Gymnasium and its like shape it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import reached_nodes
from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.syntax import Module, last_identifier
from ..tensors.size_bounds import size_bounds
from ..training.steps import StepCode
from ..values.resolver import Resolver

LARGEST_SPACE = 512
"""Numbers in a flat observation or action: the largest of Gymnasium's own environments, ``Humanoid-v4``, has 376
(https://gymnasium.farama.org/environments/mujoco/humanoid/)."""
LONGEST_ROLLOUT = 2048
"""Rows of a batch where the script does not say how many it draws: all that PPO collects on MuJoCo between two updates, which it
then learns from in smaller batches (Schulman et al., Proximal Policy Optimization Algorithms, 2017, Table 3)."""

_FEWEST_RESULTS = 4
"""An environment's step gives observation, reward, whether that was the end, and more about it."""
_FEWEST_OF_OWN = 3
"""One of the script's own may have no more to tell."""
_DRAWS: dict[str, tuple[str, int | None]] = {
    "random.sample": ("k", 1),
    "random.choices": ("k", None),
    "numpy.random.choice": ("size", 1),
    "numpy.random.randint": ("size", 2),
    "torch.randint": ("size", 2),
}
"""Functions that draw which of the kept samples a batch has, with the name and place of the argument that says how many."""


def steps_environment(resolver: Resolver) -> bool:
    """Whether the script acts in an environment: ``state, reward, done, info = env.step(action)``."""
    return next(environment_steps(resolver), None) is not None


def environment_steps(resolver: Resolver) -> Iterator[Fact]:
    """The calls by which the script acts in an environment."""
    for module in resolver.project.modules:
        for call in module.calls_named("step"):
            results = _unpacked(module.parents[call])
            if results >= _FEWEST_RESULTS or (
                results == _FEWEST_OF_OWN and _is_simulated(resolver, call, module)
            ):
                yield Fact(module, call)


def drawn_rows(resolver: Resolver, step: StepCode) -> int | None:
    """The most samples that ``step`` draws at once from what it has kept, as far as the script tells; None where it tells nothing.

    What is drawn besides belongs to those samples: ``randint(environments, size=len(indices))``.
    """
    found: list[int] = []
    for node, module, _ in step.nodes(resolver):
        if isinstance(node, ast.Call) and (size := _drawn(resolver, node, module)) is not None:
            bounds = size_bounds(resolver, size, module)
            found += [] if bounds is None else [bounds[1]]
    return max(found, default=None)


def _unpacked(statement: ast.AST) -> int:
    match statement:
        case ast.Assign([ast.Tuple(targets)]):
            return len(targets)
        case _:
            return 0


def _is_simulated(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` runs a method of the script's own that asks nothing of PyTorch: an environment, no training step."""
    functions = resolver.callees(call, module)
    reached = reached_nodes(resolver, [call], module, into_forward=True)
    return bool(functions) and not any(
        isinstance(node, ast.Call)
        and (
            last_identifier(node.func) == "backward"
            or any(name.startswith("torch.") for name in resolver.names(node.func, owner))
        )
        for node, owner, _ in reached
    )


def _drawn(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """How many samples ``call`` draws, None where it draws none or a single one."""
    names = resolver.names(call.func, module)
    for name in names & _DRAWS.keys():
        match call_argument(call, *_DRAWS[name]):
            case ast.Tuple([size]) | ast.List([size]):
                return size
            case size:
                return size
    # Of a replay memory, the script's own or a library's. A distribution draws without being told how many.
    if not names and last_identifier(call.func) == "sample" and len(call.args) == 1:
        return call.args[0]
    return None
