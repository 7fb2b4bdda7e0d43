"""How a command line becomes the arguments of a command's function, and what ``--help`` says of it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class RawCommand(TyperCommand):
    """A command that gets its values as typed: strings, lists of strings, and True or False for flags.

    typer would convert them with pydantic, whose import alone takes a third of the time of a rewrite.
    Flags and configuration keys are checked by the same parsers anyway (:mod:`..config`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            parameter._custom_shell_complete = _completed  # pyright: ignore[reportPrivateUsage]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill ``ctx.params``; what click does, without converting."""
        parser = self.make_parser(ctx)
        given, unexpected, _ = parser.parse_args(args=args)
        if given.pop("help", None) is True:
            print(ctx.get_help())
            ctx.exit()
        for parameter in self.params:
            several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
            value: Any = given.get(parameter.name or "")
            # Newer versions of click have a marker of their own for what was not given.
            if not isinstance(value, str | bool | list | tuple):
                value = () if several else None
            if value in (None, ()) and parameter.required and not ctx.resilient_parsing:
                _fail(ctx, f"Missing argument {parameter.metavar or parameter.name}")
            ctx.params[parameter.name] = value
        if unexpected and not ctx.resilient_parsing:
            _fail(ctx, f"Unexpected argument {unexpected[0]!r}")
        return unexpected

    # Not typer's: it tells Python's types, and differs from version to version.

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                name = parameter.metavar or str(parameter.name).upper()
                pieces.append(
                    (name if parameter.required else f"[{name}]") + "..." * _many(parameter)
                )
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            metavar, text = parameter.metavar or "", getattr(parameter, "help", None) or ""
            if parameter.param_type_name == "argument":
                arguments.append((metavar, text))
            else:
                options.append(
                    (f"{', '.join(sorted(parameter.opts, key=len))} {metavar}".rstrip(), text)
                )
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        taken_back = [opt for p in self.params for opt in getattr(p, "secondary_opts", ())]
        if taken_back:
            formatter.write_paragraph()
            told = f"--no-... takes back what pyproject.toml says: {taken_back[-1]}."
            formatter.write_text(told)


def _completed(ctx: Any, parameter: Any, incomplete: str) -> list[str]:
    """What the shell may put in the place of ``incomplete``; nothing where it is to offer files."""
    metavar = parameter.metavar or ""
    if metavar in ("NAME", "NAMES"):
        from ...transforms.registry import all_transforms

        before, comma, last = incomplete.rpartition(",")
        names = (transform.name for transform in all_transforms())
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
    return [
        choice for choice in metavar.split("|") if "|" in metavar and choice.startswith(incomplete)
    ]


def _many(parameter: Any) -> bool:
    return parameter.nargs != 1


def _fail(ctx: Any, message: str) -> None:
    ctx.fail(f"{message}: see {ctx.command_path} --help")
