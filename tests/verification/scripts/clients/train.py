"""Federated averaging: each client trains a copy of the network on its own rows, and the copies are averaged by their rows."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

CLIENTS, ROUNDS, EPOCHS, BATCH = 3, 3, 1, 16


class Classifier(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, classes)

    def forward(self, rows):
        return self.head(self.body(rows))


class Client:
    def __init__(self, rows):
        self.rows = rows
        self.loader = DataLoader(rows, batch_size=BATCH, shuffle=True)

    def fit(self, server):
        model = copy.deepcopy(server)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        model.train()
        total = 0.0
        for _ in range(EPOCHS):
            for rows, labels in self.loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(rows), labels)
                loss.backward()
                optimizer.step()
                total += loss.item()
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        return weights, total / (EPOCHS * len(self.loader))


def average(states, shares):
    merged = {}
    for name, value in states[0].items():
        if value.is_floating_point():
            merged[name] = sum(share * state[name] for share, state in zip(shares, states))
        else:
            merged[name] = value
    return merged


def accuracy(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for rows, labels in loader:
            right += (model(rows).argmax(dim=1) == labels).sum().item()
    return right / len(loader.dataset)


def main():
    torch.manual_seed(4)
    rows = torch.randn(190, 10)
    labels = (rows[:, :3] @ torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 2.0]])).argmax(1)
    parts = random_split(TensorDataset(rows, labels), [64, 48, 32, 46])
    clients = [Client(part) for part in parts[:CLIENTS]]
    held_out = DataLoader(parts[CLIENTS], batch_size=23)
    shares = [len(client.rows) / sum(len(c.rows) for c in clients) for client in clients]
    server = Classifier(10, 3)
    for number in range(ROUNDS):
        fitted = [client.fit(server) for client in clients]
        server.load_state_dict(average([weights for weights, _ in fitted], shares))
        losses = " ".join(f"{loss:.4f}" for _, loss in fitted)
        print(f"round {number + 1}: {losses} | accuracy {accuracy(server, held_out):.4f}")
        torch.save(server.state_dict(), "server.pt")


main()
