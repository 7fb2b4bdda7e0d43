"""Fits a picture by Gaussians that are cloned, split and pruned on the way, the optimizer's state cut to fit: a parameter for each property, no module."""

import math
import os

import numpy as np
import torch
from PIL import Image
from torch import nn

SIZE, STEPS = 20, 20
RATES = {"xy": 0.02, "color": 0.04, "scaling": 0.03, "rotation": 0.03, "opacity": 0.05}


def pixels(size):
    steps = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], -1)


def target():
    x, y = pixels(SIZE).unbind(-1)
    red = torch.exp(-9 * ((x - 0.3) ** 2 + (y + 0.2) ** 2))
    green = 0.8 * (x.abs() + y.abs() < 0.6).float()
    blue = 0.5 + 0.5 * torch.sin(5 * x) * torch.cos(4 * y)
    return torch.stack([red, green, blue], -1)


class Splats:
    def __init__(self, n):
        self.xy = nn.Parameter(1.6 * torch.rand(n, 2) - 0.8)
        self.color = nn.Parameter(torch.rand(n, 3))
        self.scaling = nn.Parameter(torch.full((n, 2), math.log(0.25)))
        self.rotation = nn.Parameter(torch.zeros(n))
        self.opacity = nn.Parameter(torch.full((n, 1), -0.5))
        self.slopes, self.seen = torch.zeros(n), torch.zeros(n)
        groups = [{"params": [getattr(self, k)], "lr": v, "name": k} for k, v in RATES.items()]
        self.optimizer = torch.optim.Adam(groups, lr=0.0, eps=1e-15)

    def set_rate(self, step):
        for group in self.optimizer.param_groups:
            if group["name"] == "xy":
                group["lr"] = RATES["xy"] * 0.2 ** (step / STEPS)

    def render(self, size=SIZE):
        d = pixels(size).view(-1, 1, 2) - self.xy
        c, s = self.rotation.cos(), self.rotation.sin()
        u = torch.stack([c * d[..., 0] + s * d[..., 1], c * d[..., 1] - s * d[..., 0]], -1)
        w = torch.exp(-0.5 * ((u / self.scaling.exp()) ** 2).sum(-1))
        alpha = (torch.sigmoid(self.opacity)[:, 0] * w).clamp(max=0.99)
        left = torch.cumprod(torch.cat([torch.ones(len(alpha), 1), 1 - alpha[:, :-1]], 1), 1)
        weight = alpha * left
        return (weight @ self.color).view(size, size, 3), weight

    def replace(self, change):
        """Every parameter, and what Adam keeps beside it, by ``change(tensor, name, kept)``."""
        for group in self.optimizer.param_groups:
            (old,), name = group["params"], group["name"]
            state = self.optimizer.state.pop(old)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = change(state[key], name, True)
            group["params"][0] = nn.Parameter(change(old.detach(), name, False))
            self.optimizer.state[group["params"][0]] = state
            setattr(self, name, group["params"][0])

    def keep(self, mask):
        self.replace(lambda tensor, name, kept: tensor[mask].clone())
        self.slopes, self.seen = self.slopes[mask], self.seen[mask]

    def add(self, new):
        self.replace(
            lambda tensor, name, kept: torch.cat(
                [tensor, torch.zeros_like(new[name]) if kept else new[name]]
            )
        )
        self.slopes, self.seen = torch.zeros(len(self.xy)), torch.zeros(len(self.xy))

    @torch.no_grad()
    def densify(self, threshold, extent):
        hot = torch.nan_to_num(self.slopes / self.seen) >= threshold
        large = self.scaling.exp().amax(1) > extent
        clone = hot & ~large
        self.add({name: getattr(self, name)[clone].clone() for name in RATES})
        split = torch.cat([hot & large, torch.zeros(int(clone.sum()), dtype=torch.bool)])
        halves = {name: torch.cat([getattr(self, name)[split]] * 2) for name in RATES}
        halves["xy"] += halves["scaling"].exp() * torch.randn_like(halves["xy"])
        halves["scaling"] -= math.log(1.6)
        self.add(halves)
        self.keep(~torch.cat([split, torch.zeros(2 * int(split.sum()), dtype=torch.bool)]))
        faint = torch.sigmoid(self.opacity)[:, 0] < 0.3
        self.keep(~faint)
        return int(clone.sum()), int(split.sum()), int(faint.sum())


def main():
    torch.manual_seed(4)
    image, splats, smooth = target(), Splats(16), 0.0
    for step in range(1, STEPS + 1):
        splats.set_rate(step)
        out, weight = splats.render()
        loss = 0.8 * (out - image).abs().mean() + 0.2 * ((out - image) ** 2).mean()
        loss = loss + 1e-3 * torch.sigmoid(splats.opacity).mean()
        loss.backward()
        with torch.no_grad():
            smooth = 0.4 * loss.item() + 0.6 * smooth
            drawn = weight.amax(0) > 0.05
            splats.slopes[drawn] += splats.xy.grad[drawn].norm(dim=-1)
            splats.seen[drawn] += 1
        splats.optimizer.step()
        splats.optimizer.zero_grad()
        if step in (6, 12):
            made = splats.densify(0.0045, 0.2)
            print(f"[{step}] cloned, split, pruned {made}: {len(splats.xy)}")
        if step % 5 == 0:
            with torch.no_grad():
                mse = ((splats.render()[0].clamp(0, 1) - image) ** 2).mean()
            print(f"{step} loss {smooth:.5f} psnr {-10 * mse.log10().item():.3f}")
    os.makedirs("out", exist_ok=True)
    with torch.no_grad():
        large = splats.render(2 * SIZE)[0].clamp(0, 1)
    Image.fromarray((255 * large).byte().numpy()).save("out/large.png")
    np.savez("out/splats.npz", **{name: getattr(splats, name).detach() for name in RATES})
    torch.save(splats.optimizer.state_dict(), "out/optimizer.pt")


if __name__ == "__main__":
    main()
