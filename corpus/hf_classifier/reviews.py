"""Writes film reviews of made-up words as text files, in folders as IMDB has them, and reads them again."""

import os
import shutil
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset

WORDS = ["".join(c + v for c, v in zip(a, b)) for a in ("bd", "kl", "mr", "st", "vz") for b in ("ae", "io", "ua", "ei", "ou", "ia")]
GOOD, BAD = WORDS[:8], WORDS[8:16]
VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[UNK]", *WORDS])}


def write_split(root, name, count, seed):
    """Folder with `count` reviews, written on the first call and reused afterwards."""
    folder = os.path.join(root, f"{name}-{count}")
    if os.path.isdir(folder):
        return folder
    os.makedirs(root, exist_ok=True)
    partial = tempfile.mkdtemp(dir=root)
    rng = np.random.default_rng(seed)
    for label, liked in (("neg", BAD), ("pos", GOOD)):
        os.mkdir(os.path.join(partial, label))
        for i in range(count // 2):
            length = rng.integers(20, 60)
            words = [rng.choice(liked) if rng.random() < 0.3 else rng.choice(WORDS) for _ in range(length)]
            with open(os.path.join(partial, label, f"{i:05d}.txt"), "w", encoding="utf-8") as file:
                file.write(" ".join(words))
    try:
        os.rename(partial, folder)
    except OSError:  # another process was first
        shutil.rmtree(partial)
    return folder


class Reviews(Dataset):
    """Reviews as token ids, read and tokenized when they are asked for."""

    def __init__(self, folder, max_length):
        self.files = [
            (os.path.join(folder, name, file), label)
            for label, name in enumerate(("neg", "pos"))
            for file in sorted(os.listdir(os.path.join(folder, name)))
        ]
        self.max_length = max_length

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with open(path, encoding="utf-8") as file:
            words = ["[CLS]", *file.read().lower().split()][: self.max_length]
        ids = [VOCABULARY.get(word, VOCABULARY["[UNK]"]) for word in words]
        padding = self.max_length - len(ids)
        return {
            "input_ids": torch.tensor(ids + [0] * padding),
            "attention_mask": torch.tensor([1] * len(ids) + [0] * padding),
            "labels": torch.tensor(label),
        }
