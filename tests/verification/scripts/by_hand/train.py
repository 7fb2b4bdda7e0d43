"""Functional style: parameters in a dict, gradients by torch.autograd.grad, weights updated by hand."""

import torch
import torch.nn.functional as F


class Clamped(torch.autograd.Function):
    """Clamps, and lets the gradient of what was clamped through a tenth."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() <= 1, grad, 0.1 * grad)


def init(sizes):
    params = {}
    for i, (n, m) in enumerate(zip(sizes, sizes[1:])):
        params[f"w{i}"] = (torch.randn(n, m) / n**0.5).requires_grad_()
        params[f"b{i}"] = torch.zeros(m, requires_grad=True)
    return params


def predict(params, x):
    h = Clamped.apply(x @ params["w0"] + params["b0"])
    h = torch.tanh(h @ params["w1"] + params["b1"])
    return h @ params["w2"] + params["b2"]


def loss_fn(params, x, y):
    wrong = predict(params, x) - y
    penalty = sum((p**2).sum() for name, p in params.items() if name.startswith("w"))
    return torch.where(wrong.abs() < 1, 0.5 * wrong**2, wrong.abs() - 0.5).mean() + 1e-3 * penalty


def train(params, x, y, steps, lr=0.05, momentum=0.9):
    velocity = {name: torch.zeros_like(p) for name, p in params.items()}
    averaged = {name: p.detach().clone() for name, p in params.items()}
    history = []
    for step in range(steps):
        batch = torch.randperm(len(x))[:32]
        loss = loss_fn(params, x[batch], y[batch])
        grads = torch.autograd.grad(loss, list(params.values()))
        total = torch.sqrt(sum((g**2).sum() for g in grads))
        scale = torch.clamp(0.3 / (total + 1e-6), max=1.0)
        with torch.no_grad():
            for (name, p), g in zip(params.items(), grads):
                velocity[name].mul_(momentum).add_(g * scale)
                p -= lr * velocity[name]
                averaged[name].lerp_(p, 1 / (step + 2))
        history.append(loss.item())
        if step % 4 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    return averaged, history


def main():
    torch.manual_seed(1)
    x = torch.randn(200, 10)
    y = torch.sin(x[:, :3] * 2) + 3.0 * (x[:, 3:6] > 1)
    params = init([10, 32, 32, 3])
    averaged, history = train(params, x[:160], y[:160], 14)
    with torch.no_grad():
        error = F.mse_loss(predict(averaged, x[160:]), y[160:])
    print(f"test error {error:.4f}")
    torch.save({"averaged": averaged, "history": history}, "weights.pt")


main()
