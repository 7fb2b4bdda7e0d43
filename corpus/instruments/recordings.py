"""Makes recordings up: each instrument has overtones of its own."""
import os

import numpy as np

INSTRUMENTS = ["flute", "clarinet", "violin", "bell"]
OVERTONES = [[1.0, 0.1, 0.0, 0.0], [1.0, 0.0, 0.6, 0.0], [1.0, 0.7, 0.5, 0.4], [0.4, 0.0, 0.2, 1.0]]


def record(folder, count, length, seed):
    """Writes `count` recordings of `length` samples each, as files named after their instrument."""
    os.makedirs(folder, exist_ok=True)
    time = np.arange(length) / 8000
    for i in range(count):
        rng = np.random.default_rng(seed + i)
        which = i % len(INSTRUMENTS)
        path = os.path.join(folder, "%05d_%s.npy" % (i, INSTRUMENTS[which]))
        if os.path.exists(path):
            continue
        pitch = rng.uniform(200, 500)
        sound = sum(a * np.sin(2 * np.pi * pitch * (n + 1) * time) for n, a in enumerate(OVERTONES[which]))
        sound = sound + rng.normal(0, 0.1, length)
        with open(path + ".%d" % os.getpid(), "wb") as f:
            np.save(f, sound.astype(np.float32))
        os.replace(path + ".%d" % os.getpid(), path)
