"""Reads the files of a dataset into memory once, still encoded, where `__getitem__` opened them in every epoch.

A network file system, a cold page cache or thousands of small files can make reading slower than decoding. The files
as they are on disk, JPEGs for instance, are small beside the images they hold, and often fit into memory: then they
are read once, when the dataset is made, and `__getitem__` decodes them from there, bit for bit the same. They lie in
one tensor, which forked worker processes share; spawned ones get it through shared memory. There is no copy per worker.

Only with `--select ram-dataset`: whether the files fit into memory is for the user to say, and so is that nothing
changes them while the script runs. With several processes per machine (DDP), each holds the files it makes a dataset of.

What is rewritten: `Image.open(path)`, `np.load(path)`, `torch.load(path)` and `open(path, "rb")` in `__getitem__` of a dataset
class of the project, the path being an element of a list that `__init__` keeps (`self.paths[index]`), or put together
from one. A path that is not in the list after all is opened from disk as before.

Left alone: paths that depend on anything else than such an element and what `__init__` sets; files that are opened as text,
mapped into memory, or opened by a function that `__getitem__` calls; `cv2.imread` and others that take a path only;
datasets that write files, that others derive from, or that are gone over once.

Source: https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading and
https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.open
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.editing.free_names import free_name
from ..optimizer.analysis.editing.references import quoted, reference
from ..optimizer.analysis.editing.replacing import replacement
from ..optimizer.analysis.loading.file_reads import FileRead, FileReader
from ..optimizer.analysis.loading.passes import passes_repeat
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertAfter, InsertBefore
from .base import Change, Example, Skip, Stage, StepPart, Transform

_CLASS_NAMES = ("FilesInMemory", "DatasetFilesInMemory")
_ATTRIBUTES = ("files", "files_in_memory", "cached_files")
_BUILTINS = frozenset({"open", "dict", "slice"})
"""What the class calls."""
_CLASS = '''\
class {name}:
    """The contents of files in one tensor, which DataLoader workers share."""

    def __init__(self, paths):
        self.places, end = {{}}, 0
        for path in dict.fromkeys(paths):
            if {isfile}(path):
                start, end = end, end + {getsize}(path)
                self.places[path] = slice(start, end)
        self.data = {empty}(end, dtype={uint8})
        for path, place in self.places.items():
            with open(path, {mode}) as f:
                f.readinto(self.data[place].numpy())

    def open(self, path):
        if path not in self.places:
            return open(path, {mode})
        return {BytesIO}(self.data[self.places[path]].numpy())
'''


class RamDataset(Transform):
    name = "ram-dataset"
    tier = Tier.EXACT
    stage = Stage.DATA
    relieves = StepPart.DATA
    opt_in = True
    example = Example(
        before="""\
            import io
            import os

            import torch
            from PIL import Image
            from torch import nn
            from torch.utils.data import DataLoader, Dataset
            from torchvision.transforms.functional import to_tensor


            class Photos(Dataset):
                def __init__(self, root):
                    self.root = root
                    self.names = sorted(os.listdir(root))

                def __len__(self):
                    return len(self.names)

                def __getitem__(self, index):
                    photo = Image.open(os.path.join(self.root, self.names[index]))
                    return to_tensor(photo.convert("RGB"))


            loader = DataLoader(Photos("photos"), batch_size=64, shuffle=True)
            model = nn.Conv2d(3, 8, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(10):
                for photos in loader:
                    optimizer.zero_grad()
                    model(photos).square().mean().backward()
                    optimizer.step()
        """,
        after="""\
            import io
            import os

            import torch
            from PIL import Image
            from torch import nn
            from torch.utils.data import DataLoader, Dataset
            from torchvision.transforms.functional import to_tensor


            class FilesInMemory:
                \"\"\"The contents of files in one tensor, which DataLoader workers share.\"\"\"

                def __init__(self, paths):
                    self.places, end = {}, 0
                    for path in dict.fromkeys(paths):
                        if os.path.isfile(path):
                            start, end = end, end + os.path.getsize(path)
                            self.places[path] = slice(start, end)
                    self.data = torch.empty(end, dtype=torch.uint8)
                    for path, place in self.places.items():
                        with open(path, "rb") as f:
                            f.readinto(self.data[place].numpy())

                def open(self, path):
                    if path not in self.places:
                        return open(path, "rb")
                    return io.BytesIO(self.data[self.places[path]].numpy())


            class Photos(Dataset):
                def __init__(self, root):
                    self.root = root
                    self.names = sorted(os.listdir(root))
                    self.files = FilesInMemory(
                        [os.path.join(self.root, name) for name in self.names]
                    )

                def __len__(self):
                    return len(self.names)

                def __getitem__(self, index):
                    photo = Image.open(self.files.open(os.path.join(self.root, self.names[index])))
                    return to_tensor(photo.convert("RGB"))


            loader = DataLoader(Photos("photos"), batch_size=64, shuffle=True)
            model = nn.Conv2d(3, 8, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(10):
                for photos in loader:
                    optimizer.zero_grad()
                    model(photos).square().mean().backward()
                    optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        given_class: set[Module] = set()
        for reader in script.file_readers:
            readable = [read for read in reader.reads if read.obstacle is None]
            obstacle = reader.obstacle or _once(script, reader)
            for read in reader.reads:
                reason = read.obstacle or obstacle
                if reason is not None:
                    yield self.skip(read.path, read.span, f"read from disk: {reason}")
            if obstacle is None and readable and reader.module not in given_class:
                change = self._change(script, reader, readable)
                if isinstance(change, Change) and _own_class(reader.module) is None:
                    # Another dataset of the file finds the class there the next time it is asked.
                    given_class.add(reader.module)
                yield change

    def _change(
        self, script: TrainingScript, reader: FileReader, reads: list[FileRead]
    ) -> Change | Skip:
        module, first = reader.module, reads[0]
        rebound = _BUILTINS & module.scopes.by_node[module.tree].bindings.keys()
        if rebound:
            message = f"read from disk: `{min(rebound)}` means something else in this file"
            return self.skip(first.path, first.span, message)
        attribute = _free_attribute(script, reader)
        cls = _own_class(module) or free_name(module, _CLASS_NAMES)
        if attribute is None or cls is None or reader.init is None:
            return self.skip(first.path, first.span, "no name is free for the files in memory")
        edits = [] if _own_class(module) else _class_edits(module, reader.node, cls)
        instance = reader.init.args.args[0].arg
        paths = _all_paths(reads)
        last = module.span(reader.init.body[-1])
        kept = f"{instance}.{attribute} = {cls}({paths})"
        edits.append(FileEdit(module.path, InsertAfter(last, kept)))
        for read in reads:
            opened = f"{instance}.{attribute}.open({module.code(read.named)})"
            edits.append(replacement(module, read.argument, opened))
        return self.change(
            module.path,
            first.span,
            f"keeps the files of `{reader.node.name}` in memory",
            f"its items come from `{paths}`, read again in every epoch, and it writes no files",
            tuple(edits),
        )


def _once(script: TrainingScript, reader: FileReader) -> str | None:
    """Why keeping the files brings nothing: no loader goes over the dataset again."""
    for loader, datasets in script.datasets.items():
        reads = any(d.cls is not None and d.cls.node is reader.node for d in datasets)
        if reads and passes_repeat(script, loader):
            return None
    return "the dataset is gone over once"


def _all_paths(reads: list[FileRead]) -> str:
    lists = list(dict.fromkeys(read.every for read in reads if read.every is not None))
    return lists[0] if len(lists) == 1 else f"[{', '.join(f'*{paths}' for paths in lists)}]"


def _free_attribute(script: TrainingScript, reader: FileReader) -> str | None:
    """A name that neither the class uses nor, on something else than ``self``, any other code."""
    used = {
        node.attr
        for module in script.modules
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        and (
            module.enclosing_class(node) in {None, reader.node}
            or not (isinstance(node.value, ast.Name) and node.value.id == "self")
        )
    }
    return next((name for name in _ATTRIBUTES if name not in used), None)


def _own_class(module: Module) -> str | None:
    """The class of this transform that ``module`` already has."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and node.name in _CLASS_NAMES:
            written = ast.parse(_class_code(module, node.name)[0]).body[0]
            if ast.dump(written) == ast.dump(node):
                return node.name
    return None


def _class_edits(module: Module, before: ast.ClassDef, name: str) -> list[FileEdit]:
    code, imports = _class_code(module, name)
    return [FileEdit(module.path, InsertBefore(module.span(before), code)), *imports]


def _class_code(module: Module, name: str) -> tuple[str, list[FileEdit]]:
    library = {
        last: reference(module, f"{package}.{last}")
        for package, last in (
            ("os.path", "isfile"),
            ("os.path", "getsize"),
            ("torch", "empty"),
            ("torch", "uint8"),
            ("io", "BytesIO"),
        )
    }
    names = {last: spelled.code for last, spelled in library.items()}
    edits = [edit for spelled in library.values() for edit in spelled.edits]
    return _CLASS.format(name=name, mode=quoted(module, "rb"), **names), list(dict.fromkeys(edits))
