"""Writes a stand-in for the sensor logs of a plant, one CSV file per machine, so that nothing has to be downloaded."""

import csv
import glob
import os
import random

SENSORS = 16
STATES = ["fine", "unbalanced", "worn"]


def reading(state, offset, rng):
    """What the sensors of a machine in that state show: the state moves every third of them."""
    return [
        rng.gauss(offset + (1.0 if sensor % len(STATES) == state else 0.0), 0.8) for sensor in range(SENSORS)
    ]


def write_logs(folder, machines, rows):
    """The CSV files, written on the first call and reused afterwards."""
    pattern = os.path.join(folder, f"machine_*_{rows}.csv")
    if len(glob.glob(pattern)) < machines:
        os.makedirs(folder, exist_ok=True)
        for machine in range(machines):
            rng = random.Random(machine)
            offset = rng.gauss(0, 0.3)
            with open(os.path.join(folder, f"machine_{machine:03d}_{rows}.csv"), "w", newline="") as file:
                writer = csv.writer(file)
                for _ in range(rows):
                    state = rng.randrange(len(STATES))
                    writer.writerow([state, *(f"{value:.4f}" for value in reading(state, offset, rng))])
    return sorted(glob.glob(pattern))[:machines]


def read_logs(files):
    """States and readings of all machines, as lists."""
    states, readings = [], []
    for name in files:
        with open(name, newline="") as file:
            for row in csv.reader(file):
                states.append(int(row[0]))
                readings.append([float(value) for value in row[1:]])
    return states, readings
