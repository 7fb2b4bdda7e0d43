"""Names stay the same when a model is wrapped."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchopt_cli.optimizer.execution.probe.names import (  # noqa: E402
    alive,
    class_name,
    entries_of,
    label_roots,
    name_parameters,
    root_modules,
)


class Encoder(nn.Module):
    def __init__(self, wrap=lambda module: module) -> None:
        super().__init__()
        self.features = wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        self.head = nn.Linear(2, 1)


def names(root: nn.Module, *more: torch.Tensor) -> list[str]:
    positions = {f"optimizer0.group0.{i}": p for i, p in enumerate([*root.parameters(), *more])}
    return list(name_parameters(positions, root_modules()))


EXPECTED = [
    "Encoder.features.0.weight",
    "Encoder.features.0.bias",
    "Encoder.features.1.weight",
    "Encoder.features.1.bias",
    "Encoder.head.weight",
    "Encoder.head.bias",
]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: net,
        nn.DataParallel,
        torch.compile,
        lambda net: torch.compile(nn.DataParallel(net)),
        lambda net: Encoder(nn.DataParallel),
    ],
)
def test_wrappers_leave_no_trace(wrap):
    assert names(wrap(Encoder())) == EXPECTED


def test_buffers_have_names_too():
    net = torch.compile(Encoder(nn.DataParallel))
    assert next(name for name, _ in entries_of(net, "_buffers")) == "features.1.running_mean"


def test_two_roots_of_one_class_are_told_apart_in_the_optimizers_order():
    first, second = Encoder(), Encoder()
    labelled = label_roots([*second.parameters(), *first.parameters()], root_modules())
    assert labelled == [(second, "Encoder"), (first, "Encoder#2")]


def test_the_largest_holder_names_a_shared_parameter():
    class Whole(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part
            self.extra = nn.Linear(1, 1)

    part = Encoder()
    smaller = nn.ModuleList([part.head])
    whole = Whole(part)
    assert names(whole)[:2] == ["Whole.part.features.0.weight", "Whole.part.features.0.bias"]
    assert "Whole.part.head.weight" in names(smaller)


def test_a_parameter_of_no_module_keeps_its_position():
    free = torch.zeros(2, requires_grad=True)
    assert names(nn.Linear(1, 1), free) == ["Linear.weight", "Linear.bias", "optimizer0.group0.2"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_or_traced_module_has_the_name_of_its_class():
    net = nn.Sequential(nn.Linear(2, 2))
    for made in (torch.jit.script(net), torch.jit.trace(net, torch.ones(1, 2))):
        assert class_name(made) == "Sequential"


def test_live_modules_are_found_among_objects_of_any_type():
    class Unhashable(type):
        __eq__ = object.__eq__
        __hash__ = None  # type: ignore[assignment]

    class Other(metaclass=Unhashable):
        pass

    class Proxy:
        @property
        def __class__(self):
            raise AssertionError("its code runs")

    others = [Other(), Proxy()]
    net = Encoder()
    assert {id(net), id(net.head)} <= {id(module) for module in alive(nn.Module)}
    assert not {id(other) for other in others} & {id(module) for module in alive(nn.Module)}
