"""Bayes by backprop with nested cross validation over the prior, KL annealing, a Jacobian penalty by torch.func, MC prediction and calibration."""
import itertools
import json
import logging
import math
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, jacrev, vmap

logger = logging.getLogger("bnn")
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("%(levelname).1s %(message)s"))
logger.addHandler(handler)
logger.setLevel(logging.INFO)

C = {"outer": 2, "inner": 2, "grid": {"prior": [0.3, 1.0], "lr": [0.03]}, "epochs": 2, "final_epochs": 4, "bs": 20, "mc": 6, "penalty": 0.01, "hidden": 10}


class BayesLinear(nn.Module):
    def __init__(self, i, o, prior):
        super().__init__()
        self.mu_w = nn.Parameter(torch.empty(o, i).normal_(0, 1 / math.sqrt(i)))
        self.rho_w = nn.Parameter(torch.full((o, i), -4.0))
        self.mu_b = nn.Parameter(torch.zeros(o))
        self.rho_b = nn.Parameter(torch.full((o,), -4.0))
        self.prior = prior
        self.freeze = False

    @staticmethod
    def kl_to(mu, sigma, prior):
        return (math.log(prior) - torch.log(sigma) + (sigma ** 2 + mu ** 2) / (2 * prior ** 2) - 0.5).sum()

    def kl(self):
        return self.kl_to(self.mu_w, F.softplus(self.rho_w), self.prior) + self.kl_to(self.mu_b, F.softplus(self.rho_b), self.prior)

    def forward(self, x):
        if self.freeze:
            return F.linear(x, self.mu_w, self.mu_b)
        # local reparametrization
        mean = F.linear(x, self.mu_w, self.mu_b)
        var = F.linear(x ** 2, F.softplus(self.rho_w) ** 2, F.softplus(self.rho_b) ** 2)
        return mean + torch.sqrt(var + 1e-8) * torch.randn_like(mean)


class VariationalDropout(nn.Module):
    """Multiplicative Gaussian noise with a learnt rate."""

    def __init__(self, n, alpha=0.2):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((n,), math.log(alpha)))

    def kl(self):
        k1, k2, k3 = 0.63576, 1.87320, 1.48695
        la = self.log_alpha
        return -(k1 * torch.sigmoid(k2 + k3 * la) - 0.5 * torch.log1p(torch.exp(-la)) - k1).sum()

    def forward(self, x):
        if not self.training:
            return x
        return x * (1 + torch.exp(0.5 * self.log_alpha) * torch.randn_like(x))


class Net(nn.Module):
    def __init__(self, dim, classes, prior):
        super().__init__()
        self.l1, self.drop, self.l2 = BayesLinear(dim, C["hidden"], prior), VariationalDropout(C["hidden"]), BayesLinear(C["hidden"], classes, prior)

    def forward(self, x):
        return self.l2(self.drop(torch.tanh(self.l1(x))))

    def kl(self):
        return sum(m.kl() for m in self.modules() if m is not self and hasattr(m, "kl"))

    def freeze(self, on):
        for m in self.modules():
            if isinstance(m, BayesLinear):
                m.freeze = on


def make():
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, 132)
    x = rng.normal(size=(132, 5)) + 1.2 * np.eye(3, 5)[y] * rng.choice([1, -0.2], size=(132, 1), p=[0.85, 0.15])
    group = rng.integers(0, 12, 132)
    return x.astype(np.float32), y, group


def group_folds(group, k, seed):
    names = np.random.default_rng(seed).permutation(np.unique(group))
    for part in np.array_split(names, k):
        held = np.isin(group, part)
        yield np.flatnonzero(~held), np.flatnonzero(held)


def stratified(y, share, rng):
    take = [rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)]
    return np.sort(np.concatenate([t[: max(1, round(share * len(t)))] for t in take]))


def standardize(x, on):
    mean, std = x[on].mean(0), x[on].std(0) + 1e-6
    return torch.from_numpy((x - mean) / std)


def jacobian_penalty(net, x):
    params = dict(net.named_parameters())

    def one(v):
        return functional_call(net, params, (v[None],))[0]

    net.freeze(True)
    was = net.training
    net.eval()
    jac = vmap(jacrev(one))(x)
    net.train(was)
    net.freeze(False)
    return jac.pow(2).sum((1, 2)).mean()


def beta_at(epoch, batch, batches, kind):
    if kind == "blundell":  # 2^(M-i) / (2^M - 1)
        return 2 ** (batches - batch - 1) / (2 ** batches - 1)
    return min(1.0, (epoch + batch / batches) / 2) / batches


def fit(x, y, on, prior, lr, epochs, kind="blundell"):
    net = Net(x.shape[1], 3, prior)
    rhos = [p for n, p in net.named_parameters() if "rho" in n or "alpha" in n]
    mus = [p for n, p in net.named_parameters() if "mu" in n]
    opt = torch.optim.Adamax([{"params": mus}, {"params": rhos, "lr": 2 * lr}], lr=lr)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    history = []
    batches = math.ceil(len(on) / C["bs"])
    for epoch in range(epochs):
        order = on[torch.randperm(len(on)).numpy()]
        nll_sum = kl_last = 0.0
        for b in range(batches):
            rows = torch.from_numpy(order[b * C["bs"]:(b + 1) * C["bs"]])
            logits = net(x[rows])
            nll = F.cross_entropy(logits, y[rows], reduction="sum")
            beta = beta_at(epoch, b, batches, kind)
            kl = net.kl()
            loss = nll + beta * kl + C["penalty"] * len(rows) * jacobian_penalty(net, x[rows])
            opt.zero_grad()
            (loss / len(rows)).backward()
            for p in rhos:
                p.grad.clamp_(-1.0, 1.0)
            opt.step()
            nll_sum += nll.item()
            kl_last = kl.item()
        decay.step()
        history.append((nll_sum / len(on), kl_last / len(on)))
    return net, history


@torch.no_grad()
def predict(net, x, samples):
    net.eval()
    probs = torch.stack([F.softmax(net(x), 1) for _ in range(samples)])
    mean = probs.mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum(1)
    aleatoric = -(probs * probs.clamp_min(1e-12).log()).sum(2).mean(0)
    net.train()
    return mean, entropy - aleatoric


def ece(probs, y, bins=8):
    conf, pred = probs.max(1)
    right = (pred == y).float()
    edges = torch.linspace(0, 1, bins + 1)
    total = 0.0
    for lo, hi in zip(edges[:-1], edges[1:]):
        inside = (conf > lo) & (conf <= hi)
        if inside.any():
            total += inside.float().mean().item() * abs(right[inside].mean().item() - conf[inside].mean().item())
    return total


def scores(probs, y, bald):
    onehot = F.one_hot(y, 3).float()
    pred = probs.argmax(1)
    f1 = []
    for c in range(3):
        tp = ((pred == c) & (y == c)).sum().item()
        f1.append(2 * tp / max(((pred == c).sum() + (y == c).sum()).item(), 1))
    return {"nll": F.nll_loss(probs.clamp_min(1e-12).log(), y).item(), "brier": ((probs - onehot) ** 2).sum(1).mean().item(),
            "acc": (pred == y).float().mean().item(), "macro_f1": float(np.mean(f1)), "ece": ece(probs, y), "bald": bald.mean().item()}


def main():
    torch.manual_seed(0)
    raw, labels, group = make()
    y = torch.from_numpy(labels)
    outer_scores, oof, chosen = [], torch.full((len(y), 3), float("nan")), []
    for fold, (dev, test) in enumerate(group_folds(group, C["outer"], seed=1)):
        best = None
        for prior, lr in itertools.product(*C["grid"].values()):
            inner = []
            for train, val in group_folds(group[dev], C["inner"], seed=10 + fold):
                train, val = dev[train], dev[val]
                x = standardize(raw, train)
                net, _ = fit(x, y, train, prior, lr, C["epochs"])
                mean, bald = predict(net, x[val], C["mc"])
                inner.append((scores(mean, y[val], bald)["nll"], len(val)))
            value = sum(v * n for v, n in inner) / sum(n for _, n in inner)
            logger.info("fold %d prior %g lr %g inner nll %.4f", fold, prior, lr, value)
            if best is None or value < best[0]:
                best = (value, prior, lr)
        _, prior, lr = best
        chosen.append(prior)
        x = standardize(raw, dev)
        keep = dev[stratified(labels[dev], 0.8, np.random.default_rng(fold))]
        net, history = fit(x, y, keep, prior, lr, C["final_epochs"], kind="linear")
        mean, bald = predict(net, x[test], C["mc"])
        oof[test] = mean
        result = scores(mean, y[test], bald)
        outer_scores.append(result)
        logger.info("fold %d: %s", fold, " ".join(f"{k}={v:.4f}" for k, v in result.items()))
        logger.info("fold %d: train nll %.4f kl %.4f", fold, *history[-1])
        torch.save({"net": net.state_dict(), "prior": prior, "fold": fold, "test": test}, f"fold{fold}.ckpt")
    assert not torch.isnan(oof).any()
    report = {k: {"mean": float(np.mean([s[k] for s in outer_scores])), "std": float(np.std([s[k] for s in outer_scores], ddof=1))} for k in outer_scores[0]}
    report["oof_ece"] = ece(oof, y)
    report["chosen"] = chosen
    json.dump(report, open("cv.json", "w"), indent=1)
    flat = np.lib.format.open_memmap("oof.npy", mode="w+", dtype=np.float32, shape=tuple(oof.shape))
    flat[:] = oof.numpy()
    flat.flush()
    raw_map = np.memmap("oof.dat", dtype="float32", mode="w+", shape=(len(y), 4))
    raw_map[:, :3], raw_map[:, 3] = oof.numpy(), labels
    raw_map.flush()
    logger.info("cv %s", json.dumps({k: v["mean"] if isinstance(v, dict) else v for k, v in report.items()}))


if __name__ == "__main__":
    main()
