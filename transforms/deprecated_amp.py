"""Replaces ``torch.cuda.amp`` and ``torch.cpu.amp`` by ``torch.amp``, which names the device.

``torch.cuda.amp.autocast(...)``, ``GradScaler(...)``, ``custom_fwd`` and ``custom_bwd`` are deprecated since PyTorch
2.4 and print a FutureWarning every time they are made; ``torch.amp.autocast("cuda", ...)`` and its siblings are what
the old names call themselves, so the numbers of a run stay the same, on machines without a GPU too.

Imports move with the names: ``from torch.cuda.amp import autocast, GradScaler`` becomes
``from torch.amp import autocast, GradScaler``. Arguments that were passed by position are named where their place
changes (``autocast(use_amp)`` becomes ``autocast("cuda", enabled=use_amp)``). Where the script also uses another
half-precision type, the old default is written out: ``torch.cuda.amp.autocast()`` always meant float16, while
``torch.amp.autocast("cuda")`` takes over the type of the region around it.

Not when a name is handed around as a value, subclassed, replaced by something else, or passed ``*arguments``: its calls
cannot all be seen then, and nothing of that name changes anywhere. Nor where the script chooses between both by
itself, as those do that run with old versions, too. ``torch.amp.GradScaler`` needs PyTorch 2.3, ``torch.amp.custom_fwd`` 2.4.

Source: https://docs.pytorch.org/docs/stable/amp.html and https://github.com/pytorch/pytorch/releases/tag/v2.4.0
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import ClassVar

from ..optimizer.analysis.calls.signatures import call_argument
from ..optimizer.analysis.editing.references import quoted, reference
from ..optimizer.analysis.precision.amp_names import (
    DEVICE_AMP_NAMES,
    AmpReference,
    AmpUse,
    Reach,
    amp_imports,
    find_amp_references,
)
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.values.values import Literal
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, ReplaceExpression, ReplaceStatement
from .base import Change, Example, Skip, Stage, Transform

_SINCE = {"autocast": (1, 10), "GradScaler": (2, 3), "custom_fwd": (2, 4), "custom_bwd": (2, 4)}
"""The first PyTorch release whose ``torch.amp`` has the name."""
_AUTOCAST_PARAMETERS = ("enabled", "dtype", "cache_enabled")


class DeprecatedAmp(Transform):
    name: ClassVar[str] = "deprecated-amp"
    tier: ClassVar[Tier] = Tier.EXACT
    stage: ClassVar[Stage] = Stage.PRECISION
    rank: ClassVar[int] = -10
    example: ClassVar[Example] = Example(
        before="""
            import torch
            from torch.cuda.amp import autocast, GradScaler

            scaler = GradScaler()
            for images, labels in loader:
                with autocast():
                    loss = criterion(model(images), labels)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        after="""
            import torch
            from torch.amp import autocast, GradScaler

            scaler = GradScaler("cuda")
            for images, labels in loader:
                with autocast("cuda"):
                    loss = criterion(model(images), labels)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        references = find_amp_references(script.resolver)
        called = {u.name for u in references if u.use in {AmpUse.CALLED, AmpUse.DECORATES}}
        kept: set[str] = set()
        for used in references:
            problem = _problem(script, used, options)
            if problem is None and used.name not in called:
                problem = f"`{used.name}` kept: nothing here calls it, and only a call warns"
            if problem is not None:
                kept.add(used.name)
                yield self.skip(used.path, used.span, problem)
        movable = [used for used in references if used.name not in kept]
        dtype_varies = _dtype_varies(script)
        for group in _groups(movable):
            names = sorted({used.name for used in group})
            yield self.change(
                group[0].path,
                group[0].span,
                f"{' and '.join(f'`{name}`' for name in names)} replaced by `torch.amp`",
                "the deprecated name calls the new one with the device filled in; all its uses are known",
                tuple(_edits(script, group, kept, dtype_varies)),
            )


def _may_be_missing(script: TrainingScript, used: AmpReference) -> bool:
    """Whether the module ``amp`` is None for want of it: ``except ImportError: amp = None``."""
    owner = used.node.value if isinstance(used.node, ast.Attribute) else None
    if owner is None or used.imported_by is None:
        return False
    values = script.resolver.values(owner, used.module)
    return any(isinstance(value, Literal) and value.value is None for value in values)


def _problem(script: TrainingScript, used: AmpReference, options: Options) -> str | None:
    last = used.name.rpartition(".")[2]
    if options.torch_version < _SINCE[last]:
        major, minor = _SINCE[last]
        return f"`{used.name}` kept: torch.amp.{last} needs PyTorch {major}.{minor}"
    if used.use is AmpUse.REPLACED:
        return f"`{used.name}` kept: the script puts something else in its place"
    if used.use is AmpUse.BY_NAME:
        return f"`{used.name}` kept: not all its calls are known, it is handed on by name here"
    if used.use is AmpUse.OTHER:
        return f"`{used.name}` kept: not all its calls are known, it is handed on as a value here"
    if used.reach is Reach.SPELLED and isinstance(used.node, ast.Name):
        return f"`{used.name}` kept: it comes from a star import"
    if _may_be_missing(script, used):
        return f"`{used.name}` kept: not all its calls are known, its module may be missing here"
    call = used.module.parents[used.node]
    if isinstance(call, ast.Call) and any(isinstance(a, ast.Starred) for a in call.args):
        return f"`{used.name}` kept: its arguments are passed by `*`"
    if _is_fallback(script, used):
        return f"`{used.name}` kept: the script takes `torch.amp.{last}` itself where there is one"
    return None


def _is_fallback(script: TrainingScript, used: AmpReference) -> bool:
    """Whether the code around chooses between the deprecated name and the new one."""
    module, new = used.module, f"torch.amp.{used.name.rpartition('.')[2]}"
    function = module.function(used.node)
    news = [
        node
        for kind in (ast.Attribute, ast.Name)
        for node in module.nodes_of(kind)
        if module.function(node) is function and new in script.resolver.names(node, module)
    ]
    return bool(news) and any(_is_conditional(module, node) for node in (used.node, *news))


def _is_conditional(module: Module, node: ast.AST) -> bool:
    function = module.function(node)
    inside = takewhile(lambda ancestor: ancestor is not function, module.ancestors(node))
    return any(
        isinstance(ancestor, ast.If | ast.IfExp | ast.Try) and ancestor not in module.main_guards
        for ancestor in inside
    )


def _groups(references: Sequence[AmpReference]) -> list[list[AmpReference]]:
    """What must change together: all that is bound by imports of one file, or of all where one imports another's."""
    shared = any(used.reach is Reach.FOREIGN for used in references)
    groups: dict[object, list[AmpReference]] = {}
    for used in references:
        is_alias = isinstance(used.module.parents[used.node], ast.Assign)
        key = used.node if used.reach is Reach.SPELLED and not is_alias else used.module
        groups.setdefault(None if shared else key, []).append(used)
    return list(groups.values())


def _dtype_varies(script: TrainingScript) -> bool:
    """Whether a region may stand in one of another type than float16, the default of CUDA regions."""
    texts = [module.source.text for module in script.modules]
    return any("bfloat16" in text or "set_autocast" in text for text in texts)


def _edits(
    script: TrainingScript, group: Sequence[AmpReference], kept: set[str], dtype_varies: bool
) -> Iterator[FileEdit]:
    imports = {used.imported_by: used.module for used in group if used.imported_by is not None}
    if any(used.reach is Reach.FOREIGN for used in group):
        imports |= {node: module for module in script.modules for node in amp_imports(module)}
    moved: dict[ast.stmt, str | None] = {}
    for statement, module in imports.items():
        moved[statement] = code = _moved_import(module, statement, group, kept)
        if code is not None:
            yield FileEdit(module.path, ReplaceStatement(module.span(statement), code))
    for used in group:
        keeps_spelling = used.reach is not Reach.SPELLED and (
            used.imported_by is None or moved[used.imported_by] is not None
        )
        yield from _use_edits(used, keeps_spelling, dtype_varies)


def _use_edits(used: AmpReference, keeps_spelling: bool, dtype_varies: bool) -> Iterator[FileEdit]:
    module, last = used.module, used.name.rpartition(".")[2]
    function = module.code(used.node)
    if not keeps_spelling:
        spelling = reference(module, f"torch.amp.{last}")
        function = spelling.code
        yield from spelling.edits
    device = quoted(module, DEVICE_AMP_NAMES[used.name])
    call = module.parents[used.node]
    if used.use is AmpUse.CALLED and isinstance(call, ast.Call):
        code = function + _arguments(used, call, device, dtype_varies)
        yield FileEdit(used.path, ReplaceExpression(module.span(call), code))
    elif used.use is AmpUse.DECORATES and last.startswith("custom_"):
        code = f"{function}(device_type={device})"
        yield FileEdit(used.path, ReplaceExpression(used.span, code))
    elif not keeps_spelling:
        yield FileEdit(used.path, ReplaceExpression(used.span, function))


def _arguments(used: AmpReference, call: ast.Call, device: str, dtype_varies: bool) -> str:
    """The arguments of the call in their brackets, laid out as they were, with the device."""
    module, last = used.module, used.name.rpartition(".")[2]
    first = f"device_type={device}" if last.startswith("custom_") else device
    if dtype_varies and used.name == "torch.cuda.amp.autocast" and _takes_default_dtype(call):
        first += f", dtype={reference(module, 'torch.float16').code}"
    if call.args and last != "GradScaler":
        return f"({', '.join([first, *_named(module, call, last)])})"
    written = module.code(call)[len(module.code(used.node)) :]
    inside = written[written.index("(") + 1 : -1]
    if not inside.strip():
        return f"({first})"
    gap = inside[: len(inside) - len(inside.lstrip())]
    return f"({gap}{first},{gap or ' '}{inside.lstrip()})"


def _named(module: Module, call: ast.Call, function: str) -> list[str]:
    """The arguments of a call with those passed by position named, in the order of the new signature."""
    parameters = _AUTOCAST_PARAMETERS if function == "autocast" else ("fwd",)
    given = dict(zip(parameters, map(module.code, call.args), strict=False))
    if given.get("enabled") == "True":  # `autocast(True)`: it is the default
        del given["enabled"]
    given |= {k.arg: module.code(k.value) for k in call.keywords if k.arg}
    ordered = sorted(given, key=lambda name: name != "dtype")
    unpacked = [f"**{module.code(k.value)}" for k in call.keywords if k.arg is None]
    return [f"{name}={given[name]}" for name in ordered] + unpacked


def _takes_default_dtype(call: ast.Call) -> bool:
    enabled = call_argument(call, "enabled", 0)
    is_off = isinstance(enabled, ast.Constant) and enabled.value is False
    is_hidden = any(keyword.arg is None for keyword in call.keywords)
    return not (is_off or is_hidden or call_argument(call, "dtype", 1))


def _moved_import(
    module: Module,
    statement: ast.Import | ast.ImportFrom,
    group: Sequence[AmpReference],
    kept: set[str],
) -> str | None:
    """The statement with what it binds taken from ``torch.amp``; None when something bound by it must stay."""
    source = statement.module or "" if isinstance(statement, ast.ImportFrom) else None
    if source is None or source in {"torch.cuda", "torch.cpu"}:
        # The module itself is imported: it can move only with everything that is reached through it.
        moved = {_first_name(used.node) for used in group}
        names = {a.asname or a.name for a in statement.names if a.name.endswith("amp")}
        uses = {n for n in module.nodes if isinstance(n, ast.Name) and n.id in names}
        if "torch" in names or not uses <= moved:
            return None
        return module.code(statement).replace(".cuda", "", 1).replace(".cpu", "", 1)
    device_module = ".".join(source.split(".")[:3])
    movable = DEVICE_AMP_NAMES.keys() - kept
    moves = [alias for alias in statement.names if f"{device_module}.{alias.name}" in movable]
    stays = [alias for alias in statement.names if alias not in moves]
    if not stays and source == device_module:
        return module.code(statement).replace(source, "torch.amp", 1)
    parts = (("torch.amp", moves), (source, stays))
    return "\n".join(
        f"from {origin} import {', '.join(module.code(alias) for alias in names)}"
        for origin, names in parts
        if names
    )


def _first_name(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node
