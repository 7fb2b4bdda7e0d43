"""Two towers: negatives from the batch, corrected for how often they come, and hard ones mined before each epoch."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

USERS, ITEMS = 12, 30


class Clicks(Dataset):
    def __init__(self, n, rng):
        taste, genre = rng.integers(0, 4, USERS), rng.integers(0, 4, ITEMS)
        popularity = rng.random(ITEMS) ** 2
        self.pairs = []
        for _ in range(n):
            user = int(rng.integers(USERS))
            weights = popularity * np.where(genre == taste[user], 8.0, 1.0)
            self.pairs.append((user, int(rng.choice(ITEMS, p=weights / weights.sum()))))
        self.hard = [(item + 7) % ITEMS for _, item in self.pairs]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        return *self.pairs[k], self.hard[k]


class Towers(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, d), nn.Embedding(ITEMS, d)
        self.mlp = nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, d))
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def query(self, users):
        return F.normalize(self.mlp(self.user(users)), dim=1)

    def items(self, ids):
        return F.normalize(self.item(ids), dim=-1)


def loss_of(model, users, items, hard, log_q):
    q, v, h = model.query(users), model.items(items), model.items(hard)
    scale = model.log_scale.exp()
    scores = scale * q @ v.t() - log_q[items]
    same = (items[:, None] == items).fill_diagonal_(False)
    scores = scores.masked_fill(same, float("-inf"))
    extra = scale * (q * h).sum(1) - log_q[hard]
    extra = extra.masked_fill(hard == items, float("-inf"))
    return F.cross_entropy(torch.cat([scores, extra[:, None]], 1), torch.arange(len(q)))


@torch.no_grad()
def mine(model, data, skip=1):
    """For each click the best item but for the one clicked and the top ones."""
    model.eval()
    table = model.items(torch.arange(ITEMS))
    hard = []
    for user, item, _ in data:
        scores = (model.query(torch.tensor([user])) @ table.t())[0]
        scores[item] = float("-inf")
        hard.append(int(scores.argsort(descending=True)[skip]))
    model.train()
    return hard


@torch.no_grad()
def evaluate(model, loader, k=5):
    model.eval()
    table = model.items(torch.arange(ITEMS))
    hits, reciprocal, count = 0, 0.0, 0
    for users, items, _ in loader:
        scores = model.query(users) @ table.t()
        for row, item in zip(scores, items):
            rank = int((row > row[item]).sum()) + 1
            hits += rank <= k
            reciprocal += 1 / rank
            count += 1
    model.train()
    return hits / count, reciprocal / count


def main():
    rng = np.random.default_rng(3)
    torch.manual_seed(3)
    train, valid = Clicks(90, rng), Clicks(30, rng)
    valid_loader = DataLoader(valid, batch_size=16)
    counts = np.bincount([item for _, item in train.pairs], minlength=ITEMS) + 1
    log_q = torch.log(torch.tensor(counts / counts.sum(), dtype=torch.float32))
    model = Towers()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for epoch in range(3):
        if epoch:
            train.hard = mine(model, train)
        loader = DataLoader(train, batch_size=18, shuffle=True)
        total = 0.0
        for users, items, hard in loader:
            loss = loss_of(model, users, items, hard, log_q)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        hit, mrr = evaluate(model, valid_loader)
        print(f"epoch {epoch} loss {total / len(loader):.4f} hit@5 {hit:.3f} mrr {mrr:.4f}")
    with torch.no_grad():
        np.save("index.npy", model.items(torch.arange(ITEMS)).numpy())


if __name__ == "__main__":
    main()
