from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.config import Format, Settings, load_settings, suggestion
from torchopt_cli.optimizer.environment import Environment
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.options import (
    NEWEST_TORCH,
    AmpDtype,
    CompileMode,
    Options,
    Target,
    Tier,
)

ENVIRONMENT = Environment(Path("/usr/bin/python"), (3, 11), (2, 5))


def configure(folder: Path, body: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[project]\nname = 'x'\n\n[tool.torchopt]\n{body}\n")
    return path


def test_no_configuration_says_nothing(tmp_path: Path) -> None:
    assert load_settings(tmp_path) == Settings()


def test_every_key_is_read(tmp_path: Path) -> None:
    configure(
        tmp_path,
        """
dry-run = true
check = false
interactive = false
output = "out/fast.py"
select = ["no-grad", "autocast"]
ignore = "compile, pin-memory"
tier = "exact"
target = "cuda"
gpus = 2
accumulate = 4
workers = 3
profile = "profile.json"
torch = "2.4"
amp = "bf16"
format = "json"
verify = true
python = "python3.10"
steps = 20
seed = 0
timeout = 1.5
no-timing = true
repeats = 3
seeds = 5
trace = "trace.json"
nvtx = false
budget = 2.5
resume = true
emulate-cuda = true
""",
    )
    assert load_settings(tmp_path) == Settings(
        dry_run=True,
        check=False,
        interactive=False,
        output=tmp_path / "out/fast.py",
        select=("no-grad", "autocast"),
        ignore=("compile", "pin-memory"),
        tier=Tier.EXACT,
        target=Target.CUDA,
        gpus=2,
        accumulate=4,
        workers=3,
        profile=tmp_path / "profile.json",
        torch=(2, 4),
        amp=AmpDtype.BF16,
        format=Format.JSON,
        verify=True,
        python="python3.10",
        steps=20,
        seed=0,
        timeout=1.5,
        no_timing=True,
        repeats=3,
        seeds=5,
        trace=tmp_path / "trace.json",
        nvtx=False,
        budget=2.5,
        resume=True,
        emulate_cuda=True,
    )


def test_an_emulated_device_is_the_target_unless_another_is_named() -> None:
    emulated = Settings(emulate_cuda=True)
    assert emulated.options(ENVIRONMENT).target is Target.CUDA
    assert replace(emulated, target=Target.CPU).options(ENVIRONMENT).target is Target.CPU
    assert Settings().options(ENVIRONMENT).target is Target.AUTO


def test_the_nearest_file_with_a_section_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    configure(tmp_path, "steps = 5")
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'torchopt-user'\n")
    assert load_settings(inner).steps == 5
    configure(inner, "steps = 7")
    assert load_settings(inner).steps == 7


def test_an_interpreter_given_as_a_path_is_meant_from_the_file(tmp_path: Path) -> None:
    configure(tmp_path, 'python = ".venv/bin/python"')
    assert load_settings(tmp_path).python == str(tmp_path / ".venv/bin/python")


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("steps = 3\ntiers = 'exact'", 6, "unknown key 'tiers' .*did you mean 'tier'"),
        ("tier = 'bitwise'", 5, "tier: 'bitwise' is not one of exact, numeric, semantic"),
        ("gpus = 0", 5, "gpus: 0 is not a whole number of at least 1"),
        ("gpus = true", 5, "gpus: True is not a whole number"),
        ("accumulate = 1", 5, "accumulate: 1 is not a whole number of at least 2"),
        ("torch = 2.4", 5, "torch: 2.4 is a number: a version stands in quotes, such as '2.4'"),
        ("torch = true", 5, "torch: True is not a version such as '2.4'"),
        ("python = ''", 5, "python: it is empty"),
        ("verify = 'yes'", 5, "verify: 'yes' is neither true nor false"),
        ("select = [1]", 5, "select: 1 is not a string"),
        ("timeout = inf", 5, "timeout: inf is not a number of seconds above 0"),
        ("timeout = -1", 5, "timeout: -1 is not a number of seconds above 0"),
        ("[tool.torchopt.other]\nx = 1", 5, "unknown key 'other'"),
        ("steps = ", 5, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, body: str, line: int, message: str
) -> None:
    path = configure(tmp_path, body)
    with pytest.raises(TorchoptError, match=message) as caught:
        load_settings(tmp_path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "\n" not in str(caught.value)


def test_a_key_that_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\ntorchopt = 3\n")
    with pytest.raises(TorchoptError, match=r"pyproject.toml:2:1: tool.torchopt is not a table"):
        load_settings(tmp_path)


def test_flags_are_parsed_alike() -> None:
    flags = {"tier": "exact", "select": ["a,b", "c"], "torch": "2.4.1+cu121", "gpus": None}
    assert Settings.from_flags(flags) == Settings(
        tier=Tier.EXACT, select=("a", "b", "c"), torch=(2, 4)
    )


def test_modes_and_lists_of_numbers() -> None:
    flags = {"compile_mode": "reduce-overhead", "prefetch": "4", "batch_sizes": "64, 128,64"}
    found = Settings.from_flags(flags)
    assert found == Settings(
        compile_mode=CompileMode.REDUCE_OVERHEAD, prefetch=4, batch_sizes=(64, 128)
    )
    options = found.options(ENVIRONMENT)
    assert (options.compile_mode, options.prefetch) == (CompileMode.REDUCE_OVERHEAD, 4)


def test_a_list_of_numbers_in_a_file(tmp_path: Path) -> None:
    configure(tmp_path, "batch-sizes = [64, 128]\ncompile-mode = 'default'")
    found = load_settings(tmp_path)
    assert (found.batch_sizes, found.compile_mode) == ((64, 128), CompileMode.DEFAULT)


def test_a_file_whose_tool_is_no_table_has_no_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("tool = 3  # not torchopt's\n")
    assert load_settings(tmp_path) == Settings()


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(TorchoptError, match="--amp: 'fp8' is not one of auto, bf16, fp16"):
        Settings.from_flags({"amp": "fp8"})
    with pytest.raises(TorchoptError, match="--no-timing"):
        Settings.from_flags({"no_timing": 3})


def test_a_flag_wins_over_a_key() -> None:
    configured = Settings(tier=Tier.EXACT, dry_run=True, steps=5)
    flags = Settings(tier=Tier.SEMANTIC, dry_run=False)
    assert flags.over(configured) == Settings(tier=Tier.SEMANTIC, dry_run=False, steps=5)


def test_options_take_the_versions_of_the_environment() -> None:
    options = Settings(tier=Tier.EXACT, select=("a",)).options(ENVIRONMENT)
    assert options == Options(
        tier=Tier.EXACT,
        torch_version=(2, 5),
        python_version=(3, 11),
        select=frozenset({"a"}),
    )
    assert Settings(torch=(2, 3)).options(ENVIRONMENT).torch_version == (2, 3)
    without = Environment(ENVIRONMENT.python, (3, 11), None)
    assert Settings().options(without).torch_version == NEWEST_TORCH


@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        (Settings(torch=(1, 13)), ENVIRONMENT),
        (Settings(), Environment(ENVIRONMENT.python, (3, 8), (1, 13))),
    ],
)
def test_a_torch_too_old_is_refused(settings: Settings, environment: Environment) -> None:
    with pytest.raises(TorchoptError, match=r"torch 1\.13.* older than 2\.2"):
        settings.options(environment)


def test_suggestions() -> None:
    assert suggestion("no-gard", ["no-grad", "compile"]) == " (did you mean 'no-grad'?)"
    assert suggestion("zzz", ["no-grad", "compile"]) == ""
