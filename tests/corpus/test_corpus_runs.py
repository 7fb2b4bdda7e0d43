"""The corpus scripts train, their experts train the same, and their manifests say what is true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
CORPUS = Path(__file__).parents[2] / "corpus"
SCRIPTS = (
    "contrastive",
    "gan_flat",
    "hf_classifier",
    "lightning_vae",
    "gpt_lm",
    "instruments",
    "mlp_many_steps",
    "multi_file",
    "photo_classifier",
    "recommender",
    "resnet_cifar",
    "river_levels",
    "rnn_lm",
    "segmentation",
    "transformer_translation",
    "vae",
    "vit_fabrics",
)
ENTRIES = ("train.py", "expert.py")

# What each script prints its training loss as; the GAN's discriminator, once per batch, the language models every batch or
# every other one, the others once per epoch.
TRAINING_LOSS = {
    "contrastive": r"contrastive loss (\S+)",
    "gan_flat": r"D loss: (\S+)\]",
    "hf_classifier": r"train loss (\S+)",
    "lightning_vae": r"train loss (\S+)",
    "gpt_lm": r"iter \d+: loss ([^\s,]+)",
    "instruments": r"epoch \d+: loss ([^\s,]+)",
    "mlp_many_steps": r"train loss ([^\s,]+)",
    "multi_file": r"train_loss (\S+)",
    "photo_classifier": r"\] loss: (\S+)",
    "recommender": r"train loss (\S+)",
    "river_levels": r"train loss ([^\s,]+)",
    "resnet_cifar": r"train loss = ([^\s,]+)",
    "rnn_lm": r"ms/batch \| loss +(\S+)",
    "segmentation": r"epoch \d+: loss ([^\s,]+)",
    "transformer_translation": r"train loss (\S+)",
    "vae": r"Average loss: (\S+)",
    "vit_fabrics": r"train loss ([^\s,]+)",
}
OUTPUTS = {
    "contrastive": ("encoder.pt",),
    "gan_flat": ("generator.pth", "images/0.png"),
    "hf_classifier": ("classifier.pt",),
    "lightning_vae": ("vae.pt",),
    "gpt_lm": ("gpt_lm.pt",),
    "instruments": ("ears.pt",),
    "mlp_many_steps": ("mlp.pt",),
    "multi_file": ("checkpoint.pt",),
    "photo_classifier": ("photo_classifier.pt",),
    "recommender": ("recommender.pt",),
    "resnet_cifar": ("resnet18_cifar.pth",),
    "river_levels": ("river_levels.pt",),
    "rnn_lm": ("rnn_lm.pt",),
    "segmentation": ("segmentation.pt",),
    "transformer_translation": ("best_model.pt",),
    "vae": ("vae_out/vae.pth", "vae_out/sample_1.png"),
    "vit_fabrics": ("vit_fabrics.pt",),
}
TRANSFORM_NAMES = frozenset(
    """
    dataloader-workers main-guard pin-memory non-blocking ram-dataset gpu-normalize drop-last device-construction
    defer-sync empty-cache hot-loop-profiler no-grad eval-mode functional-dropout autocast deprecated-amp tf32
    cudnn-benchmark channels-last compile fused-optimizer inplace-activation forward-lifetimes zero-grad-none
    gradient-accumulation ddp lightning-trainer hf-trainer tensor-batches fused-attention
    """.split()
)


@dataclass(frozen=True)
class Run:
    """A finished run: its standard output, its working folder and its data folder as path -> (bytes, mtime)."""

    stdout: str
    folder: Path
    data: dict[str, tuple[bytes, int]]


def manifest(script: str) -> dict[str, Any]:
    text = (CORPUS / script / "manifest.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def files_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in paths
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Callable[[str, str], Run]:
    """Runs an entry of a script once, on the CPU; original and expert, in that order, share a data folder."""
    finished: dict[tuple[str, str], Run] = {}
    data_folders: dict[str, Path] = {}

    def start(script: str, entry: str) -> Run:
        if script not in data_folders:
            data_folders[script] = tmp_path_factory.mktemp("data")
        folder = tmp_path_factory.mktemp(script)
        data = data_folders[script]
        process = subprocess.run(
            [
                warm_python,
                CORPUS / script / entry,
                *manifest(script)["cpu"]["args"],
                "--data",
                data,
            ],
            cwd=folder,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return Run(process.stdout, folder, files_in(data))

    def run_once(script: str, entry: str) -> Run:
        for package in manifest(script).get("requires", ()):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        if entry == "expert.py":
            run_once(script, "train.py")
        if (script, entry) not in finished:
            finished[script, entry] = start(script, entry)
        return finished[script, entry]

    return run_once


def training_losses(script: str, stdout: str) -> list[float]:
    return [float(loss) for loss in re.findall(TRAINING_LOSS[script], stdout)]


@pytest.mark.torch
@pytest.mark.parametrize("entry", ["train.py", pytest.param("expert.py", marks=pytest.mark.slow)])
@pytest.mark.parametrize("script", SCRIPTS)
def test_trains(run: Callable[[str, str], Run], script: str, entry: str) -> None:
    result = run(script, entry)
    losses = training_losses(script, result.stdout)
    half = len(losses) // 2
    assert half > 0
    assert all(map(math.isfinite, losses))
    assert sum(losses[half:]) / (len(losses) - half) < sum(losses[:half]) / half
    for output in OUTPUTS[script]:
        assert (result.folder / output).stat().st_size > 0


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_second_run_finds_its_data(run: Callable[[str, str], Run], script: str) -> None:
    first, second = run(script, "train.py"), run(script, "expert.py")
    assert len(first.data) > 10
    assert second.data == first.data


@pytest.mark.torch
@pytest.mark.parametrize("script", ["gan_flat", "multi_file", "resnet_cifar", "segmentation"])
def test_jpegs_are_jpegs(run: Callable[[str, str], Run], script: str) -> None:
    jpegs = [data for name, (data, _) in run(script, "train.py").data.items() if ".jpg" in name]
    assert len(jpegs) > 10
    assert all(data.startswith(b"\xff\xd8\xff") for data in jpegs)


@pytest.mark.torch
@pytest.mark.slow
def test_transformer_expert_has_the_same_first_epoch(run: Callable[[str, str], Run]) -> None:
    """Nothing is augmented, so the worker processes change nothing until the second epoch is shuffled."""
    original = run("transformer_translation", "train.py").stdout
    expert = run("transformer_translation", "expert.py").stdout
    numbers = [
        [float(number) for number in re.findall(r"\d+\.\d+", stdout.split("epoch 2")[0])[:4]]
        for stdout in (original, expert)
    ]
    assert len(numbers[0]) == 4  # two steps, the epoch's mean, the validation set
    assert numbers[1] == pytest.approx(numbers[0], abs=2e-3)


@pytest.mark.torch
@pytest.mark.slow
def test_mlp_expert_prints_the_same_numbers(run: Callable[[str, str], Run]) -> None:
    """What is summed on the device in float64 and in integers is what Python would have summed."""
    printed = [re.sub(r", \d+\.\d s", "", run("mlp_many_steps", entry).stdout) for entry in ENTRIES]
    assert printed[0] == printed[1]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_expert_writes_the_same_checkpoint(run: Callable[[str, str], Run], script: str) -> None:
    torch = pytest.importorskip("torch")

    def layout(entry: str) -> dict[str, object]:
        checkpoint = torch.load(run(script, entry).folder / OUTPUTS[script][0], weights_only=True)
        weights = checkpoint.get("model", checkpoint)
        return {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}

    assert layout("expert.py") == layout("train.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_manifest(script: str) -> None:
    facts = manifest(script)
    assert set(facts) - {"requires"} == {"limited_by", "tier", "cpu", "gpu", "expert"}
    assert facts["tier"] in {"exact", "numeric", "semantic"}
    assert set(facts["cpu"]) == {"args", "timed"}
    assert set(facts["gpu"]) == {"args"}
    lists = [*facts["cpu"].values(), facts["gpu"]["args"]]
    assert all(isinstance(argument, str) for arguments in lists for argument in arguments)
    assert set(facts["expert"]) == {"transforms", "notes"}
    names: list[str] = facts["expert"]["transforms"]
    assert len(names) == len(set(names)) > 0
    assert set(names) <= TRANSFORM_NAMES


def test_every_script_is_tested() -> None:
    assert {path.parent.name for path in CORPUS.glob("*/manifest.toml")} == set(SCRIPTS)


def accepted_arguments(path: Path) -> dict[str, dict[str, str]]:
    """Option strings and their declarations, but for help text and defaults, which an expert may raise."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    return {
        ast.literal_eval(call.args[0]): {
            keyword.arg: ast.unparse(keyword.value)
            for keyword in call.keywords
            if keyword.arg and keyword.arg not in {"default", "help"}
        }
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_original_and_expert_accept_the_same_arguments(script: str) -> None:
    original, expert = (accepted_arguments(CORPUS / script / entry) for entry in ENTRIES)
    assert "--data" in original
    assert expert == original


@pytest.mark.parametrize("script", SCRIPTS)
def test_arguments_that_are_not_run_here_are_accepted(script: str) -> None:
    facts = manifest(script)
    arguments: list[str] = facts["gpu"]["args"] + facts["cpu"]["timed"]
    options = {argument for argument in arguments if argument.startswith("--")}
    assert options <= set(accepted_arguments(CORPUS / script / "train.py"))
