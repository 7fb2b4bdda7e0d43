"""Takes a profiler that was left in the training loop out of it: a few steps are measured, not every one.

Starting and stopping `torch.profiler.profile` takes longer than most training steps, and it records every operation in
between. Inside the loop that is paid, and a table printed, in every step. The profiler moves above the loop and gets a
schedule: it skips a step, warms up for one, measures three and then stays out of the way. What was printed or saved after
each step is printed or saved once, from those three steps; they are measured as a whole, data loading included.

`torch.autograd.profiler.profile`, which knows no schedules, becomes `torch.profiler.profile`.

A forward pass that runs only to be measured, its result unused, stays: BatchNorm updates its running statistics in it and
dropout draws random numbers, so that without it evaluation and later steps come out differently. With
`--tier semantic` it is removed, and the profiler with it.

Left alone: profilers that run only in some steps; that have a schedule; whose measurements are used for more than a table
or a trace; loops that return from the inside. Anomaly detection and `emit_nvtx`, which slow down every step too, are
reported: they are there to find something, and only you know whether it has been found.

Source: https://docs.pytorch.org/docs/stable/profiler.html and
https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html#using-profiler-to-analyze-long-running-jobs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from textwrap import dedent, indent

from ..optimizer.analysis.editing.free_names import free_name
from ..optimizer.analysis.editing.imports import orphaned_imports
from ..optimizer.analysis.editing.references import Reference, reference
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.program.trees import walk
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.profiling import AUTOGRAD_PROFILER, StepProfile
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import (
    AddImport,
    FileEdit,
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceStatement,
)
from .base import Change, Example, Skip, Stage, StepPart, Transform

_SCHEDULE = "(wait=1, warmup=1, active=3, repeat=1)"
_COMMON_ARGUMENTS = frozenset(
    {"record_shapes", "with_flops", "profile_memory", "with_stack", "with_modules"}
)
_IMPORTS = frozenset(
    f"torch.profiler.{name}" for name in ("profile", "record_function", "ProfilerActivity")
) | {"torch.profiler", AUTOGRAD_PROFILER, "torch.autograd.profiler"}
_LOST = (
    "nothing uses its result; but where the network has BatchNorm its running statistics are updated once per step "
    "instead of twice, and where it draws random numbers later draws are others"
)


class HotLoopProfiler(Transform):
    name = "hot-loop-profiler"
    tier = Tier.EXACT
    stage = Stage.DEVICE
    rank = -1
    relieves = StepPart.SCRIPT
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.profiler import ProfilerActivity, profile

            for images, labels in loader:
                with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
                    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(prof.key_averages().table(row_limit=10))
        """,
        after="""\
            import torch
            from torch import nn
            from torch.profiler import ProfilerActivity, profile, schedule

            prof = profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
                schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
                on_trace_ready=lambda prof: print(prof.key_averages().table(row_limit=10)),
            )
            prof.start()
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                prof.step()
            prof.stop()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for profile in script.step_profiles:
            obstacle = profile.obstacle
            if obstacle is None and profile.idle_forward and options.tier >= Tier.SEMANTIC:
                yield self._removed(script, profile)
                continue
            scheduled = obstacle or _scheduled(script, profile)
            if isinstance(scheduled, str):
                message = f"profiles inside of a loop over steps; left there: {scheduled}"
                yield self.skip(profile.path, profile.span, message)
            else:
                yield self.change(
                    profile.path,
                    profile.span,
                    f"profiles three steps instead of every step{_kept(profile)}",
                    "a profiler only looks on; what was printed or saved in every step is so once",
                    scheduled,
                )
        for aid in script.debugging_aids:
            message = f"`{aid.excerpt}` {aid.effect}, in every step; remove it when you have found what you look for"
            yield self.skip(aid.path, aid.span, message)

    def _removed(self, script: TrainingScript, profile: StepProfile) -> Change:
        module = profile.module
        gone = [profile.node, *profile.reports]
        edits = tuple(FileEdit(module.path, RemoveStatement(module.span(s))) for s in gone)
        assert profile.idle_forward is not None
        call = module.code(profile.idle_forward)
        change = self.change(
            profile.path,
            profile.span,
            f"profiler removed, and `{call}`, which ran in every step only to be measured",
            _LOST,
            (*edits, *orphaned_imports(script.project, module, gone, _IMPORTS)),
        )
        return replace(change, tier=Tier.SEMANTIC)


def _kept(profile: StepProfile) -> str:
    if profile.idle_forward is None:
        return ""
    call = profile.module.code(profile.idle_forward)
    return (
        f"; `{call}`, which runs only to be measured, stays: in training mode it may update running statistics and "
        "draw random numbers (`--tier semantic` removes it)"
    )


def _scheduled(script: TrainingScript, profile: StepProfile) -> tuple[FileEdit, ...] | str:
    """The edits that measure a few steps only, or why that cannot be."""
    module = profile.module
    body = _body(module, profile.node, profile.call)
    if body is None:
        return "the code it measures holds a string of several lines"
    arguments = _arguments(profile)
    if isinstance(arguments, str):
        return arguments
    name = profile.name or free_name(module, ("prof", "profiler", "step_profiler"))
    if name is None:
        return "no name is free for it"
    if profile.reports and any(k.arg == "on_trace_ready" for k in profile.call.keywords):
        return "it reports in two ways, by `on_trace_ready` and below"
    schedule = _from_profiler(module, "schedule")
    code, edits = _constructor(profile)
    above, handler = _handler(profile, name)
    arguments += [f"schedule={schedule.code}{_SCHEDULE}", *handler]
    made = f"{name} = {code}({', '.join(arguments)})"
    start = "\n".join([*above, made, f"{name}.start()"])
    loop, step = module.span(profile.loop.node), f"{name}.step()"
    reports = [module.span(report) for report in profile.reports]
    if not reports:
        body += f"\n{step}"
    old = [profile.call.func] if profile.library_name == AUTOGRAD_PROFILER else []
    return (
        *edits,
        *schedule.edits,
        *orphaned_imports(script.project, module, old, _IMPORTS),
        FileEdit(module.path, InsertBefore(loop, start)),
        FileEdit(module.path, ReplaceStatement(profile.span, body)),
        *(FileEdit(module.path, RemoveStatement(report)) for report in reports[1:]),
        *(FileEdit(module.path, ReplaceStatement(report, step)) for report in reports[:1]),
        FileEdit(module.path, InsertAfter(loop, f"{name}.stop()")),
    )


def _body(module: Module, node: ast.With, call: ast.Call) -> str | None:
    """The code of ``node`` without the profiler around it; None when it cannot be indented anew."""
    for inner in (n for statement in node.body for n in walk(statement)):
        is_text = isinstance(inner, ast.JoinedStr) or (
            isinstance(inner, ast.Constant) and isinstance(inner.value, str | bytes)
        )
        if is_text and module.span(inner).end_line > module.span(inner).line:
            return None
    first, last = module.span(node.body[0]), module.span(node.body[-1])
    if first.line == module.span(node).line:
        code = module.code(node.body[0])
    else:
        start = first.line
        while module.lines[start - 2].lstrip().startswith("#"):
            start -= 1
        code = dedent("\n".join(module.lines[start - 1 : last.end_line]))
    others = [_item(module, item) for item in node.items if item.context_expr is not call]
    return f"with {', '.join(others)}:\n{indent(code, '    ')}" if others else code


def _item(module: Module, item: ast.withitem) -> str:
    code = module.code(item.context_expr)
    return f"{code} as {module.code(item.optional_vars)}" if item.optional_vars else code


def _arguments(profile: StepProfile) -> list[str] | str:
    """What the profiler is made with, as arguments of ``torch.profiler.profile``."""
    module, call = profile.module, profile.call
    if profile.library_name != AUTOGRAD_PROFILER:
        return [module.code(keyword) for keyword in call.keywords]
    activities = ["CPU"]
    kept: list[str] = []
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg in _COMMON_ARGUMENTS:
            kept.append(module.code(keyword))
        elif keyword.arg == "use_cuda" and isinstance(value, ast.Constant):
            activities += ["CUDA"] if value.value else []
        elif keyword.arg == "use_device" and isinstance(value, ast.Constant):
            if value.value not in {None, "cuda"}:
                return f"`{module.code(keyword)}` has no counterpart in `torch.profiler.profile`"
            activities += ["CUDA"] if value.value else []
        else:
            return f"`{module.code(keyword)}` has no counterpart in `torch.profiler.profile`"
    if call.args:
        return f"`{module.code(call.args[0])}` has no counterpart in `torch.profiler.profile`"
    activity = _from_profiler(module, "ProfilerActivity").code
    return [f"activities=[{', '.join(f'{activity}.{a}' for a in activities)}]", *kept]


def _constructor(profile: StepProfile) -> tuple[str, tuple[FileEdit, ...]]:
    """How the new profiler is spelled, and the imports that takes."""
    module = profile.module
    if profile.library_name != AUTOGRAD_PROFILER:
        return module.code(profile.call.func), ()
    spelled = reference(module, "torch.profiler.profile")
    activity = _from_profiler(module, "ProfilerActivity")
    return spelled.code, (*spelled.edits, *activity.edits)


def _from_profiler(module: Module, name: str) -> Reference:
    """``name`` of ``torch.profiler``, imported beside what the file imports from there already."""
    known = reference(module, f"torch.profiler.{name}")
    imports_names = any(
        isinstance(statement, ast.ImportFrom)
        and statement.module == "torch.profiler"
        and statement.names[0].name != "*"
        for statement in module.tree.body
    )
    if "." not in known.code or not imports_names or free_name(module, (name,)) is None:
        return known
    return Reference(name, (FileEdit(module.path, AddImport("torch.profiler", name)),))


def _handler(profile: StepProfile, name: str) -> tuple[list[str], list[str]]:
    """The statements that define what is done when the steps have been measured, and the argument that names it."""
    reports = [profile.module.code(report) for report in profile.reports]
    if not reports:
        return [], []
    if len(reports) == 1:
        return [], [f"on_trace_ready=lambda {name}: {reports[0]}"]
    function = free_name(profile.module, ("report_profile", "on_trace_ready"))
    body = "\n".join(reports)
    if function is None or "\n" in "".join(reports):
        return [], [f"on_trace_ready=lambda {name}: ({', '.join(reports)})"]
    return [f"def {function}({name}):\n{indent(body, '    ')}\n"], [f"on_trace_ready={function}"]
