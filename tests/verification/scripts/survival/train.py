"""Cox regression with a small network: partial likelihood, concordance, a baseline hazard, in a folder named by the time."""

import copy
import json
import os
from datetime import datetime

import numpy as np
import torch
import torch.nn as nn

rng = np.random.RandomState(11)


def cohort(n):
    x = rng.randn(n, 8).astype("float32")
    risk = 0.9 * x[:, 0] - 0.7 * x[:, 1] * x[:, 2]
    died = np.ceil(-np.log(rng.rand(n)) / np.exp(risk) * 8)
    left = np.ceil(rng.exponential(12, n))
    time, event = np.minimum(died, left), died <= left
    return torch.tensor(x), torch.tensor(time).float(), torch.tensor(event).float()


train_set, val_set = cohort(90), cohort(40)


class RiskNet(nn.Module):
    def __init__(self, d, h=16, p=0.2):
        super().__init__()
        self.fc1 = nn.Linear(d, h)
        self.fc2 = nn.Linear(h, h)
        self.out = nn.Linear(h, 1, bias=False)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        x = self.drop(torch.selu(self.fc1(x)))
        x = self.drop(torch.selu(self.fc2(x)))
        return self.out(x).squeeze(1)


def partial_likelihood(risk, time, event):
    loss = 0.0
    for i in range(len(risk)):
        if event[i] == 1:
            at_risk = risk[time >= time[i]]
            loss = loss - (risk[i] - torch.logsumexp(at_risk, 0))
    return loss / event.sum()


def concordance(risk, time, event):
    good = pairs = 0.0
    for i in range(len(risk)):
        if event[i] == 0:
            continue
        for j in range(len(risk)):
            if time[j] > time[i]:
                pairs += 1
                good += float(risk[i] > risk[j])
    return good / pairs


torch.manual_seed(3)
stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
folder = os.path.join("runs", f"cox_{stamp}")
os.makedirs(folder)
print("writing to", folder)
net = RiskNet(8)
optimizer = torch.optim.Adam(net.parameters(), lr=0.02, weight_decay=1e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1)
best, best_state, history = 0.0, None, []
for epoch in range(8):
    net.train()
    total = 0.0
    for part in torch.randperm(90).split(30):
        x, time, event = (a[part] for a in train_set)
        optimizer.zero_grad()
        loss = partial_likelihood(net(x), time, event)
        loss.backward()
        optimizer.step()
        total += loss.item()
    net.eval()
    with torch.no_grad():
        score = concordance(net(val_set[0]), val_set[1], val_set[2])
    plateau.step(score)
    history.append({"epoch": epoch, "loss": total / 3, "concordance": score})
    if score > best:
        best, best_state = score, copy.deepcopy(net.state_dict())
net.load_state_dict(best_state)
with torch.no_grad():
    risk = net(train_set[0]).exp()
_, time, event = train_set
times = torch.unique(time[event == 1])
hazard = [((time == t) & (event == 1)).sum() / risk[time >= t].sum() for t in times]
np.savez(
    f"{folder}/baseline.npz", times=times.numpy(), hazard=torch.stack(hazard).cumsum(0).numpy()
)
with open(f"{folder}/history.json", "w") as file:
    json.dump({"folder": folder, "best": best, "epochs": history}, file, indent=1)
