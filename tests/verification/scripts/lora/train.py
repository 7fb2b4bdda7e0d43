"""Adapters on a frozen encoder, merged to evaluate; rates fall from layer to layer, and the norms thaw later."""

import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8, p=0.1):
        super().__init__()
        self.base, self.drop, self.scale = base, nn.Dropout(p), alpha / r
        self.A = nn.Parameter(torch.randn(r, base.in_features) / r)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode and self.merged:
            self.base.weight.data -= self.scale * self.B.data @ self.A.data
        elif not mode and not self.merged:
            self.base.weight.data += self.scale * self.B.data @ self.A.data
        self.merged = not mode
        return self

    def forward(self, x):
        out = self.base(x)
        if not self.merged:
            out = out + self.scale * (self.drop(x) @ self.A.t() @ self.B.t())
        return out


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.q, self.v = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        h = self.norm(x)
        weights = (self.q(h) @ h.transpose(1, 2) / math.sqrt(x.size(-1))).softmax(-1)
        return x + weights @ self.v(h)


class Encoder(nn.Module):
    def __init__(self, d=16, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(12, d)
        self.places = nn.Parameter(0.1 * torch.randn(10, d))
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.head = nn.Linear(d, 2)

    def forward(self, x):
        h = self.tokens(x) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def adapted(model):
    for p in model.parameters():
        p.requires_grad = False
    for block in model.blocks:
        block.q, block.v = LoRALinear(block.q), LoRALinear(block.v)
    for p in model.head.parameters():
        p.requires_grad = True
    return model


def groups(model, lr, decay=0.5):
    found = []
    for depth, block in enumerate(model.blocks):
        trained = [p for p in block.parameters() if p.requires_grad]
        rate = lr * decay ** (len(model.blocks) - 1 - depth)
        found.append({"params": trained, "lr": rate, "weight_decay": 0.01})
    found.append({"params": [model.head.weight], "lr": lr, "weight_decay": 0.01})
    found.append({"params": [model.head.bias], "lr": lr, "weight_decay": 0.0})
    return found


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 12, (n, 10), generator=g)
    return TensorDataset(x, ((x == 7).sum(1) > (x == 3).sum(1)).long())


def main():
    torch.manual_seed(0)
    model = adapted(Encoder())
    lr = 2e-2
    optimizer = torch.optim.AdamW(groups(model, lr))
    loader = DataLoader(data(96, 1), 16, shuffle=True)
    dev_loader = DataLoader(data(40, 2), 32)
    history, best = [], -1.0
    for epoch in range(3):
        if epoch == 1:
            norms = [p for name, p in model.named_parameters() if "norm" in name]
            for p in norms:
                p.requires_grad = True
            optimizer.add_param_group({"params": norms, "lr": 0.1 * lr, "weight_decay": 0.0})
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        tp = fp = fn = 0
        with torch.no_grad():
            for x, y in dev_loader:
                found = model(x).argmax(1)
                tp += ((found == 1) & (y == 1)).sum().item()
                fp += ((found == 1) & (y == 0)).sum().item()
                fn += ((found == 0) & (y == 1)).sum().item()
        f1 = 2 * tp / max(1, 2 * tp + fp + fn)
        history.append({"epoch": epoch, "loss": loss.item(), "f1": f1})
        print(f"epoch {epoch} loss {loss.item():.4f} F1 {f1:.4f}")
        if f1 > best:
            best = f1
            state = model.state_dict()
            torch.save({k: v for k, v in state.items() if k[-1] in "AB" or "head" in k}, "adapter.pt")
    with open("history.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in history)
    model.train()
    torch.save(model.state_dict(), "full.pt")


if __name__ == "__main__":
    main()
