import math, os, sys, time
from collections import deque
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
USE_AMP = device.type == "cuda"
K, D = 16, 6


# ------------------------------------------------------------------ data pipes
class Pipe(IterableDataset):
    def __init__(self, source, fn=None):
        self.source, self.fn = source, fn

    def map(self, fn): return Mapper(self, fn)
    def shuffle(self, size, seed): return Shuffler(self, size, seed)
    def batch(self, n, drop_last=False): return Batcher(self, n, drop_last)
    def filter(self, fn): return Filter(self, fn)
    def __iter__(self): return iter(self.source)


class Mapper(Pipe):
    def __init__(self, source, fn): super().__init__(source, fn)
    def __iter__(self): return (self.fn(x) for x in self.source)


class Filter(Pipe):
    def __iter__(self): return (x for x in self.source if self.fn(x))


class Shuffler(Pipe):
    def __init__(self, source, size, seed):
        super().__init__(source)
        self.size, self.seed, self.epoch = size, seed, 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        self.epoch += 1
        buffer = []
        for x in self.source:
            if len(buffer) < self.size:
                buffer.append(x)
                continue
            i = int(torch.randint(self.size, (1,), generator=g))
            yield buffer[i]
            buffer[i] = x
        for i in torch.randperm(len(buffer), generator=g).tolist():
            yield buffer[i]


class Batcher(Pipe):
    def __init__(self, source, n, drop_last):
        super().__init__(source)
        self.n, self.drop_last = n, drop_last

    def __iter__(self):
        rows = []
        for x in self.source:
            rows.append(x)
            if len(rows) == self.n:
                yield torch.stack(rows)
                rows = []
        if rows and not self.drop_last:
            yield torch.stack(rows)


class Glyphs:
    def __init__(self, n, seed): self.n, self.seed = n, seed

    def __iter__(self):
        for i in range(self.n):
            g = torch.Generator().manual_seed(self.seed * 10_000 + i)
            img = torch.zeros(1, 16, 16)
            for _ in range(3):
                x, y, w, h = (int(v) for v in torch.randint(1, 8, (4,), generator=g))
                img[:, y:y + h, x:x + w] += 0.4 + 0.3 * torch.rand((), generator=g)
            yield img.clamp(0, 1)


def normalize(x, mean=0.25, std=0.35): return (x - mean) / std


# ------------------------------------------------------------------ model
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, q):
        return q.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class VectorQuantizerEMA(nn.Module):
    def __init__(self, k, d, decay=0.9, eps=1e-5, threshold=5.5):
        super().__init__()
        self.k, self.d, self.decay, self.eps, self.threshold = k, d, decay, eps, threshold
        self.register_buffer("embed", torch.randn(k, d))
        self.register_buffer("cluster_size", torch.ones(k))
        self.register_buffer("embed_avg", self.embed.clone())
        self.register_buffer("inited", torch.zeros(1))

    @torch.no_grad()
    def init_codes(self, flat):
        # a few k-means rounds from random rows of the first batch
        centers = flat[torch.randperm(len(flat), device=flat.device)[: self.k]].clone()
        for _ in range(3):
            idx = torch.cdist(flat, centers).argmin(1)
            onehot = F.one_hot(idx, self.k).type_as(flat)
            n = onehot.sum(0)
            new = onehot.t() @ flat / n.clamp(min=1)[:, None]
            centers = torch.where(n[:, None] > 0, new, centers)
        self.embed.copy_(centers)
        self.embed_avg.copy_(centers)
        self.cluster_size.copy_(n.clamp(min=1))
        self.embed_avg.mul_(self.cluster_size[:, None])
        self.inited.fill_(1)

    @torch.no_grad()
    def update(self, flat, onehot):
        self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.embed_avg.mul_(self.decay).add_(onehot.t() @ flat, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (n + self.k * self.eps) * n
        self.embed.copy_(self.embed_avg / size[:, None])
        dead = self.cluster_size < self.threshold
        if dead.any():
            rows = flat[torch.randint(0, len(flat), (int(dead.sum()),), device=flat.device)]
            self.embed[dead] = rows
            self.embed_avg[dead] = rows * self.threshold
            self.cluster_size[dead] = self.threshold

    def forward(self, z):
        zp = z.permute(0, 2, 3, 1).float()
        flat = zp.reshape(-1, self.d)
        if self.training and self.inited.item() == 0:
            self.init_codes(flat)
        dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1)
        idx = dist.argmin(1)
        onehot = F.one_hot(idx, self.k).float()
        q = F.embedding(idx, self.embed).view_as(zp)
        if self.training:
            self.update(flat.detach(), onehot)
        commit = F.mse_loss(q.detach(), zp)
        probs = onehot.mean(0)
        perplexity = torch.exp(-(probs * torch.log(probs + 1e-10)).sum())
        q = StraightThrough.apply(zp, q).permute(0, 3, 1, 2).contiguous()
        return q, commit, perplexity, idx.view(zp.shape[:-1])


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.block = nn.Sequential(nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(2, c), nn.ReLU(True), nn.Conv2d(c, c, 1))

    def forward(self, x): return x + self.block(x)


class VQVAE(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, c, 4, 2, 1), nn.ReLU(), nn.Conv2d(c, c, 4, 2, 1), Res(c), nn.Conv2d(c, D, 1))
        self.vq = VectorQuantizerEMA(K, D)
        self.dec = nn.Sequential(nn.Conv2d(D, c, 3, padding=1), Res(c), nn.ConvTranspose2d(c, c, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c, 1, 4, 2, 1))

    def forward(self, x):
        q, commit, perplexity, idx = self.vq(self.enc(x))
        return self.dec(q), commit, perplexity, idx


class Prior(nn.Module):
    """An autoregressive prior over the codes in raster order."""

    def __init__(self, dim=12):
        super().__init__()
        self.emb = nn.Embedding(K + 1, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, K)

    def forward(self, codes, h=None):
        start = torch.full_like(codes[:, :1], K)
        x, h = self.gru(self.emb(torch.cat([start, codes[:, :-1]], 1)), h)
        return self.out(x)


class Window:
    def __init__(self, n): self.values, self.total, self.count = deque(maxlen=n), 0.0, 0

    def update(self, v, n=1):
        self.values.append(v)
        self.total += v * n
        self.count += n

    @property
    def median(self): return sorted(self.values)[len(self.values) // 2]

    @property
    def mean(self): return self.total / self.count


def evaluate(model, pipe):
    model.eval()
    mse, n, hist = 0.0, 0, torch.zeros(K, dtype=torch.long)
    with torch.no_grad():
        for x in pipe:
            x = x.to(device)
            recon, _, _, idx = model(x)
            mse += F.mse_loss(recon, x, reduction="sum").item()
            n += x.numel()
            hist += torch.bincount(idx.flatten().cpu(), minlength=K)
    model.train()
    return mse / n, hist


def main():
    torch.manual_seed(7)
    train = Pipe(Glyphs(90, 1)).filter(lambda x: x.mean() > 0.05).map(normalize).shuffle(24, 5).batch(12)
    val = Pipe(Glyphs(20, 2)).map(normalize).batch(8)
    model = VQVAE().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=6e-3)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [3, 5], gamma=0.4)
    scaler = torch.amp.GradScaler(device.type, enabled=USE_AMP, init_scale=1024.0)
    accum, step = 2, 0
    var = 0.61
    for epoch in range(4):
        meters = {k: Window(5) for k in ("recon", "commit", "perplexity")}
        batches = list(train) if epoch < 0 else train
        pending = 0
        for i, x in enumerate(batches):
            x = x.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.float16 if USE_AMP else torch.bfloat16, enabled=USE_AMP):
                recon, commit, perplexity, _ = model(x)
                rec = F.mse_loss(recon.float(), x) / var
                loss = (rec + 0.25 * commit) / accum
            scaler.scale(loss).backward()
            pending += 1
            meters["recon"].update(rec.item(), len(x))
            meters["commit"].update(commit.item(), len(x))
            meters["perplexity"].update(perplexity.item())
            if pending == accum:
                scaler.unscale_(opt)
                nn.utils.clip_grad_value_(model.parameters(), 0.5)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad(set_to_none=True)
                pending, step = 0, step + 1
                if step % 3 == 0:
                    sys.stdout.write("[%03d] " % step + " ".join("%s %.4f (%.4f)" % (k, m.median, m.mean) for k, m in meters.items()) + "\n")
        if pending:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
        sched.step()
        mse, hist = evaluate(model, val)
        print("epoch", epoch, "val mse", round(mse, 5), "used", int((hist > 0).sum()), "of", K, "lr", sched.get_last_lr()[0])
        torch.save({"state": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "scaler": scaler.state_dict(), "hist": hist, "epoch": epoch}, "vqvae_last.pt")

    # stage two: codes are extracted once, the prior is fitted on them
    model.eval()
    codes = []
    with torch.no_grad():
        for x in Pipe(Glyphs(90, 1)).map(normalize).batch(30):
            codes.append(model(x.to(device))[3].flatten(1))
    codes = torch.cat(codes)
    torch.save(codes.to(torch.uint8).cpu(), "codes.pt")
    prior = Prior().to(device)
    opt2 = torch.optim.RMSprop(prior.parameters(), lr=0.02, alpha=0.9, momentum=0.5)
    order = torch.Generator().manual_seed(3)
    for it in range(16):
        idx = torch.randint(len(codes), (20,), generator=order)
        batch = codes[idx.to(device)]
        nll = F.cross_entropy(prior(batch).transpose(1, 2), batch)
        opt2.zero_grad()
        nll.backward()
        opt2.step()
        if it % 4 == 3:
            print("prior %d nll %.4f bits %.4f" % (it, nll.item(), nll.item() / math.log(2)))
    prior.eval()
    with torch.no_grad():
        nll = F.cross_entropy(prior(codes[:40]).flatten(0, 1), codes[:40].flatten(), reduction="none").view(40, -1).sum(1)
    torch.save({"prior": prior.state_dict(), "nll": nll.mean().item(), "nll_std": nll.std().item()}, "prior.pt")


if __name__ == "__main__":
    main()
