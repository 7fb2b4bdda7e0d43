"""Translation of digits with attention, teacher forcing by chance, padding, and greedy decoding for validation."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2


def pairs(n):
    made = []
    for _ in range(n):
        source = [random.randint(3, 11) for _ in range(random.randint(2, 5))]
        made.append((source + [EOS], [BOS] + source[::-1] + [EOS]))
    return made


def pad(sequences):
    longest = max(map(len, sequences))
    return torch.tensor([s + [PAD] * (longest - len(s)) for s in sequences])


class Encoder(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.embedding = nn.Embedding(12, 12, padding_idx=PAD)
        self.rnn = nn.GRU(12, hidden, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, source, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(source), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, hidden = self.rnn(packed)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        return outputs, torch.tanh(self.bridge(torch.cat([hidden[0], hidden[1]], dim=1)))


class Decoder(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.embedding = nn.Embedding(12, 12, padding_idx=PAD)
        self.score = nn.Linear(3 * hidden, 1)
        self.cell = nn.GRUCell(12 + 2 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(hidden, 12)

    def forward(self, token, hidden, memory, mask):
        repeated = hidden.unsqueeze(1).expand(-1, memory.size(1), -1)
        scores = self.score(torch.cat([repeated, memory], 2)).squeeze(2)
        weights = scores.masked_fill(mask, -1e9).softmax(1)
        context = (weights.unsqueeze(1) @ memory).squeeze(1)
        hidden = self.cell(torch.cat([self.dropout(self.embedding(token)), context], 1), hidden)
        return self.out(hidden), hidden


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, source, target, teacher_forcing=0.5):
        memory, hidden = self.encoder(source, (source != PAD).sum(1))
        mask = source == PAD
        token, outputs = target[:, 0], []
        for t in range(1, target.size(1)):
            logits, hidden = self.decoder(token, hidden, memory, mask)
            outputs.append(logits)
            use_teacher = random.random() < teacher_forcing
            token = target[:, t] if use_teacher else logits.argmax(1)
        return torch.stack(outputs, 1)


def batches(data, size, shuffle):
    order = np.random.permutation(len(data)) if shuffle else np.arange(len(data))
    for start in range(0, len(data), size):
        sources, targets = zip(*(data[i] for i in order[start : start + size]))
        yield pad(sources), pad(targets)


def evaluate(model, data):
    model.eval()
    total, tokens, right = 0.0, 0, 0
    with torch.no_grad():
        for source, target in batches(data, 8, shuffle=False):
            output = model(source, target, teacher_forcing=0.0)
            gold = target[:, 1:]
            real = gold != PAD
            total += F.cross_entropy(output[real], gold[real], reduction="sum").item()
            tokens += int(real.sum())
            right += int((output.argmax(2) == gold)[real].sum())
    return total / tokens, right / tokens


def main():
    random.seed(10)
    np.random.seed(10)
    torch.manual_seed(10)
    train, valid = pairs(72), pairs(20)
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    best = float("inf")
    for epoch in range(3):
        model.train()
        epoch_loss = 0.0
        for source, target in batches(train, 16, shuffle=True):
            optimizer.zero_grad()
            output = model(source, target)
            loss = criterion(output.reshape(-1, 12), target[:, 1:].reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            epoch_loss += loss.item()
        valid_loss, accuracy = evaluate(model, valid)
        scheduler.step(valid_loss)
        print(f"{epoch}: train {epoch_loss / 5:.4f} valid {valid_loss:.4f} accuracy {accuracy:.3f}")
        if valid_loss < best:
            best = valid_loss
            torch.save(model.state_dict(), "best.pt")


main()
