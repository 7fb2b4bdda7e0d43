"""torch.cuda.amp and torch.cpu.amp become torch.amp, imports included, wherever all uses are known."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

Check = Callable[..., None]


def test_nothing_to_do(check_noop: Check) -> None:
    check_noop(
        """
        import torch

        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x)
        """
    )


def test_own_classes_of_the_same_name(check_noop: Check) -> None:
    check_noop(
        {
            "train.py": """
            from amp import GradScaler, autocast

            scaler = GradScaler()
            with autocast():
                pass
            """,
            "amp.py": """
            class GradScaler:
                pass

            class autocast:
                pass
            """,
        }
    )


def test_apex_is_something_else(check_noop: Check) -> None:
    check_noop(
        """
        from apex import amp

        model, optimizer = amp.initialize(model, optimizer)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        """
    )


def test_both_names_imported(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch
        from torch.cuda.amp import GradScaler, autocast

        scaler = GradScaler()
        with autocast():
            loss = model(x)
        """,
        """
        import torch
        from torch.amp import GradScaler, autocast

        scaler = GradScaler("cuda")
        with autocast("cuda"):
            loss = model(x)
        """,
    )


def test_import_over_several_lines_keeps_its_layout(check_transformed: Check) -> None:
    check_transformed(
        """
        from torch.cuda.amp import (  # mixed precision
            GradScaler,
            autocast as half,
        )

        scaler = GradScaler()
        with half():
            pass
        """,
        """
        from torch.amp import (  # mixed precision
            GradScaler,
            autocast as half,
        )

        scaler = GradScaler("cuda")
        with half("cuda"):
            pass
        """,
    )


def test_spelled_out(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch as th

        scaler = th.cuda.amp.GradScaler(enabled=args.amp)
        with th.cuda.amp.autocast(enabled=args.amp):
            loss = model(x)
        with th.cpu.amp.autocast():
            loss = model(x)
        """,
        """
        import torch as th

        scaler = th.amp.GradScaler("cuda", enabled=args.amp)
        with th.amp.autocast("cuda", enabled=args.amp):
            loss = model(x)
        with th.amp.autocast("cpu"):
            loss = model(x)
        """,
    )


@pytest.mark.parametrize(
    ("statement", "moved", "prefix"),
    [
        ("from torch.cuda import amp", "from torch import amp", "amp"),
        ("from torch.cuda import amp as mp", "from torch import amp as mp", "mp"),
        ("import torch.cuda.amp as amp", "import torch.amp as amp", "amp"),
    ],
)
def test_module_imported(check_transformed: Check, statement: str, moved: str, prefix: str) -> None:
    check_transformed(
        f"""
        {statement}

        scaler = {prefix}.GradScaler()
        with {prefix}.autocast(False):
            pass
        with {prefix}.autocast(True):
            pass
        """,
        f"""
        {moved}

        scaler = {prefix}.GradScaler("cuda")
        with {prefix}.autocast("cuda", enabled=False):
            pass
        with {prefix}.autocast("cuda"):
            pass
        """,
    )


def test_module_import_stays_for_what_has_no_successor(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch
        from torch.cuda import amp

        usable = not amp.common.amp_definitely_not_available()
        scaler = amp.GradScaler()
        """,
        """
        import torch
        from torch.cuda import amp

        usable = not amp.common.amp_definitely_not_available()
        scaler = torch.amp.GradScaler("cuda")
        """,
    )


def test_positional_arguments_of_autocast_are_named(check_transformed: Check) -> None:
    check_transformed(
        """
        from torch.cuda.amp import autocast
        import torch

        with autocast(args.amp):
            pass
        with autocast(args.amp, torch.float16, False):
            pass
        """,
        """
        from torch.amp import autocast
        import torch

        with autocast("cuda", enabled=args.amp):
            pass
        with autocast("cuda", dtype=torch.float16, enabled=args.amp, cache_enabled=False):
            pass
        """,
    )


def test_positional_arguments_of_the_scaler_keep_their_order(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch

        scaler = torch.cuda.amp.GradScaler(
            2.0**10,
            growth_interval=100,
        )
        """,
        """
        import torch

        scaler = torch.amp.GradScaler(
            "cuda",
            2.0**10,
            growth_interval=100,
        )
        """,
    )


def test_keyword_dict_is_kept(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch

        options = dict(enabled=True)
        with torch.cuda.amp.autocast(**options):
            pass
        """,
        """
        import torch

        options = dict(enabled=True)
        with torch.amp.autocast("cuda", **options):
            pass
        """,
    )


def test_decorators_and_custom_functions(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch
        from torch.cuda.amp import autocast, custom_bwd, custom_fwd

        class Square(torch.autograd.Function):
            @staticmethod
            @custom_fwd(cast_inputs=torch.float32)
            def forward(ctx, x):
                return x * x

            @staticmethod
            @custom_bwd
            def backward(ctx, grad):
                return grad

        class Net(torch.nn.Module):
            @autocast()
            def forward(self, x):
                return Square.apply(x)
        """,
        """
        import torch
        from torch.amp import autocast, custom_bwd, custom_fwd

        class Square(torch.autograd.Function):
            @staticmethod
            @custom_fwd(device_type="cuda", cast_inputs=torch.float32)
            def forward(ctx, x):
                return x * x

            @staticmethod
            @custom_bwd(device_type="cuda")
            def backward(ctx, grad):
                return grad

        class Net(torch.nn.Module):
            @autocast("cuda")
            def forward(self, x):
                return Square.apply(x)
        """,
    )


def test_annotations_type_tests_and_aliases_follow(check_transformed: Check) -> None:
    check_transformed(
        """
        from typing import Optional
        import torch

        autocast = torch.cuda.amp.autocast

        def step(loss, scaler: Optional[torch.cuda.amp.GradScaler] = None):
            assert isinstance(scaler, torch.cuda.amp.GradScaler)
            with autocast():
                pass

        step(loss, torch.cuda.amp.GradScaler())
        """,
        """
        from typing import Optional
        import torch

        autocast = torch.amp.autocast

        def step(loss, scaler: Optional[torch.amp.GradScaler] = None):
            assert isinstance(scaler, torch.amp.GradScaler)
            with autocast("cuda"):
                pass

        step(loss, torch.amp.GradScaler("cuda"))
        """,
    )


def test_quotes_are_those_of_the_file(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch

        print('training', 'with', 'amp')
        scaler = torch.cuda.amp.GradScaler()
        """,
        """
        import torch

        print('training', 'with', 'amp')
        scaler = torch.amp.GradScaler('cuda')
        """,
    )


def test_import_with_a_fallback(check_transformed: Check) -> None:
    check_transformed(
        """
        try:
            from torch.cuda.amp import autocast
        except ImportError:
            autocast = None

        if torch_is_new:
            with autocast():
                pass
        """,
        """
        try:
            from torch.amp import autocast
        except ImportError:
            autocast = None

        if torch_is_new:
            with autocast("cuda"):
                pass
        """,
    )


def test_the_default_type_is_written_out_where_types_vary(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch

        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = model(x)
            with torch.cuda.amp.autocast():
                z = head(y)
            with torch.cuda.amp.autocast(enabled=False):
                loss = criterion(z.float())
        """,
        """
        import torch

        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = model(x)
            with torch.amp.autocast("cuda", dtype=torch.float16):
                z = head(y)
            with torch.amp.autocast("cuda", enabled=False):
                loss = criterion(z.float())
        """,
    )


def test_names_imported_through_another_file(check_transformed: Check) -> None:
    check_transformed(
        {
            "train.py": """
            from compat import autocast

            with autocast():
                pass
            """,
            "compat.py": """
            from torch.cuda.amp import autocast
            """,
        },
        {
            "train.py": """
            from compat import autocast

            with autocast("cuda"):
                pass
            """,
            "compat.py": """
            from torch.amp import autocast
            """,
        },
    )


def test_only_what_the_release_has(check_transformed: Check) -> None:
    check_transformed(
        """
        from torch.cuda.amp import GradScaler, autocast

        scaler = GradScaler()
        with autocast():
            pass
        """,
        """
        from torch.amp import autocast
        from torch.cuda.amp import GradScaler

        scaler = GradScaler()
        with autocast("cuda"):
            pass
        """,
        torch_version=(2, 2),
    )


@pytest.mark.parametrize(
    ("kept", "version"), [("GradScaler", (2, 2)), ("custom_bwd", (2, 3)), ("custom_fwd", (2, 3))]
)
def test_release_without_the_new_name(
    check_noop: Check, kept: str, version: tuple[int, int]
) -> None:
    check_noop(
        f"import torch\nx = torch.cuda.amp.{kept}()\n",
        "needs PyTorch 2.",
        torch_version=version,
    )


def test_handed_on_as_a_value(check_noop: Check) -> None:
    check_noop(
        """
        import contextlib
        from torch.cuda.amp import autocast

        context = autocast if args.amp else contextlib.nullcontext
        with context():
            pass
        """,
        "not all its calls are known",
    )


def test_one_unknown_use_keeps_the_others_too(check_noop: Check) -> None:
    check_noop(
        """
        from functools import partial
        import torch

        make = partial(torch.cuda.amp.GradScaler, enabled=True)
        scaler = torch.cuda.amp.GradScaler()
        """,
        "not all its calls are known",
    )


def test_subclassed(check_noop: Check) -> None:
    check_noop(
        """
        import torch

        class Scaler(torch.cuda.amp.GradScaler):
            def __init__(self):
                super().__init__(2.0**10)
        """,
        "not all its calls are known",
    )


def test_unpacked_arguments(check_noop: Check) -> None:
    check_noop(
        """
        import torch

        with torch.cuda.amp.autocast(*settings):
            pass
        """,
        "passed by `*`",
    )


def test_star_import(check_noop: Check) -> None:
    check_noop(
        """
        from torch.cuda.amp import *

        scaler = GradScaler()
        """,
        "star import",
    )


def test_either_module(check_noop: Check) -> None:
    check_noop(
        """
        try:
            from torch.amp import GradScaler
        except ImportError:
            from torch.cuda.amp import GradScaler

        scaler = GradScaler(enabled=False)
        """,
        "not all its calls are known",
    )


KEPT = {
    "class of the project for old releases": (
        """
        import torch

        try:
            autocast = torch.cuda.amp.autocast
        except AttributeError:
            class autocast:
                def __init__(self, enabled):
                    pass

        with autocast(enabled=True):
            pass
        """,
        "not all its calls are known",
    ),
    "context that does nothing for old releases": (
        """
        import torch

        if torch.__version__ >= "1.6":
            from torch.cuda.amp import autocast
        else:
            from contextlib import nullcontext as autocast
        with autocast():
            pass
        """,
        "not all its calls are known",
    ),
    "another library first": (
        """
        try:
            from torch_xla.amp import GradScaler
        except ImportError:
            from torch.cuda.amp import GradScaler
        scaler = GradScaler()
        """,
        "not all its calls are known",
    ),
    "module that may be missing": (
        """
        try:
            from torch.cuda import amp
        except ImportError:
            amp = None
        if amp is not None:
            scaler = amp.GradScaler()
        """,
        "not all its calls are known",
    ),
    "default of a parameter": (
        """
        import torch

        def step(make=torch.cuda.amp.GradScaler):
            return make()
        """,
        "not all its calls are known",
    ),
    "table of classes": (
        """
        import torch

        tools = {"scaler": torch.cuda.amp.GradScaler}
        scaler = tools["scaler"]()
        """,
        "not all its calls are known",
    ),
    "class attribute, another in a subclass": (
        """
        import torch

        class Trainer:
            scaler_class = torch.cuda.amp.GradScaler
            def __init__(self):
                self.scaler = self.scaler_class()

        class Quiet(Trainer):
            scaler_class = object

        Trainer(), Quiet()
        """,
        "not all its calls are known",
    ),
    "rebound in a branch": (
        """
        import torch
        from torch.cuda.amp import autocast

        if args.full:
            autocast = torch.no_grad
        with autocast():
            pass
        """,
        "not all its calls are known",
    ),
    "replaced": (
        """
        import torch
        from mine import autocast

        torch.cuda.amp.autocast = autocast
        with torch.cuda.amp.autocast():
            pass
        """,
        "the script puts something else in its place",
    ),
    "replaced by name": (
        """
        import torch
        from unittest import mock

        with mock.patch("torch.cuda.amp.GradScaler"):
            scaler = torch.cuda.amp.GradScaler()
        """,
        "it is handed on by name here",
    ),
    "only compared with": (
        """
        import torch

        def is_scaler(x):
            return isinstance(x, torch.cuda.amp.GradScaler)
        """,
        "nothing here calls it, and only a call warns",
    ),
    "arguments handed through": (
        """
        from torch.cuda.amp import autocast

        def half(*arguments):
            return autocast(*arguments)
        """,
        "passed by `*`",
    ),
    "handed to map": (
        """
        import torch

        forwards = list(map(torch.cuda.amp.custom_fwd, forwards))
        """,
        "not all its calls are known",
    ),
}


@pytest.mark.parametrize(("source", "reason"), KEPT.values(), ids=KEPT)
def test_kept(check_noop: Check, source: str, reason: str) -> None:
    check_noop(source, reason)


@pytest.mark.parametrize(
    "source",
    [
        'import torch\nscaler = getattr(torch.cuda.amp, "GradScaler")()\n',
        'from torch.cuda.amp import autocast\n\n__all__ = ["autocast"]\n',
        "from torch.cuda.amp.common import amp_definitely_not_available as off\nprint(off())\n",
    ],
    ids=["looked up by name", "handed on by the file", "has no successor"],
)
def test_not_concerned(check_noop: Check, source: str) -> None:
    check_noop(source)


def test_names_in_strings_and_comments(check_noop: Check) -> None:
    check_noop(
        """
        # torch.cuda.amp.autocast() would do here
        note = "torch.cuda.amp.GradScaler()"
        """
    )


@pytest.mark.torch
def test_new_names_are_what_the_old_ones_were() -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old_scaler = torch.cuda.amp.GradScaler(2.0**10, enabled=False)
        old = torch.cuda.amp.autocast(False)
    new_scaler = torch.amp.GradScaler("cuda", 2.0**10, enabled=False)
    new = torch.amp.autocast("cuda", enabled=False)
    assert isinstance(old_scaler, torch.amp.GradScaler)
    assert old_scaler.state_dict() == new_scaler.state_dict()
    for name in ("device", "fast_dtype", "_enabled", "_cache_enabled"):
        assert getattr(old, name) == getattr(new, name)


@pytest.mark.parametrize(
    "code",
    [
        'scaler = torch.amp.GradScaler("cuda") if new else torch.cuda.amp.GradScaler()',
        'if new:\n    scaler = torch.amp.GradScaler("cuda")\nelse:\n    scaler = torch.cuda.amp.GradScaler()',
        'try:\n    scaler = torch.amp.GradScaler("cuda")\nexcept AttributeError:\n    scaler = torch.cuda.amp.GradScaler()',
        "def make():\n    if new:\n        return torch.amp.GradScaler('cuda')\n    return torch.cuda.amp.GradScaler()",
    ],
)
def test_scripts_that_choose_by_themselves(check_noop: Check, code: str) -> None:
    start = "import torch\n\nnew = hasattr(torch.amp, 'GradScaler')\n"
    check_noop(start + code, reason="takes `torch.amp.GradScaler` itself where there is one")


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_both_names_side_by_side(check_transformed: Check, guard: str) -> None:
    before = (
        f'{guard}a = torch.amp.GradScaler("cuda")\n'
        f"{guard and '    '}b = torch.cuda.amp.GradScaler()\n"
    )
    after = before.replace("torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cuda")')
    check_transformed(f"import torch\n\n{before}", f"import torch\n\n{after}")
