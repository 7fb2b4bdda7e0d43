"""How transforms are found."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from torchopt_cli.optimizer.cli import main
from torchopt_cli.transforms import pin_memory, registry
from torchopt_cli.transforms.base import Transform


@pytest.fixture
def _anew() -> Iterator[None]:
    """The registry as at the start of a process, before and after."""
    for turn in range(2):
        registry.all_transforms.cache_clear()
        registry._modules.cache_clear()  # pyright: ignore[reportPrivateUsage]
        if turn == 0:
            yield


def test_every_module_can_be_imported() -> None:
    assert registry.broken_transforms() == ()


@pytest.mark.usefixtures("_anew")
def test_a_module_that_cannot_be_imported_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_module = importlib.import_module

    def importing(name: str) -> ModuleType:
        if name.endswith(".pin_memory"):
            raise SyntaxError("invalid syntax")
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", importing)
    names = {transform.name for transform in registry.all_transforms()}
    assert "pin-memory" not in names
    assert "no-grad" in names
    [broken] = registry.broken_transforms()
    assert broken.path is not None
    assert (broken.name, broken.path.name) == ("pin-memory", "pin_memory.py")
    assert main(["rules"]) == 0
    out, err = capsys.readouterr()
    assert "no-grad" in out
    assert "pin-memory is left out: internal error: SyntaxError" in err
    assert len(err.splitlines()) == 1
    assert main(["explain", "no-grad"]) == 0
    assert main(["explain", "pin-memory"]) == 2


@pytest.mark.parametrize(
    ("flaw", "told"),
    [
        ({"stage": None}, "`PinMemory` has no `stage`"),
        ({"example": None, "plan": None}, "`PinMemory` has no `example` and no `plan`"),
        ({"name": "non-blocking"}, "`PinMemory` is named 'non-blocking', not 'pin-memory'"),
    ],
    ids=["no stage", "no example and plan", "another's name"],
)
@pytest.mark.usefixtures("_anew")
def test_a_transform_that_is_not_finished_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flaw: dict[str, str | None],
    told: str,
) -> None:
    """As of one that is being written: its module was copied from another, or is not complete yet."""
    whole = vars(pin_memory.PinMemory)
    members = {name: value for name, value in {**whole, **flaw}.items() if value is not None}
    monkeypatch.setattr(pin_memory, "PinMemory", type("PinMemory", (Transform,), members))
    names = [transform.name for transform in registry.all_transforms()]
    assert "pin-memory" not in names
    assert "non-blocking" in names
    assert main(["rules"]) == 0
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("_anew")
def test_a_module_without_a_transform_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(pin_memory, "PinMemory")
    assert main(["rules"]) == 0
    assert "it defines no transform" in capsys.readouterr().err


class AliasOfPython310:
    """What ``tuple[int]`` is there: a class to ``isinstance`` and not to ``issubclass``."""

    @property
    def __class__(self) -> type:
        return type


@pytest.mark.usefixtures("_anew")
def test_a_module_may_name_a_type_that_has_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry.all_transforms()
    registry.all_transforms.cache_clear()
    monkeypatch.setattr(pin_memory, "Pair", AliasOfPython310(), raising=False)
    assert [t.name for t in registry.all_transforms()] == [t.name for t in known]
