"""A one-stage detector in small: dict targets of different lengths, a loss with several parts, matching without gradients."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            boxes = int(torch.randint(0, 4, (1,), generator=g))
            centres = torch.rand(boxes, 2, generator=g)
            sizes = 0.1 + 0.3 * torch.rand(boxes, 2, generator=g)
            image = 0.1 * torch.randn(1, 16, 16, generator=g)
            for (x, y), (w, h) in zip(centres.tolist(), sizes.tolist()):
                left, top = int(max(x - w / 2, 0) * 16), int(max(y - h / 2, 0) * 16)
                image[0, top : int((y + h / 2) * 16) + 1, left : int((x + w / 2) * 16) + 1] += 1
            labels = (sizes[:, 0] > sizes[:, 1]).long()
            self.items.append((image, {"boxes": torch.cat([centres, sizes], 1), "labels": labels}))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    images, targets = zip(*batch)
    return torch.stack(images), list(targets)


class Detector(nn.Module):
    def __init__(self, grid=4):
        super().__init__()
        self.grid = grid
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(16, 7, 1)

    def forward(self, images, targets=None):
        out = self.head(self.body(images)).permute(0, 2, 3, 1).flatten(1, 2)
        objectness, classes, boxes = out[..., 0], out[..., 1:3], out[..., 3:].sigmoid()
        if targets is None:
            return objectness.sigmoid(), classes.softmax(-1), boxes
        return self.losses(objectness, classes, boxes, targets)

    def losses(self, objectness, classes, boxes, targets):
        wanted = torch.zeros_like(objectness)
        found_boxes, true_boxes, found_classes, true_classes = [], [], [], []
        for i, target in enumerate(targets):
            if len(target["labels"]) == 0:
                continue
            with torch.no_grad():
                cell = (target["boxes"][:, :2] * self.grid).long().clamp(max=self.grid - 1)
                place = cell[:, 1] * self.grid + cell[:, 0]
            wanted[i, place] = 1.0
            found_boxes.append(boxes[i, place])
            true_boxes.append(target["boxes"])
            found_classes.append(classes[i, place])
            true_classes.append(target["labels"])
        count = max(sum(len(t["labels"]) for t in targets), 1)
        boxes_loss = F.l1_loss(torch.cat(found_boxes), torch.cat(true_boxes), reduction="sum")
        class_loss = F.cross_entropy(torch.cat(found_classes), torch.cat(true_classes))
        return {
            "objectness": F.binary_cross_entropy_with_logits(objectness, wanted),
            "boxes": boxes_loss / count,
            "classes": class_loss,
        }


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    errors, hits, count = [], 0, 0
    for images, targets in loader:
        scores, classes, boxes = model(images)
        best = scores.argmax(1)
        for i, target in enumerate(targets):
            if len(target["labels"]):
                distance = (target["boxes"] - boxes[i, best[i]]).abs().sum(1)
                errors.append(distance.min().item())
                hits += int(classes[i, best[i]].argmax() == target["labels"][distance.argmin()])
                count += 1
    return {"error": sum(errors) / len(errors), "accuracy": hits / count}


def main():
    torch.manual_seed(9)
    train = DataLoader(Scenes(44, 0), batch_size=8, shuffle=True, collate_fn=collate, drop_last=True)
    test = DataLoader(Scenes(12, 1), batch_size=5, collate_fn=collate)
    model = Detector()
    weights = {"objectness": 1.0, "boxes": 2.0, "classes": 0.5}
    body = [p for n, p in model.named_parameters() if n.startswith("body")]
    optimizer = torch.optim.SGD(
        [{"params": body, "lr": 0.02}, {"params": model.head.parameters()}], lr=0.05, momentum=0.9
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8], gamma=0.1)
    with open("metrics.jsonl", "w") as log:
        for epoch in range(3):
            model.train()
            sums = dict.fromkeys(weights, 0.0)
            for images, targets in train:
                losses = model(images, targets)
                loss = sum(weights[name] * value for name, value in losses.items())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_value_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                for name, value in losses.items():
                    sums[name] += value.item()
            means = {name: round(value / len(train), 5) for name, value in sums.items()}
            log.write(json.dumps({"epoch": epoch, **means, **evaluate(model, test)}) + "\n")


if __name__ == "__main__":
    main()
