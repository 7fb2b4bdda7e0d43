"""foreach-updates: loops over parameters become calls over lists where that provably changes no number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.options import Target, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]
Rewrite = Callable[..., RewriteResult]

NETWORKS = """\
import copy

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tau = 0.005


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


net = Critic(8).to(device)
target = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters())
"""
STEPS = """
for step in range(4):
    x = torch.randn(16, 4, device=device)
    with torch.no_grad():
        wanted = target(x)
    loss = nn.functional.mse_loss(net(x), wanted + 1)
    optimizer.zero_grad()
    loss.backward()
    {clip}
    optimizer.step()
    {update}
"""
PAIR = "for p, t in zip(net.parameters(), target.parameters()):\n        "
NO_GRAD = "with torch.no_grad():\n        "
SOFT = PAIR + "t.data.copy_(tau * p.data + (1 - tau) * t.data)"
LISTS = """\
params = [p.data for p in net.parameters()]
    targets = [t.data for t in target.parameters()]
    """
SOFT_AFTER = (
    LISTS
    + """\
updates = torch._foreach_mul(params, tau)
    torch._foreach_mul_(targets, 1 - tau)
    torch._foreach_add_(targets, updates)"""
)
EACH = "for p in net.parameters():\n        "
CLIP = EACH + "p.grad.data.clamp_(-1, 1)"
CLIP_AFTER = "nn.utils.clip_grad_value_(net.parameters(), 1)"


def script(
    update: str = "pass", clip: str = "pass", networks: str = NETWORKS, steps: str = STEPS
) -> str:
    return networks + steps.format(update=update, clip=clip)


@pytest.mark.parametrize(
    ("update", "after"),
    [
        (SOFT, SOFT_AFTER),
        (PAIR + "t.data.copy_(t.data * (1 - tau) + p.data * tau)", SOFT_AFTER),
        (PAIR + "t.data.copy_(tau * p.detach() + (1 - tau) * t)", None),
        (
            PAIR + "t.data.mul_(1 - tau).add_(tau * p.data)",
            LISTS + "torch._foreach_mul_(targets, 1 - tau)\n    "
            "torch._foreach_add_(targets, torch._foreach_mul(params, tau))",
        ),
        (
            PAIR + "t.data.mul_(1 - tau)\n        t.data.add_(p.data, alpha=tau)",
            LISTS + "torch._foreach_mul_(targets, 1 - tau)\n    "
            "torch._foreach_add_(targets, params, alpha=tau)",
        ),
        (
            PAIR + "t.data.mul_(1 - tau).add_(tau, p.data)",
            LISTS + "torch._foreach_mul_(targets, 1 - tau)\n    "
            "torch._foreach_add_(targets, params, alpha=tau)",
        ),
        (
            PAIR + "t.data.lerp_(p.data, tau)",
            LISTS + "torch._foreach_lerp_(targets, params, tau)",
        ),
        (
            PAIR.replace("p, t", "(_, p), (_, t)").replace("parameters", "named_parameters")
            + "t.data = t.data * (1 - tau) + p.data * tau",
            LISTS + "updates = torch._foreach_add(\n"
            "        torch._foreach_mul(targets, 1 - tau), torch._foreach_mul(params, tau)\n    )\n"
            "    for t, update in zip(target.parameters(), updates):\n        t.data = update",
        ),
    ],
)
def test_averages(
    check_transformed: Check, check_noop: Check, update: str, after: str | None
) -> None:
    if after is None:
        check_noop(script(update), "autograd may record it")
    else:
        check_transformed(script(update), script(after))


def test_without_gradients(check_transformed: Check) -> None:
    loop = PAIR.replace("        ", "            ") + "t.mul_(1 - tau).add_(p, alpha=tau)"
    after = """\
params = list(net.parameters())
        targets = list(target.parameters())
        torch._foreach_mul_(targets, 1 - tau)
        torch._foreach_add_(targets, params, alpha=tau)"""
    check_transformed(script(NO_GRAD + loop), script(NO_GRAD + after))


AGENT = """\
import copy
import torch as th
import torch.nn.functional as F
from torch import nn


class Critic(nn.Module):
    def __init__(self, state_dim, width=64):
        super().__init__()
        self.fc = nn.Linear(state_dim, width)

    def forward(self, state):
        return self.fc(state)


def soft_update(source, target, tau):
    for param, target_param in zip(source.parameters(), target.parameters()):
        target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)


class Agent:
    def __init__(self, state_dim, tau=0.005, device="cuda"):
        self.critic = Critic(state_dim).to(device)
        self.target = {made}
        self.tau = tau
        {more}

    def train(self):
        soft_update(self.critic, self.target, self.tau)


options = vars(parse())
agent = Agent(**options)
agent.train()
"""


def agent(made: str = "copy.deepcopy(self.critic)", more: str = "pass") -> str:
    return AGENT.format(made=made, more=more)


def _with_updates(before: str, body: str) -> str:
    """The agent ``before`` with ``body`` in place of the loop over its parameters."""
    head, _, tail = before.partition("    for param, ")
    return f"{head}{body}\n\nclass Agent" + tail.partition("\n\n\nclass Agent")[2]


@pytest.mark.parametrize("made", ["copy.deepcopy(self.critic)", "Critic(state_dim).to(device)"])
def test_networks_of_an_agent(check_transformed: Check, made: str) -> None:
    before = agent(made)
    body = """\
    params = [param.data for param in source.parameters()]
    target_params = [target_param.data for target_param in target.parameters()]
    updates = th._foreach_mul(params, tau)
    th._foreach_mul_(target_params, 1 - tau)
    th._foreach_add_(target_params, updates)
"""
    check_transformed(before, _with_updates(before, body))


def test_lists_of_what_has_a_plural_name(check_transformed: Check) -> None:
    before = (
        agent()
        .replace("target_param.", "weights.")
        .replace("param, target_param", "param, weights")
    )
    body = """\
    params = [param.data for param in source.parameters()]
    weights_list = [weights.data for weights in target.parameters()]
    updates = th._foreach_mul(params, tau)
    th._foreach_mul_(weights_list, 1 - tau)
    th._foreach_add_(weights_list, updates)
"""
    check_transformed(before, _with_updates(before, body))


@pytest.mark.parametrize(
    ("made", "more", "reason"),
    [
        ("Critic(state_dim, 32)", "pass", "not seen to be a copy"),
        ("Critic(sample())", "pass", "not seen to be a copy"),
        ("load(self.critic)", "pass", "not seen to be a copy"),
        ("nn.Linear(state_dim, 64)", "pass", "not seen to be a copy"),
        ("copy.deepcopy(self.critic)", "self.target.fc = nn.Linear(state_dim, 64)", "is set"),
        ("copy.deepcopy(self.critic)", "setattr(self.target, 'fc', make())", "is replaced"),
        ("copy.deepcopy(self.critic)", "nn.utils.weight_norm(self.critic.fc)", "is replaced"),
        (
            "copy.deepcopy(self.critic)",
            "for p, t in pairs(self): t.data = p.data",
            "memory",
        ),
    ],
)
def test_networks_that_may_differ(check_noop: Check, made: str, more: str, reason: str) -> None:
    check_noop(agent(made, more), reason)


def test_layers_made_alike(check_transformed: Check) -> None:
    made = "".join(
        f"{name} = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)\n"
        for name in ("net", "target")
    )
    networks = NETWORKS.replace("net = Critic(8).to(device)\ntarget = copy.deepcopy(net)\n", made)
    assert networks != NETWORKS
    check_transformed(script(SOFT, networks=networks), script(SOFT_AFTER, networks=networks))


def test_one_network_of_two_widths(check_noop: Check) -> None:
    made = """\
def make(width):
    return Critic(width)


net = make(8).to(device)
target = make(4).to(device)
"""
    networks = NETWORKS.replace("net = Critic(8).to(device)\ntarget = copy.deepcopy(net)\n", made)
    check_noop(script(SOFT, networks=networks), "not seen to be a copy")
    made = "net, target = [Critic(width) for width in (8, 4)]\n"
    networks = NETWORKS.replace("net = Critic(8).to(device)\ntarget = copy.deepcopy(net)\n", made)
    check_noop(script(SOFT, networks=networks), "not seen to be a copy")


def test_the_width_changes_in_between(check_noop: Check) -> None:
    made = "width = 8\nnet = Critic(width)\nwidth = 4\ntarget = Critic(width)\n"
    networks = NETWORKS.replace("net = Critic(8).to(device)\ntarget = copy.deepcopy(net)\n", made)
    check_noop(script(SOFT, networks=networks), "not seen to be a copy")


HEADS = """\
net = Critic(8).to(device)
{first}target = copy.deepcopy(net)
{second}"""


@pytest.mark.parametrize(
    ("first", "second", "fires"),
    [
        ("net.net[2] = nn.Linear(8, 3)\n", "", True),
        ("", "net.net[2] = nn.Linear(8, 3)\n", False),
        ("", "net.net[2] = nn.Linear(8, 3)\ntarget.net[2] = nn.Linear(8, 3)\n", True),
        ("", "net.net[2] = nn.Linear(8, 3)\ntarget.net[2] = nn.Linear(8, 3).half()\n", False),
    ],
)
def test_heads_replaced(
    check_transformed: Check, check_noop: Check, first: str, second: str, fires: bool
) -> None:
    made = HEADS.format(first=first, second=second)
    networks = NETWORKS.replace("net = Critic(8).to(device)\ntarget = copy.deepcopy(net)\n", made)
    if fires:
        check_transformed(script(SOFT, networks=networks), script(SOFT_AFTER, networks=networks))
    else:
        check_noop(script(SOFT, networks=networks), "a part of one of the networks is set")


AVERAGE = """\
class Average:
    def __init__(self, model, decay=0.99):
        self.model = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for average, param in zip(self.model.parameters(), model.parameters()):
            average.mul_(self.decay).add_(param, alpha=1 - self.decay)


def main():
    net = Critic(8).to(device)
    {first}
    average = Average(net)
    {second}
    train(net)
    average.update(nn.DataParallel(net))


main()
"""
AVERAGE_AFTER = """\
        params = list(model.parameters())
        averages = list(self.model.parameters())
        torch._foreach_mul_(averages, self.decay)
        torch._foreach_add_(averages, params, alpha=1 - self.decay)
"""


def test_a_class_that_averages(check_transformed: Check, check_noop: Check) -> None:
    networks = NETWORKS.partition("net = Critic(8)")[0]
    head = "net.net[2] = nn.Linear(8, 3)"
    before = networks + AVERAGE.format(first=head, second="pass")
    start, _, rest = before.partition("        for average")
    after = f"{start}{AVERAGE_AFTER}\n\ndef main{rest.partition('def main')[2]}"
    check_transformed(before, after)
    check_noop(networks + AVERAGE.format(first="pass", second=head), "is set")


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ("self.weight = nn.Parameter(self.net[0].weight)", "views of one memory"),
        (
            "w = torch.ones(2)\n        self.a, self.b = nn.Parameter(w), nn.Parameter(w)",
            "views of one memory",
        ),
    ],
)
def test_parameters_that_are_views(check_noop: Check, layers: str, reason: str) -> None:
    networks = NETWORKS.replace("super().__init__()", f"super().__init__()\n        {layers}")
    check_noop(script(SOFT, networks=networks), reason)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def grow(self):\n        self.net = nn.Linear(4, 1)", "replaces a part of itself"),
        ("def grow(self):\n        self.net[2] = nn.Linear(8, 2)", "replaces a part of itself"),
        (
            "def grow(self):\n        self.add_module('more', nn.Linear(8, 2))",
            "replaces a part of itself",
        ),
        ("def parameters(self):\n        return []", "has `parameters` of its own"),
    ],
)
def test_networks_whose_parameters_vary(check_noop: Check, method: str, reason: str) -> None:
    networks = NETWORKS.replace("    def forward", f"    {method}\n\n    def forward")
    check_noop(script(SOFT, networks=networks), reason)


def test_comments_stay(check_transformed: Check) -> None:
    update = PAIR.replace("\n", "  # Polyak\n") + "t.data.lerp_(p.data, tau)  # slowly"
    after = f"# Polyak\n    {LISTS}torch._foreach_lerp_(targets, params, tau)  # slowly"
    check_transformed(script(update), script(after))


def test_layers_that_a_method_makes(check_transformed: Check) -> None:
    built = NETWORKS.replace(
        "self.net = nn", "self.build(width)\n\n    def build(self, width):\n        self.net = nn"
    )
    check_transformed(script(SOFT, networks=built), script(SOFT_AFTER, networks=built))


def test_without_parameters(check_noop: Check) -> None:
    networks = NETWORKS.replace(
        "nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))", "nn.ReLU()"
    )
    check_noop(script(SOFT, networks=networks), "not seen to have parameters")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "t.data.copy_(scale() * p.data + (1 - tau) * t.data)",
            "`scale()` is not known to be a number",
        ),
        (
            "t.data.copy_(tau * p.data + (1 - tau) * t.data)\n        print(step)",
            "more than that (`print(step)`)",
        ),
        (
            "if p.requires_grad:\n            t.data.lerp_(p.data, tau)",
            "more than that (`if p.requires_grad`)",
        ),
        ("t.data.lerp_(p.data, tau)\n    print(t)", "`t` is read behind the loop"),
        ("t.data.lerp_(p.data, tau)\n    else:\n        print()", "more than that (an `else`)"),
        ("t.lerp_(p, tau)", "autograd may record it"),
        ("t.data.copy_(p.data)", None),
        ("t.data.copy_(tau * p.data + (1 - tau) * p.data)", None),
        ("t.data.copy_(tau * p.data + t.data * t.data)", None),
        ("print(p, t)", None),
    ],
)
def test_other_loops_over_pairs(check_noop: Check, body: str, reason: str | None) -> None:
    check_noop(script(PAIR + body), reason, silent=reason is None)


def test_a_state_dict(check_noop: Check) -> None:
    loop = (
        "for k, v in target.state_dict().items():\n        if v.dtype.is_floating_point:\n"
        "            v *= 1 - tau\n            v += tau * net.state_dict()[k].detach()"
    )
    check_noop(script(loop), "`state_dict()` also lists counters")


@pytest.mark.parametrize(
    ("clip", "after"),
    [
        (CLIP, CLIP_AFTER),
        (
            EACH + "if p.grad is not None:\n            p.grad.clamp_(min=-tau, max=tau)",
            "nn.utils.clip_grad_value_(net.parameters(), tau)",
        ),
        (
            "for group in optimizer.param_groups:\n        for p in group['params']:\n            p.grad.data.clamp_(-0.5, 0.5)",
            "for group in optimizer.param_groups:\n        nn.utils.clip_grad_value_(group['params'], 0.5)",
        ),
        (
            EACH.replace("p in net", "name, p in net.named").replace("named.", "named_")
            + "p.grad.clamp_(-1, 1)",
            CLIP_AFTER,
        ),
        (
            EACH + "p.data.clamp_(-0.01, 0.02)",
            "weights = [p.data for p in net.parameters()]\n    torch._foreach_clamp_min_(weights, -0.01)\n"
            "    torch._foreach_clamp_max_(weights, 0.02)",
        ),
        (
            EACH + "p.data.clamp_(min=0)",
            "weights = [p.data for p in net.parameters()]\n    torch._foreach_clamp_min_(weights, 0)",
        ),
    ],
)
def test_clipping(check_transformed: Check, clip: str, after: str) -> None:
    check_transformed(script(clip=clip), script(clip=after))


@pytest.mark.parametrize(
    ("clip", "reason"),
    [
        (EACH + "p.grad.data.clamp_(-1, 2)", "not the same in both directions"),
        (EACH + "p.grad.data.clamp_(-bound(), bound())", "not known to be a number"),
        (EACH + "p.grad.data.clamp_(-1, 1)\n        print(p.grad.norm())", "more than that"),
        (EACH + "p.clamp_(-1, 1)", "autograd may record it"),
        (EACH.replace("net.", "parse().") + "p.data.clamp_(-1, 1)", "not seen to have parameters"),
        (
            EACH.replace("p in net.parameters", "_, p in parse().named_parameters")
            + "p.grad.clamp_(-1, 1)",
            "not seen to have parameters",
        ),
        (
            EACH + "p.grad.data.clamp_(-1, 1)\n    loss.backward(create_graph=True)",
            "part of a graph",
        ),
        (
            EACH + "p.grad.data.clamp_(-1, 1)\n    loss.backward(None, True, True)",
            "part of a graph",
        ),
        (
            EACH + "if p.dim() > 1:\n            p.data.clamp_(-1, 1)",
            "more than that (`if p.dim() > 1`)",
        ),
        (EACH + "p.grad.data.zero_()", None),
    ],
)
def test_other_loops_over_one_network(check_noop: Check, clip: str, reason: str | None) -> None:
    check_noop(script(clip=clip), reason, silent=reason is None)


def test_on_a_cpu_only_averages(check_transformed: Check, check_noop: Check) -> None:
    check_noop(script(clip=CLIP), "on a CPU", target=Target.CPU)
    check_noop(script(clip=EACH + "p.data.clamp_(-1, 1)"), "on a CPU", target=Target.CPU)
    rebound = PAIR + "t.data = t.data * (1 - tau) + p.data * tau"
    check_noop(script(rebound), "on a CPU", target=Target.CPU)
    check_transformed(script(SOFT), script(SOFT_AFTER), target=Target.CPU)


@pytest.mark.parametrize(
    ("body", "target", "tier"),
    [
        ("t.data.copy_(tau * p.data + (1 - tau) * t.data)", Target.CUDA, Tier.EXACT),
        ("t.data.mul_(1 - tau).add_(tau * p.data)", Target.CUDA, Tier.EXACT),
        ("t.data.mul_(1 - tau).add_(p.data, alpha=tau)", Target.CUDA, Tier.NUMERIC),
        ("t.data.lerp_(p.data, tau)", Target.CUDA, Tier.NUMERIC),
        ("t.data.lerp_(p.data, tau)", Target.CPU, Tier.EXACT),
    ],
)
def test_tiers(rewrite: Rewrite, body: str, target: Target, tier: Tier) -> None:
    result = rewrite(script(PAIR + body), ["foreach-updates"], target=target)
    assert [change.tier for file in result.files for change in file.changes] == [tier]


def test_names_that_are_taken(check_transformed: Check) -> None:
    taken = NETWORKS + "params, targets = [], {}\nprint(params, targets)\n"
    after = SOFT_AFTER.replace("params", "params_list").replace("targets", "targets_list")
    check_transformed(script(SOFT, networks=taken), script(after, networks=taken))


@pytest.mark.torch
def test_trains_the_same(check_verified: Check) -> None:
    check_verified(script(SOFT, CLIP) + "    print(loss.item())\n", target=Target.CUDA)
