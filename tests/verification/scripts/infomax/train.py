"""Node embeddings without labels: neighbourhoods told from shuffled ones; then a linear probe, three times."""
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

np.random.seed(4)
torch.manual_seed(4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

NODES, FEATS, HIDDEN, CLASSES = 60, 12, 8, 3


def make_graph():
    labels = np.random.randint(CLASSES, size=NODES)
    centres = np.random.rand(CLASSES, FEATS)
    feats = (np.random.rand(NODES, FEATS) < 0.2 + 0.6 * centres[labels]).astype(np.float32)
    adj = np.eye(NODES, dtype=np.float32)
    for a in range(NODES):
        for b in np.random.randint(NODES, size=6):
            if labels[a] == labels[b] or np.random.rand() < 0.1:
                adj[a, b] = adj[b, a] = 1.0
    scale = adj.sum(1) ** -0.5
    adj = adj * scale[:, None] * scale[None]
    return torch.from_numpy(feats), torch.from_numpy(adj).to_sparse(), torch.from_numpy(labels)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(FEATS, HIDDEN, bias=False)
        self.bias = nn.Parameter(torch.zeros(HIDDEN))
        self.act = nn.PReLU()

    def forward(self, x, adj):
        return self.act(torch.sparse.mm(adj, self.fc(x)) + self.bias)


class Infomax(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.score = nn.Bilinear(HIDDEN, HIDDEN, 1)

    def forward(self, x, shuffled, adj):
        real = self.encoder(x, adj)
        summary = torch.sigmoid(real.mean(0, keepdim=True))
        fake = self.encoder(shuffled, adj)
        c = summary.expand_as(real)
        return torch.cat((self.score(real, c), self.score(fake, c))).squeeze(1)

    def embed(self, x, adj):
        return self.encoder(x, adj).detach()


feats, adj, labels = make_graph()
feats, adj, labels = feats.to(device), adj.to(device), labels.to(device)
train_idx, test_idx = torch.arange(40, device=device), torch.arange(40, NODES, device=device)

model = Infomax().to(device)
opt = torch.optim.Adam(model.parameters(), lr=0.02)
best, best_epoch = 1e9, 0

for epoch in range(6):
    start = time.time()
    losses = []
    for _ in range(3):
        opt.zero_grad()
        perm = np.random.permutation(NODES)
        target = torch.cat((torch.ones(NODES), torch.zeros(NODES))).to(device)
        logits = model(feats, feats[perm], adj)
        loss = F.binary_cross_entropy_with_logits(logits, target)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(epoch)
    print(time.time() - start)
    print(np.mean(losses))
    if np.mean(losses) < best:
        print("best so far")
        best, best_epoch = np.mean(losses), epoch
        torch.save(model.state_dict(), "best_infomax.pkl")
    torch.save(model.state_dict(), "last_infomax.pkl")

print("loading epoch", best_epoch)
model.load_state_dict(torch.load("best_infomax.pkl", map_location=device))
embeds = model.embed(feats, adj)

accs = []
for _ in range(3):
    probe = nn.Linear(HIDDEN, CLASSES).to(device)
    probe_opt = torch.optim.Adam(probe.parameters(), lr=0.05)
    for _ in range(4):
        probe_opt.zero_grad()
        F.cross_entropy(probe(embeds[train_idx]), labels[train_idx]).backward()
        probe_opt.step()
    acc = (probe(embeds[test_idx]).argmax(1) == labels[test_idx]).float().mean()
    accs.append(acc * 100)
    print(acc)
accs = torch.stack(accs)
print(accs.mean(), accs.std())
