"""What a script already says about PyTorch's process-wide settings for matrix products and convolutions.

Everything counts that may run, also in functions of the script's own file that no call is seen to: a setting that is not
understood is the user's decision all the same. What an imported file sets where it is started itself does not, nor what
stands in a function there that is named nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import never_runs
from ..facts import Fact
from ..program.syntax import Module
from ..program.trees import is_true
from ..values.resolver import Resolver
from ..values.unpacking import assigned_parts


class Topic(Enum):
    """What a setting is about."""

    MATMUL_PRECISION = "the precision of matrix products"
    CUDNN_BENCHMARK = "cuDNN's choice of algorithms"
    DETERMINISM = "determinism"


@dataclass(frozen=True, eq=False)
class BackendSetting(Fact):
    """A place that decides about ``topic``, by the attribute, function or variable ``name``."""

    topic: Topic
    name: str


_ATTRIBUTES = {
    "allow_tf32": Topic.MATMUL_PRECISION,
    "fp32_precision": Topic.MATMUL_PRECISION,
    "benchmark": Topic.CUDNN_BENCHMARK,
    "benchmark_limit": Topic.CUDNN_BENCHMARK,
    "deterministic": Topic.DETERMINISM,
}
_CALLS = {
    "set_float32_matmul_precision": Topic.MATMUL_PRECISION,
    "use_deterministic_algorithms": Topic.DETERMINISM,
    "set_deterministic": Topic.DETERMINISM,
    "set_deterministic_debug_mode": Topic.DETERMINISM,
    "enable_full_determinism": Topic.DETERMINISM,
}
_TEXTS = {
    "NVIDIA_TF32_OVERRIDE": Topic.MATMUL_PRECISION,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": Topic.MATMUL_PRECISION,
    "CUBLAS_WORKSPACE_CONFIG": Topic.DETERMINISM,
}
_WORDS = frozenset({*_ATTRIBUTES, *_CALLS, *_TEXTS, "cudnn"})
_MAY_BE_OFF = frozenset({Topic.DETERMINISM})
"""Topics of which a literal False decides nothing: that is how PyTorch starts."""


def find_backend_settings(resolver: Resolver) -> tuple[BackendSetting, ...]:
    """Every such place of the project, in source order per module."""
    found = [
        setting
        for module in resolver.project.modules
        if any(word in module.source.text for word in _WORDS)
        for node in module.nodes
        for setting in _settings(resolver, node, module)
        if not never_runs(resolver, node, module)
    ]
    switched = [setting for setting in found if _switches_on(setting)]
    return tuple(setting for setting in found if not _is_switched_back(setting, switched))


def _switches_on(setting: BackendSetting) -> bool:
    """Whether ``setting`` is ``benchmark = True``."""
    node = setting.node
    value = node.value if isinstance(node, ast.Assign) else None
    return setting.name == "benchmark" and is_true(value)


def _is_switched_back(setting: BackendSetting, switched: list[BackendSetting]) -> bool:
    """Whether ``benchmark = False`` only takes back, for a part of the script such as its evaluation, what another part set to True.

    Not where an ``if`` chooses between the two: one of its branches is for reproducible runs.
    """
    if setting.topic is not Topic.DETERMINISM or setting.name != "benchmark":
        return False
    return any(not _in_one_choice(setting, other) for other in switched)


def _in_one_choice(one: BackendSetting, other: BackendSetting) -> bool:
    if one.module is not other.module:
        return False
    around = {*one.module.ancestors(one.node)} & {*other.module.ancestors(other.node)}
    return any(isinstance(node, ast.If | ast.IfExp | ast.Match) for node in around)


def _settings(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[BackendSetting]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned(resolver, target, value, node, module)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _assigned(resolver, target, value, node, module)
        case ast.Call():
            yield from _called(resolver, node, module)
        case ast.Constant(value=str() as text) if text in _TEXTS:
            yield BackendSetting(module, node, _TEXTS[text], text)
        case _:
            pass


def _assigned(
    resolver: Resolver, target: ast.expr, value: ast.expr, node: ast.AST, module: Module
) -> Iterator[BackendSetting]:
    for part, given in assigned_parts(target, value):
        if not isinstance(part, ast.Attribute):
            continue
        topic = _ATTRIBUTES.get(part.attr)
        if part.attr == "enabled" and _is_cudnn(resolver, part.value, module):
            topic = Topic.CUDNN_BENCHMARK
        if topic is None or not _may_be_torch(resolver, part.value, module):
            continue
        if not (topic in _MAY_BE_OFF and _is_false(given)):
            yield BackendSetting(module, node, topic, part.attr)
        if part.attr == "benchmark" and _is_false(given):
            # Nobody says so but for reproducible runs: it is off by default.
            yield BackendSetting(module, node, Topic.DETERMINISM, part.attr)


def _called(resolver: Resolver, call: ast.Call, module: Module) -> Iterator[BackendSetting]:
    func = call.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if name in _CALLS:
        topic = _CALLS[name]
        first = call.args[0] if call.args else None
        if not (topic in _MAY_BE_OFF and first is not None and _is_false(first)):
            yield BackendSetting(module, call, topic, name)
    elif name == "setattr":
        for word in call.args[1:2]:
            if isinstance(word, ast.Constant) and word.value in _ATTRIBUTES:
                attribute = str(word.value)
                yield BackendSetting(module, call, _ATTRIBUTES[attribute], attribute)
    elif name in {"flags", "set_flags"} and _is_cudnn(resolver, func, module):
        yield BackendSetting(module, call, Topic.CUDNN_BENCHMARK, name)
        yield BackendSetting(module, call, Topic.DETERMINISM, name)
    for keyword in call.keywords:
        if keyword.arg in {"deterministic", "benchmark"} and name in _FRAMEWORK_CALLS:
            yield BackendSetting(module, call, _ATTRIBUTES[keyword.arg], name)


_FRAMEWORK_CALLS = frozenset({"Trainer", "Fabric", "seed_everything", "set_seed"})


def _may_be_torch(resolver: Resolver, owner: ast.expr, module: Module) -> bool:
    """Whether an attribute of ``owner`` may be a setting of PyTorch; ``args.benchmark = ..`` is none."""
    names = resolver.names(owner, module)
    if names:
        return any(name.startswith("torch") for name in names)
    return module.code(owner).rpartition(".")[2] in {"cudnn", "matmul", "cuda", "backends", "conv"}


def _is_cudnn(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    return any(name.startswith("torch.backends.cudnn") for name in resolver.names(node, module))


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
