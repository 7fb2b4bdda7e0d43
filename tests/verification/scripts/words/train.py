"""Tags words by an encoder and by a recurrent network of packed sentences; both are evaluated on padded batches."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        words = torch.randint(1, 20, (int(torch.randint(3, 12, (), generator=g)),), generator=g)
        found.append((words, (words + words.roll(1)) % 4))
    return found


def together(batch):
    words, tags = zip(*batch)
    return pad_sequence(words, True), pad_sequence(tags, True, -100)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(20, 16, padding_idx=0)
        self.place = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(16, 4)

    def forward(self, words):
        x = self.word(words) + self.place.weight[: words.shape[1]]
        return self.out(self.layers(x, src_key_padding_mask=words == 0))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(20, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, words):
        lengths = (words != 0).sum(1)
        packed = pack_padded_sequence(self.word(words), lengths, True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])


def accuracy(model, loader):
    model.eval()
    right = total = 0
    for words, tags in loader:
        known = tags >= 0
        with torch.no_grad():
            right += (model(words).argmax(-1) == tags)[known].sum().item()
        total += known.sum().item()
    return right / total


def main():
    torch.manual_seed(0)
    train = DataLoader(sentences(40, 0), batch_size=10, shuffle=True, collate_fn=together)
    test = DataLoader(sentences(25, 1), batch_size=10, collate_fn=together)
    for model in (Encoder(), Recurrent()):
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for epoch in range(3):
            model.train()
            for words, tags in train:
                loss = nn.functional.cross_entropy(model(words).flatten(0, 1), tags.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(type(model).__name__, epoch, f"{loss.item():.4f} {accuracy(model, test):.4f}")
        torch.save(model.state_dict(), f"{type(model).__name__}.pt")


if __name__ == "__main__":
    main()
