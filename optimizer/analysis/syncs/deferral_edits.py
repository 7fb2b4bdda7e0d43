"""The edits that keep the numbers of a loop on the device until they are looked at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...rewriting.edits import Edit, FileEdit, InsertAfter, InsertBefore, ReplaceExpression
from ..autograd.grad_modes import suspended_around
from ..editing.replacing import replacement
from ..editing.splice import bounds
from ..program.project import Project
from ..program.syntax import Module
from ..tensors.tensor_kinds import TensorKind
from ..values.resolver import Resolver
from .conversions import Conversion, Where
from .deferral_plan import LoopPlan
from .deferred import Deferred
from .deferred_meters import DeferredMeter
from .device_reads import DeviceRead
from .returned_reads import annotation_edits

_MPS = re.compile(r"\bmps\b|current_accelerator|\bAccelerator\(")
"""How a script comes to Apple's device: by name, or by what takes whichever there is, as Accelerate's ``PartialState`` does."""
_PRIMARY = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def has_double(project: Project) -> bool:
    """Whether every device the script may choose has float64; Apple's has not."""
    return not any(module.search(_MPS) for module in project.modules)


def deferral_edits(
    resolver: Resolver, variable: Deferred, conversions: tuple[Conversion, ...]
) -> Iterator[FileEdit]:
    """The edits in its loop that make ``variable`` hold tensors, and numbers where it is looked at."""
    for read in variable.reads:
        if read.within is None:
            form = _Form(variable.keeps(read), variable.is_integer)
            yield _read_edit(resolver, read, form)
    yield from _widening_edits(resolver, variable)
    for edit in _conversion_edits(variable, conversions):
        yield FileEdit(variable.path, edit)


def _conversion_edits(variable: Deferred, conversions: tuple[Conversion, ...]) -> Iterator[Edit]:
    module = variable.module
    converter = "int" if variable.is_integer else "float"
    number = f"{converter}({variable.name})"
    if variable.is_list:
        read = "value.cpu().numpy()" if variable.holds_arrays else "value.item()"
        element = f"{converter}(value)" if variable.has_numbers else read
        number = f"[{element} for value in {variable.name}]"
    statement = f"{variable.name} = {number}"
    for conversion in conversions:
        span = module.span(conversion.node)
        if conversion.where is Where.IN_PLACE:
            yield ReplaceExpression(span, number)
        elif conversion.where is Where.BEFORE:
            yield InsertBefore(span, statement)
        else:
            yield InsertAfter(span, statement)


def meter_edits(resolver: Resolver, meter: DeferredMeter) -> Iterator[FileEdit]:
    """The edits that give ``meter`` tensors, and make its figures numbers where they are looked at."""
    module = meter.module
    for read in meter.reads:
        if read.within is None:
            yield _read_edit(resolver, read, _Form())
    yield from _widening_edits(resolver, meter)
    for figure in meter.figures:
        code = f"float({module.code(figure)})"
        yield FileEdit(meter.path, ReplaceExpression(module.span(figure), code))


def _widening_edits(resolver: Resolver, kept: Deferred | DeferredMeter) -> Iterator[FileEdit]:
    for use in kept.widened:
        code = f"{use.id}{_widening(resolver)}"
        yield replacement(kept.module, use, code)


def function_edits(resolver: Resolver, plans: Iterable[LoopPlan]) -> Iterator[FileEdit]:
    """The edits that make the script's own functions give back tensors to the loops of ``plans``."""
    forms: dict[DeviceRead, list[_Form]] = {}
    for plan in plans:
        for variable, _ in plan.deferred:
            for read in variable.reads:
                form = _Form(variable.keeps(read), variable.is_integer)
                forms.setdefault(read.source, []).append(form)
        for meter in plan.meters:
            for read in meter.reads:
                forms.setdefault(read.source, []).append(_Form())
    own = {read.within for plan in plans for read in plan.reads if read.within is not None}
    for source in sorted(own, key=lambda read: (str(read.path), read.span)):
        wanted = forms[source]
        form = _Form(all(each.is_element for each in wanted), wanted[0].is_integer)
        yield _read_edit(resolver, source, form)
        for annotation, tensor in annotation_edits(source):
            span = source.module.span(annotation)
            yield FileEdit(source.path, ReplaceExpression(span, tensor.code))
            yield from tensor.edits


@dataclass(frozen=True)
class _Form:
    """What a tensor is wanted as: an element of a list, an integer, or else something that is added up as Python's floats are."""

    is_element: bool = False
    is_integer: bool = False


def _read_edit(resolver: Resolver, read: DeviceRead, form: _Form) -> FileEdit:
    code = _on_device(resolver, read, form)
    return replacement(read.module, read.node, code)


def _on_device(resolver: Resolver, read: DeviceRead, form: _Form) -> str:
    """The tensor of ``read``, without its graph, in the precision in which Python would have added its number."""
    code = tensor_code(read)
    if read.kind is TensorKind.FLOAT and not suspended_around(resolver, read.node, read.module):
        code += ".detach()"
    if form.is_element or form.is_integer:
        return code
    return code + _widening(resolver)


def _widening(resolver: Resolver) -> str:
    """What makes a tensor as precise as Python's floats, or as near to that as every device comes."""
    return ".double()" if has_double(resolver.project) else ".float()"


def tensor_code(read: DeviceRead) -> str:
    """The code of the tensor that is read, without ``.item()`` and what else fetches it."""
    module = read.module
    wrapper = module.parents[read.tensor]
    if isinstance(wrapper, ast.Attribute):
        assert isinstance(read.node, ast.Call)
        argument = read.node if isinstance(read.node.func, ast.Attribute) else read.node.args[0]
        return _text(module, bounds(module, argument)[0], _dot(module, wrapper))
    code = module.code(read.tensor)
    return code if isinstance(read.tensor, _PRIMARY) else f"({code})"


def _dot(module: Module, attribute: ast.Attribute) -> int:
    """Where the text of ``attribute``'s value ends, with its parentheses."""
    text = "\n".join(module.lines)
    dot = bounds(module, attribute)[1] - len(attribute.attr)
    while text[dot] != ".":
        dot -= 1
    while text[dot - 1].isspace() or text[dot - 1] == "\\":
        dot -= 1
    return dot


def _text(module: Module, start: int, end: int) -> str:
    return "\n".join(module.lines)[start:end]
