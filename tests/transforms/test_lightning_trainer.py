"""Trainers of Lightning, and what LightningModules do in their steps."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.options import AmpDtype, Target, Tier

Check = Callable[..., None]

HEAD = """\
import torch
import pytorch_lightning as pl
from torch import nn


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layer(x), y)
        return loss


"""


def script(trainer: str, head: str = HEAD) -> str:
    return f"{head}{trainer}\n" + (
        "trainer.fit(Net())\n" if trainer.startswith("trainer =") else ""
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gpus=1, precision=32", 'accelerator="gpu", devices=1, precision=32'),
        ("gpus=-1, precision=32", 'accelerator="gpu", devices=-1, precision=32'),
        ("gpus=[0, 1], precision=32", 'accelerator="gpu", devices=[0, 1], precision=32'),
        ('gpus="0,1", precision=32', 'accelerator="gpu", devices="0,1", precision=32'),
        ("gpus=None, max_epochs=3", 'accelerator="cpu", max_epochs=3'),
        ("gpus=0", 'accelerator="cpu"'),
        ("max_nb_epochs=3, gpus=0", 'max_epochs=3, accelerator="cpu"'),
        (
            'gpus=2, distributed_backend="ddp", precision=16',
            'accelerator="gpu", devices=2, strategy="ddp", precision="16-mixed"',
        ),
        (
            'gpus=2, accelerator="ddp", precision=16',
            'accelerator="gpu", devices=2, strategy="ddp", precision="16-mixed"',
        ),
        (
            'gpus=1, distributed_backend="dp", precision=32',
            'accelerator="gpu", devices=1, precision=32',
        ),
        ("gpus=0, profile=True", 'accelerator="cpu", profiler="simple"'),
        ("gpus=0, profiler=False", 'accelerator="cpu"'),
        ("tpu_cores=8, precision=32", 'accelerator="tpu", devices=8, precision=32'),
        ("gpus=0, tpu_cores=None, num_processes=1, auto_select_gpus=False", 'accelerator="cpu"'),
        (
            'distributed_backend="ddp_cpu", num_processes=2',
            'accelerator="cpu", strategy="ddp_spawn", devices=2',
        ),
        (
            "gpus=1 if torch.cuda.is_available() else 0, precision=32",
            'accelerator="gpu" if torch.cuda.is_available() else "cpu", devices=1, precision=32',
        ),
        (
            "gpus=torch.cuda.device_count(), precision=32",
            'accelerator="gpu" if torch.cuda.is_available() else "cpu", devices="auto", precision=32',
        ),
        ("gpus=0, progress_bar_refresh_rate=0", 'accelerator="cpu", enable_progress_bar=False'),
        (
            "gpus=0, progress_bar_refresh_rate=20",
            'accelerator="cpu", callbacks=[pl.callbacks.TQDMProgressBar(refresh_rate=20)]',
        ),
        (
            'weights_summary="full", gpus=0, callbacks=[stop]',
            'accelerator="cpu", callbacks=[stop, pl.callbacks.ModelSummary(max_depth=-1)]',
        ),
        ("gpus=0, checkpoint_callback=False", 'accelerator="cpu", enable_checkpointing=False'),
        (
            "gpus=0, amp_backend='native', row_log_interval=5",
            'accelerator="cpu", log_every_n_steps=5',
        ),
        ('accelerator="cpu", precision=16', 'accelerator="cpu", precision="16-mixed"'),
    ],
)
def test_arguments(rewrite: Callable[..., object], before: str, after: str) -> None:
    result = rewrite(script(f"trainer = pl.Trainer({before})"), ["lightning-trainer"])
    text = result.files[0].text  # type: ignore[attr-defined]
    expected = script(f"trainer = pl.Trainer({after})")
    assert ast.unparse(ast.parse(text)) == ast.unparse(ast.parse(expected))
    again = rewrite(text, ["lightning-trainer"])
    assert not again.files[0].changes  # type: ignore[attr-defined]


def test_callbacks_with_arguments_of_their_own(check_transformed: Check) -> None:
    before = "trainer = pl.Trainer(gpus=1, precision=32, use_amp=False, early_stop_callback={0}, checkpoint_callback={1})"
    after = 'trainer = pl.Trainer(accelerator="gpu", devices=1, precision=32, callbacks=[{0}, {1}])'
    stop, keep = 'pl.callbacks.EarlyStopping("loss")', "pl.callbacks.ModelCheckpoint(save_top_k=2)"
    check_transformed(script(before.format(stop, keep)), script(after.format(stop, keep)))


def test_layout_quotes_and_other_imports(check_transformed: Check) -> None:
    before = """
        from lightning.pytorch import Trainer

        count = 2
        trainer = Trainer(
            max_epochs=3,
            gpus=count,
            distributed_backend='ddp',
            precision=16,
        )
    """
    after = """
        from lightning.pytorch import Trainer

        count = 2
        trainer = Trainer(
            max_epochs=3,
            accelerator='gpu',
            devices=count,
            strategy='ddp',
            precision='16-mixed',
        )
    """
    check_transformed(before, after)


def test_data_parallel_only_when_asked(check_transformed: Check, check_noop: Check) -> None:
    before = script('trainer = pl.Trainer(gpus=8, distributed_backend="dp", precision=32)')
    after = script(
        'trainer = pl.Trainer(accelerator="gpu", devices=8, strategy="ddp", precision=32)'
    )
    check_noop(before, "only with --tier semantic", tier=Tier.NUMERIC)
    check_transformed(before, after, tier=Tier.SEMANTIC)


def test_data_parallel_says_what_changes(rewrite: Callable[..., object]) -> None:
    text = script('trainer = pl.Trainer(gpus=8, distributed_backend="dp", precision=32)')
    (change,) = rewrite(text, ["lightning-trainer"]).files[0].changes  # type: ignore[attr-defined]
    assert "batch" in change.reason
    assert change.tier is Tier.SEMANTIC


def test_asked_for_bfloat16(check_transformed: Check) -> None:
    before, after = (
        f"pl.Trainer(accelerator='gpu', precision={p})" for p in ("16", "'bf16-mixed'")
    )
    check_transformed(script(before), script(after), amp=AmpDtype.BF16)


@pytest.mark.parametrize(
    ("given", "options", "value"),
    [
        (
            'accelerator="gpu"',
            {},
            '(\n        "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"\n    )',
        ),
        ('accelerator="gpu"', {"amp": AmpDtype.BF16}, '"bf16-mixed"'),
        ('accelerator="gpu"', {"amp": AmpDtype.FP16}, '"16-mixed"'),
        (
            "max_epochs=1",
            {"amp": AmpDtype.BF16},
            '"bf16-mixed" if torch.cuda.is_available() else "32-true"',
        ),
    ],
)
def test_precision(
    rewrite: Callable[..., object], given: str, options: dict[str, object], value: str
) -> None:
    result = rewrite(script(f"trainer = pl.Trainer({given})"), ["lightning-trainer"], **options)
    expected = script(f"trainer = pl.Trainer({given}, precision={value})")
    text = result.files[0].text  # type: ignore[attr-defined]
    assert ast.unparse(ast.parse(text)) == ast.unparse(ast.parse(expected))


@pytest.mark.parametrize(
    ("trainer", "reason"),
    [
        ("pl.Trainer(gpus=args.gpus)", "`gpus=args.gpus` is not known"),
        ("pl.Trainer(gpus='1')", "meant different things"),
        ("pl.Trainer(gpus=True)", "meant different things"),
        ("pl.Trainer(gpus=1, auto_select_gpus=True)", "find_usable_cuda_devices"),
        ("pl.Trainer(gpus=1, resume_from_checkpoint='a.ckpt')", "ckpt_path"),
        ("pl.Trainer(gpus=2, distributed_backend='horovod')", "horovod"),
        ("pl.Trainer(gpus=2, accelerator='ddp2')", "ddp2"),
        ("pl.Trainer(gpus=1, amp_backend='apex')", "Apex"),
        ("pl.Trainer(gpus=1, auto_lr_find=True)", "Tuner"),
        ("pl.Trainer(gpus=1, early_stop_callback=True)", "EarlyStopping"),
        ("pl.Trainer(gpus=1, track_grad_norm=2)", "grad_norm"),
        ("pl.Trainer(gpus=1, resume_from_checkpoint=args.resume)", "ckpt_path"),
        ("pl.Trainer(gpus=1, use_amp=True)", 'precision="16-mixed"'),
        ("pl.Trainer(gpus=1, add_row_log_interval=5)", "no argument of Lightning 2's"),
        ("pl.Trainer(gpus=1, num_processes=4)", "num_processes"),
        ("pl.Trainer(gpus=1, devices=2)", "`devices` is given already"),
        ("pl.Trainer(gpus=1, accelerator='cpu')", "not known to agree"),
        ("pl.Trainer(gpus=2 if torch.cuda.is_available() else 0)", "not known to choose"),
        ("pl.Trainer(gpus=1, progress_bar_refresh_rate=5, callbacks=more)", "cannot be added to"),
        ("pl.Trainer(**options, gpus=1)", "not all known (`options`)"),
        ("pl.Trainer(logger, gpus=1)", "not all known (`logger`)"),
        ("pl.Trainer(\n    gpus=1,\n    # all of it\n    max_epochs=3,\n)", "comments"),
        ("pl.Trainer.from_argparse_args(args)", "LightningCLI"),
        ("pl.Trainer(accelerator='cpu')", "not known to train on a GPU"),
        ("pl.Trainer(strategy=FSDPStrategy())", "may have its own"),
        ("pl.Trainer(strategy='deepspeed')", "may have its own"),
        ("pl.Trainer(accelerator=args.accelerator)", "not known to train on a GPU"),
    ],
)
def test_left_alone(check_noop: Check, trainer: str, reason: str) -> None:
    check_noop(script(f"trainer = {trainer}"), reason)


def test_no_precision_for_a_trainer_that_only_tests(check_noop: Check) -> None:
    check_noop(script("tester = pl.Trainer()\ntester.test(Net())"), "`fit` is not seen")


def test_no_precision_for_the_cpu_target(check_noop: Check) -> None:
    check_noop(script("trainer = pl.Trainer(max_epochs=1)"), "meant for a CPU", target=Target.CPU)


@pytest.mark.parametrize(
    "trainer",
    [
        "pl.Trainer(accelerator='gpu', precision=32)",
        "pl.Trainer(accelerator='gpu', precision='16-mixed')",
        "pl.Trainer(accelerator='gpu', plugins=[plugin])",
        "Trainer(gpus=1)",
        "nn.Trainer(gpus=1)",
    ],
)
def test_nothing_to_say(rewrite: Callable[..., object], trainer: str) -> None:
    result = rewrite(script(f"trainer = {trainer}"), ["lightning-trainer"])
    assert not result.files[0].changes  # type: ignore[attr-defined]
    assert not result.files[0].skips  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nn.functional.binary_cross_entropy(torch.sigmoid(x), y)", "binary cross entropy"),
        ("torch.autograd.grad(x, y)", "gradients by hand"),
        ("(x * x).sum().backward()", "gradients by hand"),
        ("self.half()", "in use already"),
        ("with torch.no_grad():\n            self.layer(x)", "without gradients"),
        ("torch.linalg.svd(x)", "not implemented for half precision"),
        ("self.automatic_optimization = False", "by hand"),
    ],
)
def test_no_precision_where_it_would_break(check_noop: Check, line: str, reason: str) -> None:
    head = HEAD.replace("        x, y = batch\n", f"        x, y = batch\n        {line}\n")
    check_noop(script("trainer = pl.Trainer(accelerator='gpu')", head), reason)


RECURRENT = HEAD.replace("nn.Linear(2, 2)", "nn.GRU(2, 2)").replace(
    "self.layer(x)", "self.layer(x)[0]"
)


@pytest.mark.parametrize(
    ("accelerator", "amp", "value"),
    [
        ("gpu", AmpDtype.AUTO, "16-mixed"),
        ("auto", AmpDtype.AUTO, None),
        ("gpu", AmpDtype.BF16, None),
    ],
)
def test_recurrent_layers_get_float16(
    rewrite: Callable[..., object],
    check_noop: Check,
    accelerator: str,
    amp: AmpDtype,
    value: str | None,
) -> None:
    before = script(f"trainer = pl.Trainer(accelerator='{accelerator}')", RECURRENT)
    if value is None:
        check_noop(before, "need a GradScaler", amp=amp)
        return
    text = rewrite(before, ["lightning-trainer"], amp=amp).files[0].text  # type: ignore[attr-defined]
    assert f"precision='{value}')" in text


NUMPY = HEAD.replace("return loss", "{}\n        return loss")
TRAIN = "trainer = pl.Trainer(accelerator='gpu')"
LEAVES = "no mixed precision: what a step computes goes to NumPy"


def test_what_goes_to_numpy_is_float32_again(rewrite: Callable[..., object]) -> None:
    head = NUMPY.format("print(self.layer(x).detach().cpu().numpy().mean())")
    text = rewrite(script(TRAIN, head), ["lightning-trainer"]).files[0].text  # type: ignore[attr-defined]
    assert "print(self.layer(x).detach().cpu().float().numpy().mean())" in text
    assert "precision=" in text


@pytest.mark.parametrize(
    "more",
    [
        "self.seen.append(self.layer(x))\n\n    def on_train_epoch_end(self):\n        torch.cat(self.seen).numpy()\n",
        "self.seen['x'].append(self.layer(x))\n\n    def on_train_epoch_end(self):\n        torch.cat(self.seen['x']).numpy()\n",
        "self.seen += [self.layer(x)]\n\n    def on_train_epoch_end(self):\n        torch.cat(self.seen).numpy()\n",
        "return {'loss': loss, 'y': y}\n\n    def on_train_batch_end(self, outputs, batch, index):\n        outputs['y'].numpy()\n",
    ],
)
def test_no_precision_where_kept_results_go_to_numpy(check_noop: Check, more: str) -> None:
    head = NUMPY.format(f"{more}        pass")
    check_noop(script(TRAIN, head), LEAVES)


def test_no_precision_where_predictions_go_to_numpy(check_noop: Check) -> None:
    check_noop(script(TRAIN) + "print(trainer.predict(Net())[0].numpy())\n", LEAVES)


STEP = """
    import torch
    from pytorch_lightning import LightningModule

    class Base(LightningModule):
        pass

    class Net(Base):
        def __init__(self):
            super().__init__()
            self.weights = torch.ones(3).cuda()

        def training_step(self, batch, index):
            self.layer.cuda()
            mask = torch.ones(3).{copy}
            out = self(batch * mask)
            loss = out.mean()
            self.log("loss", {loss}, prog_bar=True)
            self.log_dict({{"loss": {loss}}})
            self.history.append(loss.item())
            self.log("norm", out.norm().item())
            return {{"loss": loss}}

        def helper(self, x):
            return x.cuda()

    class Plain(torch.nn.Module):
        def forward(self, x):
            return x.cuda()
"""


@pytest.mark.parametrize("copy", ["cuda()", 'to("cuda")'])
@pytest.mark.parametrize("loss", ["loss.item()", "loss.detach().item()", "loss.cpu().item()"])
def test_steps(check_transformed: Check, copy: str, loss: str) -> None:
    check_transformed(
        STEP.format(copy=copy, loss=loss), STEP.format(copy="to(self.device)", loss="loss")
    )


TERMS = """
    from pytorch_lightning import LightningModule

    class Net(LightningModule):
        def training_step(self, batch, index):
            fit, {first} = self.terms(batch)
            loss = fit - 0.5 * {first} + self.weight * fit / 3
            self.log("loss", {loss})
            self.log_dict({{"fit": {fit}, "prior": {term}, "rate": {rate}}})
            return loss
"""


def test_terms_of_the_loss_are_logged_as_they_are(check_transformed: Check) -> None:
    rest = {"first": "prior", "rate": "rate.item()"}
    before = {"loss": "loss.item()", "fit": "fit.item()", "term": "prior.detach().item()"}
    after = {"loss": "loss", "fit": "fit", "term": "prior"}
    check_transformed(TERMS.format(**rest, **before), TERMS.format(**rest, **after))


@pytest.mark.parametrize(
    "step",
    [
        "y = x.cuda(1)",
        "y = x.to('cpu')",
        "y = x.to('cuda', torch.float64)",
        "y = x.to(device)",
        "self.log('x', x.item())",  # not what is trained with
        "stop = loss.item() > 3",
        "logger.log('loss', loss.item())",
    ],
)
def test_step_left_alone(check_noop: Check, step: str) -> None:
    head = HEAD.replace("        return loss\n", f"        {step}\n        return loss\n")
    check_noop(script("", head))


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def validation_epoch_end(self, outputs):\n        pass", "on_validation_epoch_end"),
        ("def training_epoch_end(self, outputs):\n        pass", "on_train_epoch_end"),
        (
            "def validation_step(self, batch, index):\n        return {'log': {'a': 1}}",
            "ignored since Lightning 1.0",
        ),
    ],
)
def test_reported(check_noop: Check, method: str, reason: str) -> None:
    head = HEAD.replace("    def training_step", f"    {method}\n\n    def training_step")
    check_noop(script("", head), reason)


TRAINING = """
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    class Regression(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.mse_loss(self.layer(x), y)
            self.log("loss", loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)


    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=4)
    trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Regression(), loader)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_trains_the_same(check_verified: Check) -> None:
    pytest.importorskip("lightning")
    check_verified(TRAINING)


@pytest.mark.slow
@pytest.mark.torch
def test_the_newest_trainer_takes_what_is_written() -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        strategy="auto",
        precision="bf16-mixed",
        profiler="simple",
        enable_model_summary=False,
        log_every_n_steps=5,
        use_distributed_sampler=True,
        callbacks=[
            lightning.callbacks.TQDMProgressBar(refresh_rate=20),
            lightning.callbacks.ModelSummary(max_depth=-1),
        ],
        logger=False,
        enable_checkpointing=False,
    )
    assert trainer.precision == "bf16-mixed"
    with pytest.raises(TypeError):
        lightning.Trainer(gpus=1)


KEEPS = """\
import torch
import pytorch_lightning as pl
from torch import nn


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layer(x), y)
        self.losses.append({})
        return loss

    def on_train_epoch_end(self):{}
        print(f"loss {{sum(self.losses) / len(self.losses):.4f}}")
        self.losses.clear()
"""
NUMBERS = "\n        self.losses = [value.item() for value in self.losses]"


def test_losses_of_an_epoch_wait_for_its_end(check_transformed: Check) -> None:
    check_transformed(KEEPS.format("loss.item()", ""), KEEPS.format("loss.detach()", NUMBERS))


def test_losses_that_the_next_epoch_empties(check_transformed: Check) -> None:
    start = "\n    def on_train_epoch_start(self):\n        self.losses = []\n"
    before, after = KEEPS.format("loss.item()", ""), KEEPS.format("loss.detach()", NUMBERS)
    clear = "        self.losses.clear()\n"
    check_transformed(before.replace(clear, start), after.replace(clear, start))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "        self.losses.clear()\n",
            "",
        ),  # floats of one epoch would stand before tensors of the next
        (
            "        self.losses.clear()\n",
            "        if len(self.losses) > 9:\n            self.losses.clear()\n",
        ),
        (
            "        print(",
            "        if self.current_epoch == 0:\n            return\n        print(",
        ),
        ("        return loss\n", "        print(self.losses[-1])\n        return loss\n"),
        ("        return loss\n", "        loss += 1\n        return loss\n"),
        ("        return loss\n", "        loss.mul_(2)\n        return loss\n"),
        ("        return loss\n", "        return 2 * loss\n"),
        ("loss.item()", "float(index)"),
        ("loss.item()", "index"),
        ("self.losses = []", "self.losses = [0.0]"),
        ("        return loss\n", "        self.losses.append(0.5)\n        return loss\n"),
        ("class Net(", "def last(net):\n    return net.losses[-1]\n\n\nclass Net("),
        ("class Net(", "def last(net):\n    return getattr(net, 'losses')[-1]\n\n\nclass Net("),
        ("on_train_epoch_end", "on_fit_end"),
    ],
)
def test_lists_that_stay_numbers(check_noop: Check, old: str, new: str) -> None:
    text = KEEPS.format("loss.item()", "")
    assert old in text
    check_noop(text.replace(old, new, 1))


def test_losses_stay_numbers_on_the_cpu(check_noop: Check) -> None:
    check_noop(KEEPS.format("loss.item()", ""), target=Target.CPU)


def test_losses_of_a_network_with_subclasses_stay_numbers(check_noop: Check) -> None:
    sub = "\n\nclass Sub(Net):\n    def on_train_epoch_end(self):\n        pass\n"
    check_noop(KEEPS.format("loss.item()", "") + sub)
