"""Deep ensemble trained at once by vmap over stacked weights; own SGD with momentum; calibration afterwards."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

torch.manual_seed(2)
device = "cuda" if torch.cuda.is_available() else "cpu"
MEMBERS, EPOCHS, BATCH, LR, MU, WD = 4, 4, 20, 0.1, 0.9, 1e-3


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = 0.6 + 0.8 * y + 0.25 * torch.randn(n, generator=g)
    a = 6.28318 * torch.rand(n, generator=g)
    return torch.stack([r * a.cos(), r * a.sin()], 1), y


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.c(F.elu(self.b(F.elu(self.a(x)))))


class SGDM:
    def __init__(self, params, lr):
        self.params, self.lr = params, lr
        self.v = {k: torch.zeros_like(p) for k, p in params.items()}

    def step(self, grads):
        with torch.no_grad():
            for k, p in self.params.items():
                g = grads[k] + WD * p
                self.v[k].mul_(MU).add_(g)
                p.sub_(self.lr * self.v[k])


models = [MLP().to(device) for _ in range(MEMBERS)]
params, buffers = stack_module_state(models)
params = {k: p.detach().clone() for k, p in params.items()}
skeleton = MLP().to("meta")


def call(p, b, x):
    return functional_call(skeleton, (p, b), (x,))


def loss_fn(p, b, x, y):
    return F.cross_entropy(call(p, b, x), y)


X, Y = (t.to(device) for t in rings(110, 0))
XT, YT = (t.to(device) for t in rings(64, 1))
opt = SGDM(params, LR)
step_fn = vmap(grad_and_value(loss_fn), in_dims=(0, 0, 0, 0))
predict = vmap(call, in_dims=(0, 0, None))


def ece(prob, y, bins=5):
    conf, pred = prob.max(1)
    total = 0.0
    for i in range(bins):
        m = (conf > i / bins) & (conf <= (i + 1) / bins)
        if m.any():
            total += (
                m.float().mean() * (conf[m].mean() - (pred[m] == y[m]).float().mean()).abs()
            ).item()
    return total


rows = []
for epoch in range(EPOCHS):
    perms = torch.stack([torch.randperm(len(X)) for _ in range(MEMBERS)]).to(device)
    opt.lr = LR * 0.5 ** (epoch // 2)
    seen = torch.zeros(MEMBERS, device=device)
    for s in range(0, len(X), BATCH):
        idx = perms[:, s : s + BATCH]
        grads, losses = step_fn(params, buffers, X[idx], Y[idx])
        opt.step(grads)
        seen += losses * idx.shape[1]
    with torch.no_grad():
        p = predict(params, buffers, XT).softmax(-1)
    mean = p.mean(0)
    mutual = -(mean * mean.log()).sum(1) + (p * p.log()).sum(-1).mean(0)
    row = {
        "epoch": epoch,
        "train": (seen / len(X)).tolist(),
        "nll": F.nll_loss(mean.log(), YT).item(),
        "acc": (mean.argmax(1) == YT).float().mean().item(),
        "ece": ece(mean, YT),
        "mi": mutual.mean().item(),
    }
    rows.append(row)
    print(
        f"{epoch} | nll {row['nll']:.4f} acc {row['acc']:.3f} ece {row['ece']:.4f} mi {row['mi']:.5f}"
    )
with open("ensemble.json", "w") as file:
    json.dump(rows, file)
torch.save({k: v.cpu() for k, v in params.items()}, "ensemble.pt")
