# RealNVP / Glow-ish flow on tabular data ("power"-like), hook based trainer, config in a yaml string
import copy
import csv
import math
import os
import shutil
from collections import OrderedDict, defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

try:
    import yaml
except ImportError:
    yaml = None

CONFIG = """
seed: 11
model: {name: flow, dim: 6, hidden: 20, blocks: 3, scale_clamp: 2.0, permute: lu}
data: {n_train: 150, n_val: 46, n_test: 40, bins: 32, batch_size: 32}
optim: {name: Adam, lr: 0.01, betas: [0.9, 0.99], weight_decay: 0.001, grad_clip: 5.0}
sched: {warmup: 4, total: 40, final: 0.05}
train: {epochs: 8, eval_every: 2, noise: 0.02, keep: 2}
"""
DEFAULT = {
    "seed": 11,
    "model": dict(name="flow", dim=6, hidden=20, blocks=3, scale_clamp=2.0, permute="lu"),
    "data": dict(n_train=150, n_val=46, n_test=40, bins=32, batch_size=32),
    "optim": dict(name="Adam", lr=0.01, betas=[0.9, 0.99], weight_decay=0.001, grad_clip=5.0),
    "sched": dict(warmup=4, total=40, final=0.05),
    "train": dict(epochs=8, eval_every=2, noise=0.02, keep=2),
}

REGISTRY = defaultdict(dict)


def register(kind, name):
    def wrap(obj):
        REGISTRY[kind][name] = obj
        return obj

    return wrap


def build(kind, cfg, **kw):
    cfg = dict(cfg)
    return REGISTRY[kind][cfg.pop("name")](**cfg, **kw)


@register("data", "power")
def make_data(n_train, n_val, n_test, bins, dim, seed):
    rng = np.random.RandomState(seed)
    n = n_train + n_val + n_test
    z = rng.randn(n, dim)
    x = np.tanh(z @ rng.randn(dim, dim) * 0.6) + 0.15 * rng.randn(n, dim)
    x[:, 1] = x[:, 0] ** 2 + 0.1 * rng.randn(n)
    lo, hi = x.min(0), x.max(0)
    x = np.floor((x - lo) / (hi - lo) * (bins - 1))
    return np.split(x.astype(np.float32), [n_train, n_train + n_val])


class ActNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x):
        if self.training and self.initialized.item() == 0:
            with torch.no_grad():
                self.loc.data.copy_(-x.mean(0))
                self.log_scale.data.copy_(-torch.log(x.std(0) + 1e-6))
                self.initialized.fill_(1)
        return (x + self.loc) * self.log_scale.exp(), self.log_scale.sum().expand(x.shape[0])

    def inverse(self, z):
        return z * (-self.log_scale).exp() - self.loc


class InvLinear(nn.Module):
    """PLU-parametrized linear map (Glow)."""

    def __init__(self, dim):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(dim, dim))
        p, l, u = torch.linalg.lu(q)
        self.register_buffer("p", p)
        self.register_buffer("sign_s", torch.sign(torch.diag(u)))
        self.register_buffer("mask", torch.tril(torch.ones(dim, dim), -1))
        self.l = nn.Parameter(l)
        self.u = nn.Parameter(torch.triu(u, 1))
        self.log_s = nn.Parameter(torch.log(torch.abs(torch.diag(u))))

    def weight(self):
        eye = torch.eye(len(self.log_s), device=self.l.device)
        l = self.l * self.mask + eye
        u = self.u * self.mask.T + torch.diag(self.sign_s * torch.exp(self.log_s))
        return self.p @ l @ u

    def forward(self, x):
        return x @ self.weight().T, self.log_s.sum().expand(len(x))

    def inverse(self, z):
        return torch.linalg.solve(self.weight(), z.T).T


class Coupling(nn.Module):
    def __init__(self, dim, hidden, clamp, flip):
        super().__init__()
        mask = torch.arange(dim) % 2
        self.register_buffer("mask", (1 - mask if flip else mask).float())
        self.net = nn.Sequential(
            weight_norm(nn.Linear(dim, hidden)), nn.SiLU(),
            weight_norm(nn.Linear(hidden, hidden)), nn.SiLU(), nn.Dropout(0.05),
            nn.Linear(hidden, 2 * dim),
        )
        nn.init.normal_(self.net[-1].weight, 0, 0.02)
        nn.init.zeros_(self.net[-1].bias)
        self.clamp = clamp

    def st(self, xm):
        s, t = self.net(xm).chunk(2, dim=1)
        s = self.clamp * torch.tanh(s / self.clamp)
        return s * (1 - self.mask), t * (1 - self.mask)

    def forward(self, x):
        s, t = self.st(x * self.mask)
        return x * self.mask + (1 - self.mask) * (x * s.exp() + t), s.sum(1)

    def inverse(self, z):
        s, t = self.st(z * self.mask)
        return z * self.mask + (1 - self.mask) * (z - t) * (-s).exp()


@register("model", "flow")
class Flow(nn.Module):
    def __init__(self, dim, hidden, blocks, scale_clamp, permute):
        super().__init__()
        steps = []
        for i in range(blocks):
            steps += [ActNorm(dim), InvLinear(dim), Coupling(dim, hidden, scale_clamp, i % 2)]
        self.steps = nn.ModuleList(steps)
        self.dim = dim

    def forward(self, x):
        logdet = torch.zeros(len(x), device=x.device)
        for step in self.steps:
            x, ld = step(x)
            logdet = logdet + ld
        return x, logdet

    def log_prob(self, x):
        z, logdet = self(x)
        prior = -0.5 * (z ** 2).sum(1) - 0.5 * self.dim * math.log(2 * math.pi)
        return prior + logdet

    @torch.no_grad()
    def sample(self, n, temperature=1.0):
        z = temperature * torch.randn(n, self.dim)
        for step in reversed(self.steps):
            z = step.inverse(z)
        return z


class Hook:
    def before_train(self, tr): pass
    def after_iter(self, tr): pass
    def after_epoch(self, tr): pass
    def after_train(self, tr): pass


class EMAHook(Hook):
    def __init__(self, decay):
        self.decay = decay

    def before_train(self, tr):
        tr.ema = copy.deepcopy(tr.model)
        for p in tr.ema.parameters():
            p.requires_grad_(False)

    def after_iter(self, tr):
        d = min(self.decay, (1 + tr.iter) / (10 + tr.iter))
        with torch.no_grad():
            for pe, p in zip(tr.ema.parameters(), tr.model.parameters()):
                pe.mul_(d).add_(p, alpha=1 - d)
            for be, b in zip(tr.ema.buffers(), tr.model.buffers()):
                be.copy_(b)


class LogHook(Hook):
    def before_train(self, tr):
        self.file = open("progress.csv", "w", newline="")
        self.csv = csv.writer(self.file)
        self.csv.writerow(["iter", "epoch", "lr", "bpd", "smooth", "gnorm"])
        self.smooth = None

    def after_iter(self, tr):
        bpd = tr.out["bpd"]
        self.smooth = bpd if self.smooth is None else 0.9 * self.smooth + 0.1 * bpd
        corrected = self.smooth
        self.csv.writerow([tr.iter, tr.epoch, f"{tr.optimizer.param_groups[0]['lr']:.6g}", f"{bpd:.5f}", f"{corrected:.5f}", f"{tr.out['gnorm']:.4f}"])

    def after_train(self, tr):
        self.file.close()


class EvalHook(Hook):
    def __init__(self, every):
        self.every = every

    def after_epoch(self, tr):
        if (tr.epoch + 1) % self.every == 0:
            bpd = tr.evaluate(tr.ema, tr.val)
            tr.history.append((tr.epoch, bpd))
            print("epoch %d | val bpd %.4f | best %.4f" % (tr.epoch, bpd, min(tr.best, bpd)))
            if bpd < tr.best:
                tr.best = bpd
                torch.save(OrderedDict(model=tr.ema.state_dict(), epoch=tr.epoch, bpd=bpd), "best.pth")


class CheckpointHook(Hook):
    def __init__(self, keep):
        self.keep, self.saved = keep, []

    def after_epoch(self, tr):
        name = "epoch_%d.pth" % tr.epoch
        torch.save(dict(model=tr.model.state_dict(), ema=tr.ema.state_dict(), optimizer=tr.optimizer.state_dict(),
                        scheduler=tr.scheduler.state_dict(), iter=tr.iter), name + ".tmp")
        os.replace(name + ".tmp", name)
        self.saved.append(name)
        while len(self.saved) > self.keep:
            os.remove(self.saved.pop(0))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        c, d = cfg["train"], dict(cfg["data"])
        self.batch_size, self.bins = d.pop("batch_size"), d["bins"]
        self.train, self.val, self.test = (torch.from_numpy(a) for a in build("data", dict(name="power", **d), dim=cfg["model"]["dim"], seed=3))
        self.model = build("model", cfg["model"])
        o = dict(cfg["optim"])
        self.clip = o.pop("grad_clip")
        wd = o.pop("weight_decay")
        decay, plain = [], []
        for n, p in self.model.named_parameters():
            (plain if p.ndim < 2 or "original0" in n else decay).append(p)
        self.optimizer = getattr(torch.optim, o.pop("name"))([{"params": decay, "weight_decay": wd}, {"params": plain, "weight_decay": 0.0}], **o)
        s = cfg["sched"]

        def factor(it):
            if it < s["warmup"]:
                return (it + 1) / s["warmup"]
            t = (it - s["warmup"]) / (s["total"] - s["warmup"])
            return s["final"] + (1 - s["final"]) * 0.5 * (1 + math.cos(math.pi * min(t, 1.0)))

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.hooks = [LogHook(), EMAHook(0.97), EvalHook(c["eval_every"]), CheckpointHook(c["keep"])]
        self.iter, self.epoch, self.best, self.history = 0, 0, float("inf"), []

    def call(self, name):
        for h in self.hooks:
            getattr(h, name)(self)

    def to_unit(self, x, u):
        # uniform dequantization then logit
        y = (x + u) / self.bins
        y = 0.05 + 0.9 * y
        out = torch.log(y) - torch.log1p(-y)
        ld = (math.log(0.9) - math.log(self.bins) - torch.log(y) - torch.log1p(-y)).sum(1)
        return out, ld

    def nll(self, model, x, u):
        y, ld = self.to_unit(x, u)
        return -(model.log_prob(y) + ld)

    def step(self, x):
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.nll(self.model, x, torch.rand_like(x)).mean()
        loss.backward()
        gnorm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.out = dict(bpd=loss.item() / (self.model.dim * math.log(2)), gnorm=gnorm.item())
        self.iter += 1
        self.call("after_iter")

    @torch.no_grad()
    def evaluate(self, model, data, k=4):
        # importance weighted over k dequantization draws
        model.eval()
        g = torch.Generator().manual_seed(0)
        total, count = 0.0, 0
        for x in data.split(self.batch_size):
            lls = []
            for _ in range(k):
                u = torch.rand(x.shape, generator=g)
                lls.append(-self.nll(model, x, u))
            ll = torch.logsumexp(torch.stack(lls), 0) - math.log(k)
            total += -ll.sum().item()
            count += len(x)
        return total / count / (self.model.dim * math.log(2))

    def run(self):
        self.call("before_train")
        for self.epoch in range(self.cfg["train"]["epochs"]):
            perm = torch.randperm(len(self.train))
            for i in range(0, len(perm), self.batch_size):
                self.step(self.train[perm[i:i + self.batch_size]])
            self.call("after_epoch")
        self.call("after_train")
        best = torch.load("best.pth")
        final = build("model", self.cfg["model"])
        final.load_state_dict(best["model"])
        final.eval()
        test = self.evaluate(final, self.test, k=8)
        torch.manual_seed(0)
        samples = final.sample(50, temperature=0.8)
        np.savetxt("samples.txt", samples.numpy(), fmt="%.5f")
        with open("result.txt", "w") as f:
            f.write("test bpd: %.5f (epoch %d)\n" % (test, best["epoch"]))
            f.write("sample mean %s\n" % " ".join("%.4f" % v for v in samples.mean(0)))
            f.write("history %s\n" % self.history)
        print(open("result.txt").read())


def main():
    cfg = yaml.safe_load(CONFIG) if yaml is not None else DEFAULT
    torch.manual_seed(cfg["seed"])
    Trainer(cfg).run()


if __name__ == "__main__":
    main()
