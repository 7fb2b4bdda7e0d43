"""Writes made-up orders of a restaurant, a CSV file for each month, so that nothing has to be downloaded."""

import csv
import os
import random

MONTHS = 12


def write_orders(folder, guests, dishes, orders_each):
    """The CSV files, written on the first call and reused afterwards."""
    size = f"{guests}_{dishes}_{orders_each}"
    paths = [os.path.join(folder, f"orders_{size}_{month:02d}.csv") for month in range(1, MONTHS + 1)]
    if all(os.path.exists(path) for path in paths):
        return paths
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(0)
    kinds = 8
    rows = []
    for guest in range(guests):
        # guests come back for one kind of dish, and now and then try another one
        menu = [dish for dish in range(dishes) if dish % kinds == guest % kinds]
        chosen = rng.sample(menu, min(orders_each, len(menu)))
        while len(chosen) < orders_each:
            dish = rng.randrange(dishes)
            if dish not in chosen:
                chosen.append(dish)
        rng.shuffle(chosen)
        rows.append([(guest, dish) for dish in chosen])
    for month, path in enumerate(paths):
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["guest", "dish"])
            for orders in rows:
                writer.writerows(orders[month::MONTHS])
    return paths


def read_orders(paths):
    """The dishes of each guest, in the order in which they were ordered."""
    orders = {}
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                orders.setdefault(int(row["guest"]), []).append(int(row["dish"]))
    return orders
