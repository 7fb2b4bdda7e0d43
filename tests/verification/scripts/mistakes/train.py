"""A point-cloud classifier that keeps a list of its mistakes: as an array, in the checkpoint, as a table; checkpoints are named by accuracy, older ones removed."""

import csv
import glob
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def clouds(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    p = torch.randn(n, 24, 3, generator=g)
    scale = torch.tensor([[1, 1, 1], [1.5, 1, 0.6], [0.7, 1.4, 1], [1, 0.6, 1.5]])[y]
    p = p * scale[:, None] + 0.3 * torch.randn(n, 1, 3, generator=g)
    return TensorDataset(p, y)


class TNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.fc = nn.Linear(16, 9)
        nn.init.zeros_(self.fc.weight)
        self.fc.bias.data.copy_(torch.eye(3).flatten())

    def forward(self, x):
        return self.fc(self.mlp(x).amax(2)).view(-1, 3, 3)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = TNet()
        self.features = nn.Sequential(
            nn.Conv1d(3, 24, 1),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Conv1d(24, 32, 1),
            nn.BatchNorm1d(32),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))

    def forward(self, x):
        t = self.t(x.transpose(1, 2))
        h = self.features((x @ t).transpose(1, 2)).amax(2)
        return self.head(h), t


def regularity(t):
    eye = torch.eye(3, device=t.device)
    return (t @ t.transpose(1, 2) - eye).pow(2).sum((1, 2)).mean()


train, test = clouds(200, 1), clouds(160, 2)
loader = DataLoader(train, 25, shuffle=True)
net = PointNet().to(device)
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
best = 0.0
for epoch in range(4):
    net.train()
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out, t = net(x)
        loss = F.cross_entropy(out, y) + 1e-2 * regularity(t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
    net.eval()
    wrong, rows = [], []
    with torch.no_grad():
        for k, (x, y) in enumerate(DataLoader(test, 40)):
            prob = net(x.to(device))[0].softmax(1).cpu()
            pred = prob.argmax(1)
            for i in torch.nonzero(pred != y).flatten().tolist():
                wrong.append(k * 40 + i)
                rows.append([k * 40 + i, y[i].item(), pred[i].item(), f"{prob[i].max():.4f}"])
    acc = 1 - len(wrong) / len(test)
    print(f"epoch {epoch} loss {total / len(train):.4f} acc {acc:.4f} wrong {len(wrong)}")
    np.save(f"wrong{epoch}.npy", np.array(wrong))
    with open(f"wrong{epoch}.csv", "w", newline="") as f:
        csv.writer(f).writerows([["index", "label", "predicted", "confidence"], *rows])
    if acc > best:
        best = acc
        for old in glob.glob("pointnet_*.pt"):
            os.remove(old)
        torch.save(
            {"net": net.state_dict(), "wrong": torch.tensor(wrong), "acc": acc},
            f"pointnet_{acc:.4f}.pt",
        )
