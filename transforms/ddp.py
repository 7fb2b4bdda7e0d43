"""One process per GPU: `DistributedDataParallel` under torchrun, in place of `nn.DataParallel` or of a single GPU.

`nn.DataParallel` copies the network to every GPU in every step and gathers what they compute on the first; one Python
process feeds them all. With `DistributedDataParallel` each GPU has a process of its own, which loads its own part of every
batch; only gradients travel, while the backward pass is still running. A script that uses `DataParallel` is rewritten by
default, one for a single GPU with `--gpus N`. How to start it, what travels, and what is not as it was:
[distributed.md](../distributed.md).

The global batch stays the script's: each process takes an equal part of it. A `DistributedSampler` shuffles as the loader did,
in another order in every epoch. Each process uses its own GPU (what an option chooses, also by `CUDA_VISIBLE_DEVICES`, is
that of a process that is alone) and its own random numbers; the data is downloaded or written by the first one while the others wait; only the first one prints,
logs (a log that is kept open is nowhere for the others) and saves. Checkpoints keep their keys: the wrapped network has a variable of its own, or `.module` where `DataParallel`
had put it, also where the script asks whether it is wrapped. A seed that is drawn is that of the first process. The process group is destroyed at exit, also behind an error; where the processes hand numbers to each other, its threads get
a moment more, for one that lets go of a tensor when Python has begun to shut down would abort the process. Started as before, with `python train.py`, the script
is one process and trains exactly as it did. The launchers `launch_train.sh` and `launch_train.sbatch` start it on one node or
several; what follows `--` on the command line of torchopt becomes the script's arguments there. A file of that name that says
something else stays. Where a shell script beside it still calls `python`, the line is told. Functions that other scripts use, too, are changed: nothing of it acts
there, unless one of them runs in several processes itself.

An evaluation that only adds up what it finds, batch by batch, is shared: each process takes every so many-th batch, none is
dropped or read twice, and the sums are added up. Any other one is made in full by every process; the first one tells, and the
report says why; so is one in the function that trains (`run_epoch(val_loader, train=False)`), whose training alone is
shared. What a training loop adds up is added up over the processes where it is seen to be a count, a sum over
samples or a mean over batches: behind the loop, and wherever the loop tells it on the way (every hundred steps, say), in one
small exchange. So is the loss of a single step, and what an `AverageMeter` is given in each. Progress bars show the first
process's share, and so does what is told otherwise; the report says so. Where a stop, a learning rate or what is loaded
hangs on what has not been added up, the first process decides for all.

The loss is followed into the script's own functions and criteria, and into the network where that computes it: it has to be a mean over samples, or a sum. What is not linear in a mean, such as its
root, is neither. A loss that is a sum over samples is multiplied by the number of processes, since `DistributedDataParallel` takes the mean of
their gradients. A part of a network in `DataParallel`, or spread by `nn.parallel.data_parallel`, stays there, on the GPU of its process, and the whole is wrapped.
Of several networks, such as those of a GAN or an encoder and its decoder, each is wrapped by itself. One that runs several times in a step
gets `forward_sync_buffers=False` (`broadcast_buffers=False` before torch 2.13): copied from the first process before each time, its buffers would change while gradients are still needed of
the time before. Noise from numpy's generator, which a seeded script would draw alike in all processes, is drawn by each for itself.
Where an optimizer steps every few batches, `no_sync()` lets only the last of them exchange gradients.
`find_unused_parameters=True`, which costs a walk through every step's graph, is set where a layer is never used or the forward
pass may leave layers out (by chance, by what a batch holds, or as the training goes on), and where the loss leaves out what
layers make for nothing else, or a part gets no gradients.

Not the same: BatchNorm normalizes by each process's part of a batch (`--sync-batchnorm` keeps it to the whole batch), a
dataset that does not divide is filled up with a few samples twice, samples that are mixed with others of their batch (mixup, CutMix) are mixed
within each process's part of it, and a loss that weighs samples (class weights,
`ignore_index`) is a mean in each process.

Left alone, with the reason: optimizers that take turns with one network, a second backward pass to a network that has not run since the first,
losses that compare the samples of a batch (contrastive ones, relativistic GANs) or are not known to be a mean or a sum over samples, samplers of the script's own, datasets that are only
iterated, batch sizes or networks that other code counts on, decisions taken in single steps by what one process measures,
errors that one process may get over, splits drawn without a seed, layers that are frozen or thawed on the way (not a network as a whole), gradients
asked for by `torch.autograd.grad` (but for a penalty on those of what a network is given), GPUs other than the first chosen by number, one GPU alone written into `CUDA_VISIBLE_DEVICES`,
frameworks that distribute by themselves, networks that are spread by hand (`replicate`, a `DataParallel` of the script's own), scripts that run in several processes already, and with `--target cpu` those without `--gpus N`.

Source: https://docs.pytorch.org/docs/stable/notes/ddp.html and https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..optimizer.analysis.distributed.data_parallel import distributed_call, spread_over_gpus
from ..optimizer.analysis.distributed.distributed import Distribution, find_distribution
from ..optimizer.analysis.facts import Fact, not_one, seen_at
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.launchers import launch_command, launchers, lines_with_python
from ..optimizer.options import Options, Target, Tier
from .base import Advice, Change, Example, Skip, Stage, Transform


class DistributedDataParallel(Transform):
    name: ClassVar[str] = "ddp"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.DISTRIBUTED
    example: ClassVar[Example] = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for epoch in range(10):
                for images, labels in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
                    loss.backward()
                    optimizer.step()
                torch.save(model.state_dict(), "model.pt")
        """,
        after="""\
            import atexit
            import os

            import torch
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel
            from torch.utils.data import DataLoader, DistributedSampler
            from torchvision import datasets, transforms

            # torchrun starts one process per GPU and tells it its place; without it there is one process.
            RANK = int(os.environ.get("RANK", 0))
            LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
            WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))

            if WORLD_SIZE > 1:
                if torch.cuda.is_available():
                    torch.cuda.set_device(LOCAL_RANK)
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                )
                atexit.register(dist.destroy_process_group)  # also behind an error

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            assert 64 % WORLD_SIZE == 0, "every process gets an equal part of every batch"
            train_sampler = DistributedSampler(train_set) if WORLD_SIZE > 1 else None
            loader = DataLoader(
                train_set,
                batch_size=64 // WORLD_SIZE,
                shuffle=train_sampler is None,
                sampler=train_sampler,
            )
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            ddp_model = model
            if WORLD_SIZE > 1:
                ddp_model = DistributedDataParallel(model)
                # every process draws its own dropout masks and augmentations
                torch.manual_seed(torch.initial_seed() + RANK)

            for epoch in range(10):
                if WORLD_SIZE > 1:
                    loader.sampler.set_epoch(epoch)  # another order in every epoch
                for images, labels in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(ddp_model(images.cuda()), labels.cuda())
                    loss.backward()
                    optimizer.step()
                if RANK == 0:
                    torch.save(model.state_dict(), "model.pt")
        """,
        options={"gpus": 8},
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip | Advice]:
        running = distributed_call(script.resolver)
        if running is not None:
            yield from self._started_with_python(script, running, options)
            return
        wrapped = spread_over_gpus(script.resolver)
        if not wrapped and (options.gpus or 1) < 2:
            return
        steps = [step for step in script.step_code if script.runs(step)]
        if len(steps) != 1:
            for place in [*wrapped, *(step.backwards[0] for step in steps)][:1]:
                why = not_one(steps, "training step", "training steps")
                yield self.skip(place.path, place.span, f"not distributed: {why}")
            return
        place = wrapped[0] if wrapped else steps[0].backwards[0]
        if options.target is Target.CPU and options.gpus is None:
            why = "the script runs on the CPU, in one process"
            yield self.skip(place.path, place.span, f"not distributed: {why}")
            return
        found = find_distribution(script, steps[0], options)
        if not isinstance(found, Distribution):
            yield self.skip(place.path, place.span, f"not distributed: {_said(found, place)}")
            return
        files, others = launchers(script.entry, options.gpus, options.script_arguments)
        why = "the mean of the processes' gradients is that of the whole batch"
        yield Change(
            self.name,
            self.tier,
            place.path,
            place.span,
            "one process per GPU: DistributedDataParallel under torchrun",
            "; ".join([why, *found.notes, *others]),
            found.edits,
            files,
            launch_command(script.entry, options.gpus),
            only_launched=True,
        )

    def _started_with_python(
        self, script: TrainingScript, running: Fact, options: Options
    ) -> Iterator[Advice]:
        """Advice where a shell script beside starts a script for torchrun as one process."""
        if not any("WORLD_SIZE" in module.source.text for module in script.modules):
            return
        command = launch_command(script.entry, options.gpus)
        for found in lines_with_python(script.entry.path):
            message = f"{found.place} starts it as one process; all GPUs: `{command}`"
            yield self.advice(running.path, running.span, message)


def _said(why: Fact, place: Fact) -> str:
    text = why.message if isinstance(why, Obstacle) else "that is not possible here"
    return f"{text}{seen_at(why, place, text)}"
