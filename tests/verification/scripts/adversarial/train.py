"""Adversarial training: PGD inside the step with the model in eval mode, TRADES loss, weight averaging, robust evaluation."""

import logging
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("adv")
EPSILON, STEPS, BETA, EPOCHS = 0.15, 3, 3.0, 4
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Shapes(Dataset):
    def __init__(self, count, seed, flip=False):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 3, count)
        self.images = rng.normal(0.3, 0.1, (count, 1, 10, 10)).astype(np.float32)
        for image, label in zip(self.images, self.labels):
            at = rng.integers(1, 6)
            if label == 0:
                image[0, at : at + 3, at : at + 3] += 0.6
            elif label == 1:
                image[0, at + 1] += 0.5
            else:
                image[0, :, at + 1] += 0.5
        self.images = self.images.clip(0, 1)
        self.flip = flip

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i])
        if self.flip and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, int(self.labels[i])


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x):
        return self.head(F.dropout(self.features(x).flatten(1), 0.2, self.training))


def attack(model, x, steps, target=None):
    """The worst neighbours of ``x``: by divergence from the clean outputs, or by the loss of ``target``."""
    with torch.no_grad():
        clean = model(x).log_softmax(1)
    worst = x + 0.001 * torch.randn_like(x)
    for _ in range(steps):
        worst.requires_grad_()
        out = model(worst)
        if target is None:
            loss = F.kl_div(out.log_softmax(1), clean, reduction="sum", log_target=True)
        else:
            loss = F.cross_entropy(out, target, reduction="sum")
        (grad,) = torch.autograd.grad(loss, worst)
        worst = worst.detach() + 0.06 * grad.sign()
        worst = torch.min(torch.max(worst, x - EPSILON), x + EPSILON).clamp(0, 1)
    return worst


def robustness(model, loader):
    model.eval()
    clean = robust = count = 0
    distance = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        worst = attack(model, x, 5, y)
        with torch.no_grad():
            clean += (model(x).argmax(1) == y).sum().item()
            robust += (model(worst).argmax(1) == y).sum().item()
        distance += (worst - x).flatten(1).norm(dim=1).sum().item()
        count += len(y)
    return clean / count, robust / count, distance / count


def main():
    torch.manual_seed(8)
    train = DataLoader(Shapes(52, 1, flip=True), 16, shuffle=True)
    test = DataLoader(Shapes(27, 2), 8)
    model = Net().to(device)
    average = AveragedModel(model, avg_fn=lambda a, p, n: 0.9 * a + 0.1 * p)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3], 0.3)
    best, best_state = -1.0, None
    for epoch in range(EPOCHS):
        natural_sum = robust_sum = 0.0
        for x, y in train:
            x, y = x.to(device), y.to(device)
            model.eval()
            worst = attack(model, x, STEPS)
            model.train()
            out = model(x)
            natural = F.cross_entropy(out, y)
            robust = F.kl_div(
                model(worst).log_softmax(1),
                out.log_softmax(1),
                reduction="batchmean",
                log_target=True,
            )
            optimizer.zero_grad()
            (natural + BETA * robust).backward()
            optimizer.step()
            if epoch >= 1:
                average.update_parameters(model)
            natural_sum += natural.item() * len(y)
            robust_sum += robust.item() * len(y)
        scheduler.step()
        clean, robust, distance = robustness(model, test)
        log.info(
            "epoch %d natural %.4f robust %.4f | clean %.3f pgd %.3f distance %.4f",
            epoch,
            natural_sum / 52,
            robust_sum / 52,
            clean,
            robust,
            distance,
        )
        if robust > best:
            best, best_state = robust, deepcopy(model.state_dict())
    update_bn(train, average, device)
    clean, robust, distance = robustness(average, test)
    log.info("average: clean %.3f pgd %.3f distance %.4f", clean, robust, distance)
    model.load_state_dict(best_state)
    clean, robust, distance = robustness(model, test)
    log.info("best: clean %.3f pgd %.3f distance %.4f", clean, robust, distance)
    torch.save(
        {"model": best_state, "average": average.module.state_dict(), "robust": best}, "robust.pt"
    )


if __name__ == "__main__":
    main()
