"""A DDPM on small pictures: accumulated gradients, an average of the weights, and training resumed from a file."""

import copy
import math
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

T = 50
SIZE = 8
ACCUMULATE = 2
WARMUP, TOTAL = 4, 24
CHECKPOINT = "checkpoint.pt"


class Blobs(Dataset):
    """Pictures of one bright spot, flipped at random."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:SIZE, 0:SIZE]
        centers = rng.uniform(1, SIZE - 2, size=(n, 2))
        self.images = [
            np.exp(-((y - a) ** 2 + (x - b) ** 2) / 4).astype(np.float32) for a, b in centers
        ]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i])[None] * 2 - 1
        if torch.rand(1).item() < 0.5:
            image = image.flip(-1)
        return image


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(1000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.sin(), args.cos()], dim=-1)


class Block(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm = nn.GroupNorm(4, cin)
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.drop = nn.Dropout(0.1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv(F.silu(self.norm(x)))
        h = h + self.emb(emb)[:, :, None, None]
        return self.skip(x) + self.drop(F.silu(h))


class UNet(nn.Module):
    def __init__(self, width=8, emb=16):
        super().__init__()
        self.emb_dim = emb
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.down = Block(width, 2 * width, emb)
        self.mid = Block(2 * width, 2 * width, emb)
        self.up = Block(4 * width, width, emb)
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.emb_dim))
        h = self.down(self.inp(x), emb)
        m = self.mid(F.avg_pool2d(h, 2), emb)
        m = F.interpolate(m, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat([h, m], dim=1), emb))


class Diffusion:
    def __init__(self, device):
        s = 0.008
        x = torch.linspace(0, T, T + 1, dtype=torch.float64)
        bar = torch.cos((x / T + s) / (1 + s) * math.pi / 2) ** 2
        betas = (1 - bar[1:] / bar[:-1]).clamp(max=0.999)
        alphas_bar = torch.cumprod(1 - betas, dim=0)
        self.betas = betas.float().to(device)
        self.alphas_bar = alphas_bar.float().to(device)

    def q_sample(self, x0, t, noise):
        a = self.alphas_bar[t][:, None, None, None]
        return a.sqrt() * x0 + (1 - a).sqrt() * noise

    def loss(self, model, x0):
        t = torch.randint(0, T, (x0.shape[0],), device=x0.device)
        noise = torch.randn_like(x0)
        return F.mse_loss(model(self.q_sample(x0, t, noise), t), noise)

    @torch.no_grad()
    def sample(self, model, n, device):
        x = torch.randn(n, 1, SIZE, SIZE, device=device)
        for step in reversed(range(0, T, 10)):
            t = torch.full((n,), step, device=device, dtype=torch.long)
            a, a_prev = self.alphas_bar[step], self.alphas_bar[max(step - 10, 0)]
            eps = model(x, t)
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            x = a_prev.sqrt() * x0 + (1 - a_prev).sqrt() * eps
        return x


@torch.no_grad()
def update_ema(ema, model, decay):
    for p, q in zip(ema.parameters(), model.parameters()):
        p.mul_(decay).add_(q, alpha=1 - decay)


def lr_lambda(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    progress = (step - WARMUP) / (TOTAL - WARMUP)
    return 0.5 * (1 + math.cos(math.pi * progress))


def build(device):
    model = UNet().to(device)
    ema = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)
    return model, ema, optimizer, scheduler


def save(path, model, ema, optimizer, scheduler, step):
    torch.save(
        {
            "model": model.state_dict(),
            "ema": ema.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": step,
        },
        path,
    )


def load(path, model, ema, optimizer, scheduler, device):
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    ema.load_state_dict(state["ema"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["step"]


def evaluate(ema, diffusion, loader, device):
    ema.eval()
    total, seen = 0.0, 0
    with torch.no_grad():
        for x0 in loader:
            x0 = x0.to(device)
            for step in (5, 20, 40):
                t = torch.full((len(x0),), step, device=device)
                noise = torch.sin(torch.arange(x0.numel(), device=device) * 1.7).view_as(x0)
                error = F.mse_loss(ema(diffusion.q_sample(x0, t, noise), t), noise)
                total += error.item() * len(x0)
                seen += len(x0)
    return total / seen


def train(epochs):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, ema, optimizer, scheduler = build(device)
    diffusion = Diffusion(device)
    train_loader = DataLoader(Blobs(36, 0), batch_size=6, shuffle=True)
    test_loader = DataLoader(Blobs(10, 1), batch_size=4)
    step = 0
    if os.path.exists(CHECKPOINT):
        step = load(CHECKPOINT, model, ema, optimizer, scheduler, device)
        print(f"resumed at step {step}")
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for i, x0 in enumerate(train_loader):
            x0 = x0.to(device)
            loss = diffusion.loss(model, x0) / ACCUMULATE
            loss.backward()
            running += loss.item() * ACCUMULATE
            if (i + 1) % ACCUMULATE == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                step += 1
                update_ema(ema, model, min(0.95, (1 + step) / (10 + step)))
        error = evaluate(ema, diffusion, test_loader, device)
        lr = scheduler.get_last_lr()[0]
        print(f"step {step}: loss {running / len(train_loader):.4f} error {error:.4f} lr {lr:.5f}")
        save(CHECKPOINT, model, ema, optimizer, scheduler, step)
    return ema, diffusion, device


def main():
    torch.manual_seed(0)
    if os.path.exists(CHECKPOINT):
        os.remove(CHECKPOINT)
    train(3)
    ema, diffusion, device = train(2)
    samples = diffusion.sample(ema, 4, device)
    np.save("samples.npy", samples.cpu().numpy())
    print(f"samples: mean {samples.mean().item():.4f}, std {samples.std().item():.4f}")


if __name__ == "__main__":
    main()
