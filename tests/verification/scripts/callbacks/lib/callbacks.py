import json
import math
from copy import deepcopy

import torch


class Callback:
    def on_fit_start(self, trainer): ...
    def on_epoch_start(self, trainer): ...
    def on_step_end(self, trainer): ...
    def on_epoch_end(self, trainer): ...
    def on_fit_end(self, trainer): ...


class EMA(Callback):
    def __init__(self, decay=0.8):
        self.decay, self.updates = decay, 0

    def on_fit_start(self, trainer):
        self.model = deepcopy(trainer.model).eval()
        for p in self.model.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def on_step_end(self, trainer):
        self.updates += 1
        decay = self.decay * (1 - math.exp(-self.updates / 4))
        own = trainer.model.state_dict()
        for name, value in self.model.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(decay).add_(own[name], alpha=1 - decay)


class EarlyStopping(Callback):
    def __init__(self, metric, patience=2):
        self.metric, self.patience, self.best, self.bad = metric, patience, math.inf, 0

    def on_epoch_end(self, trainer):
        value = trainer.metrics[self.metric]
        self.best, self.bad = (value, 0) if value < self.best else (self.best, self.bad + 1)
        trainer.stop |= self.bad >= self.patience


class Unfreeze(Callback):
    """The body is frozen at first, its BatchNorm statistics too."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_fit_start(self, trainer):
        trainer.model.body.requires_grad_(False)

    def on_epoch_start(self, trainer):
        if trainer.epoch == self.epoch:
            trainer.model.body.requires_grad_(True)
            trainer.optimizer.add_param_group(
                {"params": list(trainer.model.body.parameters()), "lr": trainer.config.lr / 3}
            )
        if trainer.epoch < self.epoch:
            trainer.model.body.eval()


class Checkpoint(Callback):
    def __init__(self, path):
        self.path = path

    def on_epoch_end(self, trainer):
        torch.save(
            {
                "epoch": trainer.epoch,
                "model": trainer.model.state_dict(),
                "ema": trainer.ema.model.state_dict(),
                "optimizer": trainer.optimizer.state_dict(),
                "metrics": trainer.metrics,
            },
            self.path,
        )


class Log(Callback):
    def __init__(self, path):
        self.path, self.rows = path, []

    def on_epoch_end(self, trainer):
        self.rows.append({"epoch": trainer.epoch, **trainer.metrics})
        print(" ".join(f"{k}={v:.4f}" for k, v in self.rows[-1].items()))

    def on_fit_end(self, trainer):
        with open(self.path, "w") as file:
            for row in self.rows:
                file.write(json.dumps(row) + "\n")
