"""A stream of samples, gradient accumulation, and a model that returns a dict with its loss."""

import json

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        g = torch.Generator().manual_seed(5)
        for _ in range(self.n):
            length = int(torch.randint(3, 9, (1,), generator=g))
            tokens = torch.randint(1, 20, (length,), generator=g)
            yield tokens, (tokens.sum() % 3)


def collate(batch):
    tokens, labels = zip(*batch)
    lengths = torch.tensor([len(t) for t in tokens])
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return {"tokens": padded, "lengths": lengths, "labels": torch.stack(labels)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens, lengths, labels=None):
        h, _ = self.gru(self.embed(tokens))
        mask = torch.arange(h.shape[1])[None, :] < lengths[:, None]
        pooled = (h * mask[..., None]).sum(1) / lengths[:, None]
        logits = self.out(self.drop(pooled))
        result = {"logits": logits}
        if labels is not None:
            result["loss"] = nn.functional.cross_entropy(logits, labels)
        return result


def main():
    torch.manual_seed(3)
    model = Classifier()
    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    rest = [p for n, p in model.named_parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.2, total_steps=16, base_momentum=0.8
    )
    accumulate = 3
    metrics = []
    for epoch in range(2):
        model.train()
        running, seen = 0.0, 0
        loader = DataLoader(Stream(96), batch_size=8, collate_fn=collate)
        for i, batch in enumerate(loader):
            loss = model(**batch)["loss"] / accumulate
            loss.backward()
            running += loss.item() * accumulate
            seen += 1
            if (i + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        metrics.append({"epoch": epoch, "loss": running / seen})
        with open("metrics.json", "w") as file:
            json.dump(metrics, file)
        print(metrics[-1])


if __name__ == "__main__":
    main()
