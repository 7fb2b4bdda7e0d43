"""DQN on a cart-pole that is pushed by nine forces: which of them is the best hangs on a rounding. Returns are printed and saved."""
import csv
import math
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

random.seed(19)
np.random.seed(19)
torch.manual_seed(19)
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
BATCH, GAMMA, EPS_START, EPS_END, EPS_DECAY, TAU, LR = 16, 0.97, 0.9, 0.05, 40, 0.1, 2e-2


class CartPole:
    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)

    def reset(self):
        self.s, self.t = self.rng.uniform(-0.05, 0.05, 4), 0
        return self.s.astype(np.float32)

    def step(self, action):
        x, v, th, w = self.s
        force = 10.0 * (action - 4) / 4
        cos, sin = math.cos(th), math.sin(th)
        temp = (force + 0.05 * w**2 * sin) / 1.1
        acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        self.s = np.array([x + 0.04 * v, v + 0.04 * (temp - 0.05 * acc * cos / 1.1), th + 0.04 * w, w + 0.04 * acc])
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21
        return self.s.astype(np.float32), 1.0, done, self.t >= 40


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 9)

    def forward(self, x):
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x)))))


policy_net, target_net = DQN(), DQN()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(300)
steps_done = 0


def select_action(state):
    global steps_done
    eps = EPS_END + (EPS_START - EPS_END) * math.exp(-steps_done / EPS_DECAY)
    steps_done += 1
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(9)]], dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH:
        return None
    batch = Transition(*zip(*memory.sample(BATCH)))
    non_final_mask = torch.tensor([s is not None for s in batch.next_state], dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch, action_batch, reward_batch = torch.cat(batch.state), torch.cat(batch.action), torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * GAMMA) + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def evaluate(env, episodes=5):
    returns = []
    for _ in range(episodes):
        state, total, done, truncated = env.reset(), 0.0, False, False
        while not (done or truncated):
            with torch.no_grad():
                action = policy_net(torch.from_numpy(state).unsqueeze(0)).argmax().item()
            state, r, done, truncated = env.step(action)
            total += r
        returns.append(total)
    return float(np.mean(returns))


env, test_env = CartPole(3), CartPole(99)
rows, durations = [], []
for episode in range(9):
    state = torch.from_numpy(env.reset()).unsqueeze(0)
    losses, t = [], 0
    while True:
        action = select_action(state)
        observation, reward, terminated, truncated = env.step(action.item())
        next_state = None if terminated else torch.from_numpy(observation).unsqueeze(0)
        memory.push(state, action, next_state, torch.tensor([reward]))
        state = next_state
        loss = optimize_model()
        if loss is not None:
            losses.append(loss)
            for key, p in policy_net.state_dict().items():
                target_net.state_dict()[key].copy_(p * TAU + target_net.state_dict()[key] * (1 - TAU))
        t += 1
        if terminated or truncated:
            break
    durations.append(t)
    score = evaluate(test_env)
    rows.append((episode, t, np.mean(losses) if losses else 0.0, score))
    print(f"episode {episode} duration {t} mean {np.mean(durations[-5:]):.2f} loss {rows[-1][2]:.4f} eval {score:.2f}")
with open("returns.csv", "w", newline="") as f:
    csv.writer(f).writerows([("episode", "duration", "loss", "eval"), *rows])
torch.save(policy_net.state_dict(), "dqn.pt")
