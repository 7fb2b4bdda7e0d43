"""Tabular credit defaults: rare positives drawn more often, mixup, several metrics, early stopping on the best of them."""

import json
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


@dataclass
class Config:
    rows: int = 120
    batch_size: int = 16
    hidden: int = 24
    dropout: float = 0.2
    mixup: float = 0.4
    lr: float = 0.02
    weight_decay: float = 0.02
    epochs: int = 9
    patience: int = 3
    seed: int = 3


class Clients(Dataset):
    """Amounts with gaps, and a category; who defaults is rare."""

    def __init__(self, rows, seed):
        rng = np.random.default_rng(seed)
        amounts = rng.lognormal(0.0, 0.7, size=(rows, 6))
        region = rng.integers(0, 5, size=rows)
        score = 1.3 * np.log(amounts[:, 0]) - amounts[:, 1] + 0.5 * (region == 2)
        self.label = (score + rng.normal(0, 0.5, rows) > 0.2).astype(np.int64)
        amounts[rng.random(amounts.shape) < 0.1] = np.nan
        self.amounts, self.region = amounts.astype(np.float32), region

    def fit(self):
        logs = np.log1p(self.amounts)
        return np.nanmean(logs, axis=0), np.nanstd(logs, axis=0)

    def normalize(self, mean, std):
        logs = (np.log1p(self.amounts) - mean) / std
        self.features = np.concatenate([np.nan_to_num(logs), np.isnan(logs)], axis=1)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        features = torch.tensor(self.features[i], dtype=torch.float32)
        return features, int(self.region[i]), int(self.label[i])


class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.region = nn.Embedding(5, 4)
        self.body = nn.Sequential(
            nn.Linear(12 + 4, config.hidden),
            nn.BatchNorm1d(config.hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.LayerNorm(config.hidden),
            nn.GELU(),
        )
        self.head = nn.Linear(config.hidden, 2)

    def forward(self, features, region):
        return self.head(self.body(torch.cat([features, self.region(region)], dim=1)))


def mix(features, alpha):
    lam = float(np.random.beta(alpha, alpha))
    order = torch.randperm(len(features))
    return lam * features + (1 - lam) * features[order], order, lam


def parameter_groups(model, weight_decay):
    decay, no_decay = [], []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            plain = name == "bias" or isinstance(module, (nn.BatchNorm1d, nn.LayerNorm))
            (no_decay if plain or isinstance(module, nn.Embedding) else decay).append(parameter)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def auc(labels, scores):
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = labels.sum()
    return (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (
        positives * (len(labels) - positives)
    )


class Trainer:
    def __init__(self, config, device):
        self.config, self.device = config, device
        self.train_set = Clients(config.rows, 0)
        self.valid_set = Clients(50, 1)
        statistics = self.train_set.fit()
        self.train_set.normalize(*statistics)
        self.valid_set.normalize(*statistics)
        counts = np.bincount(self.train_set.label)
        sampler = WeightedRandomSampler(
            (1.0 / counts)[self.train_set.label], len(self.train_set), replacement=True
        )
        self.train_loader = DataLoader(self.train_set, config.batch_size, sampler=sampler)
        self.valid_loader = DataLoader(self.valid_set, config.batch_size)
        self.model = Network(config).to(device)
        self.class_weights = torch.tensor([1.0, 1.5], device=device)
        groups = parameter_groups(self.model, config.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer, factor=0.5, patience=0, threshold=0.01, min_lr=1e-3
        )

    def criterion(self, logits, target):
        return F.cross_entropy(
            logits, target, weight=self.class_weights, label_smoothing=0.05
        )

    def train_epoch(self):
        self.model.train()
        total, right, seen = 0.0, 0, 0
        for features, region, label in self.train_loader:
            features = features.to(self.device)
            region, label = region.to(self.device), label.to(self.device)
            mixed, order, lam = mix(features, self.config.mixup)
            logits = self.model(mixed, region)
            loss = lam * self.criterion(logits, label)
            loss = loss + (1 - lam) * self.criterion(logits, label[order])
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
            self.optimizer.step()
            total += loss.item() * len(label)
            right += (logits.argmax(dim=1) == label).sum().item()
            seen += len(label)
        return total / seen, right / seen

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, weight, scores, labels = 0.0, 0.0, [], []
        for features, region, label in self.valid_loader:
            features = features.to(self.device)
            region, label = region.to(self.device), label.to(self.device)
            logits = self.model(features, region)
            share = self.class_weights[label].sum().item()
            total += F.cross_entropy(logits, label, weight=self.class_weights).item() * share
            weight += share
            scores.extend(logits.double().softmax(dim=1)[:, 1].tolist())
            labels.extend(label.tolist())
        scores, labels = np.array(scores), np.array(labels)
        said = scores > 0.5
        hits = (said & (labels == 1)).sum()
        precision, recall = hits / max(said.sum(), 1), hits / (labels == 1).sum()
        return {
            "loss": total / weight,
            "accuracy": float((said == labels).mean()),
            "f1": float(2 * precision * recall / max(precision + recall, 1e-9)),
            "auc": float(auc(labels, scores)),
        }

    def fit(self):
        best, waited, history = float("inf"), 0, []
        for epoch in range(1, self.config.epochs + 1):
            loss, accuracy = self.train_epoch()
            metrics = self.validate()
            self.scheduler.step(metrics["loss"])
            history.append({"epoch": epoch, "train_loss": loss, **metrics})
            told = " ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            print(f"epoch {epoch}: train {loss:.4f} ({accuracy:.3f}) valid {told}")
            if metrics["loss"] < best - 1e-3:
                best, waited = metrics["loss"], 0
                state = {"model": self.model.state_dict(), "epoch": epoch, "metrics": metrics}
                torch.save({**state, "config": asdict(self.config)}, "best.pt")
            else:
                waited += 1
                if waited >= self.config.patience:
                    print(f"early stop at epoch {epoch}")
                    break
        self.model.load_state_dict(torch.load("best.pt")["model"])
        with open("history.json", "w") as file:
            json.dump({"history": history, "final": self.validate()}, file, indent=1)


if __name__ == "__main__":
    config = Config()
    torch.manual_seed(config.seed)
    np.random.seed(config.seed)
    Trainer(config, "cuda" if torch.cuda.is_available() else "cpu").fit()
