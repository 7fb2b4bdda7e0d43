"""Removes `torch.cuda.empty_cache()` from loops over batches.

PyTorch keeps freed GPU memory in a cache, so that the next allocation does not have to ask the driver for it.
Emptying that cache in every step throws this away: each step then waits for the GPU (`cudaFree` synchronises) and pays for
fresh allocations, and no tensor becomes usable that was not usable before. A `gc.collect()` beside it, which
walks over every Python object in every step, goes with it, and `import gc` when nothing else needs it. Results do not change.

Left alone: calls that run once (`if i == 1:`) or between phases (after an evaluation, after deleting a model), where giving memory
back may be meant for another process; calls in an `except` block, where a script recovers from an out-of-memory
error; calls that run only when memory is short; scripts that report how much memory is reserved.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management ("the unused memory managed by the allocator
will still show as if used in nvidia-smi"; `empty_cache()` "can not increase the amount of GPU memory available for
PyTorch").
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..optimizer.analysis.devices.cache_release import CacheRelease, Pace, memory_queries
from ..optimizer.analysis.editing.imports import orphaned_imports
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.program.trees import walk
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.wording import listed
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, RemoveStatement
from .base import Change, Example, Skip, Stage, StepPart, Transform

_LEFT_ALONE = {
    Pace.ONCE: "runs in one round of a loop only; left alone",
    Pace.PHASE: "runs between phases, not in every step; left alone",
    Pace.ERROR: "recovers from an exception; left alone",
    Pace.SHORTAGE: "runs only when memory is short; left alone",
    Pace.LOOP: "runs in a loop that is not known to be over steps; left alone",
    Pace.UNKNOWN: "is in a function that nothing is seen to call; left alone",
    Pace.MIXED: "its function is called both in and outside of a loop over steps; left alone",
}
_REASON = (
    "emptying the cache in every step frees no memory that PyTorch could not have reused, "
    "but makes the step wait for the GPU and allocate anew"
)
_COLLECTS = "; Python collects cycles by itself, and frees all else at once"
_DROPPED_IMPORTS = frozenset({"gc", "gc.collect"})


class EmptyCache(Transform):
    name = "empty-cache"
    tier = Tier.EXACT
    stage = Stage.DEVICE
    rank = 1
    relieves = StepPart.SCRIPT
    only_on_cuda = True
    example = Example(
        before="""\
            import gc

            import torch
            from torch import nn

            model = nn.Linear(10, 2).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(100):
                x = torch.randn(32, 10, device="cuda")
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                gc.collect()
                torch.cuda.empty_cache()
        """,
        after="""\
            import torch
            from torch import nn

            model = nn.Linear(10, 2).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(100):
                x = torch.randn(32, 10, device="cuda")
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        per_step: dict[Module, list[CacheRelease]] = {}
        for release in script.cache_releases:
            if release.pace is Pace.STEP:
                per_step.setdefault(release.module, []).append(release)
            else:
                yield self._leave(release, _LEFT_ALONE[release.pace])
        query = next(memory_queries(script.resolver), None)
        for module, releases in per_step.items():
            if query is not None:
                why = f"{query.place} reads the memory in use; left alone"
                for release in releases:
                    yield self._leave(release, why)
            else:
                yield from self._remove(script, module, releases)

    def _leave(self, release: CacheRelease, why: str) -> Skip:
        return self.skip(release.path, release.span, f"`{release.code}` {why}")

    def _remove(
        self, script: TrainingScript, module: Module, releases: list[CacheRelease]
    ) -> Iterator[Change | Skip]:
        removed: dict[CacheRelease, list[ast.stmt]] = {}
        for in_block in _by_block(module, releases):
            calls = dict.fromkeys(s for r in in_block for s in (r.node, *r.companions))
            statements = _with_emptied_blocks(module, list(calls))
            if statements is None:
                yield from (
                    self._leave(r, "is all that its block does; left alone") for r in in_block
                )
            else:
                removed[in_block[0]] = statements
        everything = [s for statements in removed.values() for s in statements]
        imports = orphaned_imports(script.project, module, everything, _DROPPED_IMPORTS)
        if imports:
            # The import goes only if every use goes: one change, all or nothing.
            yield self._change(next(iter(removed)), everything, imports)
            return
        for release, statements in removed.items():
            yield self._change(release, statements, ())

    def _change(
        self, release: CacheRelease, statements: list[ast.stmt], imports: tuple[FileEdit, ...]
    ) -> Change:
        module = release.module
        edits = tuple(FileEdit(module.path, RemoveStatement(module.span(s))) for s in statements)
        calls = [release.code, *(module.code(statement) for statement in release.companions)]
        message = listed(f"`{call}`" for call in calls)
        collects = bool(release.companions or imports)
        change = self.change(
            release.path,
            release.span,
            f"{message} removed from a loop over steps",
            _REASON + (_COLLECTS if collects else ""),
            (*edits, *imports),
        )
        # Without a GPU `empty_cache()` returns at once; the garbage collector does not.
        return replace(change, on_cpu=collects)


def _by_block(module: Module, releases: list[CacheRelease]) -> list[list[CacheRelease]]:
    blocks: dict[int, list[CacheRelease]] = {}
    for release in releases:
        blocks.setdefault(id(module.block(release.node)), []).append(release)
    return list(blocks.values())


def _with_emptied_blocks(module: Module, statements: list[ast.Expr]) -> list[ast.stmt] | None:
    """What to remove so that no block is left empty; None when a block would be that cannot go as a whole."""
    gone: list[ast.stmt] = list(statements)
    block: list[ast.stmt] = module.block(gone[0])
    while all(statement in gone for statement in block):
        parent = module.parents[block[0]]
        if not (isinstance(parent, ast.If) and block is parent.body and not parent.orelse):
            return None
        if not _is_pure(parent.test):
            return None
        gone = [parent]
        block = module.block(parent)
    return gone


def _is_pure(test: ast.expr) -> bool:
    """Whether evaluating ``test`` only looks: names, arithmetic, comparisons and torch's own questions."""
    for node in walk(test):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if not (name in {"len", "hasattr", "isinstance"} or name.endswith("is_available")):
                return False
        elif isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
    return True
