"""Which dish next? Neural collaborative filtering on the orders of a restaurant.

Trains on orders and dishes that were not ordered; after every epoch each guest's last order is ranked among the whole menu.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from orders import read_orders, write_orders


class OrdersDataset(Dataset):
    """(guest, dish, 1) for every order, and `negatives` times as many dishes that the guest has not ordered."""

    def __init__(self, orders, num_dishes, negatives):
        self.ordered = {guest: set(dishes) for guest, dishes in orders.items()}
        self.positives = [(guest, dish) for guest in orders for dish in orders[guest][:-1]]
        self.num_dishes = num_dishes
        self.negatives = negatives
        self.samples = []  # made by draw_negatives, before every epoch

    def draw_negatives(self):
        self.samples = [(guest, dish, 1.0) for guest, dish in self.positives]
        for guest, _ in self.positives:
            for _ in range(self.negatives):
                dish = np.random.randint(self.num_dishes)
                while dish in self.ordered[guest]:
                    dish = np.random.randint(self.num_dishes)
                self.samples.append((guest, int(dish), 0.0))

    def __len__(self):
        return len(self.positives) * (1 + self.negatives)

    def __getitem__(self, index):
        return self.samples[index]


class RankingDataset(Dataset):
    """A guest, all dishes the guest has not ordered before, and the one that was ordered last."""

    def __init__(self, orders, num_dishes):
        self.orders = orders
        self.guests = sorted(orders)
        self.num_dishes = num_dishes

    def __len__(self):
        return len(self.guests)

    def __getitem__(self, index):
        guest = self.guests[index]
        *known, last = self.orders[guest]
        mask = torch.ones(self.num_dishes, dtype=torch.bool)
        mask[known] = False
        return guest, torch.arange(self.num_dishes), mask, last


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
        guest = guest.to(device)
        dish = dish.to(device)
        label = label.float().to(device)

        optimizer.zero_grad()
        loss = criterion(model(guest, dish), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def evaluate(model, loader, device, top_k):
    """Hit rate and NDCG at `top_k`, guest by guest."""
    model.eval()
    hits, gains = [], []
    for guest, dishes, mask, last in loader:
        dishes = dishes[0].to(device)
        guests = torch.full((len(dishes),), int(guest)).to(device)
        scores = model(guests, dishes)
        scores = scores.masked_fill(~mask[0].to(device), float("-inf"))
        top = torch.topk(scores, top_k).indices.cpu().numpy().tolist()
        if int(last) in top:
            hits.append(1)
            gains.append(float(1 / np.log2(top.index(int(last)) + 2)))
        else:
            hits.append(0)
            gains.append(0.0)
    return np.mean(hits), np.mean(gains)


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
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(RankingDataset(orders, args.dishes), batch_size=1, shuffle=False)

    model = NeuMF(args.guests, args.dishes, args.factors, args.layers, args.dropout).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    best = 0.0
    for epoch in range(1, args.epochs + 1):
        start = time.time()
        train_loader.dataset.draw_negatives()
        loss = train_epoch(model, train_loader, criterion, optimizer, device)
        trained = time.time() - start
        hit_rate, ndcg = evaluate(model, test_loader, device, args.top_k)
        print(
            f"epoch {epoch}: train loss {loss:.4f} in {trained:.1f} s, "
            f"HR@{args.top_k} {hit_rate:.3f}, NDCG@{args.top_k} {ndcg:.3f}"
        )
        if hit_rate >= best:
            best = hit_rate
            torch.save(model.state_dict(), "recommender.pt")


if __name__ == "__main__":
    main()
