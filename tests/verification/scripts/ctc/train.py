"""A small recognizer of spoken letters by CTC: batches of similar length, greedy decoding, the best epoch kept."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

LETTERS = "_abcd"
BLANK, EPOCHS, BATCH, LR = 0, 4, 16, 0.04


def speak(n, seed):
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    sounds = torch.randn(len(LETTERS), 6, generator=torch.Generator().manual_seed(7))
    items = []
    for _ in range(n):
        text = [rng.randint(1, len(LETTERS) - 1) for _ in range(rng.randint(1, 3))]
        x = torch.cat([sounds[letter].repeat(rng.randint(2, 3), 1) for letter in text])
        items.append((x + 0.2 * torch.randn(x.shape, generator=noise), torch.tensor(text)))
    return items


class Speech(Dataset):
    def __init__(self, items, augment=False):
        self.items, self.augment = items, augment
        frames = torch.cat([x for x, _ in items])
        self.mean, self.std = frames.mean(0), frames.std(0)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        x, y = self.items[i]
        x = (x - self.mean) / self.std
        if self.augment:
            x[random.randrange(len(x))] = 0.0
        return x, y


class BySize(Sampler):
    def __init__(self, lengths, batch):
        self.lengths, self.batch, self.epoch = lengths, batch, 0

    def __iter__(self):
        rng = random.Random(self.epoch)
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], rng.random()))
        batches = [order[i : i + self.batch] for i in range(0, len(order), self.batch)]
        rng.shuffle(batches)
        yield from batches

    def __len__(self):
        return -(-len(self.lengths) // self.batch)


def collate(batch):
    xs, ys = zip(*batch)
    lengths = torch.tensor([len(x) for x in xs]), torch.tensor([len(y) for y in ys])
    return pad_sequence(xs, batch_first=True), torch.cat(ys), *lengths


class Net(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.conv = nn.Conv1d(6, hidden, 3, padding=1)
        self.norm = nn.BatchNorm1d(hidden)
        self.rnn = nn.GRU(hidden, hidden, bidirectional=True, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * hidden, len(LETTERS))

    def forward(self, x, lengths):
        h = F.relu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)
        packed = pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.log_softmax(self.out(self.drop(h)), dim=-1)


def greedy(logp, lengths):
    texts = []
    for row, n in zip(logp.argmax(-1), lengths):
        last, text = BLANK, []
        for letter in row[:n].tolist():
            if letter != last and letter != BLANK:
                text.append(letter)
            last = letter
        texts.append(text)
    return texts


def distance(a, b):
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            corner, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, corner + (x != y))
    return d[-1]


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    wrong = letters = total = seen = 0
    for x, y, x_lengths, y_lengths in loader:
        logp = model(x, x_lengths)
        total += criterion(logp.transpose(0, 1), y, x_lengths, y_lengths).item() * len(x)
        seen += len(x)
        truth = [text.tolist() for text in y.split(y_lengths.tolist())]
        wrong += sum(map(distance, greedy(logp, x_lengths), truth))
        letters += len(y)
    return total / seen, wrong / letters


def main():
    torch.manual_seed(0)
    random.seed(0)
    train_set, dev_set = Speech(speak(60, 1), augment=True), Speech(speak(21, 2))
    dev_set.mean, dev_set.std = train_set.mean, train_set.std
    sampler = BySize([len(x) for x, _ in train_set.items], BATCH)
    train_loader = DataLoader(train_set, batch_sampler=sampler, collate_fn=collate)
    dev_loader = DataLoader(dev_set, batch_size=8, collate_fn=collate)
    model = Net()
    criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LR, epochs=EPOCHS, steps_per_epoch=len(train_loader)
    )
    best = float("inf")
    for epoch in range(EPOCHS):
        sampler.epoch = epoch
        model.train()
        running = 0.0
        for x, y, x_lengths, y_lengths in train_loader:
            optimizer.zero_grad()
            logp = model(x, x_lengths)
            loss = criterion(logp.transpose(0, 1), y, x_lengths, y_lengths)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            running += loss.item()
        dev_loss, cer = evaluate(model, dev_loader, criterion)
        print(
            f"epoch {epoch} loss {running / len(train_loader):.4f} dev {dev_loss:.4f} cer {cer:.2%}"
        )
        if dev_loss < best:
            best = dev_loss
            saved = {"model": model.state_dict(), "mean": train_set.mean, "std": train_set.std}
            torch.save(saved | {"epoch": epoch, "cer": cer}, "best.pt")


if __name__ == "__main__":
    main()
