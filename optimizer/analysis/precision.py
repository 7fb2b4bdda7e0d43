"""What a script already says about precision: autocast regions, half-precision types, frameworks that own the step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .facts import Fact
from .models import is_module_value, unwrap
from .project import Project
from .reach import reached_nodes
from .resolver import Resolver
from .steps import EvaluationCode, StepCode
from .syntax import Module

_AMP = frozenset({"autocast", "GradScaler", "custom_fwd", "custom_bwd", "set_autocast_enabled"})
_HALF_TYPES = frozenset({"float16", "half", "bfloat16", "HalfTensor", "BFloat16Tensor"})
_DOUBLE_TYPES = frozenset({"float64", "double"})
LIGHTNING = "Lightning"
_FRAMEWORKS = (
    ("apex.amp", "NVIDIA Apex"),
    ("apex.fp16_utils", "NVIDIA Apex"),
    ("accelerate.", "Accelerate"),
    ("lightning.fabric.", "Lightning Fabric"),
    ("lightning.Fabric", "Lightning Fabric"),
    ("lightning.", LIGHTNING),
    ("pytorch_lightning.", LIGHTNING),
    ("lightning_fabric.", "Lightning Fabric"),
    ("deepspeed.", "DeepSpeed"),
    ("transformers.Trainer", "the Hugging Face Trainer"),
    ("transformers.Seq2SeqTrainer", "the Hugging Face Trainer"),
    ("ignite.engine.", "Ignite"),
    ("fastai.", "fastai"),
    ("composer.", "Composer"),
    ("catalyst.", "Catalyst"),
    ("mmengine.", "MMEngine"),
    ("mmcv.runner", "MMCV"),
    ("colossalai.", "Colossal-AI"),
    ("fairscale.", "FairScale"),
    ("torch_xla.", "PyTorch/XLA"),
    ("torch.distributed.fsdp", "FSDP"),
    ("torch.distributed._composable", "FSDP"),
    ("torch.distributed.tensor", "tensor parallelism"),
    ("torch.distributed.pipelining", "pipeline parallelism"),
    ("torch.distributed.rpc", "RPC"),
    ("torch.distributed.autograd", "distributed autograd"),
)
_FRAMEWORK_PACKAGES = frozenset(name.partition(".")[0] for name, _ in _FRAMEWORKS) - {"torch"}


@dataclass(frozen=True, eq=False)
class PrecisionUse(Fact):
    """Something that decides the precision of the script; ``what`` names it as it reads after "already uses"."""

    node: ast.expr
    what: str


@dataclass(frozen=True, eq=False)
class FrameworkUse(Fact):
    """Something of a framework that runs the training step, or shards it, in its own way."""

    node: ast.expr
    framework: str


def find_precision_uses(resolver: Resolver) -> tuple[PrecisionUse, ...]:
    """Autocast, loss scaling and half-precision types that are there already, in source order per module."""
    wanted = _AMP | _HALF_TYPES
    found: list[PrecisionUse] = []
    for module in resolver.project.modules:
        for node, name in _named(module, wanted):
            what = _precision_use(resolver, node, name, module)
            if what is not None:
                found.append(PrecisionUse(module, node, what))
    return tuple(found)


def _precision_use(resolver: Resolver, node: ast.expr, name: str, module: Module) -> str | None:
    libraries = resolver.names(node, module)
    if name in _AMP and any(n.startswith(("torch.", "apex.")) for n in libraries):
        return f"`{name}`"
    if name in _HALF_TYPES and any(n.startswith("torch.") for n in libraries):
        return f"`torch.{name}`"
    parent = module.parents.get(node)
    converts = isinstance(parent, ast.Call) and parent.func is node and not parent.args
    if name in {"half", "bfloat16"} and isinstance(node, ast.Attribute) and converts:
        return f"`.{name}()`"
    return None


def under_autocast(resolver: Resolver, code: StepCode | EvaluationCode) -> bool:
    """Whether ``code`` runs its networks under autocast, in a region of its own or one around it."""
    roots = [statement for region in code.regions for statement in region.statements]
    reached = [(r.node, r.module) for r in reached_nodes(resolver, roots or code.body, code.module)]
    inside = roots[0] if roots else code.body[0]
    around = [(node, code.module) for node in code.module.ancestors(inside)]
    return any(_is_autocast(resolver, node, module) for node, module in [*reached, *around])


def _is_autocast(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    contexts: list[ast.expr] = []
    if isinstance(node, ast.With):
        contexts = [item.context_expr for item in node.items]
    elif isinstance(node, ast.FunctionDef):
        contexts = node.decorator_list
    return any(
        name.endswith(".autocast")
        for context in contexts
        for name in resolver.maker_names(context, module)
    )


def find_frameworks(resolver: Resolver) -> tuple[FrameworkUse, ...]:
    """The uses of frameworks that own the training step, in source order per module."""
    found: list[FrameworkUse] = []
    for module in resolver.project.modules:
        text = module.source.text
        if "torch.distributed" not in text and not any(p in text for p in _FRAMEWORK_PACKAGES):
            continue
        for node in module.nodes_of(ast.Name, ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                for name in resolver.names(node, module):
                    owner = next((o for prefix, o in _FRAMEWORKS if name.startswith(prefix)), None)
                    if owner is not None:
                        found.append(FrameworkUse(module, node, owner))
    return tuple(found)


def runs_in_double(resolver: Resolver) -> PrecisionUse | None:
    """Where the script says that it computes in float64, which autocast leaves alone."""
    for module in resolver.project.modules:
        for node, name in _named(module, _DOUBLE_TYPES):
            parent = module.parents.get(node)
            if not isinstance(parent, ast.Call):
                continue
            if "torch.set_default_dtype" in resolver.names(parent.func, module):
                return PrecisionUse(module, node, f"`torch.{name}` as the default type")
            if isinstance(node, ast.Attribute) and parent.func is node and not parent.args:
                holders = unwrap(resolver, resolver.values(node.value, module))
                if any(is_module_value(resolver, holder) for holder in holders):
                    return PrecisionUse(module, node, f"a network in `torch.{name}`")
    return None


def imported_packages(project: Project) -> frozenset[str]:
    """The top-level packages the project imports."""
    packages: set[str] = set()
    for module in project.modules:
        for node in module.nodes_of(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                packages.update(alias.name.partition(".")[0] for alias in node.names)
            elif not node.level and node.module:
                packages.add(node.module.partition(".")[0])
    return frozenset(packages)


def _named(module: Module, wanted: frozenset[str]) -> Iterator[tuple[ast.expr, str]]:
    """The names and attributes read in ``module`` whose last identifier is one of ``wanted``."""
    if not any(word in module.source.text for word in wanted):
        return
    for node in module.nodes_of(ast.Attribute, ast.Name):
        if isinstance(node, ast.Attribute):
            if node.attr in wanted:
                yield node, node.attr
        elif node.id in wanted and isinstance(node.ctx, ast.Load):
            yield node, node.id
