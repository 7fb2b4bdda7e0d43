from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.rewriting.edits import AddImport, RemoveImportedName, ReplaceExpression
from torchopt_cli.optimizer.rewriting.rewrites import EditError

Rewrite = Callable[..., str]


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("import torch\n", AddImport("torch")),
        ("import torch.nn\n", AddImport("torch")),
        ("import os, torch\n", AddImport("torch")),
        ("import torch.nn as nn\n", AddImport("torch.nn", alias="nn")),
        ("from torch import nn\n", AddImport("torch", "nn")),
        ("from torch import (\n    amp,\n    nn as n,\n)\n", AddImport("torch", "nn", "n")),
        ("def f():\n    import torch\n\n    torch.zeros(1)\n", AddImport("torch")),
        (
            "def f():\n    import torch\n\n    def g():\n        torch.zeros(1)\n",
            AddImport("torch"),
        ),
    ],
)
def test_an_import_that_is_there_is_not_repeated(
    text: str, edit: AddImport, rewritten: Rewrite
) -> None:
    assert rewritten(text, edit) == text


@pytest.mark.parametrize(
    "text",
    [
        "import torch as th\n",
        "import torch.nn as torch_nn\n",
        "from torch import nn\n",
        "def f():\n    import torch\n",
        "def f(x=torch.zeros(1)):\n    import torch\n\n    torch.zeros(1)\n",
        "def f():\n    torch.zeros(1)\n    import torch\n",
        "def f():\n    import torch\n\n    torch.zeros(1)\n\n\ndef g():\n    torch.zeros(1)\n",
        "def f():\n    if x:\n        import torch\n    torch.zeros(1)\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
        "if TYPE_CHECKING:\n    import torch\n",
    ],
)
def test_another_import_is_not_that_import(text: str, rewritten: Rewrite) -> None:
    result = rewritten(text, AddImport("torch"))
    assert "import torch" in [line for line in result.splitlines() if not line.startswith(" ")]


@pytest.mark.parametrize(
    ("text", "name", "result"),
    [
        ("from m import a\n", "b", "from m import a, b\n"),
        ("from m import b  # why\n", "a", "from m import a, b  # why\n"),
        ("from m import c, a\n", "b", "from m import c, a, b\n"),
        ("from m import (a, c)\n", "b", "from m import (a, b, c)\n"),
        (
            "from m import (\n    a,\n    c,  # c\n)\n",
            "d",
            "from m import (\n    a,\n    c,  # c\n    d,\n)\n",
        ),
        ("from m import A, f\n", "B", "from m import A, B, f\n"),
        ("from m import a, \\\n    c\n", "b", "from m import a, \\\n    b, c\n"),
        ("from m import a; x = 1\n", "b", "from m import a, b; x = 1\n"),
        ("from m import a as z\n", "b", "from m import a as z, b\n"),
    ],
)
def test_a_from_import_gains_a_name(text: str, name: str, result: str, rewritten: Rewrite) -> None:
    assert rewritten(text, AddImport("m", name)) == result


def test_a_from_import_that_becomes_too_long_is_broken(rewritten: Rewrite) -> None:
    names = [f"a_rather_long_name_{i}" for i in range(4)]
    text = f"from module import {', '.join(names[:3])}\n"
    expected = "from module import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"
    assert rewritten(text, AddImport("module", names[3])) == expected


def test_a_star_import_gains_nothing(rewritten: Rewrite) -> None:
    assert (
        rewritten("from m import *\n", AddImport("m", "a")) == "from m import *\nfrom m import a\n"
    )


PLACES = [
    # Beside imports of the same package, in order.
    (
        "import os\n\nimport torch\nimport torchvision\nx = 1\n",
        AddImport("torch.amp", "autocast"),
        "import os\n\nimport torch\nfrom torch.amp import autocast\nimport torchvision\nx = 1\n",
    ),
    (
        "from torch.utils.data import DataLoader\n",
        AddImport("torch"),
        "import torch\nfrom torch.utils.data import DataLoader\n",
    ),
    (
        "import torch\nfrom torch import nn  # nn\n# about data\nfrom torch.utils.data import Dataset\n",
        AddImport("torch.amp", "autocast"),
        "import torch\nfrom torch import nn  # nn\nfrom torch.amp import autocast\n"
        "# about data\nfrom torch.utils.data import Dataset\n",
    ),
    # In the section it belongs to.
    ("import sys\n\nimport torch\n", AddImport("os"), "import os\nimport sys\n\nimport torch\n"),
    ("import torch\n", AddImport("os"), "import os\n\nimport torch\n"),
    ("import os\nx = 1\n", AddImport("torch"), "import os\n\nimport torch\nx = 1\n"),
    (
        "import os\nfrom . import a\n",
        AddImport("torch"),
        "import os\n\nimport torch\n\nfrom . import a\n",
    ),
    # Never above the docstring or `from __future__`.
    (
        '"""Doc."""\n\nfrom __future__ import annotations\n\nx = 1\n',
        AddImport("torch"),
        '"""Doc."""\n\nfrom __future__ import annotations\n\nimport torch\n\nx = 1\n',
    ),
    # Where there are no imports yet.
    ('"""Doc."""\nx = 1\n', AddImport("torch"), '"""Doc."""\n\nimport torch\n\nx = 1\n'),
    (
        '"""Doc."""\n\n\ndef f(): pass\n',
        AddImport("torch"),
        '"""Doc."""\n\nimport torch\n\n\ndef f(): pass\n',
    ),
    ("x = 1\n", AddImport("torch"), "import torch\n\nx = 1\n"),
    ("def f(): pass\n", AddImport("torch"), "import torch\n\n\ndef f(): pass\n"),
    ("", AddImport("torch"), "import torch\n"),
    ('"""Doc."""', AddImport("torch"), '"""Doc."""\n\nimport torch'),
    (
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nx = 1\n",
        AddImport("torch"),
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nimport torch\n\nx = 1\n",
    ),
    (
        "# Licence.\n\n# about x\nx = 1\n",
        AddImport("torch"),
        "# Licence.\n\nimport torch\n\n# about x\nx = 1\n",
    ),
    # Not inside blocks, and above the first use.
    (
        "import os\ntry:\n    import torch.amp\nexcept ImportError:\n    pass\n",
        AddImport("torch"),
        "import os\n\nimport torch\ntry:\n    import torch.amp\nexcept ImportError:\n    pass\n",
    ),
    (
        "import os\n\nwith autocast():\n    pass\nfrom torch.amp import GradScaler\n",
        AddImport("torch.amp", "autocast"),
        "import os\n\nfrom torch.amp import autocast\n\nwith autocast():\n    pass\n"
        "from torch.amp import GradScaler\n",
    ),
    ("import a; import b\nx\n", AddImport("a.c"), "import a; import b\nimport a.c\nx\n"),
    ("import os\r\nx = 1\r\n", AddImport("sys"), "import os\r\nimport sys\r\nx = 1\r\n"),
    ("import os", AddImport("sys"), "import os\nimport sys"),
]


@pytest.mark.parametrize(("text", "edit", "result"), PLACES)
def test_where_a_new_import_goes(
    text: str, edit: AddImport, result: str, rewritten: Rewrite
) -> None:
    assert rewritten(text, edit) == result
    assert rewritten(result, edit) == result


def test_several_imports_at_once(rewritten: Rewrite) -> None:
    edits = [
        AddImport("torch.amp", "autocast"),
        AddImport("torch.amp", "GradScaler"),
        AddImport("os"),
    ]
    assert rewritten("import torch\n", *edits) == (
        "import os\n\nimport torch\nfrom torch.amp import GradScaler, autocast\n"
    )


@pytest.mark.parametrize(
    ("text", "names", "result"),
    [
        ("from m import a\nx = 1\n", ["a"], "x = 1\n"),
        ("from m import a, b\n", ["a"], "from m import b\n"),
        ("from m import a, b as c, d\n", ["b"], "from m import a, d\n"),
        ("from m import a, b\nx = 1\n", ["a", "b"], "x = 1\n"),
        ("from m import (\n    a,  # a\n    b,\n)\n", ["b"], "from m import (\n    a,  # a\n)\n"),
        ("def f():\n    from m import a\n", ["a"], "def f():\n    pass\n"),
        ("from m import a; import b\n", ["a"], "import b\n"),
        (
            "from m import a\ntry:\n    from m import a, b\nexcept E: from m import a\n",
            ["a"],
            "try:\n    from m import b\nexcept E: pass\n",
        ),
    ],
)
def test_imported_names_are_removed(
    text: str, names: list[str], result: str, rewritten: Rewrite
) -> None:
    assert rewritten(text, *(RemoveImportedName("m", name) for name in names)) == result


@pytest.mark.parametrize(
    "text", ["import m\n", "from m import b\n", "from .m import a\n", "from n import a\n"]
)
def test_removing_a_name_that_is_not_imported_is_an_error(text: str, rewritten: Rewrite) -> None:
    with pytest.raises(EditError, match="no such import"):
        rewritten(text, RemoveImportedName("m", "a"))


def test_an_import_moves_with_its_use(rewritten: Rewrite, span: Callable[..., object]) -> None:
    text = dedent(
        """
        import torch
        from torch.cuda.amp import GradScaler, autocast

        with autocast():
            pass
        """
    ).lstrip()
    result = rewritten(
        text,
        RemoveImportedName("torch.cuda.amp", "autocast"),
        RemoveImportedName("torch.cuda.amp", "GradScaler"),
        AddImport("torch.amp", "autocast"),
        ReplaceExpression(span(text, "autocast()"), 'autocast("cuda")'),
    )
    assert result == (
        'import torch\nfrom torch.amp import autocast\n\nwith autocast("cuda"):\n    pass\n'
    )


def test_an_import_for_what_follows_it_begins_no_list(rewritten: Rewrite) -> None:
    text = "# Opens what the host refuses.\nfrom six.moves import urllib\nurllib.install()\n\n{}import torch\nimport numpy\n\nos.x()\n"
    assert rewritten(text.format(""), AddImport("os")) == text.format("import os\n\n")
