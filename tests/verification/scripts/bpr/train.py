"""Recommendation from implicit feedback: sampled negatives, sparse embeddings, hit rate at k computed in numpy."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler, WeightedRandomSampler


class Interactions(Dataset):
    def __init__(self, pairs, items):
        self.pairs, self.items = pairs, items
        self.rng = np.random.default_rng()
        self.known = {}
        for user, item in pairs:
            self.known.setdefault(int(user), set()).add(int(item))
        self.sample_negatives()

    def sample_negatives(self):
        self.negatives = np.empty(len(self.pairs), dtype=np.int64)
        for i, (user, _) in enumerate(self.pairs):
            negative = self.rng.integers(self.items)
            while int(negative) in self.known[int(user)]:
                negative = self.rng.integers(self.items)
            self.negatives[i] = negative

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        user, item = self.pairs[i]
        return int(user), int(item), int(self.negatives[i])


class MatrixFactorization(nn.Module):
    def __init__(self, users, items, k=8):
        super().__init__()
        self.users = nn.Embedding(users, k, sparse=True)
        self.items = nn.Embedding(items, k, sparse=True)
        self.bias = nn.Parameter(torch.zeros(items))
        for embedding in (self.users, self.items):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1) + self.bias[item]


def hit_rate(model, held_out, known, k=5):
    model.eval()
    with torch.no_grad():
        scores = model.users.weight @ model.items.weight.T + model.bias
    scores = scores.numpy().copy()
    hits = 0
    for user, item in held_out:
        row = scores[user].copy()
        row[list(known[int(user)])] = -np.inf
        hits += int(item) in np.argpartition(-row, k)[:k]
    return hits / len(held_out)


def main():
    torch.manual_seed(12)
    users, items = 20, 30
    rng = np.random.RandomState(12)
    taste, kind = rng.randint(0, 3, users), rng.randint(0, 3, items)
    likes = (taste[:, None] == kind[None]) & (rng.rand(users, items) < 0.7)
    pairs = np.argwhere(likes)
    held = rng.rand(len(pairs)) < 0.15
    train, test = Interactions(pairs[~held], items), pairs[held]
    popularity = np.bincount(train.pairs[:, 1], minlength=items)
    weights = 1.0 / popularity[train.pairs[:, 1]]
    sampler = WeightedRandomSampler(weights, num_samples=100, replacement=True)
    loader = DataLoader(train, batch_size=20, sampler=sampler)
    model = MatrixFactorization(users, items)
    sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=0.02)
    dense = torch.optim.Adagrad([model.bias], lr=0.05)
    for epoch in range(3):
        model.train()
        train.sample_negatives()
        total, seen = 0.0, 0
        for user, positive, negative in loader:
            loss = -F.logsigmoid(model(user, positive) - model(user, negative)).mean()
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            total += loss.item() * len(user)
            seen += len(user)
        print(f"epoch {epoch} loss {total / seen:.5f} hit@5 {hit_rate(model, test, train.known):.4f}")


if __name__ == "__main__":
    main()
