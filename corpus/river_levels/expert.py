"""How high will the river be? Forecasts the levels at all gauges from those of the last hours: train.py, tuned by hand.

All windows fit on the GPU, and the network is small: making batches took as long as the steps. What changed, and why:

- Inputs and targets are on the device from the beginning, and a batch is cut out of them with one index. Before, 256 rows were
  put together one by one, then copied. The sampler draws as before, so that the samples and their order are the same.
- The sums for the printout stay on the device until the end of an epoch, in float64, as they were.
- fused=True updates all weights in one kernel.
"""
import argparse
import copy

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from gauges import GAUGES, read_levels, write_readings


def windows(levels, past, ahead):
    """Inputs [N, past * gauges] and targets [N, gauges]: the levels `ahead` hours after each window."""
    inputs = levels.unfold(0, past, 1)[:-ahead]
    return inputs.reshape(len(inputs), -1), levels[past - 1 + ahead:]


class Forecast(nn.Module):
    def __init__(self, past, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(past * GAUGES, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, GAUGES),
        )

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(self, model, device, lr, patience):
        self.model = model.to(device)
        self.device = device
        self.loss = nn.HuberLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr, fused=True)
        self.patience = patience
        self.best, self.best_weights, self.waited = float("inf"), None, 0

    def train_epoch(self, loader):
        self.model.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = self.loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            total += loss.detach().double() * len(x)
        return total.item() / len(loader.dataset)

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for x, y in loader:
            total += (self.model(x) - y).abs().mean(dim=1).sum()
        return total.item() / len(loader.dataset)

    def should_stop(self, error):
        if error < self.best:
            self.best, self.waited = error, 0
            self.best_weights = copy.deepcopy(self.model.state_dict())
        else:
            self.waited += 1
        return self.waited > self.patience


def batches(samples, sampler, size):
    """A loader that asks for whole batches."""
    return DataLoader(samples, sampler=BatchSampler(sampler, size, drop_last=False), batch_size=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--hours", type=int, default=50000)
    parser.add_argument("--past", type=int, default=24, help="hours that are looked back")
    parser.add_argument("--ahead", type=int, default=6, help="hours that are looked ahead")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    levels = torch.tensor(read_levels(write_readings(args.data, args.hours))).T.contiguous()
    inputs, targets = windows(levels.to(device), args.past, args.ahead)
    # the last fifth of the time is held out
    split = len(inputs) * 4 // 5
    train_set = TensorDataset(inputs[:split], targets[:split])
    val_set = TensorDataset(inputs[split:], targets[split:])
    train_loader = batches(train_set, RandomSampler(train_set), args.batch_size)
    val_loader = batches(val_set, SequentialSampler(val_set), args.batch_size)

    trainer = Trainer(Forecast(args.past, args.hidden), device, args.lr, args.patience)
    for epoch in range(1, args.epochs + 1):
        loss = trainer.train_epoch(train_loader)
        error = trainer.evaluate(val_loader)
        print(f"epoch {epoch}: train loss {loss:.6f}, mean error {100 * error:.2f} cm")
        if trainer.should_stop(error):
            break
    torch.save(trainer.best_weights, "river_levels.pt")


if __name__ == "__main__":
    main()
