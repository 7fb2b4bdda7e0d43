"""Two views, a momentum network that follows, a queue of features, and a cosine schedule of the momentum."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class MoCo(nn.Module):
    def __init__(self, size=32, temperature=0.2):
        super().__init__()
        self.temperature = temperature
        self.encoder_q = Encoder()
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(8, size), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self, momentum):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * momentum + q.data * (1.0 - momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        start = int(self.pointer)
        self.queue[:, start : start + len(keys)] = keys.T
        self.pointer[0] = (start + len(keys)) % self.queue.shape[1]

    def forward(self, one, two, momentum):
        q = self.encoder_q(one)
        with torch.no_grad():
            self.follow(momentum)
            k = self.encoder_k(two)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        self.enqueue(k)
        return logits, torch.zeros(len(q), dtype=torch.long)


def augment(x):
    return x + 0.3 * torch.randn_like(x)


def main():
    torch.manual_seed(5)
    data = torch.randn(64, 12) + 2 * torch.eye(12)[torch.arange(64) % 12]
    model = MoCo()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    step, steps = 0, 16
    for epoch in range(2):
        order = torch.randperm(len(data))
        for start in range(0, len(data), 8):
            x = data[order[start : start + 8]]
            momentum = 1 - 0.1 * (math.cos(math.pi * step / steps) + 1) / 2
            logits, labels = model(augment(x), augment(x), momentum)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f} top {(logits.argmax(1) == 0).float().mean().item():.2f}")
    torch.save(model.state_dict(), "moco.pt")
    torch.save(model.encoder_q.state_dict(), "encoder.pt")


if __name__ == "__main__":
    main()
