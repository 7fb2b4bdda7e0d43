"""A value network with a target network that follows it, and a policy with an optimizer of its own."""

import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Buffer:
    def __init__(self):
        self.items = []

    def add(self, *item):
        self.items.append(item)

    def sample(self, n):
        return map(torch.stack, zip(*random.sample(self.items, n)))


def net(n, m):
    return nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, m))


torch.manual_seed(0)
random.seed(0)
policy = net(5, 2)
value = net(7, 1)
target = copy.deepcopy(value)
for p in target.parameters():
    p.requires_grad_(False)
policy_optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
value_optimizer = torch.optim.Adam(value.parameters(), lr=3e-3)
buffer = Buffer()
state = torch.randn(5)
returns = []

for episode in range(3):
    total = 0.0
    for t in range(16):
        with torch.no_grad():
            action = policy(state).tanh() + 0.1 * torch.randn(2)
        nxt = 0.9 * state + 0.1 * torch.cat([action, torch.randn(3)])
        reward = -nxt[:2].pow(2).sum()
        buffer.add(state, action, reward, nxt)
        state = nxt
        total += reward.item()
        if len(buffer.items) < 24 or t % 2:
            continue
        s, a, r, s2 = buffer.sample(16)
        with torch.no_grad():
            a2 = policy(s2).tanh()
            goal = r + 0.95 * target(torch.cat([s2, a2], 1)).squeeze(1)
        value_loss = F.smooth_l1_loss(value(torch.cat([s, a], 1)).squeeze(1), goal)
        value_optimizer.zero_grad()
        value_loss.backward()
        value_optimizer.step()
        for p in value.parameters():
            p.requires_grad_(False)
        policy_loss = -value(torch.cat([s, policy(s).tanh()], 1)).mean()
        policy_optimizer.zero_grad()
        policy_loss.backward()
        policy_optimizer.step()
        for p in value.parameters():
            p.requires_grad_(True)
        with torch.no_grad():
            for p, q in zip(value.parameters(), target.parameters()):
                q.mul_(0.98).add_(0.02 * p)
    returns.append(total)
    print(f"episode {episode}: return {total:.3f}")
