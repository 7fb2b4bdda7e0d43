"""The GPUs of this machine, as the user's Python sees them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from .errors import TorchoptError

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_COUNT = "import json, torch; print(json.dumps(torch.cuda.device_count()))"


def visible_gpus(python: Path) -> tuple[str, ...]:
    """The GPUs that ``python`` sees, as values of ``CUDA_VISIBLE_DEVICES``.

    Raises TorchoptError when torch cannot be imported there.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _COUNT], capture_output=True, check=True, timeout=120
        )
        count = int(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = f"{python}: torch cannot be imported{_why(error)}; name another with --python"
        raise TorchoptError(message) from None
    named = [name.strip() for name in os.environ.get(VISIBLE_GPUS, "").split(",") if name.strip()]
    return tuple(named[:count]) if len(named) >= count else tuple(map(str, range(count)))


def _why(error: Exception) -> str:
    """The last line of what Python said, without the kind of error."""
    if not isinstance(error, subprocess.CalledProcessError):
        return ""
    said = error.stderr.decode(errors="replace").strip().splitlines()
    return f": {re.sub(r'^[A-Za-z]+Error: ', '', said[-1])}" if said else ""
