"""Domain adaptation: a label head beside a domain head behind a reversed gradient; each epoch's checkpoint is loaded to be tested on both domains."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 3, 16


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2)
        )
        self.labels = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
        self.domain = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x, strength):
        hidden = self.features(x)
        return self.labels(hidden), self.domain(Reverse.apply(hidden, strength))


def made(count, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    x = torch.randn(count, 10, generator=generator) + shift
    x[torch.arange(count), labels] += 2
    return TensorDataset(x, labels)


torch.manual_seed(0)
source = DataLoader(made(70, 0.0, 1), batch_size=BATCH, shuffle=True)
target = DataLoader(made(60, 0.7, 2), batch_size=BATCH, shuffle=True)
tests = {"source": made(30, 0.0, 3), "target": made(25, 0.7, 4)}
net = Adapter()
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
criterion = nn.CrossEntropyLoss()


def test(name, epoch):
    loaded = Adapter()
    loaded.load_state_dict(torch.load(f"epoch{epoch}.pt"))
    loaded.eval()
    correct, seen = 0, 0
    with torch.no_grad():
        for x, labels in DataLoader(tests[name], batch_size=BATCH):
            scores, _ = loaded(x, 0.0)
            correct += (scores.argmax(1) == labels).sum().item()
            seen += len(labels)
    print(f"epoch {epoch}: accuracy on {name} {correct / seen:.3f}")


for epoch in range(EPOCHS):
    batches = min(len(source), len(target))
    for index, ((x, labels), (other, _)) in enumerate(zip(source, target)):
        progress = (index + epoch * batches) / (EPOCHS * batches)
        strength = 2 / (1 + math.exp(-10 * progress)) - 1
        scores, domain = net(x, strength)
        label_loss = criterion(scores, labels)
        source_loss = criterion(domain, torch.zeros(len(x), dtype=torch.long))
        _, domain = net(other, strength)
        target_loss = criterion(domain, torch.ones(len(other), dtype=torch.long))
        optimizer.zero_grad()
        (label_loss + source_loss + target_loss).backward()
        optimizer.step()
        print(f"{epoch}.{index}: {label_loss:.4f} {source_loss:.4f} {target_loss:.4f}")
    torch.save(net.state_dict(), f"epoch{epoch}.pt")
    test("source", epoch)
    test("target", epoch)
