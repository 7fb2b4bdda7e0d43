"""Real scripts under verification: correct rewrites pass, wrong ones fail for the right reason."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns, original_runs
from torchopt_cli.optimizer.verifying.result import VerificationReport, exit_code
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify, verify_against

pytestmark = pytest.mark.torch

STEPS = 12
"""One epoch of seven steps, its evaluation and checkpoint, and most of a second one."""

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, length, augment):
        generator = torch.Generator().manual_seed(length)
        self.labels = torch.randint(0, 4, (length,), generator=generator)
        self.images = torch.randn(length, 3, 12, 12, generator=generator)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        image = self.images[index].clone()
        image[:, label * 3 : label * 3 + 3] += 1.0
        if self.augment and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16 * 9, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.head(self.dropout(x.flatten(1)))


def evaluate(model, loader):
    model.eval()
    correct = 0
    for images, labels in loader:
        outputs = model(images)
        correct += (outputs.argmax(1) == labels).sum().item()
    model.train()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(Shapes(100, True), batch_size=16, shuffle=True, num_workers=0)
    test_loader = DataLoader(Shapes(64, False), batch_size=32)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for epoch in range(3):
        for images, labels in train_loader:
            optimizer.zero_grad()
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        accuracy = evaluate(model, test_loader)
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")
        torch.save({"model": model.state_dict(), "epoch": epoch}, "checkpoint.pt")


if __name__ == "__main__":
    main()
"""

Edits = tuple[tuple[str, str], ...]

FORWARD = """\
            outputs = model(images)
            loss = criterion(outputs, labels)
"""
AUTOCAST: Edits = (
    (
        FORWARD,
        "            with torch.autocast('cpu', torch.bfloat16):\n"
        + textwrap.indent(FORWARD, "    "),
    ),
)
SCALER: Edits = (
    ("    criterion =", "    scaler = torch.amp.GradScaler('cpu')\n    criterion ="),
    ("loss.backward()", "scaler.scale(loss).backward()"),
    ("optimizer.step()", "scaler.step(optimizer)\n            scaler.update()"),
)
UNSCALE: Edits = (
    (
        "            nn.utils.clip",
        "            scaler.unscale_(optimizer)\n            nn.utils.clip",
    ),
)
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"


def edited(edits: Edits) -> str:
    text = SCRIPT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("project") / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def original(entry: Path) -> Iterator[OriginalRuns]:
    """The runs of the script as it is, made once for all tests."""
    with original_runs(ScriptVersion(entry)) as runs:
        yield runs


@pytest.fixture
def verified(
    original: OriginalRuns, entry: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., VerificationReport]:
    """Verifies the script against itself with these edits."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def start(edits: Edits, **changes: object) -> VerificationReport:
        settings = VerifySettings(
            python=warm_python,
            cwd=entry.parent,
            timeout_s=500,
            **{"steps": STEPS, "measure_speed": False, **changes},  # pyright: ignore[reportArgumentType]
        )
        rewritten = ScriptVersion(entry, {entry: edited(edits)})
        return verify_against(original, rewritten, settings)

    return start


Verified = Callable[..., VerificationReport]


@pytest.mark.parametrize(
    "edits",
    [
        (("num_workers=0", "num_workers=2, persistent_workers=True"),),
        (("def evaluate", "@torch.no_grad()\ndef evaluate"),),
        pytest.param((("zero_grad()", "zero_grad(set_to_none=False)"),), marks=pytest.mark.slow),
        (SCALER + UNSCALE),
    ],
    ids=["workers", "no_grad evaluation", "zero_grad", "scaler with unscale_"],
)
def test_exact_rewrites_are_the_same_bit_for_bit(verified: Verified, edits: Edits) -> None:
    report = verified(edits)
    assert report.verdict is not None
    assert report.verdict.findings == ()
    assert (report.verdict.outcome, report.verdict.tier) == (Outcome.EQUIVALENT, Tier.EXACT)


@pytest.mark.parametrize(
    "edits",
    [
        AUTOCAST,
        (
            *AUTOCAST,
            (
                "        outputs = model(images)\n        correct",
                "        with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):\n"
                "            outputs = model(images)\n        correct",
            ),
        ),
        pytest.param(AUTOCAST + SCALER + UNSCALE, marks=pytest.mark.slow),
    ],
    ids=["training", "training and evaluation", "with a scaler"],
)
def test_autocast_is_equivalent_within_bfloat16(verified: Verified, edits: Edits) -> None:
    report = verified(edits)
    assert report.verdict is not None
    assert report.verdict.failures == ()
    assert report.verdict.outcome is Outcome.EQUIVALENT
    assert report.verdict.precision is Precision.BFLOAT16
    assert report.same_arithmetic is not None
    assert report.same_arithmetic.tier is Tier.EXACT


@pytest.mark.parametrize(
    "edits",
    [
        (("weight_decay=5e-4", "weight_decay=5e-4, fused=True"),),
        (
            ("model = Net()", "model = Net().to(memory_format=torch.channels_last)"),
            ("model(images)", "model(images.to(memory_format=torch.channels_last))"),
        ),
        pytest.param(
            (("    criterion =", "    model.compile()\n    criterion ="),), marks=pytest.mark.slow
        ),
    ],
    ids=["fused optimizer", "channels_last", "compile"],
)
def test_other_kernels_are_equivalent_within_float32(verified: Verified, edits: Edits) -> None:
    report = verified(edits)
    assert report.verdict is not None
    assert report.verdict.failures == ()
    assert report.verdict.outcome is Outcome.EQUIVALENT
    assert report.verdict.precision in (None, Precision.FLOAT32)


WRONG: dict[str, tuple[Edits, Kind]] = {
    "zero_grad dropped": ((("            optimizer.zero_grad()\n", ""),), Kind.UPDATE),
    "shuffle lost": ((("shuffle=True", "shuffle=False"),), Kind.SAMPLE_ORDER),
    "drawn with replacement": (
        (
            (
                "batch_size=16, shuffle=True",
                "batch_size=16, sampler=torch.utils.data.RandomSampler(Shapes(100, True), replacement=True)",
            ),
        ),
        Kind.SAMPLE_ORDER,
    ),
    "workers seeded alike": (
        (
            ("def evaluate", "def seed(worker):\n    torch.manual_seed(1)\n\n\ndef evaluate"),
            ("num_workers=0", "num_workers=2, worker_init_fn=seed"),
        ),
        Kind.WORKER_RANDOMNESS,
    ),
    "last batch dropped": ((("shuffle=True", "shuffle=True, drop_last=True"),), Kind.SAMPLES),
    "weight decay lost": (((", weight_decay=5e-4", ""),), Kind.OPTIMIZER_SETTINGS),
    "scheduler stepped per batch": (
        ((CLIP, CLIP + "            scheduler.step()\n"),),
        Kind.SCHEDULER_STEPS,
    ),
    "scheduler stepped twice": (
        (("        scheduler.step()\n", "        scheduler.step()\n" * 2),),
        Kind.SCHEDULER_STEPS,
    ),
    "evaluation in training mode": ((("    model.eval()\n", ""),), Kind.EVALUATION_MODE),
    "eval mode left on": ((("    model.train()\n", ""),), Kind.EVALUATION_MODE),
    "BatchNorm momentum": ((("BatchNorm2d(8)", "BatchNorm2d(8, momentum=0.01)"),), Kind.BUFFER),
    "labels": ((("criterion(outputs, labels)", "criterion(outputs, labels.roll(1))"),), Kind.LOSS),
    "reduction": ((("CrossEntropyLoss()", "CrossEntropyLoss(reduction='sum')"),), Kind.LOSS),
    "no_grad around the training forward": (
        (
            (
                "            outputs = model(images)\n            loss",
                "            with torch.no_grad():\n                outputs = model(images)\n            loss",
            ),
        ),
        Kind.EXIT_STATUS,
    ),
    "detached features": (
        (("F.relu(self.bn1(self.conv1(x)))", "F.relu(self.bn1(self.conv1(x))).detach()"),),
        Kind.FROZEN_PARAMETER,
    ),
    "keys of a compiled model": (
        (
            (
                "    criterion =",
                "    model = torch.compile(model, backend='eager')\n    criterion =",
            ),
        ),
        Kind.CHECKPOINT_KEYS,
    ),
    "clipping lost": (((CLIP, ""),), Kind.GRADIENT),
    "evaluation lost": ((("evaluate(model, test_loader)", "0.5"),), Kind.EVALUATION),
    "checkpoint in half precision": (
        (("model.state_dict()", "{k: v.half() for k, v in model.state_dict().items()}"),),
        Kind.CHECKPOINT_DTYPE,
    ),
    "checkpoint lost": (
        (("torch.save(", "dict("), ('}, "checkpoint.pt")', "}, path=1)")),
        Kind.CHECKPOINT_FILES,
    ),
    "dropout lost": ((("Dropout(0.1)", "Dropout(0.0)"),), Kind.LOSS),
    "augmentation lost": ((("Shapes(100, True)", "Shapes(100, False)"),), Kind.LOSS),
    "two steps per batch": (
        (("            optimizer.step()\n", "            optimizer.step()\n" * 2),),
        Kind.BACKWARD_CALLS,
    ),
    "printed loss halved": ((("{loss.item():.4f}", "{loss.item() / 2:.4f}"),), Kind.STDOUT),
    "crash": ((("scheduler.step()", "scheduler.stepp()"),), Kind.EXIT_STATUS),
    "unscale_ forgotten": (SCALER, Kind.GRADIENT),
}


QUICK = frozenset(
    {
        "zero_grad dropped",
        "last batch dropped",
        "weight decay lost",
        "scheduler stepped per batch",
        "workers seeded alike",
        "shuffle lost",
        "evaluation in training mode",
        "eval mode left on",
        "BatchNorm momentum",
        "labels",
        "detached features",
        "keys of a compiled model",
        "unscale_ forgotten",
    }
)
"""Mistakes of the default suite: one of each way to be noticed. The others are marked slow for their number."""


def marked(names: Iterable[str], quick: Collection[str]) -> list[ParameterSet]:
    """All ``names``, those that are not ``quick`` marked slow."""
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", marked(WRONG, QUICK))
def test_wrong_rewrites_fail_by_name(verified: Verified, name: str) -> None:
    edits, kind = WRONG[name]
    report = verified(edits)
    assert report.verdict is not None
    assert kind in {finding.kind for finding in report.verdict.failures}
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT


HIDDEN: dict[str, Edits] = {
    "labels": WRONG["labels"][0],
    "clipping lost": WRONG["clipping lost"][0],
    "weight decay lost": WRONG["weight decay lost"][0],
    "BatchNorm momentum": WRONG["BatchNorm momentum"][0],
    "a little more dropout": (("Dropout(0.1)", "Dropout(0.12)"),),
    "loss in half precision": (
        ("criterion(outputs, labels)", "criterion(outputs.half(), labels)"),
    ),
    "unscale_ forgotten": SCALER,
}


@pytest.mark.parametrize("name", marked(HIDDEN, ["a little more dropout", "unscale_ forgotten"]))
def test_autocast_hides_no_mistake(verified: Verified, name: str) -> None:
    """The mistake is made in the script with autocast."""
    report = verified(AUTOCAST + HIDDEN[name])
    assert exit_code(report) is ExitCode.NOT_EQUIVALENT


def test_what_shows_at_the_end_of_an_epoch_is_seen_wherever_that_is(verified: Verified) -> None:
    """It ends four steps behind those that are asked for; the script is so short that it is seen to its end."""
    report = verified(WRONG["eval mode left on"][0], steps=3, epoch_seconds=100.0)
    assert report.verdict is not None
    assert report.verdict.failures[0].kind is Kind.EVALUATION_MODE
    assert (report.seen.steps, report.seen.evaluated, report.seen.checkpoints) == (21, 192, 3)


def test_speed_is_measured_after_the_verdict(verified: Verified) -> None:
    report = verified((), measure_speed=True, pairs=2, timing_seconds=0.1)
    assert report.measurement is not None
    assert report.measurement.original.samples_per_second is not None
    assert report.measurement.original.step_seconds > 0


def test_an_original_that_fails_shows_its_traceback(tmp_path: Path, warm_python: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nraise KeyError('no data')\n", encoding="utf-8")
    settings = VerifySettings(python=warm_python, cwd=tmp_path, steps=2)
    report = verify(ScriptVersion(path), ScriptVersion(path), settings)
    assert exit_code(report) is ExitCode.SCRIPT_FAILED
    assert report.original_failure is not None
    assert "KeyError: 'no data'" in report.original_failure.details


def test_a_script_that_does_not_train_is_an_error_of_use(tmp_path: Path, warm_python: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nprint(torch.ones(2).sum())\n", encoding="utf-8")
    settings = VerifySettings(python=warm_python, cwd=tmp_path, steps=2)
    with pytest.raises(TorchoptError, match="no optimizer"):
        verify(ScriptVersion(path), ScriptVersion(path), settings)
