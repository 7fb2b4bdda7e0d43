"""Lets the optimizer update all parameters in one kernel: `fused=True`.

By default Adam, AdamW and SGD run several kernels per step over lists of parameters. Their fused implementation reads
and writes parameters, gradients and states once, which saves most of the step's memory traffic and its launches, and with
many small layers the host's time too. The same sums are rounded in another order, so the change is numeric.

Where the script chooses its device at run time, the script's own device or flag is asked
(`fused=device.type == "cuda"`), so that a run on the CPU stays what it was.

Scripts that know no GPU, and all with `--target cpu`, get it for the CPU (`fused=True`), where the usual kernels are many small ones per
parameter: that needs PyTorch 2.4, and runs on a GPU as well. Steps of Adam, AdamW and SGD with momentum took 1.4 to 6 times as long
without it on two cores, whatever the size of the network. SGD without momentum does not gain there, and is left alone.

Left alone: optimizers without such a kernel (RMSprop, Adadelta, Adagrad and others) or older than
it (SGD has it since PyTorch 2.3); classes of the script's own and optimizers that are handed to a library; `foreach=`,
`capturable=`, `differentiable=` and `fused=` that are there already; closures; sparse or complex parameters; gradients
that the script sets itself; steps before a backward pass through the weights as they were, where PyTorch raises but sees nothing of what a
fused kernel changes; optimizers that are printed or whose state is looked into; SGD with momentum under a
`GradScaler`: when the scaler skips a step because of an overflow, fused SGD leaves the momentum it is about to use
unfilled. Before PyTorch 2.4 the parameters have to be on the GPU before the optimizer is made.

The setting is part of the optimizer's state: a checkpoint written before the change turns it off again when it is
loaded, and all stays as it was. With a `GradScaler` that fails, so such scripts are left alone.

Under Lightning, `configure_optimizers` runs when the module is on its device already (`fused=self.device.type == "cuda"`). Left alone where the
Trainer clips gradients, which Lightning refuses for fused optimizers in mixed precision, or where a hook may see gradients before
they are unscaled.

Source: https://docs.pytorch.org/docs/stable/optim.html#algorithms and
https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..optimizer.analysis.devices.network_device import (
    NetworkDevice,
    condition_imports,
    network_device,
    uses_cuda,
)
from ..optimizer.analysis.facts import DeviceKind, Optimizer, seen_at
from ..optimizer.analysis.frameworks.lightning import accelerator
from ..optimizer.analysis.frameworks.lightning_updates import fused_where, lightning_obstacle
from ..optimizer.analysis.networks.trained import trained_networks, trained_or_in_part
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.optimizers.fused_updates import (
    FUSED_ON_CPU_SINCE,
    fused_obstacle,
    may_step,
)
from ..optimizer.analysis.optimizers.late_backwards import late_backward
from ..optimizer.analysis.optimizers.optimizer_state import loads_optimizer_state
from ..optimizer.analysis.precision.precision import LIGHTNING
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, SetArgument
from .base import Change, Example, Skip, Stage, StepPart, Transform

_UNCALLED = "nothing in this file calls this code: whose parameters it updates, its callers know"
_NOTE = "; a checkpoint from before the change turns it off again when loaded"


class FusedOptimizer(Transform):
    name = "fused-optimizer"
    tier = Tier.NUMERIC
    stage = Stage.COMPILE  # after autocast, whose GradScaler matters
    rank = 1
    relieves = StepPart.OPTIMIZER
    only_on_cuda = True
    example = Example(
        before="""\
            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        unfused = [o for o in script.optimizers if not _says_fused(o)]
        if not unfused:
            return
        chooses = any(
            accelerator(script.resolver, trainer) for trainer in script.lightning.trainers
        )
        if not (chooses or script.is_for_cpu(options) or script.targets_cuda(options)):
            why = "not fused: the script does not use a GPU"
            yield self.skip(unfused[0].path, unfused[0].span, why)
            return
        for optimizer in unfused:
            obstacle = _obstacle(script, optimizer, options)
            if obstacle is not None:
                yield self._skip(optimizer, f"{obstacle.message}{seen_at(obstacle, optimizer)}")
                continue
            yield self._fuse(script, optimizer, options)

    def _fuse(
        self, script: TrainingScript, optimizer: Optimizer, options: Options
    ) -> Change | Skip:
        on_cpu = script.is_for_cpu(options)
        if script.frameworks:
            condition = (
                None if on_cpu else fused_where(script.resolver, script.lightning, optimizer)
            )
            return self._fused(script, optimizer, condition)
        if not may_step(script.resolver):
            return replace(self._skip(optimizer, "nothing steps it"), unreached=True)
        networks = trained_networks(script.resolver, (optimizer,))
        if not networks:
            function = optimizer.module.function(optimizer.node)
            called = function is None or function in script.functions_run
            why = "the parameters it updates cannot be resolved" if called else _UNCALLED
            return self._skip(optimizer, why)
        if on_cpu:
            return self._fused(script, optimizer, None)
        where = network_device(script.resolver, trained_or_in_part(script.resolver, (optimizer,)))
        if where.kind is DeviceKind.CPU:
            return self._skip(optimizer, "the network is not seen to be moved to a GPU")
        module = optimizer.module
        statement = module.statement(optimizer.node)
        condition = uses_cuda(script.resolver, where, statement, module)
        if options.torch_version < FUSED_ON_CPU_SINCE and not _is_exact(condition, where):
            return self._skip(
                optimizer,
                "before PyTorch 2.4 it fails on the CPU, and no variable says which it is",
            )
        return self._fused(script, optimizer, condition)

    def _fused(self, script: TrainingScript, optimizer: Optimizer, condition: str | None) -> Change:
        """Fused where ``condition`` holds; always if there is none."""
        module = optimizer.module
        edits = (
            FileEdit(module.path, SetArgument(optimizer.span, "fused", condition or "True")),
            *condition_imports(condition, module),
        )
        loads = loads_optimizer_state(script.resolver) is not None
        change = self.change(
            optimizer.path,
            optimizer.span,
            f"updates all parameters in one kernel (`fused={condition or 'True'}`)",
            "no closure, no sparse gradients and nothing else that the fused kernel cannot take"
            + (_NOTE if loads else ""),
            edits,
        )
        return replace(change, on_cpu=condition is None)

    def _skip(self, optimizer: Optimizer, why: str) -> Skip:
        return self.skip(optimizer.path, optimizer.span, f"not fused: {why}")


def _obstacle(script: TrainingScript, optimizer: Optimizer, options: Options) -> Obstacle | None:
    resolver, on_cpu = script.resolver, script.is_for_cpu(options)
    other = next((use for use in script.frameworks if use.framework != LIGHTNING), None)
    if other is not None:
        why = f"{other.framework} runs the step in its own way"
        return Obstacle(other.module, other.node, why)
    found = fused_obstacle(resolver, optimizer, options.torch_version, on_cpu=on_cpu)
    if found is None and script.frameworks:
        return lightning_obstacle(resolver, script.lightning, optimizer)
    return found or late_backward(resolver, optimizer, script.step_code)


def _says_fused(optimizer: Optimizer) -> bool:
    return any(keyword.arg == "fused" for keyword in optimizer.node.keywords)


def _is_exact(condition: str | None, where: NetworkDevice) -> bool:
    """Whether ``condition`` says where the networks are, and not only whether there is a GPU."""
    if condition is None:
        return True
    return (where.device is not None or where.test is not None) and "is_available" not in condition
