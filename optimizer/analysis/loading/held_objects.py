"""What a worker process may do with an object that a library made before it started."""

from __future__ import annotations

from enum import Enum


class Holding(Enum):
    """``COPYABLE`` objects work as copies; the others do not, or (``UNKNOWN``) may not."""

    COPYABLE = "copyable"
    HANDLE = "handle"
    GENERATOR = "generator"
    ITERATOR = "iterator"
    LOCK = "lock"
    UNKNOWN = "unknown"


_HANDLES = frozenset(
    {
        "builtins.open",
        "io.open",
        "gzip.open",
        "bz2.open",
        "lzma.open",
        "tarfile.open",
        "zipfile.ZipFile",
        "mmap.mmap",
        "PIL.Image.open",
        "h5py.File",
        "lmdb.open",
        "lmdb.Environment",
        "lmdb.open.begin",
        "lmdb.Environment.begin",
        "tables.open_file",
        "netCDF4.Dataset",
        "sqlite3.connect",
        "sqlite3.connect.cursor",
        "cv2.VideoCapture",
        "decord.VideoReader",
        "openslide.OpenSlide",
        "openslide.open_slide",
        "rasterio.open",
        "pandas.HDFStore",
        "torchvision.io.VideoReader",
        "socket.socket",
        "requests.Session",
        "subprocess.Popen",
    }
)
_HANDLE_LIBRARIES = (
    "redis.",
    "pymongo.",
    "psycopg2.",
    "sqlalchemy.",
    "tensorflow.",
    "boto3.",
    "pysam.",
)
_GENERATORS = frozenset(
    {
        "torch.Generator",
        "numpy.random.RandomState",
        "numpy.random.default_rng",
        "numpy.random.Generator",
        "random.Random",
    }
)
_ITERATORS = frozenset(
    {
        "builtins.iter",
        "builtins.map",
        "builtins.filter",
        "builtins.zip",
        "builtins.enumerate",
        "builtins.reversed",
        "csv.reader",
        "csv.DictReader",
        "os.scandir",
        "os.walk",
    }
)
_ITERATOR_LIBRARIES = ("itertools.",)
_PROCESS_LIBRARIES = (
    "threading.",
    "multiprocessing.",
    "torch.multiprocessing.",
    "queue.",
    "asyncio.",
    "torch.cuda.",
)
_COPYABLE_LIBRARIES = tuple(
    f"{name}."
    for name in (
        "builtins numpy pandas torch torchvision torchaudio torchtext os pathlib glob json pickle re math cmath string "
        "collections copy functools operator random time datetime logging warnings argparse types typing enum "
        "dataclasses ast struct base64 hashlib io shutil sys csv xml fnmatch codecs scipy sklearn skimage PIL cv2 "
        "imageio matplotlib transformers tokenizers sentencepiece tiktoken nltk spacy albumentations timm yaml "
        "omegaconf hydra easydict yacs tqdm einops librosa soundfile pycocotools nibabel gzip bz2 lzma zipfile lmdb "
        "h5py sqlite3 natsort ujson simplejson orjson toml tomllib pydicom SimpleITK datasets"
    ).split()
)
"""Libraries whose objects, but for those named above, are plain values: arrays, tables, tokenizers, file contents."""

_CONTENT_METHODS = frozenset(
    "read readlines readline decode split splitlines strip tolist to_list to_numpy numpy to_dict copy keys values items "
    "sum mean".split()
)
"""Methods that give plain values, whatever they are called on."""


def holding_of(maker: str) -> Holding:
    """What a worker may do with the result of calling the library name ``maker``."""
    if maker.count(".") > 1 and maker.rpartition(".")[2] in _CONTENT_METHODS:
        return Holding.COPYABLE
    if maker in _HANDLES or maker.startswith(_HANDLE_LIBRARIES):
        return Holding.HANDLE
    if maker in _GENERATORS:
        return Holding.GENERATOR
    if maker in _ITERATORS or maker.startswith(_ITERATOR_LIBRARIES):
        return Holding.ITERATOR
    if maker.startswith(_PROCESS_LIBRARIES):
        return Holding.LOCK
    if maker.startswith(_COPYABLE_LIBRARIES) or maker.startswith("<"):
        return Holding.COPYABLE
    return Holding.UNKNOWN
