import random
import threading
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from torchopt_cli.optimizer.execution.probe.evaluation_draws import EvaluationDraws  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.randomness import seed_everything  # noqa: E402


class Importer:
    """What is imported already."""

    def after_import(self, name: str, then: Callable[[object], None]) -> None:
        then(np.random)


class Protection:
    importer = Importer()


@pytest.fixture
def draws():
    patches = Patches()
    one = EvaluationDraws(0)
    one.install(patches, Protection())
    seed_everything(0)
    one.stepped(1)
    yield one
    patches.undo()


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.rand())


def evaluated(draws: EvaluationDraws, often: int = 1) -> list[tuple[float, float, float]]:
    draws.begin()
    values = [drawn() for _ in range(often)]
    draws.end()
    return values


def test_what_is_drawn_afterwards_is_what_would_be_drawn_anyway(draws: EvaluationDraws) -> None:
    following = drawn()
    for often in (1, 7):
        seed_everything(0)
        draws.stepped(1)
        evaluated(draws, often)
        assert drawn() == following


def test_the_stream_goes_on_from_call_to_call_and_is_another_after_a_step(
    draws: EvaluationDraws,
) -> None:
    calls = evaluated(draws, 2) + evaluated(draws, 2)
    assert len({number for call in calls for number in call}) == 12
    draws.stepped(1)
    assert evaluated(draws, 4) == calls
    draws.stepped(2)
    assert evaluated(draws, 4) != calls


def test_a_call_that_failed_leaves_nothing_behind(draws: EvaluationDraws) -> None:
    following = drawn()
    seed_everything(0)
    draws.stepped(1)
    draws.begin()
    drawn()
    evaluated(draws)
    assert drawn() == following


@pytest.mark.parametrize(
    "seed",
    [
        lambda: torch.manual_seed(5),
        lambda: torch.random.manual_seed(5),
        lambda: np.random.seed(5),
        lambda: random.Random.seed(random._inst, 5),  # pyright: ignore[reportAttributeAccessIssue]
    ],
    ids=["torch", "torch.random", "numpy", "python"],
)
def test_what_the_script_seeds_is_drawn_as_it_says(
    draws: EvaluationDraws, seed: Callable[[], object]
) -> None:
    seed()
    first = evaluated(draws)
    assert drawn() != first[0]
    seed_everything(0)
    draws.stepped(1)
    seed()
    assert evaluated(draws) == first
    state = torch.get_rng_state()
    evaluated(draws)
    assert not torch.equal(torch.get_rng_state(), state)


def test_what_another_thread_evaluates_meanwhile_changes_nothing(draws: EvaluationDraws) -> None:
    def after(meanwhile: Callable[[], object]) -> tuple[float, float, float]:
        seed_everything(0)
        draws.stepped(1)
        draws.begin()
        drawn()
        meanwhile()
        found = drawn()
        draws.end()
        return found

    def elsewhere() -> None:
        for call in (draws.begin, draws.end):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()

    assert after(elsewhere) == after(lambda: None)


def test_a_generator_of_its_own_is_none_of_them(draws: EvaluationDraws) -> None:
    random.Random(3).seed(4)
    state = torch.get_rng_state()
    evaluated(draws)
    assert torch.equal(torch.get_rng_state(), state)


def test_evaluations_of_other_batches_leave_training_as_it_is(recorded) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x + torch.randn_like(x))

    def script(*cuts: int) -> Callable[[], None]:
        def run() -> None:
            torch.manual_seed(0)
            net = Noisy()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(2):
                net.train()
                net(torch.ones(3, 4)).sum().backward()
                optimizer.step()
                net.eval()
                with torch.no_grad():
                    for count in cuts:
                        net(torch.ones(count, 4))

        return run

    runs = [recorded(script(*cuts)) for cuts in ((8,), (4, 4), ())]
    assert len({run.losses for run in runs}) == 1
    assert len(set(runs[0].losses)) == 2


def test_it_is_known_whether_anything_was_drawn_since_the_last_step(draws: EvaluationDraws) -> None:
    draws.begin()
    draws.end()
    assert not draws.drew
    evaluated(draws)
    assert draws.drew
    draws.stepped(2)
    assert not draws.drew
