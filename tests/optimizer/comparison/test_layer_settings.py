from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.layer_settings import unseen_settings
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.options import Tier

Run = Callable[..., Observations]


def having(run: Observations, layer: str) -> Observations:
    return replace(run, layer_settings={"Net.layer": layer})


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ("LayerNorm((8,), eps=1e-05)", "LayerNorm((8,), eps=1e-06)", "eps=1e-06, not 1e-05"),
        ("GELU(approximate='none')", "GELU(approximate='tanh')", "approximate='tanh'"),
        (
            "Hardtanh(min_val=-1.0, max_val=6.0)",
            "Hardtanh(min_val=-1.0, max_val=5.0)",
            "max_val=5.0",
        ),
        ("Embedding(9, 4)", "Embedding(9, 4, max_norm=1.0)", "max_norm=1.0, not its default"),
        ("Embedding(9, 4, max_norm=1.0)", "Embedding(9, 4)", "max_norm=its default, not 1.0"),
    ],
)
def test_what_numbers_do_not_show(run: Run, before: str, after: str, word: str) -> None:
    message = unseen_settings(having(run(), before), having(run(), after))
    assert message is not None
    assert word in message
    assert "Net.layer" in message
    one = run()
    verdict = judge_in_stages(
        having(one, before),
        having(one, after),
        lambda *_, **__: having(one, before),
        tier=Tier.EXACT,
        precision=None,
        perturbed_runs=3,
    ).verdict
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, message)


def test_a_loss_that_ignores_what_does_not_come(run: Run) -> None:
    kept, lost = (
        replace(run(), layer_settings={"CTCLoss #1": f"CTCLoss(blank=0, zero_infinity={value})"})
        for value in (True, False)
    )
    message = unseen_settings(kept, lost)
    assert message is not None
    assert message.startswith("CTCLoss has zero_infinity=False, not True: ")
    assert unseen_settings(kept, run()) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ReLU()", "ReLU(inplace=True)"),
        ("LSTM(4, 3)", "LSTM(4, 3, batch_first=True)"),
        ("Dropout(p=0.5, inplace=False)", "Dropout(p=0.0, inplace=False)"),
        ("LayerNorm((8,), eps=1e-05)", "RMSNorm((8,), eps=1e-06)"),
    ],
)
def test_what_changes_nothing_or_shows_in_numbers(run: Run, before: str, after: str) -> None:
    assert unseen_settings(having(run(), before), having(run(), after)) is None
    assert unseen_settings(having(run(), before), run()) is None


SMALL, LARGE = "eps=1e-06", "eps=1e-05"


def calling(
    run: Observations, first: list[str], every: list[str] | None = None, name: str = "layer_norm"
) -> Observations:
    """``run``, which calls a function with these settings before its first step, and with those in all."""
    told = {name: (tuple(first), tuple(dict.fromkeys(first if every is None else every)))}
    return replace(run, function_settings=told)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (([LARGE, LARGE],), ([LARGE, SMALL],)),
        (([LARGE],), ([SMALL],)),
        (([LARGE, LARGE],), ([SMALL],)),
        (([], [LARGE]), ([], [SMALL])),
    ],
    ids=["one of two", "the only one", "called another number of times", "in evaluations alone"],
)
def test_a_function_that_is_called_otherwise(
    run: Run, before: tuple[list[str], ...], after: tuple[list[str], ...]
) -> None:
    message = unseen_settings(calling(run(), *before), calling(run(), *after))
    assert message is not None
    assert message.startswith("layer_norm is called with eps=1e-06, not eps=1e-05: ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (([LARGE, SMALL],), ([SMALL, LARGE],)),
        (([LARGE, SMALL],), ([LARGE],)),
        (([LARGE],), ([LARGE, SMALL],)),
        (([LARGE],), ([],)),
    ],
    ids=["in another order", "one written out", "one that was written out", "compiled"],
)
def test_functions_that_tell_nothing(
    run: Run, before: tuple[list[str], ...], after: tuple[list[str], ...]
) -> None:
    assert unseen_settings(calling(run(), *before), calling(run(), *after)) is None
    other = calling(run(), [SMALL], name="group_norm")
    assert unseen_settings(calling(run(), *before), other) is None
