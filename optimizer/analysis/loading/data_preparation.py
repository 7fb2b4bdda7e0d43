"""Statements that download or write the data of a training, which only one of several processes may do at a time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from ..calls.reach import Reached, reached_nodes
from ..calls.signatures import call_argument
from ..distributed.log_files import is_log
from ..facts import Fact
from ..obstacles import Obstacle
from ..program.statements import ends_block
from ..program.syntax import FunctionNode, Module
from ..training.loops import is_forward
from ..values.resolver import Resolver

_DOWNLOADS = re.compile(
    r"urllib\.request\.urlretrieve|torch\.hub\.(download_url_to_file|load_state_dict_from_url|load)|wget\.download|"
    r"gdown\.\w+|torchvision\.datasets\.utils\.\w+|(huggingface_hub|datasets)\.(snapshot_download|load_dataset)|"
    r"zipfile\.ZipFile\.extractall|tarfile\.\w+\.extractall|shutil\.(copy\w*|move|unpack_archive)|os\.(replace|rename)"
)
_SHELLS = frozenset(
    {"os.system", "os.popen"}
    | {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}
)
_COMMANDS = re.compile(r"\b(wget|curl|aria2c|gdown|kaggle|git clone|unzip|gunzip|tar|7z)\b")
"""Programs that fetch or unpack data."""
_WRITING_METHODS = frozenset(
    {"save", "extractall", "write_bytes", "write_text", "to_csv", "to_pickle"}
)
_WRITERS = frozenset(
    {"torch.save", "numpy.save", "numpy.savez", "json.dump", "pickle.dump", "cv2.imwrite"}
)
_LOOKS = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir", "listdir", "glob"})


@dataclass(frozen=True, eq=False)
class Preparation(Fact):
    """Sibling statements from ``node`` to ``last`` that prepare the data, and the ``functions`` that do it for them."""

    node: ast.stmt
    last: ast.stmt
    functions: frozenset[FunctionNode | ast.Lambda]


def find_preparations(
    resolver: Resolver,
    before: Sequence[ast.stmt],
    module: Module,
    together: Set[ast.AST],
    *,
    looked: bool = False,
) -> list[Preparation] | Obstacle:
    """What prepares data among the statements ``before`` the training, or what would write it over and over.

    Neighbours are one preparation, but for those between which the processes do something ``together``, for which one of
    them cannot wait. ``looked`` says that it was asked already whether the data is there.
    """
    found: list[Preparation] = []
    goes_on = False
    for statement in before:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        everything = list(reached_nodes(resolver, [statement], module))
        meeting = next((r for r in everything if r.node in together), None)
        reached = list(reached_nodes(resolver, _going_on(statement), module))
        writes = [r for r in reached if _writes(resolver, r)]
        if not writes:
            goes_on = goes_on and meeting is None and not _runs_network(resolver, everything)
            continue
        looks = any(_looks(r) for r in reached) or any(_looks_itself(resolver, r) for r in writes)
        branches = _decided(statement, together)
        if branches:
            for branch in branches:
                inner = find_preparations(resolver, branch, module, together, looked=looks)
                if isinstance(inner, Obstacle):
                    return inner
                found += inner
            goes_on = False
            continue
        if not looked and not looks:
            why = "every process would write this anew, and nothing is seen that looks whether it is there"
            return Obstacle(writes[0].module, writes[0].node, why)
        if meeting is not None:
            why = "the first process would wait for the others here, which wait for it to prepare the data"
            return Obstacle(meeting.module, meeting.node, why)
        functions = {
            function
            for r in reached
            if not r.direct
            and isinstance(r.node, ast.stmt)  # operators are shared between all places
            and (function := r.module.function(r.node)) is not None
        }
        if goes_on:
            begun = found.pop()
            found.append(Preparation(module, begun.node, statement, begun.functions | functions))
        else:
            found.append(Preparation(module, statement, statement, frozenset(functions)))
        goes_on = True
    return found


def _decided(statement: ast.stmt, together: Set[ast.AST]) -> list[list[ast.stmt]]:
    """The branches of a test that all processes decide alike; none where an ``elif`` is one, above which nothing can stand."""
    if not isinstance(statement, ast.If) or statement.test not in together:
        return []
    is_chain = any(isinstance(each, ast.If) for each in statement.orelse[:1])
    return [] if is_chain else [statement.body, statement.orelse]


def _going_on(statement: ast.stmt) -> Iterator[ast.AST]:
    """What of ``statement`` may run if the training does: not the branches that end the script, such as a test of it."""
    if not isinstance(statement, ast.If):
        yield statement
        return
    yield statement.test
    for branch in (statement.body, statement.orelse):
        if branch and not ends_block(branch[-1]):
            for inner in branch:
                yield from _going_on(inner)


def _runs_network(resolver: Resolver, reached: Iterable[Reached]) -> bool:
    calls = ((r.node, r.module) for r in reached if isinstance(r.node, ast.Call))
    return any(is_forward(resolver, call, module) for call, module in calls)


def _writes(resolver: Resolver, reached: Reached) -> bool:
    call = reached.node
    if not isinstance(call, ast.Call):
        return False
    if _downloads(resolver, call, reached.module):
        return True
    names = resolver.names(call.func, reached.module)
    if names & _SHELLS:
        return any(_COMMANDS.search(reached.module.code(given)) for given in call.args[:1])
    if names:
        return any(_DOWNLOADS.fullmatch(n) or n in _WRITERS for n in names) or (
            "builtins.open" in names
            and _is_written(call)
            and not is_log(resolver, call, reached.module)
        )
    return isinstance(call.func, ast.Attribute) and call.func.attr in _WRITING_METHODS


def _downloads(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` makes a dataset of a library that is told to download itself."""
    download = call_argument(call, "download")
    names = resolver.names(call.func, module)
    if download is None or not any(n.startswith(("torchvision.", "torchaudio.")) for n in names):
        return False
    return not (isinstance(download, ast.Constant) and not download.value)


def _is_written(call: ast.Call) -> bool:
    mode = call_argument(call, "mode", 1)
    return (
        isinstance(mode, ast.Constant) and isinstance(mode.value, str) and mode.value[:1] in "wax"
    )


def _looks(reached: Reached) -> bool:
    node = reached.node
    if isinstance(node, ast.Call):
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        return name in _LOOKS
    return False


def _looks_itself(resolver: Resolver, reached: Reached) -> bool:
    """Whether a library looks for the data by itself before it writes any."""
    call = reached.node
    if not isinstance(call, ast.Call):
        return False
    names = resolver.names(call.func, reached.module)
    return _downloads(resolver, call, reached.module) or any(
        n.startswith(("datasets.", "huggingface_hub.", "torch.hub.")) for n in names
    )


def prepared_by(preparation: Preparation) -> Iterator[ast.stmt]:
    """The sibling statements from the first to the last that prepare data."""
    block = preparation.module.block(preparation.node)
    yield from block[block.index(preparation.node) : block.index(preparation.last) + 1]
