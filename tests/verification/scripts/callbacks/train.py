"""A siamese network with batch-hard triplets and a class head: config, callbacks (EMA, unfreezing, early stopping), PK batches."""

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lib.callbacks import EMA, Checkpoint, EarlyStopping, Log, Unfreeze


@dataclass
class Config:
    epochs: int = 4
    classes: int = 6
    per_class: int = 3
    lr: float = 0.05
    margin: float = 0.3
    decay: float = 5e-4


class Faces(Dataset):
    def __init__(self, classes, each, seed, train):
        g = torch.Generator().manual_seed(seed)
        centres = torch.randn(classes, 1, 8, 8, generator=torch.Generator().manual_seed(99))
        self.labels = [k for k in range(classes) for _ in range(each)]
        self.images = torch.cat(
            [c + 0.8 * torch.randn(each, 1, 8, 8, generator=g) for c in centres]
        )
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        if self.train:
            if random.random() < 0.5:
                image = image.flip(-1)
            image = image + 0.1 * torch.randn(image.shape)
        return image, self.labels[i]


class PK:
    """Batches of so many samples of every class."""

    def __init__(self, labels, per_class, seed):
        self.by_class = {
            k: [i for i, y in enumerate(labels) if y == k] for k in sorted(set(labels))
        }
        self.per_class, self.random = per_class, random.Random(seed)

    def __len__(self):
        return min(len(v) for v in self.by_class.values()) // self.per_class

    def __iter__(self):
        order = {k: self.random.sample(v, len(v)) for k, v in self.by_class.items()}
        for n in range(len(self)):
            yield [
                i for v in order.values() for i in v[n * self.per_class : (n + 1) * self.per_class]
            ]


class Net(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.neck = nn.Sequential(nn.Flatten(), nn.Linear(width * 16, 16), nn.BatchNorm1d(16))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(16, classes, bias=False)

    def forward(self, x):
        feature = self.neck(self.body(x))
        return F.normalize(feature), self.head(self.drop(feature))


def batch_hard(e, y, margin):
    distance = (2 - 2 * e @ e.T).clamp(min=1e-6).sqrt()
    same = y[:, None] == y
    other = ~torch.eye(len(y), dtype=torch.bool)
    positive = distance.masked_fill(~(same & other), -1).amax(1)
    negative = distance.masked_fill(same, 9).amin(1)
    loss = F.relu(positive - negative + margin)
    active = loss > 0
    return loss.sum() / active.sum().clamp(min=1), active.float().mean()


@torch.no_grad()
def retrieval(model, loader):
    """Recall at 1 and mean average precision, each sample against all the others."""
    model.eval()
    e = torch.cat([model(x)[0] for x, _ in loader])
    y = torch.cat([y for _, y in loader])
    score = e @ e.T
    score.fill_diagonal_(-2)
    recall = total = 0
    for i in range(len(y)):
        order = score[i].argsort(descending=True)[:-1]
        hit = (y[order] == y[i]).float()
        recall += hit[0].item()
        total += (
            (hit.cumsum(0) / torch.arange(1, len(hit) + 1)) * hit
        ).sum().item() / hit.sum().item()
    return recall / len(y), total / len(y)


class Trainer:
    def __init__(self, config, model, train, test, callbacks):
        self.config, self.model, self.train_loader, self.test_loader, self.callbacks = (
            config,
            model,
            train,
            test,
            callbacks,
        )
        self.ema = next(c for c in callbacks if isinstance(c, EMA))
        self.stop, self.metrics, self.epoch = False, {}, 0

    def tell(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def fit(self):
        self.tell("on_fit_start")
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(
            trained, lr=self.config.lr, momentum=0.9, weight_decay=self.config.decay
        )
        for self.epoch in range(self.config.epochs):
            self.model.train()
            self.tell("on_epoch_start")
            sums = {"loss": 0.0, "active": 0.0, "count": 0}
            for x, y in self.train_loader:
                e, logits = self.model(x)
                triplet, active = batch_hard(e, y, self.config.margin)
                loss = triplet + 0.5 * F.cross_entropy(logits, y, label_smoothing=0.1)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.tell("on_step_end")
                sums["loss"] += loss.item() * len(y)
                sums["active"] += active.item() * len(y)
                sums["count"] += len(y)
            recall, precision = retrieval(self.ema.model, self.test_loader)
            own, _ = retrieval(self.model, self.test_loader)
            self.metrics = {
                "loss": sums["loss"] / sums["count"],
                "active": sums["active"] / sums["count"],
                "recall": recall,
                "map": precision,
                "own": own,
                "error": 1 - precision,
            }
            self.tell("on_epoch_end")
            if self.stop:
                break
        self.tell("on_fit_end")


def main():
    torch.manual_seed(5)
    random.seed(5)
    config = Config()
    train_set, test_set = Faces(config.classes, 9, 1, True), Faces(config.classes, 4, 2, False)
    train = DataLoader(train_set, batch_sampler=PK(train_set.labels, config.per_class, 3))
    test = DataLoader(test_set, 10)
    callbacks = [
        EMA(),
        Unfreeze(1),
        EarlyStopping("error"),
        Checkpoint("last.pt"),
        Log("log.jsonl"),
    ]
    Trainer(config, Net(config.classes), train, test, callbacks).fit()


if __name__ == "__main__":
    main()
