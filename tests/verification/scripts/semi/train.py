"""Pseudo labels: a labelled stream that starts over beside an unlabelled one, shards for each worker."""

import csv
import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORDS, CLASSES = 30, 3


def shard(number, n):
    g = torch.Generator().manual_seed(number)
    rows = []
    for _ in range(n):
        label = int(torch.randint(CLASSES, (1,), generator=g))
        length = int(torch.randint(4, 12, (1,), generator=g))
        words = torch.randint(1, WORDS, (length,), generator=g)
        words[torch.rand(length, generator=g) < 0.4] = 1 + label
        rows.append((words, label))
    return rows


class Stream(IterableDataset):
    def __init__(self, shards, shuffle=True):
        self.shards, self.shuffle = shards, shuffle

    def __iter__(self):
        info = get_worker_info()
        shards = self.shards
        if info is not None:
            shards = shards[info.id :: info.num_workers]
        rows = list(itertools.chain.from_iterable(shards))
        order = torch.randperm(len(rows)) if self.shuffle else torch.arange(len(rows))
        for i in order.tolist():
            yield rows[i]


def collate(rows):
    words = nn.utils.rnn.pad_sequence([w for w, _ in rows], batch_first=True)
    return words, torch.tensor([label for _, label in rows])


def cycle(loader):
    while True:
        yield from loader


def drop_words(words, p):
    return words * (torch.rand(words.shape) >= p)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16, padding_idx=0)
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, words):
        mask = (words != 0).float().unsqueeze(-1)
        return self.net((self.embed(words) * mask).sum(1) / mask.sum(1).clamp(min=1))


def evaluate(model, loader):
    model.eval()
    hits, count = torch.zeros(CLASSES), torch.zeros(CLASSES)
    with torch.no_grad():
        for words, labels in loader:
            found = model(words).argmax(1)
            for c in range(CLASSES):
                hits[c] += (found[labels == c] == c).sum()
                count[c] += (labels == c).sum()
    model.train()
    return (hits / count).mean().item()


def main():
    torch.manual_seed(42)
    labelled = Stream([shard(i, 9) for i in range(3)])
    unlabelled = Stream([shard(i, 14) for i in range(10, 16)])
    labelled_loader = DataLoader(labelled, batch_size=6, collate_fn=collate)
    unlabelled_loader = DataLoader(unlabelled, batch_size=12, collate_fn=collate)
    dev_loader = DataLoader(Stream([shard(50, 30)], False), batch_size=8, collate_fn=collate)
    model = Bag()
    optimizer = torch.optim.NAdam(model.parameters(), lr=8e-3)
    labelled_batches = cycle(labelled_loader)
    with open("metrics.tsv", "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["epoch", "loss", "taken", "recall"])
        for epoch in range(2):
            losses, taken = [], []
            for unlabelled_words, _ in unlabelled_loader:
                words, labels = next(labelled_batches)
                known = nn.functional.cross_entropy(model(drop_words(words, 0.1)), labels)
                chances = model(drop_words(unlabelled_words, 0.1)).detach().softmax(1)
                top, pseudo = chances.max(1)
                sure = (top >= 0.4).float()
                strong = model(drop_words(unlabelled_words, 0.4))
                guessed = nn.functional.cross_entropy(strong, pseudo, reduction="none")
                loss = known + (guessed * sure).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                taken.append(sure.mean().item())
            recall = evaluate(model, dev_loader)
            row = [epoch, sum(losses) / len(losses), sum(taken) / len(taken), recall]
            writer.writerow([round(x, 4) for x in row])
            print(*(f"{x:.4f}" for x in row))


if __name__ == "__main__":
    main()
