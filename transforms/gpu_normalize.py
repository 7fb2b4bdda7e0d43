"""Keeps images as bytes until they are on the GPU, and scales and normalizes them there.

`ToTensor()` and `Normalize(mean, std)` make four bytes of every byte of an image, in the worker processes. These then convert,
subtract and divide on the CPU, and hand four times as much memory to the loop and over the bus. With `PILToTensor()` in
their place (or `ToImage()` alone, in `transforms.v2`) the workers hand on bytes, and one line behind the copy does the
same operations in the same order on the GPU, where they cost next to nothing. On the CPU the numbers are bit for bit the
same; a GPU may round a division by 255 otherwise.

Applies to `transform=` of torchvision's datasets and to datasets of the script that apply `self.transform` to an image
from `Image.open(..).convert("RGB")`, when every place where the images go is known and each loop copies them to the GPU
before anything else looks at their values. Loops in several functions share a small `normalize` function. Where the copy
stands under `if use_cuda:`, the operations stand below it, and run wherever the images then are.

Left alone: scripts for the CPU; transforms behind `ToTensor` that work on floats (`RandomErasing`, noise, a `Lambda`) and those
before it that may make something else than images of 8 bits; images of unknown mode (`Image.open(..)` without `.convert(..)`
reads 16-bit files, too); a `collate_fn`; datasets that are indexed by hand, and loops that show, save or mix images on the
host before the copy; copies that the loop shares with other data; copies under `if args.gpu is not None:` where `DataParallel` copies otherwise; `Normalize`
whose numbers are not written out. Masks are left as they are.

Sources: https://docs.pytorch.org/vision/stable/transforms.html#performance-considerations and
https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.PILToTensor.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import dedent

from ..optimizer.analysis.calls.signatures import call_argument
from ..optimizer.analysis.editing.bound_names import is_imported
from ..optimizer.analysis.editing.free_names import free_name
from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.images.image_batches import ImageBatches, ImageCopy
from ..optimizer.analysis.images.image_edits import pipeline_edits
from ..optimizer.analysis.images.image_pipelines import Normalization
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.values.unpacking import assigned_parts
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertAfter, InsertBefore, ReplaceExpression
from .base import Change, Example, Skip, Stage, StepPart, Transform

_TOLD = (", non_blocking=True", ", memory_format=torch.channels_last")
"""What other transforms may tell a copy."""
_LONGEST_LINE = 88
_REASON = (
    "every loop that gets these images copies them to the GPU before it uses them, and the same operations run there in the "
    "same order"
)
_REASON_CONDITIONAL = (
    "every loop that gets these images copies them to the GPU, where the script uses one, before it uses them, and the same "
    "operations run below that in the same order"
)


class GpuNormalize(Transform):
    name = "gpu-normalize"
    tier = Tier.NUMERIC
    stage = Stage.DATA
    rank = 4
    relieves = StepPart.DATA
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            transform = transforms.Compose([
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.491, 0.482, 0.447], [0.247, 0.243, 0.262]),
            ])
            train_set = datasets.CIFAR10("data", transform=transform)
            loader = DataLoader(train_set, batch_size=64, num_workers=2, pin_memory=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            transform = transforms.Compose([
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ])
            train_set = datasets.CIFAR10("data", transform=transform)
            loader = DataLoader(train_set, batch_size=64, num_workers=2, pin_memory=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            mean = torch.tensor([0.491, 0.482, 0.447], device=device).view(3, 1, 1)
            std = torch.tensor([0.247, 0.243, 0.262], device=device).view(3, 1, 1)


            # ToTensor and Normalize, for uint8 images that are on the device already.
            def normalize(images):
                return images.float().div_(255).sub_(mean).div_(std)


            for images, labels in loader:
                images, labels = normalize(images.to(device)), labels.to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        on_gpu = script.targets_cuda(options)
        for batches in script.image_batches:
            first = batches.pipelines[0]
            if not on_gpu:
                message = "images become floats in the dataset: the script does not use a GPU"
                yield self.skip(first.path, first.span, message)
                return
            if batches.obstacle is not None:
                where = f"({batches.obstacle.place})"
                message = f"images become floats in the dataset: {batches.obstacle.message}"
                if batches.obstacle.span.line != first.span.line:
                    message += f" {where}"
                yield self.skip(first.path, first.span, message)
        free = [batches for batches in script.image_batches if batches.obstacle is None]
        if free:
            # Others, with other numbers, have their turn when the script has been understood anew.
            same = [batches for batches in free if batches.scaling == free[0].scaling]
            yield self._change(script, same)

    def _change(self, script: TrainingScript, groups: list[ImageBatches]) -> Change:
        pipelines = [pipeline for batches in groups for pipeline in batches.pipelines]
        first = pipelines[0]
        normalization = first.normalization
        edits: list[FileEdit] = []
        kept: list[ast.expr] = []
        by_module: dict[Module, list[ImageCopy]] = {}
        for copy in [copy for batches in groups for copy in batches.copies]:
            by_module.setdefault(copy.module, []).append(copy)
        for module, copies in by_module.items():
            scaling = _Scaling(module, copies, normalization, first.by_dtype)
            edits += scaling.edits()
            kept += scaling.kept
        edits += pipeline_edits(script.project, pipelines, kept)
        what = "scales" if normalization is None else "normalizes"
        conditional = any(copy.under for batches in groups for copy in batches.copies)
        return self.change(
            first.path,
            first.span,
            f"{what} images on the GPU, not in the workers",
            _REASON_CONDITIONAL if conditional else _REASON,
            tuple(edits),
        )


class _Scaling:
    """Writes what follows the copies in one file."""

    def __init__(
        self,
        module: Module,
        copies: list[ImageCopy],
        normalization: Normalization | None,
        by_dtype: bool,
    ) -> None:
        self.kept: list[ast.expr] = []
        self._module = module
        self._copies = sorted(copies, key=lambda copy: copy.span)
        self._normalization = normalization
        self._conversion = "ToDtype" if by_dtype else "ToTensor"
        self._to_unit = ".float().mul_(1 / 255)" if by_dtype else ".float().div_(255)"

    def edits(self) -> list[FileEdit]:
        normalization = self._normalization
        places = {copy.under or copy for copy in self._copies}
        if normalization is None or (self._is_uniform(normalization) and len(places) == 1):
            operations = self._to_unit + _uniform(normalization)
            if all(self._fits(copy, operations) for copy in self._copies):
                return self._scaled("", operations)
        if normalization is None:
            name = self._free("to_float", "images_to_float", "scale_images")
            return [*self._helper(name, None), *self._scaled(name, "")]
        name = self._free("normalize", "normalize_images", "normalize_batch", "to_normalized")
        return [*self._helper(name, normalization), *self._scaled(name, "")]

    def _free(self, *candidates: str) -> str:
        return free_name(self._module, candidates) or f"{candidates[0]}_on_device"

    def _fits(self, copy: ImageCopy, operations: str) -> bool:
        """Whether ``operations`` behind what ``copy`` copies make no line too long."""
        if copy.under is not None:
            line = " " * copy.under.span.column + f"{copy.under.name} = {copy.under.name}"
        else:
            line = self._module.lines[copy.span.end_line - 1]
        return len(line) + len(operations) <= _LONGEST_LINE

    def _scaled(self, function: str, operations: str) -> list[FileEdit]:
        """What the copies, or the variables below them, become: ``function`` of them, or with ``operations`` behind."""
        edits: list[FileEdit] = []
        for copy in self._copies:
            if copy.under is None:
                code = f"{function}({copy.copying})" if function else f"{copy.copying}{operations}"
                below = self._below(copy, function) if function else None
                edits.append(below or self._replaced(copy, code))
                if below is not None and copy.dtype is not None:
                    edits.append(self._replaced(copy, copy.copying))
                continue
            name = copy.under.name
            code = f"{function}({name})" if function else f"{name}{operations}"
            inserted = InsertAfter(copy.under.span, f"{name} = {code}")
            edits.append(FileEdit(self._module.path, inserted))
            if copy.dtype is not None:
                edits.append(self._replaced(copy, copy.copying))
        return list(dict.fromkeys(edits))

    def _below(self, copy: ImageCopy, function: str) -> FileEdit | None:
        """A statement of its own below ``images, labels = images.to(device), labels.to(device)``, which is long enough.

        So is ``images = images.to(device)``, once the copy is told how to be made.
        """
        statement = self._module.statement(copy.node)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        parts = assigned_parts(statement.targets[0], statement.value)
        target = next((t for t, value in parts if value is copy.node), None)
        told = "" if isinstance(statement.value, ast.Tuple) else self._untold(copy)
        if not isinstance(target, ast.Name) or self._fits(copy, f"{function}(){told}"):
            return None
        code = f"{target.id} = {function}({target.id})"
        return FileEdit(self._module.path, InsertAfter(self._module.span(statement), code))

    def _untold(self, copy: ImageCopy) -> str:
        return "".join(told for told in _TOLD if told not in self._module.code(copy.node))

    def _replaced(self, copy: ImageCopy, code: str) -> FileEdit:
        return FileEdit(self._module.path, ReplaceExpression(copy.span, code))

    def _helper(self, name: str, normalization: Normalization | None) -> list[FileEdit]:
        statement = self._first_statement()
        steps = self._conversion if normalization is None else f"{self._conversion} and Normalize"
        comment = f"# {steps}, for uint8 images that are on the device already."
        if normalization is None or self._is_uniform(normalization):
            operations = self._to_unit + _uniform(normalization)
            code = f"{comment}\ndef {name}(images):\n    return images{operations}\n"
            return [self._insert(statement, code)]
        tensor = reference(self._module, "torch.tensor")
        edits = list(tensor.edits)
        device = self._shared_device(statement)
        mean, std = (self._constant(normalization, n) for n in ("mean", "std"))
        shape = f".view({len(normalization.mean)}, 1, 1)"
        operations = f"images{self._to_unit}.sub_(mean).div_(std)"
        if device is not None:
            first, second = (self._free(n, f"image_{n}", f"channel_{n}") for n in ("mean", "std"))
            code = f"{first} = {tensor.code}({mean}, device={device}){shape}\n"
            code += f"{second} = {tensor.code}({std}, device={device}){shape}\n\n\n"
            body = operations.replace("(mean)", f"({first})").replace("(std)", f"({second})")
            code += f"{comment}\ndef {name}(images):\n    return {body}\n"
        else:
            cache = reference(self._module, "functools.cache")
            edits += cache.edits
            statistics = self._free("channel_statistics", "image_statistics")
            # A local variable must not have the name of the global one it is made of.
            prefix = "image_" if {mean, std} & {"mean", "std"} else ""
            both = f"{prefix}mean, {prefix}std"
            body = operations.replace("(mean)", f"({prefix}mean)").replace(
                "(std)", f"({prefix}std)"
            )
            code = dedent(
                f"""\
                @{cache.code}
                def {statistics}(device):
                    {prefix}mean = {tensor.code}({mean}, device=device){shape}
                    {prefix}std = {tensor.code}({std}, device=device){shape}
                    return {both}


                {comment}
                def {name}(images):
                    {both} = {statistics}(images.device)
                    return {body}
                """
            )
        return [*edits, self._insert(statement, code)]

    def _insert(self, statement: ast.stmt, code: str) -> FileEdit:
        span = self._module.span(statement)
        return FileEdit(self._module.path, InsertBefore(span, code))

    def _first_statement(self) -> ast.stmt:
        """The first statement at the file's top level that copies images, or defines what does."""
        around = {node for copy in self._copies for node in self._module.ancestors(copy.node)}
        return next(statement for statement in self._module.tree.body if statement in around)

    def _shared_device(self, statement: ast.stmt) -> str | None:
        """The global variable that all copies go to, when it has its value above ``statement``."""
        if self._module.name != "__main__" or self._module.main_guards:
            return None  # Worker processes that are spawned import the file, and shall not use the GPU.
        names: set[str] = set()
        for copy in self._copies:
            device = call_argument(copy.node, "device", 0)
            if copy.under is not None:
                return None
            if not isinstance(device, ast.Name) or not self._is_above(device, statement):
                return None
            names.add(device.id)
        return names.pop() if len(names) == 1 else None

    def _is_uniform(self, normalization: Normalization) -> bool:
        """Whether one number each will do: all channels have it, and no setting of another file says which."""
        nodes = (normalization.mean_node, normalization.std_node)
        return normalization.is_uniform and not any(
            is_imported(_root(node), self._module) and self._can_name(normalization, node)
            for node in nodes
        )

    def _can_name(self, normalization: Normalization, node: ast.expr) -> bool:
        root = _root(node)
        if not isinstance(root, ast.Name) or normalization.module is not self._module:
            return False
        return self._is_above(root, self._first_statement())

    def _constant(self, normalization: Normalization, which: str) -> str:
        """The numbers as the script has them: the name of a global list, also an imported one, else the list."""
        node = normalization.mean_node if which == "mean" else normalization.std_node
        if self._can_name(normalization, node):
            self.kept.append(node)
            return self._module.code(node)
        numbers = normalization.mean if which == "mean" else normalization.std
        written = normalization.module.code(node)
        is_display = isinstance(node, ast.List | ast.Tuple) and "\n" not in written
        return written if is_display else f"[{', '.join(map(repr, numbers))}]"

    def _is_above(self, name: ast.Name, statement: ast.stmt) -> bool:
        """Whether the global ``name`` is assigned once, above ``statement``, and means the same everywhere."""
        module = self._module
        found = module.scope(name).lookup(name.id)
        if found is None or not isinstance(found[0].node, ast.Module) or len(found[1]) != 1:
            return False
        assignment = module.statement(found[1][0].node)
        body = module.tree.body
        return (
            isinstance(assignment, ast.Assign | ast.Import | ast.ImportFrom)
            and assignment in body
            and body.index(assignment) < body.index(statement)
        )


def _root(node: ast.expr) -> ast.expr:
    """What the attributes are read from: ``config`` of ``config.data.mean``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _uniform(normalization: Normalization | None) -> str:
    """The operations of ``Normalize`` when every channel has the same numbers, but for those that change none."""
    if normalization is None:
        return ""
    mean, std = normalization.mean[0], normalization.std[0]
    moved = f".sub_({mean!r})" if mean != 0 else ""
    return f"{moved}.div_({std!r})" if std != 1 else moved
