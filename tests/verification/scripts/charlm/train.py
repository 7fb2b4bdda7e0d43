"""A character model with tied weights, checkpointed blocks, an attention mask in a buffer, and its log on stderr."""

import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

logger = logging.getLogger("charlm")


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("tril", torch.tril(torch.ones(length, length)))

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        scores = scores.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        return self.project((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.dropout(self.attend(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class CharLM(nn.Module):
    def __init__(self, vocabulary, width=16, length=12):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, 2, length) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x):
        h = self.token(x) * math.sqrt(16) + self.position[: x.size(1)]
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.training else block(h)
        return self.head(self.norm(h))


class Trainer:
    def __init__(self, model, data, lr=3e-3, warmup=4, steps=12):
        self.model, self.data, self.steps = model, data, steps
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)

        def factor(step):
            if step < warmup:
                return (step + 1) / warmup
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    def batch(self, split):
        data = self.data[split]
        starts = torch.randint(0, len(data) - 13, (8,))
        return (
            torch.stack([data[i : i + 12] for i in starts]),
            torch.stack([data[i + 1 : i + 13] for i in starts]),
        )

    def fit(self):
        self.model.train()
        for step in range(1, self.steps + 1):
            x, y = self.batch("train")
            logits = self.model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.05)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            if step % 4 == 0:
                logger.info("step %d: loss %.4f, validation %.4f", step, loss.item(), self.validate())

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = count = 0
        for size in (8, 3):
            x, y = self.batch("valid")
            loss = F.cross_entropy(self.model(x[:size]).flatten(0, 1), y[:size].flatten())
            total, count = total + loss.item() * size, count + size
        self.model.train()
        return total / count


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(13)
    text = "she sells sea shells by the sea shore, and the shells she sells are sea shells. " * 4
    letters = sorted(set(text))
    data = torch.tensor([letters.index(c) for c in text])
    Trainer(CharLM(len(letters)), {"train": data[:250], "valid": data[250:]}).fit()


if __name__ == "__main__":
    main()
