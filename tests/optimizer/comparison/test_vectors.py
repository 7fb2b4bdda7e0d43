import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.deviation import deviations
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.vectors import Quantity, judge


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            [0.0, 0.0],
            [0.3, 0.4],
            "the bias of optimizer 0: length 0.5, where the original has zeros alone",
        ),
        ([0.0, 0.1], [0.0, 0.4], "the bias of optimizer 0: 4 times as long; relative distance 3"),
    ],
)
def test_how_far_off_a_vector_is_in_words(
    before: list[float], after: list[float], told: str
) -> None:
    original, other = ({"bias": np.array(values, np.float32)} for values in (before, after))
    quantity = Quantity(Kind.CHECKPOINT_VALUE, "the bias", group=lambda _: "optimizer 0")
    findings, _ = judge(quantity, deviations(original, other), [], Precision.FLOAT32)
    assert len(findings) == 1
    assert findings[0].message.startswith(told)
