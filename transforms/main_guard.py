"""Puts the executable part of a flat script under `if __name__ == "__main__":`.

DataLoader workers that are not forked (macOS, Windows, Linux from Python 3.14 on, or a script that asks for `spawn`)
import the script anew. Without a guard each worker would run the training itself; Python stops it with "An attempt has
been made to start a new process before the current process has finished its bootstrapping phase". Names assigned under
the guard stay global, so functions that read them go on working. Imports, functions, classes and constants stay outside;
datasets and loaders too where they stand above the classes of the script.

Only done when needed: when a loader has workers, or gets them from `dataloader-workers`, and they are not forked. On Linux up
to Python 3.13 the script is left as it is.

Left alone: scripts where the workers need something that the executable part sets (a dataset that reads a global),
because it would be missing in the worker; scripts whose loop is started by importing another module.

Source: https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods ("Safe importing of main
module") and https://docs.pytorch.org/docs/stable/data.html#platform-specific-behaviors
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby

from ..optimizer.analysis.facts import DataLoader, Fact
from ..optimizer.analysis.loading.iterations import started_at_import
from ..optimizer.analysis.loading.spawning import starts_workers_by_fork, top_level_statement
from ..optimizer.analysis.loading.worker_count import CountKind, worker_count
from ..optimizer.analysis.loading.worker_groups import held_back_by_missing_guard
from ..optimizer.analysis.loading.workers import spawning_refused, starts_at_import
from ..optimizer.analysis.program.guarding import Weight, statements_needed_by_workers, weight
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, Wrap
from .base import Change, Example, Skip, Stage, Transform
from .dataloader_workers import DataLoaderWorkers

_HEADER = 'if __name__ == "__main__":'
_REASON = (
    "worker processes that are not forked import the script anew and must not start the training again; names under the "
    "guard stay global, and nothing the workers need is under it"
)


class MainGuard(Transform):
    name = "main-guard"
    tier = Tier.EXACT
    stage = Stage.DATA
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            batch_size = 64
            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(
                train_set, batch_size, num_workers=2, multiprocessing_context="spawn"
            )

            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            batch_size = 64
            if __name__ == "__main__":
                train_set = datasets.MNIST("data", transform=transforms.ToTensor())
                loader = DataLoader(
                    train_set, batch_size, num_workers=2, multiprocessing_context="spawn"
                )

                model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for images, labels in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        loaders = _unguarded_loaders(script, options)
        if not loaders:
            yield from self._not_needed(script, options)
            return
        first = loaders[0]
        guarded = _guarded_statements(script, loaders)
        problem = _problem(script, loaders, guarded, options)
        if problem is not None:
            yield self.skip(first.path, first.span, f"no main guard: {problem}")
            return
        entry = script.entry
        runs = _runs(entry.tree.body, guarded)
        edits = tuple(
            FileEdit(entry.path, Wrap(entry.span(run[0]), entry.span(run[-1]), _HEADER))
            for run in runs
        )
        message = f"puts the executable part of the script under `{_HEADER}`"
        yield self.change(entry.path, entry.span(runs[0][0]), message, _REASON, edits)

    def _not_needed(self, script: TrainingScript, options: Options) -> Iterator[Skip]:
        for loader in _loaders_started_at_import(script):
            if starts_workers_by_fork(script.resolver, loader, options):
                message = (
                    "no main guard: not needed where workers are forked; on macOS, Windows or Python 3.14 the script "
                    "would need one"
                )
                yield self.skip(loader.path, loader.span, message)
                return


def _loaders_started_at_import(script: TrainingScript) -> list[DataLoader]:
    """The loaders with workers that a pass at import starts."""
    return [
        loader
        for loader in script.loaders
        if worker_count(script.resolver, loader).kind is CountKind.CHOSEN
        and any(starts_at_import(script, i) for i in script.iterations if loader in i.loaders)
    ]


def _unguarded_loaders(script: TrainingScript, options: Options) -> list[DataLoader]:
    """The loaders whose workers, present or wanted, need a guard that is not there."""
    found = [
        loader
        for loader in _loaders_started_at_import(script)
        if not starts_workers_by_fork(script.resolver, loader, options)
    ]
    name = DataLoaderWorkers.name
    if name not in options.ignore and (not options.select or name in options.select):
        found += held_back_by_missing_guard(script, options)
    return found


def _guarded_statements(script: TrainingScript, loaders: list[DataLoader]) -> list[ast.stmt]:
    """The top-level statements to put under a guard: from the first that must not run again to the end.

    Where classes or functions follow, datasets and loaders above them stay outside, so that fewer definitions
    are indented.
    """
    entry = script.entry
    body = entry.tree.body
    weights = [weight(script.resolver, statement, entry) for statement in body]
    needed = statements_needed_by_workers(script, loaders)
    start = len(body)
    for lightest in (Weight.MIDDLING, Weight.HEAVY):
        start = next((i for i, w in enumerate(weights) if w >= lightest), len(body))
        if not any(isinstance(s, ast.FunctionDef | ast.ClassDef) for s in body[start:]):
            break
    return [
        statement
        for statement in body[start:]
        if statement not in needed and statement not in entry.main_only
    ]


def _problem(
    script: TrainingScript, loaders: list[DataLoader], guarded: list[ast.stmt], options: Options
) -> str | None:
    """Why a guard around ``guarded`` would not do; None when it would."""
    entry = script.entry
    user = _importer(script)
    if user is not None:
        where = f"({user.place})"
        return f"another file reads names of the script {where}, and would not find them where it is imported"
    for loader in loaders:
        refused = spawning_refused(script, loader, options, guarded)
        if refused is not None:
            return refused
        for iteration in script.iterations:
            if loader not in iteration.loaders:
                continue
            for node, module in started_at_import(
                script.resolver, iteration.node, iteration.module
            ):
                if module is not entry:
                    return f"importing {module.path.name} already starts a loop over the loader"
                if top_level_statement(node, entry) not in guarded:
                    where = f"({module.place(node)})"
                    return f"workers need a statement {where} that starts a loop over the loader"
    needed = statements_needed_by_workers(script, loaders)
    for statement in sorted(needed, key=lambda s: s.lineno):
        if weight(script.resolver, statement, entry) is Weight.HEAVY:
            where = f"({entry.place(statement)})"
            return f"workers need what a statement of the executable part sets {where}"
    return None


def _importer(script: TrainingScript) -> Fact | None:
    """Where another file imports the entry script, which runs it a second time or finds it half done."""
    names = {"__main__", script.entry.path.stem}
    for module in script.modules:
        if module is script.entry or module.path == script.entry.path:
            continue
        for node in module.nodes:
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                imported = [node.module or ""]
            if names.intersection(imported):
                return Fact(module, node)
    return None


def _runs(body: list[ast.stmt], guarded: list[ast.stmt]) -> list[list[ast.stmt]]:
    """``guarded`` in runs of neighbours. A run of definitions alone needs no guard."""
    runs = [list(run) for inside, run in groupby(body, key=lambda s: s in guarded) if inside]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return [run for run in runs if not all(isinstance(s, definitions) for s in run)]
