"""A network with binary weights: full-precision ones are kept beside, and take the steps. Best and last are saved binary."""

import argparse
import os

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


def stripes(n, seed):
    """Pictures of 12x12 with stripes of four directions, under noise."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    rows, cols = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    grids = torch.stack([rows, cols, (rows + cols) / 1.4, (rows - cols) / 1.4])
    x = torch.sin(grids[y] * 1.5 + phase) + 1.8 * torch.randn(n, 12, 12, generator=g)
    return TensorDataset(x[:, None], y)


class BinActive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input.sign()

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.ge(1)] = 0
        grad_input[input.le(-1)] = 0
        return grad_input


class BinConv2d(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels_in, eps=1e-4, momentum=0.1, affine=True)
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(BinActive.apply(self.bn(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5, padding=2)
        self.middle = nn.Sequential(BinConv2d(16, 24), nn.MaxPool2d(2), BinConv2d(24, 24))
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.middle(torch.relu(self.stem(x))).mean((2, 3)))


class BinOp:
    """Binarizes all convolutions but the first."""

    def __init__(self, model):
        convs = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
        self.target_modules = convs[1:]
        self.saved_params = [w.data.clone() for w in self.target_modules]

    def binarization(self):
        for saved, w in zip(self.saved_params, self.target_modules, strict=True):
            w.data.sub_(w.data.mean(1, keepdim=True))
            w.data.clamp_(-1.0, 1.0)
            saved.copy_(w.data)
            n = w.data[0].nelement()
            scale = w.data.norm(1, dim=(1, 2, 3), keepdim=True).div(n)
            w.data = w.data.sign().mul(scale)

    def restore(self):
        for saved, w in zip(self.saved_params, self.target_modules, strict=True):
            w.data.copy_(saved)

    def updateBinaryGradWeight(self):
        for w in self.target_modules:
            weight = w.data
            n = weight[0].nelement()
            m = weight.norm(1, dim=(1, 2, 3), keepdim=True).div(n).expand(weight.size()).clone()
            m[weight.lt(-1.0)] = 0
            m[weight.gt(1.0)] = 0
            m = m.mul(w.grad.data)
            m_add = weight.sign().mul(w.grad.data)
            m_add = m_add.sum((1, 2, 3), keepdim=True).div(n).expand(weight.size())
            m_add = m_add.mul(weight.sign())
            w.grad.data = m.add(m_add).mul(1.0 - 1.0 / weight.size(1)).mul(n)


def train(epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        bin_op.binarization()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        bin_op.restore()
        bin_op.updateBinaryGradWeight()
        optimizer.step()
        if batch_idx % 4 == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}]\tLoss: {loss.item():.6f}"
            )


def save_state(model, acc):
    state = {"acc": acc, "state_dict": model.state_dict()}
    torch.save(state, os.path.join(args.out, "best.pth.tar"))


def test():
    global best_acc
    model.eval()
    test_loss, correct = 0, 0
    bin_op.binarization()
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += criterion(output, target).item()
            correct += output.max(1)[1].eq(target).sum().item()
    acc = 100.0 * correct / len(test_loader.dataset)
    if acc > best_acc:
        best_acc = acc
        save_state(model, best_acc)
    bin_op.restore()
    print(
        f"Test set: average loss {test_loss / len(test_loader):.4f}, accuracy {acc:.2f}, best {best_acc:.2f}"
    )


def adjust_learning_rate(epoch):
    lr = args.lr * (0.1 ** (epoch // 2))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    return lr


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", default=".")
args = parser.parse_args()

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_loader = DataLoader(stripes(320, 0), batch_size=32, shuffle=True)
test_loader = DataLoader(stripes(90, 1), batch_size=32)
model = Net().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-5)
bin_op = BinOp(model)
best_acc = 0.0
for epoch in range(args.epochs):
    lr = adjust_learning_rate(epoch)
    print(f"learning rate {lr:.4f}")
    train(epoch)
    test()
bin_op.binarization()
torch.save(model.state_dict(), os.path.join(args.out, "binary.pt"))
