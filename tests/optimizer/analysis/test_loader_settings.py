"""Where an argument of a loader is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.loader_settings import setting_of, settings_by_place
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("DataLoader(x)", "DataLoader(x)"),
        ("DataLoader(x, num_workers=1)", "DataLoader(x, num_workers=1)"),
        ("DataLoader(x, **{'num_workers': 1})", "{'num_workers': 1}"),
        ("DataLoader(x, **dict(num_workers=1))", "dict(num_workers=1)"),
        ("k = {'shuffle': True}\nDataLoader(x, **k)", "{'shuffle': True}"),
        ("k = {'a': 1}\nDataLoader(x, **k)\nother(**k)", "DataLoader(x, **k)"),
        (
            "k = {'a': 1}\nDataLoader(x, **k)\nDataLoader(y, num_workers=1, **k)",
            "DataLoader(x, **k)",
        ),
        ("k = {'a': 1} if x else {}\nDataLoader(x, **k)", "DataLoader(x, **k)"),
        ("k = {}\nk.update({'num_workers': 1})\nDataLoader(x, **k)", "{'num_workers': 1}"),
    ],
)
def test_place(script: Script, code: str, place: str) -> None:
    understood = script(f"from torch.utils.data import DataLoader\nx = open('x')\n{code}\n")
    setting = setting_of(understood, "num_workers", understood.loaders[0])
    assert setting.module.code(setting.node) == place


def test_loaders_of_one_dict(script: Script) -> None:
    code = "k = {'a': 1}\nDataLoader(x, **k)\nDataLoader(y, **k)\nDataLoader(z)\n"
    understood = script("from torch.utils.data import DataLoader\n" + code)
    grouped = settings_by_place(understood, "num_workers", understood.loaders)
    assert [len(loaders) for loaders in grouped.values()] == [2, 1]
