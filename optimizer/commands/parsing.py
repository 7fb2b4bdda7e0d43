"""How a command line becomes the arguments of a command's function."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class RawCommand(TyperCommand):
    """A command that gets its values as typed: strings, lists of strings, and True or False for flags.

    typer would convert them with pydantic, whose import alone takes a third of the time of a rewrite.
    Flags and configuration keys are checked by the same parsers anyway (:mod:`..config`).
    """

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
            if value in (None, ()) and parameter.required:
                ctx.fail(f"Missing argument {parameter.metavar or parameter.name}.")
            ctx.params[parameter.name] = value
        if unexpected:
            ctx.fail(f"Unexpected argument {unexpected[0]!r}.")
        return unexpected
