"""fused-optimizer: `fused=True` where the fused kernel can take everything the script gives it."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.options import Target
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

START = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
"""
STEPS = """
for step in range(4):
    x, y = torch.randn(4, 8).to(device), torch.randint(2, (4,)).to(device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def script(optimizer: str, steps: str = STEPS, start: str = START) -> str:
    return f"{start}{optimizer}\n{steps}"


TWO_LOSSES = """
critic = nn.Linear(2, 1).to(device)
other = torch.optim.Adam(model.parameters())
for step in range(4):
    scores = critic(model(torch.randn(4, 8).to(device)))
    first, second = scores.mean(), -scores.mean()
    optimizer.zero_grad()
    first.backward({keeps})
    {between}
    second.backward()
    {after}
    other.step()
"""


@pytest.mark.parametrize(
    ("keeps", "between", "after", "fused"),
    [
        ("retain_graph=True", "optimizer.step()", "pass", False),
        ("retain_graph=True", "pass", "optimizer.step()", True),
        ("", "optimizer.step()", "pass", True),
        ("retain_graph=True", "optimizer.step(); second = critic(model(x)).mean()", "pass", True),
    ],
)
def test_weights_that_a_later_backward_pass_may_need(
    rewrite: Callable[..., RewriteResult], keeps: str, between: str, after: str, fused: bool
) -> None:
    steps = TWO_LOSSES.format(keeps=keeps, between=between, after=after)
    source = script("", steps).replace(
        "other = ", "optimizer = torch.optim.Adam(critic.parameters())\nother = ", 1
    )
    (file,) = rewrite(source, ["fused-optimizer"]).files
    assert file.text.count("fused=") == 1 + fused
    told = any("a later backward pass may need weights" in s.message for s in file.skips)
    assert told is not fused
    (file,) = rewrite(source, ["autocast"]).files
    refused = any("an optimizer has changed since" in s.message for s in file.skips)
    assert refused is not fused


@pytest.mark.parametrize(
    "made",
    [
        "torch.optim.Adam(model.parameters())",
        "torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)",
        "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "torch.optim.Adam([{'params': model.parameters()}], 1e-3, (0.9, 0.99))",
        "torch.optim.Adam([p for p in model.parameters() if p.requires_grad])",
        "torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)",
    ],
)
def test_asks_the_device_of_the_script(rewrite: Check, made: str) -> None:
    text = rewrite(script(f"optimizer = {made}"), ["fused-optimizer"]).files[0].text  # type: ignore[attr-defined]
    after = made[:-1] + ", fused=device.type == 'cuda')"
    assert "".join(after.split()) in "".join(text.replace('"', "'").replace(",\n)", ")").split())


@pytest.mark.parametrize(
    "printed",
    [
        "print(optimizer)",
        "print(f'using {optimizer}')",
        "print(str(optimizer))",
        "if missing:\n    raise ValueError(f'no {optimizer}')",
    ],
)
def test_printing_it_is_no_obstacle(check_transformed: Check, printed: str) -> None:
    made = "optimizer = torch.optim.Adam(model.parameters()"
    fused = made + ', fused=device.type == "cuda")'
    check_transformed(script(f"{made})", printed + STEPS), script(fused, printed + STEPS))


def test_a_step_without_a_closure(check_transformed: Check) -> None:
    made = "optimizer = torch.optim.Adam(model.parameters()"
    steps = STEPS.replace("step()", "step(closure=None)")
    check_transformed(
        script(f"{made})", steps), script(made + ', fused=device.type == "cuda")', steps)
    )


@pytest.mark.parametrize("start", ["import torch as th\nfrom torch import nn, optim\n"])
def test_a_script_that_always_uses_a_gpu(check_transformed: Check, start: str) -> None:
    start += "model = nn.Linear(8, 2).cuda()\n"
    steps = STEPS.replace(".to(device)", ".cuda()").replace("torch.", "th.")
    check_transformed(
        script("optimizer = optim.Adam(model.parameters())", steps, start),
        script("optimizer = optim.Adam(model.parameters(), fused=True)", steps, start),
    )


def test_a_part_moves_with_the_network_that_holds_it(check_transformed: Check) -> None:
    start = (
        START.replace("model =", "head =").replace(".to(device)", "")
        + """

class Net(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), head

    def forward(self, x):
        return self.head(self.body(x))


model = Net(head)
model.to(device)
"""
    )
    made = "optimizer = torch.optim.Adam(model.head.parameters(){})"
    check_transformed(
        script(made.format(""), start=start),
        script(made.format(', fused=device.type == "cuda"'), start=start),
    )


def test_an_optimizer_that_nothing_steps(check_noop: Check) -> None:
    steps = STEPS.replace("    optimizer.step()\n", "").replace(".backward()", "")
    check_noop(
        script("optimizer = torch.optim.Adam(model.parameters())", steps), "nothing steps it"
    )


def test_one_of_another_library(check_noop: Check) -> None:
    start = START.replace("import torch\n", "import torch\nimport transformers\n", 1)
    made = "optimizer = transformers.AdamW(model.parameters())"
    check_noop(script(made, start=start), "`transformers.AdamW` is an optimizer of another library")


def test_one_that_may_be_of_another_library(check_noop: Check) -> None:
    start = START.replace(
        "import torch\n", "import torch\nfrom apex.optimizers import FusedSGD\n", 1
    )
    made = "optimizer = (FusedSGD if fast else torch.optim.SGD)(model.parameters(), lr=0.1)"
    check_noop(
        script(f"fast = input()\n{made}", start=start),
        "it may be `apex.optimizers.FusedSGD`, an optimizer of another library",
    )


def test_star_imports_and_flags(check_transformed: Check) -> None:
    start = """\
import torch
from torch import nn
from torch.optim import *

use_cuda = torch.cuda.is_available()
model = nn.Linear(8, 2)
if use_cuda:
    model.cuda()
"""
    steps = STEPS.replace(".to(device)", "")
    check_transformed(
        script("optimizer = SGD(model.parameters(), lr=0.1)", steps, start),
        script("optimizer = SGD(model.parameters(), lr=0.1, fused=use_cuda)", steps, start),
    )


def test_a_factory_in_another_file(check_transformed: Check) -> None:
    train = START + "from factory import make\n\noptimizer = make(model)\n" + STEPS
    factory = """\
from torch import cuda, optim


def make(network):
    return optim.AdamW(network.parameters(){})
"""
    check_transformed(
        {"train.py": train, "factory.py": factory.format("")},
        {"factory.py": factory.format(", fused=cuda.is_available()")},
    )


def test_known_keyword_dicts(check_transformed: Check) -> None:
    settings = "settings = {'lr': 0.1, 'weight_decay': 0.1}\n"
    check_transformed(
        script(settings + "optimizer = torch.optim.Adam(model.parameters(), **settings)"),
        script(
            settings
            + "optimizer = torch.optim.Adam(\n"
            + '    model.parameters(), fused=device.type == "cuda", **settings\n)'
        ),
    )


def test_a_scheduler_and_a_wrapper_that_only_steps(check_transformed: Check) -> None:
    more = """
from timm.scheduler.scheduler import Scheduler


class Scheduled:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.param_groups[0]["lr"] *= 0.5
        self.optimizer.step()


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, steps):
        super().__init__(optimizer, steps)


class Linear(Scheduler):
    def __init__(self, optimizer):
        super().__init__(optimizer, "lr")


class Poly:
    def __call__(self, optimizer, step):
        optimizer.param_groups[0]["lr"] = 1 / (step + 1)


poly = Poly()
poly(optimizer, 0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
warmup = Warmup(optimizer, 3)
linear = Linear(optimizer)
scheduled = Scheduled(optimizer)
"""
    steps = more + STEPS.replace("optimizer.step()", "scheduled.step()")
    before = "optimizer = torch.optim.Adam(model.parameters())"
    after = 'optimizer = torch.optim.Adam(model.parameters(), fused=device.type == "cuda")'
    check_transformed(script(before, steps), script(after, steps))


def test_parameters_of_self(check_transformed: Check, check_noop: Check) -> None:
    """The network whose method makes the optimizer: every one that is made of its class, and only such."""
    steps = "".join(f"        {line}\n" if line else "\n" for line in STEPS.splitlines())
    start = f"""\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Linear):
    def fit(self):
        model = self
        OPTIMIZER{steps}

"""
    used = start + "net = Net(8, 2).to(device)\nnet.fit()\n"
    before = "optimizer = torch.optim.Adam(self.parameters())"
    after = 'optimizer = torch.optim.Adam(self.parameters(), fused=device.type == "cuda")'
    check_transformed(used.replace("OPTIMIZER", before), used.replace("OPTIMIZER", after))
    unused = start.replace("OPTIMIZER", before) + "print(Net)\n"
    check_noop(unused, reason="nothing in this file calls this code")


def test_the_note_about_older_checkpoints(rewrite: Check) -> None:
    steps = 'optimizer.load_state_dict(torch.load("c.pt"))\n' + STEPS
    result = rewrite(
        script("optimizer = torch.optim.Adam(model.parameters())", steps), ["fused-optimizer"]
    )
    (change,) = result.files[0].changes  # type: ignore[attr-defined]
    assert "checkpoint from before the change turns it off" in change.reason


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("torch.optim.RMSprop(model.parameters())", "`RMSprop` has no fused kernel"),
        ("torch.optim.Adadelta(model.parameters())", "`Adadelta` has no fused kernel"),
        ("torch.optim.Adagrad(model.parameters())", "`Adagrad` has no fused kernel"),
        ("torch.optim.SparseAdam(model.parameters())", "`SparseAdam` has no fused kernel"),
        ("torch.optim.LBFGS(model.parameters())", "`LBFGS` has no fused kernel"),
        ("torch.optim.Adam(model.parameters(), foreach=True)", "`foreach=`"),
        ("torch.optim.Adam(model.parameters(), capturable=True)", "`capturable=`"),
        ("torch.optim.Adam(model.parameters(), differentiable=True)", "`differentiable=`"),
        ("torch.optim.Adam(model.parameters(), **{'foreach': True})", "`foreach=`"),
        ("torch.optim.Adam(model.parameters(), **vars(args))", "`**vars(args)`"),
        ("torch.optim.Adam(*arguments)", "hidden behind `*`"),
        ("torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))", "rate is a tensor"),
        ("torch.optim.Adam([torch.zeros(1, requires_grad=True)])", "cannot be resolved"),
        ("torch.optim.Adam(parameters)", "cannot be resolved"),
    ],
)
def test_what_is_made(check_noop: Check, made: str, reason: str) -> None:
    check_noop(script(f"optimizer = {made}"), reason=reason)


def test_already_said(check_noop: Check) -> None:
    check_noop(script("optimizer = torch.optim.Adam(model.parameters(), fused=False)"))


def test_a_name_that_may_be_several_optimizers(check_noop: Check) -> None:
    kinds = "kinds = {'adam': torch.optim.Adam, 'rms': torch.optim.RMSprop}\n"
    check_noop(
        script(kinds + "optimizer = kinds[name](model.parameters())"),
        reason="`RMSprop` has no fused kernel",
    )
    check_noop(
        script("optimizer = getattr(torch.optim, name)(model.parameters())"),
        reason="which optimizer it is, is chosen when the script runs",
    )


def test_a_class_of_the_script(check_noop: Check) -> None:
    start = START + "class Adam(torch.optim.Adam):\n    pass\n\n"
    check_noop(script("optimizer = Adam(model.parameters())", start=start), reason="script's own")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (STEPS.replace("step()", "step(lambda: 0.0)"), "closure"),
        ("name = f'{optimizer}'\n" + STEPS, "makes a text of its settings"),
        ("name = str(optimizer)\n" + STEPS, "makes a text of its settings"),
        (STEPS + "    print(optimizer.state[model[0].weight]['step'])\n", "looks into its state"),
        (
            STEPS.replace(
                "    optimizer.step", "    model[0].weight.grad = fix()\n    optimizer.step"
            ),
            "sets gradients itself",
        ),
        (
            "for mine, theirs in zip(model.parameters(), other()):\n    mine._grad = theirs.grad\n"
            + STEPS,
            "sets gradients itself",
        ),
        (
            "class Words(nn.Embedding):\n    def __init__(self, n, **options):\n"
            "        super().__init__(n, 8, **options)\nwords = Words(9, sparse=True)\n" + STEPS,
            "may be sparse",
        ),
        ("import hvd\noptimizer = hvd.DistributedOptimizer(optimizer)\n" + STEPS, "is not known"),
        ("from apex import amp\nm, o = amp.initialize(model, optimizer)\n" + STEPS, "Apex"),
        ("import accelerate\na = accelerate.Accelerator()\n" + STEPS, "Accelerate"),
        ("model.add_module('e', nn.Embedding(9, 2, sparse=True))\n" + STEPS, "may be sparse"),
        ("weights = nn.Parameter(torch.zeros(2, dtype=torch.cfloat))\n" + STEPS, "complex"),
    ],
)
def test_what_is_done_with_it(check_noop: Check, steps: str, reason: str) -> None:
    check_noop(script("optimizer = torch.optim.Adam(model.parameters())", steps), reason=reason)


ON_CPU = "import torch\nfrom torch import nn\nmodel = nn.Linear(8, 2)\n"


@pytest.mark.parametrize(
    ("made", "fused"),
    [
        ("Adam(model.parameters())", "Adam(model.parameters(), fused=True)"),
        (
            "SGD(model.parameters(), lr=0.1, momentum=0.9)",
            "SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)",
        ),
    ],
)
def test_scripts_that_know_no_gpu(
    check_transformed: Check, check_noop: Check, made: str, fused: str
) -> None:
    steps = STEPS.replace(".to(device)", "")
    before = script(f"optimizer = torch.optim.{made}", steps, ON_CPU)
    check_transformed(before, script(f"optimizer = torch.optim.{fused}", steps, ON_CPU))
    check_noop(before, reason="not seen to be moved to a GPU", target=Target.CUDA)
    check_noop(before, reason="no fused kernel for a CPU", torch_version=(2, 3))


@pytest.mark.parametrize(
    ("made", "start", "reason"),
    [
        ("SGD(model.parameters(), lr=0.1)", ON_CPU, "SGD without momentum is as fast as it is"),
        (
            "SGD(model.parameters(), lr=0.1, momentum=0)",
            ON_CPU,
            "SGD without momentum is as fast as it is",
        ),
        ("Adam(model.parameters())", ON_CPU + "model.to('mps')\n", "does not use a GPU"),
        ("RMSprop(model.parameters())", ON_CPU, "no fused kernel"),
    ],
)
def test_optimizers_that_stay_on_a_cpu(
    check_noop: Check, made: str, start: str, reason: str
) -> None:
    steps = STEPS.replace(".to(device)", "")
    check_noop(script(f"optimizer = torch.optim.{made}", steps, start), reason=reason)


def test_a_change_for_a_cpu_says_so(rewrite: Callable[..., RewriteResult]) -> None:
    steps = STEPS.replace(".to(device)", "")
    made = "optimizer = torch.optim.Adam(model.parameters())"
    for code, on_cpu in ((script(made, steps, ON_CPU), True), (script(made, STEPS), False)):
        (change,) = rewrite(code, ["fused-optimizer"]).files[0].changes
        assert change.on_cpu == on_cpu


@pytest.mark.parametrize(
    ("start", "steps"),
    [
        (START, STEPS),
        (
            "import torch\nfrom torch import nn\nmodel = nn.Linear(8, 2)\n",
            STEPS.replace(".to(device)", ""),
        ),
    ],
    ids=["device", "cpu"],
)
def test_for_a_cpu_where_the_script_is_rewritten_for_one(
    check_transformed: Check, check_noop: Check, start: str, steps: str
) -> None:
    made, fused = (
        f"optimizer = torch.optim.AdamW(model.parameters(), lr=0.1{f})"
        for f in ("", ", fused=True")
    )
    check_transformed(script(made, steps, start), script(fused, steps, start), target=Target.CPU)
    check_noop(
        script(made, steps, start),
        reason="before PyTorch 2.4 there is no fused kernel for a CPU",
        target=Target.CPU,
        torch_version=(2, 3),
    )
    rms = "optimizer = torch.optim.RMSprop(model.parameters())"
    check_noop(script(rms, steps, start), reason="no fused kernel", target=Target.CPU)


SCALED = """
scaler = torch.amp.GradScaler("cuda"{})
for step in range(4):
    loss = model(torch.randn(4, 8).to(device)).sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


def test_momentum_under_a_scaler(check_noop: Check, check_transformed: Check) -> None:
    def made(more: str) -> str:
        return f"optimizer = torch.optim.SGD(model.parameters(), lr=0.1{more})"

    scaled, fused = SCALED.format(""), ', fused=device.type == "cuda"'
    check_noop(
        script(made(", momentum=0.9"), scaled),
        reason="not fused: fused SGD loses its momentum when its GradScaler skips a step",
    )
    check_noop(script(made(", momentum=args.momentum"), scaled), reason="loses its momentum")
    check_transformed(script(made(""), scaled), script(made(fused), scaled))
    off = SCALED.format(", enabled=False")
    check_transformed(
        script("optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)", off),
        script(f"optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9{fused})", off),
    )


@pytest.mark.parametrize("state", ["torch.load(path)", "torch.load(path)['model_optimizer']"])
def test_loaded_state_of_something_under_a_scaler(check_noop: Check, state: str) -> None:
    loading = f"def load(anything, path):\n    anything.load_state_dict({state})\n\n"
    made = f"{loading}load(something, 'c.pt')\noptimizer = torch.optim.Adam(model.parameters())"
    check_noop(script(made, SCALED.format("")), reason="older checkpoint")


def test_loaded_state_under_a_scaler(check_noop: Check) -> None:
    steps = 'optimizer.load_state_dict(torch.load("c.pt"))\n' + SCALED.format("")
    check_noop(
        script("optimizer = torch.optim.Adam(model.parameters())", steps), reason="older checkpoint"
    )


@pytest.mark.parametrize(
    "loading",
    [
        """\
        import copy
        averaged = copy.deepcopy(model)
        averaged.load_state_dict(model.state_dict())
        """,
        """\
        class Net(nn.Module):
            def load(self, path):
                self.load_state_dict(torch.load(path))
        """,
        """\
        def load(anything, path):
            anything.load_state_dict(torch.load(path), strict=False)
        """,
        """\
        def load(anything, path):
            missing, unexpected = anything.load_state_dict(torch.load(path))
        """,
        """\
        def load(anything: nn.Module, path):
            anything.load_state_dict(torch.load(path))
        """,
        """\
        def load(anything, path):
            anything.load_state_dict(torch.load(path)["model_state_dict"])
        """,
        """\
        def load(owner, path):
            owner.part.load_state_dict(torch.load(path))
            owner.part.to("cuda")
        """,
    ],
    ids=["copy", "self", "strict", "missing", "declared", "key", "moved"],
)
def test_loaded_networks_under_a_scaler(check_transformed: Check, loading: str) -> None:
    made, fused = (
        f"{dedent(loading)}optimizer = torch.optim.Adam(model.parameters(){more})"
        for more in ("", ', fused=device.type == "cuda"')
    )
    check_transformed(script(made, SCALED.format("")), script(fused, SCALED.format("")))


def test_the_load_of_the_optimizer_is_the_one_told(check_noop: Check) -> None:
    steps = (
        "from elsewhere import other\n"
        'other.load_state_dict(torch.load("n.pt"))\n'
        'optimizer.load_state_dict(torch.load("c.pt"))\n'
    )
    check_noop(
        script("optimizer = torch.optim.Adam(model.parameters())", steps + SCALED.format("")),
        reason="would not notice (`optimizer.load_state_dict(",
    )


def test_loading_a_network_is_not_loading_an_optimizer(check_transformed: Check) -> None:
    steps = 'model.load_state_dict(torch.load("c.pt"))\n' + SCALED.format("")
    before = "optimizer = torch.optim.Adam(model.parameters())"
    after = 'optimizer = torch.optim.Adam(model.parameters(), fused=device.type == "cuda")'
    check_transformed(script(before, steps), script(after, steps))


def test_loading_a_network_that_a_subclass_makes(rewrite: Check, name: str) -> None:
    result = rewrite(
        """
        import torch
        from torch import nn

        class Base:
            def __init__(self):
                self.model = self.build().cuda()
                self.optimizer = torch.optim.Adam(self.model.parameters())

            def build(self):
                raise NotImplementedError
                return None

        class Training(Base):
            def build(self):
                return nn.Linear(4, 2)

            def fit(self, loader):
                scaler = torch.amp.GradScaler("cuda")
                for x in loader:
                    self.optimizer.zero_grad()
                    scaler.scale(self.model(x.cuda()).sum()).backward()
                    scaler.step(self.optimizer)
                    scaler.update()
                self.model.load_state_dict(torch.load("best.pt"))

        Training().fit(torch.utils.data.DataLoader(data))
        """,
        [name],
    ).files[0]  # type: ignore[attr-defined]
    assert "Adam(self.model.parameters(), fused=True)" in result.text, result.skips


def test_never_beside_a_scaler_that_autocast_adds(rewrite: Check) -> None:
    before = script("optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)")
    text = rewrite(before, ["fused-optimizer", "autocast"]).files[0].text  # type: ignore[attr-defined]
    assert not ("fused=" in text and "GradScaler" in text)
    fused = before.replace("momentum=0.9", "momentum=0.9, fused=True")
    text = rewrite(fused, ["autocast"]).files[0].text  # type: ignore[attr-defined]
    assert "GradScaler" not in text


class TestOlderTorch:
    def test_sgd_before_2_3(self, check_noop: Check) -> None:
        made = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
        check_noop(script(made), reason="since PyTorch 2.3", torch_version=(2, 2))

    def test_adam_on_a_network_that_is_there(self, check_transformed: Check) -> None:
        before = "optimizer = torch.optim.Adam(model.parameters())"
        after = 'optimizer = torch.optim.Adam(model.parameters(), fused=device.type == "cuda")'
        check_transformed(script(before), script(after), torch_version=(2, 2))

    def test_adam_before_the_network_moves(
        self, check_noop: Check, check_transformed: Check
    ) -> None:
        start = START.replace(".to(device)", "")
        steps = "model.to(device)\n" + STEPS
        before = "optimizer = torch.optim.Adam(model.parameters())"
        after = 'optimizer = torch.optim.Adam(model.parameters(), fused=device.type == "cuda")'
        reason = "must be on the GPU already"
        check_noop(script(before, steps, start), reason=reason, torch_version=(2, 3))
        check_transformed(
            script(before, steps, start), script(after, steps, start), torch_version=(2, 4)
        )

    def test_loading_a_state(self, check_noop: Check) -> None:
        steps = 'optimizer.load_state_dict(torch.load("c.pt"))\n' + STEPS
        made = "optimizer = torch.optim.Adam(model.parameters())"
        check_noop(script(made, steps), reason="before PyTorch 2.4", torch_version=(2, 3))


LIGHTNING = """\
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)
{hook}
    def configure_optimizers(self):
        optimizer = torch.optim.{made}
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=4)
    trainer = pl.Trainer(max_epochs=1, {trainer})
    trainer.fit(Regression(), loader)
"""
QUIET = "accelerator='gpu', logger=False, enable_checkpointing=False"


def with_lightning(
    trainer: str = QUIET, made: str = "Adam(self.parameters())", hook: str = ""
) -> str:
    return LIGHTNING.format(trainer=trainer, made=made, hook=hook)


class TestLightning:
    @pytest.mark.parametrize(
        ("trainer", "fused", "target"),
        [
            ("accelerator='gpu', devices=2, strategy='ddp'", "True", Target.AUTO),
            ("accelerator='gpu', precision='16-mixed'", "True", Target.AUTO),
            ("accelerator='gpu', gradient_clip_val=None", "True", Target.AUTO),
            ("accelerator='auto'", 'self.device.type == "cuda"', Target.CUDA),
            ("precision='bf16-mixed'", 'self.device.type == "cuda"', Target.AUTO),
            ("accelerator='auto'", "True", Target.CPU),
        ],
    )
    def test_asks_the_device_of_the_module(
        self, check_transformed: Check, trainer: str, fused: str, target: Target
    ) -> None:
        after = with_lightning(trainer, f"Adam(self.parameters(), fused={fused})")
        check_transformed(with_lightning(trainer), after, target=target)

    @pytest.mark.parametrize(
        ("trainer", "reason"),
        [
            ("accelerator='gpu', gradient_clip_val=1.0", "does not clip the gradients"),
            ("accelerator='gpu', gradient_clip_val=clip", "does not clip the gradients"),
            ("accelerator='gpu', strategy='fsdp'", "strategy may step it in its own way"),
            ("accelerator='gpu', plugins=[plugin]", "plugin may step it in its own way"),
            ("accelerator='gpu', **more", "arguments are not all known"),
            ("accelerator=given", "accelerator is not known"),
            ("accelerator='tpu'", "accelerator is not known"),
        ],
    )
    def test_trainers_that_do_not_go_with_it(
        self, check_noop: Check, trainer: str, reason: str
    ) -> None:
        check_noop(with_lightning(trainer), reason=reason, target=Target.CUDA)

    def test_momentum_under_its_scaler(self, check_noop: Check, check_transformed: Check) -> None:
        made = "SGD(self.parameters(), lr=0.1, momentum=0.9)"
        fused = f"{made[:-1]}, fused=True)"
        scaled, safe = (f"accelerator='gpu', precision='{p}'" for p in ("16-mixed", "bf16-mixed"))
        check_noop(with_lightning(scaled, made), reason="loses its momentum")
        check_transformed(with_lightning(safe, made), with_lightning(safe, fused))

    @pytest.mark.parametrize(
        ("hook", "reason"),
        [
            (
                "\n    def on_before_optimizer_step(self, optimizer):\n        print(self.net.weight.grad)\n",
                "may see gradients before they are unscaled",
            ),
            (
                "\n    def on_fit_start(self):\n        self.automatic_optimization = False\n",
                "runs its optimizers by hand",
            ),
        ],
    )
    def test_modules_that_look_at_gradients(
        self, check_noop: Check, hook: str, reason: str
    ) -> None:
        check_noop(with_lightning(hook=hook), reason=reason)

    def test_made_by_a_function_of_its_own(
        self, check_noop: Check, check_transformed: Check
    ) -> None:
        own = "def made(parameters):\n    return torch.optim.Adam(parameters)\n\n\nclass Regression"
        text = with_lightning().replace("class Regression", own)
        text = text.replace("torch.optim.Adam(self", "made(self")
        check_transformed(text, text.replace("Adam(parameters)", "Adam(parameters, fused=True)"))
        found = text.replace("accelerator='gpu'", "accelerator='auto'")
        check_noop(found, reason="has a GPU is not known", target=Target.CUDA)
        other = text.replace("if __name__", "optimizer = made([])\nif __name__")
        check_noop(other, reason="is not made in `configure_optimizers`")

    def test_optimizers_made_elsewhere(self, check_noop: Check) -> None:
        text = with_lightning()
        check_noop(text.replace("def configure_optimizers", "def make"), reason="is not made in")
        check_noop(text.partition("    trainer =")[0], reason="no Trainer", target=Target.CUDA)
        fabric = text.replace("pl.Trainer(", "lightning.Fabric(").replace(
            "import lightning.pytorch as pl", "import lightning\nimport lightning.pytorch as pl"
        )
        check_noop(fabric, reason="Lightning Fabric runs the step", target=Target.CUDA)

    @pytest.mark.slow
    @pytest.mark.torch
    def test_verified(self, check_verified: Check) -> None:
        pytest.importorskip("lightning")
        quiet = QUIET.replace("'gpu'", "'cpu'").replace("'cpu'", "'auto', devices=1")
        check_verified(with_lightning(quiet), target=Target.CPU)


@pytest.mark.slow
@pytest.mark.torch
def test_verified(check_verified: Check) -> None:
    check_verified(script("optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)"))


def test_a_setting_of_the_scripts_own_that_is_named_sparse(check_transformed: Check) -> None:
    own = "class Flow:\n    def __init__(self, folder, sparse=False):\n        self.sparse = sparse\n\n\n"
    steps = "data = Flow('kitti', sparse=True)\n" + STEPS
    before = "optimizer = torch.optim.Adam(model.parameters())"
    check_transformed(
        script(own + before, steps),
        script(own + before[:-1] + ', fused=device.type == "cuda")', steps),
    )


NETWORK_OF_ITS_CALLERS = """
    import torch
    from torch import nn

    device = torch.device("cuda")


    def train_one_epoch(model, loader, lr):
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
"""


def test_network_that_only_the_callers_know(check_noop: Callable[..., None]) -> None:
    check_noop(NETWORK_OF_ITS_CALLERS, reason="whose parameters it updates, its callers know")


def test_network_made_by_a_class_method(rewrite: Callable[..., object]) -> None:
    build = """\
        class Net(torch.nn.Module):
            def __init__(self, size):
                super().__init__()
                self.fc = torch.nn.Linear(size, 2)
            def forward(self, x):
                return self.fc(x)
            @classmethod
            def build(cls, size):
                net = cls(size)
                net.apply(print)
                return net
        model = Net.build(10).cuda()
        optimizer = torch.optim.Adam(model.parameters())"""
    text = rewrite(script(dedent(build)), ["fused-optimizer"]).files[0].text  # type: ignore[attr-defined]
    assert "torch.optim.Adam(model.parameters(), fused=True)" in text
