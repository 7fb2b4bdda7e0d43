"""Weights off by a rounding error."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


def train(load=None, forward=True):
    def script():
        torch.manual_seed(0)
        net = nn.Linear(50, 40)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if load is not None:
            net.load_state_dict(load)
        for _ in range(2):
            x = torch.ones(2, 50)
            output = net(x) if forward else nn.functional.linear(x, net.weight, net.bias)
            output.square().mean().backward()
            optimizer.step()

    return script


@pytest.mark.parametrize(
    ("dtype", "eps"), [("bfloat16", 2**-7), ("float16", 2**-10), ("float32", 2**-23)]
)
def test_initial_parameters_are_off_by_one_epsilon_either_way(recorded, dtype, eps):
    plain = recorded(train())
    perturbed = recorded(train(), perturb={"dtype": dtype, "seed": 1})
    before = plain.tensors(plain.snapshot(0))["Linear.weight"].astype("float64")
    after = perturbed.tensors(perturbed.snapshot(0))["Linear.weight"].astype("float64")
    ratio = (after / before - 1) / eps
    # Rounding the product to float32 adds up to half an epsilon of that.
    assert abs(abs(ratio) - 1).max() < 1.1 * 2**-24 / eps
    assert 0.4 < (ratio > 0).mean() < 0.6
    assert perturbed.snapshots[-1].hashes != plain.snapshots[-1].hashes


def test_the_seed_chooses_the_signs(recorded):
    runs = [recorded(train(), perturb={"dtype": "bfloat16", "seed": seed}) for seed in (1, 1, 2)]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses != runs[2].losses


def test_weights_loaded_after_the_optimizer_was_built_are_perturbed(recorded):
    state = {"weight": torch.ones(40, 50), "bias": torch.ones(40)}
    run = recorded(train(state), perturb={"dtype": "bfloat16", "seed": 1})
    values = set(run.tensors(run.snapshot(0))["Linear.weight"].flatten().tolist())
    assert values == {1 - 2**-7, 1 + 2**-7}


def test_without_a_module_call_it_happens_at_the_first_step(recorded):
    run = recorded(train(forward=False), perturb={"dtype": "bfloat16", "seed": 1})
    plain = recorded(train(forward=False))
    assert run.losses[0] == plain.losses[0]
    assert run.losses[1] != plain.losses[1]


def test_gradients_taken_before_that_are_perturbed_too(recorded):
    def script():
        torch.manual_seed(0)
        place, turn = nn.Parameter(torch.randn(40)), nn.Parameter(torch.zeros(40))
        noise = torch.where(torch.arange(40) < 20, 1e-12, 0.0)
        optimizer = torch.optim.Adam([place, turn], lr=0.01, eps=1e-15)
        (place.square().sum() + (noise * turn).sum()).backward()
        optimizer.step()

    plain = recorded(script)
    runs = [recorded(script, perturb={"dtype": "float32", "seed": seed}) for seed in (1, 1, 2)]
    place, turn = plain.gradients()
    ratio = runs[0].gradients()[place].astype("float64") / plain.gradients()[place]
    assert abs(abs(ratio - 1) / 2**-23 - 1).max() < 1.1
    assert ratio.std() > 0
    signs = [np.sign(run.gradients()[turn]) for run in (plain, *runs)]
    assert set(signs[0]) == {0.0, 1.0}
    assert set(signs[1]) == {-1.0, 1.0}
    assert (signs[1] == signs[2]).all()
    assert (signs[1] != signs[3]).any()


def test_it_happens_after_as_many_rounds_as_it_is_told(recorded):
    def script():
        torch.manual_seed(0)
        net = nn.Linear(50, 40)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            net(torch.ones(2, 50)).square().mean().backward()
            optimizer.step()

    plain = recorded(script)
    for after in (1, 3):
        run = recorded(script, perturb={"dtype": "bfloat16", "seed": 1, "after": after})
        same = [a == b for a, b in zip(run.losses, plain.losses, strict=True)]
        assert same == [True] * after + [False] * (5 - after)
    by_hand = recorded(train(forward=False), perturb={"dtype": "bfloat16", "seed": 1, "after": 1})
    assert by_hand.losses == recorded(train(forward=False)).losses


def test_a_graph_that_is_alive_by_then_is_left_usable(recorded):
    def script():
        torch.manual_seed(0)
        one, other = (nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)) for _ in range(2))
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other)]
        for _ in range(4):
            made = one(torch.ones(2, 9))
            other(made.detach()).square().mean().backward()
            optimizers[1].step()
            other(made).mean().backward()
            optimizers[0].step()

    run = recorded(script, perturb={"dtype": "bfloat16", "seed": 1, "after": 2})
    assert len(run.steps) == 8
    assert run.losses != recorded(script).losses


def test_gradients_that_go_one_way_keep_their_size_and_the_seed_chooses_their_signs(recorded):
    def walk(**chosen):
        """Where the bias of a convolution before BatchNorm is after 0, 1, 2, 4, 8 and 16 steps of Adam; the losses."""

        def script():
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(48, 1)
            )
            optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
            for _ in range(16):
                optimizer.zero_grad()
                net(torch.randn(32, 2, 8)).square().mean().backward()
                optimizer.step()

        run = recorded(script, perturb={"dtype": "float32", "seed": 1, **chosen})
        places = [run.tensors(snapshot)["Sequential.0.bias"] for snapshot in run.snapshots]
        return np.diff(places, axis=0), run.losses

    def goes_straight(steps):
        return ((steps >= 0).all(axis=0) | (steps <= 0).all(axis=0)).all()

    plain, losses = walk()
    one_way, same = walk(one_way=(("Sequential.0.bias", 0.0),))
    other, _ = walk(one_way=(("Sequential.0.bias", 0.0),), seed=2)
    late, _ = walk(one_way=(("Sequential.0.bias", 0.0),), after=8)
    large, _ = walk(one_way=(("Sequential.0.bias", 1.0),))
    assert goes_straight(one_way)
    assert goes_straight(other)
    assert goes_straight(large)
    # Adam's full steps, where the rounding of this kernel is hardly more than its epsilon.
    assert np.abs(large.sum(0)) == pytest.approx(16 * 0.01, rel=1e-3)
    assert (np.abs(one_way.sum(0)) < 0.9 * 16 * 0.01).any()
    assert not goes_straight(plain)
    assert not goes_straight(late)
    assert (one_way[-1] > 0).any()
    assert (one_way[-1] < 0).any()
    assert ((one_way[-1] > 0) != (other[-1] > 0)).any()
    assert same == pytest.approx(losses, rel=1e-3)


def evaluate(epochs=2, fails=False):
    """Trains with dropout, and evaluates after each epoch."""

    def script():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(50, 40), nn.Dropout(0.5), nn.Linear(40, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(epochs):
            net.train()
            net(torch.ones(2, 50)).square().mean().backward()
            optimizer.step()
            net.eval()
            if fails:
                with pytest.raises(RuntimeError):
                    net(torch.ones(2, 51))
            with torch.no_grad():
                net(torch.ones(2, 50))

    return script


def test_evaluations_alone_are_perturbed(recorded):
    plain = recorded(evaluate())
    perturb = {"dtype": "float32", "seed": 1, "evaluations": True}
    perturbed = recorded(evaluate(), perturb=perturb)
    assert perturbed.losses == plain.losses
    assert [s.hashes for s in perturbed.snapshots] == [s.hashes for s in plain.snapshots]
    for ours, theirs in zip(plain.eval_calls, perturbed.eval_calls, strict=True):
        before, after = ours.outputs[0].norm, theirs.outputs[0].norm
        assert 0 < abs(after - before) < 1e-5 * before


def test_evaluations_are_perturbed_after_so_many_calls(recorded):
    plain = recorded(evaluate(epochs=3))
    perturb = {"dtype": "float32", "seed": 1, "evaluations": True, "after": 2}
    perturbed = recorded(evaluate(epochs=3), perturb=perturb)
    pairs = zip(plain.eval_calls, perturbed.eval_calls, strict=True)
    assert [a.outputs == b.outputs for a, b in pairs] == [True, True, False]


def test_parameters_are_put_back_when_an_evaluation_fails(recorded):
    perturb = {"dtype": "float32", "seed": 1, "evaluations": True}
    failing = recorded(evaluate(fails=True), perturb=perturb)
    plain = recorded(evaluate())
    assert failing.losses == plain.losses
    assert failing.snapshots[-1].hashes == plain.snapshots[-1].hashes


def with_a_frozen_part(seen, *, changes_itself=False):
    """Trains a head on what a frozen layer gives; ``seen`` gets the layer's weights while it is called and afterwards."""

    class Frozen(nn.Linear):
        def forward(self, x):
            seen.append(self.weight.detach().clone())
            if changes_itself:
                self.weight.data.add_(1)
            return super().forward(x)

    def script():
        torch.manual_seed(0)
        frozen, head = Frozen(20, 10), nn.Linear(10, 1)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for _ in range(3):
            with torch.no_grad():
                features = frozen(torch.ones(4, 20))
            seen.append(frozen.weight.detach().clone())
            head(features).square().mean().backward()
            optimizer.step()

    return script


def test_what_no_optimizer_has_is_off_while_it_is_called(recorded):
    plain, seen = [], []
    recorded(with_a_frozen_part(plain))
    recorded(with_a_frozen_part(seen), perturb={"dtype": "bfloat16", "seed": 1, "after": 1})
    before = plain[0]
    assert all(torch.equal(weights, before) for weights in plain)
    same = [torch.equal(weights, before) for weights in seen]
    assert same == [True, True, False, True, False, True]
    assert torch.equal(seen[2], seen[4])  # as it would be rounded each time
    ratio = (seen[2].double() / before.double() - 1) * 2**7
    assert (ratio.abs() - 1).abs().max() < 1e-4
    assert 0.3 < (ratio > 0).double().mean() < 0.7


def evaluated_before_training(seen):
    """Notes what a layer weighs in the calls before, in and behind the first to train, and what is there when that begins."""

    class Noting(nn.Linear):
        def forward(self, x):
            seen.append(self.weight.detach().clone())
            return super().forward(x)

    def script():
        torch.manual_seed(0)
        net = Noting(50, 40)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 50))
        seen.append(net.weight.detach().clone())
        net.train()
        net(torch.ones(2, 50)).square().mean().backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 50))

    return script


def test_what_is_evaluated_before_training_is_rounded_in_that_call(recorded):
    """The labels that a network is trained for may be made of it."""
    plain, coarse, fine = [], [], []
    recorded(evaluated_before_training(plain))
    recorded(evaluated_before_training(coarse), perturb={"dtype": "bfloat16", "seed": 1})
    recorded(evaluated_before_training(fine), perturb={"dtype": "float32", "seed": 1})
    same = [[torch.equal(weights, plain[0]) for weights in seen] for seen in (plain, coarse, fine)]
    assert same == [[True] * 4, [False, True, False, False], [True, True, False, False]]
    assert torch.equal(coarse[2], coarse[3])


def test_what_a_call_makes_of_its_own_weights_stays(recorded):
    seen = []
    script = with_a_frozen_part(seen, changes_itself=True)
    recorded(script, perturb={"dtype": "bfloat16", "seed": 1})
    assert (seen[1] - seen[0]).sub(1).abs().max() < 1e-6
    assert (seen[3] - seen[1]).mean() > 0.9


def restored(seen, *, to):
    """Trains a step, puts the weights back to what they were at the start or behind that step, and notes what it goes on from."""

    def script():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 3))
        kept = {name: value.clone() for name, value in net.state_dict().items()}
        for number in range(3):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            output = net(torch.ones(2, 50))
            seen.append({name: value.clone() for name, value in net.state_dict().items()})
            output.square().mean().backward()
            optimizer.step()
            if number == 1 and to == "start":
                net.load_state_dict(kept)
        del optimizer

    return script


@pytest.mark.parametrize("after", [0, 1])
def test_what_is_put_back_to_the_start_is_perturbed_again_alike(recorded, after):
    """The range test for a learning rate leaves the model as it was; so do folds that start alike."""
    seen: list[dict[str, torch.Tensor]] = []
    how = {"dtype": "float32", "seed": 1}
    recorded(restored(seen, to="start"), perturb=how | {"after": after})
    first: list[dict[str, torch.Tensor]] = []
    recorded(restored(first, to="nothing"), perturb=how)
    plain: list[dict[str, torch.Tensor]] = []
    recorded(restored(plain, to="start"))
    assert torch.equal(seen[0]["0.weight"], plain[0]["0.weight"]) == bool(after)
    assert all(torch.equal(first[0][name], seen[2][name]) for name in seen[2])
    assert not torch.equal(seen[2]["0.weight"], plain[2]["0.weight"])


def test_what_goes_on_is_not_perturbed_again(recorded):
    seen: list[dict[str, torch.Tensor]] = []
    run = recorded(restored(seen, to="nothing"), perturb={"dtype": "float32", "seed": 1})
    (after,) = (run.tensors(one) for one in run.snapshots if one.round == 1)
    assert np.array_equal(after["Sequential.0.weight"], seen[1]["0.weight"].numpy())
