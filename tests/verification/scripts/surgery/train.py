"""Three tasks on one trunk: gradients that conflict are projected, tasks are weighted by learned numbers, and small batches accumulated."""

import csv
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ACCUMULATE, CLIP, RATE = 3, 2, 1.0, 0.01

random.seed(0)
torch.manual_seed(0)
x = torch.randn(150, 12)
amounts = x @ torch.randn(12, 1) + 0.1 * torch.randn(150, 1)
kinds = (x[:, :2].sum(1) > 0).long()
signs = (x[:, :3].prod(1) > 0).float()
train_loader = DataLoader(
    TensorDataset(x[:110], amounts[:110], kinds[:110], signs[:110]), batch_size=16, shuffle=True
)
valid_loader = DataLoader(
    TensorDataset(x[110:], amounts[110:], kinds[110:], signs[110:]), batch_size=16
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16)
        )
        self.heads = nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 2), nn.Linear(16, 1)])

    def forward(self, x):
        hidden = self.trunk(x)
        return [head(hidden) for head in self.heads]


def losses_of(outputs, amounts, kinds, signs):
    return [
        F.mse_loss(outputs[0], amounts),
        F.cross_entropy(outputs[1], kinds, label_smoothing=0.1),
        F.binary_cross_entropy_with_logits(outputs[2].squeeze(1), signs),
    ]


def projected(gradients):
    """The mean of the gradients, each without its parts that are against others, which come in random order."""
    found = [gradient.clone() for gradient in gradients]
    for gradient in found:
        order = list(range(len(gradients)))
        random.shuffle(order)
        for j in order:
            product = torch.dot(gradient, gradients[j])
            if product < 0:
                gradient -= product * gradients[j] / (gradients[j].norm() ** 2 + 1e-12)
    return torch.stack(found).mean(0)


def evaluate():
    net.eval()
    sums, seen, hits, wrong = [0.0, 0.0, 0.0], 0, 0, 0
    with torch.no_grad():
        for x, *targets in valid_loader:
            outputs = net(x)
            for k, loss in enumerate(losses_of(outputs, *targets)):
                sums[k] += loss.item() * len(x)
            found = outputs[2].squeeze(1) > 0
            hits += (found & (targets[2] == 1)).sum().item()
            wrong += (found != (targets[2] == 1)).sum().item()
            seen += len(x)
    net.train()
    return [total / seen for total in sums], 2 * hits / max(2 * hits + wrong, 1)


net = Net()
log_weights = nn.Parameter(torch.zeros(3))
shared = list(net.trunk.parameters())
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        {"params": [log_weights], "lr": RATE / 2, "weight_decay": 0.0},
    ],
    lr=RATE,
)
steps = EPOCHS * -(-len(train_loader) // ACCUMULATE)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=[RATE, RATE, RATE / 2], total_steps=steps
)
best, conflicts, rows = float("inf"), 0, []
for epoch in range(EPOCHS):
    trunk_gradient, norms = 0.0, []
    for batch, (x, *targets) in enumerate(train_loader, start=1):
        losses = losses_of(net(x), *targets)
        gradients = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, shared, retain_graph=True)])
            for loss in losses
        ]
        for i in range(3):
            conflicts += sum(int(torch.dot(gradients[i], gradients[j]) < 0) for j in range(i))
        trunk_gradient = trunk_gradient + projected(gradients) / ACCUMULATE
        weights = torch.softmax(log_weights, 0) * 3
        (sum(w * loss for w, loss in zip(weights, losses)) / ACCUMULATE).backward()
        if batch % ACCUMULATE == 0 or batch == len(train_loader):
            start = 0
            for parameter in shared:
                part = trunk_gradient[start : start + parameter.numel()]
                parameter.grad = part.view_as(parameter).clone()
                start += parameter.numel()
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), CLIP).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            trunk_gradient = 0.0
    valid, f1 = evaluate()
    shares = (torch.softmax(log_weights, 0) * 3).tolist()
    rows.append([epoch, *valid, f1, *shares, sum(norms) / len(norms)])
    print(f"epoch {epoch}: loss {sum(valid):.4f}, F1 {f1:.3f}, {conflicts} conflicts")
    if sum(valid) < best:
        best = sum(valid)
        torch.save({"net": net.state_dict(), "weights": log_weights.detach()}, "best.pt")
with open("log.csv", "w", newline="") as file:
    csv.writer(file).writerows(rows)
