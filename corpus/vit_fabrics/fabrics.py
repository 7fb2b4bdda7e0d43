"""Draws the pieces of cloth that train.py learns from, so that it runs without a download."""
from pathlib import Path

import numpy as np
from PIL import Image

WEAVES = ("plain", "basket", "twill", "satin", "herringbone")


def over(weave, rows, columns):
    """Where the warp lies above the weft."""
    if weave == "plain":
        return (rows + columns) % 2 == 0
    if weave == "basket":
        return (rows // 2 + columns // 2) % 2 == 0
    if weave == "twill":
        return (rows + columns) % 4 < 2
    if weave == "satin":
        return (2 * rows + columns) % 5 == 0
    return (rows + abs(columns % 8 - 4)) % 4 < 2


def draw(weave, seed, size):
    """A piece of cloth of two colours, shifted, lit from one side and a little worn."""
    rng = np.random.default_rng(seed)
    thread = rng.integers(2, 4)
    rows, columns = np.indices((size, size)) // thread + rng.integers(0, 40, (2, 1, 1))
    warp, weft = rng.integers(30, 226, (2, 3))
    cloth = np.where(over(weave, rows, columns)[..., None], warp, weft).astype(float)
    cloth *= np.linspace(*rng.uniform(0.7, 1.1, 2), size)[:, None, None]
    cloth += rng.normal(0, 12, cloth.shape)
    return Image.fromarray(cloth.clip(0, 255).astype(np.uint8))


def draw_fabrics(root, split, count, size):
    """The folder `root/<split>_<count>_<size>` with a folder of PNGs per weave, drawn where they are missing."""
    folder = Path(root) / f"{split}_{count}_{size}"
    for number in range(count):
        weave = WEAVES[number % len(WEAVES)]
        path = folder / weave / f"{number:05d}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(weave, number + (1_000_000 if split == "val" else 0), size).save(path)
    return folder
