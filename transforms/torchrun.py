"""Training that starts its processes with `torch.multiprocessing.spawn` is started by torchrun, on one node or several.

Processes that a script starts itself are on one machine, meet at an address written into the script, and leave the others
waiting when one of them dies. torchrun ends them all then, and starts them on as many nodes as there are. The script
is rewritten when asked for, with `--gpus N`.

The function that was started is called, with the process's rank for its number. The processes meet where torchrun says,
and are as many as torchrun has started. Where the number of a process named its GPU, that is its number on its node
(`LOCAL_RANK`): on one node the two are the same, so training is what it was. The launchers `launch_train.sh` and
`launch_train.sbatch` start it. With `python train.py` it is one process from then on.

Left alone, with the reason: scripts that do more in the process that starts the others than read their arguments, such as set
global variables, which those do not see now, or that do something after them; functions to start that are not known; a
number of processes that is an option of the script; an address given otherwise than by `MASTER_ADDR` and `MASTER_PORT`;
numbers of processes that are computed with.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..optimizer.analysis.distributed.spawned_training import (
    SpawnedTraining,
    spawn_calls,
    spawned_training,
)
from ..optimizer.analysis.facts import seen_at
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.launchers import launch_command, launchers
from ..optimizer.options import Options, Tier
from .base import Change, Example, Skip, Stage, Transform


class Torchrun(Transform):
    name: ClassVar[str] = "torchrun"
    tier: ClassVar[Tier] = Tier.EXACT
    stage: ClassVar[Stage] = Stage.DISTRIBUTED
    example: ClassVar[Example] = Example(
        before="""\
            import os

            import torch
            import torch.distributed as dist
            import torch.multiprocessing as mp
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel


            def main(rank, world_size):
                os.environ["MASTER_ADDR"] = "localhost"
                os.environ["MASTER_PORT"] = "12355"
                dist.init_process_group("nccl", rank=rank, world_size=world_size)
                model = DistributedDataParallel(nn.Linear(8, 2).to(rank), device_ids=[rank])
                if rank == 0:
                    torch.save(model.module.state_dict(), "model.pt")
                dist.destroy_process_group()


            if __name__ == "__main__":
                world_size = torch.cuda.device_count()
                mp.spawn(main, args=(world_size,), nprocs=world_size)
        """,
        after="""\
            import os

            import torch
            import torch.distributed as dist
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel


            # torchrun starts one process per GPU and tells it its place; without it there is one process.
            RANK = int(os.environ.get("RANK", 0))
            LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
            WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


            def main(rank, world_size):
                os.environ.setdefault("MASTER_ADDR", "localhost")
                os.environ.setdefault("MASTER_PORT", "12355")
                dist.init_process_group("nccl", rank=rank, world_size=world_size)
                model = DistributedDataParallel(
                    nn.Linear(8, 2).to(LOCAL_RANK), device_ids=[LOCAL_RANK]
                )
                if rank == 0:
                    torch.save(model.module.state_dict(), "model.pt")
                dist.destroy_process_group()


            if __name__ == "__main__":
                world_size = WORLD_SIZE
                main(RANK, world_size)
        """,
        options={"gpus": 8},
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        calls = spawn_calls(script.resolver)
        if len(calls) == 0 or (options.gpus or 1) < 2:
            return
        call, *others = calls
        if others:
            yield self.skip(others[0].path, others[0].span, "started in several places")
            return
        found = spawned_training(script, call)
        if not isinstance(found, SpawnedTraining):
            why = f"not started by torchrun: {found.message}{seen_at(found, call)}"
            yield self.skip(call.path, call.span, why)
            return
        files, others = launchers(script.entry, options.gpus, options.script_arguments)
        why = (
            "every process calls what it was started with, and meets the others where torchrun says"
        )
        yield Change(
            self.name,
            self.tier,
            call.path,
            call.span,
            "started by torchrun, on one node or several",
            "; ".join([why, *others]),
            found.edits,
            files,
            launch_command(script.entry, options.gpus),
        )
