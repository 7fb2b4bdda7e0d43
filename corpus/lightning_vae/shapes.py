"""Draws a stand-in for MNIST as PNG files, so that nothing has to be downloaded."""

import os
import shutil
import tempfile

import numpy as np
from PIL import Image
from torch.utils.data import Dataset


def draw(kind, rng, size=28):
    """A soft ring, bar or cross, somewhere near the middle."""
    y, x = np.mgrid[0:size, 0:size] - size / 2 - rng.normal(0, 1.5, (2, 1, 1))
    angle = rng.uniform(0, np.pi)
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    distance = [np.abs(np.hypot(x, y) - 7), np.abs(across), np.minimum(np.abs(along), np.abs(across))][kind]
    ink = np.exp(-(distance / 1.6) ** 2) * (np.hypot(x, y) < 11)
    return Image.fromarray((ink * 255).astype(np.uint8))


class Shapes(Dataset):
    """The drawings of one split, written on the first call and read from there one by one."""

    def __init__(self, root, count, seed, transform):
        self.folder = os.path.join(root, f"shapes-{count}-{seed}")
        self.transform = transform
        if not os.path.isdir(self.folder):
            os.makedirs(root, exist_ok=True)
            partial = tempfile.mkdtemp(dir=root)
            rng = np.random.default_rng(seed)
            for i in range(count):
                draw(i % 3, rng).save(os.path.join(partial, f"{i:05d}.png"))
            try:
                os.rename(partial, self.folder)
            except OSError:  # another process was first
                shutil.rmtree(partial)
        self.files = sorted(os.listdir(self.folder))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(os.path.join(self.folder, self.files[index])) as image:
            return self.transform(image)
