"""Quantiles by an ensemble over folds: a network for each, the best epoch's weights, and what all say together."""

import copy
import math
import statistics

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

FOLDS, EPOCHS, PATIENCE, BATCH = 2, 4, 1, 24
QUANTILES = torch.tensor([0.1, 0.5, 0.9])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 24), nn.GELU(), nn.Dropout(0.05))
        self.head = nn.Linear(24, len(QUANTILES))

    def forward(self, x):
        lowest, steps = self.head(self.body(x)).split([1, len(QUANTILES) - 1], 1)
        return torch.cat([lowest, lowest + nn.functional.softplus(steps).cumsum(1)], 1)


def pinball(said, y):
    error = y[:, None] - said
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).sum(1).mean()


def folds(n):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(17)).tolist()
    for k in range(FOLDS):
        yield [i for i in order if i not in order[k::FOLDS]], order[k::FOLDS]


class Best:
    def __init__(self):
        self.value, self.waited, self.state = math.inf, 0, None

    def gives_up(self, value, model):
        if value < self.value:
            self.value, self.waited = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.waited += 1
        return self.waited > PATIENCE


def evaluate(model, loader):
    model.eval()
    total = seen = 0
    with torch.no_grad():
        for x, y in loader:
            total += pinball(model(x), y).item() * len(y)
            seen += len(y)
    return total / seen


def fit(number, data, train, held):
    torch.manual_seed(100 + number)
    model = Net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.08, alpha=0.5, weight_decay=1e-4)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    train_loader = DataLoader(Subset(data, train), BATCH, shuffle=True)
    held_loader = DataLoader(Subset(data, held), BATCH)
    best = Best()
    for epoch in range(EPOCHS):
        model.train()
        for x, y in train_loader:
            loss = pinball(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
        value = evaluate(model, held_loader)
        plateau.step(value)
        if best.gives_up(value, model):
            break
    model.load_state_dict(best.state)
    return model, best.value, epoch + 1


def main():
    drawn = torch.Generator().manual_seed(3)
    x = torch.rand(120, 4, generator=drawn) * 4 - 2
    y = 2 * x[:, 0].sin() + (0.2 + 0.3 * x[:, 2].abs()) * torch.randn(120, generator=drawn)
    data, test = TensorDataset(x[:90], y[:90]), TensorDataset(x[90:], y[90:])
    models, values = [], []
    left_out = torch.zeros(90, len(QUANTILES))
    for number, (train, held) in enumerate(folds(90)):
        model, value, epochs = fit(number, data, train, held)
        models.append(model)
        values.append(value)
        with torch.no_grad():
            left_out[held] = model(x[held])
        print(f"fold {number} | pinball {value:.4f} | {epochs} epochs")
    print(f"cv {statistics.mean(values):.4f} +- {statistics.stdev(values):.4f}")
    said = []
    with torch.no_grad():
        for batch, _ in DataLoader(test, 8):
            said.append(torch.stack([model.eval()(batch) for model in models]).mean(0))
    said = torch.cat(said)
    covered = ((y[90:] >= said[:, 0]) & (y[90:] <= said[:, -1])).float().mean()
    print(f"test pinball {pinball(said, y[90:]):.4f} covered {covered:.3f}")
    for number, model in enumerate(models):
        torch.save(model.state_dict(), f"fold{number}.pt")
    torch.save({"left_out": left_out, "said": said}, "said.pt")


main()
