"""A classifier, calibrated by a temperature and by conformal sets, evaluated with flips; results as JSON and npz."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Settings:
    epochs: int = 3
    batch: int = 16
    classes: int = 4
    alpha: float = 0.2
    bins: int = 5


class Net(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.drop(self.features(x).flatten(1)))


def pictures(n: int, classes: int) -> TensorDataset:
    g = torch.Generator().manual_seed(7)
    y = torch.randint(classes, (n,), generator=g)
    base = torch.randn(classes, 1, 8, 8, generator=g)
    x = base[y] + 1.2 * torch.randn(n, 1, 8, 8, generator=g)
    return TensorDataset(x, y)


def ece(probs: torch.Tensor, y: torch.Tensor, bins: int) -> float:
    conf, pred = probs.max(1)
    total = 0.0
    for low in torch.linspace(0, 1, bins + 1)[:-1]:
        inside = (conf > low) & (conf <= low + 1 / bins)
        if inside.any():
            gap = (pred[inside] == y[inside]).float().mean() - conf[inside].mean()
            total += gap.abs().item() * inside.float().mean().item()
    return total


@torch.no_grad()
def logits_of(net: nn.Module, loader: DataLoader, device, tta: bool = False):
    net.eval()
    out, ys = [], []
    for x, y in loader:
        x = x.to(device)
        logits = net(x)
        if tta:
            logits = (logits + net(x.flip(-1)) + net(x.flip(-2))) / 3
        out.append(logits)
        ys.append(y.to(device))
    return torch.cat(out), torch.cat(ys)


def temperature(logits, y) -> float:
    log_t = torch.zeros(1, device=logits.device, requires_grad=True)
    opt = torch.optim.LBFGS([log_t], lr=0.1, max_iter=20)

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(logits / log_t.exp(), y)
        loss.backward()
        return loss

    opt.step(closure)
    return log_t.exp().item()


def conformal(cal, cal_y, test, test_y, alpha: float):
    scores = 1 - cal.softmax(1).gather(1, cal_y[:, None]).squeeze(1)
    n = len(scores)
    level = min(1.0, math.ceil((n + 1) * (1 - alpha)) / n)
    threshold = torch.quantile(scores, level, interpolation="higher")
    sets = test.softmax(1) >= 1 - threshold
    covered = sets.gather(1, test_y[:, None]).float().mean().item()
    return covered, sets.sum(1).float().mean().item(), threshold.item()


def main() -> None:
    s = Settings()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    data = pictures(150, s.classes)
    train, cal, test = random_split(data, [80, 30, 40], torch.Generator().manual_seed(1))
    loader = DataLoader(train, s.batch, shuffle=True, drop_last=True)
    cal_loader, test_loader = DataLoader(cal, s.batch), DataLoader(test, s.batch)
    net = Net(s.classes).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        opt, 0.1, epochs=s.epochs, steps_per_epoch=len(loader)
    )
    history = []
    for epoch in range(s.epochs):
        net.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        logits, y = logits_of(net, test_loader, device)
        history.append(
            [F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()]
        )
        print(f"epoch {epoch}: test loss {history[-1][0]:.4f}, accuracy {history[-1][1]:.3f}")
    cal_logits, cal_y = logits_of(net, cal_loader, device)
    t = temperature(cal_logits, cal_y)
    plain, y = logits_of(net, test_loader, device)
    tta, _ = logits_of(net, test_loader, device, tta=True)
    covered, size, threshold = conformal(cal_logits / t, cal_y, plain / t, y, s.alpha)
    report = {
        "settings": asdict(s),
        "temperature": round(t, 3),
        "ece": {
            "before": ece(plain.softmax(1), y, s.bins),
            "after": ece((plain / t).softmax(1), y, s.bins),
        },
        "tta accuracy": (tta.argmax(1) == y).float().mean().item(),
        "coverage": covered,
        "set size": size,
        "threshold": threshold,
    }
    Path("report.json").write_text(json.dumps(report, indent=2))
    np.savez(
        "logits.npz", plain=plain.cpu().numpy(), tta=tta.cpu().numpy(), history=np.array(history)
    )
    torch.save({"net": net.state_dict(), "temperature": t}, "calibrated.pt")
    print(f"T={t:.2f} coverage={covered:.2f} size={size:.2f}")


if __name__ == "__main__":
    main()
