"""Where an argument of a loader is, or can be, written: in its call or in a keyword dict that reaches it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...rewriting.edits import SetArgument, SetDictEntry
from ..facts import Argument, DataLoader, Fact
from ..program.syntax import Module
from ..script import TrainingScript
from ..values.values import Display, Made


@dataclass(frozen=True, eq=False)
class Setting:
    """The call or keyword dict at ``node`` that says, or shall say, an argument of one or more loaders."""

    module: Module
    node: ast.Call | ast.Dict

    def edit(self, key: str, value: str, position: int | None = None) -> SetArgument | SetDictEntry:
        """The edit that makes ``value`` the argument ``key``, which may be given by ``position``."""
        span = self.module.span(self.node)
        if isinstance(self.node, ast.Dict):
            return SetDictEntry(span, key, value)
        return SetArgument(span, key, value, position)


def said_later(loader: DataLoader, key: str) -> Argument | None:
    """Argument ``key`` where it is put into a keyword dict after that was made: ``d["k"] = v``, ``d.update(k=v)``."""
    argument = loader.arguments.get(key)
    if argument is None or argument.display is not None:
        return None
    own = [*loader.node.args, *(keyword.value for keyword in loader.node.keywords)]
    return None if argument.value in own else argument


def settings_by_place(
    script: TrainingScript, key: str, loaders: Iterable[DataLoader]
) -> dict[Setting, list[DataLoader]]:
    """``loaders`` by the place that says their argument ``key``."""
    settings: dict[ast.AST, Setting] = {}
    found: dict[Setting, list[DataLoader]] = {}
    for loader in loaders:
        setting = setting_of(script, key, loader)
        setting = settings.setdefault(setting.node, setting)
        found.setdefault(setting, []).append(loader)
    return found


def setting_of(script: TrainingScript, key: str, loader: DataLoader) -> Setting:
    """Where argument ``key`` of ``loader`` is written, or belongs: beside others, in a dict that only loaders use."""
    argument = loader.arguments.get(key)
    if argument is not None:
        if argument.display is not None:
            return Setting(argument.module, argument.display)
        return Setting(loader.module, loader.node)
    if len(loader.displays) == 1:
        display, module = loader.displays[0]
        if takes_setting(script, key, display):
            return Setting(module, display)
    return Setting(loader.module, loader.node)


def takes_setting(script: TrainingScript, key: str, display: ast.Dict | ast.Call) -> bool:
    """Whether ``key`` can be added to the keyword dict ``display``: only loaders get it, and none has ``key`` yet."""
    users = [
        loader
        for loader in script.loaders
        if any(display is d for d, _ in loader.displays)
        or any(display is argument.display for argument in loader.arguments.values())
    ]
    return all(key not in loader.arguments for loader in users) and not any(
        _other_takers(script, display)
    )


def other_taker(script: TrainingScript, loader: DataLoader, key: str) -> Fact | None:
    """A call that is no loader's and takes the keyword dict that says argument ``key`` of ``loader``."""
    argument = loader.arguments.get(key)
    if argument is None or argument.display is None:
        return None
    return next(_other_takers(script, argument.display), None)


def _other_takers(script: TrainingScript, display: ast.Dict | ast.Call) -> Iterator[Fact]:
    """The calls that take the keyword dict ``display`` as ``**kwargs``, but for those of loaders."""
    loaders = {loader.node for loader in script.loaders}
    for module in script.modules:
        for call in module.calls:
            for keyword in call.keywords:
                if (
                    keyword.arg is None
                    and call not in loaders
                    and any(
                        (isinstance(value, Display) and value.node is display)
                        or (isinstance(value, Made) and value.call is display)
                        for value in script.values(keyword.value, module)
                    )
                ):
                    yield Fact(module, call)
