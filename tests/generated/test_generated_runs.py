"""Generated scripts run before and after the rewrite: exact changes keep every digit, numeric ones all but rounding.

"The same numbers given the same random draws": persistent workers draw their seed once where others draw it every epoch,
so the order of samples is made to depend on the epoch alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from torchopt_cli.optimizer.options import Options, Tier

from .grammar import GeneratedScript, training_scripts
from .test_generated_scripts import rewritten

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NIGHTLY = bool(os.environ.get("TORCHOPT_NIGHTLY"))
EXAMPLES = 500 if NIGHTLY else 25
SLOW_TO_RUN: frozenset[str] = frozenset() if NIGHTLY else frozenset({"dataloader-workers"})
"""Starting worker processes takes longer than all the rest of such a run."""

ROUNDING = 1e-3
"""Six steps of SGD on rounding differences of 1e-7 stay far below it; a lost or doubled step does not."""

run_settings = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not NIGHTLY,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class _EpochSampler(torch.utils.data.Sampler[int]):
    """Shuffles by the number of the epoch, whatever else drew random numbers."""

    def __init__(self, data_source: Any, *_args: Any, **_options: Any) -> None:
        self._length, self._epoch = len(data_source), 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        self._epoch += 1
        generator = torch.Generator().manual_seed(self._epoch)
        yield from torch.randperm(self._length, generator=generator).tolist()


@contextlib.contextmanager
def _in_scratch_folder() -> Iterator[None]:
    here, arguments = Path.cwd(), sys.argv
    modes = torch.is_grad_enabled(), torch.backends.cudnn.benchmark
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.argv = ["train.py"]
        try:
            yield
        finally:
            os.chdir(here)
            sys.argv = arguments
            torch.set_grad_enabled(modes[0])
            torch.backends.cudnn.benchmark = modes[1]
            torch.set_float32_matmul_precision("highest")


def run(text: str) -> tuple[str, dict[str, Any]]:
    """What the script prints, and the parameters it ends with."""
    printed = io.StringIO()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    places = ("torch.utils.data", "torch.utils.data.dataloader")
    with _in_scratch_folder(), contextlib.redirect_stdout(printed), contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(mock.patch(f"{place}.RandomSampler", _EpochSampler))
        exec(compile(text, "train.py", "exec"), namespace)
    model = namespace["model"]
    return printed.getvalue(), {k: v.clone() for k, v in model.state_dict().items()}


@run_settings
@given(script=training_scripts())
def test_exact_changes_keep_every_digit(script: GeneratedScript) -> None:
    assume(script.runs_on_cpu)
    (file,) = rewritten(
        script.text, Options(tier=Tier.EXACT, platform="linux", ignore=SLOW_TO_RUN)
    ).files
    assume(file.changed)
    printed, parameters = run(script.text)
    printed_after, parameters_after = run(file.text)
    assert printed_after == printed, file.text
    for name, value in parameters.items():
        assert torch.equal(value, parameters_after[name]), (name, file.text)


@run_settings
@given(script=training_scripts())
def test_numeric_changes_keep_all_but_rounding(script: GeneratedScript) -> None:
    # Adaptive optimizers turn the sign of a gradient that is all rounding into a whole step.
    assume(script.runs_on_cpu and "optim.SGD" in script.text)
    (file,) = rewritten(
        script.text, Options(tier=Tier.NUMERIC, platform="linux", ignore=SLOW_TO_RUN)
    ).files
    assume(file.changed)
    printed, parameters = run(script.text)
    printed_after, parameters_after = run(file.text)
    words = re.compile(r"[a-z]+|\d+\.\d+")
    before, after = words.findall(printed), words.findall(printed_after)
    assert len(before) == len(after), file.text
    for name, value in parameters.items():
        close = torch.allclose(value, parameters_after[name], rtol=ROUNDING, atol=ROUNDING)
        assert close, (name, file.text)
