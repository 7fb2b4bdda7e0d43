"""``ddp``: several networks in one step, such as those of a GAN, and networks that run several times in it."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

from .test_ddp import FLAT, MODEL, code

GPUS = {"gpus": 2}
GAN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

batch_size = 16
data = TensorDataset(torch.randn(48, 8), torch.randint(0, 3, (48,)))
loader = DataLoader(data, batch_size=batch_size, shuffle=True)
netG = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
netD = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01)
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01)

for epoch in range(3):
    for x, _ in loader:
        size = x.size(0)
        netD.zero_grad()
        output = netD(x)
        errD_real = criterion(output, torch.ones(size, 1))
        errD_real.backward()
        noise = torch.randn(size, 4)
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach()), torch.zeros(size, 1))
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        errG = criterion(netD(fake), torch.ones(size, 1))
        errG.backward()
        optimizerG.step()
    torch.save(netG.state_dict(), "netG.pt")
"""
NETWORKS = GAN[GAN.index("netG = ") : GAN.index("criterion = ")]
WRAPPED = """\
ddp_netD, ddp_netG = netD, netG
if WORLD_SIZE > 1:
    ddp_netD = DistributedDataParallel(netD, forward_sync_buffers=False)
    ddp_netG = DistributedDataParallel(netG)
    # every process draws its own dropout masks and augmentations
    torch.manual_seed(torch.initial_seed() + RANK)

for epoch in range(3):
    if WORLD_SIZE > 1:
        loader.sampler.set_epoch(epoch)  # another order in every epoch
    for x, _ in loader:
        size = x.size(0)
        netD.zero_grad()
        output = ddp_netD(x)
        errD_real = criterion(output, torch.ones(size, 1))
        errD_real.backward()
        noise = torch.randn(size, 4)
        fake = ddp_netG(noise)
        errD_fake = criterion(ddp_netD(fake.detach()), torch.zeros(size, 1))
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        errG = criterion(ddp_netD(fake), torch.ones(size, 1))
        errG.backward()
        optimizerG.step()
    if RANK == 0:
        torch.save(netG.state_dict(), "netG.pt")
"""


@pytest.fixture
def name() -> str:
    return "ddp"


def test_each_network_of_a_gan_is_wrapped(rewrite: Callable[..., RewriteResult]) -> None:
    assert code(rewrite(GAN, ["ddp"], **GPUS)).endswith(WRAPPED)


WRAPPED_IN_PLACE = """\
if WORLD_SIZE > 1:
    netG = DistributedDataParallel(
        netG, device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None
    )
    netD = DistributedDataParallel(
        netD,
        device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None,
        forward_sync_buffers=False,
    )
elif torch.cuda.device_count() > 1:
    netG = nn.DataParallel(netG)
    netD = nn.DataParallel(netD)
"""


def test_before_torch_2_13(rewrite: Callable[..., RewriteResult]) -> None:
    text = code(rewrite(GAN, ["ddp"], torch_version=(2, 12), **GPUS))
    assert "DistributedDataParallel(netD, broadcast_buffers=False)" in text


def test_one_backward_pass_for_both_losses(rewrite: Callable[..., RewriteResult]) -> None:
    source = GAN.replace("        errD_real.backward()\n", "").replace(
        "errD_fake.backward()", "(errD_real + errD_fake).backward()"
    )
    assert "ddp_netD(fake.detach())" in code(rewrite(source, ["ddp"], **GPUS))


def test_networks_in_data_parallel(rewrite: Callable[..., RewriteResult]) -> None:
    """Each is wrapped where it was, and the random numbers part once."""
    source = GAN.replace(
        NETWORKS,
        f"{NETWORKS}if torch.cuda.device_count() > 1:\n"
        "    netG = nn.DataParallel(netG)\n    netD = nn.DataParallel(netD)\n",
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert WRAPPED_IN_PLACE in text
    assert "ddp_net" not in text
    assert text.count("torch.manual_seed(torch.initial_seed() + RANK)") == 1


def test_one_of_the_networks_in_data_parallel(rewrite: Callable[..., RewriteResult]) -> None:
    source = GAN.replace(NETWORKS, f"{NETWORKS}netG = nn.DataParallel(netG)\n")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "    netG = DistributedDataParallel(\n        netG, device_ids=" in text
    assert "    ddp_netD = DistributedDataParallel(netD, forward_sync_buffers=False)\n" in text
    assert text.count("torch.manual_seed(torch.initial_seed() + RANK)") == 1


@pytest.mark.parametrize(
    ("replaced", "by", "reason"),
    [
        (
            "errD_fake.backward()",
            "errD_fake.backward(retain_graph=True)\n        (errD_fake * 0.1).backward()",
            "it may be the second backward pass to a network since that ran (`netD(x)`)",
        ),
        (
            "netD(fake.detach())",
            "netD(fake)",
            "it may be the second backward pass to a network since that ran (`netG(noise)`)",
        ),
        (
            "        errG.backward()\n",
            "        for scale in (0.5, 0.5):\n            (errG * scale).backward(retain_graph=True)\n",
            "it may be the second backward pass",
        ),
        (
            "errG = criterion(netD(fake), torch.ones(size, 1))",
            "errG = netD(fake).std()",
            "not known to be a mean",
        ),
        ("errG.backward()", "errG.backward(torch.ones(()))", "arguments of its own"),
        (
            "fake = netG(noise)",
            "fake = netG(noise) if x.mean() > 0 else torch.zeros_like(x)",
            "what processes do together would hang on what each has measured by itself (`x.mean() > 0`)",
        ),
        (
            "errD_real = criterion(output, torch.ones(size, 1))",
            "errD_real = criterion(output - output.mean(0), torch.ones(size, 1))",
            "the loss hangs on a mean or a sum over the samples of a batch",
        ),
        (NETWORKS, NETWORKS + "ddp_netG = 3\n", "`ddp_netG` is a name of the script's own"),
        (
            "noise = torch.randn(size, 4)",
            "noise = torch.randn(batch_size, 4)",
            "`batch_size` has other uses than the DataLoader's batch size",
        ),
    ],
)
def test_what_stands_against_it(
    check_noop: Callable[..., None], replaced: str, by: str, reason: str
) -> None:
    assert replaced in GAN
    check_noop(GAN.replace(replaced, by), reason, **GPUS)


FREEZE = """\
def freeze(net, requires_grad=False):
    for param in net.parameters():
        param.requires_grad = requires_grad


"""


@pytest.mark.parametrize(
    ("frozen", "thawed"),
    [
        ("netD.requires_grad_(False)", "netD.requires_grad_(True)"),
        (
            "for p in netD.parameters():\n            p.requires_grad = False",
            "for p in netD.parameters():\n            p.requires_grad = True",
        ),
        ("freeze(netD)", "freeze(netD, True)"),
        (
            "for net in [netD]:\n            net.requires_grad_(False)",
            "for net in [netD]:\n            net.requires_grad_(True)",
        ),
    ],
    ids=["at once", "one by one", "in a function", "in a list"],
)
def test_a_network_that_is_frozen_while_another_learns(
    rewrite: Callable[..., RewriteResult], frozen: str, thawed: str
) -> None:
    source = GAN.replace(
        "        netD.zero_grad()\n", f"        {thawed}\n        netD.zero_grad()\n"
    )
    source = source.replace(
        "        netG.zero_grad()\n", f"        {frozen}\n        netG.zero_grad()\n"
    )
    source = source.replace("batch_size = 16\n", FREEZE + "batch_size = 16\n")
    assert "ddp_netD(fake.detach())" in code(rewrite(source, ["ddp"], **GPUS))


def test_layers_that_are_frozen_before_all_are_thawed(check_noop: Callable[..., None]) -> None:
    """The wrapper knows the parameters that are trained as it is made: of others no gradients would be exchanged."""
    thawed = FLAT.replace(
        "    for x, y in", "    if epoch:\n        model.requires_grad_(True)\n    for x, y in"
    )
    source = thawed.replace("optimizer = ", "model[0].requires_grad_(False)\noptimizer = ")
    check_noop(source, "what is trained changes in the course of the training", **GPUS)


def test_layers_that_are_frozen_on_the_way(check_noop: Callable[..., None]) -> None:
    source = GAN.replace("        netG.zero_grad()\n", "        netD[0].requires_grad_(False)\n")
    check_noop(source, "what is trained changes in the course of the training", **GPUS)


@pytest.mark.parametrize("size", ["batch_size", "16"])
def test_noise_of_a_size_of_its_own_for_the_pictures_that_are_shown(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None], size: str
) -> None:
    noise = f"fixed_noise = torch.randn({size}, 4)\nfixed_noise = fixed_noise.cuda()\n"
    shown = "        if epoch % 2:\n            torch.save(netG(fixed_noise), 'fake.pt')\n"
    source = GAN.replace("criterion = ", f"{noise}criterion = ").replace(
        "    torch.save(netG.state", f"{shown}    torch.save(netG.state"
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert f"fixed_noise = torch.randn({size}, 4)\n" in text
    lost = source.replace("netG(noise)", "netG(fixed_noise)")
    check_noop(lost, f"`{size}` ", **GPUS)
    handed_on = source.replace("criterion = ", "again = fixed_noise * 2\ncriterion = ")
    check_noop(handed_on, f"`{size}` ", **GPUS)


def test_noise_that_the_script_has_seeded(rewrite: Callable[..., RewriteResult]) -> None:
    """Drawn from numpy, it would be the same in all processes: fewer samples than the script asks for."""
    drawn = "import numpy as np\n" + GAN.replace(
        "torch.randn(size, 4)", "torch.tensor(np.random.normal(0, 1, (size, 4)).astype('f'))"
    )
    own = "    np.random.seed(torch.initial_seed() % 2**32)\n"
    assert own not in code(rewrite(drawn, ["ddp"], **GPUS))
    seeded = drawn.replace("batch_size = 16", "np.random.seed(1)\nbatch_size = 16")
    assert own in code(rewrite(seeded, ["ddp"], **GPUS))
    chosen = seeded.replace(
        "    for x, _ in loader", "    chosen = np.random.permutation(48)\n    for x, _ in loader"
    )
    assert own not in code(rewrite(chosen, ["ddp"], **GPUS))
    once = seeded.replace("np.random.normal(0, 1, (size, 4))", "(x[:, :4] * np.random.beta(1, 2))")
    assert own not in code(rewrite(once, ["ddp"], **GPUS))


SHOWN = """\
def show_samples(epoch):
    made = netG(torch.randn(9, 4))
    rows = []
    rows.append(made)
    torch.save(rows, f"samples{epoch}.pt")


for epoch in range(3):
"""


SHOWING = GAN.replace("for epoch in range(3):\n", "before, rows = [], []\n\n\n" + SHOWN).replace(
    "    torch.save(netG.st", "        show_samples(epoch)\n    torch.save(netG.st"
)


def test_what_a_function_shows_comes_from_the_network_itself(
    rewrite: Callable[..., RewriteResult],
) -> None:
    text = code(rewrite(SHOWING, ["ddp"], **GPUS))
    assert "made = netG(torch.randn(9, 4))" in text
    assert "ddp_netG = DistributedDataParallel(netG)" in text


@pytest.mark.parametrize(
    ("replaced", "by"),
    [
        ("    rows = []\n", "    rows = before\n"),
        ("    rows = []\n", ""),
        ("    torch.save(rows, ", "    netG.last = made\n    torch.save(rows, "),
        ("    torch.save(rows, ", "    before[0] = made\n    torch.save(rows, "),
    ],
    ids=["a list by another name", "a list", "an object", "a place in a list"],
)
def test_what_a_function_keeps_may_be_trained_on(
    check_noop: Callable[..., None], replaced: str, by: str
) -> None:
    source = SHOWING.replace(replaced, by)
    assert source != SHOWING
    check_noop(source, "it may be the second backward pass to a network", **GPUS)


@pytest.mark.parametrize(
    "loss",
    [
        "criterion(netD(fake), ones) + netD[0].weight.mean()",
        "criterion(netD(fake), ones) + before",
    ],
)
def test_ways_back_to_a_network_that_are_not_seen(
    check_noop: Callable[..., None], loss: str
) -> None:
    """The gradients of what comes to it behind its last exchange would stay with each process."""
    source = GAN.replace("criterion(netD(fake), torch.ones(size, 1))", loss)
    source = source.replace(
        "        size = ", "        ones = torch.ones(x.size(0), 1)\n        size = "
    )
    source = source.replace(
        "    for x, _ in", "    before = netD(data[0][0]).mean()\n    for x, _ in"
    )
    check_noop(source, "may be the second backward pass", **GPUS)


JUDGE = """\
class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2))
        self.last = nn.Linear(16, 1)

    def features(self, x):
        return self.layers(x)

    def forward(self, x):
        return self.last(self.features(x))


def matched(net, x):
    return net.features(x).pow(2).mean()


"""


@pytest.mark.parametrize("over", ["h.std(0)", "torch.std(h, dim=0)", "h.var(0, unbiased=False)"])
def test_a_network_that_judges_by_several_samples(
    rewrite: Callable[..., RewriteResult], over: str
) -> None:
    made = NETWORKS[NETWORKS.index("netD") :]
    source = GAN.replace(made, "netD = Judge()\n").replace("netG =", f"{JUDGE}netG =")
    spread = f"        h = self.features(x)\n        h = h + {over}.mean()\n        return self.last(h)\n"
    source = source.replace("        return self.last(self.features(x))\n", spread)
    (change,) = rewrite(source, ["ddp"], **GPUS).files[0].changes
    note = "in a network may be of the samples of a batch: of each process's part"
    assert f"`{over}` {note}" in change.reason
    (beside,) = rewrite(source.replace(over, "h.std(1)"), ["ddp"], **GPUS).files[0].changes
    assert note not in beside.reason


@pytest.mark.parametrize(
    "loss",
    [
        "netD.features(x).pow(2).mean()",
        "netD.layers(x).pow(2).mean()",
        "matched(netD, x)",
        "features(x).pow(2).mean()",
    ],
)
def test_parts_of_a_network_that_the_wrapper_does_not_run(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None], loss: str
) -> None:
    made = NETWORKS[NETWORKS.index("netD") :]
    source = GAN.replace(made, "netD = Judge()\nfeatures = netD.features\n")
    source = source.replace("netG =", f"{JUDGE}netG =")
    assert "ddp_netD(x)" in code(rewrite(source, ["ddp"], **GPUS))
    second = source.replace(
        "        optimizerD.step()\n", f"        ({loss}).backward()\n        optimizerD.step()\n"
    )
    check_noop(second, "may be the second backward pass", **GPUS)


def test_a_network_that_runs_one_way_or_the_other(rewrite: Callable[..., RewriteResult]) -> None:
    source = GAN.replace("output = netD(x)", "output = netD(x) if x.mean() > 0 else netD(-x)")
    assert "ddp_netD(x) if x.mean() > 0 else ddp_netD(-x)" in code(rewrite(source, ["ddp"], **GPUS))


def test_two_optimizers_of_one_network(rewrite: Callable[..., RewriteResult]) -> None:
    """Whoever steps, the gradients are those that come to the network behind its forward pass."""
    other = "optimizerD = torch.optim.Adam([*netD.parameters(), *netG.parameters()], lr=0.01)\n"
    source = GAN.replace("optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01)\n", other)
    assert "ddp_netG(noise)" in code(rewrite(source, ["ddp"], **GPUS))


TARGET = """\
target = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=batch_size, shuffle=True)
forever = cycle(target)
"""
CYCLE = """\
def cycle(loader):
    while True:
        yield from loader


"""


@pytest.mark.parametrize(
    ("loop", "taken"),
    [
        ("for (x, _), (other,) in zip(loader, target):", ""),
        ("for i, ((x, _), (other,)) in enumerate(zip(loader, target)):", ""),
        ("for x, _ in loader:", "(other,) = next(batches)"),
        ("for x, _ in loader:", "(other,) = next(forever)"),
        ("for x, _ in loader:", "(other,) = batches.__next__()"),
        ("for x, _ in loader:", "(other,) = next(iter(target))"),
    ],
)
def test_a_second_data_loader(
    rewrite: Callable[..., RewriteResult],
    check_noop: Callable[..., None],
    loop: str,
    taken: str,
) -> None:
    """Every process would have whole batches of it, and meet the parts of the first with those."""
    head = GAN.replace("batch_size = 16\n", f"{CYCLE}batch_size = 16\n")
    source = head.replace("netG = ", f"{TARGET}netG = ", 1).replace(
        "    for x, _ in loader:\n", f"    batches = iter(target)\n    {loop}\n        {taken}\n"
    )
    judged = source.replace("criterion(output, ", "criterion(output + netD(other), ")
    why = "batches of a second DataLoader are trained on, too"
    if "zip" in loop:
        check_noop(source, why, **GPUS)
    else:  # what is only shown may be of any
        shown = source.replace("output = netD(x)", "output = netD(x)\n        print(other.sum())")
        assert "ddp_netD(x)" in code(rewrite(shown, ["ddp"], **GPUS))
    check_noop(judged, why, **GPUS)


ENCODER = """\
encoder = nn.Linear(8, 5)
decoder = nn.Linear(5, 3)
"""


def test_two_networks_of_one_optimizer(rewrite: Callable[..., RewriteResult]) -> None:
    source = (
        FLAT.replace(MODEL, ENCODER)
        .replace("model.parameters()", "[*encoder.parameters(), *decoder.parameters()]")
        .replace("model(x)", "decoder(encoder(x).relu())")
    )
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "ddp_encoder, ddp_decoder = encoder, decoder\n" in text
    assert "    ddp_encoder = DistributedDataParallel(encoder)\n" in text
    assert "nn.functional.cross_entropy(ddp_decoder(ddp_encoder(x).relu()), y)" in text


@pytest.mark.parametrize(
    ("made", "given"),
    [
        ("weights = nn.Parameter(torch.zeros(2))", "{'params': [weights]}"),
        ("weights = nn.Parameter(torch.zeros(2))", "{'params': weights, 'lr': 0.1}"),
        ("weights = torch.zeros(2, requires_grad=True)", "{'params': (weights,)}"),
        ("weights = torch.zeros(2).requires_grad_()", "{'params': [weights]}"),
        (
            "class Weights:\n    def __init__(self):\n"
            "        self.two = nn.Parameter(torch.zeros(2))\nweights = Weights()",
            "{'params': [weights.two]}",
        ),
        (
            "class Weights(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.two = nn.Parameter(torch.zeros(2))\nweights = Weights()",
            "{'params': [weights.two]}",
        ),
    ],
)
def test_what_is_trained_beside_networks(
    check_noop: Callable[..., None], made: str, given: str
) -> None:
    """No wrapper knows it: every process would train its own."""
    source = FLAT.replace(MODEL, f"{MODEL}{made}\n").replace(
        "model.parameters()", f"[{{'params': model.parameters()}}, {given}]"
    )
    assert given in source
    check_noop(source, "the optimizer trains it beside the networks", **GPUS)


def test_a_parameter_of_a_network_that_is_trained(rewrite: Callable[..., RewriteResult]) -> None:
    model = (
        "class Net(nn.Sequential):\n    def __init__(self):\n        super().__init__(nn.Linear(8, 3))\n"
        "        self.scale = nn.Parameter(torch.ones(3))\n"
        "    def forward(self, x):\n        return super().forward(x) * self.scale\n\nmodel = Net()\n"
    )
    groups = "[{'params': model[0].parameters()}, {'params': [model.scale], 'lr': 0.1}]"
    source = FLAT.replace(MODEL, model).replace("model.parameters()", groups)
    assert "ddp_model(x)" in code(rewrite(source, ["ddp"], **GPUS))


def test_a_network_that_runs_twice_in_its_step(rewrite: Callable[..., RewriteResult]) -> None:
    source = FLAT.replace("model(x), y)", "model(x) + model(x + 1), y)")
    text = code(rewrite(source, ["ddp"], **GPUS))
    assert "DistributedDataParallel(model, forward_sync_buffers=False)" in text
    assert "ddp_model(x) + ddp_model(x + 1), y)" in text


def test_a_network_that_runs_in_a_loop_of_its_step(rewrite: Callable[..., RewriteResult]) -> None:
    looped = FLAT.replace("nn.Linear(5, 3))", "nn.Linear(5, 8))").replace(
        "        loss = nn.functional.cross_entropy(model(x), y)\n",
        "        for _ in range(3):\n            x = model(x)\n        loss = nn.functional.cross_entropy(x, y)\n",
    )
    text = code(rewrite(looped, ["ddp"], **GPUS))
    assert "DistributedDataParallel(model, forward_sync_buffers=False)" in text


def test_a_network_that_may_leave_layers_out_runs_once(check_noop: Callable[..., None]) -> None:
    source = FLAT.replace(
        MODEL,
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.used, self.left = nn.Linear(8, 3), nn.Linear(8, 3)\n"
        "    def forward(self, x):\n        return self.used(x)\n\nmodel = Net()\n",
    ).replace("model(x), y)", "model(x) + model(x + 1), y)")
    check_noop(source, "runs in 2 places of the step, not in one, and may leave", **GPUS)


PENALTY = """\
def gradient_penalty(D, real, fake):
    alpha = torch.rand(real.size(0), 1)
    between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    judged = D(between)
    gradients = torch.autograd.grad(
        outputs=judged,
        inputs=between,
        grad_outputs=torch.ones_like(judged),
        create_graph=True,
    )[0]
    return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


"""
WASSERSTEIN = (
    PENALTY
    + """\
for epoch in range(3):
    for i, (x, _) in enumerate(loader):
        optimizerD.zero_grad()
        fake = netG(torch.randn(x.size(0), 4))
        penalty = gradient_penalty(netD, x.data, fake.data)
        lossD = -torch.mean(netD(x)) + torch.mean(netD(fake)) + 10 * penalty
        lossD.backward()
        optimizerD.step()
        if i % 5 == 0:
            optimizerG.zero_grad()
            lossG = -torch.mean(netD(netG(torch.randn(x.size(0), 4))))
            lossG.backward()
            optimizerG.step()
"""
)
WGAN = GAN[: GAN.index("for epoch")] + WASSERSTEIN


def test_a_gradient_penalty(rewrite: Callable[..., RewriteResult]) -> None:
    """The gradients of the samples between real ones and fakes are each sample's own."""
    text = code(rewrite(WGAN, ["ddp"], **GPUS))
    assert "penalty = gradient_penalty(ddp_netD, x.data, fake.data)" in text
    assert "-torch.mean(ddp_netD(x)) + torch.mean(ddp_netD(fake)) + 10 * penalty" in text
    summed = WGAN.replace("outputs=judged,", "outputs=judged.sum(),").replace(
        "        grad_outputs=torch.ones_like(judged),\n", ""
    )
    assert "gradient_penalty(ddp_netD," in code(rewrite(summed, ["ddp"], **GPUS))


@pytest.mark.parametrize("asked", ["x.requires_grad_()", "x.requires_grad = True"])
@pytest.mark.parametrize("is_called", [False, True])
def test_a_penalty_at_the_real_samples(
    rewrite: Callable[..., RewriteResult], asked: str, is_called: bool
) -> None:
    """That gradients of the batch are wanted says nothing of what is trained."""
    penalty = (
        f"{asked}\njudged = net(x)\n"
        "slope = torch.autograd.grad(judged.sum(), x, create_graph=True)[0]\n"
    )
    norm = "slope.pow(2).sum(1).mean()"
    function = f"def real_penalty(net, x):\n{indent(penalty, '    ')}    return {norm}\n\n\n"
    inside = indent(penalty.replace("net(", "netD("), "        ") + f"        penalty = {norm}\n"
    called = "        penalty = real_penalty(netD, x)\n"
    source = WGAN.replace("def gradient_penalty", f"{function}def gradient_penalty").replace(
        "        penalty = gradient_penalty(netD, x.data, fake.data)\n",
        called if is_called else inside,
    )
    assert "ddp_netD(x)" in code(rewrite(source, ["ddp"], **GPUS))


FAKE = "        fake = netG(torch.randn(x.size(0), 4)).detach()\n"
SUMMED = """\
        lossD = -torch.mean(netD(x)) + torch.mean(netD(fake)) + 10 * penalty
        lossD.backward()
"""


def test_a_gradient_penalty_with_a_backward_pass_of_its_own(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None]
) -> None:
    """On the bias of the last layer the gradients of the inputs do not depend."""
    why = "a penalty on gradients alone may bring none to some parameters"
    first = SUMMED.replace(" + 10 * penalty", "")
    late = first + "        penalty = gradient_penalty(netD, x.data, fake.data)\n"
    source = WGAN.replace("        penalty = gradient_penalty(netD, x.data, fake.data)\n", "")
    source = source.replace("        fake = netG(torch.randn(x.size(0), 4))\n", FAKE)
    source = source.replace(SUMMED, f"{late}        (10 * penalty).backward()\n")
    check_noop(source, why, **GPUS)
    with_loss = source.replace(
        "(10 * penalty).backward()", "(10 * penalty + netD(x).mean()).backward()"
    )
    assert "gradient_penalty(ddp_netD," in code(rewrite(with_loss, ["ddp"], **GPUS))


@pytest.mark.parametrize(
    ("replaced", "by"),
    [
        ("        create_graph=True,\n", ""),
        ("outputs=judged,", "outputs=judged.mean(),"),
        (
            "grad_outputs=torch.ones_like(judged),",
            "grad_outputs=torch.ones_like(judged) / len(real),",
        ),
        ("inputs=between,", "inputs=other,"),
        (".norm(2, dim=1)", ".norm(2)"),
    ],
)
def test_gradients_of_another_kind(check_noop: Callable[..., None], replaced: str, by: str) -> None:
    assert replaced in WGAN
    source = WGAN.replace(replaced, by).replace(
        "    judged =", "    other = between.sum()\n    judged ="
    )
    check_noop(source, "which no other process hears of", **GPUS)


@pytest.mark.parametrize(
    "use",
    [
        "output.view(output.size(0), 16)",
        "output.view(output.shape[0], 1, 16)",
        "output.reshape(-1, 16)",
        "nn.functional.interpolate(output, scale_factor=16)",
    ],
)
def test_numbers_that_are_no_size_of_a_batch(
    rewrite: Callable[..., RewriteResult], check_noop: Callable[..., None], use: str
) -> None:
    source = GAN.replace("        errD_real =", f"        print({use})\n        errD_real =")
    assert "ddp_netD" in code(rewrite(source, ["ddp"], **GPUS))
    check_noop(source.replace(use, "output.view(16, 1)"), "may be the batch size", **GPUS)
