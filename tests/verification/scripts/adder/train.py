"""A small transformer learns to add: batches skipped by their size, greedy answers in evaluations, the epoch given to the scheduler."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split

torch.manual_seed(5)
BATCH, EPOCHS, WIDTH, LENGTH = 8, 4, 24, 4


class Sums(Dataset):
    """``a + b`` of one digit each, the answer with its last digit first."""

    def __init__(self):
        self.pairs = [(a, b) for a in range(10) for b in range(10)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        a, b = self.pairs[i]
        digits = torch.tensor([a, b, (a + b) % 10, (a + b) // 10])
        target = digits[1:].clone()
        target[0] = -1
        return digits[:-1], target


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(WIDTH // 2)
        att = att.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf")).softmax(-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(10, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x):
        h = self.token(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))

    @torch.no_grad()
    def answer(self, x, digits):
        for _ in range(digits):
            x = torch.cat([x, self(x)[:, -1:].argmax(-1)], 1)
        return x[:, -digits:]


def evaluate(model, data):
    model.eval()
    right, total, errors = 0, 0, []
    for x, _ in DataLoader(data, batch_size=48):
        said = model.answer(x[:, :2], 2)
        truth = x[:, 0] + x[:, 1]
        value = said[:, 0] + 10 * said[:, 1]
        right += (value == truth).sum().item()
        errors += (value - truth).abs().tolist()
        total += len(x)
    model.train()
    return right / total, sum(errors) / total, max(errors)


train, held = random_split(Sums(), [62, 38])
loader = DataLoader(train, batch_size=BATCH, shuffle=True)
model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.7**epoch)
best = -1.0
for epoch in range(EPOCHS):
    scheduler.step(epoch)
    total, batches = 0.0, 0
    for x, y in loader:
        if x.size(0) != BATCH:
            continue
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        batches += 1
    known, _, _ = evaluate(model, train)
    score, error, worst = evaluate(model, held)
    print(f"epoch {epoch} loss {total / batches:.4f} known {known:.3f} held {score:.3f}")
    print(f"  off by {error:.3f}, at most {worst}")
    if -error > best or epoch == 0:
        best = -error
        torch.save(model.state_dict(), "adder.pt")
