"""Which code only tells or saves something: prints, logs, draws, writes checkpoints."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from ..calls.reach import reached_nodes
from ..program.module_names import reads_of
from ..program.syntax import LoopNode, Module
from ..program.trees import walk
from ..training.loops import is_forward
from ..values.resolver import Resolver
from ..values.values import Attribute, Element, External, Made, Value

RUN = "wandb.init"
"""The call that begins a run, whose answer the script goes on to use."""
_ACTIONS = frozenset(
    {
        "builtins.print",
        "sys.stdout.write",
        "sys.stdout.flush",
        "torch.save",
        "torch.jit.save",
        "torchvision.utils.save_image",
        "safetensors.torch.save_file",
        "safetensors.torch.save_model",
        "cv2.imwrite",
        "imageio.imwrite",
        "imageio.mimsave",
        "joblib.dump",
        "json.dump",
        "pickle.dump",
        "yaml.dump",
        "warnings.warn",
        *(f"numpy.{name}" for name in ("save", "savez", "savez_compressed", "savetxt")),
        *(
            f"os.{name}"
            for name in "link mkdir remove rename renames replace rmdir symlink unlink".split()
        ),
        *(f"shutil.{name}" for name in "copy copy2 copyfile copytree move rmtree".split()),
        *(f"tqdm.{module}tqdm.write" for module in ("", "auto.", "notebook.", "std.")),
    }
)
_ACTING_PACKAGES = (
    "logging.",
    "wandb.",
    "matplotlib.",
    "mlflow.",
    "neptune.",
    "loguru.",
    "tensorboard_logger.",
)
_FOR_ALL = frozenset({RUN, "matplotlib.use", "matplotlib.pyplot.switch_backend"})
"""Of these packages, what every process has to do."""
_WRITERS = re.compile(
    r"(SummaryWriter|logging\.getLogger|tqdm|pyplot\.\w+|builtins\.open|wandb\.init|csv\.(writer|DictWriter)|"
    r"PIL\.Image\.\w+)$"
)
_ACTING_METHODS = re.compile(
    r"add_\w+|log|debug|info|warning|error|write|writelines|writerows?|writeheader|flush|close|savefig|set_postfix\w*|"
    r"set_description\w*|update|save|to_csv|finish|watch|dump"
)

_SAVING_METHODS = frozenset(
    "save_pretrained symlink_to to_csv to_excel to_feather to_hdf to_json to_parquet to_pickle touch unlink write_bytes "
    "write_text".split()
)
"""Methods of tables, paths and networks that are only called to write a file, or to take one away."""
_DRAWING = "matplotlib."
_PREPARING = (_DRAWING, "csv.", "datetime.", "json.dumps", "os.path.", "pandas.DataFrame", "time.")
_BUILTINS = frozenset(
    f"builtins.{name}"
    for name in "dict float int len list max min round sorted str sum zip".split()
)
"""With those packages, functions whose result may be what is told next."""
_PLAIN_METHODS = frozenset(
    "append center extend flush format get insert item items join keys ljust lower lstrip pop read replace rjust rstrip "
    "split strftime strip total_seconds upper values write zfill".split()
)
_BAR_METHODS = re.compile(r"set_postfix\w*|set_description\w*|update")


class Telling:
    """Which statements of a module only tell or save."""

    def __init__(
        self, resolver: Resolver, module: Module, left_out: Collection[ast.AST] = ()
    ) -> None:
        self._resolver, self._module, self._left_out = resolver, module, left_out

    def is_action(self, statement: ast.stmt) -> bool:
        """Whether ``statement`` does nothing but tell or save, and no other process waits for it."""
        if statement in self._left_out or not self._only_acts(statement):
            return False
        for reached in reached_nodes(self._resolver, [statement], self._module, into_forward=True):
            node, module = reached.node, reached.module
            if isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await):
                return False
            if isinstance(node, LoopNode) and not (reached.direct or self._is_told(node, module)):
                return False
            if isinstance(node, ast.Call) and is_forward(self._resolver, node, module):
                return False
        return True

    def _is_told(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` is in a function that only writes to the terminal."""
        function = module.function(node)
        return function is not None and tells(self._resolver, function, module)

    def told_result(self, statement: ast.Expr) -> ast.expr | None:
        """The one argument of a call that tells, which runs a network."""
        call = statement.value
        if not isinstance(call, ast.Call) or not self.acts(call):
            return None
        heavy = [
            argument
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(
                isinstance(reached.node, ast.Call)
                and is_forward(self._resolver, reached.node, reached.module)
                for reached in reached_nodes(self._resolver, [argument], self._module)
            )
        ]
        alone = len(heavy) == 1 and not isinstance(heavy[0], ast.Starred)
        return heavy[0] if alone else None

    def _only_acts(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Expr(value=ast.Call() as call):
                return self.acts(call)
            case ast.If(body=body, orelse=orelse):
                inner = [*body, *orelse]
                return all(self._only_acts(s) or isinstance(s, ast.Pass) for s in inner) and any(
                    self._only_acts(s) for s in inner
                )
            case ast.With(body=body):
                acting = [s for s in body if self._only_acts(s)]
                others = [s for s in body if s not in acting]
                return bool(acting) and all(self.prepares(s, [statement]) for s in others)
            case ast.For(body=body, orelse=[]):
                return all(map(self._only_acts, body))
            case _:
                return False

    def draws(self, statement: ast.stmt) -> bool:
        """Whether ``statement`` begins a drawing, or a part of one: ``fig, ax = plt.subplots()``, ``ax = fig.add_subplot()``."""
        match statement:
            case ast.Assign(value=ast.Call(func=function)):
                names = self._resolver.names(function, self._module)
                if not names and isinstance(function, ast.Attribute):
                    return self._is_drawing(function.value)
                return bool(names) and all(name.startswith(_DRAWING) for name in names)
            case _:
                return False

    def prepares(self, statement: ast.stmt, told: Sequence[ast.stmt]) -> bool:
        """Whether ``statement`` puts together, for the statements ``told`` alone, what they tell."""
        if not isinstance(statement, ast.Assign) or statement in self._left_out:
            return False
        inside = {node for one in told for node in walk(one)}
        for node in walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                reads = reads_of(self._resolver, node, self._module)
                if not all(read in inside for read, _ in reads):
                    return False
            elif isinstance(node, ast.Attribute | ast.Subscript):
                if not isinstance(node.ctx, ast.Load):
                    return False
            elif isinstance(node, ast.Call) and not self._puts_together(node):
                return False
        return True

    def _puts_together(self, call: ast.Call) -> bool:
        names = self._resolver.names(call.func, self._module)
        if names:
            return all(name.startswith(_PREPARING) or name in _BUILTINS for name in names)
        if self._resolver.callees(call, self._module) or not isinstance(call.func, ast.Attribute):
            return False
        if call.func.attr in {"format", "join", "strftime", "item", "isoformat"}:
            return True
        return self._is_drawing(call.func.value)

    def is_bar(self, call: ast.Call) -> bool:
        """Whether ``call`` changes what a progress bar shows."""
        if not isinstance(call.func, ast.Attribute) or not _BAR_METHODS.fullmatch(call.func.attr):
            return False
        makers = self._resolver.maker_names(call.func.value, self._module)
        return bool(makers) and all("tqdm" in name for name in makers)

    def acts(self, call: ast.Call) -> bool:
        """Whether ``call`` tells or saves."""
        callees = self._resolver.callees(call, self._module)
        if callees:
            return all(tells(self._resolver, callee.node, callee.module) for callee in callees)
        names = self._resolver.names(call.func, self._module)
        if names:
            return all(
                n in _ACTIONS or (n.startswith(_ACTING_PACKAGES) and n not in _FOR_ALL)
                for n in names
            )
        if not isinstance(call.func, ast.Attribute):
            return False
        if call.func.attr in _SAVING_METHODS or self._is_drawing(call.func.value):
            return True
        makers = self._resolver.maker_names(call.func.value, self._module)
        acting = _ACTING_METHODS.fullmatch(call.func.attr)
        return bool(acting and makers) and all(_WRITERS.search(name) for name in makers)

    def _is_drawing(self, node: ast.expr) -> bool:
        """Whether ``node`` is a figure of matplotlib's, one of its axes, or a part of them: ``axes.title``."""
        wholes = set(map(_whole, self._resolver.values(node, self._module)))
        return bool(wholes) and all(
            isinstance(value, Made)
            and isinstance(value.maker, External)
            and value.maker.name.startswith(_DRAWING)
            for value in wholes
        )


def _whole(value: Value) -> Value:
    """What ``value`` is a part of."""
    while isinstance(value, Element | Attribute):
        value = value.of
    return value


def tells(resolver: Resolver, function: ast.AST, module: Module) -> bool:
    """Whether ``function`` writes to the terminal and does nothing that has to do with the training: a progress bar."""
    if not isinstance(function, ast.FunctionDef):
        return False
    sites = resolver.call_sites(function)
    if not sites or not all(isinstance(s.module.parents[s.call], ast.Expr) for s in sites):
        return False
    libraries: set[str] = set()
    for reached in reached_nodes(resolver, function.body, module):
        if isinstance(reached.node, ast.Call):
            names = resolver.names(reached.node.func, reached.module)
            if not names and not _is_plain(resolver, reached.node, reached.module):
                return False  # a network's, maybe, or an optimizer's
            libraries |= names
    told = ("builtins.", "sys.std", "time.", "math.", "os.popen", "shutil.get_terminal_size")
    writes = libraries & {"builtins.print", "sys.stdout.write", "sys.stderr.write"}
    return bool(writes) and all(name.startswith(told) for name in libraries)


def _is_plain(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is one of the script's own functions, or a method that texts, numbers and lists have."""
    if resolver.callees(call, module):
        return True
    return isinstance(call.func, ast.Attribute) and call.func.attr in _PLAIN_METHODS
