"""Energy-based model trained with Langevin samples from a replay buffer; spectral norm; OOD score."""
import json
import random

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"


def rings(n):
    t = np.random.uniform(0, 2 * np.pi, n)
    r = np.random.choice([1.0, 2.0], n) + 0.05 * np.random.randn(n)
    return torch.tensor(np.stack([r * np.cos(t), r * np.sin(t)], 1)).float()


class Energy(nn.Module):
    def __init__(self, h=32):
        super().__init__()
        self.net = nn.Sequential(
            spectral_norm(nn.Linear(2, h)), nn.SiLU(), spectral_norm(nn.Linear(h, h)), nn.SiLU(), nn.Linear(h, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Buffer:
    def __init__(self, size=128):
        self.examples = [torch.rand(2) * 6 - 3 for _ in range(64)]
        self.size = size

    def sample(self, n):
        n_new = np.random.binomial(n, 0.05)
        new = torch.rand(n_new, 2) * 6 - 3
        old = torch.stack(random.choices(self.examples, k=n - n_new))
        return torch.cat([new, old]).to(device)

    def push(self, x):
        self.examples = list(x.cpu()) + self.examples
        self.examples = self.examples[: self.size]


def langevin(model, x, steps=8, step_size=0.1, noise=0.01):
    training = model.training
    model.eval()
    for p in model.parameters():
        p.requires_grad_(False)
    x = x.clone().requires_grad_(True)
    for _ in range(steps):
        x.data.add_(torch.randn_like(x) * noise)
        x.data.clamp_(-3, 3)
        energy = model(x).sum()
        energy.backward()
        x.grad.data.clamp_(-0.03, 0.03)
        x.data.add_(x.grad.data, alpha=-step_size / 2 * 10)
        x.grad.detach_()
        x.grad.zero_()
    for p in model.parameters():
        p.requires_grad_(True)
    model.train(training)
    return x.detach()


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    data = rings(160)
    loader = DataLoader(TensorDataset(data), batch_size=32, shuffle=True, drop_last=True)
    model = Energy().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.0, 0.999))
    sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.97)
    buf = Buffer()
    hist = []
    for epoch in range(5):
        model.train()
        cd_sum = reg_sum = 0.0
        for (x,) in loader:
            x = x.to(device)
            x = x + 0.005 * torch.randn_like(x)
            fake = langevin(model, buf.sample(x.size(0)))
            buf.push(fake)
            both = torch.cat([x, fake])
            real_e, fake_e = model(both).chunk(2)
            cd = real_e.mean() - fake_e.mean()
            reg = 0.1 * (real_e**2 + fake_e**2).mean()
            loss = cd + reg
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
            opt.step()
            cd_sum += cd.item()
            reg_sum += reg.item()
        sched.step()
        model.eval()
        with torch.no_grad():
            ood = model(torch.rand(50, 2, device=device) * 6 - 3)
            ind = model(data.to(device))
            auc = (ind[:, None] < ood[None]).float().mean().item()
        hist.append({"cd": cd_sum / len(loader), "reg": reg_sum / len(loader), "auc": auc})
        print("Epoch %d | CD %.4f | reg %.4f | AUC %.3f" % (epoch, cd_sum / len(loader), reg_sum / len(loader), auc))
    torch.save(torch.stack(buf.examples), "buffer.pt")
    torch.save(model.state_dict(), "ebm.pt")
    json.dump(hist, open("hist.json", "w"))


if __name__ == "__main__":
    main()
