import os
import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer.environment import find_python, inspect_environment
from torchopt_cli.optimizer.errors import ExitCode, TorchoptError


def executable(path: Path, text: str = "#!/bin/sh\nexit 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def torch_at(site_packages: Path, version: str) -> None:
    (site_packages / "torch").mkdir(parents=True)
    (site_packages / "torch" / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = '12.1'\n"
    )


def test_a_path_and_a_command_are_found(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin" / "mypython")
    assert find_python(str(python)) == python
    assert find_python("mypython", {"PATH": str(tmp_path / "bin")}) == python


def test_a_missing_interpreter_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(TorchoptError, match="no such interpreter") as caught:
        find_python(str(tmp_path / "nowhere"))
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_the_default(tmp_path: Path, variable: str) -> None:
    python = executable(tmp_path / "bin" / "python")
    assert find_python(None, {variable: str(tmp_path)}) == python


def test_else_our_own_interpreter(tmp_path: Path) -> None:
    assert find_python(None, {}) == Path(sys.executable)
    assert find_python(None, {"VIRTUAL_ENV": str(tmp_path)}) == Path(sys.executable)


def test_our_own_interpreter_is_read_from_memory() -> None:
    environment = inspect_environment(Path(sys.executable))
    assert environment.python_version == sys.version_info[:2]


@pytest.mark.parametrize("key", ["version = 3.10.2", "version_info = 3.10.2.final.0"])
def test_a_virtual_environment_is_read_without_running_it(tmp_path: Path, key: str) -> None:
    python = executable(tmp_path / "bin" / "python")
    (tmp_path / "pyvenv.cfg").write_text(f"home = /usr/bin\n{key}\n")
    torch_at(tmp_path / "lib" / "python3.10" / "site-packages", "2.4.1+cu121")
    environment = inspect_environment(python)
    assert (environment.python_version, environment.torch_version) == ((3, 10), (2, 4))


def test_a_virtual_environment_may_see_the_system_packages(tmp_path: Path) -> None:
    python = executable(tmp_path / "venv" / "bin" / "python")
    config = f"home = {tmp_path}/base/bin\nversion = 3.12.0\ninclude-system-site-packages = {{}}\n"
    torch_at(tmp_path / "base" / "lib" / "python3.12" / "site-packages", "2.3.0")
    (tmp_path / "venv" / "pyvenv.cfg").write_text(config.format("false"))
    assert inspect_environment(python).torch_version is None
    (tmp_path / "venv" / "pyvenv.cfg").write_text(config.format("true"))
    assert inspect_environment(python).torch_version == (2, 3)


def test_an_installation_is_read_by_the_name_of_its_program(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "python3.12")
    (tmp_path / "bin" / "python").symlink_to("python3.12")
    torch_at(tmp_path / "lib" / "python3.12" / "site-packages", "2.6.0a0+git1234")
    environment = inspect_environment(tmp_path / "bin" / "python")
    assert (environment.python_version, environment.torch_version) == ((3, 12), (2, 6))


@pytest.mark.skipif(os.name == "nt", reason="shell script")
def test_a_wrapper_script_is_asked(tmp_path: Path) -> None:
    wrapper = executable(tmp_path / "python3.99", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    ours = inspect_environment(Path(sys.executable))
    asked = inspect_environment(wrapper)
    assert (asked.python_version, asked.torch_version) == (ours.python_version, ours.torch_version)


@pytest.mark.skipif(os.name == "nt", reason="shell script")
def test_what_does_not_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(TorchoptError, match="does not run as a Python 3"):
        inspect_environment(executable(tmp_path / "python"))
