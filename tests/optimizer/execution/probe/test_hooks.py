"""What the hooks see of a training loop, and that they leave nothing behind."""

from __future__ import annotations

import copy
import gc
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from torchopt_cli.optimizer.execution.observations import Loss, Status  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


def loader(batch_size: int = 4) -> DataLoader:
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(12, 4, generator=generator), torch.arange(12) % 2)
    return DataLoader(data, batch_size=batch_size, shuffle=True)


def train(epochs: int = 2, wrap=lambda net: net, **options) -> Net:
    net = Net()
    model = wrap(net)
    optimizer = torch.optim.SGD(net.parameters(), **{"lr": 0.1, **options})
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(epochs):
        for x, y in loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
    return net


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"lr": 0.1, "fused": True}])
def test_gradients_are_weighed_by_their_weights_as_they_were_before_the_step(recorded, options):
    """Those of a table are sparse; a weight without a gradient has no part in it."""
    table = nn.Embedding.from_pretrained(
        torch.tensor([[5.0], [3.0], [7.0]]), freeze=False, sparse="fused" not in options
    )
    factor, unused = nn.Parameter(torch.tensor(4.0)), nn.Parameter(torch.ones(2))

    def script():
        optimizer = torch.optim.SGD([*table.parameters(), factor, unused], **options)
        (factor * table(torch.tensor([1, 1]))).sum().backward()
        optimizer.step()

    assert recorded(script).steps[0].weight_terms == pytest.approx((24.0**2 + 24.0**2) ** 0.5)


def test_each_step_is_described(recorded):
    kept = {}

    def script():
        kept["net"] = train()
        kept["state"] = {name: value.clone() for name, value in kept["net"].state_dict().items()}

    run = recorded(script)
    names = [f"Net.{name}" for name, _ in kept["net"].named_parameters()]
    assert run.status is Status.COMPLETED
    assert run.rounds == 6
    assert (
        [step.index for step in run.steps] == [step.round for step in run.steps] == list(range(6))
    )
    assert [step.learning_rates for step in run.steps] == [(0.1,)] * 3 + [(0.05,)] * 3
    assert all(len(step.losses) == 1 and step.losses[0].dtype == "float32" for step in run.steps)
    assert all(list(step.parameters) == names for step in run.steps)
    assert not any(step.closure or step.skipped for step in run.steps)
    first = run.steps[0]
    for name, gradient in run.gradients().items():
        update = first.parameters[name]
        assert update.grad_norm == pytest.approx(
            float((gradient.astype("float64") ** 2).sum() ** 0.5)
        )
        assert update.update_norm == pytest.approx(0.1 * update.grad_norm, rel=1e-3, abs=1e-7)
    squares = sum(update.grad_norm**2 for update in first.parameters.values())
    assert first.grad_norm == pytest.approx(squares**0.5)
    (optimizer,) = run.optimizers
    assert (optimizer.class_name, optimizer.groups) == ("SGD", (tuple(names),))
    assert optimizer.hyperparameters[0]["momentum"] == "0"


def test_settings_are_plain_numbers_whatever_computed_them(recorded):
    numpy = pytest.importorskip("numpy")

    def script():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=numpy.float64(0.5))
        optimizer.param_groups[0]["betas"] = (numpy.float32(0.5), torch.tensor(0.25))
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    (settings,) = recorded(script).optimizers[0].hyperparameters
    assert (settings["weight_decay"], settings["betas"]) == ("0.5", "(0.5, 0.25)")


def test_settings_of_losses_are_told_wherever_they_are_built(recorded):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.classes = nn.CrossEntropyLoss(ignore_index=2)

        def forward(self, x, y):
            return self.classes(x, y) + nn.HuberLoss(delta=0.5)(x[:, 0], y.float())

    def script():
        net = nn.Linear(2, 3)
        optimizer, criterion = torch.optim.SGD(net.parameters(), lr=0.1), Loss()
        for _ in range(2):
            out, y = net(torch.ones(4, 2)), torch.tensor([0, 1, 2, 0])
            (criterion(out, y) + nn.MSELoss()(out[:, 0], y.float())).backward()
            optimizer.step()

    told = recorded(script).layer_settings
    assert told["CrossEntropyLoss #1"].startswith("CrossEntropyLoss(ignore_index=2, ")
    assert told["MSELoss #1"] == "MSELoss(reduction='mean')"
    assert "MSELoss #2" not in told


def test_parameters_are_kept_at_the_start_powers_of_two_and_the_end(recorded):
    kept = {}
    run = recorded(lambda: kept.update(net=train()))
    assert [snapshot.round for snapshot in run.snapshots] == [0, 1, 2, 4, 6]
    final = run.tensors(run.snapshot(6))
    for name, parameter in kept["net"].named_parameters():
        assert (final[f"Net.{name}"] == parameter.detach().numpy()).all()
    assert run.snapshot(0).hashes != run.snapshot(1).hashes
    buffers = run.buffers()
    assert (buffers["Net.body.1.running_mean"] == kept["net"].body[1].running_mean.numpy()).all()
    assert int(buffers["Net.body.1.num_batches_tracked"]) == 6


def test_large_snapshots_are_hashes_only(recorded):
    run = recorded(train, snapshot_bytes=10)
    assert run.tensors(run.snapshots[0]) is None
    assert len(run.snapshots[0].hashes) == 6


def test_passes_over_loaders_are_counted(recorded):
    def script():
        train(1)
        next(iter(loader(5)))
        list(loader(5))

    run = recorded(script)
    told = [(p.loader, p.epoch, p.batches, p.samples, p.finished) for p in run.loader_passes]
    assert told == [(0, 0, 3, 12, True), (0, 1, 1, 5, False), (0, 2, 3, 12, True)]


def test_wrappers_do_not_change_names(recorded):
    plain = recorded(train)
    parallel = recorded(lambda: train(wrap=nn.DataParallel))
    assert list(parallel.parameters) == list(plain.parameters)
    assert parallel.losses == plain.losses


def test_the_run_ends_after_the_asked_for_rounds_whatever_the_script_catches(recorded):
    reached = []

    def script():
        try:
            train(100)
        except Exception:
            reached.append("except")
        reached.append("after")

    run = recorded(script, steps=4)
    assert (run.status, run.rounds, reached) == (Status.STOPPED, 4, [])
    assert len(run.steps) == 4
    assert run.snapshots[-1].round == 4


def test_a_script_that_swallows_everything_meets_the_end_again(recorded):
    caught = []

    def script():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        while True:
            try:
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            except BaseException:
                caught.append(1)
                if len(caught) == 3:
                    raise

    assert recorded(script, steps=2).rounds == 2
    assert len(caught) == 3


def test_two_optimizers_make_one_round_with_their_own_losses(recorded):
    def script():
        torch.manual_seed(1)
        generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
        of_critic = torch.optim.Adam(critic.parameters(), lr=0.1)
        of_generator = torch.optim.SGD(generator.parameters(), lr=0.2)
        for _ in range(5):
            real = critic(torch.ones(3, 2)).mean()
            real.backward()
            fake = critic(generator(torch.ones(3, 2)).detach()).mean()
            fake.backward()
            of_critic.step()
            critic(generator(torch.ones(3, 2))).mean().backward()
            of_generator.step()

    run = recorded(script, steps=3)
    assert [(s.round, s.optimizer, len(s.losses)) for s in run.steps] == [
        (0, 0, 2), (0, 1, 1), (1, 0, 2), (1, 1, 1), (2, 0, 2), (2, 1, 1),
    ]  # fmt: skip
    assert [o.class_name for o in run.optimizers] == ["Adam", "SGD"]
    assert sorted(run.parameters) == [
        "Linear#2.bias",
        "Linear#2.weight",
        "Linear.bias",
        "Linear.weight",
    ]
    assert run.parameters["Linear.weight"].shape == (1, 2)


def test_closures_and_their_losses(recorded):
    def script():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(1, 2)).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    run = recorded(script)
    assert [step.closure for step in run.steps] == [True, True]
    assert len(run.steps[0].losses) > 1
    assert run.steps[0].parameters["Linear.weight"].grad_norm is not None


@pytest.mark.parametrize("by_name", [False, True])
def test_first_gradients_are_those_before_a_closure_has_moved_the_weights(recorded, by_name):
    given = []

    def script():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=20)

        def closure():
            optimizer.zero_grad()
            loss = (net(torch.ones(1, 2)) - 3).square().sum()
            loss.backward()
            given.append(net.weight.grad.tolist())
            return loss

        optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    run = recorded(script)
    assert len(given) > 1
    assert run.gradients()["Linear.weight"].tolist() == given[0]


def test_what_an_optimizer_makes_of_its_gradients_is_kept_where_a_closure_is_called_once(recorded):
    class Halved(torch.optim.SGD):
        def step(self, closure=None):
            loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.mul_(0.5)
            super().step()
            return loss

    given = []

    def script():
        net = nn.Linear(2, 1)
        optimizer = Halved(net.parameters(), lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(1, 2)).sum()
            loss.backward()
            given.append(net.weight.grad.clone())
            return loss

        optimizer.step(closure)

    run = recorded(script)
    assert run.gradients()["Linear.weight"].tolist() == (given[0] / 2).tolist()


def test_a_grad_scaler_does_not_show(recorded):
    def script(scaler, poison=False):
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(3):
            optimizer.zero_grad()
            loss = net(torch.ones(1, 2)).sum() * (float("inf") if poison and i == 1 else 1.0)
            if scaler is None:
                (loss / 2).backward()
                optimizer.step()
            else:
                (scaler.scale(loss) / 2).backward() if i else scaler.scale(loss / 2).backward()
                scaler.step(optimizer)
                scaler.update()

    plain = recorded(lambda: script(None))
    scaled = recorded(lambda: script(torch.amp.GradScaler("cpu")))
    disabled = recorded(lambda: script(torch.amp.GradScaler("cpu", enabled=False)))
    for other in (scaled, disabled):
        assert other.losses == pytest.approx(plain.losses)
        assert other.steps[0].grad_norm == pytest.approx(plain.steps[0].grad_norm)
        assert [step.skipped for step in other.steps] == [False] * 3
    skipping = recorded(lambda: script(torch.amp.GradScaler("cpu"), poison=True))
    assert [step.skipped for step in skipping.steps] == [False, True, False]
    assert skipping.rounds == 3
    moved = [step.parameters["Linear.weight"].update_norm > 0 for step in skipping.steps]
    assert moved == [True, False, True]
    for run in (plain, scaled, disabled, skipping):
        assert [step.unguarded for step in run.steps] == [False] * 3


def test_a_step_past_the_grad_scaler_is_told(recorded):
    def script():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(2):
            scaler.scale(net(torch.ones(1, 2)).sum()).backward()
            scaler.unscale_(optimizer)
            optimizer.step()
            scaler.update()

    assert [step.unguarded for step in recorded(script).steps] == [True, True]


def test_updates_by_hand_are_counted_by_backward(recorded):
    def script():
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
        for _ in range(10):
            net(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    run = recorded(script, steps=4)
    assert (run.status, run.rounds, run.optimizer_seen) == (Status.STOPPED, 4, False)
    assert [(step.optimizer, len(step.losses)) for step in run.steps] == [(-1, 1)] * 4
    weights = [run.tensors(s)["Linear.weight"] for s in run.snapshots]
    assert [s.round for s in run.snapshots] == [0, 1, 2, 4]
    assert weights[1] == pytest.approx(weights[0] - 0.1)


def test_layers_of_the_first_training_call_are_noted_in_their_order(recorded):
    run = recorded(lambda: train(1))
    assert [(one.layer, one.class_name) for one in run.layer_outputs] == [
        ("Net.body.0", "Linear"),
        ("Net.body.1", "BatchNorm1d"),
        ("Net.body.2", "ReLU"),
        ("Net.body", "Sequential"),
        ("Net.head", "Linear"),
        ("Net", "Net"),
    ]
    assert run.layer_outputs[-1].output.shape == (4, 2)
    assert {one.rounds for one in run.layer_outputs} == {0}


def test_a_part_that_is_called_by_itself_later_is_known_to_be_late(recorded):
    def script():
        net = train(2)
        net.head(torch.ones(1, net.head.in_features))

    late = recorded(script, steps=1000).layer_outputs[-1]
    assert (late.layer, late.rounds > 0) == ("Linear", True)


def quadratic(weights, x, y):
    return ((x @ weights["w"] + weights["b"] - y) ** 2).mean()


def by_grad(weights, *data):
    loss = quadratic(weights, *data)
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def by_func(weights, *data):
    return torch.func.grad(quadratic)(weights, *data)


def by_backward(weights, *data):
    quadratic(weights, *data).backward()
    gradients = {name: weight.grad for name, weight in weights.items()}
    for weight in weights.values():
        weight.grad = None
    return gradients


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("gradients_of", [by_grad, by_func, by_backward])
def test_weights_of_no_module_are_followed(recorded, gradients_of, in_place):
    first, last = {}, {}

    def script():
        torch.manual_seed(0)
        weights = {"w": torch.randn(4, 2), "b": torch.zeros(2)}
        first.update({name: weight.clone() for name, weight in weights.items()})
        data = torch.randn(6, 4), torch.randn(6, 2)
        for weight in weights.values():
            weight.requires_grad_(gradients_of is not by_func)
        for _ in range(5):
            gradients = gradients_of(weights, *data)
            with torch.no_grad():
                for name, gradient in gradients.items():
                    if in_place:
                        weights[name] -= 0.1 * gradient
                    else:
                        weights[name] = (weights[name] - 0.1 * gradient).requires_grad_(
                            gradients_of is not by_func
                        )
            if len(last) < 1:
                last.update({name: weight.detach().clone() for name, weight in weights.items()})

    run = recorded(script)
    names = {"w": "tensor 4x2 #1", "b": "tensor 2 #1"}
    assert set(run.parameters) == set(names.values())
    assert len(run.steps) == 5
    assert all(len(step.losses) == 1 for step in run.steps)
    moved = [step.parameters["tensor 4x2 #1"].update_norm > 0 for step in run.steps]
    assert moved == [True] * 4 + [in_place]
    assert all(step.grad_norm > 0 for step in run.steps)
    before, after = (run.tensors(run.snapshots[n]) for n in (0, 1))
    for key, name in names.items():
        assert before[name] == pytest.approx(first[key].numpy())
        assert after[name] == pytest.approx(last[key].numpy())
        assert run.gradients()[name] == pytest.approx(
            (first[key] - last[key]).numpy() / 0.1, abs=1e-5
        )


def test_evaluation_outputs_and_samples(recorded):
    outputs = []

    def script():
        net = train(1)
        net.eval()
        with torch.no_grad():
            for x, _ in loader(5):
                outputs.append(net(x))
        net.train()
        net(torch.ones(3, 4))

    run = recorded(script)
    assert [(c.module, c.rounds, c.samples) for c in run.eval_calls] == [
        ("Net", 3, 5),
        ("Net", 3, 5),
        ("Net", 3, 2),
    ]
    assert run.eval_samples == 12
    assert [len(set(c.each)) for c in run.eval_calls] == [5, 5, 2]
    kept = run.eval_outputs()
    for index, output in enumerate(outputs):
        assert (kept[f"{index}.0"] == output.numpy()).all()
        told = run.eval_calls[index].outputs[0]
        assert told.norm == pytest.approx(float(output.norm()))
        assert (told.shape, told.dtype, told.finite) == (tuple(output.shape), "float32", True)


def test_losses_keep_their_dtype_and_vectors_their_weights(recorded):
    def script():
        net = nn.Linear(2, 3).to(torch.bfloat16)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (x * 3).backward(torch.tensor([10.0, 1.0]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            net(torch.ones(1, 2))
        optimizer.step()

    run = recorded(script)
    assert run.steps[0].losses[0].dtype == "bfloat16"
    assert run.steps[1].losses == (Loss(36.0, "float32"),)
    assert run.compute_dtypes == ("bfloat16",)
    assert run.parameters["Linear.weight"].dtype == "bfloat16"
    assert run.tensors(run.snapshots[0])["Linear.weight"].dtype == "float32"


def test_checkpointing_inside_backward_is_not_a_loss(recorded):
    def script():
        from torch.utils.checkpoint import checkpoint

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(4, 4, requires_grad=True)
        net.head(checkpoint(net.body, x, use_reentrant=True)).sum().backward()
        optimizer.step()

    assert len(recorded(script).steps[0].losses) == 1


def test_a_parameter_left_out_shows(recorded):
    def script():
        net = Net()
        groups = [
            {"params": net.head.parameters(), "weight_decay": 0.1},
            {"params": [net.body[0].weight], "lr": 0.5},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.1)
        net(torch.randn(4, 4)).sum().backward()
        net.head.bias.grad = None
        optimizer.step()

    run = recorded(script)
    assert run.optimizers[0].groups == (
        ("Net.head.weight", "Net.head.bias"),
        ("Net.body.0.weight",),
    )
    assert [h["weight_decay"] for h in run.optimizers[0].hyperparameters] == ["0.1", "0.01"]
    updates = run.steps[0].parameters
    assert updates["Net.head.bias"].grad_norm is None
    assert updates["Net.head.bias"].update_norm == 0.0
    assert updates["Net.body.0.weight"].update_norm > 0
    assert run.steps[0].learning_rates == (0.1, 0.5)


def test_saved_checkpoints_are_described(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def script():
        net = nn.Linear(2, 1)
        torch.save(
            {"model": net.state_dict(), "epoch": 3, "parts": [net.half(), None]},
            tmp_path / "a" / ".." / "c.pt",
        )
        with open("d.pt", "wb") as file:
            torch.save(torch.ones(2), file)

    (tmp_path / "a").mkdir()
    first, second = recorded(script).checkpoints
    assert (first.path, second.path) == ("c.pt", "d.pt")
    entries = first.entries
    assert list(entries) == [
        "model/weight", "model/bias", "epoch", "parts/0", "parts/0/Linear()/weight", "parts/0/Linear()/bias", "parts/1",
    ]  # fmt: skip
    assert (entries["model/weight"].shape, entries["model/weight"].dtype) == ((1, 2), "float32")
    assert entries["parts/0/Linear()/weight"].dtype == "float16"
    assert len({entries[key].sha256 for key in entries if key.endswith("weight")}) == 2
    assert (entries["epoch"].kind, entries["epoch"].value) == ("int", "3")
    assert entries["parts/0"].kind == "Linear"
    assert second.entries[""].shape == (2,)
    assert (tmp_path / "c.pt").exists()


def test_timing_alters_nothing_and_keeps_waiting_and_blocks(recorded):
    run = recorded(lambda: train(2), mode="time", block_steps=2, steps=6)
    timing = run.timing
    assert (run.rounds, len(timing.round_seconds), len(timing.wait_seconds)) == (6, 5, 5)
    assert timing.synchronised == (0, 2, 4, 5)
    assert timing.startup_seconds > 0
    assert timing.first_round_seconds > 0
    assert all(
        wait <= whole for wait, whole in zip(timing.wait_seconds, timing.round_seconds, strict=True)
    )
    assert run.steps == run.snapshots == run.loader_passes == ()


def test_nothing_stays_behind(recorded):
    def state():
        owners = [
            torch.autograd, torch, nn.Module, torch.optim.Optimizer, DataLoader, torch.utils.data.RandomSampler,
            torch.utils.data.distributed.DistributedSampler, torch.utils.data.dataloader._BaseDataLoaderIter,
            torch.utils.data._utils.worker, torch.utils.data._utils.fetch._MapDatasetFetcher,
            torch.utils.data._utils.fetch._IterableDatasetFetcher, torch.amp.GradScaler, torch.autocast,
        ]  # fmt: skip
        hooks = sys.modules["torch.optim.optimizer"]
        counts = (len(hooks._global_optimizer_pre_hooks), len(hooks._global_optimizer_post_hooks))
        return counts, [dict(vars(owner)) for owner in owners]

    train(1)
    counts, before = state()
    recorded(lambda: train(1))
    counts_after, after = state()
    assert counts_after == counts
    for old, new in zip(before, after, strict=True):
        assert [name for name in old if new.get(name) is not old[name]] == []
        assert set(new) == set(old)


def test_what_a_layer_exchanges_is_not_the_scripts(recorded, tmp_path):
    distributed = torch.distributed
    exchanges = "def exchange(distributed, values):\n    distributed.all_reduce(values)\n"
    found = {}
    for module in ("train", "torch.nn.modules._functions"):
        code = {"__name__": module}
        exec(exchanges, code)

        def script(exchange=code["exchange"]):
            train(1)
            exchange(distributed, torch.ones(2))

        store = f"file://{tmp_path}/{module}"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            found[module] = recorded(script).collectives
        finally:
            distributed.destroy_process_group()
    assert found == {"train": ((3, 0),), "torch.nn.modules._functions": ()}


def test_what_cannot_be_recorded_is_told_and_the_script_goes_on(recorded, tmp_path):
    def script():
        train(1)
        torch.save({"shape only": torch.empty(2, device="meta")}, tmp_path / "c.pt")
        train(1)

    run = recorded(script)
    # The optimizer of the second training is built behind the first one's: they share no round.
    assert (run.status, run.rounds, len(run.steps)) == (Status.COMPLETED, 6, 6)
    assert [checkpoint.path for checkpoint in run.checkpoints] == [str(tmp_path / "c.pt")]
    (told,) = run.unobserved
    assert "NotImplementedError" in told
    assert recorded(train).unobserved == ()


def test_the_order_of_samples_is_recorded_per_batch_given(recorded):
    def script(shuffle=True, workers=0):
        data = TensorDataset(torch.arange(12.0))
        context = "fork" if workers else None
        read = DataLoader(
            data, 4, shuffle=shuffle, num_workers=workers, multiprocessing_context=context
        )
        for epoch in range(2):
            for batch, _ in enumerate(read):
                if epoch and batch:
                    break

    alone, loaded, in_order = (
        recorded(lambda options=options: script(*options)).loader_passes
        for options in ((), (True, 2), (False,))
    )
    assert [[mark.samples for mark in one.order] for one in alone] == [[4, 8, 12], [4, 8]]
    assert [one.order for one in loaded] == [one.order for one in alone]
    assert alone[0].order != alone[1].order
    assert [one.order[-1].ascending for one in (*alone, *in_order)] == [False, False, True, True]
    assert alone[0].order[-1].contents == in_order[0].order[-1].contents
    assert alone[0].order[-1].distinct == 12


def test_calls_in_training_mode_are_counted_beside_those_in_eval_mode(recorded):
    def script():
        net = train(1)
        with torch.no_grad():
            net(torch.zeros(5, 4))
        net.eval()(torch.zeros(7, 4))

    run = recorded(script)
    told = [(c.rounds, c.samples, c.without_gradients) for c in run.training_calls]
    assert told == [(0, 4, 0), (1, 4, 0), (2, 4, 0), (3, 5, 5)]
    assert [(call.rounds, call.samples) for call in run.eval_calls] == [(3, 7)]


@pytest.mark.skipif(
    torch.__version__ < (2, 5), reason="PyTorch 2.4 calls no replaced method in compiled functions"
)
def test_an_evaluation_that_a_compiled_function_makes_is_told(recorded):
    outputs = []

    def script():
        net = train(1)
        predict = torch.compile(lambda x: net(x) + 1, backend="eager")
        predict(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            net.eval()
            outputs.append(predict(torch.ones(6, 4)) - 1)
            net(torch.ones(5, 4))

    run = recorded(script)
    assert [(call.module, call.samples) for call in run.eval_calls] == [("Net", 6), ("Net", 5)]
    assert torch.allclose(torch.from_numpy(run.eval_outputs()["0.0"]), outputs[0])


@pytest.mark.skipif(
    torch.__version__ < (2, 5), reason="PyTorch 2.4 calls no replaced method in compiled functions"
)
def test_an_evaluation_in_a_function_that_is_to_be_one_graph_is_told(recorded):
    outputs = []

    def script():
        net = train(1).eval()
        for options in ({"fullgraph": True}, {}):
            predict = torch.compile(lambda x: net(x) + 1, backend="eager", **options)
            with torch.no_grad():
                outputs.extend(predict(torch.ones(n, 4)) - 1 for n in (6, 5))

    run = recorded(script)
    assert [call.samples for call in run.eval_calls] == [6, 5] * 2
    assert torch.allclose(torch.from_numpy(run.eval_outputs()["0.0"]), outputs[0])
    assert run.unobserved == ()


def test_a_function_that_is_no_single_graph_fails_as_it_would(recorded):
    raised = []

    def script():
        net = train(1).eval()

        @torch.compile(backend="eager", fullgraph=True)
        def predict(x):
            torch._dynamo.graph_break()
            return net(x)

        try:
            predict(torch.ones(6, 4))
        except torch._dynamo.exc.Unsupported as error:
            raised.append(error)

    assert recorded(script).eval_calls == ()
    assert raised


def test_a_frozen_part_called_inside_of_a_trained_module_is_told(recorded):
    class Tuned(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).requires_grad_(False)
            self.head = nn.Sequential(nn.Linear(3, 2))

        def forward(self, x):
            return self.head(self.body(x))

    def script():
        net = Tuned()
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        net.train()
        net.body.eval()
        net(torch.ones(5, 4)).sum().backward()
        optimizer.step()
        net.eval()(torch.ones(6, 4))

    run = recorded(script)
    (told,) = run.further_calls
    assert (told.module, told.rounds, told.samples, told.inside) == ("Sequential", 0, 5, True)
    assert [(call.module, call.samples) for call in run.eval_calls] == [("Tuned", 6)]


def test_calls_of_what_heeds_no_mode_are_told_by_their_gradients_too(recorded):
    def script():
        net = train(1)
        calm, lively = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 2), nn.Dropout())
        with torch.no_grad():
            calm(torch.zeros(5, 4))
            lively(torch.zeros(5, 4))
        calm.eval()(torch.zeros(6, 4))
        with torch.no_grad():
            calm(torch.zeros(7, 4))
        net.eval()(torch.zeros(8, 4))

    run = recorded(script)
    told = [(c.number, c.module, c.samples, len(c.outputs)) for c in run.further_calls]
    assert told == [(0, "Linear", 5, 1)]
    in_eval_mode = [(c.number, c.module, c.samples, c.trains) for c in run.eval_calls]
    assert in_eval_mode[:2] == [(1, "Linear", 6, True), (2, "Linear", 7, False)]


def test_gradients_taken_by_hand_are_the_steps_losses(recorded):
    def script(penalty=False):
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.ones(3, 4, requires_grad=True)
            loss = net(x).sum()
            if penalty:
                (slope,) = torch.autograd.grad(loss, x, create_graph=True)
                (loss + slope.square().sum()).backward()
            else:
                gradients = torch.autograd.grad(loss, list(net.parameters()))
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()

    assert [len(step.losses) for step in recorded(script).steps] == [1, 1]
    assert [len(step.losses) for step in recorded(lambda: script(True)).steps] == [1, 1]


def test_gradients_that_transformed_and_compiled_code_takes_are_no_losses(recorded):
    def script():
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.func.grad(lambda x: net(x).sum())(torch.ones(4))
        compiled = torch.compile(net, backend="aot_eager")
        compiled(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    assert [len(step.losses) for step in recorded(script).steps] == [1]


def clipped_by_sample(at_once: bool) -> None:
    """Two steps of a gradient per sample, and an evaluation: by ``vmap``, or sample after sample."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(6, 4)

    def loss(weights, sample):
        return torch.func.functional_call(net, weights, (sample[None],)).square().sum()

    def of_each(function):
        if at_once:
            return torch.func.vmap(function)(x)
        results = [function(sample) for sample in x]
        return torch.utils._pytree.tree_map(lambda *parts: torch.stack(parts), *results)

    for _ in range(2):
        weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
        gradients = of_each(lambda sample, at=weights: torch.func.grad(loss)(at, sample))
        for name, parameter in net.named_parameters():
            parameter.grad = gradients[name].clamp(-1, 1).mean(0)
        optimizer.step()
    net.eval()
    of_each(lambda sample: net(sample[None]))


@pytest.mark.parametrize("perturb", [None, {"dtype": "float32", "seed": 1}])
def test_what_vmap_does_at_once_is_that_of_all_samples(recorded, perturb):
    """The tensors in there are wrappers that end with ``vmap``, and nothing may be drawn there."""
    runs = [recorded(lambda way=way: clipped_by_sample(way), perturb=perturb) for way in (0, 1)]
    assert [run.unobserved for run in runs] == [(), ()]
    each, together = runs
    for ours, theirs in zip(each.steps, together.steps, strict=True):
        losses = [one.value for one in ours.losses]
        assert len(losses) == 6
        assert [one.value for one in theirs.losses] == [pytest.approx(sum(losses))]
        assert theirs.grad_norm == pytest.approx(ours.grad_norm)
    assert [call.samples for call in each.eval_calls] == [1] * 6
    (call,) = together.eval_calls
    assert (call.samples, call.outputs[0].shape) == (6, (6, 1))
    means = [call.outputs[0].mean for call in each.eval_calls]
    assert call.outputs[0].mean == pytest.approx(sum(means) / 6)
    assert [one.output.shape[0] for one in together.layer_outputs] == [6] * 4


def trained_together(at_once: bool, *, skeleton_has_values: bool = True) -> None:
    """Two steps by hand of an ensemble's networks, each on samples of its own: by ``vmap``, or by gradients of the sum of their losses."""
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)) for _ in range(5)]
    weights, _ = torch.func.stack_module_state(networks)
    weights = {name: weight.detach() for name, weight in weights.items()}
    skeleton = networks[0] if skeleton_has_values else nn.Sequential(*networks[0]).to("meta")
    x = torch.randn(5, 6, 4)

    def loss(one, samples):
        return torch.func.functional_call(skeleton, one, (samples,)).square().sum()

    for _ in range(2):
        if at_once:
            gradients, _ = torch.func.vmap(torch.func.grad_and_value(loss))(weights, x)
        else:
            leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
            total = torch.func.vmap(loss)(leaves, x).sum()
            taken = torch.autograd.grad(total, list(leaves.values()))
            gradients = dict(zip(leaves, taken, strict=True))
        with torch.no_grad():
            for name, weight in weights.items():
                weight -= 0.1 * gradients[name]
    skeleton.eval()
    torch.func.vmap(lambda one, samples: torch.func.functional_call(skeleton, one, (samples,)))(
        weights, x
    )


@pytest.mark.parametrize("perturb", [None, {"dtype": "bfloat16", "seed": 1}])
def test_networks_that_vmap_trains_at_once_are_trained_by_hand(recorded, perturb):
    one_by_one, together, meta = (
        recorded(
            lambda how=how: trained_together(how[0], skeleton_has_values=how[1]), perturb=perturb
        )
        for how in ((False, True), (True, True), (True, False))
    )
    for run in (together, meta):
        assert run.unobserved == ()
        assert len(run.steps) == 2
        assert run.parameters.keys() == one_by_one.parameters.keys()
        for ours, theirs in zip(one_by_one.steps, run.steps, strict=True):
            assert [one.value for one in theirs.losses] == [pytest.approx(ours.losses[0].value)]
            assert theirs.grad_norm == pytest.approx(ours.grad_norm)
            for name, figures in ours.parameters.items():
                assert theirs.parameters[name].update_norm == pytest.approx(figures.update_norm)


def test_saved_tensors_are_told_to_be_the_parameters_they_are(recorded, tmp_path):
    def script():
        net = train(1)
        state = net.state_dict()
        halved = {name: value / 2 for name, value in state.items()}
        torch.save({"now": state, "halved": halved}, tmp_path / "saved.pt")

    (saved,) = recorded(script).checkpoints
    same = {key: entry.same_as for key, entry in saved.entries.items()}
    assert same["now/head.weight"] == ("Net.head.weight",)
    assert same["now/body.1.running_var"] == ("Net.body.1.running_var",)
    assert same["halved/head.weight"] == ()


class _Lazy(dict):
    """Imports what it names when it is looked into, as transformers' tables of models do."""

    def items(self):
        raise ValueError("not installed")

    __iter__ = keys = values = items


def test_variables_of_classes_that_fail_when_looked_into_are_no_copies(recorded):
    def script():
        table = _Lazy(model=None)
        shadow = _Lazy()
        net = train(1)
        assert table is not shadow
        return net

    run = recorded(script)
    assert run.status is Status.COMPLETED
    assert run.unobserved == ()


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, lambda net: net])
def test_buffers_of_the_trained_network_are_no_copies_of_weights(recorded, wrap):
    def script():
        inner = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
        average, net = nn.Linear(4, 2), wrap(inner)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            inner(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
        return average

    assert set(recorded(script).first_copies()) == {"average/weight", "average/bias"}


def test_what_the_script_pickles_is_described(recorded, tmp_path):
    numpy = pytest.importorskip("numpy")

    def script():
        net = train(epochs=1)
        results = {"accuracy": numpy.float32(0.5), "scores": numpy.arange(3.0), "names": ["a"]}
        with open(tmp_path / "results.pkl", "wb") as file:
            pickle.dump({**results, "weight": net.head.weight}, file)

    (saved,) = recorded(script).checkpoints
    assert saved.path.endswith("results.pkl")
    assert saved.entries["accuracy"].value == "0.5"
    assert (saved.entries["scores"].kind, saved.entries["scores"].shape) == ("tensor", (3,))
    assert saved.entries["names/0"].value == "'a'"
    assert saved.entries["weight"].same_as == ("Net.head.weight",)


@pytest.mark.parametrize("mode", ["observe", "time"])
def test_what_goes_into_a_cuda_graph_is_left_alone(recorded, monkeypatch, mode):
    """Nothing may be read from the device while it is captured, and nothing of it is computed then."""
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])

    def step(net, optimizer):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        torch.autograd.grad(net(torch.ones(2, 4)).sum(), list(net.parameters()))
        optimizer.step()

    def captures():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for captured in (False, False, True, False):
            capturing[0] = captured
            step(net, optimizer)

    run = recorded(captures, mode=mode)
    assert (run.rounds, run.unobserved) == (3, ())
    if mode == "observe":
        assert [len(one.losses) for one in run.steps] == [2, 2, 2]


def test_optimizers_that_step_on_the_same_gradients_draw_as_one(recorded):
    def draws(split, between=False):
        drawn = []

        def script():
            model = nn.Linear(2, 2)
            parts = [[model.weight], [model.bias]] if split else [list(model.parameters())]
            optimizers = [torch.optim.SGD(part, lr=0.1) for part in parts]
            for _ in range(3):
                drawn.append(float(torch.rand(())))
                model(torch.ones(1, 2)).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    if between:
                        drawn.append(float(torch.rand(())))
                        model(torch.ones(1, 2)).sum().backward()

        recorded(script)
        return drawn

    assert draws(split=True) == draws(split=False)
    assert len(set(draws(split=True, between=True))) == 9


def test_a_profiler_that_asks_for_stacks_finds_modules(recorded):
    def script():
        with torch.profiler.profile(with_stack=True, with_modules=True):
            train()

    # It notes every look of the observer at an object that is alive: gigabytes with those of all other tests.
    gc.freeze()
    try:
        assert recorded(script).status is Status.COMPLETED
    finally:
        gc.unfreeze()


def test_an_input_may_be_called_module(recorded):
    class Named(nn.Linear):
        def forward(self, module):
            return super().forward(module)

    def script():
        net = Named(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(module=torch.ones(3, 4)).sum().backward()
        optimizer.step()

    run = recorded(script)
    assert run.status is Status.COMPLETED
    assert run.rounds == 1


def test_evaluations_tell_which_trained_module_is_called(recorded):
    def script():
        nets = [nn.Linear(2, 1) for _ in range(2)]
        average = copy.deepcopy(nets[0])
        optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.1)
        sum(net(torch.ones(1, 2)).sum() for net in nets).backward()
        optimizer.step()
        with torch.no_grad():
            for net in (average, nets[1], torch.nn.DataParallel(nets[0])):
                net.eval()(torch.ones(4, 2))

    calls = recorded(script).eval_calls
    assert [(call.module, call.trained_as) for call in calls] == [
        ("Linear", ""),
        ("Linear", "Linear#2"),
        ("Linear", "Linear"),
    ]


@pytest.mark.parametrize("trained", [False, True], ids=["of inputs", "of weights"])
def test_gradients_of_inputs_are_of_no_loss(recorded, trained):
    """An adversarial example: what it is found by is shown in what it does."""

    def script():
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(3, 2, requires_grad=True)
        (slope,) = torch.autograd.grad(100 * net(x).sum(), net.weight if trained else x)
        worst = x.detach() + slope.sign()
        net(worst).mean().backward()
        optimizer.step()

    (step,) = recorded(script).steps
    assert [loss.taken for loss in step.losses] == [True] * trained + [False]


def test_a_frozen_part_that_was_trained_before_is_told_once_in_each_call(recorded):
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Linear(4, 3)

        def forward(self, x):
            return self.layers(x)

    class Head(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body, self.out = body, nn.Linear(3, 2)

        def forward(self, x):
            return self.out(self.body(x))

    def script():
        body = Body()
        for net in (body, Head(body.requires_grad_(True))):
            trained = [p for p in net.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trained, lr=0.1)
            net.train()
            if net is not body:
                body.eval().requires_grad_(False)
            net(torch.ones(5, 4)).sum().backward()
            optimizer.step()

    inside = [c for c in recorded(script).further_calls if c.inside]
    assert [(c.module, c.samples) for c in inside] == [("Body", 5)]


def test_parts_of_a_network_that_a_method_calls_are_told_as_such(recorded):
    def script():
        net = train(1).eval()
        lstm = nn.LSTM(2, 3, batch_first=True).eval()
        with torch.no_grad():
            next(net.children())(torch.ones(7, 4))
            for sort in (True, False):
                x = pack_padded_sequence(torch.ones(3, 4, 2), [4, 2, 2], True, enforce_sorted=sort)
                lstm(x)

    part, *packed = recorded(script).eval_calls
    assert part.part
    assert not any(call.part for call in packed)
    assert [(c.samples, c.outputs[0].shape) for c in packed] == [(3, (3, 4, 3))] * 2
    assert packed[0].outputs == packed[1].outputs


@pytest.mark.parametrize("until_next", [False, True])
def test_a_run_may_go_on_until_gradients_are_taken_again(recorded, until_next):
    behind = []

    def script():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            behind.append(step)

    run = recorded(script, steps=2, until_next=until_next)
    assert (run.rounds, len(run.steps)) == (2, 2)
    assert behind == [0, 1][: 1 + until_next]
