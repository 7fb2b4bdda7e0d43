"""VDN: two agents that meet on a ring, double Q-learning, n-step returns, proportional prioritized replay, recurrent-free."""
import collections
import json
import random
import sys

import numpy as np
import torch
import torch.nn as nn

Transition = collections.namedtuple("Transition", "obs actions reward next_obs done avail gamma_n")


class Params:
    def __init__(self, **kw):
        self.__dict__.update(dict(
            n_agents=2, ring=7, n_actions=3, hidden=24, gamma=0.9, n_step=3, buffer=160, warmup=40, batch=16, lr=5e-3,
            alpha=0.6, beta0=0.4, beta_steps=60, eps_start=1.0, eps_end=0.1, eps_steps=150, target_every=10, train_every=4,
            episodes=30, max_len=10, test_every=10, grad_norm=2.0, seed=17))
        self.__dict__.update(kw)


class Ring:
    def __init__(self, p, seed):
        self.p, self.rng = p, np.random.default_rng(seed)

    def reset(self):
        self.pos = self.rng.integers(0, self.p.ring, self.p.n_agents)
        self.goal = int(self.rng.integers(0, self.p.ring))
        self.t = 0
        return self.observe()

    def observe(self):
        eye = np.eye(self.p.ring, dtype=np.float32)
        return np.stack([np.concatenate([eye[self.pos[i]], eye[self.goal], [self.t / self.p.max_len]]) for i in range(self.p.n_agents)]).astype(np.float32)

    def available(self):
        # an agent on the goal may not go right
        a = np.ones((self.p.n_agents, self.p.n_actions), dtype=bool)
        a[self.pos == self.goal, 2] = False
        return a

    def step(self, actions):
        self.pos = (self.pos + np.array(actions) - 1) % self.p.ring
        self.t += 1
        there = self.pos == self.goal
        reward = 1.0 * there.all() + 0.1 * there.sum() - 0.05
        terminal = bool(there.all())
        truncated = self.t >= self.p.max_len
        return self.observe(), float(reward), terminal, truncated


class SumTree:
    def __init__(self, n):
        self.n, self.tree = n, np.zeros(2 * n)

    def set(self, i, value):
        i += self.n
        self.tree[i] = value
        while i > 1:
            i //= 2
            self.tree[i] = self.tree[2 * i] + self.tree[2 * i + 1]

    def find(self, mass):
        i = 1
        while i < self.n:
            i *= 2
            if mass > self.tree[i]:
                mass -= self.tree[i]
                i += 1
        return i - self.n

    @property
    def total(self): return self.tree[1]


class Replay:
    def __init__(self, p):
        self.p, self.rows, self.at = p, [], 0
        self.tree, self.max_priority = SumTree(256), 1.0

    def __len__(self): return len(self.rows)

    def add(self, row):
        if len(self.rows) < self.p.buffer:
            self.rows.append(row)
        else:
            self.rows[self.at] = row
        self.tree.set(self.at, self.max_priority ** self.p.alpha)
        self.at = (self.at + 1) % self.p.buffer

    def sample(self, n, beta):
        segment = self.tree.total / n
        idx = [self.tree.find(random.uniform(k * segment, (k + 1) * segment)) for k in range(n)]
        probs = np.array([self.tree.tree[i + 256] for i in idx]) / self.tree.total
        weights = (len(self.rows) * probs) ** (-beta)
        weights /= weights.max()
        rows = Transition(*zip(*[self.rows[i] for i in idx]))
        batch = [torch.as_tensor(np.stack(c)) for c in rows]
        return idx, torch.as_tensor(weights, dtype=torch.float32), Transition(*batch)

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            priority = abs(e) + 1e-3
            self.tree.set(i, priority ** self.p.alpha)
            self.max_priority = max(self.max_priority, priority)


class NStep:
    def __init__(self, n, gamma, sink):
        self.n, self.gamma, self.sink, self.queue = n, gamma, sink, collections.deque()

    def push(self, obs, actions, reward, next_obs, done, avail, last):
        self.queue.append((obs, actions, reward))
        if len(self.queue) == self.n:
            self.emit(next_obs, done, avail)
        if last:
            while self.queue:
                self.emit(next_obs, done, avail)

    def emit(self, next_obs, done, avail):
        ret = 0.0
        for k, (_, _, r) in enumerate(self.queue):
            ret += self.gamma ** k * r
        obs, actions, _ = self.queue[0]
        self.sink(Transition(obs, np.array(actions), np.float32(ret), next_obs, np.float32(done), avail, np.float32(self.gamma ** len(self.queue))))
        self.queue.popleft()


class Agent(nn.Module):
    """Shared by all agents, an id is appended; dueling."""

    def __init__(self, p):
        super().__init__()
        self.n = p.n_agents
        self.body = nn.Sequential(nn.Linear(2 * p.ring + 1 + p.n_agents, p.hidden), nn.LayerNorm(p.hidden), nn.ReLU(), nn.Linear(p.hidden, p.hidden), nn.ELU())
        self.adv, self.val = nn.Linear(p.hidden, p.n_actions), nn.Linear(p.hidden, 1)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight, 2 ** 0.5)
                nn.init.constant_(m.bias, 0.0)

    def forward(self, obs):
        ids = torch.eye(self.n, device=obs.device).expand(*obs.shape[:-2], self.n, self.n)
        h = self.body(torch.cat([obs, ids], -1))
        a = self.adv(h)
        return self.val(h) + a - a.mean(-1, keepdim=True)


class Learner:
    def __init__(self, p):
        self.p = p
        self.net, self.target = Agent(p), Agent(p)
        self.target.load_state_dict(self.net.state_dict())
        self.target.requires_grad_(False)
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=p.lr, alpha=0.95, eps=1e-5)
        self.sched = torch.optim.lr_scheduler.PolynomialLR(self.opt, total_iters=80, power=0.9)
        self.updates = 0
        self.td_mean, self.td_n = 0.0, 0

    @torch.no_grad()
    def act(self, obs, avail, eps):
        q = self.net(torch.from_numpy(obs).unsqueeze(0))[0]
        q = q.masked_fill(~torch.from_numpy(avail), float("-inf"))
        greedy = q.argmax(-1).tolist()
        return [random.choice(np.flatnonzero(avail[i]).tolist()) if random.random() < eps else greedy[i] for i in range(self.p.n_agents)]

    def learn(self, replay):
        beta = min(1.0, self.p.beta0 + (1 - self.p.beta0) * self.updates / self.p.beta_steps)
        idx, weights, b = replay.sample(self.p.batch, beta)
        q = self.net(b.obs).gather(-1, b.actions.unsqueeze(-1)).squeeze(-1).sum(-1)
        with torch.no_grad():
            online = self.net(b.next_obs).masked_fill(~b.avail, -1e9)
            best = online.argmax(-1, keepdim=True)
            nxt = self.target(b.next_obs).gather(-1, best).squeeze(-1).sum(-1)
            y = b.reward + b.gamma_n * (1 - b.done) * nxt
        td = y - q
        loss = (weights * nn.functional.smooth_l1_loss(q, y, reduction="none")).mean()
        self.opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.p.grad_norm)
        self.opt.step()
        self.sched.step()
        replay.update(idx, td.detach().abs().numpy())
        self.updates += 1
        # Welford
        for e in td.detach().abs().tolist():
            self.td_n += 1
            self.td_mean += (e - self.td_mean) / self.td_n
        if self.updates % self.p.target_every == 0:
            self.target.load_state_dict(self.net.state_dict())
        return dict(update=self.updates, loss=loss.item(), q=q.mean().item(), y=y.mean().item(), norm=norm.item(), beta=beta, td=self.td_mean)


def play(p, learner, env, eps):
    obs, total, length, done, cut = env.reset(), 0.0, 0, False, False
    while not (done or cut):
        obs, r, done, cut = env.step(learner.act(obs, env.available(), eps))
        total += r * p.gamma ** length
        length += 1
    return total, length, done


def main(p):
    random.seed(p.seed); np.random.seed(p.seed); torch.manual_seed(p.seed)
    env, replay, learner = Ring(p, 1), Replay(p), Learner(p)
    nstep, t, best, stream = NStep(p.n_step, p.gamma, replay.add), 0, -1e9, open("train.jsonl", "w")
    returns = collections.deque(maxlen=8)
    for episode in range(p.episodes):
        obs, ret, finished = env.reset(), 0.0, False
        while not finished:
            eps = max(p.eps_end, p.eps_start - (p.eps_start - p.eps_end) * t / p.eps_steps)
            actions = learner.act(obs, env.available(), eps)
            nxt, r, terminal, truncated = env.step(actions)
            finished = terminal or truncated
            nstep.push(obs, actions, r, nxt, terminal, env.available(), finished)
            obs, ret, t = nxt, ret + r, t + 1
            if len(replay) >= p.warmup and t % p.train_every == 0:
                stream.write(json.dumps({"t": t, "eps": round(eps, 4), **learner.learn(replay)}) + "\n")
        returns.append(ret)
        if (episode + 1) % p.test_every == 0:
            test_env = Ring(p, 99)
            learner.net.eval()
            results = [play(p, learner, test_env, 0.0) for _ in range(6)]
            learner.net.train()
            score = np.mean([x[0] for x in results])
            print(f"episode {episode + 1} t {t} return {np.mean(returns):.3f} test {score:.3f} solved {sum(x[2] for x in results)}/6 len {np.mean([x[1] for x in results]):.2f}")
            if score >= best:
                best = score
                torch.save({"net": learner.net.state_dict(), "target": learner.target.state_dict(), "opt": learner.opt.state_dict(),
                            "t": t, "updates": learner.updates, "priorities": torch.tensor(replay.tree.tree[256:256 + len(replay)])}, "vdn.tar")
    stream.close()
    q = learner.net(torch.from_numpy(np.stack([Ring(p, s).reset() for s in range(12)]))).detach()
    np.savetxt("q.csv", q.reshape(-1, p.n_actions).numpy(), delimiter=",", header="left,stay,right", fmt="%.6f")


if __name__ == "__main__":
    main(Params(**dict(a.split("=") for a in sys.argv[1:])))
