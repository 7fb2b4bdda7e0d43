"""How many samples a batch has."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from torchopt_cli.optimizer.execution.probe.batch_samples import count_read  # noqa: E402

pytestmark = pytest.mark.torch


class Pictures(Dataset[object]):
    """Five pictures of two sizes, with as many boxes as their number says."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.full((3, 8 + index % 2, 8), float(index)), {"boxes": torch.ones(index, 4)}


class Detector(nn.Module):
    """For each picture the boxes that it finds: as many as its number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(1, 1)

    def forward(self, pictures):
        number = [picture.flatten()[:1] for picture in pictures]
        return [
            {"boxes": torch.ones(int(n), 4) * self.scale(n), "scores": torch.ones(int(n))}
            for n in number
        ]


def detect(size):
    model = Detector().eval()
    reader = DataLoader(Pictures(), size, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
    with torch.no_grad():
        for pictures, _ in reader:
            model(list(pictures))


def test_pictures_in_a_list_are_counted_not_their_channels(recorded):
    one, several = (recorded(lambda size=size: detect(size)) for size in (1, 2))
    assert [(p.batches, p.samples) for p in one.loader_passes] == [(5, 5)]
    assert [(p.batches, p.samples) for p in several.loader_passes] == [(3, 5)]
    assert [call.samples for call in one.eval_calls] == [1] * 5
    assert [call.samples for call in several.eval_calls] == [2, 2, 1]
    each = [[digest for call in run.eval_calls for digest in call.each] for run in (one, several)]
    assert each[0] == each[1]
    assert len(set(each[0])) == 5


def test_what_is_found_in_each_picture_is_one_output_for_all(recorded):
    shapes = [
        [out.shape for out in call.outputs] for call in recorded(lambda: detect(4)).eval_calls
    ]
    assert shapes == [[(6, 4), (6,)], [(4, 4), (4,)]]


@pytest.mark.parametrize(
    ("batch", "asked", "samples"),
    [
        ([torch.ones(4, 2), torch.ones(4)], 4, 4),
        ([torch.ones(16, 2), torch.ones(16)], 1, 16),  # the data set's items are batches
        ([torch.ones(16, 2)], 1, 16),
        ([[torch.ones(4, 3, 8), torch.ones(4, 3, 6)], torch.ones(4)], 4, 4),  # two views of four
        (((torch.ones(3, 8, 8),) * 2, ({}, {})), 2, 2),
        ([(torch.ones(3, 8), 1), (torch.ones(3, 9), 0)], 2, 2),  # not collated
        ({"x": torch.ones(5, 2)}, 0, 5),  # a stream
    ],
)
def test_a_batch_has_as_many_samples_as_were_asked_for_if_anything_in_it_has(batch, asked, samples):
    assert count_read(batch, asked) == samples


def test_a_tensor_for_each_of_two_views_is_no_sample(recorded):
    class Twins(nn.Linear):
        def forward(self, views):
            return [super(Twins, self).forward(view) for view in views]

    def script():
        Twins(2, 2).eval()([torch.ones(6, 2), torch.zeros(6, 2)])

    (call,) = recorded(script).eval_calls
    assert call.samples == len(call.each) == 6
