"""``torch.compile(function)``: calls of a model that a compiled function makes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .patches import Patches

Call = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class CompiledCalls:
    """Has ``call(module, forward, args, kwargs)`` make those of them that are evaluations: they leave the graph for it.

    So does one that is to be one graph (``fullgraph=True``), once that was seen to be possible. Before anything of a
    function is compiled, ``starts`` hears of the models that it leads to: what they hold is what they start with.
    ``told``: whether a call of a module is being made that is told already, with all that is in it.
    """

    def __init__(self, call: Call, starts: Callable[[nn.Module], None]) -> None:
        self._call = call
        self._starts = starts
        self.told = False

    def install(self, patches: Patches) -> None:
        """Begin with functions that are compiled from now on. Imports Dynamo."""
        patches.wrap(torch, "compile", self._compile)
        # Of a method, PyTorch 2.4 can mark the function only; it takes compiled functions apart in ways of its own all the same.
        torch.compiler.disable(getattr(self._call, "__func__", self._call), recursive=False)

    def make(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a call while code is compiled; this is compiled, too."""
        if module.training or self.told:
            return forward(module, *args, **kwargs)
        return self._call(module, forward, args, kwargs)

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(model=None, *args, **kwargs):
            if model is None or isinstance(model, nn.Module):
                return original(model, *args, **kwargs)
            whole = None
            if kwargs.get("fullgraph"):
                whole = original(model, *args, **{**kwargs, "backend": _stop})
                kwargs = {**kwargs, "fullgraph": False}
            compiled = original(model, *args, **kwargs)
            seen = False

            @functools.wraps(compiled)
            def call(*inputs, **named):
                nonlocal seen
                if not seen and not torch.compiler.is_compiling():
                    for module in _modules(model, inputs, named):
                        self._starts(module)
                    if whole is not None:
                        self._trace(whole, inputs, named)
                    seen = True
                return compiled(*inputs, **named)

            return call

        return wrapper

    def _trace(self, whole: Callable[..., Any], inputs: Any, named: Any) -> None:
        """Fail where ``whole`` is no single graph, as it would; nothing of it is run."""
        from torch._dynamo.exc import BackendCompilerFailed

        outer, self.told = self.told, True
        try:
            whole(*inputs, **named)
        except BackendCompilerFailed as error:
            if not isinstance(error.__cause__ or error.inner_exception, _Traced):
                raise
        finally:
            self.told = outer


def _modules(function: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Iterator[nn.Module]:
    """The modules that ``function`` is given, is a method of, or reads from the variables around it."""
    held = [*inputs, *named.values(), getattr(function, "__self__", None)]
    code = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(code):
        variables = inspect.getclosurevars(code)
        held += [*variables.nonlocals.values(), *variables.globals.values()]
    for thing in held:
        if isinstance(thing, nn.Module):
            yield thing


class _Traced(Exception):
    """A function has turned out to be one graph."""


def _stop(graph: Any, inputs: Any, **_: Any) -> Any:
    """A backend that compiles nothing."""
    raise _Traced
