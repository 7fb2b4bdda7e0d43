"""Draws the pictures that train.py learns from, so that it runs without a download."""
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def draw(seed, side=480):
    """A plant of a few leaves in front of a blurred background."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 200, (6, 6, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((side, side), Image.BICUBIC)
    canvas = ImageDraw.Draw(picture)
    colour = tuple(int(c) for c in rng.integers(0, 255, 3))
    for angle in rng.uniform(0, 360, rng.integers(4, 9)):
        length, breadth = rng.uniform(0.25, 0.48) * side, rng.uniform(0.03, 0.09) * side
        turned = np.deg2rad(angle)
        along = np.array([np.cos(turned), np.sin(turned)]) * length
        across = np.array([-np.sin(turned), np.cos(turned)]) * breadth
        centre = np.array([side / 2, side / 2])
        leaf = [centre, centre + along / 2 + across, centre + along, centre + along / 2 - across]
        canvas.polygon([tuple(map(float, point)) for point in leaf], fill=colour)
    grain = rng.normal(0, 8, (side, side, 1))
    pixels = np.asarray(picture.filter(ImageFilter.SMOOTH)) + grain
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_plants(root, count):
    """The folder `root/plants_<count>` with `count` JPEGs, drawn where they are missing."""
    folder = Path(root) / f"plants_{count}"
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        path = folder / f"{seed:05d}.jpg"
        if not path.exists():
            draw(seed).save(path, quality=90)
    return folder
