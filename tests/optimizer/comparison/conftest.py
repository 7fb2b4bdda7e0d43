"""A network of two layers trained in numpy, whose runs are told as observations; rounding and mistakes on request."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from torchopt_cli.optimizer.execution.observations import (
    Checkpoint,
    CheckpointEntry,
    EvalCall,
    LoaderPass,
    Loss,
    Observations,
    OptimizerInfo,
    ParameterInfo,
    ParameterUpdate,
    Snapshot,
    Status,
    Step,
    TensorSummary,
    Timing,
    Versions,
)

WIDTH, HIDDEN, CLASSES, BATCH = 24, 16, 4, 32


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, ties to even, kept as float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & 0xFFFF0000).astype(np.uint32).view(np.float32).reshape(np.shape(values))


@dataclass
class Recipe:
    """How to train. ``perturb`` is relative, with random signs; ``mistakes`` are named in :meth:`Trainer.step`."""

    steps: int = 8
    rounding: Callable[[np.ndarray], np.ndarray] = field(default=lambda values: values)
    perturb: float = 0.0
    seed: int = 0
    adam: bool = False
    weight_decay: float = 0.01
    mistakes: Iterable[str] = ()


class Trainer:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        random = np.random.default_rng(7)
        self.parameters = {
            "Net.fc1.weight": random.normal(0, WIDTH**-0.5, (WIDTH, HIDDEN)).astype(np.float32),
            "Net.fc1.bias": np.zeros(HIDDEN, np.float32),
            "Net.fc2.weight": random.normal(0, HIDDEN**-0.5, (HIDDEN, CLASSES)).astype(np.float32),
            "Net.fc2.bias": np.zeros(CLASSES, np.float32),
        }
        signs = np.random.default_rng([11, recipe.seed])
        for name, value in self.parameters.items():
            factor = 1 + recipe.perturb * signs.choice([-1.0, 1.0], value.shape)
            self.parameters[name] = (value * factor).astype(np.float32)
        self.momentum = {name: np.zeros_like(p) for name, p in self.parameters.items()}
        self.square = {name: np.zeros_like(p) for name, p in self.parameters.items()}
        self.kept = {name: np.zeros_like(p) for name, p in self.parameters.items()}
        self.truth = np.random.default_rng(3).normal(size=(WIDTH, CLASSES))

    def forward(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r, p = self.recipe.rounding, self.parameters
        hidden = r(r(inputs) @ r(p["Net.fc1.weight"]) + p["Net.fc1.bias"])
        active = np.maximum(hidden, 0)
        return active, r(r(active) @ r(p["Net.fc2.weight"]) + p["Net.fc2.bias"])

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.random.default_rng([5, number]).normal(size=(BATCH, WIDTH)).astype(np.float32)
        return inputs, (inputs @ self.truth).argmax(axis=1)

    def step(self, number: int) -> tuple[float, dict[str, np.ndarray]]:
        """The loss and the gradients of one step; the parameters are updated."""
        recipe, mistakes, r = self.recipe, set(self.recipe.mistakes), self.recipe.rounding
        inputs, labels = self.batch(number + ("other batches" in mistakes) * 1000)
        if "labels" in mistakes:
            labels = np.roll(labels, 1)
        active, logits = self.forward(inputs)
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances = shifted / shifted.sum(axis=1, keepdims=True)
        loss = float(-np.log(chances[np.arange(BATCH), labels]).mean())
        slope = chances.copy()
        slope[np.arange(BATCH), labels] -= 1
        slope = r((slope / (1 if "sum" in mistakes else BATCH)).astype(np.float32))
        loss *= BATCH if "sum" in mistakes else 1
        back = r(slope @ r(self.parameters["Net.fc2.weight"]).T) * (active > 0)
        gradients = {
            "Net.fc1.weight": r(r(inputs).T @ back),
            "Net.fc1.bias": back.sum(axis=0),
            "Net.fc2.weight": r(r(active).T @ slope),
            "Net.fc2.bias": slope.sum(axis=0),
        }
        if "no zero_grad" in mistakes:
            self.kept = gradients = {n: g + self.kept[n] for n, g in gradients.items()}
        if "clipped" in mistakes:
            gradients = {name: g * np.float32(0.9) for name, g in gradients.items()}
        if "NaN" in mistakes and number == 2:
            loss = float("nan")
        for name, gradient in gradients.items():
            if "frozen" in mistakes and name == "Net.fc1.weight":
                continue
            self._update(
                name, gradient, number + 1, 0.2 if "rate" in mistakes and number >= 3 else 0.1
            )
        assert recipe.steps > number
        return loss, gradients

    def _update(self, name: str, gradient: np.ndarray, count: int, rate: float) -> None:
        value = self.parameters[name]
        gradient = gradient + self.recipe.weight_decay * value
        if self.recipe.adam:
            self.momentum[name] = 0.9 * self.momentum[name] + 0.1 * gradient
            self.square[name] = 0.99 * self.square[name] + 0.01 * gradient**2
            scale = np.sqrt(self.square[name] / (1 - 0.99**count)) + 1e-8
            change = 0.1 * rate * (self.momentum[name] / (1 - 0.9**count)) / scale
        else:
            self.momentum[name] = 0.9 * self.momentum[name] + gradient
            change = rate * self.momentum[name]
        self.parameters[name] = (value - change).astype(np.float32)


def summary(values: np.ndarray) -> TensorSummary:
    return TensorSummary(
        values.shape,
        str(values.dtype),
        zlib.crc32(values.tobytes()),
        float(values.mean()),
        float(np.linalg.norm(values)),
        float(np.abs(values).max()),
        bool(np.isfinite(values).all()),
    )


def sha256(values: np.ndarray) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()


def train(recipe: Recipe, folder: Path) -> Observations:
    """The observations of a whole run, as a probe would leave them in ``folder``."""
    folder.mkdir(parents=True)
    trainer = Trainer(recipe)
    steps: list[Step] = []
    snapshots: list[Snapshot] = []

    def snapshot(number: int) -> None:
        file = f"parameters-{number}.safetensors"
        save_file(trainer.parameters, folder / file)
        hashes = {name: sha256(value) for name, value in trainer.parameters.items()}
        snapshots.append(Snapshot(number, hashes, file))

    snapshot(0)
    for number in range(recipe.steps):
        before = dict(trainer.parameters)
        loss, gradients = trainer.step(number)
        if number == 0:
            save_file(
                {n: np.ascontiguousarray(g) for n, g in gradients.items()}, folder / "gradients"
            )
        rate = 0.2 if "rate" in recipe.mistakes and number >= 3 else 0.1
        norms = {name: float(np.linalg.norm(g)) for name, g in gradients.items()}
        updates = {
            name: ParameterUpdate(
                norms[name],
                float(np.linalg.norm(value - before[name])),
                zlib.crc32(value.tobytes()),
            )
            for name, value in trainer.parameters.items()
        }
        steps.append(
            Step(
                index=number,
                round=number,
                optimizer=0,
                losses=(Loss(loss, "float32"),),
                learning_rates=(rate,),
                closure=False,
                skipped=False,
                grad_norm=float(np.linalg.norm(list(norms.values()))),
                parameters=updates,
            )
        )
        if number + 1 in (1, 2, 4, recipe.steps):
            snapshot(number + 1)
    output = trainer.forward(trainer.batch(999)[0])[1]
    save_file({"0.0": output}, folder / "eval")
    save_file(
        {
            "Net.bn.running_mean": output.mean(axis=0),
            "Net.bn.num_batches_tracked": np.array([recipe.steps]),
        },
        folder / "buffers",
    )
    settings = {"lr": "0.1", "weight_decay": repr(recipe.weight_decay), "fused": "None"}
    entries = {
        f"model/{name.removeprefix('Net.')}": CheckpointEntry(
            "tensor", value.shape, "float32", sha256(value)
        )
        for name, value in trainer.parameters.items()
    }
    return Observations(
        folder=folder,
        status=Status.STOPPED,
        exit_code=0,
        traceback=None,
        stdout="".join(f"step {s.index + 1} loss {s.losses[0].value:.4f}\n" for s in steps),
        stderr="",
        stdout_cut=False,
        stderr_cut=False,
        rounds=recipe.steps,
        optimizer_seen=True,
        timing=Timing(1.0),
        versions=Versions("3.11.0", "2.9.0", "cpu"),
        steps=tuple(steps),
        optimizers=(OptimizerInfo("SGD", (tuple(trainer.parameters),), (settings,)),),
        parameters={
            name: ParameterInfo(value.shape, "float32", "cpu", True)
            for name, value in trainer.parameters.items()
        },
        snapshots=tuple(snapshots),
        gradients_file="gradients",
        buffers_file="buffers",
        eval_calls=(EvalCall("Net", recipe.steps, BATCH, (summary(output),)),),
        eval_file="eval",
        loader_passes=(LoaderPass(0, 0, recipe.steps, recipe.steps * BATCH, False),),
        checkpoints=(
            Checkpoint(
                "model.pt", recipe.steps, {**entries, "epoch": CheckpointEntry("int", value="3")}
            ),
        ),
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Observations]:
    """Trains the network as the :class:`Recipe` of the keyword arguments says."""
    numbers = itertools.count()

    def start(**recipe: object) -> Observations:
        return train(Recipe(**recipe), tmp_path / f"run{next(numbers)}")  # pyright: ignore[reportArgumentType]

    return start


@pytest.fixture
def rounding() -> Callable[[np.ndarray], np.ndarray]:
    """Rounds to bfloat16."""
    return bfloat16
