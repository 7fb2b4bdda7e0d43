"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torchopt_cli.optimizer.profiling.opportunities import usable_cores


def machine(device: str) -> dict[str, Any]:
    """Processor, cores that may be used, GPU and its driver (None on a CPU), versions, and today's date."""
    import torch

    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "driver": driver_version() if device == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def cpu_model() -> str:
    """The processor's name, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def driver_version() -> str | None:
    """That of the first GPU; None where ``nvidia-smi`` does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.splitlines()[0].strip() if told.stdout.strip() else None


def device_room(device: str) -> int:
    """Memory that the device has free, in bytes; of a CPU none."""
    import torch

    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0


def load() -> float:
    """Processes that were running or waiting for a core, on average over the last minute."""
    return os.getloadavg()[0]
