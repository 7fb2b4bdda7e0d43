"""Finds the neural networks and the optimizers of a script."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..calls.signatures import call_argument, takes_closure
from ..facts import Model, Optimizer
from ..frameworks.framework_wrapping import wrapped_by_framework
from ..program.classes import first_party_bases
from ..program.syntax import Module
from ..torch_names import REWEIGHTING
from ..values.resolver import Resolver
from ..values.values import Class, Display, Element, External, Instance, Made, Unknown, Value

MODULE_CLASSES = frozenset({"torch.nn.Module", "torch.jit.ScriptModule"})
_FRAMEWORK_BASES = (
    "pytorch_lightning.",
    "lightning.",
    "transformers.",
    "torchvision.models.",
    "timm.",
    "segmentation_models_pytorch.",
    "torch_geometric.nn.",
)
_FACTORIES = frozenset(
    {
        "torch.hub.load",
        "timm.create_model",
        "torchvision.models.get_model",
        "efficientnet_pytorch.EfficientNet.from_name",
        "efficientnet_pytorch.EfficientNet.from_pretrained",
    }
)
WRAPPERS = frozenset(
    {
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.compile",
        "torch.jit.script",
        "torch.jit.trace",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
        *REWEIGHTING,
    }
)
"""Callables that take a model first and return it, or something that stands for it."""
_DEEP_COPY = "copy.deepcopy"
_COPIES = frozenset({"copy.copy", _DEEP_COPY})
_LOSS_SUFFIXES = ("Loss",)
_LBFGS = "torch.optim.LBFGS"
_OPTIMIZER_LIBRARIES = tuple(
    "adabelief_pytorch. adamp. bitsandbytes.optim. dadaptation. lion_pytorch. prodigyopt. radam. schedulefree. timm.optim. torch_optimizer.".split()
)
_LIKE_TORCH = frozenset(
    "transformers.AdamW transformers.optimization.AdamW transformers.Adafactor transformers.optimization.Adafactor pytorch_transformers.AdamW"
    " pytorch_pretrained_bert.BertAdam pytorch_pretrained_bert.optimization.BertAdam".split()
)
"""With the classes of the libraries above, optimizers that are subclasses of torch's, and step as those do."""
_UNLIKE_TORCH = frozenset(
    "Adahessian Lookahead Optimizer ScheduleFreeWrapper ScheduleFreeWrapperReference".split()
)
"""Classes of those libraries that wrap another optimizer, need the graph of the gradients, or are none."""
ANY_OPTIMIZER = "torch.optim.<any>"
"""An optimizer of torch whose name the script gets when it runs: ``getattr(optim, args.optimizer)(..)``."""


def is_module_class(resolver: Resolver, cls: Class) -> bool:
    """Whether a first-party class is a ``torch.nn.Module``, through first-party and known library bases."""
    return any(
        base in MODULE_CLASSES
        or (base.startswith("torch.nn.") and base.rsplit(".", 1)[1][:1].isupper())
        or base.startswith(_FRAMEWORK_BASES)
        for base in resolver.base_names(cls)
    )


def is_loss_name(name: str) -> bool:
    """Whether a library name is a loss class of ``torch.nn``."""
    return name.startswith("torch.nn.") and name.endswith(_LOSS_SUFFIXES)


def unwrap(resolver: Resolver, values: frozenset[Value]) -> frozenset[Value]:
    """``values`` with parallel, compiled, scripted and norm wrappers, and those of frameworks, replaced by what they wrap."""
    return replaced(resolver, values, _wrapped)


def unwrap_copies(resolver: Resolver, values: frozenset[Value]) -> frozenset[Value]:
    """``values`` unwrapped, with a copy of a network replaced by that network: the code is the same, the weights are not."""
    return replaced(resolver, values, lambda value: _wrapped(value) or copied(value))


def copied(value: Value) -> tuple[ast.expr, Module] | None:
    """What ``value`` is a copy of: ``copy.deepcopy(model)``."""
    match value:
        case Made(ast.Call(args=[original, *_]), module, External(name)) if name in _COPIES:
            return original, module
        case _:
            return None


def replaced(
    resolver: Resolver,
    values: frozenset[Value],
    behind: Callable[[Value], tuple[ast.expr, Module] | None],
) -> frozenset[Value]:
    """``values``, with what the expression ``behind`` one of them may be in its place, as often as there is one."""
    if not any(map(behind, values)):
        return values
    found: set[Value] = set()
    seen: set[Value] = set()
    pending = set(values)
    while pending:
        value = pending.pop()
        seen.add(value)
        inner = behind(value)
        if inner is None:
            found.add(value)
        else:  # `self.model = DDP(self.model)` wraps itself as far as the trace can tell.
            pending |= resolver.values(*inner) - seen
    return frozenset(found)


def _wrapped(value: Value) -> tuple[ast.expr, Module] | None:
    """What ``value`` wraps; None where it is no wrapper."""
    match value:
        case Made(call, module, External(name)) if name in WRAPPERS:
            wrapped = call_argument(call, "module", 0) or call_argument(call, "model", 0)
            return None if wrapped is None else (wrapped, module)
        case _:
            return wrapped_by_framework(value)


def model_of(resolver: Resolver, value: Value) -> Model | None:
    """The model a value is, None when it is none."""
    if not isinstance(value, Made):
        return None
    maker = value.maker
    if isinstance(maker, Class):
        if is_module_class(resolver, maker) and not maker.node.name.endswith(_LOSS_SUFFIXES):
            return Model(value.module, value.call, maker, None)
        return None
    return Model(value.module, value.call, None, maker.name) if _makes_model(maker.name) else None


def _makes_model(name: str) -> bool:
    """Whether calling the library name ``name`` gives a network."""
    if name in _FACTORIES:
        return True
    package, _, last = name.rpartition(".")
    if package == "torch.nn":
        return last[:1].isupper() and not is_loss_name(name) and last not in {"Parameter", "Module"}
    if package in {
        "torchvision.models",
        "torchvision.models.segmentation",
        "torchvision.models.detection",
    }:
        return True
    if package == "segmentation_models_pytorch":
        return True
    return package.startswith("transformers.") and last.startswith("from_") and "Model" in package


def find_models(resolver: Resolver) -> tuple[Model, ...]:
    """The networks made outside any module class: layers made inside ``__init__`` belong to their network."""
    found: dict[ast.Call, Model] = {}
    for module in resolver.project.modules:
        for call in module.calls:
            if _inside_module_class(resolver, call, module) or _is_argument_of_model(call, module):
                continue
            for value in resolver.values(call, module):
                if isinstance(value, Made) and value.call is call:
                    model = model_of(resolver, value)
                    if model is not None:
                        found[call] = model
    return tuple(model for model in found.values() if not _is_part(resolver, model, found))


def _inside_module_class(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` runs as part of a module class: in its body, or in a function only such classes call."""
    cls = module.enclosing_class(node)
    if cls is not None:
        return is_module_class(resolver, Class(cls, module))
    function = module.function(node)
    if function is None:
        return False
    sites = resolver.call_sites(function)
    return bool(sites) and all(
        (owner := site.module.enclosing_class(site.call)) is not None
        and is_module_class(resolver, Class(owner, site.module))
        for site in sites
    )


def _is_argument_of_model(call: ast.Call, module: Module) -> bool:
    parent = module.parents.get(call)
    return isinstance(parent, ast.Call) and call in parent.args and _looks_like_container(parent)


def _looks_like_container(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in {"Sequential", "ModuleList", "ModuleDict"}


def _is_part(resolver: Resolver, model: Model, models: dict[ast.Call, Model]) -> bool:
    """Whether a model made in the project is a layer assigned onto another one (``model.fc = nn.Linear(..)``)."""
    statement = model.module.statement(model.node)
    if not isinstance(statement, ast.Assign):
        return False
    for target in statement.targets:
        if isinstance(target, ast.Attribute | ast.Subscript):
            base = target.value
            while isinstance(base, ast.Attribute | ast.Subscript):
                base = base.value
            holders = unwrap(resolver, resolver.values(base, model.module))
            if any(isinstance(v, Made) and v.call in models for v in holders):
                return True
    return False


def models_in(resolver: Resolver, values: frozenset[Value]) -> tuple[Model, ...]:
    """The models among ``values``, wrappers looked through, in source order."""
    found: dict[ast.Call, Model] = {}
    for value in unwrap(resolver, values):
        if isinstance(value, Instance):
            found |= {model.node: model for model in _made_of(resolver, value.cls)}
        model = model_of(resolver, value)
        if model is not None:
            found[model.node] = model
    return tuple(sorted(found.values(), key=lambda model: (str(model.path), model.span)))


def models_behind(resolver: Resolver, values: frozenset[Value]) -> tuple[Model, ...]:
    """The models among ``values``, and those that copies among them are made of, in source order."""
    return models_in(resolver, unwrap_copies(resolver, values))


def models_and_copies(resolver: Resolver, values: frozenset[Value]) -> tuple[Model, ...]:
    """The models among ``values``, and each deep copy of one as a model with weights of its own."""
    found = {model.node: model for model in models_in(resolver, values)}
    for value in unwrap(resolver, values):
        copy = _deep_copy(resolver, value)
        if copy is not None:
            found[copy.node] = copy
    return tuple(found.values())


def deep_copies(resolver: Resolver) -> tuple[Model, ...]:
    """The deep copies of networks that the project makes (``copy.deepcopy(net)``), each as a model."""
    found: dict[ast.Call, Model] = {}
    for module in resolver.project.modules:
        for call in module.calls_named("deepcopy"):
            for value in resolver.values(call, module):
                copy = _deep_copy(resolver, value)
                if copy is not None:
                    found[copy.node] = copy
    return tuple(found.values())


def is_deep_copy(resolver: Resolver, model: Model) -> bool:
    """Whether ``model`` is one of :func:`deep_copies`, which shares no weight with what it was made of."""
    return _DEEP_COPY in resolver.names(model.node.func, model.module)


def _deep_copy(resolver: Resolver, value: Value) -> Model | None:
    """The network that ``value`` is a deep copy of, made by that call; None where it may be one of several."""
    if not isinstance(value, Made) or value.maker != External(_DEEP_COPY):
        return None
    originals = models_behind(resolver, frozenset({value}))
    kinds = {(one.cls, one.library_name) for one in originals}
    if len(kinds) != 1:
        return None
    cls, library_name = kinds.pop()
    return Model(value.module, value.call, cls, library_name)


def _made_of(resolver: Resolver, cls: Class) -> Iterator[Model]:
    """The networks that ``self`` in the code of ``cls`` may be: what is made of it, and of the classes that derive from it."""
    if not is_module_class(resolver, cls):
        return
    for value in instances(resolver, cls):
        model = model_of(resolver, value)
        if model is not None:
            yield model


def instances(resolver: Resolver, cls: Class) -> tuple[Made, ...]:
    """What is made of ``cls`` and of the classes that derive from it."""
    made = _all_made(resolver) if resolver.made is None else resolver.made
    if not resolver.is_tracing:  # Within a trace, cycles may have been cut.
        resolver.made = made
    return tuple(made.get(cls.node, ()))


def _all_made(resolver: Resolver) -> dict[ast.ClassDef, list[Made]]:
    """What is made of each first-party class and of those that derive from it."""
    made: dict[ast.ClassDef, list[Made]] = {}
    for module in resolver.project.modules:
        for call in module.calls:
            for value in resolver.values(call.func, module):
                if isinstance(value, Class):
                    for cls in {value, *first_party_bases(resolver, value)}:
                        made.setdefault(cls.node, []).append(Made(call, module, value))
    return made


def is_module_value(resolver: Resolver, value: Value) -> bool:
    """Whether a value is a network, including ``self`` inside a module class and sub-modules."""
    if isinstance(value, Instance):
        return is_module_class(resolver, value.cls)
    if isinstance(value, (Display, Element)):
        return False
    return model_of(resolver, value) is not None


def find_optimizers(resolver: Resolver) -> tuple[Optimizer, ...]:
    """Calls that make an optimizer: torch's, first-party subclasses and wrapper classes around one."""
    found: dict[ast.Call, Optimizer] = {}
    for module in resolver.project.modules:
        for call in module.calls:
            for value in resolver.values(call.func, module):
                optimizer = _optimizer(resolver, call, module, value)
                if optimizer is not None:
                    found[call] = optimizer
    return tuple(found.values())


def _optimizer(
    resolver: Resolver, call: ast.Call, module: Module, callee: Value
) -> Optimizer | None:
    if isinstance(callee, External) and is_optimizer_name(callee.name):
        return Optimizer(module, call, callee.name, None)
    if isinstance(callee, Class):
        bases = sorted(b for b in resolver.base_names(callee) if is_optimizer_name(b))
        if bases:
            return Optimizer(module, call, bases[0], callee)
    return None


def is_optimizer_name(name: str) -> bool:
    """Whether a library name is an optimizer class, of ``torch.optim`` or like one, which one it may be."""
    is_torch = (
        name.startswith("torch.optim.")
        and name.count(".") == 2
        and name.rsplit(".", 1)[1][:1].isupper()
    )
    return is_torch or name == ANY_OPTIMIZER or name in _LIKE_TORCH or _is_of_library(name)


def _is_of_library(name: str) -> bool:
    """Whether ``name`` is a class of a library of optimizers."""
    of = name.rpartition(".")[2]
    return name.startswith(_OPTIMIZER_LIBRARIES) and of[:1].isupper() and of not in _UNLIKE_TORCH


def steps_lbfgs(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether the optimizer step ``call`` may be one of LBFGS, which cannot do without a closure."""
    if not isinstance(call.func, ast.Attribute):
        return False
    makers = resolver.maker_names(call.func.value, module)
    return _LBFGS in makers or (ANY_OPTIMIZER in makers and takes_closure(call))


def may_be_lbfgs(resolver: Resolver, optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` may be LBFGS; one that is chosen when the script runs may where a step takes a closure."""
    if optimizer.library_name != ANY_OPTIMIZER:
        return optimizer.library_name == _LBFGS
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and takes_closure(call)
        and any(
            isinstance(value, Unknown) or (isinstance(value, Made) and value.call is optimizer.node)
            for value in resolver.values(call.func.value, module)
        )
        for module in resolver.project.modules
        for call in module.calls
    )
