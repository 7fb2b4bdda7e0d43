from __future__ import annotations

from pathlib import Path

import pytest

from torchopt_cli.optimizer.config import Settings, load_settings
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.gate.settings import (
    Device,
    GatedScript,
    GateSettings,
    from_flags,
    load_gate_settings,
)
from torchopt_cli.optimizer.options import Tier

CONFIGURATION = """\
[tool.torchopt]
steps = 7

[tool.torchopt.gate]
base = "origin/main"
device = "cpu"
tier = "exact"
minimum-speedup = 1.25
steps = 40
repeats = 10
seed = 3
timeout = 90
python = "venv/bin/python"
junit = "build/gate.xml"
summary = "build/gate.md"

[[tool.torchopt.gate.scripts]]
script = "fast/train.py"
original = "train.py"
args = ["--epochs", "1"]
minimum-speedup = 2
steps = 12

[[tool.torchopt.gate.scripts]]
script = "other.py"
"""


def configure(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_every_key_is_read_and_paths_are_meant_from_the_file(tmp_path: Path) -> None:
    configure(tmp_path, CONFIGURATION)
    settings = load_gate_settings(tmp_path)
    assert settings == GateSettings(
        scripts=(
            GatedScript(
                tmp_path / "fast/train.py",
                tmp_path / "train.py",
                ("--epochs", "1"),
                2.0,
                12,
            ),
            GatedScript(tmp_path / "other.py"),
        ),
        base="origin/main",
        device=Device.CPU,
        tier=Tier.EXACT,
        minimum_speedup=1.25,
        steps=40,
        repeats=10,
        seed=3,
        timeout=90.0,
        python=str(tmp_path / "venv/bin/python"),
        junit=tmp_path / "build/gate.xml",
        summary=tmp_path / "build/gate.md",
    )
    assert load_settings(tmp_path) == Settings(steps=7)  # the other commands leave the table alone


def test_nothing_configured_says_nothing(tmp_path: Path) -> None:
    assert load_gate_settings(tmp_path) == GateSettings()
    configure(tmp_path, "[tool.torchopt]\nsteps = 3\n")
    assert load_gate_settings(tmp_path) == GateSettings()


@pytest.mark.parametrize(
    ("line", "column", "told"),
    [
        ("script = 3", 1, "unknown key 'script' in [tool.torchopt.gate] (did you mean 'scripts'?)"),
        (" minimum-speedup = 'fast'", 2, "minimum-speedup: 'fast' is not a factor above 0 such as"),
        ("minimum-speedup = true", 1, "minimum-speedup: True is not a factor above 0 such as 1.2"),
        ("minimum-speedup = inf", 1, "minimum-speedup: inf is not a factor above 0 such as 1.2"),
        ("device = 'tpu'", 1, "device: 'tpu' is not one of auto, cuda, cpu"),
        ("base = '--exec=x'", 1, "base: '--exec=x' is not a commit"),
        ("scripts = 3", 1, "script: 3 is not a path"),
        ("scripts = [{original = 'a.py'}]", 12, "scripts: no `script` says which"),
        (
            "scripts = [{script = 'a.py', orginal = 'b.py'}]",
            30,
            "unknown key 'orginal' of a script (did you mean 'original'?)",
        ),
        ("scripts = ['a.py', {script = 'a.py', args = 'x'}]", 1, "args: 'x' is not a list of st"),
        ("steps = 0", 1, "steps: 0 is not a whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, line: str, column: int, told: str
) -> None:
    path = configure(tmp_path, f"[tool.torchopt]\nsteps = 5\n[tool.torchopt.gate]\n{line}\n")
    with pytest.raises(TorchoptError) as raised:
        load_gate_settings(tmp_path)
    assert str(raised.value).startswith(f"{path}:4:{column}: {told}")


@pytest.mark.parametrize(
    ("line", "wrong", "told"),
    [
        ('original = "train.py"', "original = 3", "19:1: original: 3 is not a path"),
        ("minimum-speedup = 2", "minimum-speedup = 0", "21:1: minimum-speedup: 0 is not a"),
        ('script = "other.py"', "", "24:1: scripts: no `script` says which"),
        ('script = "other.py"', "script = ''", "25:1: script: '' is not a path"),
    ],
)
def test_what_is_wrong_with_a_script_is_told_with_its_place(
    tmp_path: Path, line: str, wrong: str, told: str
) -> None:
    path = configure(tmp_path, CONFIGURATION.replace(line, wrong))
    with pytest.raises(TorchoptError) as raised:
        load_gate_settings(tmp_path)
    assert str(raised.value).startswith(f"{path}:{told}")


def test_a_flag_wins_over_a_key(tmp_path: Path) -> None:
    configure(tmp_path, CONFIGURATION)
    flags = from_flags({"minimum_speedup": "1.1", "device": "auto", "junit": None, "steps": "5"})
    settings = flags.over(load_gate_settings(tmp_path))
    assert (settings.minimum_speedup, settings.device, settings.steps) == (1.1, Device.AUTO, 5)
    assert settings.repeats == 10


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"minimum_speedup": "much"}, "--minimum-speedup: 'much' is not a factor"),
        ({"device": "tpu"}, "--device: 'tpu' is not one of"),
        ({"timeout": "-1"}, "--timeout: -1.0 is not a number of seconds above 0"),
    ],
)
def test_a_wrong_flag_is_named(flags: dict[str, object], told: str) -> None:
    with pytest.raises(TorchoptError) as raised:
        from_flags(flags)
    assert str(raised.value).startswith(told)


def test_the_minimum_is_the_scripts_own_then_the_gates_then_the_default() -> None:
    rewrite = GatedScript(Path("b.py"), Path("a.py"))
    assert GateSettings().minimum_for(rewrite) == 1.0
    assert GateSettings().minimum_for(GatedScript(Path("b.py"))) == 0.95
    assert GateSettings(minimum_speedup=1.3).minimum_for(rewrite) == 1.3
    own = GatedScript(Path("b.py"), minimum_speedup=1.4)
    assert GateSettings(minimum_speedup=1.3).minimum_for(own) == 1.4
