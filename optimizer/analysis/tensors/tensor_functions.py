"""What functions of PyTorch, and methods of its tensors, make of the type of what they are given."""

from __future__ import annotations

import ast

FLOAT_FUNCTIONS = frozenset(
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div "
    "binary_cross_entropy_with_logits gaussian_nll_loss poisson_nll_loss hinge_embedding_loss cosine_embedding_loss "
    "margin_ranking_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss soft_margin_loss ctc_loss "
    "softmax log_softmax sigmoid logsigmoid cosine_similarity pairwise_distance mean norm std var exp log sqrt "
    "logsumexp normalize dist".split()
)
"""Functions of ``torch`` and ``torch.nn.functional``, and methods, whose result is a tensor of floats."""
INTEGER_FUNCTIONS = frozenset(
    "eq ne gt lt ge le argmax argmin argsort isnan isinf isfinite logical_and logical_or logical_not logical_xor "
    "count_nonzero any all".split()
)
SAME_KIND = frozenset(
    "sum abs squeeze unsqueeze view reshape flatten contiguous detach clone cuda view_as expand_as t transpose "
    "permute neg prod expand relu topk max min sort masked_select gather index_select flip repeat cumsum "
    "zeros_like ones_like".split()
)
"""Those whose result is of the type of what they are given; a count of booleans is an integer."""
MIXING = frozenset("add sub mul pow clamp masked_fill scatter".split())
"""Those whose result also depends on the type of what else they are given."""
PAIRS = frozenset("max min topk sort kthvalue median mode cummax cummin".split())


def is_pair(function: str, call: ast.Call, own_arguments: int) -> bool:
    """Whether ``max(x, 1)`` and the like return values and indices, not a tensor."""
    if function not in PAIRS:
        return False
    is_whole = function in {"max", "min", "median"}
    return not is_whole or len(call.args) > own_arguments or bool(call.keywords)
