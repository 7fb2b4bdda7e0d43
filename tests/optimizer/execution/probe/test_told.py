"""What a script logs on stderr and hands to trackers is kept, as texts."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.told import Told  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The texts that are kept of what a function tells; trackers are the modules given."""

    def go(script: Callable[[], None], **modules: ModuleType) -> dict[str, str]:
        def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
            if name in modules:
                action(modules[name])

        patches, keeper = Patches(), Told(tmp_path, lambda: 3)
        importer = SimpleNamespace(after_import=after_import)
        keeper.install(patches, SimpleNamespace(importer=importer))
        try:
            script()
        finally:
            patches.undo()
        return {name: (tmp_path / file).read_text() for name, file in keeper.finish()["told"]}

    return go


def logged(handler: logging.Handler, file: str = __file__) -> Callable[[], None]:
    def script() -> None:
        handler.handle(logging.LogRecord("train", logging.INFO, file, 1, "loss %.2f", (0.5,), None))

    return script


def test_messages_on_stderr_are_kept_as_they_read(told) -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    assert told(logged(handler)) == {"<logging>": "loss 0.50\n"}


def test_what_the_script_writes_to_stderr_itself(told) -> None:
    def script() -> None:
        print("epoch 1 loss", 0.5, file=sys.stderr)
        sys.stderr.write("done\n")
        warnings.warn("not by itself", stacklevel=2)

    assert told(script) == {"<stderr>": "epoch 1 loss 0.5\ndone\n"}


def test_messages_that_are_compared_elsewhere_are_not_kept(told, tmp_path) -> None:
    assert told(logged(logging.StreamHandler(sys.stdout))) == {}
    assert told(logged(logging.FileHandler(tmp_path / "train.log"))) == {}


def test_messages_of_libraries_are_not_kept(told) -> None:
    assert told(logged(logging.StreamHandler(io.StringIO()), torch.__file__)) == {}


class SummaryWriter:
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        pass

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None):
        pass


def test_metrics_are_kept_by_their_names(told) -> None:
    writers = ModuleType("writers")
    writers.SummaryWriter = SummaryWriter

    def script() -> None:
        writer = SummaryWriter()
        writer.add_scalar("loss", torch.tensor(0.25), 1)
        writer.add_scalars("accuracy", {"train": 0.5, "test": 1}, global_step=1)
        writer.add_scalar(tag="loss", scalar_value=0.125, global_step=2)
        writer.add_scalar("text", "none")

    kept = told(script, **{"torch.utils.tensorboard.writer": writers})
    assert kept == {
        "<SummaryWriter>": "accuracy/test at 1: 1.0\naccuracy/train at 1: 0.5\nloss at 1: 0.25\nloss at 2: 0.125\n"
    }


def test_trackers_that_take_numbers_by_name(told) -> None:
    class Run:
        def log(self, data, step=None):
            pass

    def log_metric(key, value, step=None):
        pass

    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    wandb.Run, mlflow.log_metric = Run, log_metric

    def script() -> None:
        Run().log({"loss": 0.5, "image": object()}, step=3)
        mlflow.log_metric("loss", 0.75, step=3)

    kept = told(script, **{"wandb.sdk.wandb_run": wandb, "mlflow": mlflow})
    assert kept == {"<Run>": "loss at 3: 0.5\n", "<mlflow>": "loss at 3: 0.75\n"}


def test_what_stands_beside_a_progress_bar(told) -> None:
    tqdm = pytest.importorskip("tqdm.std")

    def script() -> None:
        bar = tqdm.tqdm(range(4), file=io.StringIO())
        for number in bar:
            bar.set_description(f"epoch 0, lr {number / 10}")
            bar.set_postfix(loss=0.5 + number)

    assert told(script, **{"tqdm.std": tqdm}) == {
        "<progress bars>": "step 3 desc: epoch 0, lr 0.3:\nstep 3 postfix: loss=3.5\n"
    }
