"""Evaluation without gradients."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent
from typing import Any

import pytest

from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from data import train_set, test_set

model = nn.Linear(10, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=32)
test_loader = DataLoader(test_set, batch_size=32)
"""
TRAIN = """

def train():
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

"""


def script(body: str, head: str = HEAD) -> str:
    return head + TRAIN + dedent(body).lstrip("\n")


# Transformed


STEPS = """
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""
WHOLE = """
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("training", [STEPS, WHOLE])
def test_a_line_that_evaluates_behind_the_training_of_an_epoch(
    check_transformed: Check, training: str
) -> None:
    """On a whole test set, without a loader: students' scripts, graph networks."""
    script = f"{HEAD}\nfor epoch in range(3):\n    model.train(){training}    model.eval()\n"
    line = "error = criterion(model(test_inputs), test_targets)\n"
    rest = "    model.train()\n    print(epoch, error.item())\n"
    check_transformed(
        f"{script}    {line}{rest}", f"{script}    with torch.no_grad():\n        {line}{rest}"
    )


@pytest.mark.parametrize(
    "body",
    [
        # BatchNorm is frozen, and the loss is trained on.
        f"    model.eval(){WHOLE}",
        # In training mode: whether this is a part of the training is not told.
        f"{STEPS}    error = criterion(model(test_inputs), test_targets)\n    print(error.item())\n",
        # What it computes is trained on in the next pass.
        "    optimizer.zero_grad()\n    if epoch:\n        penalty.backward()\n    optimizer.step()\n"
        "    model.eval()\n    penalty = criterion(model(test_inputs), test_targets)\n",
    ],
)
def test_a_line_of_the_training_stays(check_noop: Check, body: str) -> None:
    check_noop(f"{HEAD}\nfor epoch in range(3):\n{body}")


@pytest.mark.parametrize(
    "layer",
    [
        "nn.utils.weight_norm(nn.Linear(10, 2))",
        "nn.utils.parametrizations.spectral_norm(nn.Linear(10, 2))",
        "DropPath(rate)",
        "GCNConv(10, width)",
    ],
)
def test_a_layer_keeps_nothing(check_transformed: Check, layer: str) -> None:
    network = f"""
        from timm.layers import DropPath
        from torch_geometric.nn import GCNConv

        class Net(nn.Module):
            def __init__(self, rate, width):
                super().__init__()
                self.flat = nn.Flatten()
                self.last = {layer}

            def forward(self, x):
                x = self.flat(x)
                x = self.last(x)
                return x

        model = Net(torch.load("rate.pt"), torch.load("width.pt"))
    """
    head = HEAD.replace("model = nn.Linear(10, 2)\n", dedent(network).lstrip("\n"))
    body = """
        def accuracy():
            model.eval()
            correct = 0
            for x, y in test_loader:
                correct += (model(x).argmax(1) == y).sum().item()
            return correct

        train()
        print(accuracy())
    """
    before = script(body, head)
    check_transformed(
        before, before.replace("def accuracy():", "@torch.no_grad()\ndef accuracy():")
    )


def test_function_that_returns_numbers_is_decorated(check_transformed: Check) -> None:
    before = """
        def test():
            model.eval()
            total, correct = 0.0, 0
            for x, y in test_loader:
                out = model(x)
                total += criterion(out, y).item()
                _, predicted = torch.max(out, 1)
                correct += (predicted == y).sum()
            print("accuracy: %.2f" % (float(correct) / len(test_set)))
            return total / len(test_loader)

        for epoch in range(2):
            train()
            test()
    """
    check_transformed(
        script(before), script(before.replace("def test", "@torch.no_grad()\n        def test"))
    )


def test_a_copy_that_is_evaluated(check_transformed: Check) -> None:
    """The average of the weights, say, which nothing trains."""
    before = """
        import copy

        average = copy.deepcopy(model)

        def test():
            correct = 0
            for x, y in test_loader:
                correct += (average(x).argmax(1) == y).sum()
            print(correct.item())

        train()
        test()
    """
    check_transformed(
        script(before), script(before.replace("def test", "@torch.no_grad()\n        def test"))
    )


def test_loop_at_module_level_is_wrapped(check_transformed: Check) -> None:
    before = """
        train()
        correct = 0
        # how good is it?
        for x, y in test_loader:
            correct += (model(x).argmax(1) == y).sum().item()
        print(correct)
    """
    after = """
        train()
        correct = 0
        # how good is it?
        with torch.no_grad():
            for x, y in test_loader:
                correct += (model(x).argmax(1) == y).sum().item()
        print(correct)
    """
    check_transformed(script(before), script(after))


def test_loop_in_a_function_that_also_trains(check_transformed: Check) -> None:
    before = """
        def run():
            for epoch in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                total = 0.0
                for x, y in test_loader:
                    total += criterion(model(x), y).item()
                print(total)

        run()
    """
    after = """
        def run():
            for epoch in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                total = 0.0
                with torch.no_grad():
                    for x, y in test_loader:
                        total += criterion(model(x), y).item()
                print(total)

        run()
    """
    check_transformed(HEAD + dedent(before), HEAD + dedent(after))


def test_returned_tensor_that_is_only_reported(check_transformed: Check) -> None:
    before = """
        def validate():
            total = 0
            for x, y in test_loader:
                total += criterion(model(x), y)
            return total / len(test_loader)

        best = 1e9
        for epoch in range(2):
            train()
            value = validate()
            print(f"{value:.3f}")
            if value < best:
                best = value
    """
    check_transformed(
        script(before), script(before.replace("def val", "@torch.no_grad()\n        def val"))
    )


def test_function_of_another_file(check_transformed: Check) -> None:
    engine = """
        import torch as th

        def evaluate(model, loader, criterion):
            model.eval()
            total = 0.0
            for x, y in loader:
                total += criterion(model(x), y).item()
            return total
    """
    entry = "from engine import evaluate\n" + script(
        """
        train()
        print(evaluate(model, test_loader, criterion))
        """
    )
    check_transformed(
        {"train.py": entry, "engine.py": engine},
        {
            "train.py": entry,
            "engine.py": engine.replace("def eval", "@th.no_grad()\n        def eval"),
        },
    )


def test_sampling_in_a_gan(check_transformed: Check) -> None:
    def text(decorator: str) -> str:
        return f"""\
import torch
from torch import nn
from torchvision.utils import save_image

generator, discriminator = nn.Linear(8, 4), nn.Linear(4, 1)
optimizer = torch.optim.Adam(generator.parameters())


{decorator}def sample_image(name):
    images = generator(torch.randn(16, 8))
    save_image(images.data, name)


for step in range(100):
    loss = discriminator(generator(torch.randn(4, 8))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        sample_image("%d.png" % step)
"""

    check_transformed(text(""), text("@torch.no_grad()\n"))


def test_detached_forward_in_a_training_step(check_transformed: Check) -> None:
    def text(forward: str) -> str:
        return f"""\
import torch
from torch import nn

generator, critic = nn.Linear(8, 4), nn.Linear(4, 1)
optimizer = torch.optim.Adam(critic.parameters())

for step in range(100):
    {forward}
    loss = critic(fake).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    call = "fake = generator(torch.randn(4, 8)).detach()"
    check_transformed(text(call), text(f"with torch.no_grad():\n        {call}"))


def test_flag_chooses_training(check_transformed: Check) -> None:
    before = """
        def run_epoch(loader, train=True):
            model.train(train)
            total = 0.0
            for x, y in loader:
                out = model(x)
                loss = criterion(out, y)
                if train:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                total += loss.item()
            return total

        for epoch in range(2):
            run_epoch(loader)
            print(run_epoch(test_loader, train=False))
    """
    after = before.replace(
        "                out = model(x)\n",
        "                with torch.set_grad_enabled(train):\n                    out = model(x)\n",
    )
    check_transformed(HEAD + dedent(before), HEAD + dedent(after))


def test_probabilities_alone_are_no_forward_pass(check_noop: Check) -> None:
    body = """
        for x, y in loader:
            out = model(x)
            guesses = nn.Softmax(dim=1)(out).argmax(1)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print((guesses == y).sum())
        for x, y in test_loader:
            with torch.no_grad():
                out = model(x)
            print(nn.Softmax(dim=1)(out))
    """
    check_noop(HEAD + dedent(body))


def test_a_loss_that_an_autograd_function_sums_over_processes(check_noop: Check) -> None:
    body = """
        class AllReduce(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                torch.distributed.all_reduce(x)
                return x

            @staticmethod
            def backward(ctx, grads):
                return grads

        for x, y in loader:
            def predict():
                return model(x)

            def loss_of(out):
                loss = criterion(out, y)
                loss = AllReduce.apply(loss)
                return loss

            out = predict()
            loss = loss_of(out)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
    check_noop(HEAD + dedent(body))


WEIGHTLESS = """
class Smooth(nn.Module):
    def __init__(self, classes, by):
        super().__init__()
        self.classes = classes
        self.rest = by / classes
{layer}
    def forward(self, y):
        smooth = torch.full((len(y), self.classes), self.rest)
        return smooth.scatter(1, y[:, None], 1.0 - self.rest){code}

smooth = Smooth(2, 0.1)
train()
for x, y in test_loader:
    target = smooth(y)
    with torch.no_grad():
        out = model(x).log_softmax(1)
    print(F.kl_div(out, target).item())
"""


def test_a_module_without_weights_is_no_forward_pass(check_noop: Check) -> None:
    check_noop(HEAD + TRAIN + WEIGHTLESS.format(layer="", code=""))


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        ("        self.layer = nn.Linear(2, 2)", " + self.layer.weight"),
        ("        self.layer = model", " + self.layer(1.0 * y)"),
        ("        self.scale = nn.Parameter(torch.ones(2))", " * self.scale"),
        ("", " * model.weight.sum() + model(y)"),
    ],
)
def test_a_module_with_weights_is_one(check_transformed: Check, layer: str, code: str) -> None:
    before = HEAD + TRAIN + WEIGHTLESS.format(layer=layer, code=code)
    head, loop = before.split("for x, y in test_loader:")
    after = indent(f"for x, y in test_loader:{loop}", "    ")
    check_transformed(before, f"{head}with torch.no_grad():\n{after}")


def test_flag_that_another_backward_pass_ignores(check_noop: Check) -> None:
    """``validate`` is no choice between training and evaluation: the steps train whatever it says."""
    body = """
        def run(validate=False):
            for x, y in loader:
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(criterion(model(x), y).item())
            if validate:
                for x, y in test_loader:
                    x.requires_grad_()
                    criterion(model(x), y).backward()
                    print(x.grad.norm())

        run()
        run(validate=True)
    """
    check_noop(HEAD + dedent(body))


@pytest.mark.parametrize("evaluates", [True, False])
def test_optimizer_chooses_training(
    check_transformed: Check, check_noop: Check, evaluates: bool
) -> None:
    call = "print(run_epoch(test_loader, None))" if evaluates else "pass"
    before = f"""
        def run_epoch(loader, optimizer):
            total = 0.0
            for x, y in loader:
                out = model(x)
                loss = criterion(out, y)
                if optimizer is not None:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                total += loss.detach().cpu().numpy()
            return total

        for epoch in range(2):
            run_epoch(loader, optimizer)
            {call}
    """
    if not evaluates:  # it is always given
        check_noop(HEAD + dedent(before))
        return
    after = before.replace(
        "                out = model(x)\n",
        "                with torch.set_grad_enabled(optimizer is not None):\n                    out = model(x)\n",
    )
    check_transformed(HEAD + dedent(before), HEAD + dedent(after))


@pytest.mark.parametrize("is_static", [True, False])
def test_method_of_the_network_that_runs_without_gradients(
    check_noop: Check, is_static: bool
) -> None:
    decorator = "    @staticmethod\n" if is_static else ""
    check_noop(
        f"""\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
    def forward(self, x):
        return self.fc(x)
{decorator}    def check(self, batches):
        self.eval()
        with torch.no_grad():
            return [self(x).item() for x in batches]

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [torch.randn(2, 4) for _ in range(3)]
for epoch in range(2):
    for x in batches:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
    print(net.check({"net, " if is_static else ""}batches))
"""
    )


def test_phase_chooses_training(check_transformed: Check) -> None:
    before = """
        for epoch in range(2):
            for phase in ["train", "val"]:
                for x, y in {"train": loader, "val": test_loader}[phase]:
                    out = model(x)
                    loss = criterion(out, y)
                    if phase == "train":
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
    """
    after = before.replace(
        "            out = model(x)\n",
        '            with torch.set_grad_enabled(phase == "train"):\n'
        "                        out = model(x)\n",
    )
    check_transformed(HEAD + dedent(before), HEAD + dedent(after))


def test_a_backward_pass_in_both_branches_is_no_choice(check_noop: Check) -> None:
    check_noop(
        HEAD
        + dedent("""
        def attack(x, y, scaled=False):
            delta = torch.zeros_like(x, requires_grad=True)
            for _ in range(3):
                loss = criterion(model(x + delta), y)
                if scaled:
                    (loss * 2).backward()
                else:
                    loss.backward()
                worst = criterion(model(x + delta), y).detach()
            return worst

        for x, y in loader:
            print(attack(x, y), attack(x, y, scaled=True))
    """)
    )


def test_helper_of_training_and_evaluation(check_transformed: Check) -> None:
    before = """
        def step_loss(x, y):
            return criterion(model(x), y)

        def fit():
            for x, y in loader:
                optimizer.zero_grad()
                step_loss(x, y).backward()
                optimizer.step()

        def evaluate():
            total = 0.0
            for x, y in test_loader:
                total += step_loss(x, y).item()
            return total

        fit()
        print(evaluate())
    """
    after = before.replace("def evaluate", "@torch.no_grad()\n        def evaluate")
    check_transformed(HEAD + dedent(before), HEAD + dedent(after))


def test_average_meter_is_followed(check_transformed: Check) -> None:
    meter = """
        class AverageMeter:
            def __init__(self):
                self.sum = self.count = 0

            def update(self, value, n=1):
                self.sum += value * n
                self.count += n

            @property
            def avg(self):
                return self.sum / self.count

    """
    before = (
        meter
        + """
        def validate():
            losses = AverageMeter()
            for x, y in test_loader:
                losses.update(criterion(model(x), y), x.size(0))
            print("loss {:.3f}".format(losses.avg))
            return losses.avg.item()

        train()
        validate()
    """
    )
    after = before.replace("def validate", "@torch.no_grad()\n        def validate")
    check_transformed(script(before), script(after))


def test_a_sum_that_is_kept_is_no_method_of_a_tensor(check_transformed: Check) -> None:
    before = """
        class AverageMeter:
            def __init__(self):
                self.sum = 0
                self.mean = 0

            def update(self, value, n):
                self.sum += value * n
                self.mean = value / n

        class Pool(nn.Module):
            def forward(self, x):
                return x.sum(1), x.mean(1)

        def validate():
            losses = AverageMeter()
            for x, y in test_loader:
                losses.update(criterion(model(x), y).item(), sum(model(x).argmax(1)))
            print(losses.sum)

        train()
        validate()
    """
    after = before.replace("def validate", "@torch.no_grad()\n        def validate")
    check_transformed(script(before), script(after))


@pytest.mark.parametrize(
    ("shortcut", "follows"),
    [
        ("lambda x: x", True),
        ("lambda x: 2 * x + 1", True),
        ("lambda x: nn.functional.leaky_relu(self.fc(x), negative_slope=0.2)", True),
        ("lambda x, by=2: twice(x, by)", True),
        ("lambda x: kept.append(x)", False),
        ("lambda x: (lambda: x)()", False),
        ("lambda x: x.sum().backward()", False),
    ],
)
def test_a_lambda_for_a_shortcut(rewrite: Callable[..., Any], shortcut: str, follows: bool) -> None:
    body = f"""
        def twice(x, by):
            return x * by

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(10, 10)
                self.match = {shortcut}

            def forward(self, x):
                return self.fc(x) + self.match(x + self.fc(x))

        block = Block()

        def test():
            for x, y in test_loader:
                print(block(x).argmax(1).tolist())

        train()
        test()
    """
    (file,) = rewrite(script(body), ["no-grad"]).files
    assert ("no_grad" in file.text) is follows, file.skips


@pytest.mark.parametrize(("taken", "stays"), [("critic, real, fake", False), ("real", True)])
def test_layers_that_a_sequence_cannot_run(
    rewrite: Callable[..., Any], taken: str, stays: bool
) -> None:
    body = f"""
        class Penalty(nn.Module):
            def forward(self, {taken}):
                return real.requires_grad_()

        def validate(layers):
            net = nn.Sequential(*layers)
            for x, y in test_loader:
                print(net(x).argmax(1).tolist())

        train()
        validate(find())
    """
    (file,) = rewrite(script(body), ["no-grad"]).files
    assert ("no_grad" not in file.text) is stays, file.skips


ENGINE = """
    class Engine:
        def __init__(self, model, scaler):
            self.model = model
            self.scaler = scaler

        def train(self, x, y):
            self.model.train()
            optimizer.zero_grad()
            loss = criterion(self.model(x), y)
            loss.backward()
            optimizer.step()
            return loss.item()

        def eval(self, x, y):
            self.model.eval()
            return criterion(self.scaler.undo(self.model(x)), y).item()

    engine = Engine(model, build("scaler"))
    for x, y in batches("train"):
        engine.train(x, y)
    for x, y in batches("test"):
        print(engine.eval(x, y))
"""


def test_evaluation_of_one_batch_in_a_function_is_told(
    check_noop: Check, check_transformed: Check
) -> None:
    """Its caller's loop is none over a loader, so that only the function says that it evaluates."""
    check_noop(HEAD + dedent(ENGINE), reason="the evaluation is passed to `self.scaler.undo`")
    before = dedent(ENGINE).replace("self.scaler.undo(self.model(x))", "self.model(x)")
    after = before.replace("    def eval", "    @torch.no_grad()\n    def eval")
    check_transformed(HEAD + before, HEAD + after)


def test_second_run_of_statements_joins(check_transformed: Check) -> None:
    before = """
        train()
        x, y = next(iter(test_loader))
        hidden = model(x)
        score = hidden.mean()
        again = model(x + score)
        print(again.sum().item())
    """
    after = """
        train()
        x, y = next(iter(test_loader))
        with torch.no_grad():
            hidden = model(x)
            score = hidden.mean()
            again = model(x + score)
        print(again.sum().item())
    """
    check_transformed(script(before), script(after))


def test_volatile_is_mentioned(rewrite: Callable[..., Any]) -> None:
    body = """
        def test():
            for x, y in test_loader:
                x = torch.autograd.Variable(x, volatile=True)
                print(model(x).argmax(1).tolist())

        train()
        test()
    """
    (file,) = rewrite(script(body), ["no-grad"]).files
    assert "volatile" in file.changes[0].reason


def test_fused_encoder_makes_it_numeric(rewrite: Callable[..., Any]) -> None:
    head = HEAD.replace(
        "nn.Linear(10, 2)", "nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)"
    )
    body = "train()\nfor x, y in test_loader:\n    print(model(x).sum().item())\n"
    (file,) = rewrite(script(body, head), ["no-grad"]).files
    assert [change.tier for change in file.changes] == [Tier.NUMERIC]
    (file,) = rewrite(script(body, head), ["no-grad"], tier=Tier.EXACT).files
    assert not file.changes
    assert "rounds differently" in file.skips[0].message


# Left alone


EVALUATIONS = {
    "adversarial example": (
        """
        for x, y in test_loader:
            x.requires_grad = True
            criterion(model(x), y).backward()
            print(x.grad.abs().max().item())
        """,
        None,
    ),
    "attribution": (
        """
        for x, y in test_loader:
            x.requires_grad_()
            (grad,) = torch.autograd.grad(model(x).sum(), x)
            print(grad.abs().max().item())
        """,
        "asks for gradients",
    ),
    "gradient inside a helper": (
        """
        def saliency(x):
            x = x.clone().requires_grad_()
            return torch.autograd.grad(model(x).sum(), x)[0]

        for x, y in test_loader:
            print(model(x).sum().item(), saliency(x).sum().item())
        """,
        "asks for gradients",
    ),
    "outputs are trained on later": (
        """
        outputs = []
        for x, y in test_loader:
            outputs.append(model(x))
        loss = torch.stack(outputs).mean()
        loss.backward()
        """,
        "reaches a backward pass",
    ),
    "outputs are trained on later under a scaler": (
        """
        scaler = torch.amp.GradScaler("cuda")
        outputs = []
        for x, y in test_loader:
            outputs.append(model(x))
        scaler.scale(torch.stack(outputs).mean()).backward()
        """,
        "reaches a backward pass",
    ),
    "returned loss is trained on": (
        """
        def validate():
            total = 0
            for x, y in test_loader:
                total = total + criterion(model(x), y)
            return total

        (validate() * 0.1).backward()
        """,
        "reaches a backward pass",
    ),
    "printed with its graph": (
        """
        for x, y in test_loader:
            loss = criterion(model(x), y)
            print(loss)
        """,
        "is printed with its grad_fn",
    ),
    "saved": (
        """
        features = []
        for x, y in test_loader:
            features.append(model(x))
        torch.save(features, "features.pt")
        """,
        "is saved",
    ),
    "handed to unknown code": (
        """
        from elsewhere import report

        for x, y in test_loader:
            report(model(x))
        """,
        "could not be followed",
    ),
    "handed to an attack": (
        """
        import torchattacks

        attack = torchattacks.FGSM(model)
        for x, y in test_loader:
            print(model(attack(x, y)).argmax(1).tolist())
        """,
        "may need gradients",
    ),
    "asks for the graph": (
        """
        for x, y in test_loader:
            out = model(x)
            assert out.requires_grad
        """,
        "asks for `requires_grad`",
    ),
    "hook": (
        """
        for x, y in test_loader:
            out = model(x)
            out.register_hook(print)
        """,
        "hooks into a backward pass",
    ),
    "generator": (
        """
        def predictions():
            for x, y in test_loader:
                yield model(x)

        for out in predictions():
            print(out.sum().item())
        """,
        "hands control to its caller",
    ),
    "profiler": (
        """
        with torch.profiler.profile() as prof:
            for x, y in test_loader:
                print(model(x).sum().item())
        """,
        "is being profiled",
    ),
    "autocast block shared with training": (
        """
        with torch.autocast("cuda"):
            for x, y in test_loader:
                print(model(x).sum().item())
            loss = criterion(model(x), y)
        loss.backward()
        """,
        "shares an autocast block",
    ),
}


@pytest.mark.parametrize(("body", "reason"), EVALUATIONS.values(), ids=EVALUATIONS.keys())
def test_needs_gradients(check_noop: Check, body: str, reason: str | None) -> None:
    check_noop(script("train()\n" + dedent(body)), reason)


NOT_CONCERNED = {
    "decorated": """
        @torch.no_grad()
        def test():
            for x, y in test_loader:
                print(model(x).sum().item())

        test()
    """,
    "bare decorator": """
        @torch.inference_mode
        def test():
            for x, y in test_loader:
                print(model(x).sum().item())

        test()
    """,
    "decorator of its own": """
        def without_gradients(function):
            def wrapper(*args, **kwargs):
                with torch.no_grad():
                    result = function(*args, **kwargs)
                return result

            return wrapper

        @without_gradients
        def test(x, y):
            return criterion(model(x), y)

        for x, y in test_loader:
            print(test(x, y))
    """,
    "handed to a library": """
        from scipy import integrate

        @torch.no_grad()
        def sample(start):
            def velocity(t, x):
                return model(torch.from_numpy(x)).numpy()

            return integrate.solve_ivp(velocity, [0, 1], start)

        print(sample(start))
    """,
    "with block": """
        with torch.inference_mode():
            for x, y in test_loader:
                print(model(x).sum().item())
    """,
    "call inside a with block": """
        def test():
            for x, y in test_loader:
                print(model(x).sum().item())

        with torch.no_grad():
            test()
    """,
    "switched off at the top": """
        torch.set_grad_enabled(False)
        for x, y in test_loader:
            print(model(x).sum().item())
    """,
    "flag": """
        for phase in ["train", "val"]:
            with torch.set_grad_enabled(phase == "train"):
                for x, y in loader:
                    loss = criterion(model(x), y)
                    if phase == "train":
                        loss.backward()
    """,
    "own context manager": """
        import contextlib

        @contextlib.contextmanager
        def evaluating():
            model.eval()
            with torch.no_grad():
                yield
            model.train()

        with evaluating():
            for x, y in test_loader:
                print(model(x).sum().item())
    """,
    "enabled on purpose": """
        with torch.enable_grad():
            for x, y in test_loader:
                print(model(x).sum().item())
    """,
    "no network runs": """
        for x, y in test_loader:
            print(x.mean().item())
    """,
    "loss without a backward pass in a training step": """
        for x, y in loader:
            extra = criterion(model(x), y)
            criterion(model(x), y).backward()
            print(extra.item())
    """,
    "scaler of the old name behind a network from elsewhere": """
        from torch.cuda.amp import GradScaler, autocast

        class SmoothedCriterion(nn.Module):
            def forward(self, out, target):
                return -out.gather(-1, target.unsqueeze(-1)).mean()

        def fine_tune(network, criterion, groups):
            scaler = GradScaler()
            for group in groups:
                for x, y in group:
                    with autocast():
                        loss = criterion(network.forward(x), y)
                        scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        from zoo import make
        fine_tune(make(), SmoothedCriterion(), [loader])
    """,
    "scaler that is called with the loss": """
        from timm.utils import NativeScaler

        loss_scaler = NativeScaler()

        def epoch():
            for x, y in loader:
                loss = model(x).logsumexp(1).mean()
                loss_scaler(loss, optimizer)

        epoch()
    """,
    "graph through a cast of its type": """
        from typing import cast

        def epoch():
            for x, y in loader:
                loss = cast(torch.Tensor, model(x)).mean()
                loss.backward()

        epoch()
    """,
    "trains whenever the condition holds, and runs only then": """
        def epoch(regularize=False):
            for x, y in loader:
                criterion(model(x), y).backward()
                if regularize:
                    out = model(-x)
                    out.square().mean().backward()

        epoch()
        epoch(regularize=True)
    """,
    "style target": """
        target = model(test_set[0])
        for x, y in loader:
            loss = F.mse_loss(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """,
    "loss that a function adds to": """
        def likelihood(event, mask):
            event += 1e-9
            return torch.log(event).masked_fill(mask, 0.0)

        def log_likelihood(x):
            out = model(x)
            return likelihood(F.softplus(out), x[:, :1] > 0)

        for x, y in loader:
            optimizer.zero_grad()
            (-log_likelihood(x).sum()).backward()
            optimizer.step()
    """,
    "reinforcement learning": """
        log_probs = []
        for x, y in test_loader:
            distribution = torch.distributions.Categorical(logits=model(x))
            action = distribution.sample()
            log_probs.append(distribution.log_prob(action))
        torch.cat(log_probs).sum().backward()
    """,
}


@pytest.mark.parametrize("body", NOT_CONCERNED.values(), ids=NOT_CONCERNED.keys())
def test_nothing_to_do(check_noop: Check, body: str) -> None:
    check_noop(script("train()\n" + dedent(body)))


def test_a_layer_that_is_called_as_a_tensors_method_is_trains(check_noop: Check) -> None:
    """``self.item`` is an embedding: it was taken for ``tensor.item()``, and the loss lost the gradients of the items."""
    check_noop("""
        import torch
        import torch.nn.functional as F
        from torch import nn
        from data import loader

        class Towers(nn.Module):
            def __init__(self):
                super().__init__()
                self.user = nn.Embedding(12, 8)
                self.item = nn.Embedding(30, 8)

            def query(self, users):
                return self.user(users)

            def items(self, ids):
                return F.normalize(self.item(ids), dim=-1)

        def loss_of(model, users, items):
            v = model.items(items)
            return F.cross_entropy(model.query(users) @ v.t(), torch.arange(len(users)))

        model = Towers()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        for users, items in loader:
            loss = loss_of(model, users, items)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """)


def test_lightning_hooks_run_without_gradients_already(check_noop: Check) -> None:
    check_noop("""
        import pytorch_lightning as pl
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from data import train_set

        class Net(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 2)

            def forward(self, x):
                return self.fc(x)

            def training_step(self, batch, index):
                return self(batch).mean()

            def validation_step(self, batch, index):
                self.log("val", self(batch).mean())

        pl.Trainer().fit(Net(), DataLoader(train_set))
    """)


def test_state_kept_between_forward_passes(check_noop: Check) -> None:
    source = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from data import train_set, test_set

        class Stateful(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.state = torch.zeros(4)

            def forward(self, x):
                out = self.fc(x) + self.state
                self.state = out
                return out

        model = Stateful()
        for x in DataLoader(test_set):
            print(model(x).sum().item())
        for x in DataLoader(train_set):
            model(x).sum().backward()
    """
    check_noop(source, "is returned to callers")


@pytest.mark.parametrize(
    "fill",
    [
        "graph.apply_edges(lambda edges: {'score': self.fc(edges.x)})",
        "graph.apply_edges(self.of_edges)",
        "graph.put('score', self.fc(graph.x))",
    ],
)
def test_network_that_fills_the_object_it_is_given(check_noop: Check, fill: str) -> None:
    check_noop(f"""
        import torch
        from torch import nn
        from graphs import sampler

        class Score(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 1)

            def forward(self, graph):
                {fill}

            def of_edges(self, edges):
                return {{"score": self.fc(edges.x)}}

        class Embeddings:
            def __init__(self):
                self.score = Score()

            def predict(self, graph):
                self.score(graph)
                return graph.edata["score"]

            def forward(self, graph):
                return self.predict(graph).sigmoid().log().mean()

        model = Embeddings()
        optimizer = torch.optim.Adam(model.score.parameters())
        for graph in sampler:
            optimizer.zero_grad()
            model.forward(graph).backward()
            optimizer.step()
    """)


def test_network_that_is_warmed_up(check_transformed: Check) -> None:
    warm_up = "model.eval()\nx = torch.zeros(1, 10)\nmodel(x)\n"
    within = "model.eval()\nx = torch.zeros(1, 10)\nwith torch.no_grad():\n    model(x)\n"
    later = "model.train()\ntrain()\ncriterion(model(x), x).backward()\n"
    check_transformed(script(warm_up + later), script(within + later))


def test_auxiliary_loss_of_the_forward_pass_is_no_obstacle(check_transformed: Check) -> None:
    before = """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from data import train_set, test_set

        class Routed(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                out = self.fc(x)
                self.aux_loss = out.pow(2).mean()
                return out

        model = Routed()
        for x in DataLoader(train_set):
            out = model(x)
            (out.sum() + model.aux_loss).backward()
        for x in DataLoader(test_set):
            print(model(x).sum().item())
    """
    after = before.replace(
        """        for x in DataLoader(test_set):
            print(model(x).sum().item())
""",
        """        with torch.no_grad():
            for x in DataLoader(test_set):
                print(model(x).sum().item())
""",
    )
    check_transformed(before, after)


def test_auxiliary_loss_read_before_the_forward_pass(check_noop: Check) -> None:
    check_noop(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from data import train_set, test_set

        class Routed(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.aux_loss = 0

            def forward(self, x):
                out = self.fc(x)
                self.aux_loss = out.pow(2).mean()
                return out

        model = Routed()
        for x in DataLoader(train_set):
            for v in DataLoader(test_set):
                print(model(v).sum().item())
            loss = model.aux_loss
            (model(x).sum() + loss).backward()
        """,
        "reaches a backward pass",
    )


def test_encoder_that_would_zero_its_padding(check_noop: Check) -> None:
    check_noop(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader
        from data import test_set

        layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2)
        for x, padding in DataLoader(test_set):
            print(encoder(x, src_key_padding_mask=padding).mean().item())
        """,
        "writes zeros at padded positions",
    )


PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(16, 4), torch.randint(0, 2, (16,))) for _ in range(6)]
loader = torch.utils.data.DataLoader(data, batch_size=None)
LOG = []


def run_epoch(train):
    model.train(train)
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        LOG.append(loss.item())


def accuracy():
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


for epoch in range(3):
    run_epoch(True)
    run_epoch(False)
    LOG.append(accuracy())
"""


@pytest.mark.torch
def test_numbers_stay_bitwise_the_same(rewrite: Callable[..., Any]) -> None:
    (file,) = rewrite(PROGRAM, ["no-grad"]).files
    assert "set_grad_enabled(train)" in file.text
    assert "@torch.no_grad()" in file.text
    logs: list[Any] = []
    for text in (PROGRAM, file.text):
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, "train.py", "exec"), namespace)
        logs.append((namespace["LOG"], [p.tolist() for p in namespace["model"].parameters()]))
    assert logs[0] == logs[1]


def test_network_of_blocks_whose_class_is_handed_down(check_transformed: Check) -> None:
    """As torchvision's ResNet and its many copies are made."""
    network = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, downsample=None):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.downsample = downsample

    def forward(self, x):
        shortcut = x
        if self.downsample is not None:
            shortcut = self.downsample(x)
        return self.conv(x) + shortcut


class Net(nn.Module):
    def __init__(self, block, count):
        super().__init__()
        self.blocks = self._make(block, count)

    def _make(self, block, count):
        downsample = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        blocks = [block(3, downsample)]
        for _ in range(1, count):
            blocks.append(block(3))
        return nn.Sequential(*blocks)

    def forward(self, x):
        return self.blocks(x).mean((2, 3))


def small_net(**options):
    net = Net(Block, 2, **options)
    return net


net = small_net()
loader = torch.utils.data.DataLoader(images)


"""
    check_transformed(
        network + "net.eval()\nfor x in loader:\n    print(net(x).argmax(1))\n",
        network
        + "net.eval()\nwith torch.no_grad():\n    for x in loader:\n        print(net(x).argmax(1))\n",
    )


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        (  # as in pyGAT
            "self.heads = [nn.Linear(4, 4) for _ in range(3)]\n"
            "for i, head in enumerate(self.heads):\n"
            "    self.add_module(f'head{i}', head)",
            "return torch.cat([head(x) for head in self.heads], 1)",
        ),
        (
            "self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))",
            "return torch.cat([head(x[:, i]) for i, head in enumerate(self.heads)], 1)",
        ),
        (
            "self.heads = [Head() for _ in range(3)]",
            "return torch.cat([head(x) for head in self.heads], 1)",
        ),
        (  # as in Informer
            "self.fc = nn.Linear(4, 4)",
            "context = x.cumsum(1)\ncontext = self.fill(context, x, 2)\nreturn context.contiguous()",
        ),
        (
            "self.fc = nn.Linear(4, 4)",
            "count, width = len(x), 4\nself.kept = torch.ones(1, width).expand(count, width).to(x)\n"
            "return self.fc(x) * self.kept",
        ),
    ],
)
def test_networks_that_are_followed(check_transformed: Check, init: str, forward: str) -> None:
    network = f"""\
import torch
from torch import nn
from torch.utils.data import DataLoader


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
{indent(init, " " * 8)}

    def fill(self, context, x, index):
        context[:, index] = self.fc(x)[:, index]
        return context

    def forward(self, x):
{indent(forward, " " * 8)}


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(images):
    net(x).sum().backward()
    optimizer.step()

net.eval()
"""
    loop = "for x in DataLoader(tests):\n    print(net(x).argmax(1))\n"
    after = f"with torch.no_grad():\n{indent(loop, ' ' * 4)}"
    check_transformed(network + loop, network + after)


def test_a_sum_that_a_called_function_fills(check_transformed: Check) -> None:
    """What `add` is given by `run` is trained on where the training calls `run`, and not where the evaluation does."""
    before = script("""
        def add(total, x):
            total.add_(model(x).sum())

        def run(x):
            total = torch.zeros(())
            add(total, x)
            return total

        for x, y in loader:
            optimizer.zero_grad()
            run(x).backward()
            optimizer.step()

        def test():
            model.eval()
            for x, y in test_loader:
                print(run(x).item())

        test()
    """)
    check_transformed(before, before.replace("def test():", "@torch.no_grad()\ndef test():"))


def test_the_length_of_a_dataset_is_a_number(check_transformed: Check) -> None:
    before = script("""
        class Rows:
            def __init__(self, size):
                self.count = size[0] - size[1]

            def __len__(self):
                return self.count - 1

        def test(size):
            rows = Rows(size)
            model.eval()
            for x, y in DataLoader(rows):
                print(len(rows), model(x).argmax(1))

        test(read())
    """)
    check_transformed(before, before.replace("def test(", "@torch.no_grad()\ndef test("))


@pytest.mark.parametrize(("named", "changes"), [("", 0), ("smoke()\n", 1)])
def test_a_function_of_another_file_that_nothing_names_stays(
    rewrite: Callable[..., RewriteResult], named: str, changes: int
) -> None:
    train = (
        "import torch\nfrom models import *\nnet = Net()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for x in torch.rand(9, 2):\n    net(x).sum().backward()\n    optimizer.step()\n"
    )
    models = (
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.fc = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.fc(x)\n"
        "def smoke():\n    net = Net()\n    y = net(torch.rand(1, 2))\n    print(y.size())\n"
    )
    result = rewrite({"train.py": train + named, "models.py": models}, ["no-grad"])
    assert sum(len(file.changes) for file in result.files) == changes


def test_follows_a_layer_out_into_every_network_that_called_it(check_noop: Check) -> None:
    check_noop(
        """
        import torch
        from torch import nn


        class Layer(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.linear = nn.Linear(width, 4)

            def forward(self, x):
                return self.linear(x)


        class Critic(nn.Module):
            def __init__(self, smooth=False):
                super().__init__()

                def entrance():
                    return nn.Sequential(Layer(4), nn.Tanh()) if smooth else Layer(4)

                self.entrances = nn.ModuleList([entrance(), entrance()])
                self.last = Layer(4)

            def forward(self, x, level=0):
                return self.last(self.entrances[level](x))


        generator, critic = Layer(8), Critic()
        optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
        for _ in range(1000):
            optimizer.zero_grad()
            fake = generator(torch.randn(16, 8))
            loss = -critic(fake).mean()
            loss.backward()
            optimizer.step()
        """
    )


def test_leaves_a_step_alone_whose_loss_is_overwritten_before_it_is_used(check_noop: Check) -> None:
    check_noop(
        script(
            """
            def step(x, y, summed):
                optimizer.zero_grad()
                loss = 0
                if summed:
                    output = model(x)
                    loss += criterion(output, y)
                whole = model(x)
                loss = whole.mean()
                loss.backward()
                optimizer.step()


            for x, y in loader:
                step(x, y, False)
            train()
            """
        )
    )


def test_takes_torch_where_the_function_imports_it(check_transformed: Check) -> None:
    before = """
        import time

        def measure(times):
            import torch
            from torchvision.models import resnet18
            model = resnet18()
            model.eval()
            images = torch.zeros(1, 3, 224, 224)
            start = time.time()
            for _ in range(times):
                model(images)
            print(times / (time.time() - start))

        measure(10)
    """
    after = before.replace(
        """
            for _ in range(times):
                model(images)
""",
        """
            with torch.no_grad():
                for _ in range(times):
                    model(images)
""",
    )
    check_transformed(before, after)


SETTINGS = """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    print(vars(args), args.__dict__)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(10, 2)

        def forward(self, x):
            self.features = self.fc(x)
            return self.features

    model = Net()
    {kept}
    for x, y in test_loader:
        print(model(x).argmax(1).tolist())
"""


def test_settings_hold_no_results_of_a_network(rewrite: Callable[..., RewriteResult]) -> None:
    (file,) = rewrite(script(SETTINGS.format(kept="")), ["no-grad"]).files
    assert "with torch.no_grad():\n    for x, y in test_loader" in file.text


def test_settings_that_are_given_results(check_noop: Check) -> None:
    kept = "for x, y in test_loader:\n        args.features = model(x)\n        print(vars(args))"
    check_noop(script(SETTINGS.format(kept=kept)), "is printed with its grad_fn")


def test_a_list_of_parameters_that_the_method_of_every_network_hides(check_noop: Check) -> None:
    check_noop(
        """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 2)
                self.parameters = nn.ParameterList([self.fc.weight])

            def forward(self, x):
                return self.fc(x)

        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        """,
        silent=True,
    )
