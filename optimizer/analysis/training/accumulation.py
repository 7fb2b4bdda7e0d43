"""Whether a training loop can add up the gradients of several smaller batches before each step, and what that takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from ...rewriting.edits import FileEdit, RemoveStatement, ReplaceExpression, ReplaceStatement, Wrap
from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..facts import CallFact, DataLoader, Fact, Optimizer, not_one
from ..loading.batch_index import BatchIndex, batch_index, is_enumerate
from ..networks.models import may_be_lbfgs
from ..networks.trained import trained_networks
from ..obstacles import Obstacle
from ..optimizers.gradient_clearing import other_gradient_use
from ..precision.precision import FrameworkUse
from ..program.syntax import Module
from ..program.trees import child_nodes, walk
from ..script import TrainingScript
from ..values.resolver import Resolver
from ..values.values import External, Made
from .batch_division import BatchDivision, divide_batches
from .batch_targets import BatchTargets
from .loops import WRAPPING_ITERATORS, backward_calls
from .loss_reductions import LossReductions
from .mean_losses import compares_samples, keeps_state, not_a_mean, sets_reduction
from .reductions import Reduction
from .steps import Backward, StepCode, Update

_PROGRESS_BARS = frozenset(n for n in WRAPPING_ITERATORS if n.startswith(("tqdm.", "rich.")))
_CLIPPING = frozenset(
    f"torch.nn.utils.{inside}{name}"
    for inside in ("", "clip_grad.")
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
)
_HOOKS = re.compile(r"register_\w*hook|swa_utils|torch_ema|DistributedDataParallel")
_AVERAGES = re.compile(r"ema\b|ema_|swa|averaged|teacher|target_net|momentum_update", re.IGNORECASE)
_NETWORK_METHODS = frozenset({"train", "eval", "state_dict", "forward", "training", "zero_grad"})
_WITH_SETTING = frozenset(
    {"Accelerate", "DeepSpeed", "Lightning", "the Hugging Face Trainer", "Composer", "MMEngine"}
)
_ABOUT_GRADIENTS = re.compile(r"zero|clear|reset|grad|clean", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Accumulation(Fact):
    """A training loop whose steps can each be made of several smaller batches; ``edits`` make them so."""

    parts: int
    batch: BatchDivision
    edits: tuple[FileEdit, ...]


class _NotPossibleError(Exception):
    def __init__(self, fact: Fact) -> None:
        super().__init__()
        self.fact = fact


def find_accumulation(script: TrainingScript, step: StepCode, parts: int) -> Accumulation | Fact:
    """How the loop of ``step`` makes each step of ``parts`` smaller batches, or why it cannot."""
    try:
        return _Plan(script, step, parts).accumulation()
    except _NotPossibleError as error:
        return error.fact


class _Plan:
    def __init__(self, script: TrainingScript, step: StepCode, parts: int) -> None:
        self._script, self._step, self._parts = script, step, parts
        self._module: Module = step.module

    def accumulation(self) -> Accumulation:
        self._check_script()
        loop = self._step.node
        if not isinstance(loop, ast.For):
            self._refuse(self._step.node, "the loop over the batches is not in sight of the step")
        loader, loader_code = self._loader(loop)
        backward, update = self._backward, self._update
        self._check_block(loop, [backward.statement, update.statement])
        clearing = self._clearing(loop)
        applied = self._applied(loop, clearing)
        self._check_body(loop, applied)
        targets = BatchTargets(self._resolver, loop, self._module)
        if LossReductions(self._resolver, loop).of(self._loss, self._module) is Reduction.MIXED:
            why = "the loss hangs on a mean or a sum over the samples of a batch, or compares them, and the batch would be a smaller one"
            self._refuse(backward.node, why)
        self._refuse_if(not_a_mean(self._resolver, self._loss, self._module, targets))
        self._refuse_if(sets_reduction(self._resolver))
        counter = batch_index(self._resolver, loop, self._module)
        if not isinstance(counter, BatchIndex):
            raise _NotPossibleError(counter)
        script = self._script
        batch = divide_batches(
            self._resolver,
            loader,
            self._parts,
            self._step.loop,
            script.loops,
            script.iterations,
            script.loaders,
        )
        if not isinstance(batch, BatchDivision):
            raise _NotPossibleError(batch)
        edits = [batch.edit, *counter.edits, self._scaled_loss()]
        edits += self._conditions(counter, loader_code, applied, clearing)
        return Accumulation(self._module, backward.node, self._parts, batch, tuple(edits))

    @property
    def _resolver(self) -> Resolver:
        return self._script.resolver

    @property
    def _backward(self) -> Backward:
        return self._step.backwards[0]

    @property
    def _update(self) -> Update:
        return self._step.updates[0]

    @property
    def _optimizer(self) -> Optimizer:
        return self._script.optimizers[0]

    @cached_property
    def _nodes(self) -> tuple[Reached, ...]:
        """What the loop runs, but for the forward passes of networks."""
        return tuple(reached_nodes(self._resolver, self._step.body, self._module))

    @cached_property
    def _loss(self) -> ast.expr:
        """The loss, without the scaling that float16 needs."""
        match self._backward.loss:
            case ast.Call(
                func=ast.Attribute(value=scaler, attr="scale"), args=[loss], keywords=[]
            ) if self._is_scaler(scaler):
                return loss
            case loss:
                return loss

    def _refuse(self, node: ast.AST, why: str) -> NoReturn:
        raise _NotPossibleError(Obstacle(self._module, node, why))

    def _refuse_if(self, fact: Fact | None) -> None:
        if fact is not None:
            raise _NotPossibleError(fact)

    def _made_by(self, expression: ast.expr, test: Callable[[str], bool]) -> bool:
        """Whether ``expression`` is certainly what a library call made whose name passes ``test``."""
        values = self._resolver.values(expression, self._module)
        return bool(values) and all(
            isinstance(v, Made) and isinstance(v.maker, External) and test(v.maker.name)
            for v in values
        )

    def _is_scaler(self, expression: ast.expr) -> bool:
        return self._made_by(expression, lambda name: name.endswith("GradScaler"))

    def _is_optimizer(self, expression: ast.expr) -> bool:
        values = self._resolver.values(expression, self._module)
        return bool(values) and all(
            isinstance(v, Made) and v.call is self._optimizer.node for v in values
        )

    def _check_script(self) -> None:
        script, resolver = self._script, self._resolver
        framework = next(iter(script.frameworks), None)
        if framework is not None:
            raise _NotPossibleError(framework_obstacle(framework))
        place = self._backward.node
        if len(script.optimizers) != 1:
            self._refuse(place, not_one(script.optimizers, "optimizer", "optimizers"))
        if self._optimizer.cls is not None or may_be_lbfgs(resolver, self._optimizer):
            self._refuse(place, "the optimizer is not one that takes one step for one gradient")
        every = [Reached(n, module, True) for module in script.modules for n in module.nodes]
        step = self._step
        for backwards in (backward_calls(every), step.backwards):
            if len(backwards) != 1:
                self._refuse(place, not_one(backwards, "backward pass", "backward passes"))
        updates = step.loop.optimizer_steps
        if len(updates) != 1:
            self._refuse(place, not_one(updates, "optimizer step", "optimizer steps"))
        if len(step.updates) != 1:
            self._refuse(place, "the optimizer steps inside a function of its own")
        self._refuse_if(_telling(other_gradient_use(resolver, ()), "the script uses gradients"))
        for module in script.modules:
            found = module.search(_HOOKS)
            if found is not None:
                why = f"`{found.group()}` sees every backward pass or step"
                raise _NotPossibleError(Obstacle(module, module.tree, why))
            if any({"len", "enumerate"} & set(s.bindings) for s in module.scopes.by_node.values()):
                raise _NotPossibleError(
                    Obstacle(module, module.tree, "`len` or `enumerate` is the script's own")
                )

    def _loader(self, loop: ast.For) -> tuple[DataLoader, str]:
        """The loader ``loop`` goes over, and how it is called there."""
        name = loop.iter
        if isinstance(name, ast.Call) and is_enumerate(self._resolver, name, self._module):
            name = name.args[0]
        if isinstance(name, ast.Call) and name.args:
            names = self._resolver.names(name.func, self._module)
            if names and names <= _PROGRESS_BARS:
                name = name.args[0]
        if not isinstance(name, ast.Name | ast.Attribute):
            self._refuse(loop.iter, "the loop does not go over a DataLoader in a variable")
        values = self._resolver.values(name, self._module)
        loaders = self._step.loop.loaders
        if len(loaders) != 1 or len(values) != 1:
            self._refuse(loop.iter, "the loop does not certainly go over one DataLoader")
        (value,) = values
        if not (isinstance(value, Made) and value.call is loaders[0].node):
            self._refuse(loop.iter, "the loop does not certainly go over one DataLoader")
        return loaders[0], self._module.code(name)

    def _check_block(self, loop: ast.For, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if statement not in loop.body:
                why = (
                    "the backward pass and the step do not stand in the loop itself, in every pass"
                )
                self._refuse(statement, why)
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
                self._refuse(statement, "its result is used")
        backward, update = self._backward.node, self._update.node
        if backward.args or backward.keywords:
            self._refuse(backward, "the backward pass has arguments of its own")
        if not isinstance(update.func, ast.Attribute) or update.func.attr != "step":
            self._refuse(update, "the step does more than an optimizer's")
        plain = (
            not update.args and not update.keywords and self._is_optimizer(self._update.optimizer)
        )
        scaled = (
            len(update.args) == 1
            and not update.keywords
            and self._is_scaler(self._update.optimizer)
            and self._is_optimizer(update.args[0])
        )
        if not plain and not scaled:
            self._refuse(update, "it is not certainly the optimizer that steps")
        if self._loss is self._backward.loss and scaled:
            self._refuse(backward, "the loss is not scaled where it is passed back")
        lines = [s.lineno for s in loop.body]
        if len(set(lines)) < len(lines) or loop.lineno == lines[0]:
            self._refuse(loop, "several statements share a line")

    def _clearing(self, loop: ast.For) -> ast.stmt:
        """The statement that clears the gradients."""
        calls = [
            CallFact(reached.module, reached.node, "zero_grad")
            for reached in self._nodes
            if isinstance(reached.node, ast.Call)
            and isinstance(reached.node.func, ast.Attribute)
            and reached.node.func.attr == "zero_grad"
        ]
        if len(calls) != 1:
            what = "of `zero_grad` in the loop"
            self._refuse(loop, not_one(calls, f"call {what}", f"calls {what}"))
        call = calls[0].node
        statement = next((s for s in loop.body if getattr(s, "value", None) is call), None)
        if not isinstance(statement, ast.Expr):
            self._refuse(loop, "`zero_grad` does not stand in the loop itself, in every pass")
        owner = next(iter(child_nodes(call.func)))
        assert isinstance(owner, ast.expr)
        if not self._is_optimizer(owner) and not self._is_trained(owner, self._module):
            code = self._module.code(owner)
            self._refuse(call, f"`{code}` is not certainly what the optimizer trains")
        places = (self._backward.statement, statement, self._update.statement)
        first, here, last = (loop.body.index(place) for place in places)
        if last < first or first < here < last:
            self._refuse(call, "gradients are not cleared, computed and applied in that order")
        return statement

    def _is_trained(self, expression: ast.expr, module: Module) -> bool:
        networks = trained_networks(self._resolver, self._script.optimizers)
        trained = {network.node for network in networks}
        found = self._script.models_of(expression, module)
        return len(trained) == 1 and bool(found) and {model.node for model in found} <= trained

    def _applied(self, loop: ast.For, clearing: ast.stmt) -> list[ast.stmt]:
        """The statements, side by side, that run once per step: clipping, the step, the schedule, the scaler."""
        backward = loop.body.index(self._backward.statement)
        found = [s for s in loop.body[backward + 1 :] if self._is_applying(s)]
        first, last = (loop.body.index(statement) for statement in (found[0], found[-1]))
        together = loop.body[first : last + 1]
        for statement in together:
            if statement not in found and statement is not clearing:
                why = "it stands between statements that would run once per step"
                self._refuse(statement, why)
        for reader in self._step.gradient_readers:
            if reader not in together:
                self._refuse(reader, "gradients are looked at in every pass")
        following = loop.body[last + 1 : last + 2]
        return [*together, *(s for s in following if s is clearing)]

    def _is_applying(self, statement: ast.stmt) -> bool:
        if statement is self._update.statement:
            return True
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        call = statement.value
        names = self._resolver.names(call.func, self._module)
        if names and names <= _CLIPPING:
            return True
        if not isinstance(call.func, ast.Attribute):
            return False
        owner, method = call.func.value, call.func.attr
        if method in {"unscale_", "update"}:
            return self._is_scaler(owner)
        is_schedule = method == "step" and not call.args and not call.keywords
        return is_schedule and self._made_by(owner, lambda name: "lr_scheduler." in name)

    def _check_body(self, loop: ast.For, applied: Sequence[ast.stmt]) -> None:
        """Nothing leaves a pass before its end, and nothing else in it counts or needs steps."""
        for node in lexical_nodes(loop.body):
            is_jump = isinstance(node, ast.Break | ast.Continue)
            if is_jump and self._module.loops(node)[0] is not loop:
                continue
            if is_jump or isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Await):
                self._refuse(node, "the loop may be left, or a batch skipped, within a step")
        inside = {node for statement in applied for node in walk(statement)}
        for reached in self._nodes:
            if reached.node not in inside:
                self._refuse_if(self._obstacle(reached))
        inner = [r for r in self._nodes if r.node not in inside]
        self._refuse_if(compares_samples(inner, self._resolver))
        self._refuse_if(keeps_state(self._resolver, self._step))

    def _obstacle(self, reached: Reached) -> Fact | None:
        node, module = reached.node, reached.module
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = module.code(node.func.value)
            if node.func.attr in {"step", "step_update"}:
                return Obstacle(module, node, f"`{owner}` counts steps in every pass")
            if _is_inplace(node.func.attr) and not _is_converted(node.func.value):
                return Obstacle(module, node, f"`{owner}` is changed in place, maybe the weights")
            if node.func.attr.startswith("update") and _AVERAGES.search(owner):
                return Obstacle(module, node, f"`{owner}` follows every step")
        if isinstance(node, ast.Attribute) and node.attr in {"parameters", "named_parameters"}:
            why = "the loop uses the parameters themselves, which change once per step only"
            return Obstacle(module, node, why)
        if isinstance(node, ast.Attribute) and node.attr == "param_groups":
            statement = module.statement(node)
            targets = [statement.iter] if isinstance(statement, ast.For) else []
            targets += getattr(statement, "targets", [getattr(statement, "target", None)])
            if any(node in set(walk(target)) for target in targets if target is not None):
                return Obstacle(module, node, "the loop sets the learning rate in every pass")
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            return self._use_of_network(node, module)
        return None

    def _use_of_network(self, node: ast.expr, module: Module) -> Fact | None:
        """Where ``node`` is a network and does more than run."""
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute) and parent.attr in _NETWORK_METHODS:
            return None
        if not self._is_trained(node, module):
            return None
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if isinstance(parent, ast.Call) and (
            parent.func is node or self._resolver.callees(parent, module)
        ):
            return None
        return Obstacle(module, parent, "the loop does more with the network than to run it")

    def _scaled_loss(self) -> FileEdit:
        loss, module = self._loss, self._module
        code = module.code(loss)
        if isinstance(loss, ast.BinOp | ast.UnaryOp):
            code = f"({code})"
        edit = ReplaceExpression(module.span(loss), f"{code} / {self._parts}")
        return FileEdit(module.path, edit)

    def _conditions(
        self, counter: BatchIndex, loader: str, applied: Sequence[ast.stmt], clearing: ast.stmt
    ) -> Iterator[FileEdit]:
        module, parts = self._module, self._parts
        moved = clearing not in applied and self._leads_to_backward(clearing)
        done = counter.name if counter.start else f"{counter.name} + 1"
        each = done if counter.start else f"({done})"
        header = f"if {each} % {parts} == 0 or {done} == len({loader}):"
        first, last = module.span(applied[0]), module.span(applied[-1])
        yield FileEdit(module.path, Wrap(first, last, header))
        if moved:
            code = f"{module.code(applied[-1])}\n{module.code(clearing)}"
            yield FileEdit(module.path, RemoveStatement(module.span(clearing)))
            yield FileEdit(module.path, ReplaceStatement(last, code))
        elif clearing not in applied:
            span = module.span(clearing)
            header = f"if {counter.name} % {parts} == {counter.start}:"
            yield FileEdit(module.path, Wrap(span, span, header))

    def _leads_to_backward(self, clearing: ast.stmt) -> bool:
        """Whether ``clearing`` stands above the backward pass, below a comment that is about both."""
        module, block = self._module, self._module.block(clearing)
        if block[block.index(clearing) + 1] is not self._backward.statement:
            return False
        above = module.lines[clearing.lineno - 2].strip()
        return above.startswith("#") and not _ABOUT_GRADIENTS.search(above)


def framework_obstacle(use: FrameworkUse) -> Obstacle:
    """Why the step of a framework stays as it is."""
    setting = " and has a setting for this" if use.framework in _WITH_SETTING else ""
    return Obstacle(use.module, use.node, f"{use.framework} runs the step in its own way{setting}")


def _is_inplace(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")


def _is_converted(tensor: ast.expr) -> bool:
    """Whether ``tensor`` is a converted one, as of images that come as bytes: no weight."""
    while isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute):
        if tensor.func.attr in {"float", "clone"}:
            return True
        tensor = tensor.func.value
    return False


def _telling(fact: Fact | None, why: str) -> Fact | None:
    return None if fact is None else Obstacle(fact.module, fact.node, why)
