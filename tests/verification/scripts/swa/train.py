"""Averaged weights with their BatchNorm statistics made anew, and a second part that resumes from a checkpoint."""

import os

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def build():
    return nn.Sequential(
        nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6, 3)
    )


def accuracy(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += len(y)
    model.train()
    return correct / total


class Run:
    def __init__(self, path):
        self.path = path
        self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=4)
        self.epoch, self.step = 0, 0
        if os.path.exists(path):
            state = torch.load(path)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.cosine.load_state_dict(state["cosine"])
            self.epoch = state["epoch"]
        self.averaged = AveragedModel(self.model)
        self.swa = SWALR(self.optimizer, swa_lr=0.02, anneal_epochs=2)

    def fit(self, until, loader, swa_start=3):
        criterion = nn.CrossEntropyLoss()
        while self.epoch < until:
            for x, y in loader:
                loss = criterion(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if self.epoch >= swa_start:
                self.averaged.update_parameters(self.model)
                self.swa.step()
            else:
                self.cosine.step()
            self.epoch += 1
            torch.save(
                {
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "cosine": self.cosine.state_dict(),
                    "epoch": self.epoch,
                },
                self.path,
            )


if __name__ == "__main__":
    torch.manual_seed(6)
    x = torch.randn(60, 2, 8)
    y = (x.mean(dim=(1, 2)) * 4).clamp(0, 2).long()
    train = DataLoader(TensorDataset(x[:44], y[:44]), batch_size=16, shuffle=True)
    test = DataLoader(TensorDataset(x[44:], y[44:]), batch_size=16)
    if os.path.exists("run.pt"):
        os.remove("run.pt")
    Run("run.pt").fit(2, train)
    run = Run("run.pt")
    print("resumed at epoch", run.epoch)
    run.fit(6, train)
    update_bn(train, run.averaged)
    print("accuracy", accuracy(run.model, test), accuracy(run.averaged, test))
    torch.save(run.averaged.module.state_dict(), "swa.pt")
