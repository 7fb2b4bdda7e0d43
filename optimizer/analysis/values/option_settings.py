"""What options are besides an argparse default: a field of a dataclass that a library fills, or what the script assigns."""

from __future__ import annotations

import ast

from ..program.classes import first_party_bases
from ..program.syntax import Module
from .composition import call_arguments
from .resolver import Resolver
from .values import Attribute, Class, External, Instance, Made, Option, Value


def option_field(resolver: Resolver, option: Attribute) -> tuple[ast.AnnAssign, Module] | None:
    """The field of the dataclass that ``option`` is read from, of ``tyro.cli(Args).tau`` the line ``tau: float = 0.005``."""
    if not isinstance(made := option.of, Made):
        return None
    for argument in call_arguments(made.call):
        for given in resolver.values(argument, made.module):
            if isinstance(given, Class):
                for cls in (given, *first_party_bases(resolver, given)):
                    for statement in cls.node.body:
                        match statement:
                            case ast.AnnAssign(ast.Name(field)) if field == option.name:
                                return statement, cls.module
                            case _:
                                pass
    return None


def assigned_settings(
    resolver: Resolver, option: Option | Attribute
) -> list[tuple[ast.expr, Module]] | None:
    """What the script assigns to ``option`` (``args.batch = 64``); None where that is not written out."""
    name = option.destination if isinstance(option, Option) else option.name
    found: list[tuple[ast.expr, Module]] = []
    for module in resolver.project.modules:
        for attribute in module.attributes_of(name):
            if isinstance(attribute.ctx, ast.Load) or not _may_be(
                resolver, attribute, module, option
            ):
                continue
            match module.parents[attribute]:
                case ast.Assign(targets, value) if attribute in targets:
                    found.append((value, module))
                case _:
                    return None
    return found


def _may_be(
    resolver: Resolver, attribute: ast.Attribute, module: Module, option: Option | Attribute
) -> bool:
    """Whether ``attribute``, of that name, may be ``option``: one of the same object, or of one that is not known."""
    owners = resolver.values(attribute.value, module)
    if isinstance(option, Attribute) and option.of in owners:
        return True
    return not owners or any(_may_hold_options(owner, option) for owner in owners)


def _may_hold_options(owner: Value, option: Option | Attribute) -> bool:
    match owner:
        case Class() | Instance() | Made(_, _, Class()) | External():
            return False
        case Made():
            return isinstance(option, Option)  # what parsers declare is known by its name alone
        case _:
            return True
