from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchopt_cli.optimizer.execution.probe.padding import Padding
from torchopt_cli.optimizer.execution.probe.patches import Patches

MASK = torch.tensor([[False, False, True, True], [False, False, False, False]])


@pytest.fixture
def padding() -> Iterator[Padding]:
    patches, made = Patches(), Padding()
    made.install(patches)
    made.begin(heeds=True)
    yield made
    patches.undo()


def unpack(*lengths: int, batch_first: bool = True) -> torch.Tensor:
    width = max(lengths)
    size = (len(lengths), width, 2) if batch_first else (width, len(lengths), 2)
    packed = pack_padded_sequence(torch.ones(size), torch.tensor(lengths), batch_first, False)
    return nn.utils.rnn.pad_packed_sequence(packed, batch_first)[0]


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()


def test_nothing_is_padded_where_nothing_was_told(padding: Padding) -> None:
    assert padding.of([torch.ones(2, 4, 8)]) == []


def test_lengths_of_packed_sequences(padding: Padding) -> None:
    output = unpack(3, 5)
    pooled = output.sum(1)
    assert padding.of([pooled, output, output.transpose(0, 1)]) == [(1, 1, [3, 5]), (2, 0, [3, 5])]


def test_as_many_samples_as_words(padding: Padding) -> None:
    assert padding.of([unpack(2, 1, batch_first=False)]) == [(0, 0, [2, 1])]


def test_masked_words(padding: Padding) -> None:
    output = encoder()(torch.randn(2, 4, 8), src_key_padding_mask=MASK)
    assert padding.of([output]) == [(0, 1, [2, 4])]


def test_masked_words_in_the_middle_are_no_padding(padding: Padding) -> None:
    output = encoder()(torch.randn(2, 4, 8), src_key_padding_mask=MASK.roll(1, 1))
    assert padding.of([output]) == []


@pytest.mark.parametrize(
    "decoder",
    [
        nn.GRU(2, 2, batch_first=True),
        nn.LSTMCell(2, 2),
        nn.TransformerDecoderLayer(2, 1, 4, batch_first=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_a_decoder_gives_is_not_padded_as_its_input_was(
    padding: Padding, decoder: nn.Module
) -> None:
    output = unpack(3, 5)
    padding.layer_called(nn.Linear(2, 2), output)
    assert padding.of([output])
    padding.layer_called(decoder, output)
    assert padding.of([output]) == []


def test_a_layer_that_took_packed_sequences_decodes_nothing(padding: Padding) -> None:
    layer = nn.GRU(2, 2, batch_first=True)
    packed = pack_padded_sequence(torch.ones(2, 5, 2), torch.tensor([3, 5]), True, False)
    given = layer(packed)
    output = nn.utils.rnn.pad_packed_sequence(given[0], True)[0]
    padding.layer_called(layer, given)
    assert padding.of([output]) == [(0, 1, [3, 5])]


def test_of_two_lengths_nobody_knows_which(padding: Padding) -> None:
    unpack(3, 5)
    assert padding.of([unpack(5, 2)]) == []


def test_only_of_this_call_and_where_it_is_asked_for(padding: Padding) -> None:
    output = unpack(3, 5)
    padding.begin(heeds=False)
    unpack(3, 5)
    assert padding.of([output]) == []


def test_what_is_padded_is_left_out(padding: Padding) -> None:
    outputs = [torch.ones(2, 3), torch.ones(3, 2)]
    rows, columns = padding.left_out(outputs, [(0, 1, [1, 3]), (1, 0, [1, 3])])
    assert rows.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert torch.equal(columns, rows.T)
    assert outputs[0].all()
