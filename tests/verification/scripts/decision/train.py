"""A decision transformer: returns still to come, states and actions in one sequence; evaluated by acting for a return asked for."""

import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

STATE, ACTIONS, CONTEXT, HORIZON = 2, 3, 8, 20
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
np.random.seed(3)


class Hill:
    """A point on a line that is pushed left, not at all, or right; better the nearer to 1 it is."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.s = np.array([self.rng.uniform(-1, 0), 0.0], dtype=np.float32)
        self.t = 0
        return self.s.copy()

    def step(self, action):
        x, v = self.s
        v = 0.8 * v + 0.15 * (action - 1)
        x = np.clip(x + v, -2, 2)
        self.s = np.array([x, v], dtype=np.float32)
        self.t += 1
        return self.s.copy(), float(1 - abs(x - 1)), self.t >= HORIZON


def collect(n):
    env, rng, paths = Hill(np.random.default_rng(0)), np.random.default_rng(1), []
    for i in range(n):
        path = {"states": [], "actions": [], "rewards": []}
        s, done = env.reset(), False
        while not done:
            good = 2 if s[0] + 3 * s[1] < 1 else 0
            a = good if rng.random() < 0.2 + 0.7 * i / n else int(rng.integers(ACTIONS))
            path["states"].append(s)
            path["actions"].append(a)
            s, r, done = env.step(a)
            path["rewards"].append(r)
        paths.append({k: np.array(v) for k, v in path.items()})
    return paths


def discount_cumsum(x, gamma=1.0):
    out = np.zeros_like(x)
    out[-1] = x[-1]
    for t in reversed(range(len(x) - 1)):
        out[t] = x[t] + gamma * out[t + 1]
    return out


class DecisionTransformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed_return = nn.Linear(1, width)
        self.embed_state = nn.Linear(STATE, width)
        self.embed_action = nn.Embedding(ACTIONS + 1, width)  # the last: none yet
        self.embed_time = nn.Embedding(HORIZON + 1, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, ACTIONS)

    def forward(self, returns, states, actions, times, mask):
        b, t = actions.shape
        time = self.embed_time(times)
        tokens = (self.embed_return(returns), self.embed_state(states), self.embed_action(actions))
        x = torch.stack([token + time for token in tokens], dim=2).reshape(b, 3 * t, -1)
        causal = torch.triu(torch.ones(3 * t, 3 * t, dtype=torch.bool, device=x.device), 1)
        padding = ~mask.repeat_interleave(3, dim=1)
        attention = causal[None] | padding[:, None]
        attention = attention & ~torch.eye(3 * t, dtype=torch.bool, device=x.device)
        x = self.blocks(self.norm(x), mask=attention.repeat_interleave(2, 0))
        return self.head(x.reshape(b, t, 3, -1)[:, :, 1])


def get_batch(paths, p, size=32, scale=2.0):
    states, actions, returns, times, mask = [], [], [], [], []
    for i in np.random.choice(len(paths), size, p=p):
        path = paths[i]
        start = np.random.randint(0, len(path["rewards"]))
        s = path["states"][start : start + CONTEXT]
        n = len(s)
        pad = CONTEXT - n
        states.append(np.concatenate([np.zeros((pad, STATE)), s]))
        actions.append(
            np.concatenate([np.full(pad, ACTIONS), path["actions"][start : start + CONTEXT]])
        )
        rtg = discount_cumsum(path["rewards"][start:])[:n]
        returns.append(np.concatenate([np.zeros(pad), rtg]) / scale)
        times.append(np.concatenate([np.zeros(pad), np.arange(start, start + n)]))
        mask.append(np.concatenate([np.zeros(pad), np.ones(n)]))
    return (
        torch.from_numpy(np.array(returns)).float().unsqueeze(-1).to(device),
        torch.from_numpy(np.array(states)).float().to(device),
        torch.from_numpy(np.array(actions)).long().to(device),
        torch.from_numpy(np.array(times)).long().to(device),
        torch.from_numpy(np.array(mask)).bool().to(device),
    )


def evaluate_episode(env, model, target, scale=2.0):
    model.eval()
    states = torch.from_numpy(env.reset()).reshape(1, 1, STATE).to(device)
    actions = torch.full((1, 0), ACTIONS, dtype=torch.long, device=device)
    target_return = torch.tensor([[[target / scale]]], device=device)
    times = torch.zeros(1, 1, dtype=torch.long, device=device)
    total = 0.0
    for t in range(HORIZON):
        given = torch.cat([actions, torch.full((1, 1), ACTIONS, device=device)], dim=1)
        mask = torch.ones(1, min(t + 1, CONTEXT), dtype=torch.bool, device=device)
        with torch.no_grad():
            logits = model(
                target_return[:, -CONTEXT:],
                states[:, -CONTEXT:],
                given[:, -CONTEXT:],
                times[:, -CONTEXT:],
                mask,
            )
        action = logits[0, -1].argmax().item()
        state, reward, done = env.step(action)
        actions = torch.cat([actions, torch.tensor([[action]], device=device)], dim=1)
        states = torch.cat([states, torch.from_numpy(state).reshape(1, 1, STATE).to(device)], dim=1)
        left = target_return[:, -1:] - reward / scale
        target_return = torch.cat([target_return, left], dim=1)
        times = torch.cat([times, torch.full((1, 1), t + 1, device=device)], dim=1)
        total += reward
        if done:
            break
    return total, target_return[0, -1].item() * scale


paths = collect(60)
lengths = np.array([len(p["rewards"]) for p in paths])
model = DecisionTransformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: min((steps + 1) / 10, 1))
log = []
for iteration in range(3):
    losses = []
    model.train()
    for _ in range(12):
        returns, states, actions, times, mask = get_batch(paths, lengths / lengths.sum())
        given = torch.where(mask, actions, ACTIONS)
        logits = model(returns, states, given, times, mask)
        loss = F.cross_entropy(logits[mask], actions[mask])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach().cpu().item())
    row = {"iteration": iteration, "loss": float(np.mean(losses)), "std": float(np.std(losses))}
    for target in (1, 10):
        env = Hill(np.random.default_rng(100 + iteration))
        got = [evaluate_episode(env, model, target) for _ in range(2)]
        row[f"target {target}"], row[f"left of {target}"] = np.mean(got, axis=0).tolist()
    print(row)
    log.append(row)
with open("log.json", "w") as f:
    json.dump(log, f)
