"""Writes made-up readings of the gauges along a river, a CSV file for each gauge, so that nothing has to be downloaded."""

import csv
import math
import os
import random

GAUGES = 12


def write_readings(folder, hours):
    """The CSV files, written on the first call and reused afterwards."""
    paths = [os.path.join(folder, f"gauge_{hours}_{number:02d}.csv") for number in range(GAUGES)]
    if all(os.path.exists(path) for path in paths):
        return paths
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(0)
    level = [2.0 + 0.1 * number for number in range(GAUGES)]
    rows = [[] for _ in range(GAUGES)]
    rain = 0.0
    for hour in range(hours):
        rain = 0.9 * rain + (rng.expovariate(1.0) if rng.random() < 0.04 else 0.0)
        season = 0.3 * math.sin(2 * math.pi * hour / (24 * 365))
        above = 2.0 + season + rain
        for number in range(GAUGES):
            # a wave travels down the river, and loses height on its way
            level[number], above = level[number] + 0.35 * (0.97 * above - level[number]), level[number]
            rows[number].append(level[number] + rng.gauss(0.0, 0.02))
    for path, readings in zip(paths, rows):
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["hour", "level"])
            writer.writerows((hour, f"{reading:.3f}") for hour, reading in enumerate(readings))
    return paths


def read_levels(paths):
    """The levels in metres, a list for each gauge."""
    levels = []
    for path in paths:
        with open(path, newline="") as file:
            levels.append([float(row["level"]) for row in csv.DictReader(file)])
    return levels
