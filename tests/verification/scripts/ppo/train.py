"""PPO in one file: a point on a line as environment, generalized advantages, clipped updates in minibatches."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class Line:
    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.reset()

    def reset(self):
        self.position = self.rng.uniform(-1, 1, self.n)
        self.age = self.rng.integers(0, 6, self.n)
        return self.observation()

    def observation(self):
        return np.stack([self.position, self.age / 10], 1).astype(np.float32)

    def step(self, action):
        self.position = self.position + 0.3 * (action - 1) + 0.05 * self.rng.normal(size=self.n)
        self.age = self.age + 1
        reward = -np.abs(self.position)
        done = (np.abs(self.position) > 2) | (self.age >= 8)
        self.position = np.where(done, self.rng.uniform(-1, 1, self.n), self.position)
        self.age = np.where(done, 0, self.age)
        return self.observation(), reward.astype(np.float32), done


def layer(n, m, std=np.sqrt(2)):
    made = nn.Linear(n, m)
    nn.init.orthogonal_(made.weight, std)
    nn.init.constant_(made.bias, 0.0)
    return made


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer(2, 32), nn.Tanh(), layer(32, 1, 1.0))
        self.actor = nn.Sequential(layer(2, 32), nn.Tanh(), layer(32, 3, 0.01))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action_and_value(self, x, action=None):
        chosen = Categorical(logits=self.actor(x))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action), chosen.entropy(), self.get_value(x)


def train(updates=3, num_envs=4, num_steps=8, gamma=0.97, lam=0.9, clip=0.2, lr=3e-3):
    rng = np.random.default_rng()
    envs = Line(num_envs, rng)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=lr, eps=1e-5)
    obs = torch.zeros(num_steps, num_envs, 2)
    actions = torch.zeros(num_steps, num_envs, dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros(num_steps, num_envs) for _ in range(4))
    next_obs = torch.from_numpy(envs.reset())
    next_done = torch.zeros(num_envs)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = lr * (1 - update / updates)
        for t in range(num_steps):
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            actions[t], logprobs[t], values[t] = action, logprob, value
            observed, reward, done = envs.step(action.numpy())
            rewards[t] = torch.from_numpy(reward)
            next_obs, next_done = torch.from_numpy(observed), torch.from_numpy(done).float()
        with torch.no_grad():
            next_value = agent.get_value(next_obs)
            advantages = torch.zeros_like(rewards)
            last = 0.0
            for t in reversed(range(num_steps)):
                alive = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                following = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + gamma * following * alive - values[t]
                advantages[t] = last = delta + gamma * lam * alive * last
            returns = advantages + values
        b_obs, b_actions = obs.reshape(-1, 2), actions.reshape(-1)
        b_logprobs, b_values = logprobs.reshape(-1), values.reshape(-1)
        b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
        indices = np.arange(num_steps * num_envs)
        for _ in range(3):
            np.random.shuffle(indices)
            for start in range(0, len(indices), 16):
                mb = indices[start : start + 16]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb], b_actions[mb]
                )
                ratio = (newlogprob - b_logprobs[mb]).exp()
                adv = b_advantages[mb]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip, 1 + clip)).mean()
                v_clipped = b_values[mb] + (newvalue - b_values[mb]).clamp(-clip, clip)
                v_loss = torch.max(
                    (newvalue - b_returns[mb]) ** 2, (v_clipped - b_returns[mb]) ** 2
                )
                loss = pg - 0.01 * entropy.mean() + 0.5 * (0.5 * v_loss.mean())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        explained = 1 - np.var((b_returns - b_values).numpy()) / np.var(b_returns.numpy())
        print(f"update {update} reward {rewards.mean().item():.4f} explained {explained:.4f}")


if __name__ == "__main__":
    np.random.seed(1)
    torch.manual_seed(1)
    train()
