from __future__ import annotations

from torchopt_cli.optimizer.analysis.wording import listed


def test_names_read_as_a_sentence_each_once() -> None:
    assert listed(["`a`"]) == "`a`"
    assert listed(["`a`", "`b`"]) == "`a` and `b`"
    assert listed(["`a`", "`b`", "`a`", "`c`"]) == "`a`, `b` and `c`"
