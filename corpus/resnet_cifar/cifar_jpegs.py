"""Writes a stand-in for CIFAR-10 as JPEG files, one folder per class, so that nothing has to be downloaded."""

import colorsys
import os
import shutil
import tempfile

import numpy as np
from PIL import Image

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def draw(label, rng, size=32):
    """A noisy striped square: hue, direction and width of the stripes belong to the class."""
    y, x = np.mgrid[0:size, 0:size] / size
    angle = np.pi * label / len(CLASSES) + rng.normal(0, 0.1)
    waves = np.sin(2 * np.pi * (2 + label % 5) * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6.28))
    color = np.array(colorsys.hsv_to_rgb((label / len(CLASSES) + rng.normal(0, 0.03)) % 1, 0.8, 0.8))
    pixels = color * (0.7 + 0.3 * waves[..., None]) + rng.normal(0, 0.08, (size, size, 3))
    return Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8))


def make_split(root, name, count, seed):
    """Folder with `count` JPEGs, written on the first call and reused afterwards."""
    folder = os.path.join(root, f"{name}-{count}")
    if os.path.isdir(folder):
        return folder
    os.makedirs(root, exist_ok=True)
    # written beside and renamed at the end: an interrupted run leaves no half a dataset behind
    partial = tempfile.mkdtemp(dir=root)
    for cls in CLASSES:
        os.mkdir(os.path.join(partial, cls))
    rng = np.random.default_rng(seed)
    for i in range(count):
        label = i % len(CLASSES)
        draw(label, rng).save(os.path.join(partial, CLASSES[label], f"{i:06d}.jpg"), quality=90)
    try:
        os.rename(partial, folder)
    except OSError:  # another process was first
        shutil.rmtree(partial)
    return folder
