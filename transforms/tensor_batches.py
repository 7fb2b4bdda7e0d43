"""Cuts batches out of tensors in memory at once, instead of stacking them sample by sample.

A `DataLoader` asks its dataset for one sample after the other and stacks them. Where a sample is only a row of some tensors, that takes
about 3 microseconds each: for a batch of 256 as long as a training step of a small network. A list of indices gives the same batch in
one go: `sampler=BatchSampler(RandomSampler(train_set), 256, drop_last=False), batch_size=None`, which is how the documentation of
`DataLoader` says that samplers of whole batches are used. Samples, their order, the state of all random generators and what a
batch looks like are the same.

It pays for rows of up to some four thousand numbers. Larger ones, such as photos that are kept in memory, are copied as fast one by
one or faster: where the script says how large they are, such a loader stays as it is.

Torch cuts batches with all of its threads, where it stacks samples with one. On cores that other programs use, too, threads that wait for each
other take milliseconds instead of a tenth of one (on two cores beside two busy processes 15 ms, in place of 0.6 for stacking);
`OMP_NUM_THREADS=1` in the environment is as fast for a batch, and waits for nobody.

Applied to a `TensorDataset`, to parts of one (`random_split`), and to classes of the script's own whose `__getitem__` does nothing but
look up rows of tensors. Where not all of these are seen to lie in memory in the order of their dimensions (an array that was
transposed), batches may have other strides, kernels may round otherwise, and the change is a numeric one.

Left alone: loaders with a `collate_fn`, a `batch_sampler` or a sampler other than torch's that give plain indices; those that are handed to
a library, or asked for their `batch_size` or `sampler`; those whose arguments are not all written in their call; all loaders of a script that is
to train on several GPUs (`--gpus`, DataParallel), since `ddp` divides batches by a sampler.

Source: https://docs.pytorch.org/docs/stable/data.html#disable-automatic-batching
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..optimizer.analysis.distributed.data_parallel import spread_over_gpus
from ..optimizer.analysis.editing.free_names import free_name
from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.facts import DataLoader
from ..optimizer.analysis.loading.indexed_batches import can_repeat, indexing_refused
from ..optimizer.analysis.loading.loaders import PARAMETERS
from ..optimizer.analysis.loading.tensor_datasets import IndexedTensors, Layout, indexed_tensors
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import (
    AddImport,
    FileEdit,
    InsertBefore,
    ReplaceArguments,
    ReplaceExpression,
    SetArgument,
)
from .base import Change, Example, Skip, Stage, StepPart, Transform

_PACKAGE = "torch.utils.data"
_SHARED = "several GPUs are to share them, and `ddp` deals them out by the loader's own sampler"
_LARGEST_ROW = 4096
"""In numbers. Measured on one core of a server, in batches of 16 to 256: rows of 784 float32 stack 1.5 to 1.8 times as slowly as they
are cut out, rows of 3,072 1.1 times, of 4,096 as fast, and of 8,000 in 0.9 of the time."""
_NOT_ONCE = ast.ListComp | ast.DictComp | ast.GeneratorExp | ast.Lambda | ast.IfExp | ast.BoolOp


class TensorBatches(Transform):
    name = "tensor-batches"
    tier = Tier.EXACT
    stage = Stage.DISTRIBUTED
    rank = 10  # the others read from a loader's call how large its batches are, and whether it shuffles
    relieves = StepPart.DATA
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset

            inputs = torch.randn(5000, 20)
            train_set = TensorDataset(inputs, inputs.sum(1, keepdim=True))
            train_loader = DataLoader(train_set, batch_size=256, shuffle=True)
            model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

            for epoch in range(10):
                for x, y in train_loader:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

            inputs = torch.randn(5000, 20)
            train_set = TensorDataset(inputs, inputs.sum(1, keepdim=True))
            train_loader = DataLoader(
                train_set,
                batch_size=None,
                sampler=BatchSampler(RandomSampler(train_set), 256, drop_last=False),
            )
            model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

            for epoch in range(10):
                for x, y in train_loader:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        named: set[tuple[Module, str]] = set()
        shared = (options.gpus or 1) > 1 or bool(spread_over_gpus(script.resolver))
        for loader in script.loaders:
            tensors = indexed_tensors(script.resolver, loader)
            if tensors is None or _is_indexed(loader):
                continue
            reason = _SHARED if shared else _refused(script, loader, tensors)
            dataset = None if reason else _dataset(loader, named)
            if reason is not None:
                yield self._skip(loader, reason)
            elif dataset is None:
                yield self._skip(loader, "its dataset is made in its call, and has no variable")
            else:
                yield self._change(loader, tensors, *dataset)

    def _skip(self, loader: DataLoader, reason: str) -> Skip:
        message = f"batches are stacked sample by sample: {reason}"
        return self.skip(loader.path, loader.span, message)

    def _change(
        self, loader: DataLoader, tensors: IndexedTensors, dataset: str, edits: list[FileEdit]
    ) -> Change:
        batches, named = _sampler(loader, dataset)
        change = self.change(
            loader.path,
            loader.span,
            "cuts each batch out of the tensors at once",
            f"an item of {tensors.name} is a row of its tensors and nothing else; the samples and their order stay",
            (*edits, *named, *_arguments(loader, dataset, batches)),
        )
        return change if tensors.layout is Layout.CONTIGUOUS else replace(change, tier=Tier.NUMERIC)


def _refused(script: TrainingScript, loader: DataLoader, tensors: IndexedTensors) -> str | None:
    if tensors.row > _LARGEST_ROW:
        return f"rows of {tensors.row:,} numbers take as long to copy together as one by one"
    return indexing_refused(script.resolver, loader)


def _is_indexed(loader: DataLoader) -> bool:
    """Whether it is so already."""
    return any(
        keyword.arg == "sampler" and "batch_sampler" in loader.arguments
        for keyword in loader.node.keywords
    )


def _dataset(
    loader: DataLoader, named: set[tuple[Module, str]]
) -> tuple[str, list[FileEdit]] | None:
    """How the dataset is called, and the edits that give it that name if it has none."""
    module, dataset = loader.module, loader.arguments["dataset"].value
    if can_repeat(dataset):
        return module.code(dataset), []
    statement = module.statement(loader.node)
    around = [node for node in module.ancestors(loader.node) if not isinstance(node, ast.stmt)]
    if any(isinstance(node, _NOT_ONCE) for node in around):
        return None
    candidates = [name for name in _names(statement) if (module, name) not in named]
    name = free_name(module, candidates)
    if name is None:
        return None
    named.add((module, name))
    assigned = InsertBefore(module.span(statement), f"{name} = {module.unindented_code(dataset)}")
    return name, [FileEdit(module.path, assigned)]


def _names(statement: ast.stmt) -> Iterator[str]:
    """Names for the dataset of the loader that is made in ``statement``, the best first."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) if "loader" in name:
            yield (
                name.replace("dataloader", "dataset")
                .replace("data_loader", "dataset")
                .replace("loader", "dataset")
            )
        case _:
            pass
    yield from ("dataset", "tensor_dataset", "tensors")


def _sampler(loader: DataLoader, dataset: str) -> tuple[str, list[FileEdit]]:
    """The sampler of whole batches, and what it needs to be imported."""
    module, arguments = loader.module, loader.arguments
    edits: list[FileEdit] = []

    def spelled(name: str) -> str:
        code, imports = _imported(module, loader, name)
        edits.extend(imports)
        return code

    def code(name: str, default: str) -> str:
        given = arguments.get(name)
        return module.code(given.value) if given is not None else default

    batches = spelled("BatchSampler")
    given, shuffle = code("sampler", "None"), code("shuffle", "False")
    generator = code("generator", "None")
    own = f", generator={generator}" if generator != "None" else ""
    if given != "None":
        order = given
    elif shuffle == "True":
        order = f"{spelled('RandomSampler')}({dataset}{own})"
    elif shuffle in {"False", "None"}:
        order = f"{spelled('SequentialSampler')}({dataset})"
    else:
        shuffled = f"{spelled('RandomSampler')}({dataset}{own})"
        order = f"{shuffled} if {shuffle} else {spelled('SequentialSampler')}({dataset})"
    size, drop_last = code("batch_size", "1"), code("drop_last", "False")
    return f"{batches}({order}, {size}, drop_last={drop_last})", edits


def _arguments(loader: DataLoader, dataset: str, batches: str) -> Iterator[FileEdit]:
    """The edits that make ``dataset`` and the sampler ``batches`` the arguments of ``loader``."""
    module, call, span = loader.module, loader.node, loader.span
    size = {"batch_size": "None", "sampler": batches}
    if len(call.args) > 1 and "#" not in module.code(call):
        left = [k for k in call.keywords if k.arg not in {*size, "shuffle", "drop_last"}]
        given = [dataset, *(f"{name}={code}" for name, code in size.items())]
        code = ", ".join([*given, *map(module.code, left)])
        comma = "," if span.end_line > span.line else ""  # keeps one argument to a line
        edit = ReplaceExpression(span, f"{module.code(call.func)}({code}{comma})")
        yield FileEdit(module.path, edit)
        return
    yield FileEdit(module.path, SetArgument(span, "dataset", dataset, 0))
    written = tuple(k.arg for k in call.keywords if k.arg in {*size, "shuffle", "drop_last"})
    if "batch_size" not in written:
        position = PARAMETERS.index("batch_size")
        yield FileEdit(
            module.path, SetArgument(span, "batch_size", size.pop("batch_size"), position)
        )
    if written:
        edit = ReplaceArguments(span, written, tuple(size.items()))
    else:
        edit = SetArgument(span, "sampler", batches)
    yield FileEdit(module.path, edit)


def _imported(module: Module, loader: DataLoader, name: str) -> tuple[str, tuple[FileEdit, ...]]:
    """How the file spells ``name``: as it does ``DataLoader``."""
    if isinstance(loader.node.func, ast.Attribute):
        return f"{module.code(loader.node.func.value)}.{name}", ()
    known = reference(module, f"{_PACKAGE}.{name}")
    if "." not in known.code and not known.edits:
        return known.code, ()
    if free_name(module, [name]) is None:
        return known.code, known.edits
    return name, (FileEdit(module.path, AddImport(_PACKAGE, name)),)
