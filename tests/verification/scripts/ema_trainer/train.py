"""A class that trains, with an average of the weights, metrics of its own, and files of several kinds."""

import csv
import json

import numpy as np
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.stem(x))))


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.backup = {}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name] = self.decay * self.shadow[name] + (1 - self.decay) * p.detach()

    def swap_in(self, model):
        for name, p in model.named_parameters():
            self.backup[name] = p.data
            p.data = self.shadow[name]

    def swap_out(self, model):
        for name, p in model.named_parameters():
            p.data = self.backup[name]


class Accuracy:
    def __init__(self):
        self.reset()

    def reset(self):
        self.right = 0
        self.seen = 0

    def update(self, logits, labels):
        self.right += (logits.argmax(1) == labels).sum().item()
        self.seen += len(labels)

    def compute(self):
        return self.right / self.seen


class Trainer:
    def __init__(self, epochs):
        self.epochs = epochs
        self.model = Net()
        self.ema = EMA(self.model, 0.9)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.05)
        self.warmup = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.2, total_iters=4)
        self.accuracy = Accuracy()
        x = torch.randn(90, 12)
        y = (x[:, :4] + 0.3 * torch.randn(90, 4)).argmax(1)
        self.train_set = torch.utils.data.TensorDataset(x[:70], y[:70])
        self.x_val, self.y_val = x[70:], y[70:]

    def fit(self):
        loader = torch.utils.data.DataLoader(self.train_set, batch_size=16, shuffle=True)
        with open("log.csv", "w", newline="") as file:
            log = csv.writer(file)
            log.writerow(["epoch", "loss", "accuracy"])
            for epoch in range(self.epochs):
                loss = self.train_epoch(loader)
                accuracy = self.evaluate(epoch)
                log.writerow([epoch, f"{loss:.6f}", f"{accuracy:.4f}"])
        with open("summary.json", "w") as file:
            json.dump({"epochs": self.epochs, "loss": loss, "accuracy": accuracy}, file)
        torch.save({"model": self.model.state_dict(), "ema": self.ema.shadow}, "last.pt")

    def train_epoch(self, loader):
        self.model.train()
        total = 0.0
        for x, y in loader:
            logits = self.model.forward(x)
            loss = -torch.log_softmax(logits, 1)[torch.arange(len(y)), y].mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.warmup.step()
            self.ema.update(self.model)
            total += loss.item() * len(y)
        return total / len(self.train_set)

    def evaluate(self, epoch):
        self.model.eval()
        self.ema.swap_in(self.model)
        self.accuracy.reset()
        with torch.no_grad():
            logits = self.model.forward(self.x_val)
        self.accuracy.update(logits, self.y_val)
        self.ema.swap_out(self.model)
        np.save(f"predictions{epoch}.npy", logits.softmax(1).numpy())
        return self.accuracy.compute()


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(3).fit()
