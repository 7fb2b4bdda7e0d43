"""Deletes a network's results at the end of each pass of a loop, before the next pass computes new ones.

In `output = model(x)` the name keeps the results of one batch until the assignment of the next batch is complete: while the
network runs, those of two batches are in memory. `del output, loss` at the end of the loop's body lets the old ones go
first. What is computed does not change.

What it buys is memory, never time, and how much depends on the loop:

- An evaluation that records gradients keeps the whole graph of the last batch, every activation of it, behind
  `output` and `loss`. Here the peak may fall to about half, but `no-grad` helps more, and makes the graph go.
- Without gradients, and in training, where `backward()` frees the activations, the results themselves are what stays. That
  is worth a line where they are large: images, maps of a segmentation, logits over a vocabulary. Of a classifier it is a
  few kilobytes.
- The batch itself is not deleted: a name that the loop assigns before the network runs lets the old batch go by itself.

So it only runs when it is asked for: `--select forward-lifetimes`.

Left alone: variables that are read behind the loop, by the next pass before it binds them, by a function or a generator, or
in another file; variables that are bound in a branch, in a `try` or an inner loop only; results that a list or an object
keeps anyway; loops that end in `break` or `return`. Nothing is done in scripts with CUDA streams or graphs, asynchronous
collectives, finalizers, `locals()` or `exec`, or where the script looks at the memory in use.

Sources: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory ("If you assign a
Tensor or Variable to a local, Python will not deallocate until the local goes out of scope. You can free this reference by
using `del x`.") and https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from __future__ import annotations

from collections.abc import Iterator

from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.lifetimes import LateRelease
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertAfter
from .base import Change, Example, Skip, Stage, Transform

_WIDTH = 79
_REASON = "every pass binds {0} before it ends, and nothing reads {0} before the next one has bound {0} again"


class ForwardLifetimes(Transform):
    name = "forward-lifetimes"
    tier = Tier.EXACT
    stage = Stage.COMPILE
    rank = 9  # behind everything that adds statements to the loop
    opt_in = True
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import test_set

            model = nn.Conv2d(3, 64, 3, padding=1).cuda()
            total = 0.0
            with torch.no_grad():
                for images, masks in DataLoader(test_set, batch_size=32):
                    output = model(images.cuda())
                    total += nn.functional.cross_entropy(output, masks.cuda()).item()
            print(total)
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import test_set

            model = nn.Conv2d(3, 64, 3, padding=1).cuda()
            total = 0.0
            with torch.no_grad():
                for images, masks in DataLoader(test_set, batch_size=32):
                    output = model(images.cuda())
                    total += nn.functional.cross_entropy(output, masks.cuda()).item()
                    del output
            print(total)
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for release in script.late_releases:
            for node, why in release.kept:
                yield self.skip(release.path, release.module.span(node), f"not deleted: {why}")
            if release.names:
                yield self._change(release)

    def _change(self, release: LateRelease) -> Change:
        last = release.module.span(release.node.body[-1])
        lines = _statements(release.names, _WIDTH - last.column)
        spelled = ", ".join(f"`{name}`" for name in release.names)
        return self.change(
            release.path,
            release.span,
            f"deletes {spelled} at the end of each pass, before the network runs again",
            _REASON.format("it" if len(release.names) == 1 else "them"),
            (FileEdit(release.path, InsertAfter(last, "\n".join(lines))),),
        )


def _statements(names: tuple[str, ...], width: int) -> list[str]:
    """``del a, b``, in as many statements as the lines need."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) + 2 <= width:
            lines[-1] += f", {name}"
        else:
            lines.append(f"del {name}")
    return lines
