"""Finds tensors that are made on the host and moved to a device at once: ``torch.randn(n).to(device)``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..editing.references import quoted
from ..facts import DeviceKind, Fact
from ..loading.written_views import may_be_written, places_of
from ..program.syntax import Module
from ..syncs.host_reads import deciding_read
from ..values.resolver import Resolver
from ..values.values import Literal, Option, Unknown
from .device_choices import IS_AVAILABLE, visible_devices
from .devices import device_kind
from .host_data import HostData
from .legacy_tensors import is_host_type, legacy_dtype
from .placement import on_gpu

_FILLS = frozenset("zeros ones empty full eye zeros_like ones_like empty_like full_like".split())
_DRAWS = frozenset("rand randn randint normal rand_like randn_like randint_like".split())
_OTHERS = frozenset("tensor arange linspace logspace randperm".split())
_FACTORIES = frozenset(f"torch.{name}" for name in _FILLS | _DRAWS | _OTHERS)
_LIKE = frozenset(name for name in _FACTORIES if name.endswith("_like"))
_DRAWING_METHODS = frozenset({"normal_", "uniform_", "random_", "bernoulli_", "exponential_"})
EXACT_METHODS = _DRAWING_METHODS | frozenset(
    "view reshape unsqueeze squeeze expand expand_as repeat transpose permute t contiguous clone detach flatten triu "
    "tril flip fill_ zero_ type long int float double half bfloat16 bool byte to cuda requires_grad_".split()
)
"""Methods that copy, cast or fill: the same bits come out on every device."""
_SHARING = frozenset({"expand", "expand_as"})
_COPYING = frozenset({"contiguous", "clone", "repeat"})
_EXPANDED = "`expand` lets elements share their memory, which moving them ends, and code behind it may rely on that"
EXACT_FUNCTIONS = frozenset(
    f"torch.{name}" for name in ("triu", "tril", "unsqueeze", "reshape", "flip")
)
VARIABLE = frozenset({"torch.autograd.Variable"})
_RNG_STATE = frozenset({"get_rng_state", "set_rng_state", "fork_rng"})


@dataclass(frozen=True, eq=False)
class Construction(Fact):
    """``node`` is the call that moves what ``factory`` makes; ``steps`` are the calls between them, inner first.

    ``device`` is the code of the device, ``dtype`` the one the move casts to. ``draws`` when the values are random.
    ``refusal`` says why it must stay on the host, None when it need not.
    """

    node: ast.Call
    factory: ast.Call
    steps: tuple[ast.Call, ...]
    device: str
    dtype: ast.expr | None
    draws: bool
    refusal: str | None

    @property
    def replaced(self) -> ast.Call:
        """``node``, with what moves its result to the same device again: ``x.type_as(y).to(y.device)``."""
        method = self.module.parents[self.node]
        again = self.module.parents[method]
        match again:
            case ast.Call(args=[given], keywords=[]) if (
                isinstance(method, ast.Attribute)
                and method.attr == "to"
                and self.module.code(given) == self.device
                and "#" not in self.module.code(again)
            ):
                return again
            case _:
                return self.node


def find_constructions(resolver: Resolver) -> tuple[Construction, ...]:
    """Every tensor made and moved in one expression, in source order per module."""
    finder = ConstructionFinder(resolver)
    return tuple(
        found
        for module in resolver.project.modules
        for call in module.calls
        if (found := finder.at(call, module)) is not None
    )


class ConstructionFinder:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._host = HostData(resolver)

    def at(self, move: ast.Call, module: Module) -> Construction | None:
        """The construction that ``move`` ends, None when it moves nothing that was just made."""
        if not isinstance(move.func, ast.Attribute) or _is_moved_again(move, module):
            return None
        chain = self.chain(move.func.value, module)
        if chain is None:
            return None
        factory, steps = chain
        target = self.target(move, module)
        if target is None or call_argument(factory, "device") is not None:
            return None
        device, dtype, refusal = target
        if self._is_made_there(factory, device, module):
            return None
        draws = self.draws(factory, steps, module)
        refusal = refusal or self.refusal(factory, steps, device, module)
        refusal = refusal or self.copy_refusal(steps, move, module)
        if refusal is None and draws:
            refusal = self.draw_refusal(move, module)
        return Construction(module, move, factory, steps, device, dtype, draws, refusal)

    def copy_refusal(
        self, steps: tuple[ast.Call, ...], move: ast.expr, module: Module
    ) -> str | None:
        """Why the result has to be the copy that ``move`` makes: what is expanded cannot be written to or viewed in any shape."""
        if not _is_expanded(steps):
            return None
        places = places_of(move, module)
        if places is not None and not any(
            may_be_written(self._resolver, place, module, inside=True)
            or getattr(module.parents[place], "attr", "") == "view"
            for place in places
        ):
            return None
        return _EXPANDED

    def chain(
        self, expression: ast.expr, module: Module
    ) -> tuple[ast.Call, tuple[ast.Call, ...]] | None:
        """The factory call that ``expression`` starts from, and the calls made on its result, inner first.

        None for ``zeros_like`` and its like where the result is on a GPU already, as what it is like is.
        """
        steps: list[ast.Call] = []
        while isinstance(expression, ast.Call):
            names = self._resolver.names(expression.func, module)
            if names and (names <= _FACTORIES or legacy_dtype(names) is not None):
                like = call_argument(expression, "input", 0) if names <= _LIKE else None
                if like is not None and on_gpu(self._resolver, like, module):
                    return None
                return expression, tuple(reversed(steps))
            steps.append(expression)
            if names and (names <= VARIABLE or names <= EXACT_FUNCTIONS):
                if not expression.args:
                    return None
                expression = expression.args[0]
            elif isinstance(expression.func, ast.Attribute) and not names:
                expression = expression.func.value
            else:
                return None
        return None

    def target(
        self, move: ast.Call, module: Module
    ) -> tuple[str, ast.expr | None, str | None] | None:
        """Where ``move`` moves to: the code of the device, the dtype it casts to, and what speaks against it."""
        assert isinstance(move.func, ast.Attribute)
        reordered = _MEMORY_FORMAT if call_argument(move, "memory_format") is not None else None
        if move.func.attr == "cuda":
            given = call_argument(move, "device", 0)
            if given is None:
                return self.cuda_device(move, module), None, reordered
            code = module.code(given)
            refusal = f"`{code}` may be None, which `.cuda` and `device=` understand differently"
            return code, None, refusal if self._may_be_none(given, module) else reordered
        if move.func.attr == "type_as" and len(move.args) == 1:
            like = move.args[0]
            if isinstance(like, ast.Attribute) and like.attr == "data":
                like = like.value
            if isinstance(like, ast.Name | ast.Attribute):
                return f"{module.code(like)}.device", like, None
        if move.func.attr != "to":
            return None
        given = call_argument(move, "device", 0)
        if given is None or self._is_dtype(given, module):
            return None
        kind = device_kind(self._resolver, given, module)
        code = module.code(given)
        if kind is DeviceKind.CPU:
            return None
        refusal = (
            None if kind is not DeviceKind.UNKNOWN else f"`{code}` could not be traced to a device"
        )
        return code, call_argument(move, "dtype", 1), refusal or reordered

    def elsewhere(self, factory: ast.Call, module: Module) -> str | None:
        """That ``factory`` makes its tensor where another is, which may be a GPU also where the script moves it to none."""
        if not self._resolver.names(factory.func, module) <= _LIKE:
            return None
        like = call_argument(factory, "input", 0)
        code = module.code(factory if like is None else like)
        return f"it is made where `{code}` is, which need not be the host"

    def _is_made_there(self, factory: ast.Call, device: str, module: Module) -> bool:
        """Whether ``zeros_like(x).to(x.device)`` is meant: ``x`` already says where its like is made."""
        if not self._resolver.names(factory.func, module) <= _LIKE:
            return False
        like = call_argument(factory, "input", 0)
        return like is not None and f"{module.code(like)}.device" == device

    def cuda_device(self, at: ast.AST, module: Module) -> str:
        """How ``.cuda()`` is written as a device where ``at`` stands: the script's own name for it, if there is one."""
        for name, choice in visible_devices(self._resolver, at, module):
            if choice.cuda == "cuda" and choice.condition in {None, IS_AVAILABLE}:
                return name
        return quoted(module, "cuda")

    def _is_dtype(self, given: ast.expr, module: Module) -> bool:
        names = self._resolver.names(given, module)
        return bool(names) and all(name.startswith("torch.") for name in names)

    def _may_be_none(self, given: ast.expr, module: Module) -> bool:
        if device_kind(self._resolver, given, module) is DeviceKind.UNKNOWN:
            return True
        return any(
            isinstance(value, Unknown)
            or (isinstance(value, Literal) and value.value is None)
            or (isinstance(value, Option) and _defaults_to_none(value))
            for value in self._resolver.values(given, module)
        )

    # What speaks against it

    def draws(self, factory: ast.Call, steps: tuple[ast.Call, ...], module: Module) -> bool:
        """Whether the values are random numbers."""
        return self.factory_name(factory, module) in _DRAWS or any(
            isinstance(step.func, ast.Attribute) and step.func.attr in _DRAWING_METHODS
            for step in steps
        )

    def factory_name(self, factory: ast.Call, module: Module) -> str:
        """The last part of the factory's name; ``FloatTensor`` and its like for legacy constructors."""
        name = next(iter(sorted(self._resolver.names(factory.func, module))))
        return name.rpartition(".")[2]

    def refusal(
        self, factory: ast.Call, steps: tuple[ast.Call, ...], device: str, module: Module
    ) -> str | None:
        """Why what ``factory`` and ``steps`` make cannot be made on ``device``."""
        return (
            self._refused_factory(factory, module)
            or next((why for s in steps if (why := self._refused_step(s, device, module))), None)
            or self.default_type(module)
        )

    def _refused_factory(self, factory: ast.Call, module: Module) -> str | None:
        name = self.factory_name(factory, module)
        keywords = {k.arg: k.value for k in factory.keywords}
        if None in keywords:
            return "arguments passed by `**` may name a device already"
        if "out" in keywords:
            return "`out=` says where the result goes"
        if not _is_constant(keywords.get("generator"), None):
            return "the generator it draws from belongs to the CPU"
        if not _is_constant(keywords.get("requires_grad"), False):
            return "`requires_grad=True` before the move makes the moved tensor no leaf; say which is meant"
        if name == "randperm":
            return "the permutation decides an order or a split, which stays the CPU generator's"
        if name in {"linspace", "logspace"} or (name == "arange" and self._rounds(factory, module)):
            said = "may count in" if name == "arange" else "makes"
            return f"`torch.{name}` {said} fractions, which the GPU rounds differently"
        if name == "normal" and not all(
            _is_number(call_argument(factory, keyword, position))
            for position, keyword in enumerate(("mean", "std"))
        ):
            return "`torch.normal` of tensors takes no device"
        if name == "tensor" and not (
            factory.args and self._host.is_no_tensor(factory.args[0], module)
        ):
            return "its argument may be a tensor already; `torch.tensor` of a tensor copies and detaches it"
        return None

    def _rounds(self, factory: ast.Call, module: Module) -> bool:
        """Whether ``arange`` may start or step by fractions; where it ends does not matter."""
        is_end = len(factory.args) == 1 and call_argument(factory, "end") is None
        start = call_argument(factory, "start", 0) if not is_end else None
        step = call_argument(factory, "step", 2)
        counting = [number for number in (start, step) if number is not None]
        return not all(self._host.is_int(number, module) for number in counting)

    def _refused_step(self, step: ast.Call, device: str, module: Module) -> str | None:
        names = self._resolver.names(step.func, module)
        is_method = not names and isinstance(step.func, ast.Attribute)
        if names <= VARIABLE and not is_method:
            requires = call_argument(step, "requires_grad", 1)
            return None if _is_constant(requires, False) else _NO_LEAF
        if not isinstance(step.func, ast.Attribute):
            return None
        method = step.func.attr
        if names:
            return None  # torch.triu and its like, or Variable through its module
        if method == "requires_grad_":
            return _NO_LEAF
        if any(k.arg == "generator" for k in step.keywords):
            return "the generator it draws from belongs to the CPU"
        if method == "type" and not self._is_type(call_argument(step, "dtype", 0), module):
            return f"`{module.code(step.func)}` may cast to a type of the host, which moves, too"
        if method not in EXACT_METHODS:
            return f"`.{method}` would run on the device instead, with other operands or other rounding"
        if method == "to" and self._may_come_back(step, device, module):
            return f"`.{method}({_arguments(step, module)})` may bring it back to the host"
        return None

    def _is_type(self, given: ast.expr | None, module: Module) -> bool:
        """Whether ``x.type(given)`` casts to a dtype that is seen, or to a tensor type that can be written as one."""
        if given is None or isinstance(given, ast.Constant):
            return True
        names = self._resolver.names(given, module)
        is_told = bool(names) and all(name.startswith("torch.") for name in names)
        is_legacy = any(name.endswith("Tensor") for name in names)
        return is_told and (not is_legacy or legacy_dtype(names) is not None)

    def _may_come_back(self, step: ast.Call, device: str, module: Module) -> bool:
        """Whether ``step`` may move elsewhere than to ``device``."""
        given = call_argument(step, "device", 0) or call_argument(step, "other")
        if given is None or (isinstance(given, ast.Attribute) and given.attr == "dtype"):
            return False
        if self._is_dtype(given, module):
            return any(map(is_host_type, self._resolver.names(given, module)))
        on_gpu = {DeviceKind.CUDA, DeviceKind.CHOSEN}
        return module.code(given) != device and (
            device_kind(self._resolver, given, module) not in on_gpu
        )

    def draw_refusal(self, move: ast.expr, module: Module) -> str | None:
        """Why the random numbers of ``move`` must go on coming from the CPU's generator."""
        read = deciding_read(self._resolver, move, module)
        if read is not None:
            where = module.place(read if hasattr(read, "lineno") else move)
            return f"the draw decides what happens at {where}; it stays the CPU generator's"
        parent = module.parents[move]
        if isinstance(parent, ast.Call) and self._resolver.names(parent.func, module) == frozenset(
            {"torch.nn.Parameter"}
        ):
            return "the initial weights stay those of the CPU generator"
        for other in self._resolver.project.modules:
            for call in other.calls:
                func = call.func
                if isinstance(func, ast.Attribute) and func.attr in _RNG_STATE:
                    return f"{other.place(call)} saves or restores the CPU generator"
        return None

    def default_type(self, module: Module) -> str | None:
        """The call that changes what kind of tensor is made when nothing is said."""
        for other in self._resolver.project.modules:
            for call in other.calls:
                func = call.func
                name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
                if name in {"set_default_tensor_type", "set_default_device"}:
                    return f"{other.place(call)} sets a default device"
        return None


_MEMORY_FORMAT = "the move also changes the memory format, which the factory does not take"
_NO_LEAF = "gradients are asked for before the move, which makes the moved tensor no leaf; say which is meant"


def _is_moved_again(move: ast.Call, module: Module) -> bool:
    """Whether the result is moved once more: then the later move counts."""
    parent = module.parents[move]
    return (
        isinstance(parent, ast.Attribute)
        and parent.attr in {"cuda", "to"}
        and isinstance(module.parents[parent], ast.Call)
        and isinstance(move.func, ast.Attribute)
        and move.func.attr == "cuda"
    )


def _is_constant(value: ast.expr | None, constant: object) -> bool:
    """Whether an argument is absent or this very constant."""
    return value is None or (isinstance(value, ast.Constant) and value.value is constant)


def _arguments(call: ast.Call, module: Module) -> str:
    return ", ".join(module.code(node) for node in (*call.args, *call.keywords))


def _is_number(value: ast.expr | None) -> bool:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _defaults_to_none(option: Option) -> bool:
    return option.default is None or (
        isinstance(option.default, ast.Constant) and option.default.value is None
    )


def _is_expanded(steps: tuple[ast.Call, ...]) -> bool:
    """Whether the last of ``steps`` that decide it gives a tensor whose elements share their memory: ``ones(1).expand(4)``."""
    methods = [step.func.attr for step in steps if isinstance(step.func, ast.Attribute)]
    made = [method for method in methods if method in _SHARING | _COPYING]
    return bool(made) and made[-1] in _SHARING
