"""Two networks that read the same words, each with its own loss and optimizer: the topic of a sentence, and how it goes on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, TOPICS, EPOCHS = 40, 9, 4, 2


class Topics:
    """Embeds, averages and weighs words; its parts are called one by one."""

    def __init__(self):
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=0)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, TOPICS)
        self.parts = nn.ModuleList([self.embedding, self.norm, self.head])

    def logits(self, words):
        known = (words != 0).unsqueeze(-1)
        vectors = self.embedding(words) * known
        return self.head(self.norm(vectors.sum(1) / known.sum(1)))


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 12)
        self.rnn = nn.GRU(12, 20, batch_first=True)
        self.head = nn.Linear(20, WORDS)

    def forward(self, words):
        hidden, _ = self.rnn(self.embedding(words))
        return self.head(hidden)


def sentences(count, drawn):
    topics = torch.randint(0, TOPICS, (count,), generator=drawn)
    words = 1 + topics[:, None] * 9 + torch.randint(0, 9, (count, LENGTH), generator=drawn)
    lengths = torch.randint(4, LENGTH + 1, (count, 1), generator=drawn)
    words[torch.arange(LENGTH) >= lengths] = 0
    return TensorDataset(words, topics)


def main():
    torch.manual_seed(8)
    drawn = torch.Generator().manual_seed(2)
    train = DataLoader(sentences(110, drawn), batch_size=16, shuffle=True)
    test = DataLoader(sentences(40, drawn), batch_size=16)
    topics, following = Topics(), Next()
    optimizer_topics = torch.optim.Adam(topics.parts.parameters(), lr=5e-3)
    optimizer_next = torch.optim.SGD(following.parameters(), lr=0.5)
    of_topics, of_words = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=0)
    for epoch in range(EPOCHS):
        for part in (topics.parts, following, of_topics, of_words):
            part.train()
        sums = torch.zeros(2)
        for words, labels in train:
            optimizer_topics.zero_grad()
            loss_topics = of_topics(topics.logits(words), labels)
            loss_topics.backward()
            optimizer_topics.step()
            optimizer_next.zero_grad()
            logits = following(words[:, :-1])
            loss_next = of_words(logits.flatten(0, 1), words[:, 1:].flatten())
            loss_next.backward()
            optimizer_next.step()
            sums += torch.tensor([loss_topics.item(), loss_next.item()])
        for part in (topics.parts, following, of_topics, of_words):
            part.eval()
        right = seen = said = 0
        with torch.no_grad():
            for words, labels in test:
                right += (topics.logits(words).argmax(1) == labels).sum().item()
                seen += len(labels)
                logits = following(words[:, :-1])
                said += of_words(logits.flatten(0, 1), words[:, 1:].flatten()).item()
        mean = sums / len(train)
        print(f"{epoch}: topics {mean[0]:.4f} next {mean[1]:.4f} accuracy {right / seen:.3f}")
        print(f"   held out {said / len(test):.4f}")
    torch.save({"topics": topics.parts.state_dict(), "next": following.state_dict()}, "towers.pt")


main()
