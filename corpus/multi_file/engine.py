"""One epoch of training, one of validation."""

import torch


def train_one_epoch(model, loader, optimizer, criterion, device):
    """Returns the mean loss per sample."""
    model.train()
    total, seen = 0.0, 0
    for batch in loader:
        images = batch["image"].to(device)
        masks = batch["mask"].to(device)

        logits = model(images)
        loss = criterion(logits, masks)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total += loss.item() * images.size(0)
        seen += images.size(0)
    return total / seen


def evaluate(model, loader, criterion, device):
    """Returns mean loss per sample and Dice score over the whole set."""
    model.eval()
    total, seen = 0.0, 0
    overlap, area = torch.tensor(0.0).to(device), torch.tensor(0.0).to(device)
    for batch in loader:
        images = batch["image"].to(device)
        masks = batch["mask"].to(device)
        logits = model(images)
        total += criterion(logits, masks).item() * images.size(0)
        seen += images.size(0)
        predicted = (logits > 0).float()
        overlap += 2 * (predicted * masks).sum()
        area += predicted.sum() + masks.sum()
    return total / seen, (overlap / area.clamp(min=1)).item()
