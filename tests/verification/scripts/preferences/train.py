"""Preference tuning of a small language model (DPO) against its frozen copy, with accumulation, on a GPU in half precision."""

import copy
import json
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB, PAD, LENGTH, BATCH, ACCUMULATE, EPOCHS, BETA = 32, 0, 16, 4, 3, 3, 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pairs(Dataset):
    def __init__(self, count, seed):
        generator = random.Random(seed)
        self.items = []
        for _ in range(count):
            prompt = [generator.randrange(2, VOCAB) for _ in range(generator.randint(2, 5))]
            chosen = [(prompt[-1] + k) % (VOCAB - 2) + 2 for k in range(generator.randint(3, 9))]
            rejected = [generator.randrange(2, VOCAB) for _ in range(generator.randint(3, 9))]
            self.items.append((prompt, chosen, rejected))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    rows, masks = [], []
    for side in (1, 2):
        for item in items:
            prompt, answer = item[0], item[side]
            rows.append(torch.tensor([*prompt, *answer]))
            masks.append(torch.tensor([0.0] * len(prompt) + [1.0] * len(answer)))
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return ids, nn.utils.rnn.pad_sequence(masks, batch_first=True)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.heads, self.drop = heads, nn.Dropout(0.1)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        score = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        score = score.masked_fill(~mask, float("-inf"))
        attended = (score.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)
        x = x + self.drop(self.out(attended))
        return x + self.drop(self.mlp(self.norm2(x)))


class LM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(VOCAB, dim, padding_idx=PAD),
            nn.Embedding(LENGTH, dim),
        )
        self.blocks = nn.ModuleList([Block(dim, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCAB, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        x = self.tokens(ids) + self.places(torch.arange(t, device=ids.device))
        for block in self.blocks:
            x = block(x, causal)
        return self.head(self.norm(x))


def log_probs(model, ids, mask):
    logits = model(ids)[:, :-1]
    each = -F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")
    return (each * mask[:, 1:]).sum(-1)


def preference(policy, reference, ids, mask):
    with torch.no_grad():
        held = log_probs(reference, ids, mask)
    now = log_probs(policy, ids, mask)
    gain = BETA * (now - held)
    good, bad = gain.chunk(2)
    return -F.logsigmoid(good - bad), good, bad, now.chunk(2)[0]


def main():
    torch.manual_seed(0)
    train = DataLoader(Pairs(38, 1), BATCH, shuffle=True, collate_fn=collate)
    test = DataLoader(Pairs(11, 2), BATCH, collate_fn=collate)
    policy = LM().to(device)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    decay = [p for n, p in policy.named_parameters() if p.dim() > 1]
    rest = [p for n, p in policy.named_parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=2e-3
    )
    updates = EPOCHS * math.ceil(len(train) / ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min(1, (k + 1) / 3) * (1 - k / (updates + 1))
    )
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    history, best = [], math.inf
    for epoch in range(EPOCHS):
        policy.train()
        window = total = wins = count = 0
        for index, (ids, mask) in enumerate(train):
            ids, mask = ids.to(device), mask.to(device)
            left = len(train) - index // ACCUMULATE * ACCUMULATE
            with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
                losses, good, bad, said = preference(policy, reference, ids, mask)
                sft = -(said / mask.chunk(2)[0].sum(-1)).mean()
                loss = losses.mean() + 0.1 * sft
            scaler.scale(loss / min(ACCUMULATE, left)).backward()
            total += losses.sum().item()
            wins += (good > bad).sum().item()
            count += len(losses)
            if (index + 1) % ACCUMULATE == 0 or index + 1 == len(train):
                scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
                window += 1
        policy.eval()
        value = right = seen = 0
        margins = []
        with torch.no_grad():
            for ids, mask in test:
                ids, mask = ids.to(device), mask.to(device)
                losses, good, bad, _ = preference(policy, reference, ids, mask)
                value += losses.sum().item()
                right += (good > bad).sum().item()
                seen += len(losses)
                margins.extend((good - bad).tolist())
        entry = {
            "epoch": epoch,
            "train": total / count,
            "wins": wins / count,
            "test": value / seen,
            "right": right / seen,
            "margin": sum(margins) / len(margins),
            "norm": norm.item(),
            "lr": scheduler.get_last_lr()[0],
        }
        history.append(entry)
        print(
            " ".join(
                f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in entry.items()
            )
        )
        if entry["test"] < best:
            best = entry["test"]
            torch.save({"policy": policy.state_dict(), "epoch": epoch}, "best.pt")
    Path("history.json").write_text(json.dumps(history, indent=1))
    torch.save(
        {
            "policy": policy.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        },
        "last.pt",
    )


if __name__ == "__main__":
    main()
