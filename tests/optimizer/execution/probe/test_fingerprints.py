"""Tensors in figures and on disk."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from safetensors.numpy import load_file  # noqa: E402

from torchopt_cli.optimizer.execution.probe import fingerprints  # noqa: E402
from torchopt_cli.optimizer.execution.probe.fingerprints import (  # noqa: E402
    checksum,
    norm,
    row_checksums,
    sha256,
    summary,
    write_safetensors,
)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_checksum_sees_one_bit_and_order_but_not_the_memory_layout(dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    changed = tensor.clone()
    changed[1, 2, 3] = 0
    swapped = tensor.flip(0)
    laid_out = tensor.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert laid_out.stride() != tensor.stride()
    assert checksum(laid_out) == checksum(tensor)
    assert sha256(laid_out) == sha256(tensor)
    for other in (changed, swapped):
        assert checksum(other) != checksum(tensor)
        assert sha256(other) != sha256(tensor)


def in_parts(monkeypatch, size):
    monkeypatch.setattr(fingerprints, "_PART", size)


@pytest.mark.parametrize("size", [1, 7, 12, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_checksum_is_the_same_in_whatever_parts(dtype, size, monkeypatch):
    tensor = torch.arange(-30, 30).reshape(5, 3, 4).to(dtype)
    before, whole, rows = tensor.clone(), checksum(tensor), row_checksums([tensor], 5)
    in_parts(monkeypatch, size)
    assert checksum(tensor) == whole
    assert row_checksums([tensor], 5) == rows
    assert torch.equal(tensor, before)
    swapped = tensor.clone()
    swapped[0], swapped[4] = tensor[4], tensor[0]
    assert checksum(swapped) != whole


def test_nothing_has_a_checksum():
    assert checksum(torch.ones(0)) == checksum(torch.ones(2, 0)) == 0


def test_a_checksum_tells_the_smallest_difference():
    tensor = torch.ones(1000)
    nudged = tensor.clone()
    nudged[500] = torch.nextafter(nudged[500], torch.tensor(2.0))
    assert checksum(nudged) != checksum(tensor)
    assert checksum(-torch.zeros(3)) != checksum(torch.zeros(3))


def test_a_row_is_known_by_its_bits_in_any_order_and_however_it_is_padded():
    words = torch.randint(1, 9, (5, 7, 2))
    lengths = torch.tensor([7, 3, 4, 7, 5])
    words[torch.arange(7) >= lengths[:, None]] = 0
    each = row_checksums([words, lengths], 5)
    assert len(set(each)) == 5
    order = [3, 1, 4, 0, 2]
    assert row_checksums([words[order], lengths[order]], 5) == [each[n] for n in order]
    assert row_checksums([words[[1, 4]][:, :5], lengths[[1, 4]]], 2) == [each[1], each[4]]
    moved = words.clone()
    moved[2] = words[2].flip(0)
    assert [a == b for a, b in zip(row_checksums([moved, lengths], 5), each, strict=True)] == [
        True,
        True,
        False,
        True,
        True,
    ]
    scale = torch.tensor(2.0)
    assert row_checksums([words, lengths, scale], 5) != row_checksums([words, lengths, -scale], 5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_rows_of_small_numbers_are_told_apart(dtype):
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(60)).to(dtype)
    assert len(set(row_checksums([pairs], 3600))) == 3600
    triples = torch.cartesian_prod(*[torch.arange(1, 13)] * 3).to(dtype)
    assert len(set(row_checksums([triples], 12**3))) == 12**3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_row_is_known_whatever_the_default_device_is():
    rows = torch.arange(6.0).reshape(2, 3)
    known = row_checksums([rows], 2)
    with torch.device("meta"):
        assert row_checksums([rows], 2) == known


def test_unusual_tensors_have_figures():
    sparse = torch.sparse_coo_tensor([[0, 2]], [3.0, 4.0], (4,))
    assert float(norm(sparse)) == 5.0
    assert float(norm(torch.tensor([3 + 4j]))) == 5.0
    assert sha256(torch.empty(0)) != sha256(torch.empty(0, 2))
    assert summary(torch.empty(0))["finite"] is True
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    assert float(norm(quantized)) == pytest.approx(math.sqrt(2))


def test_a_summary_leaves_out_what_is_not_finite():
    told = summary(torch.tensor([1.0, -3.0, math.nan, math.inf]))
    assert (told["mean"], told["largest"], told["finite"]) == (-1.0, 3.0, False)
    assert told["norm"] == pytest.approx(math.sqrt(10))


def test_tensors_come_back_exactly(tmp_path):
    tensors = {f"a.{dtype}": torch.randn(3, 5).mul(9).to(dtype) for dtype in DTYPES}
    tensors |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "odd": torch.ones(3, dtype=torch.uint8),
    }
    write_safetensors(tmp_path / "t.safetensors", tensors)
    read = load_file(tmp_path / "t.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        kept = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        assert read[name].shape == tuple(tensor.shape)
        assert torch.equal(torch.from_numpy(read[name].copy()), kept)
