from __future__ import annotations

import ast
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer.rewriting.apply import apply_edits
from torchopt_cli.optimizer.rewriting.edits import (
    AddImport,
    Decorate,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveArgument,
    RemoveStatement,
    ReplaceExpression,
    SetArgument,
    SetDictEntry,
    Span,
    Wrap,
)
from torchopt_cli.optimizer.rewriting.lines import split_lines, tokens
from torchopt_cli.optimizer.rewriting.rewrites import EditError
from torchopt_cli.optimizer.rewriting.source_tree import SourceTree
from torchopt_cli.optimizer.rewriting.style import Style
from torchopt_cli.optimizer.source import SourceFile

FLAT = '''\
#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""A flat script.

  Indented text in it.
"""
from __future__ import print_function
import argparse, os
import torch.nn as nn  # networks

parser = argparse.ArgumentParser()
parser.add_argument("--größe", type=int, default=64, help="size of the batches")  # batch
opt = parser.parse_args(); print(opt)

cuda = True if torch.cuda.is_available() else False
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor

# Configure data loader
os.makedirs("../../data/mnist", exist_ok=True)
dataloader = torch.utils.data.DataLoader(
    datasets.MNIST(
        "../../data/mnist",
        train=True,  # the training part
        transform=transforms.Compose(
            [transforms.Resize(28), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
        ),
    ),
    batch_size=opt.batch_size,
    shuffle=True,
    # num_workers=4,
)

if cuda: generator.cuda(); discriminator.cuda()
elif opt.mps: generator.to("mps")  # Apple
else:
    pass

for epoch in range(opt.n_epochs):
    for i, (imgs, _) in enumerate(dataloader):
        valid = Variable(Tensor(imgs.size(0), 1).fill_(1.0), requires_grad=False)

        # -- train
        loss = criterion(discriminator(imgs), valid) + \\
            0.5 * penalty(
                imgs)
        loss.backward(); optimizer.step()
        print(
            "[Epoch %d/%d] [loss: %f]"
            % (epoch, opt.n_epochs, loss.item())
        )
        # end of the batch
    text = f"""epoch {epoch!r:>{4}}
  not indented: {loss.item():.3f}
"""

# done
'''

CLASSES = '''\
import torch
from torch import (
    nn,
    optim,  # optimizers
)


class Net(nn.Module):
\t"""Tabs."""

\tdef __init__(self, *args, size = 3, **kwargs):
\t\tsuper().__init__()
\t\tself.layers = nn.Sequential(nn.Linear(size, size), nn.ReLU(inplace = True))

\t@torch.jit.export
\t# about forward
\tdef forward(self, x): return self.layers(x)

\x0c
\t@staticmethod
\tasync def fetch(urls):
\t\tasync with session(urls) as s, other() as o:
\t\t\tawait s.get([u async for u in urls], key=lambda a, b: (a, b))
\t\ttry:
\t\t\treturn {**defaults, 'k': 1}
\t\texcept (OSError, ValueError) as e: raise RuntimeError('no') from e
\t\tfinally:
\t\t\t# nothing

\t\t\tpass  \t
\t\t\t# ends finally


def train(model, loader, *, lr=1e-3):
\twhile True:
\t\tmatch next(loader):
\t\t\tcase {"x": x, **rest} if len(rest): step(x)
\t\t\tcase _:
\t\t\t\tbreak
\telse: done = True; print(done)
\tglobal counter
\tcounter = [n := 1, n ** 2][0] if model else (yield)


if __name__ == "__main__": train(Net(), iter([]))'''

SAMPLES = (
    FLAT,
    FLAT.replace("\n", "\r\n"),
    FLAT.replace("    ", "  "),
    FLAT.replace("\n", "\r\n", 12),
    CLASSES,
    CLASSES.replace("\n", "\r"),
)
NEW = "_new_"


def new_edits(source: SourceTree) -> Iterator[st.SearchStrategy[Edit]]:
    """Strategies for edits that only add something named NEW."""

    def spans(*kinds: type[ast.AST]) -> list[Span]:
        hidden = source.inside_format_strings
        nodes = (n for n in ast.walk(source.tree) if isinstance(n, kinds) and n not in hidden)
        return [source.span(*source.range(node)) for node in nodes]  # type: ignore[arg-type]

    # Nothing may stand above a docstring, `from __future__` or a `global`.
    later = [
        source.span(*source.range(statement))
        for block in source.blocks.values()
        for statement in block
        if not isinstance(statement, ast.ImportFrom | ast.Global)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    ranges = [
        (source.span(*source.range(block[i])), source.span(*source.range(block[j])))
        for block in source.blocks.values()
        for i in range(len(block))
        for j in range(i, len(block))
        if source.span(*source.range(block[i])) in later
        and not any(isinstance(s, ast.ImportFrom | ast.Global) for s in block[i : j + 1])
    ]
    calls, functions = spans(ast.Call), spans(ast.FunctionDef, ast.AsyncFunctionDef)
    value = st.sampled_from([NEW, f"{NEW} or {NEW}", f"[{NEW}, {NEW}]"])
    yield st.builds(SetArgument, st.sampled_from(calls), st.just(NEW), value)
    yield st.builds(InsertBefore, st.sampled_from(later), st.just(f"{NEW}()"))
    yield st.builds(
        InsertAfter, st.sampled_from(later), st.just(f"{NEW}()\nif {NEW}:\n    {NEW}()")
    )
    yield st.sampled_from(ranges).map(lambda pair: Wrap(*pair, header=f"with {NEW}:"))
    if functions:
        yield st.builds(Decorate, st.sampled_from(functions), st.just(f"{NEW}.{NEW}"))
    if dicts := spans(ast.Dict):
        yield st.builds(SetDictEntry, st.sampled_from(dicts), st.just(NEW), value)


@cache
def parsed(sample: str) -> tuple[SourceTree, st.SearchStrategy[Edit]]:
    source = SourceTree.parse(sample)
    return source, st.one_of(*new_edits(source))


class Undo(ast.NodeTransformer):
    """Takes away again what is named NEW."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if ast.unparse(node) == f"{NEW}()" else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == NEW else self.generic_visit(node)

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return node.body if ast.unparse(node.items[0]) == NEW else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != NEW]
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        pairs = [
            (key, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if not (isinstance(key, ast.Constant) and key.value == NEW)
        ]
        node.keys, node.values = [key for key, _ in pairs], [value for _, value in pairs]
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) != f"{NEW}.{NEW}"]
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) != f"{NEW}.{NEW}"]
        return self.generic_visit(node)


def comments(text: str) -> Counter[str]:
    return Counter(t.string.strip() for t in tokens(text) if t.type == tokenize.COMMENT)


def untouched_lines(source: SourceTree, edits: list[Edit]) -> list[str]:
    """The lines of all logical lines that no edit names."""
    touched: set[int] = set()
    for edit in edits:
        for span in vars(edit).values():
            if isinstance(span, Span):
                first = source.logical_lines[span.line][0]
                last = source.logical_lines[span.end_line][1]
                # An insertion or decorator leaves the lines of a block alone, but may have to open its header.
                whole = isinstance(edit, Wrap | SetArgument | SetDictEntry)
                end = last if whole or last == first else source.logical_lines[span.line][1]
                touched.update(range(first, end + 1))
                touched.update(range(source.logical_lines[span.end_line][0], last + 1))
        if isinstance(edit, Wrap):
            touched.update(range(edit.first.line, edit.last.end_line + 1))
    return [line for number, line in enumerate(source.lines, 1) if number not in touched]


def is_subsequence(some: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(line in rest for line in some)


def has_opened_elif(source: SourceTree, edits: list[Edit]) -> bool:
    starts = [s for e in edits for s in vars(e).values() if isinstance(s, Span)]
    return any(source.lines[s.line - 1][s.column :].startswith("elif") for s in starts)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), sample=st.sampled_from(SAMPLES))
def test_what_is_not_edited_stays(data: st.DataObject, sample: str) -> None:
    source, edit = parsed(sample)
    edits = data.draw(st.lists(edit, min_size=1, max_size=5, unique=True))
    file = SourceFile(Path("/nowhere/train.py"), sample)
    wraps = [edit for edit in edits if isinstance(edit, Wrap)]
    try:
        result, error = apply_edits(file, edits), ""
    except EditError as refused:
        result, error = "", str(refused)
    if error:
        # Wraps of overlapping ranges, and two values for one argument or entry, cannot go together.
        assert "conflicts with" in error or ("overlaps" in error and len(wraps) > 1)
        return
    undone = ast.dump(Undo().visit(ast.parse(result)))
    assert undone == ast.dump(ast.parse(sample))
    assert comments(result) == comments(sample)
    if not wraps and not has_opened_elif(source, edits):
        assert is_subsequence(untouched_lines(source, edits), split_lines(result))
    ends = {line[len(line.rstrip("\r\n")) :] for line in source.lines} - {""}
    assert {line[len(line.rstrip("\r\n")) :] for line in split_lines(result)} - {""} <= ends


@settings(deadline=None, max_examples=100)
@given(data=st.data(), sample=st.sampled_from(SAMPLES))
def test_removals_leave_a_script_that_parses(data: st.DataObject, sample: str) -> None:
    source, _ = parsed(sample)
    simple = [
        statement
        for statement in source.blocks
        if not source.inside_format_strings & set(ast.walk(statement))
        and not hasattr(statement, "body")
        and not isinstance(statement, ast.Match)
    ]
    removed = data.draw(st.lists(st.sampled_from(simple), min_size=1, unique=True))
    edits = [RemoveStatement(source.span(*source.range(statement))) for statement in removed]
    result = apply_edits(SourceFile(Path("/nowhere/train.py"), sample), edits)
    expected = Counter(type(s) for s in source.blocks) - Counter(type(s) for s in removed)
    left = Counter(type(s) for s in SourceTree.parse(result).blocks)
    assert left - expected <= Counter({ast.Pass: len(removed)})
    gone = {n for s in removed for n in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
    own_line = {
        line.strip()
        for number, line in enumerate(split_lines(sample), 1)
        if line.strip().startswith("#") and number not in gone
    }
    assert own_line <= set(comments(result))


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_statement_and_expression_is_found_at_its_span(sample: str) -> None:
    source = SourceTree.parse(sample)
    nodes = [n for n in ast.walk(source.tree) if isinstance(n, ast.expr | ast.stmt)]
    for node in nodes:
        if node in source.inside_format_strings:
            continue
        found = source.find(type(node), source.span(*source.range(node)))
        assert found is not None
        assert ast.dump(found) == ast.dump(node)


def test_nothing_to_do_changes_nothing(rewritten: Callable[..., str]) -> None:
    for sample in SAMPLES:
        assert rewritten(sample) == sample


def test_a_realistic_rewrite(rewritten: Callable[..., str], span: Callable[..., Span]) -> None:
    loader = FLAT[FLAT.index("torch.utils.data.DataLoader(") : FLAT.index("\n\nif cuda")]
    loss = FLAT[FLAT.index("loss = criterion") : FLAT.index("\n        loss.backward")]
    evaluation = "print(opt)"
    result = rewritten(
        FLAT,
        SetArgument(span(FLAT, loader), "num_workers", "4"),
        SetArgument(span(FLAT, loader), "pin_memory", "True"),
        RemoveArgument(span(FLAT, loader), "shuffle"),
        Wrap(span(FLAT, loss), span(FLAT, loss), 'with torch.autocast("cuda"):'),
        InsertBefore(
            span(FLAT, "for epoch in" + FLAT.split("for epoch in")[1].split("\n\n# done")[0]),
            "scaler = GradScaler()",
        ),
        ReplaceExpression(span(FLAT, "optimizer.step()"), "scaler.step(optimizer)"),
        InsertAfter(span(FLAT, "optimizer.step()"), "scaler.update()"),
        RemoveStatement(span(FLAT, evaluation)),
        AddImport("torch.amp", "GradScaler"),
        AddImport("torch"),
    )
    expected = (
        FLAT.replace("; print(opt)\n", "\n")
        .replace(
            "import torch.nn as nn  # networks\n",
            "import torch\nimport torch.nn as nn  # networks\nfrom torch.amp import GradScaler\n",
        )
        .replace(
            "    shuffle=True,\n    # num",
            "    num_workers=4,\n    pin_memory=True,\n    # num",
        )
        .replace("for epoch in", "scaler = GradScaler()\nfor epoch in")
        .replace(
            "        # -- train\n", '        # -- train\n        with torch.autocast("cuda"):\n'
        )
        .replace("        loss = crit", "            loss = crit")
        .replace(
            "            0.5 * penalty(\n                imgs)",
            "                0.5 * penalty(\n                    imgs)",
        )
        .replace("; optimizer.step()\n", "; scaler.step(optimizer)\n        scaler.update()\n")
    )
    assert result == expected


def test_errors_name_the_edit(rewritten: Callable[..., str]) -> None:
    edit = SetArgument(Span(3, 4, 3, 9), "num_workers", "4")
    with pytest.raises(EditError) as caught:
        rewritten("x = 1\n", edit)
    assert str(caught.value).startswith("SetArgument at line 3: no Call there")
    assert caught.value.edit == edit


def test_a_result_that_would_not_parse_is_an_error(
    rewritten: Callable[..., str], span: Callable[..., Span]
) -> None:
    text = "from __future__ import annotations\nx = f(a)\n"
    with pytest.raises(EditError, match="does not parse"):
        rewritten(text, ReplaceExpression(span(text, "x"), "f()"))


def test_warnings_about_the_users_strings_are_not_shown(
    rewritten: Callable[..., str], recwarn: pytest.WarningsRecorder
) -> None:
    assert rewritten("x = '\\d'\n", AddImport("os")) == "import os\n\nx = '\\d'\n"
    assert not recwarn.list


def test_a_given_style_is_used(rewritten: Callable[..., str], span: Callable[..., Span]) -> None:
    text = "x = f(a)\n"
    result = rewritten(
        text,
        Wrap(span(text, "x = f(a)"), span(text, "x = f(a)"), "if y:"),
        style=Style("\t", "\r\n", 30),
    )
    assert result == "if y:\r\n\tx = f(a)\n"
