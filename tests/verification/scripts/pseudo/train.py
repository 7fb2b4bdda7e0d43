"""Labels from k-means on the features that a network has learned so far, and a new head for each set of labels."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

K, DIM, EPOCHS = 5, 12, 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(5)
np.random.seed(5)


class Blobs(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.truth = rng.integers(0, K, n)
        centres = rng.normal(0, 1.2, (K, 20))
        self.points = (centres[self.truth] + rng.normal(0, 1, (n, 20))).astype(np.float32)
        self.labels = np.zeros(n, dtype=np.int64)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return torch.from_numpy(self.points[i]), int(self.labels[i]), i


class UniformLabelSampler(Sampler):
    """As many samples of each label."""

    def __init__(self, labels, k):
        self.labels, self.k = labels, k

    def __len__(self):
        return len(self.labels)

    def __iter__(self):
        groups = [np.flatnonzero(self.labels == c) for c in range(self.k)]
        groups = [g for g in groups if len(g)]
        each = int(len(self.labels) / len(groups)) + 1
        chosen = [np.random.choice(g, each, replace=len(g) < each) for g in groups]
        chosen = np.concatenate(chosen)
        np.random.shuffle(chosen)
        return iter(chosen[: len(self.labels)].tolist())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, DIM)
        )
        self.top_layer = None

    def forward(self, x):
        x = self.features(x)
        return self.top_layer(F.relu(x)) if self.top_layer is not None else x


def compute_features(net, dataset):
    net.eval()
    features = np.zeros((len(dataset), DIM), dtype=np.float32)
    with torch.no_grad():
        for x, _, i in DataLoader(dataset, batch_size=64):
            features[i.numpy()] = net(x.to(device)).cpu().numpy()
    features -= features.mean(0)
    return features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-8)


def kmeans(x, k, iterations=10):
    centres = x[np.linspace(0, len(x) - 1, k).astype(int)]
    for _ in range(iterations):
        distance = ((x[:, None] - centres[None]) ** 2).sum(-1)
        labels = distance.argmin(1)
        for c in range(k):
            if (labels == c).any():
                centres[c] = x[labels == c].mean(0)
            else:
                centres[c] = x[distance.min(1).argmax()]
    return labels, float(distance.min(1).mean())


def nmi(a, b):
    joint = np.histogram2d(a, b, bins=K)[0] / len(a)
    pa, pb = joint.sum(1), joint.sum(0)
    nz = joint > 0
    mi = (joint[nz] * np.log(joint[nz] / np.outer(pa, pb)[nz])).sum()
    ha, hb = (-(p[p > 0] * np.log(p[p > 0])).sum() for p in (pa, pb))
    return mi / np.sqrt(ha * hb + 1e-12)


dataset = Blobs(360)
net = Net().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
previous = None
for epoch in range(EPOCHS):
    net.top_layer = None
    features = compute_features(net, dataset)
    dataset.labels, inertia = kmeans(features, K)
    net.top_layer = nn.Linear(DIM, K).to(device)
    nn.init.normal_(net.top_layer.weight, 0, 0.01)
    nn.init.zeros_(net.top_layer.bias)
    top_optimizer = torch.optim.SGD(net.top_layer.parameters(), lr=0.1, weight_decay=1e-4)
    loader = DataLoader(dataset, batch_size=48, sampler=UniformLabelSampler(dataset.labels, K))
    net.train()
    total, n = 0.0, 0
    for x, y, _ in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        top_optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        top_optimizer.step()
        total += loss.item() * len(x)
        n += len(x)
    line = f"epoch {epoch}: loss {total / n:.4f}, inertia {inertia:.4f}, NMI {nmi(dataset.labels, dataset.truth):.4f}"
    if previous is not None:
        line += f", changed {(previous != dataset.labels).mean():.3f}, NMI t-1 {nmi(previous, dataset.labels):.4f}"
    print(line)
    previous = dataset.labels
    torch.save(
        {"epoch": epoch + 1, "state_dict": net.state_dict(), "optimizer": optimizer.state_dict()},
        "checkpoint.pth.tar",
    )
np.save("assignments.npy", dataset.labels)
