"""Which dish next? Neural collaborative filtering on the orders of a restaurant: train.py, tuned by hand.

Ranking the whole menu for every guest takes longer than the training between. What changed, and why:

- Evaluation builds no graph, and ranks 16 guests at a time: one launch for 16, and the GPU is asked for nothing until the
  end of the epoch. Hits and gains are summed there, the gains in float64.
- It stays in float32: of thousands of scores, many are the same in half precision, and the ranking is what counts.
- A training batch is cut out of three tensors with one index. Before, 256 tuples were put together one by one. The sampler
  draws as before, and so do the negatives, so that the samples and their order are the same.
- The losses are read once per epoch. Batches come from pinned memory, and their copies do not wait.
- fused=True updates all weights in one kernel.

No workers: cutting out a batch takes less time than handing it from one process to another.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from orders import read_orders, write_orders


class OrdersDataset(Dataset):
    """(guest, dish, 1) for every order, and `negatives` times as many dishes that the guest has not ordered; in batches."""

    def __init__(self, orders, num_dishes, negatives):
        self.ordered = {guest: set(dishes) for guest, dishes in orders.items()}
        self.positives = [(guest, dish) for guest in orders for dish in orders[guest][:-1]]
        self.num_dishes = num_dishes
        self.negatives = negatives
        guests = torch.tensor([guest for guest, _ in self.positives])
        self.guests = torch.cat([guests, guests.repeat_interleave(negatives)])
        self.dishes = torch.tensor([dish for _, dish in self.positives])
        self.labels = (torch.arange(len(self)) < len(self.positives)).float()

    def draw_negatives(self):
        dishes = []
        for guest, _ in self.positives:
            for _ in range(self.negatives):
                dish = np.random.randint(self.num_dishes)
                while dish in self.ordered[guest]:
                    dish = np.random.randint(self.num_dishes)
                dishes.append(int(dish))
        self.dishes = torch.cat([self.dishes[:len(self.positives)], torch.tensor(dishes)])

    def __len__(self):
        return len(self.positives) * (1 + self.negatives)

    def __getitem__(self, indices):
        return self.guests[indices], self.dishes[indices], self.labels[indices]


class RankingDataset(Dataset):
    """Guests, which dishes they have not ordered before, and the one that was ordered last; in batches."""

    def __init__(self, orders, num_dishes):
        guests = sorted(orders)
        self.guests = torch.tensor(guests)
        self.last = torch.tensor([orders[guest][-1] for guest in guests])
        self.mask = torch.ones(len(guests), num_dishes, dtype=torch.bool)
        for row, guest in enumerate(guests):
            self.mask[row, orders[guest][:-1]] = False

    def __len__(self):
        return len(self.guests)

    def __getitem__(self, indices):
        return self.guests[indices], self.mask[indices], self.last[indices]


class NeuMF(nn.Module):
    def __init__(self, num_guests, num_dishes, factors, layers, dropout):
        super().__init__()
        width = factors * 2 ** (layers - 1)
        self.guest_gmf = nn.Embedding(num_guests, factors)
        self.dish_gmf = nn.Embedding(num_dishes, factors)
        self.guest_mlp = nn.Embedding(num_guests, width)
        self.dish_mlp = nn.Embedding(num_dishes, width)
        modules = []
        for i in range(layers):
            size = factors * 2 ** (layers - i)
            modules += [nn.Dropout(dropout), nn.Linear(size, size // 2), nn.ReLU()]
        self.mlp = nn.Sequential(*modules)
        self.predict = nn.Linear(factors * 2, 1)
        for table in (self.guest_gmf, self.dish_gmf, self.guest_mlp, self.dish_mlp):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, guest, dish):
        gmf = self.guest_gmf(guest) * self.dish_gmf(dish)
        mlp = self.mlp(torch.cat([self.guest_mlp(guest), self.dish_mlp(dish)], dim=-1))
        return self.predict(torch.cat([gmf, mlp], dim=-1)).squeeze(-1)


def train_epoch(model, loader, criterion, optimizer, device):
    model.train()
    losses = []
    for guest, dish, label in loader:
        guest = guest.to(device, non_blocking=True)
        dish = dish.to(device, non_blocking=True)
        label = label.to(device, non_blocking=True)

        optimizer.zero_grad()
        loss = criterion(model(guest, dish), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).double().mean().item()


@torch.no_grad()
def evaluate(model, loader, num_dishes, device, top_k):
    """Hit rate and NDCG at `top_k`, sixteen guests at a time."""
    model.eval()
    menu = torch.arange(num_dishes, device=device)
    gains = 1 / torch.arange(2, top_k + 2, dtype=torch.float64, device=device).log2()
    total_hits = torch.zeros((), dtype=torch.float64, device=device)
    total_gain = torch.zeros((), dtype=torch.float64, device=device)
    for guest, mask, last in loader:
        guest = guest.to(device, non_blocking=True)
        mask = mask.to(device, non_blocking=True)
        last = last.to(device, non_blocking=True)
        dishes = menu.expand(len(guest), -1)
        scores = model(guest[:, None].expand_as(dishes), dishes)
        top = torch.topk(scores.masked_fill(~mask, float("-inf")), top_k).indices
        hit = top == last[:, None]
        total_hits += hit.sum()
        total_gain += (hit * gains).sum()
    guests = len(loader.dataset)
    return total_hits.item() / guests, total_gain.item() / guests


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data")
    parser.add_argument("--guests", type=int, default=2000)
    parser.add_argument("--dishes", type=int, default=4000)
    parser.add_argument("--orders", type=int, default=20, help="of each guest")
    parser.add_argument("--negatives", type=int, default=4, help="for each order")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--factors", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--top-k", type=int, default=10)
    args = parser.parse_args()

    np.random.seed(2)
    torch.manual_seed(2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    orders = read_orders(write_orders(args.data, args.guests, args.dishes, args.orders))
    train_set = OrdersDataset(orders, args.dishes, args.negatives)
    test_set = RankingDataset(orders, args.dishes)
    pin_memory = device.type == "cuda"
    train_loader = DataLoader(
        train_set,
        sampler=BatchSampler(RandomSampler(train_set), args.batch_size, drop_last=False),
        batch_size=None,
        pin_memory=pin_memory,
    )
    test_loader = DataLoader(
        test_set,
        sampler=BatchSampler(range(len(test_set)), 16, drop_last=False),
        batch_size=None,
        pin_memory=pin_memory,
    )

    model = NeuMF(args.guests, args.dishes, args.factors, args.layers, args.dropout).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=device.type == "cuda")

    best = 0.0
    for epoch in range(1, args.epochs + 1):
        start = time.time()
        train_loader.dataset.draw_negatives()
        loss = train_epoch(model, train_loader, criterion, optimizer, device)
        trained = time.time() - start
        hit_rate, ndcg = evaluate(model, test_loader, args.dishes, device, args.top_k)
        print(
            f"epoch {epoch}: train loss {loss:.4f} in {trained:.1f} s, "
            f"HR@{args.top_k} {hit_rate:.3f}, NDCG@{args.top_k} {ndcg:.3f}"
        )
        if hit_rate >= best:
            best = hit_rate
            torch.save(model.state_dict(), "recommender.pt")


if __name__ == "__main__":
    main()
