"""One epoch of training, one of validation, in bfloat16 on the GPU; see expert.py."""

import torch


def to_device(batch, device):
    images = batch["image"].to(device, non_blocking=True, memory_format=torch.channels_last)
    return images, batch["mask"].to(device, non_blocking=True)


def autocast(device):
    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.startswith("cuda"))


def train_one_epoch(model, loader, optimizer, criterion, device):
    """Returns the mean loss per sample."""
    model.train()
    total, seen = torch.zeros((), device=device), 0
    for batch in loader:
        images, masks = to_device(batch, device)

        with autocast(device):
            logits = model(images)
            loss = criterion(logits, masks)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total += loss.detach() * images.size(0)
        seen += images.size(0)
    return total.item() / seen


@torch.no_grad()
def evaluate(model, loader, criterion, device):
    """Returns mean loss per sample and Dice score over the whole set."""
    model.eval()
    total, seen = torch.zeros((), device=device), 0
    overlap, area = torch.zeros((), device=device), torch.zeros((), device=device)
    for batch in loader:
        images, masks = to_device(batch, device)
        with autocast(device):
            logits = model(images)
            total += criterion(logits, masks) * images.size(0)
        seen += images.size(0)
        predicted = (logits > 0).float()
        overlap += 2 * (predicted * masks).sum()
        area += predicted.sum() + masks.sum()
    return total.item() / seen, (overlap / area.clamp(min=1)).item()
