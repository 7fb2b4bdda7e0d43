"""Every transform at once on scripts made by a grammar: what has to hold for any script whatever.

``make test`` looks at a hundred scripts, ``make test-nightly`` at thousands.
"""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer.options import AmpDtype, Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult, rewrite_script
from torchopt_cli.optimizer.pipeline.undefined_names import undefined_names
from torchopt_cli.optimizer.rewriting.losslessness import check_lossless
from torchopt_cli.optimizer.source import SourceFile, Sources
from torchopt_cli.transforms.registry import all_transforms

from .grammar import GeneratedScript, training_scripts

NIGHTLY = 5000
DAILY = 100
EXAMPLES = NIGHTLY if os.environ.get("TORCHOPT_NIGHTLY") else DAILY
OPT_IN = sorted(t.name for t in all_transforms() if t.opt_in)

all_options = st.builds(
    Options,
    tier=st.sampled_from(Tier),
    amp=st.sampled_from(AmpDtype),
    torch_version=st.sampled_from([(2, 2), (2, 4), (2, 15)]),
    platform=st.sampled_from(["linux", "darwin"]),
    python_version=st.just((3, 12)),
)


def rewritten(text: str, options: Options) -> RewriteResult:
    path = Path("/generated/train.py")
    sources = Sources(_disk={str(path): SourceFile(path, text)})
    return rewrite_script(path, sources, all_transforms(), options)


def comments(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(script=training_scripts(), options=all_options, opt_in=st.sampled_from([None, *OPT_IN]))
def test_what_holds_for_every_script(
    script: GeneratedScript, options: Options, opt_in: str | None
) -> None:
    if opt_in is not None:
        options = replace(options, select=frozenset([opt_in]))
    result = rewritten(script.text, options)
    (file,) = result.files
    assert not file.errors
    ast.parse(file.text)
    check_lossless(script.text, file.text)
    assert (undefined_names(file.text) or frozenset()) <= (
        undefined_names(script.text) or frozenset()
    )
    assert not comments(script.text) - comments(file.text), "a comment was lost"
    ends = {line[len(line.rstrip("\r\n")) :] for line in file.text.splitlines(keepends=True)[:-1]}
    assert len(ends) == 1, "line ends of two kinds"
    assert all(skip.message.strip() and skip.line >= 1 for skip in file.skips)
    assert all(change.message.strip() and change.reason.strip() for change in file.changes)
    again = rewritten(file.text, options)
    assert [change for changed in again.files for change in changed.changes] == []
    assert all(change.tier <= options.tier for change in file.changes)
