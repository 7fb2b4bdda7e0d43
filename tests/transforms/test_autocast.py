"""Training steps run under autocast, with a GradScaler where float16 needs one, and only where that is safe."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.options import AmpDtype, Target, Tier
from torchopt_cli.optimizer.pipeline.result import RewrittenFile
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]
Rewrite = Callable[..., RewriteResult]

BF16, FP16 = AmpDtype.BF16, AmpDtype.FP16
PORTABLE = """
amp_dtype = (
    torch.bfloat16
    if torch.cuda.is_bf16_supported(including_emulation=False)
    else torch.float16
)
scaler = torch.amp.GradScaler("cuda", enabled=amp_dtype == torch.float16)
"""
SETUP = """
model = Net().cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """
for x, y in loader:
    optimizer.zero_grad()
    output = model(x.cuda())
    loss = criterion(output, y.cuda())
    loss.backward()
    optimizer.step()
"""
STEP_IN_BFLOAT16 = """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(x.cuda())
        loss = criterion(output, y.cuda())
    loss.backward()
    optimizer.step()
"""


def script(*parts: str, forward: str = "return self.fc(x)") -> str:
    """A script with a network, and ``parts`` below it."""
    body = indent(dedent(forward).strip("\n"), " " * 8)
    net = f"""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
{body}


"""
    return net + "".join(dedent(part).lstrip("\n") for part in parts)


def training(step: str, forward: str = "return self.fc(x)", setup: str = SETUP) -> str:
    return script(setup, "\n", step, forward=forward)


def test_bfloat16_is_one_line(check_transformed: Check) -> None:
    check_transformed(
        training(STEP),
        training(STEP_IN_BFLOAT16),
        amp=BF16,
    )


def test_a_copy_runs_the_code_of_its_network(check_transformed: Check, check_noop: Check) -> None:
    """As the clients of federated learning do, each with a copy of its own."""
    setup = SETUP.replace("model = Net()", "import copy\n\nmodel = copy.deepcopy(Net())")
    check_transformed(
        training(STEP, setup=setup), training(STEP_IN_BFLOAT16, setup=setup), amp=BF16
    )
    forward = "return torch.linalg.inv(self.fc(x))"
    check_noop(training(STEP, forward, setup), "torch.linalg.inv", amp=BF16)


def test_a_copy_has_weights_of_its_own(check_transformed: Check) -> None:
    """Autocast keeps those it cast without gradients, which would be of harm to the network itself only."""
    setup = f"import copy\n{SETUP}teacher = copy.deepcopy(model)\n"
    taught = "with torch.no_grad():\n    target = teacher(x.cuda())\noutput ="
    before, after = (
        code.replace(f"{margin}output =", indent(taught, margin)).replace(
            "y.cuda()", "target.softmax(1)"
        )
        for code, margin in ((STEP, " " * 4), (STEP_IN_BFLOAT16, " " * 8))
    )
    check_transformed(training(before, setup=setup), training(after, setup=setup), amp=BF16)


def test_float16_scales(check_transformed: Check) -> None:
    check_transformed(
        training(STEP),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            """,
            setup=SETUP + 'scaler = torch.amp.GradScaler("cuda")\n',
        ),
        amp=FP16,
    )


def test_an_optimizer_chosen_by_name(check_transformed: Check) -> None:
    """Without a closure it cannot be LBFGS."""
    chosen = SETUP.replace("torch.optim.SGD", "getattr(torch.optim, name)")
    check_transformed(
        training(STEP, setup=chosen),
        training(
            STEP_IN_BFLOAT16,
            setup=chosen,
        ),
        amp=BF16,
    )


def test_a_flag_that_the_constructor_sets_below_the_optimizer(check_transformed: Check) -> None:
    """The scaler is made beside the optimizer, where there is no flag yet."""
    solver = """
    class Solver:
        def __init__(self, optimizer, **opts):
            self.optimizer = optimizer
{made}            self.cuda = opts.get("cuda", True)

        def train(self, model):
            if self.cuda:
                model.cuda()
            for x, y in loader:
{step}
                self.optimizer.zero_grad()

    model = Net()
    Solver(torch.optim.Adam(model.parameters())).train(model)
    """
    made = """
            self.amp_dtype = (
                torch.bfloat16
                if torch.cuda.is_bf16_supported(including_emulation=False)
                else torch.float16
            )
            self.scaler = torch.amp.GradScaler(
                "cuda",
                enabled=torch.cuda.is_available() and self.amp_dtype == torch.float16,
            )
"""
    step = """
                loss = model(x).mean()
                loss.backward()
                self.optimizer.step()"""
    new_step = """
                with torch.autocast("cuda", dtype=self.amp_dtype, enabled=bool(self.cuda)):
                    loss = model(x).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()"""
    check_transformed(
        script(solver.format(made="", step=step.lstrip("\n"))),
        script(solver.format(made=made.lstrip("\n"), step=new_step.lstrip("\n"))),
    )


TRAINER = """
class BaseTrainer:
    def __init__(self, model, optimizer, device):
        self.model = model.to(device)
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = optimizer
{made}        self.device = device

    def train(self):
        for epoch in range(9):
            self.train_epoch(epoch)

    def train_epoch(self, epoch):
        raise NotImplementedError


class Trainer(BaseTrainer):
    def __init__(self, loader, *, model, optimizer, device):
        super().__init__(model, optimizer, device)
        self.loader = loader

    def train_epoch(self, epoch):
        for x, y in self.loader:
            self.optimizer.zero_grad()
{step}


model = Net()
optimizer = torch.optim.Adam(model.parameters())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Trainer(loader, model=model, optimizer=optimizer, device=device).train()
"""


def test_a_step_in_a_class_whose_base_keeps_the_optimizer(check_transformed: Check) -> None:
    """The scaler is made beside the optimizer, in the base, and the device is what the base calls it."""
    step = """
            loss = self.loss(self.model(x.to(self.device)), y.to(self.device))
            loss.backward()
            self.optimizer.step()
    """
    new_step = """
            with torch.autocast("cuda", dtype=self.amp_dtype, enabled=self.device.type == "cuda"):
                loss = self.loss(self.model(x.to(self.device)), y.to(self.device))
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
    """
    made = """
        self.amp_dtype = (
            torch.bfloat16
            if torch.cuda.is_bf16_supported(including_emulation=False)
            else torch.float16
        )
        self.scaler = torch.amp.GradScaler(
            "cuda", enabled=device.type == "cuda" and self.amp_dtype == torch.float16
        )
"""
    check_transformed(
        script(TRAINER.format(made="", step=step.strip("\n").rstrip())),
        script(TRAINER.format(made=made.lstrip("\n"), step=new_step.strip("\n").rstrip())),
    )


LEARNER = """
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def forward(self, x, y):
        self.optimizer.zero_grad()
        {computed}
        loss.backward()
        self.optimizer.step()
        return loss.detach()


learner = Learner().cuda()
for x, y in loader:
    loss = learner(x.cuda(), y.cuda())
"""


def test_a_step_in_the_forward_of_a_learner(check_transformed: Check, rewrite: Rewrite) -> None:
    computed = "loss = nn.functional.cross_entropy(self.net(x), y)"
    covered = f'with torch.autocast("cuda", dtype=torch.bfloat16):\n            {computed}'
    before = script(LEARNER.format(computed=computed))
    check_transformed(before, script(LEARNER.format(computed=covered)), amp=BF16)
    (change,) = rewrite(before, ["autocast"], amp=BF16).files[0].changes
    assert "stays in float32" not in change.message + change.reason


HOOKED = """
class Base:
    def __init__(self, model):
        self.model = model.cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
{made}
    def loss(self, output, y):
        return nn.functional.cross_entropy(output, y)

    def after_backward(self):
        pass

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
{step}


class Clipped(Base):
{methods}


Clipped(Net()).fit(loader)
"""
CLIPS = """
    def after_backward(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
"""


def test_a_hook_of_a_subclass_sees_unscaled_gradients(check_transformed: Check) -> None:
    step = """
            loss = self.loss(self.model(x.cuda()), y.cuda())
            loss.backward()
            self.after_backward()
            self.optimizer.step()
    """
    new_step = """
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.loss(self.model(x.cuda()), y.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.after_backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
    """
    made = '        self.scaler = torch.amp.GradScaler("cuda")\n'
    filled = {"methods": CLIPS.strip("\n")}
    check_transformed(
        script(HOOKED.format(made="", step=step.strip("\n").rstrip(), **filled)),
        script(HOOKED.format(made=made, step=new_step.strip("\n").rstrip(), **filled)),
        amp=FP16,
    )


def test_the_loss_of_a_subclass_counts(check_noop: Check) -> None:
    loss = """
    def loss(self, output, y):
        return nn.functional.binary_cross_entropy(output.sigmoid(), y)
    """
    step = """
            self.loss(self.model(x.cuda()), y.cuda()).backward()
            self.optimizer.step()
    """
    source = HOOKED.format(
        made="", step=step.strip("\n").rstrip(), methods=loss.strip("\n").rstrip()
    )
    check_noop(script(source), reason="only with --tier semantic", tier=Tier.NUMERIC)


def test_auto_picks_at_run_time(check_transformed: Check) -> None:
    check_transformed(
        training(STEP),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=amp_dtype):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            """,
            setup=SETUP + PORTABLE.lstrip("\n"),
        ),
    )


def test_before_is_bf16_supported_tells_emulation(check_transformed: Check) -> None:
    check_transformed(
        training(
            STEP,
            setup="""
            use_cuda = torch.cuda.is_available()
            model = Net()
            if use_cuda:
                model = model.cuda()
            criterion = nn.CrossEntropyLoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            """,
        ),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=amp_dtype, enabled=use_cuda):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            """,
            setup="""
            use_cuda = torch.cuda.is_available()
            model = Net()
            if use_cuda:
                model = model.cuda()
            criterion = nn.CrossEntropyLoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            amp_dtype = (
                torch.bfloat16
                if use_cuda and torch.cuda.get_device_capability() >= (8, 0)
                else torch.float16
            )
            scaler = torch.cuda.amp.GradScaler(enabled=use_cuda and amp_dtype == torch.float16)
            """,
        ),
        torch_version=(2, 2),
    )


@pytest.mark.parametrize(
    ("device", "move", "condition"),
    [
        (
            'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
            ".to(device)",
            ', enabled=device.type == "cuda"',
        ),
        (
            'device = "cuda" if torch.cuda.is_available() else "cpu"',
            ".to(device)",
            ', enabled=device == "cuda"',
        ),
        (
            'device = "cuda:1" if torch.cuda.is_available() else "cpu"',
            ".to(device)",
            ', enabled=device.startswith("cuda")',
        ),
        ('device = torch.device("cuda")', ".to(device)", ""),
        ('device = "cuda:0"', ".to(device)", ""),
        ("rank = 0", ".cuda(rank)", ""),
        (
            "import argparse\n"
            "parser = argparse.ArgumentParser()\n"
            'parser.add_argument("--device", default="cuda")\n'
            "args = parser.parse_args()",
            ".to(args.device)",
            ', enabled=torch.device(args.device).type == "cuda"',
        ),
        (
            "from cluster import pick\ndevice = pick()",
            ".to(device)",
            ", enabled=torch.cuda.is_available()",
        ),
    ],
)
def test_regions_switch_off_without_a_gpu(
    check_transformed: Check, device: str, move: str, condition: str
) -> None:
    setup = f"""
{device}
model = Net(){move}
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("cuda")
"""
    check_transformed(
        training(STEP, setup=setup),
        training(
            f"""
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16{condition}):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                loss.backward()
                optimizer.step()
            """,
            setup=setup,
        ),
        amp=BF16,
    )


@pytest.mark.parametrize(
    ("assigned", "condition"),
    [
        ("args.cuda = not args.no_cuda and torch.cuda.is_available()", "args.cuda"),
        ("args.cuda = torch.cuda.device_count() > 0", "args.cuda"),
        ("args.cuda = False\n    args.cuda = args.cuda or torch.cuda.is_available()", "args.cuda"),
        ("args.cuda = torch.cuda.device_count()", "bool(args.cuda)"),
        ("args.cuda = torch.cuda.is_available() and args.gpu", "bool(args.cuda)"),
        ("args.cuda, args.many = find()", "bool(args.cuda)"),
    ],
)
def test_a_flag_kept_beside_the_options(
    check_transformed: Check, assigned: str, condition: str
) -> None:
    setup = f"""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--gpu")
    args = parser.parse_args()
    {assigned}
    model = Net()
    if args.cuda:
        model.cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    check_transformed(
        training(STEP, setup=setup),
        training(
            f"""
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled={condition}):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                loss.backward()
                optimizer.step()
            """,
            setup=setup,
        ),
        amp=BF16,
    )


def test_condition_that_is_no_bool(check_transformed: Check) -> None:
    setup = """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=int)
    args = parser.parse_args()
    model = Net()
    if args.gpu:
        model.cuda(args.gpu)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    check_transformed(
        training(STEP, setup=setup),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bool(args.gpu)):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                loss.backward()
                optimizer.step()
            """,
            setup=setup,
        ),
        amp=BF16,
    )


def test_cpu_when_asked(check_transformed: Check) -> None:
    setup = SETUP.replace(".cuda()", "")
    check_transformed(
        training(STEP.replace(".cuda()", ""), setup=setup),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    output = model(x)
                    loss = criterion(output, y)
                loss.backward()
                optimizer.step()
            """,
            setup=setup,
        ),
        amp=BF16,
        target=Target.CPU,
    )


def test_data_parallel_gets_float16(check_transformed: Check) -> None:
    setup = SETUP.replace("Net().cuda()", "nn.DataParallel(Net()).cuda()")
    check_transformed(
        training(STEP, setup=setup),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            """,
            setup=setup + 'scaler = torch.amp.GradScaler("cuda")\n',
        ),
    )


RECURRENT = {
    "layer of the network": ("self.rnn = nn.LSTM(8, 8)", "Net()"),
    "layer in a list": ("self.rnns = nn.ModuleList([nn.GRU(8, 8) for _ in range(2)])", "Net()"),
    "class of the script's own": ("self.rnn = Memory(8, 8)", "Net()"),
    "layer chosen by name": ("self.rnn = getattr(nn, kind)(8, 8)", "Net(options.kind)"),
    "layer handed in": ("self.rnn = rnn", "Net(nn.RNN(8, 8))"),
}


def recurrent(layer: str, made: str, forward: str = "return self.fc(x)", step: str = STEP) -> str:
    """A training of a network with a recurrent ``layer``."""
    parameter = made.removeprefix("Net(").removesuffix(")") and (
        "rnn" if layer.endswith("= rnn") else "kind"
    )
    memory = "class Memory(nn.LSTM):\n    pass\n\n\n" if "Memory" in layer else ""
    text = training(step, forward, SETUP.replace("Net()", made))
    text = text.replace("class Net", f"{memory}class Net")
    text = text.replace(
        "__init__(self)", f"__init__(self, {parameter})" if parameter else "__init__(self)"
    )
    return text.replace("self.fc = nn", f"{layer}\n        self.fc = nn", 1)


@pytest.mark.parametrize(("layer", "made"), RECURRENT.values(), ids=RECURRENT)
@pytest.mark.parametrize(
    "other",
    [
        "nn.Conv1d(8, 8, 3)",
        "nn.MultiheadAttention(8, 2)",
        "transformers.AutoModel.from_pretrained(options.model)",
    ],
)
def test_recurrent_layers_beside_others_get_float16(
    rewrite: Rewrite, name: str, check_noop: Check, layer: str, made: str, other: str
) -> None:
    text = "import transformers\n" + recurrent(layer, made)
    beside = text.replace("self.fc = nn", f"self.other = {other}\n        self.fc = nn", 1)
    result = rewrite(beside, [name], select=frozenset()).files[0]
    assert 'torch.autocast("cuda", dtype=torch.float16)' in result.text, result.skips
    assert 'scaler = torch.amp.GradScaler("cuda")\n' in result.text
    assert "bfloat16" not in result.text
    check_noop(text, "in float16 under autocast, whose gradients need a GradScaler", amp=BF16)


@pytest.mark.parametrize("kind", sorted(RECURRENT.keys() - {"class of the script's own"}))
@pytest.mark.parametrize(
    "forward",
    [
        "return self.fc(x)",
        "return self.fc(torch.bmm(self.fc(x), x) if random.random() < 0.5 else x)",
    ],
)
def test_recurrent_layers_with_little_else_stay_in_float32(
    rewrite: Rewrite, name: str, check_noop: Check, kind: str, forward: str
) -> None:
    text = "import random\n" + recurrent(*RECURRENT[kind], forward=forward)
    check_noop(text, "its recurrent layers use TF32 by themselves", select=frozenset())
    asked = rewrite(text, [name], amp=FP16, select=frozenset()).files[0]
    assert 'torch.autocast("cuda", dtype=torch.float16)' in asked.text, asked.skips


def test_recurrent_layers_stay_in_float32_where_float16_is_not_safe(check_noop: Check) -> None:
    layer = RECURRENT["layer of the network"]
    overflows = recurrent(*layer, forward="return self.fc(x).masked_fill(x > 0, -1e9)")
    check_noop(overflows, "overflows in float16")
    closure = STEP.replace("    optimizer.step()", "    optimizer.step(lambda: loss)")
    check_noop(recurrent(*layer, step=closure), "closure")


def test_what_is_no_recurrent_layer_gets_bfloat16(rewrite: Rewrite, name: str) -> None:
    for layer in ("self.cell = nn.LSTMCell(8, 8)", "self.act = getattr(nn, kind)()"):
        made = "Net(options.kind)" if "kind" in layer else "Net()"
        assert "bfloat16" in rewrite(recurrent(layer, made), [name]).files[0].text


@pytest.mark.parametrize(
    "called",
    [
        "nn.parallel.data_parallel(model, x.cuda())",
        "nn.parallel.parallel_apply(nn.parallel.replicate(model, [0, 1]), x.cuda().chunk(2))[0]",
        "apply(nn.parallel.replicate(model, [0, 1]), x.cuda().chunk(2))[0]",
    ],
)
def test_replicas_of_the_scripts_own_get_float16(rewrite: Rewrite, name: str, called: str) -> None:
    imported = "from torch.nn.parallel.parallel_apply import parallel_apply as apply\n"
    choice = f"output = {called} if gpus > 1 else model(x.cuda())"
    step = STEP.replace("output = model(x.cuda())", choice)
    result = rewrite(imported + training(step), [name]).files[0]
    assert "torch.float16" in result.text, result.skips
    assert "bfloat16" not in result.text


FLOAT16_STEPS = {
    "loss without a name": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "loss without a name below the output": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            output = model(x.cuda())
            criterion(output, y.cuda()).backward()
            optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                output = model(x.cuda())
                loss = criterion(output, y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "sum of losses": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            a = criterion(model(x.cuda()), y.cuda())
            b = criterion(model(-x.cuda()), y.cuda())
            (a + b).backward(retain_graph=True)
            optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                a = criterion(model(x.cuda()), y.cuda())
                b = criterion(model(-x.cuda()), y.cuda())
            scaler.scale(a + b).backward(retain_graph=True)
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "autograd.backward": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.cuda()), y.cuda())
            torch.autograd.backward(loss)
            optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "one line": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.cuda()), y.cuda()); loss.backward(); optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward(); scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "accumulation": (
        """
        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x.cuda()), y.cuda()) / 4
            loss.backward()
            if (i + 1) % 4 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        """,
        """
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda()) / 4
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
    ),
    "micro-batches": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            for part, labels in zip(x.chunk(4), y.chunk(4)):
                loss = criterion(model(part.cuda()), labels.cuda()) / 4
                loss.backward()
            optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            for part, labels in zip(x.chunk(4), y.chunk(4)):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = criterion(model(part.cuda()), labels.cuda()) / 4
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "conditional clipping": (
        """
        from torch.nn.utils import clip_grad_norm_ as clip
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.cuda()), y.cuda())
            loss.backward()
            if max_norm:
                clip(model.parameters(), max_norm)
            optimizer.step()
        """,
        """
        from torch.nn.utils import clip_grad_norm_ as clip
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            if max_norm:
                scaler.unscale_(optimizer)
                clip(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "gradient noise": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.cuda()), y.cuda())
            loss.backward()
            for p in model.parameters():
                p.grad += 0.01 * torch.randn_like(p)
            optimizer.step()
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad += 0.01 * torch.randn_like(p)
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "gradients logged after the step": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            print(model.fc.weight.grad.norm())
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(model.fc.weight.grad.norm())
        """,
    ),
    "phases": (
        """
        for phase in ["train", "val"]:
            for x, y in loaders[phase]:
                with torch.set_grad_enabled(phase == "train"):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                    if phase == "train":
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
        """,
        """
        for phase in ["train", "val"]:
            for x, y in loaders[phase]:
                with torch.set_grad_enabled(phase == "train"):
                    with torch.autocast("cuda", dtype=torch.float16):
                        output = model(x.cuda())
                        loss = criterion(output, y.cuda())
                    if phase == "train":
                        optimizer.zero_grad()
                        scaler.scale(loss).backward()
                        scaler.step(optimizer)
                        scaler.update()
        """,
    ),
    "several optimizers in a loop": (
        """
        optimizers = [optimizer, torch.optim.Adam(model.parameters())]
        for x, y in loader:
            loss = criterion(model(x.cuda()), y.cuda())
            loss.backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
        """,
        """
        optimizers = [optimizer, torch.optim.Adam(model.parameters())]
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            for each in optimizers:
                scaler.step(each)
                each.zero_grad()
            scaler.update()
        """,
    ),
    "warm-up that goes on to the next batch": (
        """
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            output = model(x.cuda())
            loss = criterion(output, y.cuda())
            if i < warmup:
                loss.backward()
                optimizer.step()
                continue
            total = loss + output.abs().mean()
            total.backward()
            optimizer.step()
        """,
        """
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                output = model(x.cuda())
                loss = criterion(output, y.cuda())
            if i < warmup:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                continue
            with torch.autocast("cuda", dtype=torch.float16):
                total = loss + output.abs().mean()
            scaler.scale(total).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "pseudo labels of the same network": (
        """
        for x, weak in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                target = model(weak.cuda()).argmax(1)
            loss = criterion(model(x.cuda()), target)
            loss.backward()
            optimizer.step()
        """,
        """
        for x, weak in loader:
            optimizer.zero_grad()
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                target = model(weak.cuda()).argmax(1)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x.cuda()), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    ),
    "scores for NumPy": (
        """
        for x, y in loader:
            optimizer.zero_grad()
            output = model(x.cuda())
            loss = criterion(output, y.cuda())
            loss.backward()
            optimizer.step()
            scores = torch.softmax(output, 1).detach().cpu().numpy()
            hits = (output.argmax(1).cpu().numpy() == y.numpy()).mean()
            print(loss.item(), output.max(1)[1].cpu().numpy())
        """,
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                output = model(x.cuda())
                loss = criterion(output, y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scores = torch.softmax(output.float(), 1).detach().cpu().numpy()
            hits = (output.argmax(1).cpu().numpy() == y.numpy()).mean()
            print(loss.item(), output.max(1)[1].cpu().numpy())
        """,
    ),
}


@pytest.mark.parametrize(("before", "after"), FLOAT16_STEPS.values(), ids=FLOAT16_STEPS)
def test_steps_in_float16(check_transformed: Check, before: str, after: str) -> None:
    scaler = 'scaler = torch.amp.GradScaler("cuda")\n'
    setup = SETUP if scaler.strip() in after else SETUP + scaler
    check_transformed(training(before), training(after, setup=setup), amp=FP16)


def test_one_scaler_and_one_update_for_a_gan(check_transformed: Check) -> None:
    setup = """
    G, D = Net().cuda(), Net().cuda()
    bce = nn.BCEWithLogitsLoss()
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    """
    check_transformed(
        training(
            """
            for real in loader:
                opt_d.zero_grad()
                fake = G(torch.randn(4, 8, device="cuda"))
                d_loss = bce(D(real.cuda()), ones) + bce(D(fake.detach()), zeros)
                d_loss.backward()
                opt_d.step()

                opt_g.zero_grad()
                g_loss = bce(D(fake), ones)
                g_loss.backward()
                opt_g.step()
            """,
            setup=setup,
        ),
        training(
            """
            for real in loader:
                opt_d.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    fake = G(torch.randn(4, 8, device="cuda"))
                    d_loss = bce(D(real.cuda()), ones) + bce(D(fake.detach()), zeros)
                scaler.scale(d_loss).backward()
                scaler.step(opt_d)

                opt_g.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    g_loss = bce(D(fake), ones)
                scaler.scale(g_loss).backward()
                scaler.step(opt_g)
                scaler.update()
            """,
            setup=dedent(setup) + 'scaler = torch.amp.GradScaler("cuda")\n',
        ),
        amp=FP16,
    )


def test_critic_that_steps_more_often(check_transformed: Check) -> None:
    setup = """
    G, D = Net().cuda(), Net().cuda()
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    """
    check_transformed(
        training(
            """
            for real in loader:
                for _ in range(5):
                    opt_d.zero_grad()
                    d_loss = D(G(noise())).mean() - D(real.cuda()).mean()
                    d_loss.backward()
                    opt_d.step()
                opt_g.zero_grad()
                g_loss = -D(G(noise())).mean()
                g_loss.backward()
                opt_g.step()
            """,
            setup=setup,
        ),
        training(
            """
            for real in loader:
                for _ in range(5):
                    opt_d.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        d_loss = D(G(noise())).mean() - D(real.cuda()).mean()
                    scaler.scale(d_loss).backward()
                    scaler.step(opt_d)
                    scaler.update()
                opt_g.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    g_loss = -D(G(noise())).mean()
                scaler.scale(g_loss).backward()
                scaler.step(opt_g)
                scaler.update()
            """,
            setup=dedent(setup) + 'scaler = torch.amp.GradScaler("cuda")\n',
        ),
        amp=FP16,
    )


def test_scaler_is_handed_down(check_transformed: Check) -> None:
    check_transformed(
        script(
            """
            def train(model, loader, optimizer, epoch):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                    loss.backward()
                    optimizer.step()


            def evaluate(model, loader):
                model.eval()
                correct = 0
                for x, y in loader:
                    correct += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
                return correct


            def main():
                loader = torch.utils.data.DataLoader(data)
                model = Net().cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for epoch in range(10):
                    train(model, loader, optimizer, epoch=epoch)
                    evaluate(model, loader)


            main()
            """
        ),
        script(
            """
            def train(model, loader, optimizer, scaler, epoch):
                amp_dtype = torch.float16 if scaler.is_enabled() else torch.bfloat16
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda", dtype=amp_dtype):
                        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()


            def evaluate(model, loader):
                model.eval()
                correct = 0
                amp_dtype = (
                    torch.bfloat16
                    if torch.cuda.is_bf16_supported(including_emulation=False)
                    else torch.float16
                )
                for x, y in loader:
                    with torch.autocast("cuda", dtype=amp_dtype):
                        correct += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
                return correct


            def main():
                loader = torch.utils.data.DataLoader(data)
                model = Net().cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler(
                    "cuda", enabled=not torch.cuda.is_bf16_supported(including_emulation=False)
                )
                for epoch in range(10):
                    train(model, loader, optimizer, scaler, epoch=epoch)
                    evaluate(model, loader)


            main()
            """
        ),
    )


def test_scaler_is_handed_down_by_keyword_and_across_files(check_transformed: Check) -> None:
    engine = """
    from torch.nn import functional as F


    def train(*, model, optimizer, loader):
        for x, y in loader:
            train_step(model, optimizer, x.cuda(), y.cuda())


    def train_step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    """
    main = """
    import torch
    from engine import train

    net = torch.nn.Linear(8, 2).cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    train(model=net, optimizer=sgd, loader=loader)
    """
    check_transformed(
        {"train.py": main, "engine.py": engine},
        {
            "train.py": """
            import torch
            from engine import train

            net = torch.nn.Linear(8, 2).cuda()
            sgd = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            train(model=net, optimizer=sgd, loader=loader, scaler=scaler)
            """,
            "engine.py": """
            import torch
            from torch.nn import functional as F


            def train(*, model, optimizer, scaler, loader):
                for x, y in loader:
                    train_step(model, optimizer, scaler, x.cuda(), y.cuda())


            def train_step(model, optimizer, scaler, x, y):
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            """,
        },
        amp=FP16,
    )


ENGINE = """
import torch
from torch.nn import functional as F


def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
    return correct
"""
ENGINE_USER = """
import torch
from data import digits
from engine import evaluate, train

loader = torch.utils.data.DataLoader(digits)
net = torch.nn.Linear(8, 2).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
train(net, sgd, loader)
print(evaluate(net, loader))
"""


@pytest.mark.parametrize(
    "imported", ["import engine\nengine.train(1, 2, 3)\n", "from engine import (\n    train,\n)\n"]
)
def test_step_that_another_script_runs(check_noop: Check, imported: str) -> None:
    files = {"train.py": ENGINE_USER, "engine.py": ENGINE, "sweep.py": imported}
    check_noop(files, "not done, `sweep.py` uses `train`, too", amp=BF16)


def test_scaler_would_go_through_a_function_that_another_script_uses(
    rewrite: Rewrite, name: str
) -> None:
    files = {"train.py": ENGINE_USER, "engine.py": ENGINE, "sweep.py": "from engine import train\n"}
    result = rewrite(files, [name], amp=FP16)
    assert any(
        "made to where it steps: `sweep.py` uses `train`, too" in skip.message
        for file in result.files
        for skip in file.skips
    )


def test_step_beside_a_function_that_another_script_uses(rewrite: Rewrite, name: str) -> None:
    def engine(files: dict[str, str]) -> RewrittenFile:
        result = rewrite(files, [name], amp=BF16)
        return next(file for file in result.files if file.path.name == "engine.py")

    files = {"train.py": ENGINE_USER, "engine.py": ENGINE}
    assert engine(files).text.count("with torch.autocast(") == 2
    shared = engine(files | {"test.py": "from engine import evaluate\n"})
    assert shared.text.count("with torch.autocast(") == 1
    assert shared.text.index("with torch.autocast(") < shared.text.index("def evaluate")
    assert [skip.message for skip in shared.skips] == [
        "the evaluation stays in float32: `test.py` uses `evaluate`, too"
    ]


METRIC_USER = """\
import torch
from data import digits
from metrics import accuracy

loader = torch.utils.data.DataLoader(digits)
net = torch.nn.Linear(8, 2).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    sgd.zero_grad()
    output = net(x.cuda())
    loss = torch.nn.functional.cross_entropy(output, y.cuda())
    loss.backward()
    sgd.step()
    print(accuracy(output, y))
"""


@pytest.mark.parametrize(
    ("measure", "alone", "shared"),
    [
        (
            "return (output.detach().cpu().numpy().argmax(1) == y.numpy()).mean()",
            "output.detach().cpu().float().numpy()",
            "accuracy(output.float(), y)",
        ),
        (
            "return torch.sigmoid(output).mean().item()",
            "torch.sigmoid(output.float())",
            "accuracy(output.float(), y)",
        ),
        ("return (output @ output.t()).detach().cpu().numpy()", None, None),
        ("return KEPT.append(output) or torch.cat(KEPT).numpy()", None, None),
    ],
)
def test_a_measure_that_another_script_uses(
    rewrite: Rewrite, name: str, measure: str, alone: str | None, shared: str | None
) -> None:
    """What this script hands it becomes float32 here, and the measure stays as it is."""
    metrics = f"import torch\n\nKEPT = []\n\n\ndef accuracy(output, y):\n    {measure}\n"
    files = {"train.py": METRIC_USER, "metrics.py": metrics}
    own = {f.path.name: f.text for f in rewrite(files, [name], amp=BF16).files}
    assert alone is None or alone in own["metrics.py"]
    files["test.py"] = "from metrics import accuracy\n"
    both = {f.path.name: f.text for f in rewrite(files, [name], amp=BF16).files}
    assert both.get("metrics.py", metrics) == metrics
    if shared is None:
        assert both.get("train.py", METRIC_USER) == METRIC_USER
    else:
        assert shared in both["train.py"]


def test_trainer_object(check_transformed: Check) -> None:
    check_transformed(
        script(
            """
            class Trainer:
                def __init__(self, model, lr):
                    self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
                    self.model = model.to(self.device)
                    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

                def run(self, loader):
                    for x, y in loader:
                        self.optimizer.zero_grad()
                        loss = self.loss(self.model(x.to(self.device)), y.to(self.device))
                        loss.backward()
                        self.optimizer.step()

                def loss(self, output, y):
                    return nn.functional.cross_entropy(output, y)


            Trainer(Net(), 0.1).run(loader)
            """
        ),
        script(
            """
            class Trainer:
                def __init__(self, model, lr):
                    self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
                    self.model = model.to(self.device)
                    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
                    self.scaler = torch.amp.GradScaler("cuda", enabled=self.device.type == "cuda")

                def run(self, loader):
                    for x, y in loader:
                        self.optimizer.zero_grad()
                        with torch.autocast("cuda", dtype=torch.float16, enabled=self.device.type == "cuda"):
                            loss = self.loss(self.model(x.to(self.device)), y.to(self.device))
                        self.scaler.scale(loss).backward()
                        self.scaler.step(self.optimizer)
                        self.scaler.update()

                def loss(self, output, y):
                    return nn.functional.cross_entropy(output, y)


            Trainer(Net(), 0.1).run(loader)
            """
        ),
        amp=FP16,
    )


def test_name_that_is_taken(check_transformed: Check) -> None:
    check_transformed(
        training(STEP, setup=SETUP + "scaler = make_scaler(data)\n"),
        training(
            """
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    output = model(x.cuda())
                    loss = criterion(output, y.cuda())
                grad_scaler.scale(loss).backward()
                grad_scaler.step(optimizer)
                grad_scaler.update()
            """,
            setup=SETUP
            + 'grad_scaler = torch.amp.GradScaler("cuda")\nscaler = make_scaler(data)\n',
        ),
        amp=FP16,
    )


def test_spelling_of_the_file(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch as th

        net = th.nn.Linear(8, 2).to('cuda')
        opt = th.optim.SGD(net.parameters(), lr=0.1)
        for x, y in loader:
            loss = th.nn.functional.cross_entropy(net(x.to('cuda')), y.to('cuda'))
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
        """
        import torch as th

        net = th.nn.Linear(8, 2).to('cuda')
        opt = th.optim.SGD(net.parameters(), lr=0.1)
        scaler = th.amp.GradScaler('cuda')
        for x, y in loader:
            with th.autocast('cuda', dtype=th.float16):
                loss = th.nn.functional.cross_entropy(net(x.to('cuda')), y.to('cuda'))
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        """,
        amp=FP16,
    )


EVALUATION = """
def evaluate():
    results = []
    for x, y in test_loader:
        output = model(x.cuda())
        {use}
    return {returned}


test_loader = torch.utils.data.DataLoader(data)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
evaluate()
"""


def evaluating(use: str, returned: str = "results") -> str:
    return training(EVALUATION.format(use=use, returned=returned))


@pytest.mark.parametrize(
    ("use", "after"),
    [
        ("results += [output.argmax(1)]", None),
        ("results.append(float((output.argmax(1).cpu() == y).sum()))", None),
        (
            "results.append(output.softmax(1).cpu().numpy())",
            "results.append(output.float().softmax(1).cpu().numpy())",
        ),
        (
            "results.append(torch.log(torch.sigmoid(output - 1)))",
            "results.append(torch.log(torch.sigmoid((output - 1).float())))",
        ),
        (
            "results.append(output.cpu().sigmoid())",
            "results.append(output.cpu().float().sigmoid())",
        ),
        ("results.append(output.float().softmax(1))", None),
        ("torch.save(output, 'output.pt')", "torch.save(output.float(), 'output.pt')"),
        ("results.append(find()(output))", "results.append(find()(output.float()))"),
        (
            "import visdom; visdom.Visdom().images(output)",
            "import visdom; visdom.Visdom().images(output.float())",
        ),
        ("results.append(output @ bank)", "results.append(output.float() @ bank)"),
        ("results.append(output @ output.t())", None),
    ],
)
def test_evaluation_follows(rewrite: Rewrite, name: str, use: str, after: str | None) -> None:
    result = rewrite(evaluating(use), [name])
    text = result.files[0].text
    expected = f"        output = model(x.cuda())\n        {after or use}".replace(
        "        output = model", "            output = model"
    )
    assert expected in text
    assert text.count("with torch.autocast(") == 2


def test_a_loss_of_what_came_back_from_the_host_is_no_part_of_the_evaluation(
    rewrite: Rewrite, name: str
) -> None:
    """Such as of predictions that numpy has cleaned up: all between stays as it is."""
    told = "sure = output.sigmoid().cpu().numpy()\n        sure[sure < 0.1] = 0\n        "
    loss = "results.append(criterion({}, y))"
    text = rewrite(evaluating(told + loss.format("torch.tensor(sure)")), [name]).files[0].text
    told = told.replace("output.sigmoid()", "output.float().sigmoid()")
    assert f"            output = model(x.cuda())\n        {told}results.append(" in text
    text = rewrite(evaluating(told + loss.format("output.cpu()")), [name]).files[0].text
    assert "            sure[sure < 0.1] = 0\n            results.append(criterion(output." in text


def test_evaluation_of_batches_that_the_script_cuts_out(check_transformed: Check) -> None:
    evaluation = """
        @torch.no_grad()
        def evaluate():
            total = 0.0
            for i in range(0, len(rows), 64):
                x, y = rows[i:i + 64], labels[i:i + 64]
                {}
            return total / len(rows)


        """
    body = "output = model(x)\n{0}total += criterion(output, y).item()"
    region = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
    before = dedent(evaluation).format(body.format(" " * 8))
    after = dedent(evaluation).format(region + " " * 12 + body.format(" " * 12))
    check_transformed(
        script(SETUP, before, STEP, "evaluate()\n"),
        script(
            SETUP,
            after,
            STEP_IN_BFLOAT16,
            "evaluate()\n",
        ),
        amp=BF16,
    )


@pytest.mark.parametrize(
    ("use", "returned", "reason"),
    [
        ("results.append(output.cpu())", "torch.cat(results).numpy()", "goes to NumPy"),
        ("results.append(output.cpu())", "other(results)", "goes to `other`"),
        (
            "results.append(nn.functional.binary_cross_entropy(output.sigmoid(), y))",
            "results",
            "binary cross entropy of probabilities",
        ),
        ("results.append(torch.linalg.inv(model(output)))", "results", "torch.linalg.inv"),
        ("results.append(output.topk(20).indices)", "results", "ties in a ranking"),
        ("results.append(torch.argsort(output.softmax(1)))", "results", "ties in a ranking"),
        (
            "window = bank.type_as(output)\n        results.append(nn.functional.conv2d(x, window))",
            "results",
            "together with float32",
        ),
    ],
)
def test_evaluation_that_needs_float32_stays(
    rewrite: Rewrite, name: str, use: str, returned: str, reason: str
) -> None:
    source = evaluating(use, returned).replace("import torch\n", "import torch\nother = find()\n")
    result = rewrite(source, [name])
    assert result.files[0].text.count("with torch.autocast(") == 1
    messages = [skip.message for skip in result.files[0].skips]
    assert [m for m in messages if "stays in float32" in m and reason in m], messages


@pytest.mark.parametrize(
    "loss", ["criterion(output, y.cuda())", "nn.functional.cross_entropy(output, y.cuda())"]
)
def test_what_autocast_computes_in_float32_is_left(rewrite: Rewrite, name: str, loss: str) -> None:
    use = f"loss = {loss}\n        results.append(torch.exp(loss).cpu().numpy())"
    text = rewrite(evaluating(use), [name]).files[0].text
    assert text.count("with torch.autocast(") == 2
    assert "        results.append(torch.exp(loss).cpu().numpy())\n" in text


@pytest.mark.parametrize(
    "use",
    [
        "print(output.topk(5)[1])",
        "print(output.topk(max(ks))[1])",
        "print(output.argmax(1).sort())",
        "print(sorted(output.argmax(1).tolist()))",
    ],
)
def test_evaluation_of_the_best_classes(rewrite: Rewrite, name: str, use: str) -> None:
    source = evaluating(use).replace("import torch\n", "import torch\nks = find()\n")
    assert rewrite(source, [name]).files[0].text.count("with torch.autocast(") == 2


def test_evaluation_before_the_optimizer_is_made(rewrite: Rewrite, name: str) -> None:
    source = evaluating("print(output.argmax(1))").replace(
        "test_loader =", "evaluate()\ntest_loader ="
    )
    source = source.replace(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n", ""
    ).replace(
        "for x, y in loader:",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor x, y in loader:",
    )
    text = rewrite(source, [name]).files[0].text
    function = text[text.index("def evaluate") : text.index("evaluate()\n")]
    assert "amp_dtype = (" in function, "the function runs before the script sets the type"


ONLY_BFLOAT16 = {
    "mask constant": (
        dict(forward="return self.fc(x).masked_fill(x[:, :2] > 0, -1e9)"),
        "-1e+09 overflows in float16",
    ),
    "assigned mask constant": (
        dict(forward="x = self.fc(x)\nx[x > 3] = -1e30\nreturn x"),
        "-1e+30 overflows in float16",
    ),
    "mask constant by name": (
        dict(
            setup="NEGATIVE = -1e9\n" + SETUP,
            forward="return self.fc(x).masked_fill(x[:, :2] > 0, NEGATIVE)",
        ),
        "-1e+09 overflows in float16",
    ),
    "filled tensor": (
        dict(forward="y = self.fc(x)\nreturn torch.where(y > 0, y, torch.full_like(y, -1e9))"),
        "-1e+09 overflows in float16",
    ),
    "mask by a factor": (
        dict(forward="y = self.fc(x)\nreturn y + (1 - (y > 0).type_as(y)) * -1e9"),
        "-1e+09 overflows in float16",
    ),
    "mask by a factor in the type of the scores": (
        dict(forward="y = self.fc(x)\nreturn y + (1 - (y > 0).to(dtype=y.dtype)) * -1e9"),
        "-1e+09 overflows in float16",
    ),
    "constant out of a dict": (
        dict(
            setup='LIMITS = {"low": -1e9}\n' + SETUP,
            forward='return self.fc(x).masked_fill(x[:, :2] > 0, LIMITS["low"])',
        ),
        "-1e+09 overflows in float16",
    ),
    "small constant": (
        dict(forward="return self.fc(x) / (x.norm() + 1e-8)"),
        "1e-08 is zero in float16",
    ),
    "clamp": (
        dict(forward="return self.fc(x).clamp(min=1e-10)"),
        "1e-10 is zero in float16",
    ),
    "logarithm of a sigmoid": (
        dict(step=STEP.replace("criterion(output, y.cuda())", "-output.sigmoid().log().mean()")),
        "rounds to zero",
    ),
    "logarithm by name": (
        dict(forward="p = torch.sigmoid(self.fc(x))\nreturn torch.log(p)"),
        "rounds to zero",
    ),
    "Gram matrix": (
        dict(forward="y = self.fc(x)\nreturn torch.mm(y, y.t())"),
        "Gram matrix",
    ),
    "Gram matrix by operator": (
        dict(forward="y = self.fc(x)\nyt = y.transpose(0, 1)\nreturn y @ yt"),
        "Gram matrix",
    ),
    "closure": (
        dict(
            step="""
            for x, y in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = criterion(model(x.cuda()), y.cuda())
                    loss.backward()
                    return loss

                optimizer.step(closure)
            """
        ),
        "closure",
    ),
    "update by hand": (
        dict(
            step="""
            for x, y in loader:
                loss = criterion(model(x.cuda()), y.cuda())
                model.zero_grad()
                loss.backward()
                for p in model.parameters():
                    p.data.add_(p.grad, alpha=-0.1)
            """
        ),
        "no optimizer step is seen",
    ),
    "wrapped optimizer": (
        dict(
            setup="""
            class Scheduled:
                def __init__(self, inner):
                    self.inner = inner

                def zero_grad(self):
                    self.inner.zero_grad()

                def step(self):
                    self.inner.step()

            model = Net().cuda()
            criterion = nn.CrossEntropyLoss()
            optimizer = Scheduled(torch.optim.SGD(model.parameters(), lr=0.1))
            """
        ),
        "function of its own",
    ),
    "optimizer that a library may wrap": (
        dict(
            setup=SETUP
            + """
if len(dataset) > 4096:
    from apex.parallel.LARC import LARC
    optimizer = LARC(optimizer=optimizer)
"""
        ),
        "what `LARC` does with the optimizer is not known",
    ),
    "two steps a pass": (
        dict(step=STEP + "    optimizer.step()\n"),
        "more than once",
    ),
    "steps without gradients": (
        dict(
            step="""
            for x, y in loader:
                loss = criterion(model(x.cuda()), y.cuda())
                if loss > 0.1:
                    loss.backward()
                optimizer.step()
            """
        ),
        "without a backward pass",
    ),
    "gradients seen without a step": (
        dict(
            step="""
            for i, (x, y) in enumerate(loader):
                loss = criterion(model(x.cuda()), y.cuda())
                loss.backward()
                print(model.fc.weight.grad.norm())
                if i % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            """
        ),
        "looked at in steps, too, that the optimizer does not make",
    ),
    "gradients seen between two backward passes": (
        dict(
            step="""
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x.cuda()), y.cuda())
                loss.backward()
                print(model.fc.weight.grad.norm())
                other = criterion(model(-x.cuda()), y.cuda())
                other.backward()
                optimizer.step()
            """
        ),
        "before the last backward pass",
    ),
    "gradient hook": (
        dict(
            step="""
            for x, y in loader:
                optimizer.zero_grad()
                output = model(x.cuda())
                output.register_hook(print)
                loss = criterion(output, y.cuda())
                loss.backward()
                optimizer.step()
            """
        ),
        "hook",
    ),
    "anomaly detection": (
        dict(setup=SETUP + "torch.autograd.set_detect_anomaly(True)\n"),
        "anomaly detection",
    ),
    "strict clipping": (
        dict(
            step=STEP.replace(
                "    optimizer.step()",
                "    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)\n"
                "    optimizer.step()",
            )
        ),
        "clipping raises",
    ),
    "sparse gradients": (
        dict(setup=SETUP + "table = nn.Embedding(100, 8, sparse=True)\n"),
        "sparse gradients",
    ),
    "optimizer nobody can follow": (
        dict(
            step="""
            def train(state):
                for x, y in loader:
                    loss = criterion(model(x.cuda()), y.cuda())
                    state.optimizer.zero_grad()
                    loss.backward()
                    state.optimizer.step()

            class State:
                def __init__(self):
                    self.optimizer = optimizer

            train(State())
            """
        ),
        "cannot be handed",
    ),
    "function handed to somebody": (
        dict(
            step="""
            def train(net, sgd):
                for x, y in loader:
                    loss = criterion(net(x.cuda()), y.cuda())
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()

            train(model, optimizer)
            run_in_background(train)
            """
        ),
        "cannot be handed",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), ONLY_BFLOAT16.values(), ids=ONLY_BFLOAT16)
def test_bfloat16_alone_where_float16_is_not_safe(
    rewrite: Rewrite, name: str, parts: dict[str, str], reason: str
) -> None:
    source = training(**{"step": STEP, **parts})
    result = rewrite(source, [name]).files[0]
    assert reason in result.changes[0].message
    assert "use_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)" in result.text
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16, enabled=use_bf16):' in result.text
    assert "GradScaler" not in result.text


def test_one_switch_for_the_loops_of_a_block(rewrite: Rewrite, name: str) -> None:
    again = "def again():\n" + indent(STEP, "    ") + "\nagain()\n"
    source = training(STEP + STEP + again, **ONLY_BFLOAT16["mask constant"][0])
    text = rewrite(source, [name]).files[0].text
    assert text.count("enabled=use_bf16)") == 3
    assert text.count("\nuse_bf16 = ") == 1
    assert text.count("    use_bf16 = ") == 1


def test_one_switch_for_the_regions_of_a_block(rewrite: Rewrite, name: str) -> None:
    step = """\
def learn(x, y):
    if x is None:
        print("no batch")
    else:
        x, y = x.cuda(), y.cuda()
        for_one = criterion(model(x), y)
        optimizer.zero_grad()
        for_one.backward()
        optimizer.step()
        for_two = criterion(model(x), y)
        optimizer.zero_grad()
        for_two.backward()
        optimizer.step()

for x, y in loader:
    learn(x, y)
"""
    source = training(step, **ONLY_BFLOAT16["mask constant"][0])
    text = rewrite(source, [name]).files[0].text
    assert text.count("enabled=use_bf16)") == 2
    assert text.count("        use_bf16 = ") == 1


@pytest.mark.parametrize(("parts", "reason"), ONLY_BFLOAT16.values(), ids=ONLY_BFLOAT16)
def test_float16_when_asked_is_refused_there(
    check_noop: Check, parts: dict[str, str], reason: str
) -> None:
    check_noop(training(**{"step": STEP, **parts}), reason, amp=FP16)


@pytest.mark.parametrize(
    "write",
    [
        "for j in range(4):\n    y[x[:, 0].argmax()] = j",
        "count = 0\nfor row in self.fc(x):\n    y[count] = row\n    count += 1",
        "self.put(y, self.fc(x), x.size(0) - 1)",
        "self.put(kept(), self.fc(x), 'mask/{}'.format(3))",
        "self.put(kept(), self.fc(x), 'mask' + str(3))",
        "self.put(kept(), self.fc(x), ('mask', kept()))",
    ],
)
def test_numbers_in_writes_through_an_index(rewrite: Rewrite, name: str, write: str) -> None:
    """A number goes into a tensor of any type, and an index that is a number, or the key of a dict, takes any type."""
    forward = f"y = torch.zeros(4, 2)\n{write}\nreturn self.fc(x) + y"
    source = training(step=STEP, forward=forward)
    source += "    def put(self, y, values, row):\n        y[row] = values[0]\n" if False else ""
    source = source.replace(
        "    def forward(",
        "    def put(self, y, values, row):\n        y[row] = values[0]\n\n    def forward(",
    )
    assert rewrite(source, [name]).files[0].changes


REFUSED = {
    "a loss that is chosen by its name": (
        dict(setup=SETUP.replace("nn.CrossEntropyLoss()", "getattr(nn, chosen)()")),
        "what `criterion(output, y.cuda())` computes is not known",
    ),
    "one of a table of all": (
        dict(setup=SETUP.replace("nn.CrossEntropyLoss()", "nn.__dict__[chosen]()")),
        "what `criterion(output, y.cuda())` computes is not known",
    ),
    "gradient penalty": (
        dict(
            step="""
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x.cuda()), y.cuda())
                grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
                (loss + grads[0].norm()).backward()
                optimizer.step()
            """
        ),
        "gradient penalty",
    ),
    "gradients by hand": (
        dict(
            step="""
            for x, y in loader:
                x.requires_grad_()
                loss = criterion(model(x), y)
                x = x + torch.autograd.grad(loss, x)[0].sign()
                optimizer.zero_grad()
                loss = criterion(model(x.cuda()), y.cuda())
                loss.backward()
                optimizer.step()
            """
        ),
        "takes gradients by hand",
    ),
    "loss of probabilities": (
        dict(setup=SETUP.replace("nn.CrossEntropyLoss()", "nn.BCELoss()")),
        "BCEWithLogitsLoss",
    ),
    "functional loss of probabilities": (
        dict(
            step=STEP.replace(
                "criterion(output, y.cuda())",
                "nn.functional.binary_cross_entropy(output.sigmoid().clamp(0.01, 0.99), y.cuda())",
            )
        ),
        "BCEWithLogitsLoss",
    ),
    "loss of probabilities in a function": (
        dict(
            step="def loss_of(output, y):\n    return nn.BCELoss()(output, y)\n\n"
            + STEP.replace("criterion(", "loss_of(")
        ),
        "BCEWithLogitsLoss",
    ),
    "LBFGS": (
        dict(
            setup=SETUP.replace("SGD", "LBFGS"),
            step="""
            for x, y in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = criterion(model(x.cuda()), y.cuda())
                    loss.backward()
                    return loss

                optimizer.step(closure)
            """,
        ),
        "LBFGS",
    ),
    "an optimizer chosen by name that steps with a closure": (
        dict(
            setup=SETUP.replace("torch.optim.SGD", "getattr(torch.optim, name)"),
            step="""
            for x, y in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = criterion(model(x.cuda()), y.cuda())
                    loss.backward()
                    return loss

                optimizer.step(closure)
            """,
        ),
        "LBFGS",
    ),
    "autograd function": (
        dict(
            setup="""
            class Square(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return x * x

                @staticmethod
                def backward(ctx, grad):
                    return 2 * grad * ctx.saved_tensors[0]

            """
            + indent(SETUP, " " * 12),
            forward="return Square.apply(self.fc(x))",
        ),
        "custom_fwd",
    ),
    "nearest code": (
        dict(
            forward="""
            h = self.fc(x)
            codes = self.fc.weight
            distances = h.pow(2).sum(1, keepdim=True) - 2 * h @ codes.t() + codes.pow(2).sum(1)
            return codes[distances.argmin(1)]
            """
        ),
        "squared distances made of a matrix product",
    ),
    "covariances": (
        dict(
            forward="""
            h = self.fc(x)
            mean = h.mean(0, keepdim=True)
            covariance = h.t() @ h - mean.t() @ mean
            return h @ covariance
            """
        ),
        "differences of Gram matrices",
    ),
    "differential equation": (
        dict(
            setup="from torchdiffeq import odeint\n" + SETUP,
            forward="return odeint(lambda t, y: self.fc(y), x, torch.tensor([0.0, 1.0]).to(x))[-1]",
        ),
        "differential equations",
    ),
    "Fourier transform": (dict(forward="return torch.fft.rfft(self.fc(x)).abs()"), "Fourier"),
    "complex numbers": (
        dict(forward="return torch.view_as_complex(self.fc(x)).abs()"),
        "complex numbers",
    ),
    "decomposition": (dict(forward="return torch.linalg.svd(self.fc(x))[1]"), "torch.linalg.svd"),
    "method for a decomposition": (dict(forward="return self.fc(x).inverse()"), "inverse"),
    "quantile": (dict(forward="return torch.quantile(self.fc(x), 0.5)"), "torch.quantile"),
    "write through an index": (
        dict(forward="y = torch.zeros(4, 2)\ny[x[:, 0] > 0] = self.fc(x)\nreturn y"),
        "through a tensor index",
    ),
    "write through an index of some parts": (
        dict(forward="y = torch.zeros(4, 2)\ny[0, x[:, 0] > 0] = self.fc(x)\nreturn y"),
        "through a tensor index",
    ),
    "write of what has the type of another": (
        dict(forward="y = torch.zeros(4, 2)\ny[x[:, 0] > 0] = self.fc(x).type(x.dtype)\nreturn y"),
        "through a tensor index",
    ),
    "index_add_": (
        dict(forward="y = torch.zeros(4, 2)\nreturn y.index_add_(0, self.index, self.fc(x))"),
        "index_add_",
    ),
    "Fourier features": (
        dict(forward="return self.fc(torch.sin(6.28 * x @ self.frequencies))"),
        "lose their phase in half precision (`6.28 * x @ self.frequencies`)",
    ),
    "the least float32": (
        dict(forward="y = self.fc(x)\nreturn y.masked_fill(y > 0, torch.finfo(torch.float32).min)"),
        "the constant -3.40282e+38 overflows in half precision",
    ),
    "rotary positions by einsum": (
        dict(
            forward="""
            t = torch.arange(x.shape[1], device=x.device).type_as(self.inv_freq)
            turns = torch.einsum("i,j->ij", t, self.inv_freq)
            return self.fc(x) * torch.cat((turns, turns), dim=-1).cos()
            """
        ),
        'lose their phase in half precision (`torch.einsum("i,j->ij", t, self.inv_freq)`)',
    ),
    "positions in the type of a result": (
        dict(
            forward="""
            y = self.fc(x)
            t = torch.arange(y.shape[1], device=y.device, dtype=y.dtype)
            return y * torch.outer(t, self.inv_freq).cos()
            """
        ),
        "half precision rounds them above 256",
    ),
    "affine grid": (
        dict(
            forward="return nn.functional.grid_sample(x, nn.functional.affine_grid(self.theta, x.shape))"
        ),
        "positions in an image",
    ),
    "sampling grid": (
        dict(
            forward="return nn.functional.grid_sample(x, self.grid + self.fc(x).view(-1, 4, 4, 2))"
        ),
        "positions in an image",
    ),
    "scatter of a tensor": (
        dict(forward="return torch.scatter(torch.zeros(4, 2), 0, self.index, self.fc(x))"),
        "`torch.scatter` wants",
    ),
    "scatter_reduce": (
        dict(forward="return torch.zeros(4, 2).scatter_reduce(0, self.index, self.fc(x), 'mean')"),
        "scatter_reduce",
    ),
    "inner product": (
        dict(forward="return torch.inner(self.fc(x), self.weight)"),
        "`torch.inner` wants",
    ),
    "scatter_ of a tensor": (
        dict(forward="return torch.zeros(4, 2).scatter_(0, self.index, self.fc(x))"),
        "scatter_",
    ),
    "out argument": (
        dict(forward="torch.mm(x, self.fc.weight.t(), out=self.buffer)\nreturn self.buffer"),
        "`out=`",
    ),
    "type test": (
        dict(forward="y = self.fc(x)\nassert y.dtype == torch.float32\nreturn y"),
        "tests the type",
    ),
    "NumPy inside": (
        dict(forward="return self.fc(x) * float(x.detach().cpu().numpy().sum())"),
        "NumPy has no bfloat16",
    ),
    "sparse products": (
        dict(forward="return torch.sparse.mm(self.adjacency, self.fc(x))"),
        "sparse",
    ),
    "graph library": (
        dict(setup="import torch_geometric\n" + SETUP),
        "torch_geometric",
    ),
    "logarithm of what is left of a probability": (
        dict(
            step=STEP.replace(
                "loss = criterion(output, y.cuda())",
                "p = torch.sigmoid(output)\n    loss = -(y * p.log() + (1 - y) * torch.log(1 - p)).mean()",
            )
        ),
        "rounds to 1",
    ),
    "logarithm in the network": (
        dict(forward="p = torch.sigmoid(self.fc(x))\nreturn torch.log1p(-p)"),
        "rounds to 1",
    ),
    "arc cosine": (
        dict(forward="return torch.acos(self.fc(x).clamp(-0.999, 0.999))"),
        "rounds to 1",
    ),
    "row numbers in the type of the scores": (
        dict(
            forward="h = self.fc(x)\nrows = torch.arange(0, len(x)).type_as(h).long()\n"
            "return h[rows]"
        ),
        "whole numbers above 256",
    ),
    "a class in the type of the scores": (
        dict(
            forward="h = self.fc(x)\nlabel = h.new_full((len(x),), len(x) - 1).long()\n"
            "return h[label]"
        ),
        "whole numbers above 256",
    ),
    "vmap": (dict(forward="return torch.func.vmap(self.fc)(x)"), "torch.func"),
    "float64 network": (
        dict(setup=SETUP.replace("Net().cuda()", "Net().cuda().double()")),
        "torch.double",
    ),
    "float64 by default": (
        dict(setup="torch.set_default_dtype(torch.float64)\n" + SETUP),
        "torch.float64",
    ),
    "scripted": (
        dict(setup=SETUP.replace("Net().cuda()", "torch.jit.script(Net().cuda())")),
        "torch.jit.script",
    ),
    "captured": (
        dict(setup=SETUP + "graph = torch.cuda.CUDAGraph()\n"),
        "CUDA graph",
    ),
    "half network": (
        dict(setup=SETUP + "ema = Net().cuda().half()\n"),
        "`.half()` is in use already",
    ),
    "half tensors": (
        dict(setup=SETUP + "buffer = torch.zeros(8, dtype=torch.bfloat16)\n"),
        "`torch.bfloat16` is in use already",
    ),
    "autocast elsewhere": (
        dict(
            step=STEP + 'with torch.autocast("cuda"):\n    print(model(torch.zeros(1, 8).cuda()))\n'
        ),
        "`autocast` is in use already",
    ),
    "backward in a scaler of the script's own": (
        dict(
            setup="class Scaler:\n"
            "    def __init__(self):\n        self.kept = torch.amp.GradScaler('cuda')\n"
            "    def __call__(self, loss, optimizer):\n        self.kept.scale(loss).backward()\n"
            "        self.kept.step(optimizer)\n        self.kept.update()\n\n"
            + SETUP
            + "back = Scaler()\n",
            step=STEP.replace("loss.backward()", "back(loss, optimizer)").replace(
                "optimizer.step()", "pass"
            ),
        ),
        "`GradScaler` is in use already",
    ),
    "apex": (
        dict(
            setup="from apex import amp\n"
            + SETUP
            + 'model, optimizer = amp.initialize(model, optimizer, opt_level="O1")\n'
        ),
        "Apex",
    ),
    "accelerate": (
        dict(
            setup="from accelerate import Accelerator\naccelerator = Accelerator()\n" + SETUP,
            step=STEP.replace("loss.backward()", "accelerator.backward(loss)"),
        ),
        "Accelerate",
    ),
    "FSDP": (
        dict(
            setup="from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
            + SETUP
            + "model = FSDP(model)\n"
        ),
        "FSDP",
    ),
    "never on a GPU": (
        dict(setup=SETUP.replace(".cuda()", ""), step=STEP.replace(".cuda()", "") + "# cuda\n"),
        "not seen to be moved to a GPU",
    ),
    "unknown network": (
        dict(setup="from zoo import make\n" + SETUP.replace("Net()", "make()")),
        "no network is known to run",
    ),
    "result for something unknown": (
        dict(
            setup="metrics = find()\nresults = []\n" + SETUP,
            step=STEP + "    results.append(output)\nplot = metrics\nplot(torch.cat(results))\n",
        ),
        "goes to `plot`",
    ),
    "NumPy of collected outputs": (
        dict(
            step="outputs = []\n"
            + STEP.lstrip("\n")
            + "    outputs.append(output.detach())\nprint(torch.cat(outputs).cpu().numpy())\n"
        ),
        "goes to NumPy",
    ),
    "another network in float32": (
        dict(
            step="judge = Net().cuda()\nkept = []\n"
            + STEP.lstrip("\n")
            + "    kept.append(output)\nprint(judge(torch.cat(kept)))\n"
        ),
        "a network that runs in float32",
    ),
    "labels of a network with a part of the one that is trained": (
        dict(
            step="""
            teacher = Net().cuda()
            teacher.fc = model.fc

            for x, _ in loader:
                optimizer.zero_grad()
                with torch.no_grad():
                    target = teacher(x.cuda()).argmax(1)
                loss = criterion(model(x.cuda()), target)
                loss.backward()
                optimizer.step()
            """
        ),
        "before one that it shares a part with runs with them",
    ),
    "labels made without gradients inside a function": (
        dict(
            step="""
            @torch.no_grad()
            def labels(x):
                return model(x).argmax(1)

            def loss_of(x):
                target = labels(x)
                return criterion(model(x), target)

            for x, _ in loader:
                optimizer.zero_grad()
                loss = loss_of(x.cuda())
                loss.backward()
                optimizer.step()
            """
        ),
        "without gradients before it runs with them",
    ),
}


@pytest.mark.parametrize("every", ["", "if len(x) > 7:\n        "])
def test_labels_that_an_evaluation_of_the_network_makes_stay_in_float32(
    check_transformed: Check, every: str
) -> None:
    step = f"""
def labels(batches):
    found = []
    with torch.no_grad():
        for x, _ in batches:
            found.append(model(x.cuda()))
    return nn.Softmax(dim=1)(torch.cat(found)).cpu().argmax(1).numpy()

for x, index in loader:
    {every}target = torch.from_numpy(labels(loader)).cuda()
    optimizer.zero_grad()
    loss = criterion(model(x.cuda()), target[index])
    loss.backward()
    optimizer.step()
"""
    loss = "    loss = criterion(model(x.cuda()), target[index])\n"
    after = step.replace(
        loss, f'    with torch.autocast("cuda", dtype=torch.bfloat16):\n    {loss}'
    )
    check_transformed(training(step=step), training(step=after), amp=BF16)


@pytest.mark.parametrize(("parts", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(check_noop: Check, parts: dict[str, str], reason: str) -> None:
    check_noop(training(**{"step": STEP, **parts}), reason)


@pytest.mark.parametrize(
    "forward",
    [
        "y = self.fc(x)\ny[x[:, 0] > 0] = True\nreturn y",
        "y = self.fc(x)\ny[x[:, 0] > 0] = 0.5\nreturn y",
        "y = self.fc(x)\ny[x[:, 0] > 0] = (2 * y[0]).type(y.dtype)\nreturn y",
        "y = torch.zeros(4, 2)\ny[x[:, 0] > 0] = self.fc(x).to(y)\nreturn y",
        "import numpy\nshown = numpy.ones((4, 2)).copy()\nshown[shown[:, 0] > 0] = shown.max()\nreturn self.fc(x)",
    ],
)
def test_writes_that_take_the_type_of_what_they_are_written_to(
    rewrite: Rewrite, forward: str
) -> None:
    (file,) = rewrite(training(step=STEP, forward=forward), ["autocast"]).files
    assert "torch.autocast(" in file.text, file.skips


@pytest.mark.parametrize("kind", ["double", "half"])
def test_a_network_that_an_imported_file_tries_out_as_a_script(rewrite: Rewrite, kind: str) -> None:
    parts = training(step=STEP).partition("\n\nmodel = ")
    assert parts[2]
    network = f"{parts[0]}\n\nif __name__ == '__main__':\n    Net().{kind}()\n"
    entry = f"import torch\nfrom torch import nn\nfrom net import Net\n\nmodel = {parts[2]}"
    file = rewrite({"train.py": entry, "net.py": network}, ["autocast"]).files[0]
    assert "torch.autocast(" in file.text, file.skips


def test_autograd_function_that_says_its_type(rewrite: Rewrite, name: str) -> None:
    setup = """
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * x

    """
    source = training(
        STEP, forward="return Square.apply(self.fc(x))", setup=setup + indent(SETUP, "    ")
    )
    messages = [s.message for s in rewrite(source, [name]).files[0].skips]
    assert not [m for m in messages if "autograd function" in m]


@pytest.mark.parametrize(
    "forward",
    [
        "p = torch.softmax(self.fc(x), 1)\nreturn torch.log(1 - p)",
        "return self.fc(x) * torch.sqrt(1 - self.alpha)",
        "return torch.log(1 - x) + self.fc(x)",
        "return torch.log(torch.sigmoid(self.fc(x)) + 1e-4)",
        "p = torch.sigmoid(self.fc(x))\np = p.clamp(1e-4, 1 - 1e-4)\nreturn p.log()",
        "return torch.sigmoid(self.fc(x)).float().log()",
        "return self.fc(x).exp().sum(1, keepdim=True).log() + self.fc(x)",
        "return self.fc(x) + torch.log1p(torch.exp(x))",
        "y = nn.functional.normalize(self.fc(x))\nreturn torch.mm(y, y.t())",
        "return self.fc(x).masked_fill(x > 0, float('-inf'))",
        "y = self.fc(x)\nreturn y.masked_fill(y > 0, torch.finfo(y.dtype).min)",
        "return self.fc(x) + x[0].masked_fill(x[0] > 0, -1e4) + 1e-6",
        "self.table[3] = 1\nreturn self.fc(x)",
        "if x.dtype == torch.long:\n    x = x.float()\nreturn self.fc(x)",
        "for i in range(2):\n    x[i] = x[i] * 2\nreturn self.fc(x)",
        "return self.fc(x).scatter_(1, self.index, 1.0)",
        "h = self.fc(x)\nreturn h[h.new_full((len(x),), 1).long()]",
        "h = self.fc(x)\nreturn h[(x[:, 0] > 0).type_as(h).long()]",
        "return self.fc(x)[torch.arange(0, len(x)).type_as(x).long()]",
    ],
)
def test_forward_code_that_is_safe(rewrite: Rewrite, name: str, forward: str) -> None:
    result = rewrite(training(STEP, forward=forward), [name]).files[0]
    assert "scaler.scale(loss).backward()" in result.text, result.skips


def test_a_network_that_is_run_by_its_method(check_transformed: Check) -> None:
    """``model.forward(x)`` computes what ``model(x)`` does."""
    step, after = (t.replace("model(", "model.forward(") for t in (STEP, STEP_IN_BFLOAT16))
    assert step != STEP
    check_transformed(training(step), training(after), amp=BF16)


def test_a_network_of_another_library_that_is_run_past_its_call(check_noop: Check) -> None:
    setup = SETUP.replace("model = Net()", "import timm\n\nmodel = timm.create_model('resnet18')")
    step = STEP.replace("model(", "model.forward(")
    check_noop(training(step, setup=setup), "goes past the call of the network, `model(..)`, which")


def test_a_network_whose_own_method_runs_it(rewrite: Rewrite) -> None:
    step = STEP.replace("loss = ", "loss = model.mean(x.cuda()) + ")
    code = training(step).replace(
        "    def forward",
        "    def mean(self, x):\n        return self.forward(x).mean()\n\n    def forward",
    )
    text = rewrite(code, ["autocast"]).files[0].text
    assert "    with torch.autocast" in text


def test_script_for_the_cpu(check_noop: Check) -> None:
    source = training(STEP.replace(".cuda()", ""), setup=SETUP.replace(".cuda()", ""))
    check_noop(source, "runs on the CPU")
    check_noop(source, "runs on the CPU", amp=BF16)
    check_noop(source, "runs on the CPU", target=Target.CPU)
    check_noop(source, "no gain on a CPU", target=Target.CPU, amp=FP16)


def test_layers_that_are_handed_to_the_network_count(rewrite: Rewrite, name: str) -> None:
    """The block is made before the network and put into a list: its forward pass is the network's all the same."""
    setup = """
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x).masked_fill(x > 0, -1e9)


    class Stack(nn.Module):
        def __init__(self, blocks):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x


    blocks = []
    for _ in range(4):
        blocks.append(Block())
    model = Stack(nn.ModuleList(blocks)).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    result = rewrite(training(STEP, setup=dedent(setup)), [name]).files[0]
    assert "bfloat16, enabled=use_bf16" in result.text, result.skips
    assert "GradScaler" not in result.text


def test_data_parallel_cannot_take_bfloat16(check_noop: Check) -> None:
    setup = SETUP.replace("Net().cuda()", "nn.DataParallel(Net()).cuda()")
    check_noop(training(STEP, setup=setup), "float16 only", amp=BF16)
    check_noop(
        training(STEP, forward="return self.fc(x).masked_fill(x > 0, -1e9)", setup=setup),
        "overflows in float16",
    )


def test_step_of_another_script(check_noop: Check) -> None:
    check_noop(
        {
            "train.py": "import torch\nfrom other import Net\n\nprint(Net().cuda())\n",
            "other.py": script(
                """
                def train(model, optimizer):
                    for x, y in loader:
                        loss = model(x).sum()
                        loss.backward()
                        optimizer.step()

                RECIPES = {"plain": train}
                """
            ),
        },
        "no call from train.py",
    )


def test_nothing_is_trained(check_noop: Check) -> None:
    check_noop(script("print(Net().cuda()(torch.zeros(1, 8).cuda()))\n"))
    check_noop("")


def test_steps_already_under_autocast_are_left_without_a_word(rewrite: Rewrite, name: str) -> None:
    source = training(
        """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
        """
    )
    result = rewrite(source, [name]).files[0]
    assert not result.changed
    assert not result.skips


TRAINED = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(64, 8)
labels = (inputs.sum(1) > 0).long()
losses = []
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).cuda()
{body}
"""
TRAINED_BODIES = {
    "clipping": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for x, y in zip(inputs.split(8), labels.split(8)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    losses.append(loss.item())
""",
    "accumulation": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for i, (x, y) in enumerate(zip(inputs.split(4), labels.split(4))):
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda()) / 2
    loss.backward()
    if (i + 1) % 2 == 0:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
""",
    "two optimizers": """
judge = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
opt_d = torch.optim.SGD(judge.parameters(), lr=0.1)
bce = nn.BCEWithLogitsLoss()
for x, y in zip(inputs.split(8), labels.split(8)):
    opt_d.zero_grad()
    fake = model(x.cuda())
    d_loss = bce(judge(x[:, :2].cuda()), torch.ones(8, 1)) + bce(judge(fake.detach()), torch.zeros(8, 1))
    d_loss.backward()
    opt_d.step()
    optimizer.zero_grad()
    g_loss = bce(judge(fake), torch.ones(8, 1))
    g_loss.backward()
    optimizer.step()
    losses += [d_loss.item(), g_loss.item()]
""",
}


@pytest.mark.torch
@pytest.mark.parametrize("body", TRAINED_BODIES.values(), ids=TRAINED_BODIES)
def test_scaled_training_is_training(rewrite: Rewrite, name: str, body: str) -> None:
    """On the CPU, float16 and its scaler included: a step that is not unscaled, or not taken, would show."""
    import torch

    before = TRAINED.format(body=body)
    after = rewrite(before, [name], amp=FP16).files[0].text
    assert "scaler.step(optimizer)" in after
    runs: list[list[float]] = []
    for text in (before, after):
        names: dict[str, object] = {}
        exec(text.replace(".cuda()", ".cpu()").replace('"cuda"', '"cpu"'), names)
        runs.append(names["losses"])  # type: ignore[arg-type]
    assert len(runs[0]) == len(runs[1]) > 7
    assert torch.allclose(torch.tensor(runs[0]), torch.tensor(runs[1]), rtol=0.02, atol=0.01)


@pytest.mark.torch
@pytest.mark.slow
def test_bfloat16_training_is_alike(check_verified: Check) -> None:
    check_verified(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        inputs = torch.randn(256, 8)
        data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
        loader = DataLoader(data, batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        torch.save(model.state_dict(), "model.pt")
        """,
        target=Target.CPU,
        amp=BF16,
    )


@pytest.mark.torch
@pytest.mark.parametrize("version", [(2, 2), (2, 15)])
def test_without_a_gpu_nothing_changes(
    rewrite: Rewrite, name: str, version: tuple[int, int]
) -> None:
    """The form that picks its type at run time switches itself off on a machine without CUDA."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    before = TRAINED.format(body=TRAINED_BODIES["clipping"]).replace(
        "model = nn.Seq", 'device = "cuda" if torch.cuda.is_available() else "cpu"\nmodel = nn.Seq'
    )
    before = before.replace(".cuda()", ".to(device)")
    after = rewrite(before, [name], torch_version=version).files[0].text
    assert "amp_dtype" in after
    runs: list[object] = []
    for text in (before, after):
        names: dict[str, object] = {}
        exec(text, names)
        runs.append(names["losses"])
    assert runs[0] == runs[1]


def test_gradients_clipped_on_the_line_of_the_step_are_unscaled_first(
    check_transformed: Callable[..., None],
) -> None:
    check_transformed(
        """
        import torch
        from torch import nn

        net = nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(1000):
            x = torch.randn(4, 2, device="cuda")
            optimizer.zero_grad()
            loss = net(x).mean()
            loss.backward(); nn.utils.clip_grad_norm_(net.parameters(), 1.0); optimizer.step()
        """,
        """
        import torch
        from torch import nn

        net = nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for i in range(1000):
            x = torch.randn(4, 2, device="cuda")
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(x).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0); scaler.step(optimizer)
            scaler.update()
        """,
        amp=AmpDtype.FP16,
    )


def test_scaler_is_made_before_the_first_of_two_trainings(
    check_transformed: Callable[..., None],
) -> None:
    check_transformed(
        """
        import torch
        from torch import nn

        body, head = nn.Linear(4, 4).cuda(), nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(body(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()

        second = torch.optim.SGD(head.parameters(), lr=0.1)
        for x, y in loader:
            second.zero_grad()
            loss = nn.functional.cross_entropy(head(x.cuda()), y.cuda())
            loss.backward()
            second.step()
        """,
        """
        import torch
        from torch import nn

        body, head = nn.Linear(4, 4).cuda(), nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(body(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        second = torch.optim.SGD(head.parameters(), lr=0.1)
        for x, y in loader:
            second.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(head(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(second)
            scaler.update()
        """,
        amp=AmpDtype.FP16,
    )


def test_scaler_is_made_before_the_first_use_of_a_name_that_is_set_again(
    check_transformed: Callable[..., None],
) -> None:
    check_transformed(
        """
        import torch
        from torch import nn

        model = nn.Linear(4, 2).cuda()


        def run(model, loader, optimizer):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                loss.backward()
                optimizer.step()


        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run(model, loader, optimizer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run(model, loader, optimizer)
        """,
        """
        import torch
        from torch import nn

        model = nn.Linear(4, 2).cuda()


        def run(model, loader, optimizer, scaler):
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()


        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        run(model, loader, optimizer, scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run(model, loader, optimizer, scaler)
        """,
        amp=AmpDtype.FP16,
    )


def test_no_grad_of_ours_does_not_stand_in_the_way(check_with: Callable[..., None]) -> None:
    """The critic runs without gradients first: both passes in one region would share weights without history."""
    check_with(
        ["no-grad", "autocast"],
        """
        import torch
        from torch import nn

        generator, critic = nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()
        criterion = nn.BCEWithLogitsLoss()
        optimizer = torch.optim.Adam(generator.parameters())

        for real, y in loader:
            optimizer.zero_grad()
            images = generator(real.cuda())

            real_score = critic(real.cuda()).detach()
            fake_score = critic(images)
            loss = criterion(fake_score - real_score.mean(), y.cuda())
            loss = criterion(critic(images), y.cuda())
            loss.backward()
            optimizer.step()
        """,
        """
        import torch
        from torch import nn

        generator, critic = nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()
        criterion = nn.BCEWithLogitsLoss()
        optimizer = torch.optim.Adam(generator.parameters())

        for real, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                images = generator(real.cuda())

                with torch.no_grad():
                    real_score = critic(real.cuda()).detach()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                fake_score = critic(images)
                loss = criterion(fake_score - real_score.mean(), y.cuda())
                loss = criterion(critic(images), y.cuda())
            loss.backward()
            optimizer.step()
        """,
        amp=AmpDtype.BF16,
    )


def test_network_that_runs_without_gradients_last_needs_one_region(
    check_transformed: Callable[..., None],
) -> None:
    check_transformed(
        """
        import torch
        from torch import nn

        features, model = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())

        for x, y in loader:
            optimizer.zero_grad()
            found = features(model(x.cuda()))
            with torch.no_grad():
                wanted = features(y.cuda())
            loss = nn.functional.l1_loss(found, wanted)
            loss.backward()
            optimizer.step()
        """,
        """
        import torch
        from torch import nn

        features, model = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())

        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                found = features(model(x.cuda()))
                with torch.no_grad():
                    wanted = features(y.cuda())
                loss = nn.functional.l1_loss(found, wanted)
            loss.backward()
            optimizer.step()
        """,
        amp=AmpDtype.BF16,
    )


LIBRARY = """
    import torch
    from torch import nn


    def train_one_epoch(model, loader, optimizer, device):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
"""


def test_module_whose_callers_are_not_seen(check_noop: Callable[..., None]) -> None:
    check_noop(LIBRARY, reason="nothing in this file calls this step")


def test_what_stays_in_float32_is_told_with_its_function(
    rewrite: Callable[..., RewriteResult],
) -> None:
    source = """
    import torch
    from torch import nn

    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def show(x):
        with torch.no_grad():
            return model(x).cpu().numpy()

    for x, y in loader:
        print(show(x.cuda()))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
    """
    (file,) = rewrite(source, ["autocast"]).files
    (change,) = file.changes
    assert "`model(x)` in `show` stays in float32" in change.reason + change.message


def test_network_that_only_the_callers_know(check_noop: Callable[..., None]) -> None:
    """Not "no network is known": with the script that is started, one would be."""
    source = f"import torch\n\ndevice = torch.device('cuda')\n{dedent(LIBRARY)}"
    check_noop(source, reason="which network it runs, its callers know")


def test_gradients_taken_by_hand_beside_the_step(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """What a function differentiates that it computed itself, outside of every region, stays in float32."""
    source = """
    import torch
    from torch import nn

    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def sensitivity(x):
        x = x.detach().requires_grad_(True)
        out = model(x).sum()
        (grad,) = torch.autograd.grad(out, x)
        return grad.abs().mean().item()


    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(sensitivity(x.cuda()))
    """
    [file] = rewrite(source, ["autocast"], amp=AmpDtype.FP16).files
    assert "scaler.scale(loss).backward()" in file.text
    assert "    out = model(x).sum()" in file.text


def test_adversarial_samples_that_go_into_the_loss(check_noop: Callable[..., None]) -> None:
    check_noop(
        """
        import torch
        from torch import nn

        model = nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


        def attack(x, y):
            x = x.detach().requires_grad_(True)
            loss = nn.functional.cross_entropy(model(x), y)
            (grad,) = torch.autograd.grad(loss, x)
            return x + 0.1 * grad.sign()


        for x, y in loader:
            optimizer.zero_grad()
            adversarial = attack(x.cuda(), y.cuda())
            loss = nn.functional.cross_entropy(model(adversarial), y.cuda())
            loss.backward()
            optimizer.step()
        """,
        reason="takes gradients by hand",
    )


PROBABILITIES = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 1), {0}).cuda()
    criterion = nn.{1}()
    optimizer = torch.optim.Adam(model.parameters())
    hits = 0
    for x, y in loader:
        optimizer.zero_grad()
        {2}
        loss.backward()
        optimizer.step()
        hits += ({3} > 0.5).eq(y.cuda()).sum()
"""


def test_logits_instead_of_probabilities_when_asked(check_transformed: Check) -> None:
    before = PROBABILITIES.format(
        "nn.Sigmoid()",
        "BCELoss",
        "output = model(x.cuda())\n        loss = criterion(output, y.cuda())",
        "output",
    )
    check_transformed(
        before,
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 1)).cuda()
        criterion = nn.BCEWithLogitsLoss()
        optimizer = torch.optim.Adam(model.parameters())
        hits = 0
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                output = model(x.cuda())
                loss = criterion(output, y.cuda())
            loss.backward()
            optimizer.step()
            hits += (torch.sigmoid(output.float()) > 0.5).eq(y.cuda()).sum()
        """,
        amp=AmpDtype.BF16,
    )


def test_logits_are_only_told_about_below_the_semantic_tier(check_noop: Check) -> None:
    source = PROBABILITIES.format(
        "nn.Sigmoid()",
        "BCELoss",
        "output = model(x.cuda())\n        loss = criterion(output, y.cuda())",
        "output",
    )
    check_noop(source, reason="only with --tier semantic", tier=Tier.NUMERIC)


def test_logits_are_no_help_where_something_else_stands_in_the_way(check_noop: Check) -> None:
    source = PROBABILITIES.format(
        "nn.Sigmoid()",
        "BCELoss",
        "output = model(x.cuda())\n        loss = criterion(output, y.cuda()) + torch.linalg.det(w @ output)",
        "output",
    )
    check_noop(source, reason="not implemented for half precision")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            "MultivariateNormal(out, torch.eye(2).cuda())",
            "by a matrix in `MultivariateNormal.log_prob` is not implemented",
        ),
        ("Normal(out, 1.0)", None),
    ],
)
def test_distributions_that_decompose_a_matrix(
    rewrite: Callable[..., RewriteResult], made: str, said: str | None
) -> None:
    step = STEP.replace(
        "loss =", f"out = model(x.cuda())\n    loss = -{made}.log_prob(out).mean() +", 1
    )
    source = "from torch.distributions import MultivariateNormal, Normal\n" + training(step)
    (file,) = rewrite(source, ["autocast"]).files
    assert bool(file.changes) == (said is None)
    assert said is None or said in file.skips[0].message


@pytest.mark.slow
@pytest.mark.torch
def test_logits_train_alike(check_verified: Check) -> None:
    check_verified(
        """
        import torch
        from torch import nn

        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 1)

            def forward(self, x):
                return torch.sigmoid(self.fc(x)).squeeze(1)


        model = Net().to(device)
        criterion = nn.BCELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            output = model(x.to(device))
            loss = criterion(output, (x[:, 0] > 0).float().to(device))
            loss.backward()
            optimizer.step()
            print(loss.item(), (output > 0.5).sum().item())
        """
    )


def test_evaluation_that_takes_gradients_by_hand(
    rewrite: Callable[..., RewriteResult],
) -> None:
    code = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from data import train_set, test_set

    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=16)
    model = nn.Linear(8, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def attack(x, y):
        x = x.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(x), y)
        return torch.autograd.grad(loss, x)[0].sign()


    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
        correct = 0
        for x, y in test_loader:
            x, y = x.cuda(), y.cuda()
            correct += (model(x + 0.1 * attack(x, y)).argmax(1) == y).sum().item()
        print(correct)
    """
    result = rewrite(code, ["autocast"])
    text = result.files[0].text
    assert text.count("torch.autocast(") == 1
    messages = [skip.message for skip in result.files[0].skips]
    assert any("by hand" in message for message in messages), messages


ATTACKED = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set, test_set

loader = DataLoader(train_set, batch_size=16, shuffle=True)
test_loader = DataLoader(test_set, batch_size=16)
model = nn.Linear(8, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{attack}
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    {before}
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
for x, y in test_loader:
    x, y = x.cuda(), y.cuda()
    {evaluated}
    print(model(x).argmax(1).tolist())
"""
FGSM = """x.requires_grad = True
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    x = x + 0.1 * x.grad.sign()"""
PGD = """
def attack(x, y):
    x = x.clone().detach().requires_grad_(True)
    for _ in range(3):
        nn.functional.cross_entropy(model(x), y).backward()
        x.data += 0.1 * x.grad.sign()
        x.grad.zero_()
    return x.detach()
"""
DELTA = """
def attack(x, y):
    for _ in range(3):
        delta = torch.zeros_like(x, requires_grad=True)
        nn.functional.cross_entropy(model(x + delta), y).backward()
        x = x + delta.grad.sign()
    return x
"""


@pytest.mark.parametrize(
    ("attack", "before", "evaluated"),
    [
        ("", "pass", FGSM),
        (PGD, "pass", "x = attack(x, y)"),
        (DELTA, "pass", "x = attack(x, y)"),
        (PGD, "x = attack(x, y)", "pass"),
    ],
)
def test_gradients_of_the_input(rewrite: Rewrite, attack: str, before: str, evaluated: str) -> None:
    """The sign of a gradient near zero is another one after rounding: an attack keeps its precision."""
    code = ATTACKED.format(attack=attack, before=before, evaluated=evaluated)
    for names in (["autocast"], ["autocast", "tf32"]):
        result = rewrite(code, names).files[0]
        assert "model(x + delta), y)" in result.text or "delta" not in code
        told = [skip for skip in result.skips if "as an attack does" in skip.message]
        assert {skip.transform for skip in told} == set(names), result.skips
        scaled = "not in float16: gradients of a backward pass that stays in float32" not in (
            "".join(change.message for change in result.changes)
        )
        assert scaled == (before == "pass")
        assert "set_float32_matmul_precision" not in result.text


@pytest.mark.parametrize(
    ("helper", "restored"),
    [
        ("print(value.detach().cpu().numpy())", "print(value.detach().cpu().float().numpy())"),
        ("print((torch.sigmoid(value) > 0.5).cpu().numpy())", None),
    ],
)
@pytest.mark.parametrize("place", ["between", "behind"])
def test_helpers_that_show_what_the_network_returns(
    rewrite: Rewrite, helper: str, restored: str | None, place: str
) -> None:
    show = f"def show(value, y):\n    {helper}\n    print(y.cpu().numpy())\n"
    code = ATTACKED.format(attack=show, before="pass", evaluated="show(model(x), y)")
    loss = "loss = nn.functional.cross_entropy(model(x), y)"
    split = "output = model(x)\n    {}loss = nn.functional.cross_entropy(output, y)\n    {}"
    lines = ("show(output, y)\n    ", "") if place == "between" else ("", "show(output, y)\n    ")
    code = code.replace(f"{loss}\n    ", split.format(*lines))
    text = rewrite(code, ["autocast"]).files[0].text
    assert "    output = model(x)\n" in text.partition("torch.autocast(")[2]
    if restored is None and place == "behind":  # Steep functions no longer run in float32 there.
        restored = helper.replace("(value)", "(value.float())")
    assert (restored or helper) in text
    assert "    print(y.cpu().numpy())\n" in text


@pytest.mark.parametrize(
    ("helper", "more"),
    [
        ("print((value @ value.t()).cpu().numpy())", ""),
        ("print(value.detach().cpu().numpy())", "show(y, y)"),
        ("print((y @ y.t()).cpu().numpy())", ""),
    ],
)
def test_helpers_whose_values_are_not_known(rewrite: Rewrite, helper: str, more: str) -> None:
    show = f"def show(value, y):\n    {helper}\n"
    code = ATTACKED.format(attack=show, before="pass", evaluated=more or "pass")
    loss = "loss = nn.functional.cross_entropy(model(x), y)"
    shown = f"output = model(x)\n    show(output, y)\n    {loss.replace('model(x)', 'output')}"
    result = rewrite(code.replace(loss, shown), ["autocast"]).files[0]
    assert "autocast" not in result.text
    assert any("NumPy" in skip.message for skip in result.skips), result.skips


def test_weights_in_a_forward_go_to_numpy(rewrite: Rewrite) -> None:
    forward = "keep = int(self.fc.weight.detach().sum() > 0)\nwhere = self.mask.data.cpu().numpy()\nreturn self.fc(x)"
    code = training(STEP, forward=forward)
    assert "autocast" not in rewrite(code, ["autocast"]).files[0].text
    made = "self.fc = nn.Linear(8, 2)\n        self.mask = nn.Parameter(torch.ones(8))"
    code = code.replace("self.fc = nn.Linear(8, 2)", made)
    assert "autocast" in rewrite(code, ["autocast"]).files[0].text


def test_gradients_of_weights_by_hand(rewrite: Rewrite) -> None:
    code = ATTACKED.format(attack="", before="pass", evaluated="pass")
    by_hand = (
        "for p in model.parameters():\n        p.requires_grad_()\n        p.data -= 0.1 * p.grad"
    )
    result = rewrite(code.replace("optimizer.step()", by_hand), ["autocast"]).files[0]
    assert not any("attack" in skip.message for skip in result.skips)


MEASURES = {
    "lambda with a name": (
        "measure = lambda out, x: torch.autograd.grad(out.sum(), x)[0]",
        "measure(out, x)",
    ),
    "lambda in a dict": (
        'tools = {"grad": lambda out, x: torch.autograd.grad(out.sum(), x)[0]}',
        'tools["grad"](out, x)',
    ),
    "partial function": (
        "def gradient(scale, out, x):\n"
        "        return scale * torch.autograd.grad(out.sum(), x)[0]\n\n"
        "    measure = functools.partial(gradient, 2.0)",
        "measure(out, x)",
    ),
    "handed to map": (
        "def total(values):\n        return sum(values)",
        "total(map(lambda o: torch.autograd.grad(o, x, retain_graph=True)[0], out.sum(1)))",
    ),
}


@pytest.mark.parametrize(("definition", "measured"), MEASURES.values(), ids=MEASURES)
def test_evaluation_that_takes_gradients_in_another_function(
    rewrite: Callable[..., RewriteResult], definition: str, measured: str
) -> None:
    code = f"""
    import functools

    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from data import train_set, test_set

    loader = DataLoader(train_set, batch_size=16, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=16)
    model = nn.Linear(8, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {definition}

    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
    for x, y in test_loader:
        x = x.cuda().requires_grad_()
        out = model(x)
        print({measured}.abs().mean().item())
    """
    result = rewrite(code, ["autocast", "no-grad"])
    text = result.files[0].text
    assert text.count("torch.autocast(") == 1
    assert "no_grad" not in text
    messages = [skip.message for skip in result.files[0].skips]
    assert any("by hand" in message for message in messages), messages


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        ("acc = sum(right(model(x.cuda()), y) for x, y in test_loader)", True),
        ("acc = sum([right(model(x.cuda()), y) for x, y in enumerate(test_loader)])", True),
        ("acc = sum(measure(x, y) for x, y in test_loader)", True),
        (
            "with torch.autocast('cuda'):\n    acc = sum(right(model(x), y) for x, y in loader)",
            False,
        ),
        ("acc = sum(right(other(x.cuda()), y) for x, y in test_loader)", False),
        ("acc = sum(right(x, y) for x, y in test_loader)", False),
    ],
)
def test_an_evaluation_in_a_comprehension_is_told(
    rewrite: Rewrite, name: str, evaluation: str, told: bool
) -> None:
    setup = (
        "loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, labels))\n"
        "test_loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, labels))\n"
        "other = nn.Linear(8, 2).cuda()\n"
        "def right(out, y):\n    return (out.argmax(1).cpu() == y).sum().item()\n"
        "def measure(x, y):\n    return right(model(x.cuda()), y)\n"
    )
    result = rewrite(script(setup, SETUP, STEP, evaluation), [name], amp=BF16)
    messages = [skip.message for skip in result.files[0].skips]
    said = "the evaluation stays in float32: it is written as a comprehension, not as a loop"
    assert (said in messages) is told
    assert "autocast" in result.files[0].text
