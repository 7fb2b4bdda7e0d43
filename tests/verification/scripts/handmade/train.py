"""A recurrent classifier of words as tutorials write it: updates by hand, no loader, no modes, all results printed at the end."""

import math
import random
import string
import time

import torch
import torch.nn as nn

random.seed(8)
torch.manual_seed(8)
LETTERS = string.ascii_lowercase + "-"
CATS = {
    "even": ["ab", "cd", "ef", "ij"],
    "odd": ["xz", "qu", "vw", "k-"],
    "mix": ["ax", "cq", "ev", "ik"],
}
NAMES = list(CATS)


def make(n):
    out = []
    for _ in range(n):
        c = random.choice(NAMES)
        out.append((c, "".join(random.choice(CATS[c]) for _ in range(random.randint(2, 5)))))
    return out


def to_tensor(word):
    t = torch.zeros(len(word), 1, len(LETTERS))
    for i, ch in enumerate(word):
        t[i][0][LETTERS.find(ch)] = 1
    return t


class RNN(nn.Module):
    def __init__(self, n_in, n_hidden, n_out):
        super().__init__()
        self.n_hidden = n_hidden
        self.i2h = nn.Linear(n_in + n_hidden, n_hidden)
        self.h2o = nn.Linear(n_hidden, n_out)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, x, h):
        h = torch.tanh(self.i2h(torch.cat((x, h), 1)))
        return self.softmax(self.h2o(h)), h

    def init(self):
        return torch.zeros(1, self.n_hidden)


data = make(60)
held = make(20)
rnn = RNN(len(LETTERS), 24, len(NAMES))
criterion = nn.NLLLoss()
lr = 0.05


def train(word, cat):
    h = rnn.init()
    rnn.zero_grad()
    line = to_tensor(word)
    for i in range(line.size()[0]):
        out, h = rnn(line[i], h)
    loss = criterion(out, torch.tensor([NAMES.index(cat)]))
    loss.backward()
    for p in rnn.parameters():
        p.data.add_(p.grad.data, alpha=-lr)
    return out, loss.item()


def evaluate(word):
    h = rnn.init()
    line = to_tensor(word)
    with torch.no_grad():
        for i in range(line.size()[0]):
            out, h = rnn(line[i], h)
    return out


current, losses, right = 0, [], 0
start = time.time()
for it in range(1, 61):
    cat, word = random.choice(data)
    out, loss = train(word, cat)
    current += loss
    guess = NAMES[out.topk(1)[1].item()]
    right += guess == cat
    if it % 15 == 0:
        verdict = "ok" if guess == cat else f"no ({cat})"
        print(f"{it} ({time.time() - start:.1f}s) {word} / {guess} {verdict} {loss:.4f}")
        losses.append(current / 15)
        current = 0
        lr = lr * 0.9
confusion = torch.zeros(3, 3)
total = 0.0
for cat, word in held:
    out = evaluate(word)
    confusion[NAMES.index(cat)][out.argmax()] += 1
    total += -out[0][NAMES.index(cat)].item()
for i in range(3):
    confusion[i] = confusion[i] / confusion[i].sum()
nll = total / len(held)
print(f"train acc {right / 60} held nll {nll:.4f} ppl {math.exp(nll):.4f}")
for row in confusion.tolist():
    print(" ".join(f"{v:.2f}" for v in row))
with open("losses.txt", "w") as f:
    f.write("\n".join(map(str, losses)))
torch.save(rnn, "char-rnn.pt")
