"""The record that a run's probe wrote, read back as observations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from .observations import (
    Checkpoint,
    CheckpointEntry,
    Clip,
    EvalCall,
    LayerOutput,
    LoaderPass,
    Loss,
    Memory,
    OptimizerInfo,
    ParameterInfo,
    ParameterUpdate,
    ReadMark,
    Scheduler,
    Snapshot,
    Status,
    Step,
    TensorSummary,
    Timing,
    TrainingCalls,
    Versions,
    WorkerStart,
    WrittenFile,
)
from .probe.start import RECORD
from .profile_record import RunProfile
from .recorded import Move
from .standing import standing


def load(folder: Path) -> dict[str, Any] | None:
    """The probe's record in ``folder`` as keyword arguments of :class:`Observations`; None when there is none.

    A record without a ``status`` says why there could be no run and is given as it is.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "status" not in record:
        return record
    record["status"] = Status(record["status"])
    record["timing"] = Timing(**_tuples(record["timing"]))
    record["memory"] = Memory(**record["memory"])
    record["profile"] = RunProfile.read(record["profile"]) if record.get("profile") else None
    record["versions"] = Versions(**record["versions"]) if record.get("versions") else None
    readers: dict[str, Callable[[dict[str, Any]], object]] = {
        "steps": _step,
        "optimizers": _optimizer,
        "snapshots": _snapshot,
        "layer_outputs": _layer_output,
        "eval_calls": _eval_call,
        "further_calls": _eval_call,
        "training_calls": lambda item: TrainingCalls(**item),
        "loader_passes": _loader_pass,
        "workers": lambda item: WorkerStart(**_tuples(item)),
        "schedulers": lambda item: Scheduler(**_tuples(item)),
        "clips": lambda item: Clip(**item),
        "checkpoints": _checkpoint,
    }
    for key, reader in readers.items():
        record[key] = tuple(reader(item) for item in record.get(key, ()))
    pickled: dict[str, dict[str, Any]] = record.get("pickled", {})
    record["pickled"] = {
        digest: _checkpoint({"path": "", **item}) for digest, item in pickled.items()
    }
    own: dict[str, int] = record.get("own_shuffles", {})
    record["own_shuffles"] = {int(count): times for count, times in own.items()}
    moves = [Move(**item) for item in record.pop("moves", ())]
    record["checkpoints"], record["removed"] = standing(record["checkpoints"], moves)
    for key in ("compute_dtypes", "unobserved", "step_samples", "layers"):
        record[key] = tuple(record.get(key, ()))
    collectives: list[list[int]] = record.get("collectives", [])
    record["collectives"] = tuple((begun, evaluated) for begun, evaluated in collectives)
    record["dropouts"] = tuple((name, p, count) for name, p, count in record.get("dropouts", ()))
    drawn: list[tuple[float, list[int]]] = record.get("first_dropouts", [])
    record["first_dropouts"] = tuple((p, tuple(shape)) for p, shape in drawn)
    told: list[list[str]] = record.get("told", [])
    record["told"] = tuple(
        WrittenFile(name, (folder / file).stat().st_size, file) for name, file in told
    )
    called: dict[str, list[list[str]]] = record.get("function_settings", {})
    record["function_settings"] = {
        name: (tuple(first), tuple(every)) for name, (first, every) in called.items()
    }
    printed: list[list[int]] = record.get("printed", [])
    record["printed"] = tuple((begun, lines) for begun, lines in printed)
    sums: dict[str, list[Any]] = record.get("bias_sums", {})
    record["bias_sums"] = {name: (size, terms) for name, (size, terms) in sums.items()}
    record["parameters"] = {
        name: ParameterInfo(**_tuples(item)) for name, item in record.get("parameters", {}).items()
    }
    return record


def _tuples(item: dict[str, Any]) -> dict[str, Any]:
    """``item`` with tuples for JSON's lists."""
    return {
        key: tuple(cast("list[Any]", v)) if isinstance(v, list) else v for key, v in item.items()
    }


def _step(item: dict[str, Any]) -> Step:
    item["losses"] = tuple(Loss(*loss) for loss in item["losses"])
    item["learning_rates"] = tuple(item["learning_rates"])
    item["parameters"] = {name: ParameterUpdate(*u) for name, u in item["parameters"].items()}
    return Step(**item)


def _optimizer(item: dict[str, Any]) -> OptimizerInfo:
    groups = tuple(tuple(group) for group in item["groups"])
    changes = tuple((round_, tuple(settings)) for round_, settings in item.get("changes", ()))
    return OptimizerInfo(item["class_name"], groups, tuple(item["hyperparameters"]), changes)


def _snapshot(item: dict[str, Any]) -> Snapshot:
    return Snapshot(**item)


def _loader_pass(item: dict[str, Any]) -> LoaderPass:
    for order in item.keys() & {"order", "order_in_whole"}:
        item[order] = tuple(ReadMark(*mark) for mark in item[order])
    return LoaderPass(**item)


def _layer_output(item: dict[str, Any]) -> LayerOutput:
    output = TensorSummary(**_tuples(item["output"]))
    return LayerOutput(item["layer"], item["class_name"], output, item["rounds"])


def _eval_call(item: dict[str, Any]) -> EvalCall:
    item["outputs"] = tuple(TensorSummary(**_tuples(output)) for output in item["outputs"])
    item["padded"] = tuple((at, axis, tuple(n)) for at, axis, n in item.get("padded", ()))
    return EvalCall(**_tuples(item))


def _checkpoint(item: dict[str, Any]) -> Checkpoint:
    entries = {key: CheckpointEntry(**_tuples(e)) for key, e in item["entries"].items()}
    return Checkpoint(item["path"], item["rounds"], entries)
