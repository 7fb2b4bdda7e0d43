"""Augmentations that treat an image and its mask alike. Both are PIL images until ToTensor."""

import random

import numpy as np
import torch
from PIL import Image, ImageEnhance


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image, mask):
        for step in self.steps:
            image, mask = step(image, mask)
        return image, mask


class Resize:
    def __init__(self, size):
        self.size = (size, size)

    def __call__(self, image, mask):
        return image.resize(self.size, Image.BILINEAR), mask.resize(self.size, Image.NEAREST)


class RandomScaledCrop:
    """Square crop of 60 to 100 % of the side, resized to `size`."""

    def __init__(self, size, smallest=0.6):
        self.size = (size, size)
        self.smallest = smallest

    def __call__(self, image, mask):
        side = int(min(image.size) * random.uniform(self.smallest, 1.0))
        left = random.randint(0, image.width - side)
        top = random.randint(0, image.height - side)
        box = (left, top, left + side, top + side)
        return image.resize(self.size, Image.BILINEAR, box), mask.resize(self.size, Image.NEAREST, box)


class RandomFlip:
    def __call__(self, image, mask):
        if random.random() < 0.5:
            image, mask = image.transpose(Image.FLIP_LEFT_RIGHT), mask.transpose(Image.FLIP_LEFT_RIGHT)
        return image, mask


class ColorJitter:
    def __init__(self, strength):
        self.strength = strength

    def __call__(self, image, mask):
        for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = enhancer(image).enhance(random.uniform(1 - self.strength, 1 + self.strength))
        return image, mask


class ToTensor:
    """Image to float CHW around 0, mask to float 1HW of zeros and ones."""

    def __call__(self, image, mask):
        image = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        mask = torch.from_numpy(np.array(mask)).unsqueeze(0).float() / 255
        return (image - 0.5) / 0.5, mask
