"""Whether code minds how the result of attention lies in memory.

A matrix product is contiguous. The fused kernels lay their result out as (batch, positions, heads, size), whatever its shape.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..loading.written_views import may_be_written
from ..program.name_uses import NameUses
from ..program.reaching import bindings_of, is_read
from ..program.syntax import Module, last_identifier
from ..program.trees import is_name, position, walk
from ..values.resolver import Resolver
from ..values.unpacking import written_part

_WANTS_CONTIGUOUS = frozenset(
    "view view_as as_strided is_contiguous stride data_ptr storage".split()
)
_REARRANGES = frozenset(
    "transpose permute swapaxes contiguous reshape flatten mT size shape dim ndim dtype device mean sum".split()
)
_DEEPEST = 3


def layout_objection(
    resolver: Resolver, product: ast.expr, module: Module, uses: NameUses
) -> str | None:
    """Why the result of ``product`` has to be contiguous, None where nothing asks for that."""
    return _Layout(resolver, uses).objection(product, module, _DEEPEST)


def changed_in_place(
    resolver: Resolver, product: ast.expr, operands: Iterable[ast.expr], module: Module
) -> str | None:
    """What of the result and the operands is written to behind ``product``, None where nothing is.

    The fused operation keeps them for its backward pass. What is a copy of the result where that is contiguous, such as
    ``y.transpose(1, 2).reshape(..)``, is a view of its own.
    """
    places = [(product, module)]
    function = module.function(product)
    if function is not None and _is_returned(product, module):
        places += [(site.call, site.module) for site in resolver.call_sites(function)]
    if any(may_be_written(resolver, place, owner, inside=True) for place, owner in places):
        return "its result"
    end = module.span(product).end_line
    for operand in operands:
        if not isinstance(operand, ast.Name):
            continue
        below = [
            use
            for use in module.names_of(operand.id)
            if use.lineno > end and module.function(use) is function
        ]
        for use in below:
            bindings = {b.node for b in bindings_of(module, use)}
            is_same = bindings & {b.node for b in bindings_of(module, operand)}
            if is_same and may_be_written(resolver, use, module, inside=True):
                return f"`{operand.id}`"
    return None


def _is_returned(product: ast.expr, module: Module) -> bool:
    """Whether ``product`` is returned, as it is or by the variable it is assigned to."""
    statement = module.statement(product)
    if isinstance(statement, ast.Return):
        return True
    names = (
        {t.id for t in statement.targets if isinstance(t, ast.Name)}
        if isinstance(statement, ast.Assign)
        else set[str]()
    )
    function = module.function(product)
    return function is not None and any(
        isinstance(node, ast.Return) and any(is_name(n, name) for n in walk(node) for name in names)
        for node in walk(function)
    )


class _Layout:
    def __init__(self, resolver: Resolver, uses: NameUses) -> None:
        self._resolver = resolver
        self._uses = uses

    def objection(self, node: ast.expr, module: Module, depth: int) -> str | None:
        parent = module.parents[node]
        match parent:
            case ast.Attribute(attr=attr):
                if attr in _WANTS_CONTIGUOUS:
                    return f"`{module.code(parent)}` wants a result that is contiguous"
                return None if attr in _REARRANGES else self._later_view(node, module)
            case ast.Assign(targets):
                return self._assigned(targets, None, module, depth)
            case ast.Return():
                return self._returned(node, None, module, depth)
            case ast.Tuple() if isinstance(module.parents[parent], ast.Return):
                return self._returned(node, parent.elts.index(node), module, depth)
            case ast.Call() if last_identifier(parent.func) in _WANTS_CONTIGUOUS:
                return f"`{module.code(parent.func)}` wants a result that is contiguous"
            case ast.Call():
                return None if self._copies(parent, module) else self._later_view(node, module)
            case _:
                return self._later_view(node, module)

    def _assigned(
        self, targets: list[ast.expr], part: int | None, module: Module, depth: int
    ) -> str | None:
        for target in targets:
            if part is not None:
                target = written_part(target, (part,))
            if not isinstance(target, ast.Name):
                return "where its result goes is not seen"
            for use in self._reads(target, module):
                objection = self.objection(use, module, depth)
                if objection is not None:
                    return objection
        return None

    def _reads(self, target: ast.Name, module: Module) -> Iterator[ast.Name]:
        found = module.scope(target).lookup(target.id)
        bindings = found[1] if found is not None else bindings_of(module, target)
        for binding in bindings:
            if binding.node is target:
                for use in self._uses.of(binding, module):
                    if is_read(use, module):
                        yield use

    def _returned(self, node: ast.expr, part: int | None, module: Module, depth: int) -> str | None:
        function = module.function(node)
        sites = self._resolver.call_sites(function) if function is not None else ()
        if not sites or depth == 0:
            return "where its result goes is not seen"
        for site in sites:
            parent = site.module.parents[site.call]
            if part is None:
                objection = self.objection(site.call, site.module, depth - 1)
            elif isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
                is_it = parent.slice.value == part
                objection = self.objection(parent, site.module, depth - 1) if is_it else None
            elif isinstance(parent, ast.Assign):
                objection = self._assigned(parent.targets, part, site.module, depth - 1)
            else:
                objection = "where its result goes is not seen"
            if objection is not None:
                return objection
        return None

    def _copies(self, call: ast.Call, module: Module) -> bool:
        """Whether what ``call`` returns lies in memory as if its argument were contiguous, or does not share its layout."""
        names = self._resolver.names(call.func, module)
        if names and names <= {"einops.rearrange", "torch.cat", "torch.nn.functional.linear"}:
            return True
        return self._resolver.maker_names(call.func, module) == frozenset({"torch.nn.Linear"})

    def _later_view(self, node: ast.expr, module: Module) -> str | None:
        """Whether the code behind takes views of something, which may have the layout of the result."""
        function = module.function(node)
        for call in module.calls_named("view"):
            if module.function(call) is function and position(call) > position(node):
                return f"`{module.code(call.func)}` may want a result that is contiguous"
        return None
