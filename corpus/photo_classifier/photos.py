"""Draws the photos that train.py learns from, so that it runs without a download."""
import random
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ["sunset", "sea", "meadow"]
SKIES = {"sunset": (235, 120, 60), "sea": (150, 190, 235), "meadow": (170, 205, 240)}
GROUNDS = {"sunset": (60, 40, 70), "sea": (30, 80, 140), "meadow": (70, 130, 50)}


def draw(label: str, seed: int, width: int = 1200, height: int = 800) -> Image.Image:
    """A sky over a ground, with a texture like a camera's: JPEG has to work for it."""
    rng = np.random.default_rng(seed)
    horizon = int(height * rng.uniform(0.35, 0.65))
    tint = rng.normal(0, 15, size=(2, 3))
    picture = np.empty((height, width, 3), dtype=np.float32)
    picture[:horizon] = np.array(SKIES[label]) + tint[0]
    picture[horizon:] = np.array(GROUNDS[label]) + tint[1]
    coarse = Image.fromarray(rng.integers(0, 255, (height // 25, width // 25), dtype=np.uint8))
    texture = np.asarray(coarse.resize((width, height), Image.BICUBIC), dtype=np.float32) - 127
    grain = rng.normal(0, 6, size=(height, width)).astype(np.float32)
    picture += (0.25 * texture + grain)[:, :, None]
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def make_photos(root: str, split: str, count: int) -> Path:
    """The folder `root/split` with `count` photos and their labels.csv, drawn where they are missing."""
    folder = Path(root) / split
    folder.mkdir(parents=True, exist_ok=True)
    labels = random.Random(split)
    rows = [(f"{i:06d}.jpg", labels.choice(CLASSES)) for i in range(count)]
    for seed, (name, label) in enumerate(rows):
        if not (folder / name).exists():
            draw(label, seed + 1000003 * (split == "val")).save(folder / name, quality=92)
    table = "".join(f"{name},{label}\n" for name, label in rows)
    labels_file = folder / "labels.csv"
    if not labels_file.exists() or labels_file.read_text() != table:
        labels_file.write_text(table)
    return folder
