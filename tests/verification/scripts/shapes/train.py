"""Pictures of one size in a list, a dict of what is found for each: losses per picture, suppression of overlaps, precision."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, n, seed, flips=False):
        self.n, self.seed, self.flips = n, seed, flips

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 * self.seed + i)
        image, boxes = 0.2 * torch.randn(3, 24, 24, generator=g), []
        for _ in range(i % 4):
            x, y, w, h = (int(v) for v in torch.randint(4, 10, (4,), generator=g))
            image[i % 3, y : y + h, x : x + w] += 1
            boxes.append([x, y, x + w, y + h])
        boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        if self.flips and torch.rand(()) < 0.5:
            image = image.flip(2)
            boxes = torch.stack([24 - boxes[:, 2], boxes[:, 1], 24 - boxes[:, 0], boxes[:, 3]], 1)
        return image, {"boxes": boxes}


def together(batch):
    return tuple(zip(*batch))


def overlap(a, b):
    low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area_a, area_b = ((c[:, 2:] - c[:, :2]).clamp(min=0).prod(1) for c in (a, b))
    return shared / (area_a[:, None] + area_b - shared + 1e-6)


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, 2, 1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(12, 5, 1)
        nn.init.constant_(self.head.bias[:1], -1.0)

    def forward(self, images, targets=None):
        out = self.head(self.body(torch.stack(images))).flatten(2).transpose(1, 2)
        at = torch.arange(6) * 4.0 + 2
        points = torch.cartesian_prod(at, at).flip(1)
        anchors = torch.cat([points - 4, points + 4], 1)
        if targets is None:
            return [self.found(one, anchors) for one in out]
        scores, boxes = [], []
        for one, target in zip(out, targets):
            wanted = torch.zeros(len(anchors))
            if len(target["boxes"]):
                shared, which = overlap(anchors, target["boxes"]).max(1)
                wanted[shared > 0.4] = 1.0
                goal = (target["boxes"][which] - anchors)[shared > 0.4] / 8
                boxes.append(F.smooth_l1_loss(one[shared > 0.4, 1:], goal, reduction="sum"))
            loss = F.binary_cross_entropy_with_logits(one[:, 0], wanted, reduction="sum")
            scores.append(loss / wanted.sum().clamp(min=1))
        return {"scores": sum(scores) / len(images), "boxes": sum(boxes) / len(images)}

    def found(self, one, anchors):
        sure = one[:, 0].sigmoid()
        order, kept = sure.argsort(descending=True)[:12], []
        boxes = anchors + 8 * one[:, 1:]
        while len(order):
            kept.append(order[0])
            order = order[1:][overlap(boxes[order[:1]], boxes[order[1:]])[0] < 0.3]
        kept = torch.stack(kept)
        return {"boxes": boxes[kept], "scores": sure[kept]}


@torch.no_grad()
def precision(model, loader):
    model.eval()
    said = []
    for images, targets in loader:
        for target, found in zip(targets, model(list(images))):
            right = (
                overlap(found["boxes"], target["boxes"]).amax(1) > 0.3
                if len(target["boxes"])
                else [False] * 99
            )
            said += [(score.item(), bool(hit)) for score, hit in zip(found["scores"], right)]
    said.sort(reverse=True)
    hits = [hit for _, hit in said]
    return sum(hit * sum(hits[: k + 1]) / (k + 1) for k, hit in enumerate(hits)) / max(1, sum(hits))


def main():
    torch.manual_seed(6)
    train = DataLoader(Shapes(22, 0, flips=True), batch_size=4, shuffle=True, collate_fn=together)
    test = DataLoader(Shapes(9, 1), batch_size=1, collate_fn=together)
    model = Finder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    for epoch in range(3):
        model.train()
        warm = (
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4) if epoch == 0 else None
        )
        for images, targets in train:
            losses = model(list(images), targets)
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if warm:
                warm.step()
        print(f"{epoch} loss {loss.item():.4f} precision {precision(model, test):.4f}")
    torch.save(model.state_dict(), "shapes.pt")


if __name__ == "__main__":
    main()
