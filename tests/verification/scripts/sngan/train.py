"""A conditional GAN with spectral norm, zero-centred gradient penalty (lazy R1), an EMA generator and a Frechet-like score."""
import copy
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

random.seed(14)
np.random.seed(14)
torch.manual_seed(14)
Z, CLASSES, R1_EVERY, R1_GAMMA = 8, 3, 4, 1.0


class CBN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bn = nn.BatchNorm2d(c, affine=False)
        self.gain, self.bias = nn.Embedding(CLASSES, c), nn.Embedding(CLASSES, c)
        nn.init.ones_(self.gain.weight)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x, y):
        return self.bn(x) * self.gain(y)[..., None, None] + self.bias(y)[..., None, None]


class Generator(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.fc = nn.Linear(Z, c * 4)
        self.n1, self.n2 = CBN(c), CBN(c)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, z, y):
        h = self.fc(z).view(len(z), -1, 2, 2)
        h = F.interpolate(F.leaky_relu(self.n1(h, y), 0.2), scale_factor=2)
        h = F.interpolate(F.leaky_relu(self.n2(self.c1(h), y), 0.2), scale_factor=2)
        return torch.tanh(self.c2(h))


class Discriminator(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.c1 = spectral_norm(nn.Conv2d(1, c, 3, 2, 1))
        self.c2 = spectral_norm(nn.Conv2d(c, c, 3, 2, 1))
        self.fc = spectral_norm(nn.Linear(c, 1))
        self.emb = spectral_norm(nn.Embedding(CLASSES, c))

    def forward(self, x, y):
        h = F.leaky_relu(self.c2(F.leaky_relu(self.c1(x), 0.2)), 0.2).sum((2, 3))
        return self.fc(h) + (self.emb(y) * h).sum(1, keepdim=True)


def shapes(n):
    rng = np.random.RandomState(0)
    y = rng.randint(0, CLASSES, n)
    x = -np.ones((n, 1, 8, 8), dtype=np.float32) + 0.1 * rng.randn(n, 1, 8, 8).astype(np.float32)
    for i, k in enumerate(y):
        a = rng.randint(1, 4)
        if k == 0:
            x[i, 0, a : a + 4, a : a + 4] += 1.8
        elif k == 1:
            x[i, 0, a] += 1.8
        else:
            x[i, 0, :, a] += 1.8
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


@torch.no_grad()
def update_ema(ema, net, decay, step):
    decay = min(decay, (1 + step) / (10 + step))
    for (k, p), (_, q) in zip(ema.named_parameters(), net.named_parameters()):
        p.lerp_(q, 1 - decay)
    for b, c in zip(ema.buffers(), net.buffers()):
        b.copy_(c)


@torch.no_grad()
def frechet(g, real, n=60):
    g.eval()
    gen = torch.Generator().manual_seed(0)
    y = torch.arange(n) % CLASSES
    fake = torch.cat([g(torch.randn(20, Z, generator=gen), part) for part in y.split(20)])
    a, b = real.flatten(1), fake.flatten(1)
    return ((a.mean(0) - b.mean(0)) ** 2).sum().item() + ((a.std(0) - b.std(0)) ** 2).sum().item()


data = shapes(130)
loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
G, D = Generator(), Discriminator()
G_ema = copy.deepcopy(G).requires_grad_(False)
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(D.parameters(), lr=4e-3, betas=(0.0, 0.99))
step, best = 0, float("inf")
for epoch in range(6):
    d_sum, g_sum, r1_sum, r1_n = 0.0, 0.0, 0.0, 0
    for x, y in loader:
        z, fake_y = torch.randn(len(x), Z), torch.randint(0, CLASSES, (len(x),))
        with torch.no_grad():
            fake = G(z, fake_y)
        d_loss = F.relu(1 - D(x, y)).mean() + F.relu(1 + D(fake, fake_y)).mean()
        opt_d.zero_grad()
        d_loss.backward()
        if step % R1_EVERY == 0:
            x_r = x.detach().requires_grad_(True)
            (grad,) = torch.autograd.grad(D(x_r, y).sum(), x_r, create_graph=True)
            r1 = grad.pow(2).flatten(1).sum(1).mean()
            (0.5 * R1_GAMMA * R1_EVERY * r1).backward()
            r1_sum, r1_n = r1_sum + r1.item(), r1_n + 1
        opt_d.step()
        z, fake_y = torch.randn(len(x), Z), torch.randint(0, CLASSES, (len(x),))
        D.requires_grad_(False)
        g_loss = -D(G(z, fake_y), fake_y).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        D.requires_grad_(True)
        update_ema(G_ema, G, 0.9, step)
        step += 1
        d_sum, g_sum = d_sum + d_loss.item(), g_sum + g_loss.item()
    score = frechet(G_ema, data.tensors[0])
    print(f"epoch {epoch} d {d_sum / len(loader):.4f} g {g_sum / len(loader):.4f} r1 {r1_sum / max(1, r1_n):.4f} frechet {score:.4f}")
    if score < best:
        best = score
        torch.save({"G_ema": G_ema.state_dict(), "score": score, "step": step}, "best.pt")
torch.save({"G": G.state_dict(), "D": D.state_dict(), "G_ema": G_ema.state_dict(), "opt_g": opt_g.state_dict(), "opt_d": opt_d.state_dict()}, "last.pt")
