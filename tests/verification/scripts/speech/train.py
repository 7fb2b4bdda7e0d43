"""Keyword spotting from synthetic waves: STFT log-mel on the fly, SpecAugment, a GRU with attention pooling, gradient accumulation, pruning at the end."""
import json
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.prune as prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

random.seed(33)
np.random.seed(33)
torch.manual_seed(33)
SR, N_FFT, HOP, MELS, WORDS = 1000, 64, 32, 12, 4


def mel_matrix():
    mel = lambda f: 2595 * math.log10(1 + f / 700)
    points = [700 * (10 ** (m / 2595) - 1) for m in np.linspace(0, mel(SR / 2), MELS + 2)]
    bins = np.linspace(0, SR / 2, N_FFT // 2 + 1)
    rows = [np.clip(np.minimum((bins - a) / (b - a), (c - bins) / (c - b)), 0, None) for a, b, c in zip(points, points[1:], points[2:])]
    return torch.tensor(np.array(rows), dtype=torch.float32)


class Keywords(Dataset):
    def __init__(self, n, seed, train):
        rng = np.random.RandomState(seed)
        self.train, self.items = train, []
        self.mel, self.window = mel_matrix(), torch.hann_window(N_FFT)
        for _ in range(n):
            word, length = rng.randint(WORDS), rng.randint(400, 800)
            t = np.arange(length) / SR
            f0 = 60 + 40 * word + 5 * rng.randn()
            wave = np.sin(2 * np.pi * (f0 * t + (20 * word - 30) * t**2)) + 0.5 * rng.randn(length)
            self.items.append((torch.tensor(wave, dtype=torch.float32), word))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        wave, word = self.items[i]
        if self.train:
            wave = wave * (0.8 + 0.4 * torch.rand(1)) + 0.05 * torch.randn_like(wave)
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, return_complex=True).abs() ** 2
        feats = (self.mel @ spec + 1e-6).log().T
        feats = (feats - feats.mean(0)) / (feats.std(0) + 1e-5)
        if self.train:
            f = random.randint(0, MELS - 3)
            feats[:, f : f + 2] = 0
        return feats, word


def collate(batch):
    batch.sort(key=lambda b: len(b[0]), reverse=True)
    feats, words = zip(*batch)
    return pad_sequence(feats, batch_first=True), torch.tensor([len(f) for f in feats]), torch.tensor(words)


class Spotter(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.conv = nn.Conv1d(MELS, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.gru = nn.GRU(16, hidden, batch_first=True, bidirectional=True)
        self.att, self.out = nn.Linear(2 * hidden, 1), nn.Linear(2 * hidden, WORDS)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, lengths):
        keep = torch.arange(x.size(1)) < lengths[:, None]
        h = F.gelu(self.norm(self.conv(x.mT))).mT
        packed = pack_padded_sequence(h * keep[..., None], lengths, batch_first=True)
        h, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        w = self.att(torch.tanh(h)).squeeze(-1).masked_fill(~keep, -1e9).softmax(1)
        return self.out(self.drop((w[..., None] * h).sum(1)))


train_loader = DataLoader(Keywords(76, 0, True), batch_size=10, shuffle=True, collate_fn=collate)
test_loader = DataLoader(Keywords(33, 1, False), batch_size=10, collate_fn=collate)
model = Spotter()
optimizer = torch.optim.NAdam(model.parameters(), lr=8e-3)
accumulate = 3
updates = math.ceil(len(train_loader) / accumulate) * 6
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, updates, power=2.0)


def evaluate():
    model.eval()
    confusion, loss, n = torch.zeros(WORDS, WORDS), 0.0, 0
    with torch.no_grad():
        for x, lengths, y in test_loader:
            out = model(x, lengths)
            loss += F.cross_entropy(out, y).item() * len(y)
            n += len(y)
            confusion.index_put_((y, out.argmax(1)), torch.ones(len(y)), accumulate=True)
    recall = confusion.diag() / confusion.sum(1).clamp(min=1)
    precision = confusion.diag() / confusion.sum(0).clamp(min=1)
    f1 = 2 * recall * precision / (recall + precision).clamp(min=1e-9)
    return loss / n, confusion.diag().sum().item() / n, f1.mean().item(), confusion


history = []
for epoch in range(6):
    model.train()
    optimizer.zero_grad()
    total = 0.0
    for i, (x, lengths, y) in enumerate(train_loader):
        out = model(x, lengths)
        loss = F.cross_entropy(out, y)
        (loss / accumulate).backward()
        total += loss.item()
        if (i + 1) % accumulate == 0 or i + 1 == len(train_loader):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    loss, acc, f1, confusion = evaluate()
    history.append({"epoch": epoch, "train": total / len(train_loader), "test": loss, "f1": f1})
    print(f"epoch {epoch}: train {total / len(train_loader):.4f} test {loss:.4f} acc {acc:.3f} f1 {f1:.3f}")
print(confusion.int().tolist())
for layer in (model.conv, model.out):
    prune.l1_unstructured(layer, "weight", amount=0.3)
loss, acc, f1, _ = evaluate()
print(f"pruned: test {loss:.4f} acc {acc:.3f} zeros {(model.conv.weight == 0).float().mean():.3f}")
for layer in (model.conv, model.out):
    prune.remove(layer, "weight")
torch.save(model.state_dict(), "spotter.pt")
with open("history.jsonl", "w") as f:
    for row in history:
        f.write(json.dumps(row) + "\n")
