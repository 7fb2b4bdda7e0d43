"""Imports that lose their last use."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.editing.imports import orphaned_imports
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.rewriting.edits import (
    Edit,
    RemoveImportedName,
    RemoveStatement,
    ReplaceStatement,
    Span,
)

Script = Callable[..., TrainingScript]
NAMES = frozenset({"gc", "torch.autograd.Variable", "numpy"})


def orphans(script: TrainingScript) -> list[Edit]:
    """The edits after the statements that call something are gone."""
    removed = [s for s in script.entry.tree.body if isinstance(s, ast.Expr)]
    found = orphaned_imports(script.project, script.entry, removed, NAMES)
    return [edit.edit for edit in found]


@pytest.mark.parametrize(
    ("source", "edits"),
    [
        ("import gc\ngc.collect()\n", [RemoveStatement(Span(1, 0, 1, 9))]),
        (
            "import gc, os\ngc.collect()\nx = os.name\n",
            [ReplaceStatement(Span(1, 0, 1, 13), "import os")],
        ),
        ("import numpy as np\nnp.seterr()\n", [RemoveStatement(Span(1, 0, 1, 18))]),
        (
            "from torch.autograd import Variable, grad\nVariable(1)\n",
            [RemoveImportedName("torch.autograd", "Variable")],
        ),
        ("import gc\ngc.collect()\nx = gc.isenabled()\n", []),
        ("import gc\ngc.collect()\n__all__ = ['gc']\n", []),
        ("import os\nos.getcwd()\n", []),
        ("try:\n    import gc\nexcept ImportError:\n    pass\ngc.collect()\n", []),
        ("from torch.autograd import Variable as V\nV(1)\n", []),
    ],
)
def test_edits(script: Script, source: str, edits: list[Edit]) -> None:
    assert orphans(script(source)) == edits


def test_import_that_another_file_takes_over_stays(script: Script) -> None:
    files = {
        "train.py": "import helper\nimport gc\ngc.collect()\n",
        "helper.py": "from train import gc\n",
    }
    assert orphans(script(files)) != []
    files = {
        "main.py": "import gc\nimport tools\ngc.collect()\n",
        "tools.py": "from main import *\n",
    }
    assert len(orphans(script(files))) == 1
