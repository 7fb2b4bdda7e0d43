"""The command ``torchopt``."""

from __future__ import annotations

import atexit
import codecs
import errno
import gc
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from .commands.catalogue import explain, rules
from .commands.flags import Action
from .commands.gate import gate
from .commands.parsing import RawCommand
from .commands.profile import profile
from .commands.rewrite import rewrite
from .commands.tune import tune
from .commands.verify import verify
from .errors import ExitCode, TorchoptError
from .terminal import print_error

_INTERRUPTED = 130  # 128 + SIGINT, what a shell expects
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN_PIPE = 141  # 128 + SIGPIPE
# typer brings its own copy of click in newer versions: what they both raise is reached through typer.
_UsageError = cast("type[Exception]", typer.BadParameter.__base__)

_SCRIPTS_RUN_BY = frozenset({"rewrite", "verify", "tune", "profile", "gate"})
_ASKED_TO_COMPLETE = "_TORCHOPT_COMPLETE"
"""What the shell's completion, which ``torchopt --install-completion`` installs, sets."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``torchopt`` with ``arguments`` (default: the command line's); gives the exit status."""
    # What was understood of a script has no cycles, and goes when the script does: collections find next to nothing
    # and cost a twentieth, and as much again the last one, which Python makes when it ends.
    gc.set_threshold(1_000_000)
    if arguments is None:
        atexit.register(gc.freeze)
        _clean_up_when_ended()
        _print_anything()
    own, script_arguments = _split(sys.argv[1:] if arguments is None else arguments)
    try:
        parsed = app(own)
        status = parsed(script_arguments) if callable(parsed) else parsed or ExitCode.OK
        sys.stdout.flush()
        return int(status)
    except TorchoptError as error:
        print_error(error)
        return error.exit_code
    except _UsageError as error:
        told = " ".join(_message(error).split())
        print(f"torchopt: {told}{_usage_hint(error, own)}", file=sys.stderr)
        return ExitCode.USAGE
    except BrokenPipeError:  # nobody reads on
        _print_nothing_more()
        return _BROKEN_PIPE
    except _Ended as ended:
        return 128 + ended.signal
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            _print_nothing_more()
            print(f"torchopt: the output cannot be written: {error.strerror}", file=sys.stderr)
            return ExitCode.USAGE
        # Not left to Python: its exit status for this is 1, which says "would change" here.
        traceback.print_exc()
        print("torchopt: internal error, please report it with the lines above", file=sys.stderr)
        return ExitCode.USAGE


class _Ended(KeyboardInterrupt):
    """A signal that ends programs: of a CI job over its time, of a terminal that is closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


def _print_anything() -> None:
    """Let stdout escape what its encoding lacks, as stderr does: in names of files, and in what scripts print."""
    codecs.register_error("torchopt", _escaped)
    for name in ("stdout", "stderr"):
        if cast("object", getattr(sys, name)) is None:  # the shell's `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="torchopt")


def _print_nothing_more() -> None:
    """Python would complain when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """The bytes of a file's name that are no text as they are, anything else in Python's spelling."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


def _clean_up_when_ended() -> None:
    """Let those signals interrupt as Ctrl-C does, so that no run and no scratch area stays behind."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise _Ended(number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
            signal.signal(number, end)


def app(arguments: Sequence[str]) -> Action | int | None:
    """What ``arguments`` name: a command, ready to be carried out, or what came of them already."""
    # Options for completion load pydantic, a third of the time of a rewrite: only where no command is named.
    completes = _ASKED_TO_COMPLETE in os.environ
    program = _program(completes or not arguments or arguments[0].startswith("-"))
    return program(arguments, standalone_mode=False, prog_name="torchopt")


def _program(add_completion: bool) -> typer.Typer:
    program = typer.Typer(
        name="torchopt",
        help="Rewrite a PyTorch training script to run faster, and prove that it trains the same.",
        epilog="Start with: torchopt rewrite train.py --dry-run",
        rich_markup_mode=None,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": []},  # see `torchopt` below
    )
    for command in (rewrite, verify, tune, profile, gate, rules, explain):
        settings = {"help_option_names": ["-h", "--help"]}
        program.command(cls=RawCommand, context_settings=settings)(command)
    program.callback(invoke_without_command=True)(torchopt)
    return program


def torchopt(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    # The help option typer would add is not a plain flag, see RawCommand.
    show_help: Annotated[bool, typer.Option("-h", "--help", help="Show this message.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed_version

        print(f"torchopt {installed_version('torchopt-cli')}")
    elif show_help:
        print(context.get_help())
    elif context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)
    else:
        return
    raise typer.Exit


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own arguments, and the script's: everything behind the first ``--``, untouched."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), tuple(arguments[end + 1 :])


def _message(error: Exception) -> str:
    """What a usage error of typer's says (its ``str`` leaves out which option it is about)."""
    return str(getattr(error, "format_message", error.__str__)())


def _usage_hint(error: Exception, arguments: Sequence[str]) -> str:
    """What may have been meant: an option of the script's own, or a script where a command belongs."""
    command = next(iter(arguments), "")
    if command in _SCRIPTS_RUN_BY and type(error).__name__ == "NoSuchOption":
        return "; options of the script's own go behind --"
    if os.path.isdir(command) or (command.endswith(".py") and os.path.exists(command)):
        return f" Scripts go behind one: torchopt rewrite {shlex.quote(command)} --dry-run"
    return ""


if __name__ == "__main__":
    sys.exit(main())
