"""What a worker may do with an object of a library."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.analysis.loading.held_objects import Holding, holding_of


@pytest.mark.parametrize(
    ("maker", "holding"),
    [
        ("numpy.load", Holding.COPYABLE),
        ("pandas.read_csv", Holding.COPYABLE),
        ("torchvision.transforms.Compose", Holding.COPYABLE),
        ("transformers.AutoTokenizer.from_pretrained", Holding.COPYABLE),
        ("builtins.list", Holding.COPYABLE),
        ("natsort.natsorted", Holding.COPYABLE),
        ("datasets.load_dataset", Holding.COPYABLE),
        ("builtins.open", Holding.HANDLE),
        ("builtins.open.read", Holding.COPYABLE),
        ("fsspec.open.open.read.decode", Holding.COPYABLE),
        ("h5py.File", Holding.HANDLE),
        ("lmdb.open.begin", Holding.HANDLE),
        ("redis.Redis", Holding.HANDLE),
        ("zipfile.ZipFile", Holding.HANDLE),
        ("PIL.Image.open", Holding.HANDLE),
        ("numpy.random.default_rng", Holding.GENERATOR),
        ("numpy.random.rand", Holding.COPYABLE),
        ("random.Random", Holding.GENERATOR),
        ("torch.Generator", Holding.GENERATOR),
        ("builtins.iter", Holding.ITERATOR),
        ("itertools.cycle", Holding.ITERATOR),
        ("threading.Lock", Holding.LOCK),
        ("multiprocessing.Manager", Holding.LOCK),
        ("torch.cuda.Stream", Holding.LOCK),
        ("slides.Reader", Holding.UNKNOWN),
        ("numpyish.load", Holding.UNKNOWN),
    ],
)
def test_holding(maker: str, holding: Holding) -> None:
    assert holding_of(maker) is holding
