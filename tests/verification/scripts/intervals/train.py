"""MC dropout regression with WeightedRandomSampler, gradient checkpointing of dropout blocks, coverage of intervals, a plot as PNG."""

import csv

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(8)
rng = np.random.default_rng(8)
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
n = 130
x = rng.uniform(-4, 4, (n, 1))
y = np.sin(x) + 0.1 * (1 + np.abs(x)) * rng.normal(size=(n, 1))
X, Y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
density = torch.histc(X, 8, -4, 4)
weights = 1 / density[(X[:, 0] + 4).long().clamp(0, 7)]
data = TensorDataset(X, Y)
loader = DataLoader(data, batch_size=26, sampler=WeightedRandomSampler(weights, n))
grid = torch.linspace(-5, 5, 41)[:, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for i, o in ((1, 24), (24, 24), (24, 24)):
            layers += [nn.Linear(i, o), nn.ReLU(), nn.Dropout(0.1)]
        self.body = nn.Sequential(*layers)
        self.mean, self.logvar = nn.Linear(24, 1), nn.Linear(24, 1)

    def forward(self, x):
        h = (
            checkpoint_sequential(self.body, 3, x, use_reentrant=False)
            if torch.is_grad_enabled()
            else self.body(x)
        )
        return self.mean(h), self.logvar(h)


def sample(net, x, passes=10):
    for m in net.modules():
        if isinstance(m, nn.Dropout):
            m.train()
    ms, vs = [], []
    with torch.no_grad():
        for _ in range(passes):
            m, v = net(x)
            ms.append(m)
            vs.append(v.exp())
    ms, vs = torch.stack(ms), torch.stack(vs)
    return ms.mean(0), ms.var(0), vs.mean(0)


net = Net().to(dev)
opt = torch.optim.Adamax(net.parameters(), lr=2e-2)
sched = torch.optim.lr_scheduler.CyclicLR(opt, 2e-3, 2e-2, step_size_up=5, cycle_momentum=False)
nll = nn.GaussianNLLLoss()
rows = []
for epoch in range(5):
    net.train()
    acc = []
    for bx, by in loader:
        bx, by = bx.to(dev), by.to(dev)
        mean, logvar = net(bx)
        loss = nll(mean, by, logvar.exp())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        acc.append(loss.item())
    net.eval()
    m, epi, ale = sample(net, X.to(dev))
    std = (epi + ale).sqrt().cpu()
    cover = ((Y - m.cpu()).abs() < 1.96 * std).float().mean().item()
    with torch.no_grad():
        det = net.eval()(X.to(dev))[0]
    rmse = (det.cpu() - Y).pow(2).mean().sqrt().item()
    rows.append([epoch, np.mean(acc), rmse, cover, epi.mean().item(), ale.mean().item()])
    print(
        f"[{epoch}] nll {np.mean(acc):.4f} rmse {rmse:.4f} cover {cover:.3f} epistemic {epi.mean():.5f} aleatoric {ale.mean():.4f}"
    )

with open("mc.csv", "w", newline="") as fh:
    w = csv.writer(fh)
    w.writerow("epoch nll rmse cover epi ale".split())
    w.writerows(rows)
m, epi, ale = sample(net, grid.to(dev), 20)
img = Image.new("L", (82, 60), 255)
draw = ImageDraw.Draw(img)
pts = [(2 * i, 30 - 10 * v) for i, v in enumerate(m[:, 0].tolist())]
draw.line(pts, fill=0)
img.save("fit.png")
