"""What the code that workers run reads of an object: the attributes and keys by name, as far as all uses say one."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..calls.reach import Reached
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import (
    Class,
    Display,
    External,
    FirstPartyModule,
    Function,
    Instance,
    Made,
    Value,
)

_NO_CODE_OF_THEIR_OWN = frozenset(
    {
        "torch.utils.data.Dataset",
        "torch.utils.data.IterableDataset",
        "torch.nn.Module",
        "typing.Generic",
        "typing.NamedTuple",
        "builtins.object",
        "builtins.dict",
        "abc.ABC",
    }
)
_NAMESPACES = frozenset(
    {
        "builtins.dict",
        "collections.OrderedDict",
        "collections.defaultdict",
        "argparse.ArgumentParser.parse_args",
        "argparse.Namespace",
        "types.SimpleNamespace",
        "json.load",
        "json.loads",
        "yaml.safe_load",
        "yaml.load",
        "easydict.EasyDict",
        "addict.Dict",
        "box.Box",
        "omegaconf.OmegaConf.load",
        "omegaconf.OmegaConf.create",
        "ml_collections.ConfigDict",
        "ml_collections.config_dict.ConfigDict",
        "wandb.config",
    }
)
"""Library objects that have settings and nothing that works on its own."""
_LOOKUPS = frozenset({"get", "pop", "setdefault"})
_HARMLESS = frozenset({"builtins.len", "builtins.isinstance", "builtins.id", "builtins.bool"})


@dataclass(frozen=True)
class ReadNames:
    """The names by which ``code`` reads attributes of whatever object, and global variables of which module.

    Not ``all_named`` where it may read any: ``vars(self)``, ``getattr(self, name)``.
    """

    attributes: frozenset[str]
    variables: frozenset[tuple[Module, str]]
    all_named: bool

    @classmethod
    def of(cls, code: tuple[Reached, ...]) -> ReadNames:
        attributes: set[str] = set()
        variables: set[tuple[Module, str]] = set()
        all_named = True
        for node, module, _ in code:
            match node:
                case ast.Attribute(attr=attribute):
                    attributes.add(attribute)
                    all_named = all_named and attribute != "__dict__"
                case ast.Constant(value=str() as text):
                    attributes.add(text)
                case ast.Name(id=name):
                    found = module.scope(node).lookup(name)
                    if found is not None and isinstance(found[0].node, ast.Module):
                        variables.add((module, name))
                case ast.Call(func=ast.Name(id="vars")):
                    all_named = False
                case ast.Call(func=ast.Name(id="getattr"), args=[_, name, *_]):
                    all_named = all_named and isinstance(name, ast.Constant)
                case _:
                    pass
        return cls(frozenset(attributes), frozenset(variables), all_named)


def may_read(
    resolver: Resolver, code: tuple[Reached, ...], names: ReadNames, value: Value, wanted: str
) -> bool:
    """Whether ``code``, which reads ``names``, may read the attribute or key ``wanted`` of ``value``."""
    match value:
        case FirstPartyModule(module):
            return wanted in names.attributes or (module, wanted) in names.variables
        case Class() | Function():
            return wanted in names.attributes or not names.all_named
        case Display(node=ast.Dict() | ast.DictComp()):
            read = _read_of(resolver, code, value)
        case Made(maker=External(name)) if name in _NAMESPACES:
            read = _read_of(resolver, code, value)
        case Made(maker=Class() as cls) if resolver.base_names(cls) <= _NO_CODE_OF_THEIR_OWN:
            read = _read_of(resolver, code, value)
        case _:
            return True
    return read is None or wanted in read


def _read_of(resolver: Resolver, code: tuple[Reached, ...], value: Value) -> set[str] | None:
    """What ``code`` reads of ``value``; None, for anything, where a use does not say."""
    found: set[str] = set()
    for node, module, _ in code:
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            continue
        if not isinstance(node.ctx, ast.Load) or not _may_be(resolver, node, module, value):
            continue
        read = _read_by(resolver, node, module, value)
        if read is None:
            return None
        found |= read
    return found


def _may_be(resolver: Resolver, node: ast.expr, module: Module, value: Value) -> bool:
    cls = value.maker if isinstance(value, Made) else None
    for found in resolver.values(node, module):
        if found == value:
            return True
        if isinstance(found, Instance) and isinstance(cls, Class):
            family = {found.cls.node, *(c.node for c in resolver.subclasses(found.cls))}
            if cls.node in family:
                return True
    return False


def _read_by(resolver: Resolver, node: ast.expr, module: Module, value: Value) -> set[str] | None:
    """What the use ``node`` of ``value`` reads of it."""
    parent = module.parents[node]
    match parent:
        case ast.Attribute(attr=attribute):
            return _attribute_read(parent, attribute, module, value)
        case ast.Subscript(value=base, slice=key) if base is node:
            if isinstance(key, ast.Constant):
                return {str(key.value)}
            return set() if _is_own(value) else None
        case ast.Call() | ast.keyword():
            call = module.parents[parent] if isinstance(parent, ast.keyword) else parent
            assert isinstance(call, ast.Call)
            return _read_by_call(resolver, call, node, module)
        case ast.Compare(left=ast.Constant(value=text)):
            return {str(text)}
        case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() | ast.Return() | ast.Tuple():
            return set()  # what gets it is looked at by itself
        case ast.If() | ast.IfExp() | ast.BoolOp() | ast.Compare() | ast.UnaryOp() | ast.Assert():
            return set()
        case _:
            return None


def _attribute_read(
    read: ast.Attribute, name: str, module: Module, value: Value
) -> set[str] | None:
    call = module.parents[read]
    if name == "__dict__":
        return None
    if _is_own(value) or not (isinstance(call, ast.Call) and call.func is read):
        return {name}
    match call.args:
        case [ast.Constant(value=str() as key), *_] if name in _LOOKUPS:
            return {key}
        case _:
            return None


def _read_by_call(
    resolver: Resolver, call: ast.Call, node: ast.expr, module: Module
) -> set[str] | None:
    if call.func is node or resolver.callees(call, module):
        hidden = any(keyword.arg is None and keyword.value is node for keyword in call.keywords)
        return None if hidden else set()
    names = resolver.names(call.func, module)
    match call.args:
        case [_, ast.Constant(value=str() as name), *_] if "builtins.getattr" in names:
            return {name}
        case _:
            return set() if names and names <= _HARMLESS else None


def _is_own(value: Value) -> bool:
    return isinstance(value, Made) and isinstance(value.maker, Class)
