from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations

pytestmark = pytest.mark.torch

SCRIPT = """\
import torch

assert open("settings.yaml").read() == "rate: 2\\n"
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
{}
"""


@pytest.mark.parametrize(
    ("written", "files"),
    [
        ("pass", []),
        ("open('settings.yaml', 'a').write('more')", ["settings.yaml"]),
        ("open('new.txt', 'w').write('more')", ["new.txt"]),
    ],
)
def test_what_stands_in_for_a_file_is_not_written_by_the_script(
    project: Callable[[Mapping[str, str]], Path],
    observe: Callable[..., Observations],
    written: str,
    files: list[str],
) -> None:
    """The texts of a commit stand in for the files of the working tree that differ."""
    folder = project(
        {"train.py": SCRIPT.format(written), "settings.yaml": "rate: 1\n", "README.md": "now\n"}
    )
    overrides = {folder / "settings.yaml": "rate: 2\n", folder / "README.md": "then\n"}
    seen = observe(folder, overrides=overrides)
    assert seen.traceback is None
    assert [file.path for file in seen.files] == files
