"""The two versions of a script that are run against each other, and where the second one runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..analysis import understand
from ..analysis.distributed.process_groups import joins_process_group
from ..analysis.program.project import load_project
from ..source import Sources, parse
from .runner import ScriptVersion


def beside(original: Path, rewritten: Path, args: tuple[str, ...]) -> ScriptVersion:
    """The version in the file ``rewritten``, where it finds the modules it imports.

    In the folder of ``original`` it runs in its place, so that what it names by its own name (``Path(__file__).stem``,
    ``sys.argv[0]``) has the same name in both versions, unless it imports ``original``. From another folder it runs where it is
    when that has everything of the project that it imports, and writes what it writes there as in the folder of ``original``. Otherwise
    it runs in the place of ``original`` (and each module it brings along in the place of the module of
    that name), so that a copy put elsewhere still finds its project. Raises TorchoptError when it
    cannot be read.
    """
    sources = Sources()
    text = sources.read(rewritten).text
    parse(sources.read(rewritten))
    brought = {module.name: module for module in load_project(rewritten, sources).modules[1:]}
    if rewritten.parent.resolve() == original.parent.resolve():
        beside_it = {rewritten, *(module.path for module in brought.values())}
        if original.resolve() in {path.resolve() for path in beside_it}:
            return ScriptVersion(rewritten, args=args)
        return ScriptVersion(original, {original: text}, args, brought_by=rewritten)
    in_place = sources.with_texts({original: text})
    needed = {module.name: module for module in load_project(original, in_place).modules[1:]}
    if brought and brought.keys() >= needed.keys():
        return ScriptVersion(rewritten, args=args, written_in=original.parent)
    overrides = {original: text}
    for name in brought.keys() & needed.keys():
        if brought[name].path.resolve() != needed[name].path.resolve():
            overrides[needed[name].path] = brought[name].source.text
    return ScriptVersion(original, overrides, args, brought_by=rewritten)


def original_version(
    original: Path, args: tuple[str, ...], processes: int | None = None
) -> ScriptVersion:
    """The script ``original`` as it is, started by torchrun as so many ``processes`` if it is written for that.

    Raises TorchoptError when it cannot be read.
    """
    return by_torchrun(ScriptVersion(original, args=args), processes)


def by_torchrun(original: ScriptVersion, processes: int | None) -> ScriptVersion:
    """The version ``original``, started by torchrun as so many ``processes`` if it is written for that."""
    if processes is None:
        return original
    sources = Sources().with_texts(original.overrides)
    distributed = joins_process_group(understand(original.entry, sources).resolver)
    return replace(original, processes=processes if distributed else None)
