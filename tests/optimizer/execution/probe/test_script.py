"""Scripts run as Python would run them."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.probe.rounds import StopRun
from torchopt_cli.optimizer.execution.probe.script import Ending, run_script, traceback_of


@pytest.fixture
def ran(tmp_path: Path, monkeypatch):
    """Run a text as a script; ``sys`` is put back afterwards."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def go(text: str, *args: str) -> Ending:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return run_script(str(path), "script.py", list(args))

    return go


def test_a_script_is_main_with_its_arguments_and_folder(ran, capsys, tmp_path):
    ending = ran(
        """
        import sys
        class Here: pass
        assert __name__ == "__main__" and sys.modules["__main__"].Here is Here and __spec__ is None
        print(sys.argv, __file__, sys.path[0])
        """,
        "--lr",
        "0.1",
    )
    assert ending == Ending(0)
    assert (
        capsys.readouterr().out == f"['script.py', '--lr', '0.1'] {tmp_path}/script.py {tmp_path}\n"
    )


@pytest.mark.parametrize(
    ("call", "ending"),
    [
        ("sys.exit()", Ending(0)),
        ("sys.exit(3)", Ending(3)),
        ("exit(0)", Ending(0)),
        ("sys.exit('no data')", Ending(1, "no data\n")),
    ],
)
def test_exit_statuses(ran, call, ending):
    assert ran(f"import sys\n{call}") == ending


def test_a_traceback_shows_the_users_frames_only(ran, tmp_path):
    ending = ran(
        """
        def f():
            try:
                {}["key"]
            except KeyError as error:
                raise ValueError("bad") from error
        f()
        """
    )
    assert ending.exit_code == 1
    assert (
        ending.traceback.count("File ")
        == ending.traceback.count(f'File "{tmp_path}/script.py"')
        == 3
    )
    assert ending.traceback.startswith("Traceback")
    assert ending.traceback.endswith("ValueError: bad\n")
    assert "KeyError: 'key'" in ending.traceback


def test_a_text_that_does_not_compile_fails_with_its_place(ran, tmp_path):
    ending = ran("x = (\n")
    assert f'File "{tmp_path}/script.py", line 1' in ending.traceback
    assert "SyntaxError" in ending.traceback


def test_the_end_of_a_run_is_no_failure(ran, monkeypatch):
    monkeypatch.setattr("builtins.stop", StopRun, raising=False)
    assert ran("try:\n    raise stop\nexcept Exception:\n    pass") == Ending(None)


def test_causes_that_go_in_a_circle_have_a_traceback():
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert traceback_of(first).endswith("ValueError: a\n")
