"""What a script already says about precision: autocast regions, half-precision types, frameworks that own the step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..calls.reach import Reached, never_runs, reached_nodes
from ..calls.signatures import call_argument
from ..devices.devices import is_cuda_flag
from ..facts import Fact, Model
from ..frameworks.unused_classes import in_unused_class, steps_by_hand
from ..networks.models import is_module_value, unwrap
from ..networks.network_layers import network_code
from ..program.project import Project
from ..program.syntax import Module
from ..program.trees import walk
from ..training.steps import EvaluationCode, StepCode
from ..values.resolver import Resolver
from ..values.values import Class, External, Instance, Literal, Made, Option

_AMP = frozenset({"autocast", "GradScaler", "custom_fwd", "custom_bwd", "set_autocast_enabled"})
_HALF_TYPES = frozenset({"float16", "half", "bfloat16", "HalfTensor", "BFloat16Tensor"})
_DOUBLE_TYPES = frozenset({"float64", "double"})
_GPU_OPTION = re.compile("cuda|gpu|device")
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
_HELPERS = frozenset(
    "get_logger set_seed seed_everything ProjectConfiguration cpu_offload cpu_offload_with_hook "
    "BaseModule ModuleDict ModuleList Sequential load_checkpoint".split()
)
"""What of those packages is of use to any script, or to inference alone, and runs no step."""
_HELPER_MODULES = re.compile(
    r"^(pytorch_lightning|lightning(\.pytorch|\.fabric)?|lightning_fabric)\.(utilities|loggers)\."
)
"""Their modules that do not either: ``rank_zero_only``, ``WandbLogger``."""
_LIGHTNING_RUNNERS = frozenset({"Trainer", "LightningCLI"})
"""What of Lightning runs the steps of a LightningModule, which is an ordinary network without them."""
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
    wanted = _AMP | _HALF_TYPES | {"scale"}
    found: list[PrecisionUse] = []
    for module in resolver.project.modules:
        for node, name in _named(module, wanted):
            what = _precision_use(resolver, node, name, module)
            if what is not None and not never_runs(resolver, node, module):
                found.append(PrecisionUse(module, node, what))
    return tuple(found)


def _precision_use(resolver: Resolver, node: ast.expr, name: str, module: Module) -> str | None:
    libraries = resolver.names(node, module)
    if name in _AMP and any(n.startswith(("torch.", "apex.")) for n in libraries):
        return f"`{name}`"
    if name in _HALF_TYPES and any(n.startswith("torch.") for n in libraries):
        return f"`torch.{name}`"
    if name == "scale":
        return _unseen_scaling(resolver, node, module)
    parent = module.parents.get(node)
    converts = isinstance(parent, ast.Call) and parent.func is node and not parent.args
    if name in {"half", "bfloat16"} and isinstance(node, ast.Attribute) and converts:
        return f"`.{name}()`"
    return None


def _unseen_scaling(resolver: Resolver, node: ast.expr, module: Module) -> str | None:
    """``scaler.scale(loss)`` before ``.backward()``, of a scaler that is made where the analysis does not see it."""
    call = module.parents.get(node)
    method = module.parents.get(call) if call is not None else None
    match node, call, method:
        case ast.Attribute(value=scaler), ast.Call(func=called), ast.Attribute(attr="backward") if (
            called is node
        ):
            values = resolver.values(scaler, module)
            makers = [v.maker if isinstance(v, Made) else v for v in values]
            is_seen = any(
                isinstance(maker, Class | Instance)
                or (isinstance(maker, External) and maker.name.startswith(("torch.", "apex.")))
                for maker in makers
            )
            return None if is_seen else f"`{module.code(call)}`"
        case _:
            return None


def half_precision_use(
    resolver: Resolver, code: Iterable[Reached], networks: tuple[Model, ...]
) -> PrecisionUse | None:
    """Where the script itself takes ``networks``, or what ``code`` computes, to half precision, without autocast."""
    reached = {r.node for r in (*code, *network_code(resolver, networks))}
    for use in find_precision_uses(resolver):
        around = [*use.module.ancestors(use.node)]
        contexts = {context for node in around for context in _contexts(node)}
        if use.what.strip("`") in _AMP or not contexts.isdisjoint(around):
            continue
        if use.node in reached or _converts_network(resolver, use):
            return use
    return None


def _converts_network(resolver: Resolver, use: PrecisionUse) -> bool:
    """``model.half()``, ``model.to(torch.bfloat16)``, and as a statement ``layer.bfloat16()``: only modules change in place."""
    module = use.module
    call = next((n for n in module.ancestors(use.node) if isinstance(n, ast.Call)), None)
    if call is None or not isinstance(call.func, ast.Attribute):
        return False
    if call.func is use.node and isinstance(module.parents[call], ast.Expr):
        return True
    holders = unwrap(resolver, resolver.values(call.func.value, module))
    return any(is_module_value(resolver, holder) for holder in holders)


def under_autocast(resolver: Resolver, code: StepCode | EvaluationCode) -> bool:
    """Whether ``code`` runs its networks under autocast, in a region of its own or one around it."""
    return any(True for _ in autocast_contexts(resolver, code))


def reaches_autocast(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` runs under autocast, or something that it runs does."""
    reached = ((inner.node, inner.module) for inner in reached_nodes(resolver, [node], module))
    outer = ((ancestor, module) for ancestor in module.ancestors(node))
    return any(True for _ in autocast_regions(resolver, (*reached, *outer)))


def may_do_without_autocast(resolver: Resolver, code: StepCode | EvaluationCode) -> bool:
    """Whether the script leaves it to an option of its own that ``code`` runs under autocast.

    ``autocast(enabled=args.amp)``, ``autocast(enabled=scaler is not None)``, or a branch that does the same without.
    """
    return any(
        _is_optional(resolver, context, module) or _has_bare_branch(resolver, node, module)
        for node, context, module in autocast_contexts(resolver, code)
    )


def is_off_by_default(option: Option) -> bool:
    """Whether the command line has to switch ``option`` on."""
    if option.default is not None:
        return isinstance(option.default, ast.Constant) and not option.default.value
    action = call_argument(option.call, "action")
    return isinstance(action, ast.Constant) and action.value == "store_true"


def autocast_contexts(
    resolver: Resolver, code: StepCode | EvaluationCode
) -> Iterator[tuple[ast.AST, ast.expr, Module]]:
    """The statements that make what ``code`` runs its networks in an autocast region, and their contexts."""
    return autocast_regions(resolver, _around_networks(resolver, code))


def autocast_regions(
    resolver: Resolver, around: Iterable[tuple[ast.AST, Module]]
) -> Iterator[tuple[ast.AST, ast.expr, Module]]:
    """Those of ``around`` that are autocast regions, statements and functions, and their contexts."""
    for node, module in around:
        for context in _contexts(node):
            names = resolver.maker_names(context, module)
            if any(name.endswith(".autocast") for name in names):
                yield node, context, module


def _around_networks(
    resolver: Resolver, code: StepCode | EvaluationCode
) -> Iterator[tuple[ast.AST, Module]]:
    """What the networks of ``code`` run in: what its regions, or all of it, reach and what stands around those."""
    regions = [(region.statements, region.module) for region in code.regions]
    parts = regions or [(code.body, code.module)]
    for statements, module in parts:
        for reached in reached_nodes(resolver, statements, module):
            yield reached.node, reached.module
    statements, module = parts[0]
    for node in module.ancestors(statements[0]):
        yield node, module


def _contexts(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.With):
        return [item.context_expr for item in node.items]
    return node.decorator_list if isinstance(node, ast.FunctionDef) else []


def enabled_by(resolver: Resolver, context: ast.expr, module: Module) -> ast.expr | None:
    """What switches ``context`` on."""
    if not isinstance(context, ast.Call):
        return None
    enabled = call_argument(context, "enabled")
    if enabled is None and "torch.cuda.amp.autocast" in resolver.names(context.func, module):
        enabled = call_argument(context, "enabled", 0)
    return enabled


def _is_optional(resolver: Resolver, context: ast.expr, module: Module) -> bool:
    enabled = enabled_by(resolver, context, module)
    match enabled:
        case None:
            return False
        case ast.Compare(left=given, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            values = resolver.values(given, module)
            return any(isinstance(v, Literal) and v.value is None for v in values)
        case _:
            if resolver.is_always(enabled, module, False):
                return True
            values = resolver.values(enabled, module)
            options = [value.destination for value in values if isinstance(value, Option)]
            return any(not _GPU_OPTION.search(name) for name in options)


def _has_bare_branch(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` stands in a branch, and the other one makes a call of its without autocast."""
    calls = {ast.unparse(call) for call in walk(node) if isinstance(call, ast.Call)}
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.FunctionDef | ast.For | ast.While):
            return False
        if isinstance(ancestor, ast.If) and not is_cuda_flag(resolver, ancestor.test, module):
            other = ancestor.orelse if child in ancestor.body else ancestor.body
            nodes = [each for statement in other for each in walk(statement)]
            bare = not any(_contexts(each) for each in nodes)
            if bare and any(isinstance(n, ast.Call) and ast.unparse(n) in calls for n in nodes):
                return True
        child = ancestor
    return False


def find_frameworks(resolver: Resolver) -> tuple[FrameworkUse, ...]:
    """The uses of frameworks that own the training step, in source order per module."""
    found: list[FrameworkUse] = []
    is_run = False
    modules = resolver.project.modules
    by_hand = steps_by_hand(modules)
    for module in modules:
        text = module.source.text
        if "torch.distributed" not in text and not any(p in text for p in _FRAMEWORK_PACKAGES):
            continue
        for node in module.nodes_of(ast.Name, ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                for name in resolver.names(node, module):
                    owner = _owner_of_the_step(name)
                    is_run |= owner == LIGHTNING and name.rpartition(".")[2] in _LIGHTNING_RUNNERS
                    if owner is not None and not (
                        by_hand and in_unused_class(node, module, modules)
                    ):
                        found.append(FrameworkUse(module, node, owner))
    if by_hand and not is_run:
        return tuple(use for use in found if use.framework != LIGHTNING)
    return tuple(found)


def _owner_of_the_step(name: str) -> str | None:
    """The framework that ``name`` is of, when that may run steps."""
    if name.rpartition(".")[2] in _HELPERS or _HELPER_MODULES.match(name):
        return None
    return next((owner for prefix, owner in _FRAMEWORKS if name.startswith(prefix)), None)


def runs_in_double(resolver: Resolver) -> PrecisionUse | None:
    """Where the script says that it computes in float64, which autocast leaves alone."""
    for module in resolver.project.modules:
        for node, name in _named(module, _DOUBLE_TYPES):
            parent = module.parents.get(node)
            if not isinstance(parent, ast.Call) or never_runs(resolver, node, module):
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
