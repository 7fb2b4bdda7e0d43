"""How a script says, at a given place, whether it runs on CUDA."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...options import Options, Target
from ..editing.references import quoted, reference
from ..facts import DeviceKind, DeviceName
from ..loading.iterations import top_level_starts
from ..networks.trained import trained_networks
from ..program.scopes import Parameter
from ..program.sharing import user_of_definition
from ..program.syntax import Module
from ..script import TrainingScript
from ..values.named_values import name_values
from ..values.values import External, Made, Value
from .devices import is_cuda_flag, is_device_text
from .network_device import cuda_test, network_device, uses_cuda

_ABOUT_DEVICES = re.compile(r"cuda|gpu|cpu|device", re.IGNORECASE)


def cuda_condition(script: TrainingScript, module: Module, at: ast.AST) -> str:
    """An expression that is true where the script uses CUDA, valid where ``at`` stands.

    ``True`` for scripts that always do: their networks or all of their batches are moved there. Where neither a flag nor
    a device of the script can be named, it asks what the trained networks are moved to, or whether there is a GPU at all
    (``torch.cuda.is_available()``). In a function that other scripts use, too, only names that it or its file makes are
    asked: of their arguments nothing is known.
    """
    if is_conditional_on_cuda(script, module, at):
        return "True"
    is_shared = _is_shared(script, module, at)
    visible = [
        name
        for name in script.devices
        if _is_set_before(script, name, module, at) and not (is_shared and _is_given(name))
    ]
    for flag in visible:
        if flag.is_flag:
            return flag.name
    for device in visible:
        test = _device_test(script, device, module)
        if test is not None:
            return test
    if is_shared and not _always_copies(script):
        return f"{reference(module, 'torch.cuda.is_available').code}()"
    for parameter in _device_parameters(script, module, at):
        return f"{parameter}.type == {quoted(module, 'cuda')}"
    where = network_device(script.resolver, trained_networks(script.resolver, script.optimizers))
    if where.kind is DeviceKind.CUDA or script.trainer_runs.always_on_gpu:
        return "True"
    if where.kind is not DeviceKind.CHOSEN and _always_copies(script):
        return "True"
    return uses_cuda(script.resolver, where, module.statement(at), module, is_test=True) or "True"


def _is_shared(script: TrainingScript, module: Module, at: ast.AST) -> bool:
    """Whether ``at`` is part of a function or class that other scripts use, too."""
    if module is script.entry:
        return False
    return user_of_definition(script.project, module, module.span(at).line) is not None


def _is_given(name: DeviceName) -> bool:
    """Whether what ``name`` holds may come from a caller, or is another name's value."""
    return "." in name.name or isinstance(name.node, ast.Name | ast.Attribute)


def _always_copies(script: TrainingScript) -> bool:
    """Whether every copy of a batch goes to a GPU, whatever the machine has."""
    return not script.copying_frameworks and all(
        copy.device is DeviceKind.CUDA
        and not is_conditional_on_cuda(script, copy.module, copy.node)
        and not _is_chosen(copy.node, copy.module)
        for copy in script.batch_copies
    )


def unnamed_device(script: TrainingScript, options: Options) -> str | None:
    """The code of a device that networks are moved to and that may be a GPU for all the script says, which names none.

    It comes from a configuration file, say. None where a target is given, or an accelerator is spoken of.
    """
    if options.target is not Target.AUTO or not script.is_for_cpu(options):
        return None
    where = network_device(script.resolver, script.models)
    if where.kind is not DeviceKind.CHOSEN or where.device is None or where.module is None:
        return None
    return where.module.code(where.device)


def _is_chosen(copy: ast.AST, module: Module) -> bool:
    """Whether a test about the device, such as ``if args.gpu:``, decides on ``copy``."""
    return any(
        isinstance(ancestor, ast.If | ast.IfExp)
        and ancestor is not module.main_guard
        and _ABOUT_DEVICES.search(module.code(ancestor.test))
        for ancestor in module.ancestors(copy)
    )


def is_conditional_on_cuda(script: TrainingScript, module: Module, at: ast.AST) -> bool:
    """Whether ``at`` is only reached where a flag of the script says CUDA: ``{..} if use_cuda else {}``."""
    child = at
    for ancestor in module.ancestors(at):
        if isinstance(ancestor, ast.IfExp | ast.If):
            taken = ancestor.body if isinstance(ancestor.body, list) else [ancestor.body]
            if child in taken and is_cuda_flag(script.resolver, ancestor.test, module):
                return True
        child = ancestor
    return False


def is_without_cuda(script: TrainingScript, module: Module, at: ast.AST) -> ast.expr | None:
    """The flag of the script by whose word there is no CUDA where ``at`` is reached: ``else:`` of ``if use_cuda:``."""
    child = at
    for ancestor in module.ancestors(at):
        if isinstance(ancestor, ast.If):
            match ancestor.test:
                case ast.UnaryOp(ast.Not(), flag):
                    off = ancestor.body
                case flag:
                    off = ancestor.orelse
            # `is_available() and n_gpu > 1` may be false beside a GPU.
            is_whole = not isinstance(flag, ast.BoolOp)
            if child in off and is_whole and is_cuda_flag(script.resolver, flag, module):
                return flag
        child = ancestor
    return None


def _is_set_before(script: TrainingScript, name: DeviceName, module: Module, at: ast.AST) -> bool:
    """Whether ``name`` has its value wherever ``at`` runs."""
    if name.module is not module:
        return False
    variable = name.name.partition(".")[0]
    scope = module.scope(at)
    found = scope.lookup(variable)
    statement = module.statement(name.node)
    if found is None or module.scope(statement).lookup(variable) != found:
        return False
    owner, bindings = found
    if "." not in name.name and len(bindings) != 1:
        return False
    block = module.block(statement)
    if module.function(at) is module.function(statement):
        around = [ancestor for ancestor in module.ancestors(at) if isinstance(ancestor, ast.stmt)]
        return module.span(statement) < module.span(at) and any(s in block for s in around)
    if not isinstance(owner.node, ast.Module):
        return False
    top_blocks = [module.tree.body, *(guard.body for guard in module.main_guards)]
    starts = list(top_level_starts(script.resolver, at, module))
    return (
        any(block is top for top in top_blocks)
        and bool(starts)
        and all(m is module and module.span(node) > module.span(statement) for node, m in starts)
    )


def _device_test(script: TrainingScript, device: DeviceName, module: Module) -> str | None:
    """Whether ``device`` is CUDA, as code; None where it is not known to be a ``torch.device`` or a text such as ``"cuda:0"``."""
    if device.kind is not DeviceKind.CHOSEN or not isinstance(device.node, ast.expr):
        return None
    values = script.resolver.values(device.node, module)
    makers = script.resolver.maker_names(device.node, module)
    is_text = all(map(is_device_text, values))
    if is_text or makers == frozenset({"torch.device"}):
        return cuda_test(device.name, values, module)
    return None


def _device_parameters(script: TrainingScript, module: Module, at: ast.AST) -> Iterator[str]:
    """The parameters of the function around ``at`` that are always a ``torch.device`` chosen when the script runs."""
    function = module.function(at)
    if function is None:
        return
    for name, bindings in module.scopes.by_node[function].bindings.items():
        if len(bindings) == 1 and isinstance(bindings[0].source, Parameter):
            values = name_values(script.resolver, name, at, module)
            if all(_is_chosen_device(script, value) for value in values):
                yield name


def _is_chosen_device(script: TrainingScript, value: Value) -> bool:
    match value:
        case Made(call, module, External("torch.device")):
            return script.device_of(call, module) is DeviceKind.CHOSEN
        case _:
            return False
