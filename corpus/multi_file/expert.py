"""Train a U-Net to find blobs: train.py, tuned by hand. What changed, and why:

- expert_data.py: decoding and augmentation happen in worker processes, which stay alive between epochs, and
  batches are put into pinned memory.
- expert_engine.py: copies to the GPU do not wait, losses are summed there and read once per epoch, evaluation
  builds no graph, and the forward pass runs in bfloat16, which needs no loss scaling (Ampere or newer).
- Convolutions: channels_last, cudnn.benchmark, and a compiled model; compiled in place, so that the names in the
  checkpoint stay what they are.

model.py and transforms/ are as they were.
"""

import argparse
import random

import numpy as np
import torch
from torch import nn

from expert_data import make_loaders
from expert_engine import evaluate, train_one_epoch
from model import UNet


def parse_args():
    parser = argparse.ArgumentParser(description="Train a U-Net to find blobs.")
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
    torch.backends.cudnn.benchmark = True

    use_cuda = torch.cuda.is_available()
    device = "cuda:0" if use_cuda else "cpu"
    train_loader, val_loader = make_loaders(cfg, pin_memory=use_cuda)

    model = UNet(width=cfg.width).to(device, memory_format=torch.channels_last)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs)

    if cfg.resume:
        checkpoint = torch.load(cfg.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    if use_cuda:
        model.compile()

    for epoch in range(cfg.epochs):
        train_loss = train_one_epoch(model, train_loader, optimizer, criterion, device)
        val_loss, dice = evaluate(model, val_loader, criterion, device)
        scheduler.step()
        print(f"epoch {epoch + 1:3d}  train_loss {train_loss:.4f}  val_loss {val_loss:.4f}  dice {dice:.4f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, cfg.output)


if __name__ == "__main__":
    main(parse_args())
