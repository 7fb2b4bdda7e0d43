"""Updates all parameters in one call instead of one by one: `torch._foreach_mul_`, `clip_grad_value_`.

A loop over parameters launches a kernel or several for each of them. Soft updates of target networks, moving averages of
weights and clipping by hand do so in every step, for work that takes next to no time on small tensors. PyTorch's foreach
functions take lists and, on a GPU, run one kernel over many tensors; its own optimizers and
`torch.optim.swa_utils` are built on them.

Done where the loop does one elementwise thing and nothing else:

- `t.data.copy_(tau * p.data + (1 - tau) * t.data)` over `zip(..)` of two networks' parameters, `t.data.mul_(m)` followed by
  `add_((1 - m) * p.data)` or `add_(p.data, alpha=1 - m)`, `lerp_`, and `t.data = m * t.data + (1 - m) * p.data`, which goes on giving each parameter
  other memory: the same operations in the same order, on lists. The two have to be seen to have equal parameters, none of which is a view
  of another: one is `copy.deepcopy` of the other, or both are made by equal calls.
- `p.grad.data.clamp_(-c, c)`: `torch.nn.utils.clip_grad_value_`.
- `p.data.clamp_(-c, c)`: one call per bound.

The numbers are the same, bit for bit. Only `add_(.., alpha=..)` and `lerp_`, which multiply and add at once, are numeric
changes on a GPU, where the kernels for lists are others and may round the product and the sum together or apart.

On a CPU the foreach functions go over the tensors one by one, without Python in between. With one thread on two busy x86-64
cores (torch 2.14, three linear layers, two such networks, ResNet-18 and ResNet-50, medians of 25 turns) `copy_` of a weighted sum
took 0.54 to 0.66 of the loop's time, the other averages in place 0.76 to 0.99. Assigning `t.data` took 0.97 to 1.09 of it, clipping 1.3 to
1.8 and clamping weights 1.0 to 1.7, so scripts that know no GPU keep those loops. A GPU has not been measured.

While they run, products of whole lists need memory for another copy of the weights, for three where `t.data` is assigned.

Left alone: loops that do more than that or only for some parameters; factors that may be no numbers; gradients that are
themselves differentiated; networks of which a part is replaced once they are made; `state_dict()`, which lists a weight that
has two names twice, and counters of batches.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html,
https://docs.pytorch.org/docs/stable/torch.html#foreach-operations and
https://github.com/pytorch/pytorch/blob/main/torch/optim/swa_utils.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..optimizer.analysis.autograd.grad_modes import suspended_around
from ..optimizer.analysis.editing.free_names import free_name
from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.facts import Fact, seen_at
from ..optimizer.analysis.networks.equal_networks import EqualNetworks
from ..optimizer.analysis.networks.network_layers import has_parameters
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.optimizers.parameter_loops import (
    ParameterLoop,
    kept_gradient_graph,
    read_later,
)
from ..optimizer.analysis.optimizers.parameter_updates import (
    Average,
    Clamp,
    Operand,
    Rule,
    symmetric_bound,
)
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.values.declared_numbers import is_declared_number
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, ReplaceStatement
from .base import Change, Example, Skip, Stage, StepPart, Transform

_FUSED = frozenset({Rule.ALPHA, Rule.LERP})
"""They multiply and add in one kernel, which on a GPU is another one for lists."""


class ForeachUpdates(Transform):
    name = "foreach-updates"
    tier = Tier.EXACT
    stage = Stage.EVALUATION  # ahead of autocast, which knows `clip_grad_value_` and not a loop
    rank = 2  # behind no-grad, which knows the loop
    relieves = StepPart.SCRIPT
    example = Example(
        before="""\
            import copy

            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            critic = nn.Sequential(nn.Linear(17, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
            critic_target = copy.deepcopy(critic)
            tau = 0.005

            for state, wanted in batches:
                loss = nn.functional.mse_loss(critic(state), wanted(critic_target))
                optimizer.zero_grad()
                loss.backward()
                for param in critic.parameters():
                    param.grad.data.clamp_(-1, 1)
                optimizer.step()
                for param, target_param in zip(critic.parameters(), critic_target.parameters()):
                    target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)
        """,
        after="""\
            import copy

            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            critic = nn.Sequential(nn.Linear(17, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
            critic_target = copy.deepcopy(critic)
            tau = 0.005

            for state, wanted in batches:
                loss = nn.functional.mse_loss(critic(state), wanted(critic_target))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_value_(critic.parameters(), 1)
                optimizer.step()
                params = [param.data for param in critic.parameters()]
                target_params = [target_param.data for target_param in critic_target.parameters()]
                updates = torch._foreach_mul(params, tau)
                torch._foreach_mul_(target_params, 1 - tau)
                torch._foreach_add_(target_params, updates)
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for loop in script.state_dict_loops:
            why = "`state_dict()` also lists counters, and a weight that has two names twice"
            yield self._skip(loop, why)
        equal = EqualNetworks(script.resolver)
        for loop in script.parameter_loops:
            if isinstance(loop.update, Average):
                why = _loop_refusal(script, loop) or _average_refusal(
                    script, loop, loop.update, equal, options
                )
                found = None if why else self._average(script, loop, loop.update, options)
            else:
                why = _loop_refusal(script, loop) or _clamp_refusal(
                    script, loop, loop.update, options
                )
                found = None if why else self._clamp(loop, loop.update)
            yield found or self._skip(loop, why or "names for the lists are taken")

    def _skip(self, loop: Fact, why: Fact | str) -> Skip:
        if isinstance(why, Obstacle):
            why = f"{why.message}{seen_at(why, loop)}"
        return self.skip(loop.path, loop.span, f"parameters are updated one by one: {why}")

    def _average(
        self, script: TrainingScript, loop: ParameterLoop, update: Average, options: Options
    ) -> Change | None:
        module = loop.module
        sources = free_name(module, _names_for(update.source, "params"))
        targets = free_name(module, _names_for(update.target, "targets", sources))
        updates = free_name(module, ("updates", "param_updates", "weighted_params"))
        one = free_name(module, ("update", "updated", "new_value"))
        if sources is None or targets is None or updates is None or one is None:
            return None
        foreach = reference(module, "torch._foreach")
        taken = module.unindented_code(update.taken)
        lines = [
            f"{sources} = {_listed(loop, update.source)}",
            f"{targets} = {_listed(loop, update.target)}",
        ]
        kept = "" if update.kept is None else module.unindented_code(update.kept)
        scale = f"{foreach.code}_mul_({targets}, {kept})"
        match update.rule:
            case Rule.SUM:
                lines.append(f"{updates} = {foreach.code}_mul({sources}, {taken})")
                lines += [scale, f"{foreach.code}_add_({targets}, {updates})"]
            case Rule.PRODUCT:
                added = f"{foreach.code}_mul({sources}, {taken})"
                lines += [scale, f"{foreach.code}_add_({targets}, {added})"]
            case Rule.ALPHA:
                lines += [scale, f"{foreach.code}_add_({targets}, {sources}, alpha={taken})"]
            case Rule.REBOUND:
                products = (
                    f"{foreach.code}_mul({targets}, {kept}), {foreach.code}_mul({sources}, {taken})"
                )
                lines.append(f"{updates} = {foreach.code}_add({products})")
                each, given = update.target.name, _iterated(loop, update.target)
                lines.append(f"for {each}, {one} in zip({given}, {updates}):")
                lines.append(f"    {each}.data = {one}")
            case Rule.LERP:
                lines.append(f"{foreach.code}_lerp_({targets}, {sources}, {taken})")
        edit = FileEdit(loop.path, ReplaceStatement(loop.span, "\n".join(lines)))
        change = self.change(
            loop.path,
            loop.span,
            "updates the parameters of a network all at once",
            "the networks have equal parameters, and each gets the same operations in the same order",
            (edit, *foreach.edits),
        )
        numeric = update.rule in _FUSED and not script.is_for_cpu(options)
        return replace(change, tier=Tier.NUMERIC if numeric else Tier.EXACT)

    def _clamp(self, loop: ParameterLoop, update: Clamp) -> Change | None:
        module = loop.module
        if update.of_gradients:
            bound = symmetric_bound(update)
            assert bound is not None
            clip = reference(module, "torch.nn.utils.clip_grad_value_")
            given = _iterated(loop, update.weights)
            code = f"{clip.code}({given}, {module.unindented_code(bound)})"
            edits = (FileEdit(loop.path, ReplaceStatement(loop.span, code)), *clip.edits)
            message = f"clips all gradients in one call (`{clip.code}`)"
            reason = (
                "it keeps every gradient between the same bounds, and no graph holds the gradients"
            )
            return self.change(loop.path, loop.span, message, reason, edits)
        weights = free_name(module, _names_for(update.weights, "weights"))
        if weights is None:
            return None
        foreach = reference(module, "torch._foreach")
        lines = [f"{weights} = {_listed(loop, update.weights)}"]
        for name, bound in (("min", update.lower), ("max", update.upper)):
            if bound is not None:
                code = module.unindented_code(bound)
                lines.append(f"{foreach.code}_clamp_{name}_({weights}, {code})")
        edit = FileEdit(loop.path, ReplaceStatement(loop.span, "\n".join(lines)))
        message = "clamps the parameters of a network all at once"
        reason = "every parameter is kept between the same bounds"
        return self.change(loop.path, loop.span, message, reason, (edit, *foreach.edits))


def _names_for(operand: Operand, usual: str, other: str | None = None) -> Iterator[str]:
    """Names for the list of what the loop calls ``operand``: ``target_params`` for ``target_param``."""
    if len(operand.name) > 3:
        head, _, tail = operand.name.partition("_")
        names = [f"{head}s_{tail}"] if head in {"param", "weight"} and tail else []
        plural = f"{operand.name}_list" if operand.name.endswith("s") else f"{operand.name}s"
        names += [plural, usual]
    else:
        names = [usual]
    for name in (*names, f"{usual}_list", f"all_{usual}"):
        if name != other:
            yield name


def _listed(loop: ParameterLoop, operand: Operand) -> str:
    """The list of what the loop goes over as ``operand``."""
    given = _iterated(loop, operand)
    if not operand.is_cut:
        return f"list({given})"
    return f"[{loop.module.code(operand.node)} for {operand.name} in {given}]"


def _iterated(loop: ParameterLoop, operand: Operand) -> str:
    """What gives the parameters that the loop calls ``operand``, without their names."""
    owner = loop.owner(operand)
    code = loop.module.unindented_code(owner or loop.iterables[operand.name])
    return code if owner is None else f"{code}.parameters()"


def _loop_refusal(script: TrainingScript, loop: ParameterLoop) -> Fact | str | None:
    if loop.rest is not None:
        return f"the loop does more than that ({loop.rest})"
    later = read_later(loop)
    if later is not None:
        return f"`{later.id}` is read behind the loop"
    return None


def _average_refusal(
    script: TrainingScript,
    loop: ParameterLoop,
    update: Average,
    equal: EqualNetworks,
    options: Options,
) -> Fact | str | None:
    resolver, module = script.resolver, loop.module
    if update.rule is Rule.REBOUND and script.is_for_cpu(options):
        return "on a CPU lists are no faster where each parameter gets other memory"
    for factor in (update.kept, update.taken):
        if factor is not None and not is_declared_number(resolver, factor, module):
            return f"`{module.code(factor)}` is not known to be a number"
    if update.is_recorded and not suspended_around(resolver, loop.node, module):
        return "autograd may record it"
    target, source = loop.owner(update.target), loop.owner(update.source)
    if target is None or source is None:
        return "the networks whose parameters these are cannot be told"
    return equal.obstacle(target, source, module)


def _clamp_refusal(
    script: TrainingScript, loop: ParameterLoop, update: Clamp, options: Options
) -> Fact | str | None:
    resolver, module = script.resolver, loop.module
    for bound in (update.lower, update.upper):
        if bound is not None and not is_declared_number(resolver, bound, module):
            return f"`{module.code(bound)}` is not known to be a number"
    if script.is_for_cpu(options):
        return "on a CPU that is the faster way to keep them within bounds"
    if not script.targets_cuda(options):
        return "the script does not use a GPU"
    if update.of_gradients:
        if symmetric_bound(update) is None:
            return "the bounds are not the same in both directions"
        graph = kept_gradient_graph(resolver)
        if graph is not None or not loop.is_named(update.weights):
            return graph
    elif not update.weights.is_cut and not suspended_around(resolver, loop.node, module):
        return "autograd may record it"
    owner = loop.owner(update.weights)
    models = script.models_of(owner, module) if owner is not None else ()
    if not models or not all(has_parameters(resolver, model) for model in models):
        return "the network is not seen to have parameters"
    return None
