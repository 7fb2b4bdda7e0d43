"""Where a script's own modules are looked for: its folder, what it adds to ``sys.path``, the project it belongs to.

What a file adds to ``sys.path`` is read from its text, not run: paths made of ``__file__`` and relative ones, by ``os.path``
or ``pathlib``. A script in ``tools/`` or ``examples/`` that imports modules of its project without that is run with the project
installed from where it lies (``pip install --editable``), or with the project's root on ``PYTHONPATH``.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from .syntax import Module, last_identifier

_SAME_PLACE = frozenset({"abspath", "realpath", "normpath", "expanduser", "fspath", "str", "Path"})
_SAME_PLACE_METHODS = frozenset({"resolve", "absolute", "as_posix"})
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_LIBRARIES = frozenset(
    "accelerate albumentations apex cv2 datasets deepspeed diffusers einops evaluate h5py ignite kornia lightning "
    "lightning_fabric lmdb matplotlib mlflow monai numpy pandas peft PIL pytorch_lightning safetensors scipy skimage "
    "sklearn tensorboard timm tokenizers torch torch_geometric torchaudio torchmetrics torchtext torchvision tqdm "
    "transformers trl wandb yaml".split()
)
"""Packages that are known by their names; in their own repositories, too, they are not a script's own code."""
_MOST_FILES = 150
"""A package of more files is a library that many scripts share, not the code of one."""
_MOST_NAMES = 20
"""A path is made of fewer names than this; more are a cycle."""


def first_search_paths(entry: Path) -> list[Path]:
    """The folder of the script ``entry`` and the entries of ``PYTHONPATH`` inside the working directory."""
    found = [entry.parent]
    here = Path.cwd()
    for item in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if item:
            folder = Path(os.path.normpath(here / item))
            if folder.is_relative_to(here) and folder not in found:
                found.append(folder)
    return found


def project_folders(entry: Path) -> tuple[Path, ...]:
    """Where the modules of the project lie that ``entry`` is a part of: its root and ``src``; nothing without a project.

    The root is the nearest folder around the script that can be installed or is a repository.
    """
    for folder in entry.parents:
        if any((folder / name).exists() for name in _PROJECT_FILES):
            return folder, folder / "src"
    return ()


def is_project_code(package: Path) -> bool:
    """Whether ``package``, a folder or module of a project, is code of its scripts, not a library that goes by its name."""
    there = package.is_dir() or package.with_suffix(".py").is_file()
    if package.name in _LIBRARIES or not there:
        return False
    files = (name for _, _, names in os.walk(package) for name in names if name.endswith(".py"))
    return sum(1 for _ in islice(files, _MOST_FILES + 1)) <= _MOST_FILES


def added_search_paths(module: Module) -> tuple[Path, ...]:
    """The folders that ``module`` adds to ``sys.path``, as far as its text tells where they are.

    A relative one is taken from the working directory, and from the file's own folder.
    """
    if "sys" not in module.source.text or "path" not in module.source.text:
        return ()
    written = _Written(module)
    found = [folder for added in _additions(module) for folder in written.folders(added)]
    return tuple(dict.fromkeys(folder for folder in found if folder.is_dir()))


def _additions(module: Module) -> Iterator[ast.expr]:
    """What is put onto ``sys.path``, also by a function of the file that is given it."""
    for node in module.nodes_of(ast.AugAssign):
        if isinstance(node.op, ast.Add) and _is_sys_path(node.target):
            yield from _elements(node.value)
    for call in module.calls:
        added = _put_on_sys_path(call)
        if added is None:
            continue
        function = module.function(call)
        parameters = _parameters(function) if isinstance(function, ast.FunctionDef) else []
        if isinstance(added, ast.Name) and added.id in parameters:
            place = parameters.index(added.id)
            assert isinstance(function, ast.FunctionDef)
            for use in module.calls_named(function.name):
                if len(use.args) > place:
                    yield use.args[place]
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "extend":
            yield from _elements(added)
        else:
            yield added


def _put_on_sys_path(call: ast.Call) -> ast.expr | None:
    match call:
        case ast.Call(func=ast.Attribute(value=owner, attr="append" | "extend"), args=[added]):
            return added if _is_sys_path(owner) else None
        case ast.Call(func=ast.Attribute(value=owner, attr="insert"), args=[_, added]):
            return added if _is_sys_path(owner) else None
        case _:
            return None


def _is_sys_path(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr="path"):
            return True
        case _:
            return False


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [parameter.arg for parameter in function.args.args]


def _elements(value: ast.expr) -> Iterable[ast.expr]:
    return value.elts if isinstance(value, ast.List | ast.Tuple) else ()


class _Unclear(Exception):
    """A path depends on more than the text of the file tells."""


class _Written:
    """Works out paths as a file writes them."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._names: Mapping[str, ast.expr] = _assigned_once(module)
        self._followed = 0

    def folders(self, node: ast.expr) -> list[Path]:
        """The folders that ``node`` may name; none where that is not understood, or written as an absolute path."""
        self._followed = 0
        try:
            path = self._path(node)
        except _Unclear:
            return []
        if path.is_absolute():
            return [Path(os.path.normpath(path))]
        bases = (Path.cwd(), self._module.path.parent)
        return [Path(os.path.normpath(base / path)) for base in bases]

    def _path(self, node: ast.expr) -> Path:
        match node:
            case ast.Constant(value=str(text)):
                if os.path.isabs(text):
                    raise _Unclear
                return Path(text)
            case ast.Name(id="__file__"):
                return self._module.path
            case ast.Name(id=name) if name in self._names and self._followed < _MOST_NAMES:
                self._followed += 1
                return self._path(self._names[name])
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._path(left) / self._path(right)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript(slice=ast.Constant(value=int(number))):
                return self._element(node.value, number)
            case ast.Call():
                return self._call(node)
            case _:
                raise _Unclear

    def _attribute(self, node: ast.Attribute) -> Path:
        match node:
            case ast.Attribute(value=value, attr="parent"):
                return _parent(self._path(value))
            case ast.Attribute(attr="pardir"):
                return Path(os.pardir)
            case ast.Attribute(attr="curdir"):
                return Path(os.curdir)
            case _:
                raise _Unclear

    def _element(self, value: ast.expr, number: int) -> Path:
        """``path.parents[number]``, or the folder that ``os.path.split(path)`` gives first."""
        match value:
            case ast.Attribute(value=path, attr="parents") if number >= 0:
                found = self._path(path)
                for _ in range(number + 1):
                    found = _parent(found)
                return found
            case ast.Call(args=[path]) if last_identifier(value.func) == "split" and number == 0:
                return _parent(self._path(path))
            case _:
                raise _Unclear

    def _call(self, call: ast.Call) -> Path:
        name, given = last_identifier(call.func), call.args
        if isinstance(call.func, ast.Attribute) and not given:
            if name in _SAME_PLACE_METHODS:
                return self._path(call.func.value)
            if name in {"getcwd", "cwd"}:
                return Path.cwd()
        if name in _SAME_PLACE and len(given) == 1:
            return self._path(given[0])
        if name == "dirname" and len(given) == 1:
            return _parent(self._path(given[0]))
        if name == "joinpath" and isinstance(call.func, ast.Attribute):
            given = [call.func.value, *given]
        if name in {"join", "joinpath", "Path"} and given:
            first, *others = [self._path(part) for part in given]
            return first.joinpath(*others)
        raise _Unclear


def _parent(path: Path) -> Path:
    """The folder of ``path``, whose last steps may be ``..``."""
    return Path(os.path.normpath(path)).parent if path.is_absolute() else path / os.pardir


def _assigned_once(module: Module) -> dict[str, ast.expr]:
    """The variables of the file that are given one value, by a plain assignment."""
    found: dict[str, list[ast.expr]] = {}
    for node in module.nodes_of(ast.Assign):
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}
