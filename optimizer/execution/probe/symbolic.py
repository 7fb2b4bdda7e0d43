"""Whether tensors have numbers now: a compiler's backend calls functions of torch to see what they are made of."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import torch
from torch._guards import detect_fake_mode


def in_backend() -> bool:
    """Whether this call only makes a graph, as inductor does of the patterns it looks for; False in code that Dynamo traces."""
    return not torch.compiler.is_compiling() and detect_fake_mode() is not None


def is_traced() -> bool:
    """Whether Dynamo or a backend makes a graph of this call, which is none of the script's then."""
    return torch.compiler.is_compiling() or in_backend()
