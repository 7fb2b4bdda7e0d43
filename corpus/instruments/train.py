"""Which instrument plays? A network over the samples of a recording, on all GPUs there are."""
import argparse
import os

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from recordings import INSTRUMENTS, record

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data")
parser.add_argument("--train-recordings", type=int, default=8000)
parser.add_argument("--test-recordings", type=int, default=800)
parser.add_argument("--length", type=int, default=8000, help="samples of a recording")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=128, help="over all GPUs")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--resume", default="", help="a checkpoint to go on from")
parser.add_argument("--seed", type=int, default=0)


class Recordings(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        name = os.path.basename(self.paths[i])[6:-4]
        return torch.from_numpy(np.load(self.paths[i])), INSTRUMENTS.index(name)


class Ears(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.listen = nn.Sequential(
            nn.Conv1d(1, width, 64, stride=8), nn.ReLU(),
            nn.Conv1d(width, width, 16, stride=4), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 8, stride=2), nn.ReLU(),
        )
        self.decide = nn.Linear(2 * width, len(INSTRUMENTS))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, sound, instrument):
        # the loss is computed on each GPU, so that the first one does not have to
        heard = self.listen(sound.unsqueeze(1)).amax(dim=2)
        scores = self.decide(heard)
        return scores, self.criterion(scores, instrument)


def train(loader, model, optimizer, device):
    model.train()
    total = 0.0
    for sounds, instruments in loader:
        sounds, instruments = sounds.to(device), instruments.to(device)
        _, loss = model(sounds, instruments)
        loss = loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def test(loader, model, device):
    model.eval()
    correct = 0
    confusion = torch.zeros(len(INSTRUMENTS), len(INSTRUMENTS), dtype=torch.long)
    for sounds, instruments in loader:
        sounds, instruments = sounds.to(device), instruments.to(device)
        scores, _ = model(sounds, instruments)
        guessed = scores.argmax(dim=1)
        correct += (guessed == instruments).sum().item()
        for truth, guess in zip(instruments.tolist(), guessed.tolist()):
            confusion[truth, guess] += 1
    return correct / len(loader.dataset), confusion


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    record(os.path.join(args.data, "train"), args.train_recordings, args.length, seed=0)
    record(os.path.join(args.data, "test"), args.test_recordings, args.length, seed=10 ** 6)
    train_set = Recordings(os.path.join(args.data, "train"))
    test_set = Recordings(os.path.join(args.data, "test"))
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)

    model = Ears(args.width).to(device)
    model = nn.DataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]

    for epoch in range(start, args.epochs):
        loss = train(train_loader, model, optimizer, device)
        accuracy, confusion = test(test_loader, model, device)
        print("epoch %d: loss %.4f, accuracy %.4f" % (epoch + 1, loss, accuracy))
        print(confusion)
        torch.save({
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch + 1,
        }, "ears.pt")


if __name__ == "__main__":
    main()
