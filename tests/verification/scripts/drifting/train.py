"""Online learning over a stream: prequential accuracy, drift detection resets the optimizer, a replay reservoir, snapshots as npz."""
import itertools
import json
import math
import os
import tempfile
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, n, drift_at, seed):
        self.n, self.drift_at, self.seed = n, drift_at, seed

    def __iter__(self):
        info = get_worker_info()
        wid, nw = (info.id, info.num_workers) if info else (0, 1)
        for i in itertools.islice(range(self.n), wid, None, nw):
            r = np.random.default_rng([self.seed, i])
            x = r.normal(size=8).astype(np.float32)
            w = np.ones(8) if i < self.drift_at else -np.ones(8) * np.arange(8) % 2 - 0.5
            yield {"x": x, "y": np.int64(x @ w > 0), "t": i}


class DDM:
    """Drift detection by Gama et al."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.n, self.p, self.s, self.pmin, self.smin = 0, 1.0, 0.0, math.inf, math.inf

    def add(self, wrong):
        self.n += 1
        self.p += (wrong - self.p) / self.n
        self.s = math.sqrt(self.p * (1 - self.p) / self.n)
        if self.n < 60:
            return False
        if self.p + self.s < self.pmin + self.smin:
            self.pmin, self.smin = self.p, self.s
        return self.p + self.s > self.pmin + 2 * self.smin


def make(model):
    return torch.optim.Adagrad(model.parameters(), lr=0.05)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    loader = DataLoader(Stream(400, 220, 3), batch_size=10)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
    opt, ddm = make(model), DDM()
    window, reservoir, seen, drifts = deque(maxlen=50), [], 0, []
    log = open("stream.jsonl", "w")
    for k, batch in enumerate(loader):
        x, y = batch["x"], batch["y"]
        model.eval()
        with torch.no_grad():
            probs = F.softmax(model(x), 1)
        wrong = (probs.argmax(1) != y).int().tolist()
        window.extend(1 - w for w in wrong)
        for t, w in zip(batch["t"].tolist(), wrong):
            if ddm.add(w):
                drifts.append(t)
                ddm.reset()
                opt = make(model)
                reservoir.clear()
                seen = 0
        model.train()
        if reservoir:
            picks = rng.choice(len(reservoir), min(6, len(reservoir)), replace=False)
            x = torch.cat([x, torch.stack([reservoir[i][0] for i in picks])])
            y = torch.cat([y, torch.stack([reservoir[i][1] for i in picks])])
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for xi, yi in zip(batch["x"], batch["y"]):
            seen += 1
            if len(reservoir) < 40:
                reservoir.append((xi, yi))
            else:
                j = rng.integers(seen)
                if j < 40:
                    reservoir[j] = (xi, yi)
        log.write(json.dumps({"t": int(batch["t"][-1]), "acc": sum(window) / len(window), "loss": round(loss.item(), 6), "conf": probs.max(1).values.mean().item()}) + "\n")
        if k % 10 == 9:
            fd, tmp = tempfile.mkstemp(dir=".")
            os.close(fd)
            np.savez(tmp + ".npz", **{n.replace(".", "_"): p.detach().numpy() for n, p in model.named_parameters()}, seen=seen)
            os.replace(tmp + ".npz", "snapshot.npz")
            os.remove(tmp)
            print("t=%d prequential %.3f drifts %s" % (batch["t"][-1], sum(window) / len(window), drifts))
    log.close()


main()
