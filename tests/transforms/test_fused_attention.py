"""`fused-attention`: attention that is written out becomes one operation, and computes the same."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from torchopt_cli.optimizer.options import Target, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

HEAD = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=16, heads=4, positions=8, drop=0.1):
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.scale = self.size ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=-1)
        self.drop = nn.Dropout(drop)
        mask = torch.tril(torch.ones(positions, positions))
        self.register_buffer("mask", mask.view(1, 1, positions, positions))
        later = torch.triu(torch.ones(positions, positions), diagonal=1)
        self.register_buffer("later", later)
        self.table = nn.Parameter(torch.zeros(heads, positions, positions))
        self.calls = []

    def forward(self, x, seen=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
"""
TAIL = """\
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
"""
TRAINING = """

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Attention(DROP).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, seen in batches:
    optimizer.zero_grad()
    loss = model(x.to(device)).mean()
    loss.backward()
    optimizer.step()
"""
SCORES = "scores = q @ k.transpose(-2, -1) * self.scale"
FUSED = "y = F.scaled_dot_product_attention(q, k, v, {})"


def script(*lines: str, tail: str = TAIL) -> str:
    """A network whose attention is ``lines``."""
    return HEAD + textwrap.indent("\n".join(lines) + "\n", " " * 8) + tail


CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "the_scale_by_which_it_divides_is_the_default": (
        (
            "att = torch.matmul(q, k.transpose(2, 3)) / np.sqrt(q.shape[-1])",
            "att = att.softmax(-1)",
            "y = torch.matmul(att, v)",
        ),
        ("y = F.scaled_dot_product_attention(q, k, v)",),
    ),
    "a_size_by_name_goes_with_its_last_use": (
        (
            "d_k = k.size(-1)",
            "att = F.softmax(q.matmul(k.mT) * d_k ** -0.5, dim=-1)",
            "y = att.matmul(v)",
        ),
        ("y = F.scaled_dot_product_attention(q, k, v)",),
    ),
    "a_scale_of_its_own": (
        (SCORES, "y = self.softmax(scores) @ v"),
        (FUSED.format("scale=self.scale"),),
    ),
    "no_scale": (
        (
            "q = q * self.scale",
            "weights = torch.softmax(q @ k.transpose(-1, -2), -1)",
            "y = weights @ v",
        ),
        ("q = q * self.scale", FUSED.format("scale=1.0")),
    ),
    "a_root_that_is_written_out": (
        ("weights = F.softmax(q @ k.transpose(-2, -1) / self.size ** 0.5, -1)", "y = weights @ v"),
        (FUSED.format("scale=self.size ** -0.5"),),
    ),
    "a_triangle_over_the_positions_is_causal": (
        (
            SCORES,
            "scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, float('-inf'))",
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
        ),
        (FUSED.format("is_causal=True, scale=self.scale"),),
    ),
    "a_triangle_made_in_place_is_causal": (
        (
            "future = torch.triu(torch.ones(T, T, device=x.device), diagonal=1).bool()",
            SCORES,
            "scores.masked_fill_(future, -np.inf)",
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
        ),
        (
            "future = torch.triu(torch.ones(T, T, device=x.device), diagonal=1).bool()",
            FUSED.format("is_causal=True, scale=self.scale"),
        ),
    ),
    "a_triangle_by_way_of_variables_is_causal": (
        (
            "later = (1 - self.mask).bool()[:, :, :T, :T]",
            "future = self.later.bool()[:T, :T]",
            "scores = q @ k.transpose(2, 3)",
            "scores.masked_fill_(future, -torch.inf)",
            "weights = torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)",
            "y = weights @ v",
        ),
        (
            "later = (1 - self.mask).bool()[:, :, :T, :T]",
            "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ),
    ),
    "any_other_mask_stays_one": (
        (
            SCORES,
            "seen = torch.ones(T, T) if seen is None else seen",
            "scores = scores.masked_fill(seen == 0, -torch.inf)",
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
        ),
        (
            "seen = torch.ones(T, T) if seen is None else seen",
            "y = F.scaled_dot_product_attention(",
            "    q, k, v, attn_mask=seen != 0, scale=self.scale",
            ")",
        ),
    ),
    "a_mask_that_may_be_missing": (
        (
            SCORES,
            "if seen is not None:",
            "    scores = scores.masked_fill(~seen.bool(), float('-inf'))",
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
        ),
        (
            "y = F.scaled_dot_product_attention(",
            "    q,",
            "    k,",
            "    v,",
            "    attn_mask=seen.bool() if seen is not None else None,",
            "    scale=self.scale,",
            ")",
        ),
    ),
    "a_mask_of_large_numbers": (
        (
            SCORES,
            "least = -torch.finfo(scores.dtype).max",
            "scores = scores.masked_fill(~seen, least)",
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
        ),
        (FUSED.format("attn_mask=seen, scale=self.scale"),),
    ),
    "a_triangle_of_large_numbers_is_causal": (
        (
            SCORES,
            "scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, -1e9)",
            "y = F.softmax(scores, dim=-1) @ v",
        ),
        (FUSED.format("is_causal=True, scale=self.scale"),),
    ),
    "a_mask_of_zeros_that_is_added": (
        (
            "bias = torch.zeros(T, T)",
            SCORES,
            "scores = scores + bias",
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
        ),
        ("bias = torch.zeros(T, T)", FUSED.format("attn_mask=bias, scale=self.scale")),
    ),
    "a_learned_bias_is_added": (
        (
            "index = torch.arange(T)",
            "bias = self.table[:, index[:, None], index].contiguous()",
            SCORES,
            "",
            "scores = scores + bias.unsqueeze(0)",
            "weights = F.softmax(scores, dim=-1)",
            "",
            "y = (weights @ v).contiguous()",
        ),
        (
            "index = torch.arange(T)",
            "bias = self.table[:, index[:, None], index].contiguous()",
            "",
            "y = F.scaled_dot_product_attention(",
            "    q, k, v, attn_mask=bias.unsqueeze(0), scale=self.scale",
            ")",
            "y = y.contiguous()",
        ),
    ),
    "operands_in_a_list_and_a_mask_that_is_scaled": (
        (
            'energy = torch.einsum("bhqd,bhkd->bhqk", [q, k])',
            'energy = energy.masked_fill(seen == 0, float("-1e20"))',
            "weights = torch.softmax(energy / (self.size ** (1 / 2)), dim=3)",
            'y = torch.einsum("bhql,bhld->bhqd", [weights, v])',
        ),
        (
            "y = F.scaled_dot_product_attention(",
            "    q, k, v, attn_mask=seen != 0, scale=self.size ** -0.5",
            ")",
        ),
    ),
    "where_between_the_scores_and_infinity": (
        (
            SCORES,
            "scores = torch.where(self.mask[:, :, :T, :T] > 0, scores, float('-inf'))",
            "y = F.softmax(scores, dim=-1) @ v",
        ),
        (
            "y = F.scaled_dot_product_attention(",
            "    q, k, v, attn_mask=self.mask[:, :, :T, :T] > 0, scale=self.scale",
            ")",
        ),
    ),
    "dropout_by_a_layer": (
        (SCORES, "weights = self.drop(F.softmax(scores, dim=-1))", "y = weights @ v"),
        (
            "y = F.scaled_dot_product_attention(",
            "    q, k, v, dropout_p=self.drop.p if self.training else 0.0, scale=self.scale",
            ")",
        ),
    ),
    "dropout_by_a_function": (
        (
            SCORES,
            "weights = F.softmax(scores.float(), dim=-1).type_as(q)",
            "weights = F.dropout(weights, p=0.2, training=self.training)",
            "y = weights @ v",
        ),
        (
            "y = F.scaled_dot_product_attention(",
            "    q, k, v, dropout_p=0.2 if self.training else 0.0, scale=self.scale",
            ")",
        ),
    ),
    "heads_behind_positions": (
        (
            "q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)",
            'scores = torch.einsum("bqhd, bkhd -> bhqk", q, k) * self.scale',
            'y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)',
            "y = y.transpose(1, 2)",
        ),
        (
            "q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)",
            "y = F.scaled_dot_product_attention(",
            "    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=self.scale",
            ").transpose(1, 2)",
            "y = y.transpose(1, 2)",
        ),
    ),
    "a_size_asked_of_another_tensor_of_that_name": (
        (
            "q = q.transpose(1, 2).reshape(B, T, C)",
            "width = q.size(-1)",
            "q = q.view(B, T, self.heads, -1).transpose(1, 2)",
            "weights = F.softmax(q @ k.transpose(-2, -1) / width ** 0.5, -1)",
            "y = weights @ v",
        ),
        (
            "q = q.transpose(1, 2).reshape(B, T, C)",
            "width = q.size(-1)",
            "q = q.view(B, T, self.heads, -1).transpose(1, 2)",
            FUSED.format("scale=width ** -0.5"),
        ),
    ),
    "what_is_deleted_is_not_deleted_any_more": (
        (
            SCORES,
            "weights = F.softmax(scores, dim=-1)",
            "del scores",
            "y = weights @ v",
            "del weights",
        ),
        (FUSED.format("scale=self.scale"),),
    ),
    "a_share_of_dropout_that_is_chosen": (
        (
            SCORES,
            "weights = F.softmax(scores, dim=-1)",
            "weights = F.dropout(weights, 0.1 if self.heads > 1 else 0.0, self.training)",
            "y = weights @ v",
        ),
        (
            "y = F.scaled_dot_product_attention(",
            "    q,",
            "    k,",
            "    v,",
            "    dropout_p=(0.1 if self.heads > 1 else 0.0) if self.training else 0.0,",
            "    scale=self.scale,",
            ")",
        ),
    ),
    "a_product_that_is_part_of_more": (
        (
            SCORES,
            "weights = F.softmax(scores, dim=-1)",
            "y = (weights @ v).contiguous()",
        ),
        (FUSED.format("scale=self.scale"), "y = y.contiguous()"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_fuses(check_transformed: Check, case: str) -> None:
    before, after = CASES[case]
    check_transformed(script(*before), script(*after))


@pytest.mark.torch
@pytest.mark.parametrize("case", [name for name in CASES if "dropout" not in name])
def test_what_is_fused_computes_the_same(rewrite: Callable[..., RewriteResult], case: str) -> None:
    torch = pytest.importorskip("torch")
    before = script(*CASES[case][0])
    after = rewrite(before, ["fused-attention"]).files[0].text
    assert "scaled_dot_product_attention" in after
    results = []
    for text in (before, after):
        names: dict[str, Any] = {}
        exec(text, names)
        torch.manual_seed(0)
        network = names["Attention"]()
        x = torch.randn(2, 6, 16, requires_grad=True)
        seen = torch.rand(2, 1, 6, 6) > 0.4
        seen |= torch.eye(6, dtype=torch.bool)
        y = network(x, seen)
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad for p in network.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.torch
def test_dropout_keeps_its_share_and_stops_in_evaluation(
    rewrite: Callable[..., RewriteResult],
) -> None:
    torch = pytest.importorskip("torch")
    before = script(*CASES["dropout_by_a_layer"][0])
    results = []
    for text in (before, rewrite(before, ["fused-attention"]).files[0].text):
        names: dict[str, Any] = {}
        exec(text, names)
        torch.manual_seed(0)
        network = names["Attention"](drop=0.5)
        x = torch.randn(64, 6, 16)
        y = network(x)
        network.eval()
        results.append((network(x), y))
    torch.testing.assert_close(results[0][0], results[1][0])
    spread = [(trained - evaluated).std().item() for evaluated, trained in results]
    # Half of the weights are dropped in both; of 6,144 draws the spread is known to some percent.
    assert spread[1] == pytest.approx(spread[0], rel=0.15)
    assert spread[0] > 0


@pytest.mark.torch
@pytest.mark.slow
def test_training_is_the_same(check_verified: Check) -> None:
    lines = CASES["a_triangle_over_the_positions_is_causal"][0]
    training = """

torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(4, 8, 16)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x.flip(1))
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(model.state_dict(), "model.pt")
"""
    check_verified(script(*lines) + training, target=Target.CPU)


_BY_ITSELF = "`F.scaled_dot_product_attention` computes it already where there is one"
NOT_FUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "where_there_is_no_fused_one": (
        (
            "if hasattr(F, 'scaled_dot_product_attention'):",
            "    y = F.scaled_dot_product_attention(q, k, v)",
            "else:",
            f"    {SCORES}",
            "    y = F.softmax(scores, dim=-1) @ v",
        ),
        _BY_ITSELF,
    ),
    "behind_a_fused_one_that_returns": (
        (
            "if self.flash:",
            "    return F.scaled_dot_product_attention(q, k, v)",
            SCORES,
            "y = F.softmax(scores, dim=-1) @ v",
        ),
        _BY_ITSELF,
    ),
    "returned_weights": (
        (
            SCORES,
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
            "self.calls.append(weights)",
        ),
        "`weights` is read again (`self.calls.append(weights)`)",
    ),
    "scores_that_are_read_again": (
        (SCORES, "weights = F.softmax(scores, dim=-1)", "y = weights @ v + scores.mean()"),
        "`scores` is read again",
    ),
    "weights_with_a_branch": (
        (
            SCORES,
            "weights = F.softmax(scores, dim=-1)",
            "kept = weights if seen is None else None",
            "y = weights @ v",
        ),
        "`weights` is read again",
    ),
    "weights_that_are_added_to": (
        (SCORES, "weights = F.softmax(scores, dim=-1)", "y = weights @ v", "weights += 1"),
        "`weights` is read again (`weights += 1`)",
    ),
    "keys_that_change_in_between": (
        (SCORES, "k = v", "weights = F.softmax(scores, dim=-1)", "y = weights @ v"),
        "`k` is given another value in between",
    ),
    "a_statement_in_between_that_may_do_anything": (
        (SCORES, "v.mul_(2)", "weights = F.softmax(scores, dim=-1)", "y = weights @ v"),
        "`v.mul_(2)` stands in between",
    ),
    "a_learned_scale": (
        ("weights = F.softmax(q @ k.transpose(-2, -1) * self.table, dim=-1)", "y = weights @ v"),
        "`self.table`, which scales the scores, is not seen to be a number",
    ),
    "two_scales": (
        (
            "weights = F.softmax(q @ k.transpose(-2, -1) * self.scale / 2, dim=-1)",
            "y = weights @ v",
        ),
        "scaled twice",
    ),
    "two_masks": (
        (
            SCORES,
            "scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, float('-inf'))",
            "scores = scores.masked_fill(seen == 0, float('-inf'))",
            "y = F.softmax(scores, dim=-1) @ v",
        ),
        "masked twice",
    ),
    "a_mask_that_is_scaled_too": (
        (
            "scores = q @ k.transpose(-2, -1)",
            "scores = scores + torch.zeros(T, T)",
            "y = F.softmax(scores * self.scale, dim=-1) @ v",
        ),
        "the mask is scaled, too",
    ),
    "a_mask_that_hides_little": (
        (
            SCORES,
            "scores = scores.masked_fill(seen == 0, -9)",
            "y = F.softmax(scores, dim=-1) @ v",
        ),
        "the mask fills scores with `-9`, which may not hide them",
    ),
    "a_mask_of_unknown_type": (
        (SCORES, "y = F.softmax(scores + seen, dim=-1) @ v"),
        "the type of `seen`, which is added to the scores, cannot be told",
    ),
    "a_view_of_the_result": (
        (SCORES, "y = F.softmax(scores, dim=-1) @ v", "y = y.view(B, self.heads, T, -1)"),
        "`y.view` wants a result that is contiguous",
    ),
    "an_unknown_dropout": (
        (SCORES, "weights = self.own_drop(F.softmax(scores, dim=-1))", "y = weights @ v"),
        "`self.own_drop` is not known to be dropout",
    ),
    "no_dimension_for_heads": (
        (
            "q, k, v = q[:, 0], k[:, 0], v[:, 0]",
            "weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)",
            "y = torch.bmm(weights, v)",
        ),
        "",
    ),
    "heads_among_the_samples": (
        (
            "q, k, v = q.reshape(-1, T, 4), k.reshape(-1, T, 4), v.reshape(-1, T, 4)",
            "weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)",
            "y = weights @ v",
        ),
        "the queries `q` have no dimension for the heads",
    ),
    "a_result_that_is_changed": (
        (SCORES, "y = F.softmax(scores, dim=-1) @ v", "y.mul_(2)"),
        "its result is changed in place, and the fused operation keeps it",
    ),
    "a_result_that_is_changed_where_it_is_no_copy": (
        (
            SCORES,
            "y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(B, T, C)",
            "y += x",
            "y = y.reshape(B, T, 4, -1).transpose(1, 2)",
        ),
        "its result is changed in place",
    ),
    "a_result_that_a_layer_changes": (
        (
            "relu = nn.ReLU(inplace=True)",
            SCORES,
            "y = relu(F.softmax(scores, dim=-1) @ v)",
        ),
        "its result is changed in place",
    ),
    "values_that_change_later": (
        (SCORES, "y = F.softmax(scores, dim=-1) @ v", "v += 1"),
        "`v` is changed in place",
    ),
    "a_strided_view_of_the_result": (
        (SCORES, "y = F.softmax(scores, dim=-1) @ v", "torch.as_strided(y, (1,), (1,))"),
        "wants a result that is contiguous",
    ),
    "a_product_under_a_condition": (
        (SCORES, "y = F.softmax(scores, dim=-1) @ v if seen is None else v"),
        "its line computes it under a condition",
    ),
    "one_del_for_all": (
        (
            SCORES,
            "weights = F.softmax(scores, dim=-1)",
            "y = weights @ v",
            "del weights, q",
        ),
        "`del weights, q` deletes more than it leaves unread",
    ),
    "another_type_for_scores_than_for_values": (
        (
            "q, k = q.float(), k.float()",
            SCORES,
            "weights = F.softmax(scores, dim=-1).type_as(v)",
            "y = weights @ v",
        ),
        "is cast to a type that not all of queries, keys and values are cast to",
    ),
    "queries_of_unknown_shape": (
        ("q = seen", "weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)", "y = weights @ v"),
        "whether the queries `q` have a dimension for the heads cannot be told",
    ),
}


def test_what_hides_by_a_number_is_only_fused_where_training_may_change(
    rewrite: Callable[..., RewriteResult],
) -> None:
    text = script(*CASES["a_mask_of_large_numbers"][0])
    (change,) = rewrite(text, ["fused-attention"]).files[0].changes
    assert change.tier is Tier.SEMANTIC
    (skip,) = rewrite(text, ["fused-attention"], tier=Tier.NUMERIC).files[0].skips
    assert "gets zeros and not the mean of all values: only with --tier semantic" in skip.message
    (skip,) = rewrite(text, ["fused-attention"], torch_version=(2, 4)).files[0].skips
    assert "before PyTorch 2.5" in skip.message


@pytest.mark.parametrize(
    "mask",
    [
        ("bias = torch.zeros(T, T).masked_fill(seen == 0, -1e9)",),
        ("bias = torch.zeros(T, T)", "bias[0] = -1e9"),
    ],
)
def test_large_numbers_that_are_added_may_change_training(
    rewrite: Callable[..., RewriteResult], mask: tuple[str, ...]
) -> None:
    text = script(*mask, SCORES, "y = F.softmax(scores + bias, dim=-1) @ v")
    (change,) = rewrite(text, ["fused-attention"]).files[0].changes
    assert change.tier is Tier.SEMANTIC
    (skip,) = rewrite(text, ["fused-attention"], tier=Tier.NUMERIC).files[0].skips
    assert "gets other gradients: only with --tier semantic" in skip.message
    infinite = text.replace("-1e9", "-torch.inf")
    if "[0]" not in infinite:
        assert rewrite(infinite, ["fused-attention"], tier=Tier.NUMERIC).files[0].changed


def test_a_scale_that_callers_give_may_be_a_tensor(check_noop: Check) -> None:
    text = script(SCORES, "y = F.softmax(scores, dim=-1) @ v")
    text = text.replace("drop=0.1):", "drop=0.1, scale=None):")
    text = text.replace("self.scale = ", "self.scale = scale or ")
    given = "\n\nAttention(scale=nn.Parameter(torch.ones(())))\n"
    check_noop(text + given, reason="is not seen to be a number")


@pytest.mark.parametrize("case", NOT_FUSED)
def test_leaves_alone(check_noop: Check, case: str) -> None:
    lines, reason = NOT_FUSED[case]
    check_noop(script(*lines), reason=reason or None)


@pytest.mark.parametrize(
    "lines",
    [
        ("weights = F.softmax(q @ k.transpose(-2, -1), dim=1)", "y = weights @ v"),
        ("weights = F.softmax(q @ k, dim=-1)", "y = weights @ v"),
        ("weights = F.log_softmax(q @ k.transpose(-2, -1), dim=-1)", "y = weights @ v"),
        ("weights = F.softmax(q @ k.transpose(-2, -1), dim=-1)", "y = v @ weights"),
    ],
    ids=["another_dimension", "keys_as_they_are", "logarithms", "weights_on_the_right"],
)
def test_says_nothing_of_what_is_no_attention(
    rewrite: Callable[..., RewriteResult], lines: tuple[str, ...]
) -> None:
    result = rewrite(script(*lines), ["fused-attention"])
    assert not any(file.changed or file.skips for file in result.files)


CAUSAL = CASES["a_triangle_over_the_positions_is_causal"][0]


@pytest.mark.parametrize(
    ("before", "line"),
    [
        # A cache makes more keys than queries: then the rows of the mask are not theirs.
        ("k = torch.cat([seen, k], dim=2)", None),
        ("self.mask[0, 0, 0, 1] = 1", None),
        ("T = T - 1", None),
    ],
    ids=["a_cache_of_keys", "a_changed_triangle", "another_length"],
)
def test_a_triangle_that_may_be_another_stays_a_mask(
    rewrite: Callable[..., RewriteResult], before: str, line: None
) -> None:
    text = rewrite(script(before, *CAUSAL), ["fused-attention"]).files[0].text
    assert "is_causal" not in text
    assert line is None


@pytest.mark.parametrize("mask", ["tril(torch.ones(n, n), -1)", "triu(torch.ones(n, n))"])
def test_only_the_triangle_with_its_diagonal_is_causal(
    rewrite: Callable[..., RewriteResult], mask: str
) -> None:
    other = mask.replace("n, n", "positions, positions")
    text = script(*CAUSAL).replace("tril(torch.ones(positions, positions))", other)
    rewritten = rewrite(text, ["fused-attention"]).files[0].text
    assert "attn_mask=self.mask[:, :, :T, :T] != 0" in rewritten


@pytest.mark.parametrize(
    "line",
    [
        "model.mask[..., :2] = 1",
        "model.mask = torch.ones(1, 1, 8, 8)",
        "model.mask.fill_(1)",
        "setattr(model, 'mask', torch.ones(1, 1, 8, 8))",
    ],
)
def test_a_triangle_that_is_written_to_from_outside_stays_a_mask(
    rewrite: Callable[..., RewriteResult], line: str
) -> None:
    text = rewrite(f"{script(*CAUSAL)}\n\nmodel = Attention()\n{line}\n", ["fused-attention"])
    assert "attn_mask=self.mask[:, :, :T, :T] != 0" in text.files[0].text


@pytest.mark.parametrize(
    "line",
    ["first = mask[:, :2]; first.fill_(1)", "mask.view(-1)[:2] = 1", "open_prefix(mask)"],
)
def test_a_triangle_that_is_written_to_by_another_name_stays_a_mask(
    rewrite: Callable[..., RewriteResult], line: str
) -> None:
    register = '        self.register_buffer("mask"'
    text = script(*CAUSAL).replace(register, f"        {line}\n{register}")
    text += "\n\ndef open_prefix(mask):\n    mask[:, :2] = 1\n"
    rewritten = rewrite(text, ["fused-attention"]).files[0].text
    assert "attn_mask=self.mask[:, :, :T, :T] != 0" in rewritten


PLAIN = CASES["a_scale_of_its_own"][0]


def test_says_nothing_twice_differentiable(check_noop: Check) -> None:
    training = TRAINING.replace("DROP", "").replace(
        "loss.backward()", "torch.autograd.grad(loss, x, create_graph=True)\n    loss.backward()"
    )
    check_noop(script(*PLAIN) + training, reason="not differentiated twice")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.use_deterministic_algorithms(True)", "asks for determinism"),
        ("torch.vmap(print)", "maps or differentiates functions"),
        (
            "from torch.autograd import grad as slope\nslope(loss, [], create_graph=True)",
            "not differentiated twice",
        ),
        ("model.scale = nn.Parameter(torch.ones(()))", "is not seen to be a number"),
        ("model.softmax = nn.Sigmoid()", "another layer is put in the place of `self.softmax`"),
        ("model.softmax.register_forward_hook(print)", "may look at its layers"),
        ("from torchinfo import summary; summary(model)", "may look at its layers"),
    ],
)
def test_leaves_scripts_alone_that_look_or_ask_for_more(
    check_noop: Check, line: str, reason: str
) -> None:
    training = TRAINING.replace("DROP", "") + line + "\n"
    check_noop(script(*PLAIN) + training, reason=reason)


def test_determinism_does_not_matter_on_a_cpu(rewrite: Callable[..., RewriteResult]) -> None:
    text = (
        script(*PLAIN) + TRAINING.replace("DROP", "") + "torch.use_deterministic_algorithms(True)\n"
    )
    result = rewrite(text, ["fused-attention"], target=Target.CPU)
    assert result.files[0].changed


@pytest.mark.parametrize(("share", "fused"), [("", False), ("drop=0.0", True)])
def test_dropout_has_no_kernel_on_a_cpu(
    rewrite: Callable[..., RewriteResult], share: str, fused: bool
) -> None:
    text = script(*CASES["dropout_by_a_layer"][0]).replace("drop=0.1", "drop")
    text = text.replace(
        "def __init__(self, width=16, heads=4, positions=8, drop)",
        "def __init__(self, drop, width=16, heads=4, positions=8)",
    )
    text += TRAINING.replace("DROP", share or "drop=0.1")
    result = rewrite(text, ["fused-attention"], target=Target.CPU, select=frozenset())
    assert result.files[0].changed == fused
    if not fused:
        assert any("no fused kernel with dropout" in s.message for s in result.files[0].skips)
    assert rewrite(text, ["fused-attention"], target=Target.CPU).files[0].changed


@pytest.mark.parametrize(
    "code",
    [
        "for layer in model.modules():\n    if isinstance(layer, nn.Dropout):\n        layer.train()",
        "for layer in model.modules():\n    if type(layer) is nn.Dropout:\n        layer.train()",
        "for name, layer in model.named_modules():\n    if 'drop' in name:\n        layer.train()",
        "model.drop.train()",
        "model.drop.training = True",
        "model.apply(lambda layer: layer.train())",
    ],
)
def test_dropout_whose_mode_may_be_set_apart_is_asked_itself(
    rewrite: Callable[..., RewriteResult], code: str
) -> None:
    text = (
        script(*CASES["dropout_by_a_layer"][0]) + f"\n\nmodel = Attention()\nmodel.eval()\n{code}\n"
    )
    rewritten = rewrite(text, ["fused-attention"]).files[0].text
    assert "dropout_p=self.drop.p if self.drop.training else 0.0" in rewritten


@pytest.mark.parametrize(
    ("made", "line", "reason"),
    [
        ("nn.Dropout(drop)", "model.drop = nn.Identity()", "another layer is put in the place of"),
        (
            "nn.Dropout(drop)",
            "for name, layer in model.named_children():\n    setattr(model, name, nn.Identity())",
            "another layer is put in the place of",
        ),
        ("nn.Dropout(drop) if heads else Attention()", "", "not dropout in all cases"),
    ],
)
def test_leaves_alone_what_may_be_another_layer_than_dropout(
    check_noop: Check, made: str, line: str, reason: str
) -> None:
    text = script(*CASES["dropout_by_a_layer"][0]).replace("nn.Dropout(drop)", made)
    check_noop(f"{text}\n\nmodel = Attention()\n{line}\n", reason=reason)


PRUNED = """


class Backbone(nn.Module):
    def prune(self, names):
        for name in names:
            setattr(self, name, nn.Identity())
"""


def test_layers_of_another_class_are_not_in_the_place_of_these(
    rewrite: Callable[..., RewriteResult], check_noop: Check
) -> None:
    layer = script(*CASES["dropout_by_a_layer"][0])
    text = rewrite(layer + PRUNED, ["fused-attention"]).files[0].text
    assert "dropout_p=self.drop.p" in text
    method = script(
        "weights = (q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))).softmax(dim=-1)",
        "y = weights @ v",
    )
    text = rewrite("import math\n" + method + PRUNED, ["fused-attention"]).files[0].text
    assert "scaled_dot_product_attention" in text
    own = PRUNED.replace("Backbone(nn.Module)", "Backbone(Attention)")
    check_noop(layer + own, reason="another layer is put in the place of `self.drop`")


def test_an_import_for_these_lines_alone_goes_with_them(check_transformed: Check) -> None:
    lines = (
        "weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)",
        "y = weights @ v",
    )
    before, after = script(*lines), script("y = F.scaled_dot_product_attention(q, k, v)")
    check_transformed("import math\n" + before, after)
    used = "\nprint(math.pi)\n"
    check_transformed("import math\n" + before + used, "import math\n" + after + used)
    sums = (
        "weights = F.softmax(einsum('bhid,bhjd->bhij', q, k), dim=-1)",
        "y = einsum('bhij,bhjd->bhid', weights, v)",
    )
    alone = script("y = F.scaled_dot_product_attention(q, k, v, scale=1.0)")
    check_transformed("from torch import einsum\n" + script(*sums), alone)


@pytest.mark.parametrize(
    "other",
    [
        "from attention import *\nAttention()",
        "import attention\nattention.math\nattention.Attention()",
    ],
)
def test_an_import_that_other_files_use_stays(
    rewrite: Callable[..., RewriteResult], other: str
) -> None:
    lines = ("y = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1) @ v",)
    files = {"train.py": other + "\n", "attention.py": "import math\n" + script(*lines)}
    result = rewrite(files, ["fused-attention"])
    texts = {file.path.name: file.text for file in result.files}
    assert "scaled_dot_product_attention" in texts["attention.py"]
    assert texts["attention.py"].startswith("import math\n")


def test_follows_the_result_of_a_function_to_its_callers(
    check_transformed: Check, check_noop: Check
) -> None:
    text = """\
    import torch
    import torch.nn.functional as F


    def attention(query, key, value):
        weights = F.softmax(query @ key.transpose(-2, -1), dim=-1)
        return weights @ value


    def heads(x):
        x = x.reshape(2, 8, 4, 16).transpose(1, 2)
        y = attention(x, x, x)
        return y.{layout}(2, 4, 128)
    """
    fused = """\
    def attention(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, scale=1.0)
    """
    before = textwrap.dedent(text).format(layout="reshape")
    start, end = before.index("def attention"), before.index("\n\ndef heads")
    check_transformed(before, before[:start] + textwrap.dedent(fused) + before[end:])
    check_noop(textwrap.dedent(text).format(layout="view"), reason="`y.view` wants")


def test_follows_the_result_into_the_function_it_is_given_to(
    rewrite: Callable[..., RewriteResult], check_noop: Check
) -> None:
    text = textwrap.dedent("""\
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Output(nn.Module):
        def forward(self, hidden):
            return hidden.{change}(1)


    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.output = Output()

        def attend(self, x):
            weights = F.softmax(x @ x.transpose(-2, -1), dim=-1)
            return weights @ x

        def forward(self, x):
            x = x.reshape(2, 8, 4, 16).transpose(1, 2)
            attended = self.attend(x)
            return self.output(attended)


    Attention()(torch.ones(2, 8, 64))
    """)
    assert rewrite(text.format(change="add"), ["fused-attention"]).files[0].changed
    check_noop(text.format(change="add_"), reason="its result is changed in place")


def test_autocast_covers_what_is_fused(rewrite: Callable[..., RewriteResult]) -> None:
    text = script(*CAUSAL) + TRAINING.replace("DROP", "")
    result = rewrite(text, ["fused-attention", "autocast"], target=Target.CUDA)
    assert {c.transform for c in result.files[0].changes} == {"fused-attention", "autocast"}
