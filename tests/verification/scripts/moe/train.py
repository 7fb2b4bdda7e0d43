import argparse, glob, math, os, time
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune as prune

# ---- mixture-of-experts LM with early exits; curriculum over length with a token budget; movement-free magnitude pruning ----
cfg = SimpleNamespace(vocab=27, dim=16, heads=2, layers=3, experts=4, k=2, capacity=1.25, hidden=20, aux=0.02, zloss=1e-3,
                      exit_weights=(0.3, 0.5, 1.0), tokens=192, stages=((6, 4), (10, 4), (16, 6)), accum=2, lr=0.02, min_lr=0.002, warm=3,
                      clip=1.0, sparsity=0.5, prune_from=6, prune_every=3, threshold=0.3, seed=1337, eval_every=4, ema=0.9)


def corpus():
    g = torch.Generator().manual_seed(0)
    trans = torch.softmax(2.5 * torch.randn(27, 27, generator=g), 1)
    text, c = [], 0
    for _ in range(5000):
        c = int(torch.multinomial(trans[c], 1, generator=g))
        text.append(c)
    data = torch.tensor(text)
    return data[:4200], data[4200:]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(cfg.experts, cfg.dim, cfg.hidden) / cfg.dim ** 0.5)
        self.w2 = nn.Parameter(torch.randn(cfg.experts, cfg.hidden, cfg.dim) / cfg.hidden ** 0.5)
        self.router = nn.Linear(cfg.dim, cfg.experts, bias=False)
        self.register_buffer("load", torch.zeros(cfg.experts))

    def forward(self, x):
        b, t, d = x.shape
        flat = x.reshape(-1, d)
        logits = self.router(flat)
        if self.training:
            logits = logits * (1 + 0.02 * (2 * torch.rand_like(logits) - 1))  # jitter
        probs = logits.softmax(-1)
        gate, chosen = probs.topk(cfg.k, -1)
        gate = gate / gate.sum(-1, keepdim=True)
        capacity = math.ceil(cfg.capacity * cfg.k * len(flat) / cfg.experts)
        out = torch.zeros_like(flat)
        kept = 0
        for e in range(cfg.experts):
            token, slot = torch.where(chosen == e)
            token, slot = token[:capacity], slot[:capacity]  # first come, first served
            kept += len(token)
            if len(token) == 0:
                continue
            h = F.silu(flat[token] @ self.w1[e]) @ self.w2[e]
            out.index_add_(0, token, gate[token, slot].unsqueeze(-1) * h)
        frac = F.one_hot(chosen[:, 0], cfg.experts).float().mean(0)
        aux = cfg.experts * (frac * probs.mean(0)).sum()
        z = torch.logsumexp(logits, -1).pow(2).mean()
        if self.training:
            self.load.mul_(cfg.ema).add_(F.one_hot(chosen, cfg.experts).sum((0, 1)) / chosen.numel(), alpha=1 - cfg.ema)
        self.dropped = 1 - kept / chosen.numel()
        return out.view(b, t, d), aux, z


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(cfg.dim), nn.RMSNorm(cfg.dim)
        self.qkv, self.proj = nn.Linear(cfg.dim, 3 * cfg.dim), nn.Linear(cfg.dim, cfg.dim)
        self.moe = Experts()

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, cfg.heads, -1).permute(2, 0, 3, 1, 4)
        pos = torch.arange(t, device=x.device)
        alibi = -(pos[:, None] - pos[None]).abs() * torch.tensor([2.0 ** -(h + 1) for h in range(cfg.heads)], device=x.device)[:, None, None]
        att = q @ k.transpose(-1, -2) / math.sqrt(d // cfg.heads) + alibi
        att = att.masked_fill(pos[:, None] < pos[None], float("-inf")).softmax(-1)
        x = x + self.proj((att @ v).transpose(1, 2).reshape(b, t, d))
        y, aux, z = self.moe(self.n2(x))
        return x + y, aux, z


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList([Block() for _ in range(cfg.layers)])
        self.norms = nn.ModuleList([nn.RMSNorm(cfg.dim) for _ in range(cfg.layers)])
        self.bias = nn.Parameter(torch.zeros(cfg.vocab))
        nn.init.normal_(self.emb.weight, std=0.3)

    def head(self, i, x):
        return F.linear(self.norms[i](x), self.emb.weight, self.bias)

    def forward(self, idx):
        x, outs, aux, z = self.emb(idx), [], 0.0, 0.0
        for i, block in enumerate(self.blocks):
            x, a, zz = block(x)
            aux, z = aux + a, z + zz
            outs.append(self.head(i, x))
        return outs, aux / len(self.blocks), z / len(self.blocks)

    @torch.no_grad()
    def early_exit(self, idx, threshold):
        """Logits of the last position, each row as soon as it is sure; and after how many blocks."""
        x, done = self.emb(idx), torch.zeros(len(idx), dtype=torch.bool)
        logits, depth = torch.zeros(len(idx), cfg.vocab), torch.zeros(len(idx), dtype=torch.long)
        for i, block in enumerate(self.blocks):
            x = block(x)[0]
            out = self.head(i, x)[:, -1]
            sure = out.softmax(-1).amax(-1) > threshold
            now = (sure | torch.tensor(i == len(self.blocks) - 1)) & ~done
            logits[now], depth[now] = out[now], i + 1
            done |= now
        return logits, depth


class Board:
    """One file per tag, appended: step<TAB>value."""

    def __init__(self, root):
        os.makedirs(root, exist_ok=True)
        self.root, self.sums = root, {}

    def scalar(self, tag, value, step):
        with open(os.path.join(self.root, tag.replace("/", "_") + ".tsv"), "a") as f:
            f.write(f"{step}\t{value:.6g}\n")

    def add(self, tag, value):
        s = self.sums.setdefault(tag, [0.0, 0])
        s[0] += value
        s[1] += 1

    def flush(self, step):
        for tag, (total, n) in self.sums.items():
            self.scalar(tag, total / n, step)
        self.sums.clear()


def batches(data, stage):
    length, _ = cfg.stages[stage]
    bs = cfg.tokens // length
    while True:
        at = torch.randint(len(data) - length - 1, (bs,))
        chunk = torch.stack([data[i:i + length + 1] for i in at])
        yield chunk[:, :-1], chunk[:, 1:]


def set_lr(opt, it, total):
    lr = cfg.lr * (it + 1) / cfg.warm if it < cfg.warm else cfg.min_lr + 0.5 * (cfg.lr - cfg.min_lr) * (1 + math.cos(math.pi * (it - cfg.warm) / (total - cfg.warm)))
    for g in opt.param_groups:
        g["lr"] = lr * g["scale"]
    return lr


def estimate(model, data, length=16):
    model.eval()
    total, tokens, right, depths = torch.zeros(cfg.layers, dtype=torch.float64), 0, 0, []
    with torch.no_grad():
        stop = (len(data) - 1) // length
        rows = data[: stop * length].view(stop, length), data[1: stop * length + 1].view(stop, length)
        for x, y in zip(rows[0].split(20), rows[1].split(20)):
            outs, _, _ = model(x)
            for i, out in enumerate(outs):
                total[i] += F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum").item()
            tokens += y.numel()
            logits, depth = model.early_exit(x, cfg.threshold)
            right += (logits.argmax(-1) == y[:, -1]).sum().item()
            depths.append(depth)
    model.train()
    ppl = (total / tokens).exp()
    depths = torch.cat(depths).float()
    return ppl, right / len(depths), depths.mean().item(), depths.std().item()


def main():
    torch.manual_seed(cfg.seed)
    train, val = corpus()
    model = LM()
    prunable = [(b.qkv, "weight") for b in model.blocks] + [(b.proj, "weight") for b in model.blocks]
    matrices = [p for n, p in model.named_parameters() if p.ndim >= 2 and "emb" not in n and "router" not in n]
    router = [p for n, p in model.named_parameters() if "router" in n]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2 or "emb" in n]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1, "scale": 1.0}, {"params": router, "weight_decay": 0.0, "scale": 0.3},
                             {"params": rest, "weight_decay": 0.0, "scale": 1.0}], lr=cfg.lr, betas=(0.9, 0.95), eps=1e-8)
    board, it, best = Board("board"), 0, None
    total_iters = sum(n for _, n in cfg.stages)
    smooth = None
    for stage, (length, iters) in enumerate(cfg.stages):
        stream = batches(train, stage)
        for _ in range(iters):
            lr = set_lr(opt, it, total_iters)
            told = 0.0
            for micro in range(cfg.accum):
                x, y = next(stream)
                outs, aux, z = model(x)
                ce = [F.cross_entropy(o.flatten(0, 1), y.flatten(), label_smoothing=0.05) for o in outs]
                loss = sum(w * c for w, c in zip(cfg.exit_weights, ce)) / sum(cfg.exit_weights)
                loss = (loss + cfg.aux * aux + cfg.zloss * z) / cfg.accum
                loss.backward()
                told += loss.item()
                board.add("train/last_ce", ce[-1].item())
                board.add("moe/dropped", sum(b.moe.dropped for b in model.blocks) / cfg.layers)
                board.add("moe/aux", aux.item())
            norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], cfg.clip)
            opt.step()
            opt.zero_grad()
            smooth = told if smooth is None else cfg.ema * smooth + (1 - cfg.ema) * told
            board.scalar("train/loss", told, it)
            board.scalar("train/smooth", smooth, it)
            board.scalar("train/norm", norm.item(), it)
            if it >= cfg.prune_from and (it - cfg.prune_from) % cfg.prune_every == 0:
                done = (it - cfg.prune_from) / (total_iters - 1 - cfg.prune_from)
                want = cfg.sparsity * (1 - (1 - min(1.0, done)) ** 3)
                with torch.no_grad():
                    for module, name in prunable:
                        w = module.weight_orig if hasattr(module, "weight_orig") else module.weight
                        k = int(want * w.numel())
                        if k:
                            mask = (w.abs() > w.abs().flatten().kthvalue(k).values).float()
                            if hasattr(module, "weight_mask"):
                                module.weight_mask.copy_(mask)
                            else:
                                prune.custom_from_mask(module, name, mask)
            it += 1
            if it % cfg.eval_every == 0:
                ppl, acc, depth, spread = estimate(model, val)
                board.flush(it)
                zeros = sum((m.weight == 0).sum().item() for m, _ in prunable) / sum(m.weight.numel() for m, _ in prunable)
                load = torch.stack([b.moe.load for b in model.blocks])
                imbalance = (load.std(1) / load.mean(1)).mean().item()
                print(f"it {it} stage {stage} lr {lr:.5f} ppl {'/'.join('%.3f' % p for p in ppl)} acc {acc:.3f} depth {depth:.3f}+-{spread:.3f} zeros {zeros:.3f} cv {imbalance:.4f}")
                if best is None or ppl[-1] < best:
                    best = ppl[-1].item()
                    torch.save({"model": {k: v.clone() for k, v in model.state_dict().items()}, "it": it, "ppl": best}, "moe-best.pt")
    for module, name in prunable:
        if prune.is_pruned(module):
            prune.remove(module, name)
    torch.save(model.state_dict(), "moe-final.pt")
    with open("summary.md", "w") as f:
        f.write("| exit | ppl |\n|---|---|\n")
        for i, p in enumerate(estimate(model, val)[0].tolist()):
            f.write(f"| {i + 1} | {p:.4f} |\n")


if __name__ == "__main__":
    main()
