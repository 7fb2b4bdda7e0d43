"""Wrong and correct rewrites of the corpus scripts, kept as patches.

``mutants/<script>/<name>.patch`` and ``controls/<script>/<name>.patch`` hold a header like an e-mail's, an empty line,
and a unified diff against the files of ``corpus/<script>`` or of ``scripts/<script>``, small scripts of other shapes:

``Class``
    what the rewrite is about, for the score's table.
``Why``
    what is wrong, or why it is right.
``Tier``
    what the rewrite claims: ``numeric`` unless given.
``Findings``, ``Step``
    of a mutant: the kinds of finding that explain it, one of which must be the verdict's reason, and the latest step
    it may be seen at.
``Base``
    a patch that is applied before (``controls/gpt_lm/bf16``): the rewrite that the mistake was made in.
``Select``
    of a control without a diff: torchopt's own rewrite, with these transforms or ``all``.
``Emulate``
    ``cuda``: both versions run on an emulated CUDA device, and torchopt's own rewrite is made for CUDA.
``Processes``
    how many processes torchrun starts the rewrite as; one without torchrun unless given.
``Unseen``
    of a mutant: why no run on this machine can show it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from fnmatch import fnmatch
from pathlib import Path

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.environment import inspect_environment
from torchopt_cli.optimizer.options import Options, Target, Tier
from torchopt_cli.optimizer.pipeline.rewrite import rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.transforms.registry import all_transforms

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "corpus"
SCRIPTS = HERE / "scripts"
HEADERS = frozenset(
    {"Class", "Why", "Tier", "Findings", "Step", "Base", "Select"}
    | {"Emulate", "Processes", "Unseen"}
)


class BadCase(Exception):
    """A patch that cannot be read, or no longer fits the script."""


@dataclass(frozen=True)
class Case:
    """One rewrite of ``script``; ``wrong`` tells a mutant from a control. The rest is what its header says."""

    path: Path
    script: str
    wrong: bool
    group: str
    why: str
    tier: Tier
    findings: frozenset[Kind] = frozenset()
    step: int | None = None
    base: str | None = None
    select: str | None = None
    emulated: bool = False
    unseen: str | None = None
    processes: int | None = None

    @property
    def name(self) -> str:
        return self.path.relative_to(HERE).with_suffix("").as_posix()

    @property
    def folder(self) -> Path:
        """Where the script is."""
        return script_folder(self.script)

    def changed(self) -> dict[Path, str]:
        """The texts of the rewritten files. Raises BadCase when a patch does not fit."""
        if self.select is not None:
            return _rewritten(self)
        patches = [self.path]
        if self.base is not None:
            patches.insert(0, HERE / f"{self.base}.patch")
        return _patched(self.script, patches)


def script_folder(script: str) -> Path:
    """The folder of a corpus script, or of one that is there for the checker alone."""
    own = SCRIPTS / script
    return own if own.exists() else CORPUS / script


def cases(*patterns: str) -> list[Case]:
    """Every case whose name (``mutants/vae/kl-mean``) holds or matches one of ``patterns``, sorted by script."""
    found = [read(path) for path in HERE.glob("*/*/*.patch")]
    wanted = [
        case
        for case in found
        if any(pattern in case.name or fnmatch(case.name, pattern) for pattern in patterns)
    ]
    return sorted(wanted, key=lambda case: (case.script, case.name))


def read(path: Path) -> Case:
    """The case in ``path``. Raises BadCase when its header is not as described above."""
    header = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
    unknown = set(header) - HEADERS
    kind, script = path.relative_to(HERE).parts[:2]
    given = {name: " ".join(str(text).split()) for name, text in header.items()}
    missing = {"Class", "Why"} - set(given)
    if kind == "mutants" and "Unseen" not in given:
        missing |= {"Findings"} - set(given)
    if given.get("Emulate", "cuda") != "cuda":
        raise BadCase(f"{path}: emulates {given['Emulate']}")
    if unknown or missing or kind not in ("mutants", "controls"):
        raise BadCase(f"{path}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    try:
        return Case(
            path,
            script,
            kind == "mutants",
            given["Class"],
            given["Why"],
            Tier[given.get("Tier", "numeric").upper()],
            frozenset(Kind(name) for name in given.get("Findings", "").split()),
            int(given["Step"]) if "Step" in given else None,
            given.get("Base"),
            given.get("Select"),
            given.get("Emulate") == "cuda",
            given.get("Unseen"),
            int(given["Processes"]) if "Processes" in given else None,
        )
    except (KeyError, ValueError) as error:
        raise BadCase(f"{path}: {error}") from None


def _patched(script: str, patches: Sequence[Path]) -> dict[Path, str]:
    """The files of ``script`` that ``patches`` change, as they are after them."""
    source = script_folder(script)
    with tempfile.TemporaryDirectory(prefix="torchopt-") as folder:
        copy = Path(folder) / script
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        # git would otherwise skip, without a word, what does not belong to the repository around it
        outside = {**os.environ, "GIT_CEILING_DIRECTORIES": folder}
        for patch in patches:
            command = ["git", "apply", "--whitespace=nowarn", str(patch)]
            applied = subprocess.run(
                command, cwd=copy, env=outside, capture_output=True, text=True, check=False
            )
            if applied.returncode:
                raise BadCase(
                    f"{patch}: does not fit {source.parent.name}/{script} any more; write it again: {applied.stderr}"
                )
        changed = {
            source / file.relative_to(copy): file.read_text(encoding="utf-8")
            for file in copy.rglob("*.py")
        }
    changed = {path: text for path, text in changed.items() if text != path.read_text("utf-8")}
    if not changed:
        raise BadCase(f"{patches[-1]}: changes nothing")
    return changed


def _rewritten(case: Case) -> dict[Path, str]:
    """What torchopt makes of the script."""
    names = frozenset() if case.select == "all" else frozenset((case.select or "").split())
    here = inspect_environment(Path(sys.executable))
    assert here.torch_version is not None
    options = Options(
        tier=case.tier,
        target=Target.CUDA if case.emulated else Target.AUTO,
        select=names,
        python_version=here.python_version,
        torch_version=here.torch_version,
    )
    result = rewrite_script(case.folder / "train.py", Sources(), all_transforms(), options)
    changed = {file.path: file.text for file in result.files if file.changed}
    if not changed:
        raise BadCase(f"{case.path}: torchopt changes nothing")
    return changed
