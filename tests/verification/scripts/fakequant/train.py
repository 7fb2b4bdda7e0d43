"""Quantization-aware training by a rounding Function with a straight-through gradient, and observers in buffers."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, low, high):
        q = torch.round(x / scale)
        ctx.save_for_backward((q >= low) & (q <= high))
        return q.clamp(low, high) * scale

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None


class Observer(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("highest", torch.zeros(()))

    def forward(self, x):
        if self.training:
            seen = x.detach().abs().max()
            if self.highest == 0:
                self.highest.copy_(seen)
            else:
                self.highest.mul_(1 - self.momentum).add_(self.momentum * seen)
        return Round.apply(x, 0.7 * self.highest / 7, -8, 7)  # outliers are clipped


class QuantLinear(nn.Linear):
    def __init__(self, n, m):
        super().__init__(n, m)
        self.observer = Observer()

    def forward(self, x):
        scale = self.weight.detach().abs().amax(1, keepdim=True) / 7
        weight = Round.apply(self.weight, scale, -8, 7)
        return F.linear(self.observer(x), weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = QuantLinear(10, 24), QuantLinear(24, 24)
        self.c = QuantLinear(24, 3)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = h + torch.relu(self.b(h))
        return self.c(h)


def run():
    torch.manual_seed(7)
    x = torch.randn(96, 10)
    y = (x[:, :3] ** 2).argmax(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    for step in range(14):
        i = torch.randint(0, 64, (24,))
        loss = F.cross_entropy(model(x[i]), y[i])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        warmup.step()
        if step % 7 == 6:
            model.eval()
            with torch.no_grad():
                held = F.cross_entropy(model(x[64:]), y[64:])
            model.train()
            print(f"{step} {loss.item():.4f} {held.item():.4f}")
    torch.save(model.state_dict(), "quantized.pt")


if __name__ == "__main__":
    run()
