"""Train a U-Net to find blobs."""

import argparse
import random

import numpy as np
import torch
from torch import nn

from data import make_loaders
from engine import evaluate, train_one_epoch
from model import UNet


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="./data", help="folder with images/ and masks/, filled if empty")
    parser.add_argument("--samples", type=int, default=2000, help="images in all, a fifth of them for validation")
    parser.add_argument("--size", type=int, default=256, help="side of the training images, divisible by 8")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", metavar="CHECKPOINT", help="continue with these weights")
    parser.add_argument("--output", default="checkpoint.pt")
    return parser.parse_args()


def main(cfg):
    random.seed(cfg.seed)
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)

    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    train_loader, val_loader = make_loaders(cfg)

    model = UNet(width=cfg.width).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs)

    if cfg.resume:
        checkpoint = torch.load(cfg.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])

    for epoch in range(cfg.epochs):
        train_loss = train_one_epoch(model, train_loader, optimizer, criterion, device)
        val_loss, dice = evaluate(model, val_loader, criterion, device)
        scheduler.step()
        print(f"epoch {epoch + 1:3d}  train_loss {train_loss:.4f}  val_loss {val_loss:.4f}  dice {dice:.4f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, cfg.output)


if __name__ == "__main__":
    main(parse_args())
