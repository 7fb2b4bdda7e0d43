"""Where a batch of images goes until it is copied to the device, and what looks at it before."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from ..devices.conditional_copies import ConditionalCopies, ConditionalCopy, are_fresh
from ..devices.placement import move_target
from ..editing.splice import spliced, without_keyword
from ..facts import DeviceKind, Fact, excerpt
from ..obstacles import Obstacle
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module
from ..values.object_flow import ObjectFlow, Steps, Use
from ..values.resolver import Resolver
from ..values.unpacking import written_part

_SIZES = frozenset("shape size dim ndim numel nelement device is_cuda".split())
_LEN = frozenset({"builtins.len"})
_RESHAPED = frozenset("view reshape flatten squeeze unsqueeze".split())
_VIEWS = _RESHAPED | {"contiguous", "detach"}


@dataclass(frozen=True, eq=False)
class ImageCopy(Fact):
    """The call that copies images to the device: ``images.to(device)``. ``is_view`` when they were reshaped before.

    ``under`` is the ``if`` that it is under, where images that stay on the host go on below that, too.
    """

    node: ast.Call
    source: ast.expr
    is_view: bool
    dtype: ast.keyword | None = None
    under: ConditionalCopy | None = None

    @property
    def copying(self) -> str:
        """The code that copies the bytes: without ``dtype=torch.float32``, which would convert them on the host."""
        pieces = [without_keyword(self.module, self.node, self.dtype)] if self.dtype else []
        return spliced(self.module, self.node, pieces)


class Refused(Exception):
    """Ends following a pipeline: images cannot stay bytes."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.message)
        self.obstacle = obstacle


def refuse(fact: Fact, message: str) -> NoReturn:
    """Ends following a pipeline because of ``fact``."""
    raise Refused(Obstacle(fact.module, fact.node, message))


class ImageFlow:
    """Follows the images of batches, which begin at expressions and loop targets.

    ``reshapes`` says whether they were seen to be reshaped anywhere before they are copied.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._flow = ObjectFlow(resolver, exact=True, ends=self._ends)
        self._conditional = ConditionalCopies(resolver)
        self._passing: dict[ConditionalCopy, list[Binding]] = {}
        self._pending: list[Use] = []
        self._views: set[ast.AST] = set()
        self.reshapes = False
        self.yielded: list[Use] = []
        """What generators hand on, whole, that is still to be followed."""

    def begin(self, node: ast.expr, module: Module, path: Steps) -> None:
        """``node`` holds images at ``path``."""
        self._pending += self._flow.follow(node, module, path)

    def begin_at_target(self, target: ast.expr, module: Module, path: Steps) -> None:
        """What is assigned to ``target`` holds images at ``path``."""
        self._pending += self._flow.follow_target(target, module, path)

    def mixed(self, others: Iterable[ImageFlow]) -> Iterator[Fact]:
        """Where a variable may hold something else than images that this or one of ``others`` follows."""
        return self._flow.mixed([other._flow for other in others])

    def again(self) -> Iterator[ConditionalCopy]:
        """The conditional copies that images may come to again, from below them."""
        return (copy for copy, found in self._passing.items() if not are_fresh(found, copy))

    def _ends(self, use: ast.Name, binding: Binding, module: Module) -> bool:
        """Whether ``use`` reads the images below a conditional copy, on whichever device they then are."""
        copy = self._conditional.above(use, binding, module)
        if copy is not None:
            self._passing.setdefault(copy, []).append(binding)
        return copy is not None

    def copies(self) -> Iterator[ImageCopy]:
        """The copies to the device; raises :class:`Refused` for any other use of the images' values."""
        while self._pending:
            use = self._pending.pop()
            attribute = use.parent
            if isinstance(attribute, ast.Yield):
                self.yielded.append(use)
                continue
            if not isinstance(attribute, ast.Attribute) or use.steps:
                self._refuse_unless_size(use)
                continue
            called = use.module.parents[attribute]
            call = called if isinstance(called, ast.Call) and called.func is attribute else None
            if attribute.attr in _SIZES:
                continue
            if attribute.attr in _VIEWS and call is not None:
                self.reshapes |= attribute.attr in _RESHAPED
                found = self._flow.follow(call, use.module)
                self._views.update(use.node for use in found)
                self._pending += found
            else:
                yield self._copy(use, attribute, call)

    def _refuse_unless_size(self, use: Use) -> None:
        call = use.argument_of
        if use.steps or isinstance(use.parent, ast.comprehension):
            refuse(use, f"what becomes of the images in `{around(use)}` could not be followed")
        if call is None or self._resolver.names(call.func, use.module) != _LEN:
            refuse(use, f"the host uses the images in `{around(use)}`{_unless(use)}")

    def _copy(self, use: Use, attribute: ast.Attribute, call: ast.Call | None) -> ImageCopy:
        code = excerpt(use.module, call or attribute)
        if call is not None and attribute.attr == "type":
            refuse(use, f"`{code}` converts before it copies")
        if call is None or attribute.attr not in {"to", "cuda"}:
            refuse(use, f"the host uses the images in `{code}`")
        keywords = {keyword.arg for keyword in call.keywords}
        dtype = next((keyword for keyword in call.keywords if keyword.arg == "dtype"), None)
        plain = (
            keywords <= {"device", "non_blocking", "dtype", "memory_format"} and len(call.args) <= 2
        )
        if len(call.args) == 2:
            plain = plain and isinstance(call.args[1], ast.Constant)
        if dtype is not None:
            names = self._resolver.names(dtype.value, use.module)
            plain = plain and bool(names) and names <= {"torch.float32", "torch.float"}
        target = move_target(self._resolver, call, use.module)
        if target not in {DeviceKind.CUDA, DeviceKind.CHOSEN} or not plain:
            refuse(use, f"`{code}` is not known to be a mere copy to a device")
        under = self._conditional.of_call(call, use.module)
        if under is not None:
            self._pending += self._flow.follow(call, use.module)
        return ImageCopy(use.module, call, use.node, use.node in self._views, dtype, under)


def _unless(use: Use) -> str:
    """`` unless `use_cuda```, where an ``if`` above copies the images to the device."""
    module = use.module
    found = module.scope(use.node).lookup(use.node.id) if isinstance(use.node, ast.Name) else None
    for binding in found[1] if found else ():
        test = module.parents[module.statement(binding.node)]
        if (
            isinstance(test, ast.If)
            and not test.orelse
            and test.lineno < use.node.lineno
            and _is_copy(binding.source)
        ):
            return f" unless `{module.code(test.test)}`"
    return ""


def _is_copy(source: object) -> bool:
    match source:
        case Assigned(value, path):
            match written_part(value, path):
                case ast.Call(ast.Attribute(attr="cuda" | "to")):
                    return True
                case _:
                    return False
        case _:
            return False


def around(use: Use) -> str:
    """The code around a use, in short: the call it is an argument of, the attribute read, the statement."""
    parent = use.parent
    if isinstance(parent, ast.Attribute):
        called = use.module.parents[parent]
        parent = called if isinstance(called, ast.Call) else parent
    if isinstance(parent, ast.expr | ast.stmt):
        return excerpt(use.module, parent)
    return excerpt(use.module, use.module.statement(use.node))
