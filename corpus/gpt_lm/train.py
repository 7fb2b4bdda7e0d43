"""Trains a small GPT to write recipes, one character at a time."""

import argparse
import math
import time

import torch

from model import GPT
from recipes import write_recipes

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", default="./data", help="folder of the recipes, written if missing")
parser.add_argument("--chapters", type=int, default=40)
parser.add_argument("--recipes", type=int, default=300, help="per chapter")
parser.add_argument("--block-size", type=int, default=256, help="characters of context")
parser.add_argument("--n-layer", type=int, default=6)
parser.add_argument("--n-head", type=int, default=6)
parser.add_argument("--n-embd", type=int, default=384)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--max-iters", type=int, default=5000)
parser.add_argument("--warmup-iters", type=int, default=100)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--min-lr", type=float, default=1e-4)
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--grad-clip", type=float, default=1.0)
parser.add_argument("--eval-interval", type=int, default=250)
parser.add_argument("--eval-iters", type=int, default=50)
parser.add_argument("--out", default="gpt_lm.pt")
args = parser.parse_args()

torch.manual_seed(1337)
device = "cuda" if torch.cuda.is_available() else "cpu"

# the text, as numbers
text = "".join(open(name).read() for name in write_recipes(args.data, args.chapters, args.recipes))
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
data = torch.tensor([stoi[ch] for ch in text], dtype=torch.long)
n = int(0.9 * len(data))
train_data, val_data = data[:n], data[n:]
print(f"{len(data)} characters, {len(chars)} different ones")


def get_batch(split):
    source = train_data if split == "train" else val_data
    starts = torch.randint(len(source) - args.block_size, (args.batch_size,))
    x = torch.stack([source[i:i + args.block_size] for i in starts])
    y = torch.stack([source[i + 1:i + 1 + args.block_size] for i in starts])
    x, y = x.to(device), y.to(device)
    return x, y


model = GPT(len(chars), args.block_size, args.n_layer, args.n_head, args.n_embd, args.dropout)
model.to(device)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")

# matrices and embeddings decay, biases and norms do not
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
groups = [
    {"params": decay, "weight_decay": args.weight_decay},
    {"params": no_decay, "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))


def get_lr(it):
    """Linear warm-up, then a cosine down to min_lr."""
    if it < args.warmup_iters:
        return args.lr * (it + 1) / args.warmup_iters
    ratio = (it - args.warmup_iters) / max(1, args.max_iters - args.warmup_iters)
    return args.min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (args.lr - args.min_lr)


def estimate_loss():
    model.eval()
    out = {}
    for split in ("train", "val"):
        losses = torch.zeros(args.eval_iters)
        for k in range(args.eval_iters):
            x, y = get_batch(split)
            _, loss = model(x, y)
            losses[k] = loss.item()
        out[split] = losses.mean().item()
    model.train()
    return out


best_val = float("inf")
start = time.time()
for it in range(args.max_iters):
    lr = get_lr(it)
    for group in optimizer.param_groups:
        group["lr"] = lr

    if it > 0 and it % args.eval_interval == 0 or it == args.max_iters - 1:
        losses = estimate_loss()
        print(f"step {it}: train {losses['train']:.4f}, val {losses['val']:.4f}")
        if losses["val"] < best_val:
            best_val = losses["val"]
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "it": it,
                "best_val": best_val,
            }
            torch.save(checkpoint, args.out)

    x, y = get_batch("train")
    logits, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    optimizer.step()

    print(f"iter {it}: loss {loss.item():.4f}, lr {lr:.2e}")

print(f"done in {time.time() - start:.0f}s, best val {best_val:.4f}")
