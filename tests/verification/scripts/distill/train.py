"""A small network learns from a larger, frozen one; the best of its epochs is kept, training stops early."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def network(width, dropout):
    return nn.Sequential(
        nn.Linear(10, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, 4),
    )


def distillation_loss(student, teacher, labels, temperature, alpha):
    soft = F.kl_div(
        F.log_softmax(student / temperature, dim=1),
        F.softmax(teacher / temperature, dim=1),
        reduction="batchmean",
    )
    hard = F.cross_entropy(student, labels, label_smoothing=0.1)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def evaluate(model, loader):
    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            total += F.cross_entropy(out, y, reduction="sum").item()
            correct += (out.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def distill(args):
    x = torch.randn(70, 10)
    y = (x[:, :4] * 2).argmax(1)
    train_loader = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[50:], y[50:]), batch_size=19)
    teacher = network(64, 0.3)
    student = network(16, 0.1)
    for p in teacher.parameters():
        p.requires_grad = False
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr)
    best_loss, best_state, waited = float("inf"), None, 0
    for epoch in range(args.epochs):
        teacher.eval()
        student.train()
        for data, label in train_loader:
            with torch.no_grad():
                teacher_out = teacher(data)
            student_out = student(data)
            loss = distillation_loss(student_out, teacher_out, label, args.temperature, 0.7)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss, accuracy = evaluate(student, val_loader)
        print(f"epoch {epoch}: val_loss {val_loss:.4f} accuracy {accuracy:.3f}")
        if val_loss < best_loss - args.min_delta:
            best_loss, waited = val_loss, 0
            best_state = copy.deepcopy(student.state_dict())
        else:
            waited += 1
            if waited >= 2:
                print("stopping early")
                break
    torch.save({"state": best_state, "val_loss": best_loss}, "student.pt")


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("distill")
    run.set_defaults(function=distill)
    for each in (parser, run):
        each.add_argument("--epochs", type=int, default=4)
        each.add_argument("--lr", type=float, default=0.05)
        each.add_argument("--temperature", type=float, default=3.0)
        each.add_argument("--min-delta", type=float, default=0.2)
    parser.set_defaults(function=distill)
    args = parser.parse_args()
    torch.manual_seed(0)
    args.function(args)


if __name__ == "__main__":
    main()
