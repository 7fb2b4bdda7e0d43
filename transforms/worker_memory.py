"""Works out how much memory the batches waiting in DataLoader workers take: workers x prefetch x batch size x image.

Every worker makes `prefetch_factor` batches ahead (2 unless the script says otherwise), and each stays in shared
memory until the training loop takes it. For large crops that adds up to gigabytes, of the host's memory and of
`/dev/shm`, which containers limit to 64 MiB unless told otherwise (`docker run --shm-size`); a worker that runs out of it
dies with a bus error. Sizes that are command-line options count at their defaults. Only the images count: labels and
masks come on top, and so does what the dataset itself holds, in each worker.

Keeping the images uint8 until they are on the device makes it a quarter. Fewer workers or a smaller `prefetch_factor` help
where the network is slower than the workers anyway.

Silent: when the loader has no workers, when the size of the images, of the batches or the number of workers is not
told by the script, when all of it fits into 64 MiB (`--select worker-memory` tells all the same), and for evaluation.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader and
https://docs.docker.com/engine/containers/run/#runtime-constraints-on-resources
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.facts import DataLoader
from ..optimizer.analysis.images.image_transforms import ImageShape, image_shape
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.values.values import External, Literal, Made, whole_number
from ..optimizer.options import Options
from .base import Advice, Advisor, Example

_SHARED_MEMORY_OF_CONTAINERS = 64 * 2**20
_DEFAULT_PREFETCH = 2


class WorkerMemory(Advisor):
    name = "worker-memory"
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            crop = transforms.Compose([transforms.RandomCrop(512), transforms.ToTensor()])
            train_set = datasets.ImageFolder("data", crop)
            train_loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=8)
            model = nn.Sequential(nn.Flatten(), nn.Linear(512 * 512 * 3, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for images, labels in train_loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
        advice=(
            "8 workers x 2 batches ahead x 32 images of 3 x 512 x 512 float32 = 1.5 GiB of shared memory (containers "
            "have 64 MiB unless `--shm-size` says otherwise); 384 MiB if they stay uint8 until they are on the device",
        ),
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Advice]:
        for loader in dict.fromkeys(x for loop in script.training_loops for x in loop.loaders):
            workers = _workers(script, loader)
            prefetch = _argument(script, loader, "prefetch_factor", _DEFAULT_PREFETCH)
            batch_size = _argument(script, loader, "batch_size", None)
            shape = _shape(script, loader)
            if not (workers and prefetch and batch_size and shape):
                continue
            total = workers[0] * prefetch * batch_size * shape.size
            if total > _SHARED_MEMORY_OF_CONTAINERS or self.name in options.select:
                message = (
                    f"{workers[1]} x {prefetch} batches ahead x {batch_size} images of {shape.channels} x {shape.height} x "
                    f"{shape.width} {shape.dtype} = {_amount(total)} of shared memory (containers have 64 MiB unless "
                    "`--shm-size` says otherwise)"
                )
                if shape.dtype == "float32":
                    message += (
                        f"; {_amount(total // 4)} if they stay uint8 until they are on the device"
                    )
                yield self.advice(loader.path, loader.span, message)


def _workers(script: TrainingScript, loader: DataLoader) -> tuple[int, str] | None:
    """How many workers there are at most, as a number and in words."""
    argument = loader.arguments.get("num_workers")
    if argument is None:
        return None
    count = whole_number(script.values(argument.value, argument.module))
    if count is not None:
        return (count, f"{count} worker{'s' * (count != 1)}") if count > 0 else None
    most = _at_most(script, argument.value, argument.module)
    return (most, f"up to {most} workers") if most else None


def _at_most(script: TrainingScript, count: ast.expr, module: Module) -> int | None:
    """The largest number that ``count``, made by ``min`` and ``max``, may be; None where it has no limit in sight."""
    known = whole_number(script.values(count, module))
    if known is not None:
        return known
    match list(script.values(count, module)):
        case [Made(call, there, External("builtins.min" | "builtins.max" as how))]:
            bounds = [_at_most(script, bound, there) for bound in call.args]
            known = [bound for bound in bounds if bound is not None]
            if how == "builtins.min":
                return min(known, default=None)
            return max(known) if len(known) == len(bounds) else None
        case _:
            return None


def _argument(
    script: TrainingScript, loader: DataLoader, name: str, default: int | None
) -> int | None:
    argument = loader.arguments.get(name)
    if argument is None:
        return default if loader.opaque is None else None
    values = script.values(argument.value, argument.module)
    # `4 if num_workers > 0 else None`: there are workers, so it is the number.
    return whole_number([v for v in values if not (isinstance(v, Literal) and v.value is None)])


def _shape(script: TrainingScript, loader: DataLoader) -> ImageShape | None:
    """The shape of the images, when all datasets of ``loader`` agree and nothing is put between them and the batches."""
    if "collate_fn" in loader.arguments:
        return None
    shapes = {image_shape(script.resolver, dataset) for dataset in script.datasets[loader]}
    return shapes.pop() if len(shapes) == 1 else None


def _amount(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{max(1, round(size / 2**20))} MiB"
