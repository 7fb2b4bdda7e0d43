"""A BiLSTM-CRF over characters and words: lengths in buckets, SparseAdam beside Adam, Viterbi, the best epoch by F1 tested at last."""

import logging
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("crf")
TAGS = ["O", "B", "I"]


class Sentences(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            words, tags = [], []
            while len(words) < rng.randint(3, 12):
                if rng.random() < 0.3:
                    span = rng.randint(1, 3)
                    words += [
                        "X" + "abc"[rng.randint(0, 2)] * rng.randint(1, 3) for _ in range(span)
                    ]
                    tags += [1] + [2] * (span - 1)
                else:
                    words.append("".join(rng.choice("defgh") for _ in range(rng.randint(1, 5))))
                    tags.append(0)
            self.items.append((words, tags))
        self.lengths = [len(w) for w, _ in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        words, tags = self.items[i]
        ids = [1 + sum(map(ord, w)) % 49 for w in words]
        chars = [torch.tensor([1 + (ord(c) - 65) % 40 for c in w]) for w in words]
        return torch.tensor(ids), pad_sequence(chars, batch_first=True), torch.tensor(tags)


class Buckets(Sampler):
    def __init__(self, lengths, size, shuffle=True):
        self.lengths, self.size, self.shuffle = lengths, size, shuffle

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], random.random()))
        batches = [order[i : i + self.size] for i in range(0, len(order), self.size)]
        if self.shuffle:
            random.shuffle(batches)
        yield from batches

    def __len__(self):
        return (len(self.lengths) + self.size - 1) // self.size


def collate(items):
    items = sorted(items, key=lambda item: -len(item[0]))
    words, chars, tags = zip(*items)
    lengths = torch.tensor([len(w) for w in words])
    wide = max(c.shape[1] for c in chars)
    grid = torch.zeros(len(items), int(lengths.max()), wide, dtype=torch.long)
    for i, c in enumerate(chars):
        grid[i, : c.shape[0], : c.shape[1]] = c
    return (
        pad_sequence(words, batch_first=True),
        grid,
        lengths,
        pad_sequence(tags, batch_first=True),
    )


class Crf(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(tags))
        self.end = nn.Parameter(torch.zeros(tags))
        self.move = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def score(self, emissions, tags, mask):
        b = torch.arange(len(tags))
        total = self.start[tags[:, 0]] + emissions[b, 0, tags[:, 0]]
        for t in range(1, tags.shape[1]):
            step = self.move[tags[:, t - 1], tags[:, t]] + emissions[b, t, tags[:, t]]
            total = total + step * mask[:, t]
        last = mask.sum(1).long() - 1
        return total + self.end[tags[b, last]]

    def partition(self, emissions, mask):
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            new = torch.logsumexp(alpha[:, :, None] + self.move + emissions[:, t, None, :], dim=1)
            alpha = torch.where(mask[:, t, None], new, alpha)
        return torch.logsumexp(alpha + self.end, dim=1)

    def decode(self, emissions, mask):
        alpha, back = self.start + emissions[:, 0], []
        for t in range(1, emissions.shape[1]):
            best, origin = (alpha[:, :, None] + self.move).max(dim=1)
            alpha = torch.where(mask[:, t, None], best + emissions[:, t], alpha)
            back.append(torch.where(mask[:, t, None], origin, torch.arange(origin.shape[1])))
        tag = (alpha + self.end).argmax(1)
        path = [tag]
        for origin in reversed(back):
            tag = origin.gather(1, tag[:, None]).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1], 1)


class Tagger(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.words = nn.Embedding(50, dim, padding_idx=0, sparse=True)
        self.chars = nn.Embedding(41, 6, padding_idx=0)
        self.conv = nn.Conv1d(6, 8, 3, padding=1)
        self.drop = nn.Dropout(0.3)
        self.lstm = nn.LSTM(dim + 8, 10, batch_first=True, bidirectional=True)
        self.out = nn.Linear(20, len(TAGS))
        self.crf = Crf(len(TAGS))

    def emissions(self, words, chars, lengths):
        b, t, w = chars.shape
        c = self.conv(self.chars(chars.view(b * t, w)).transpose(1, 2))
        c = c.masked_fill((chars.view(b * t, 1, w) == 0), -1e4).amax(2).view(b, t, -1)
        c = c.masked_fill((words == 0)[:, :, None], 0.0)
        x = self.drop(torch.cat([self.words(words), c], -1))
        h, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True))
        return self.out(self.drop(pad_packed_sequence(h, batch_first=True)[0]))

    def forward(self, words, chars, lengths, tags):
        e = self.emissions(words, chars, lengths)
        mask = words != 0
        return self.crf.partition(e, mask) - self.crf.score(e, tags, mask)


def spans(tags):
    found, begin = set(), None
    for i, t in enumerate([*tags, 0]):
        if begin is not None and t != 2:
            found.add((begin, i))
            begin = None
        if t == 1:
            begin = i
    return found


def f1(model, loader):
    model.eval()
    hits = said = there = 0
    for words, chars, lengths, tags in loader:
        with torch.no_grad():
            path = model.crf.decode(model.emissions(words, chars, lengths), words != 0)
        for guess, gold, n in zip(path.tolist(), tags.tolist(), lengths.tolist()):
            a, b = spans(guess[:n]), spans(gold[:n])
            hits, said, there = hits + len(a & b), said + len(a), there + len(b)
    return 2 * hits / max(said + there, 1)


def main(epochs=5, batch=8):
    random.seed(11)
    torch.manual_seed(11)
    train, dev, test = Sentences(75, 0), Sentences(30, 1), Sentences(30, 2)
    loader = DataLoader(train, batch_sampler=Buckets(train.lengths, batch), collate_fn=collate)
    dev_loader = DataLoader(
        dev, batch_sampler=Buckets(dev.lengths, 10, shuffle=False), collate_fn=collate
    )
    test_loader = DataLoader(test, batch_size=10, collate_fn=collate)
    model = Tagger()
    sparse = torch.optim.SparseAdam([model.words.weight], lr=2e-2)
    dense = torch.optim.NAdam(
        [p for p in model.parameters() if p is not model.words.weight], lr=2e-2
    )
    decay = torch.optim.lr_scheduler.MultiplicativeLR(dense, lambda e: 0.8)
    best = -1.0
    for epoch in range(epochs):
        model.train()
        total, count = 0.0, 0
        for words, chars, lengths, tags in loader:
            loss = model(words, chars, lengths, tags).mean()
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(
                [p for p in model.parameters() if p is not model.words.weight], 5.0
            )
            sparse.step()
            dense.step()
            total += loss.item() * int(lengths.sum())
            count += int(lengths.sum())
        decay.step()
        score = f1(model, dev_loader)
        log.info("epoch %d loss %.4f dev F1 %.4f", epoch, total / count, score)
        if score > best:
            best = score
            torch.save(model.state_dict(), "crf_best.pt")
    model.load_state_dict(torch.load("crf_best.pt"))
    log.info("test F1 %.4f", f1(model, test_loader))


if __name__ == "__main__":
    main()
