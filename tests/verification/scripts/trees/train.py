"""A soft decision tree whose nodes route every row to all leaves; pickled whole with its history, drawn and zipped after each epoch."""

import io
import pickle
import zipfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rng = np.random.RandomState(5)


def spirals(n):
    label = rng.randint(0, 3, n)
    way = rng.rand(n) * 3
    angle = way * 1.5 + label * 2.1
    points = np.stack([way * np.cos(angle), way * np.sin(angle)], 1) + 0.1 * rng.randn(n, 2)
    return torch.tensor(points, dtype=torch.float32), torch.tensor(label)


class Tree(nn.Module):
    def __init__(self, depth, dim, classes):
        super().__init__()
        self.depth = depth
        self.inner = nn.Linear(dim, 2**depth - 1)
        self.sharp = nn.Parameter(torch.ones(2**depth - 1))
        self.leaves = nn.Parameter(torch.randn(2**depth, classes))
        self.train_losses = []
        self.accuracies = []
        self.best = 0.0

    def forward(self, x):
        gates = torch.sigmoid(self.sharp * self.inner(x))
        paths = [torch.ones(len(x), device=x.device)]
        balance = 0.0
        for level in range(self.depth):
            below = []
            for node, path in enumerate(paths):
                gate = gates[:, 2**level - 1 + node]
                share = (path * gate).sum() / path.sum()
                balance = balance - 0.5 * 2.0**-level * (torch.log(share) + torch.log(1 - share))
                below += [path * (1 - gate), path * gate]
            paths = below
        return torch.stack(paths, 1), balance

    def predict(self, paths):
        return F.log_softmax(self.leaves, 1)[paths.argmax(1)]


def loss_of(tree, x, onehot):
    paths, balance = tree(x)
    told = onehot @ F.log_softmax(tree.leaves, 1).t()
    return -(paths * told).sum(1).mean() + 0.1 * balance, paths


@torch.no_grad()
def evaluate(tree, loader, epoch):
    tree.eval()
    right, seen, shares = 0, 0, []
    canvas = np.full((48, 48, 3), 255, np.uint8)
    for x, y in loader:
        paths, _ = tree(x.to(device))
        guess = tree.predict(paths).argmax(1).cpu()
        right += (guess == y).sum().item()
        seen += len(y)
        shares.append(paths.cpu().numpy())
        for (a, b), colour in zip(x.tolist(), guess.tolist()):
            row, column = int((b + 3.6) * 6.5), int((a + 3.6) * 6.5)
            canvas[row : row + 2, column : column + 2] = 60 * colour
    Image.fromarray(canvas).save(f"regions_{epoch}.png")
    packed = io.BytesIO()
    np.save(packed, np.concatenate(shares))
    with zipfile.ZipFile(f"shares_{epoch}.zip", "w") as archive:
        archive.writestr("shares.npy", packed.getvalue())
    return right / seen


def main():
    torch.manual_seed(2)
    train_loader = DataLoader(TensorDataset(*spirals(150)), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(*spirals(110)), batch_size=25)
    tree = Tree(3, 2, 3).to(device)
    optimizer = torch.optim.SGD(tree.parameters(), lr=0.4, momentum=0.8)
    onehot = torch.zeros(32, 3, device=device)
    for epoch in range(5):
        tree.train()
        total = 0.0
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            if len(y) != len(onehot):
                onehot = torch.zeros(len(y), 3, device=device)
            onehot.zero_().scatter_(1, y.unsqueeze(1), 1.0)
            loss, _ = loss_of(tree, x, onehot)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        tree.train_losses.append(total / len(train_loader.dataset))
        accuracy = evaluate(tree, test_loader, epoch)
        tree.accuracies.append(accuracy)
        if accuracy > tree.best:
            tree.best = accuracy
            with open("best_tree.pkl", "wb") as file:
                pickle.dump(tree, file)
        print(f"epoch {epoch} loss {tree.train_losses[-1]:.4f}")


if __name__ == "__main__":
    main()
