"""Which lines belong together, with the tokenizer and without it."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.rewriting.line_structure import LineStructure, _scanned, _tokenized

TEXTS = {
    "empty": "",
    "no final line end": "a = 1",
    "brackets": "f(\n    a,  # one\n    [b,\n\n    # alone\n    c],\n)\nx = 1\n",
    "continued": "a = 1 + \\\n    2\nb = 3; \\\nc = 4\n",
    "triple quotes": 'a = """x\n# no comment\n(\n"""; b = 1\n# comment\nc = \'\'\'"""\'\'\'\n',
    "quotes in quotes": 'a = "it\'s"  # \'open\nb = \'"("\'\nc = "\\"["\n',
    "empty strings": 'a = ""\nb = \'\'\nc = """"""\nd = "" "x"\n',
    "string prefixes": "a = rb'\\''\nb = (\n    f'{a}'\n    Rf'{a}('\n)\n",
    "string over lines": "a = 'x\\\ny'\nb = (\n    'c'\n    'd'\n)\n",
    "comments": "#!/usr/bin/env python\n\n  # indented\nif a:  # behind\n\t# tab\n    b\n    # last\n",
    "other line ends": "if a:\r\n    b(\r\n        c)\r\n# d\r\n",
    "old line ends": "a = [1,\r2]\r# b\rc = '''\r'''\r",
    "form feed": "a = 1\n\f\n# b\ndef f():\n    pass\n",
    "several on a line": "if a: b; c\nd = 1; e = (\n2)\n",
    "letters": "größe = 'ä'\n# ö\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_scanning_tells_what_the_tokens_tell(text: str):
    assert _scanned(text).logical == _tokenized(text).logical
    assert _scanned(text).comments == _tokenized(text).comments


def test_logical_lines_code_and_comments():
    structure = LineStructure.of("# top\nf(\n    'a'\n    'b',\n    c)\n'''d\n# e\n'''\n")
    assert structure.logical == ((2, 5), (6, 8))
    assert structure.code == {2, 4, 5}
    assert structure.comments == {1}
