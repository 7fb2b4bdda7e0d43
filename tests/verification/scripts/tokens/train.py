"""Translate digit strings to sorted ones; batches hold a number of tokens, not of sentences."""
import logging
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("tokens")
PAD, BOS, EOS = 0, 1, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pairs(Dataset):
    def __init__(self, n, seed):
        r = random.Random(seed)
        self.items = []
        for _ in range(n):
            s = [r.randint(3, 9) for _ in range(r.randint(2, 9))]
            self.items.append((s, sorted(s)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        s, t = self.items[i]
        return torch.tensor(s + [EOS]), torch.tensor([BOS] + t + [EOS])


class TokenBatches:
    def __init__(self, lengths, max_tokens, shuffle):
        self.lengths, self.max_tokens, self.shuffle = lengths, max_tokens, shuffle

    def __iter__(self):
        order = list(range(len(self.lengths)))
        if self.shuffle:
            random.shuffle(order)
        order.sort(key=lambda i: self.lengths[i])
        batches, batch, longest = [], [], 0
        for i in order:
            longest = max(longest, self.lengths[i])
            if batch and longest * (len(batch) + 1) > self.max_tokens:
                batches.append(batch)
                batch, longest = [], self.lengths[i]
            batch.append(i)
        if batch:
            batches.append(batch)
        if self.shuffle:
            random.shuffle(batches)
        return iter(batches)


def collate(pairs):
    src, tgt = zip(*pairs)
    return pad_sequence(src, batch_first=True), pad_sequence(tgt, batch_first=True)


class Translator(nn.Module):
    def __init__(self, vocab=10, d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = nn.Embedding(16, d)
        self.core = nn.Transformer(d, 2, 1, 1, 48, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, vocab, bias=False)
        self.out.weight = self.emb.weight

    def embed(self, t):
        return self.emb(t) * self.emb.embedding_dim ** 0.5 + self.pos(torch.arange(t.size(1), device=t.device))

    def forward(self, src, tgt):
        mask = torch.triu(torch.full((tgt.size(1), tgt.size(1)), float("-inf"), device=tgt.device), 1)
        pad = torch.zeros(src.shape, device=src.device).masked_fill(src == PAD, float("-inf"))
        h = self.core(self.embed(src), self.embed(tgt), tgt_mask=mask, src_key_padding_mask=pad, memory_key_padding_mask=pad)
        return self.out(h)

    @torch.no_grad()
    def greedy(self, src, steps=11):
        out = torch.full((len(src), 1), BOS, device=src.device)
        done = torch.zeros(len(src), dtype=torch.bool, device=src.device)
        for _ in range(steps):
            nxt = self(src, out)[:, -1].argmax(-1)
            nxt[done] = PAD
            out = torch.cat([out, nxt[:, None]], 1)
            done |= nxt == EOS
            if done.all():
                break
        return out


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[logging.FileHandler("run.log")])
    random.seed(1)
    torch.manual_seed(1)
    train, dev = Pairs(120, 5), Pairs(40, 6)
    lengths = lambda ds: [len(s) + 1 for s, _ in ds.items]
    loader = DataLoader(train, batch_sampler=TokenBatches(lengths(train), 120, True), collate_fn=collate)
    dev_loader = DataLoader(dev, batch_sampler=TokenBatches(lengths(dev), 120, False), collate_fn=collate)
    net = Translator().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.2, total_iters=10)
    crit = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1, reduction="sum")
    best = float("inf")
    for epoch in range(4):
        net.train()
        seen = total = 0
        for src, tgt in loader:
            src, tgt = src.to(device), tgt.to(device)
            logits = net(src, tgt[:, :-1])
            tokens = (tgt[:, 1:] != PAD).sum()
            loss = crit(logits.flatten(0, 1), tgt[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            (loss / tokens).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            warm.step()
            total += loss.item()
            seen += tokens.item()
        net.eval()
        errors = words = 0
        for src, tgt in dev_loader:
            for hyp, ref in zip(net.greedy(src.to(device)).tolist(), tgt.tolist()):
                hyp = [t for t in hyp if t > EOS]
                ref = [t for t in ref if t > EOS]
                errors += edit_distance(hyp, ref)
                words += len(ref)
        log.info("epoch %d loss/token %.4f ter %.4f batches %d", epoch, total / seen, errors / words, len(list(loader.batch_sampler)))
        if errors / words < best:
            best = errors / words
            torch.save({"model": net.state_dict(), "epoch": epoch, "ter": best}, "best.pt")
    Path("done.txt").write_text(f"{best:.4f}\n")


if __name__ == "__main__":
    main()
