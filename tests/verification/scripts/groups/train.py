"""A small language model learns by rewards to write sorted digits: advantages within groups, a clipped ratio, a reference that follows."""

import copy
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
VOCAB, EOS, PROMPT, LENGTH = 11, 10, 3, 6
PROMPTS, GROUP, INNER, CLIP, BETA = 4, 6, 2, 0.2, 0.04


class Policy(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(PROMPT + LENGTH, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        h = self.embed(tokens) + self.pos(torch.arange(tokens.size(1), device=tokens.device))
        return self.head(self.rnn(h)[0])


def token_logps(model, tokens):
    logits = model(tokens[:, :-1])
    logps = F.log_softmax(logits, dim=-1)
    return logps.gather(2, tokens[:, 1:].unsqueeze(2)).squeeze(2)[:, PROMPT - 1 :]


@torch.no_grad()
def rollout(model, prompts, temperature=1.0):
    tokens = prompts.repeat_interleave(GROUP, 0)
    done = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    for _ in range(LENGTH):
        logits = model(tokens)[:, -1] / temperature
        nxt = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        nxt = torch.where(done, torch.full_like(nxt, EOS), nxt)
        tokens = torch.cat([tokens, nxt[:, None]], 1)
        done |= nxt == EOS
    return tokens


def completion_mask(completion):
    """Ones up to and with the first end."""
    ended = (completion == EOS).long().cumsum(1)
    return ((ended == 0) | ((ended == 1) & (completion == EOS))).float()


def reward(completion):
    values = []
    for row in completion.tolist():
        digits = row[: row.index(EOS)] if EOS in row else row
        pairs = sum(a <= b for a, b in itertools.pairwise(digits))
        values.append(pairs / (LENGTH - 1) + 0.2 * (len(digits) > 0))
    return torch.tensor(values, device=completion.device)


policy = Policy().to(device)
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
for iteration in range(15):
    prompts = torch.randint(0, 10, (PROMPTS, PROMPT)).to(device)
    tokens = rollout(policy, prompts)
    completion = tokens[:, PROMPT:]
    mask = completion_mask(completion)
    rewards = reward(completion)
    grouped = rewards.view(PROMPTS, GROUP)
    advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    advantages = advantages.flatten()[:, None]
    with torch.no_grad():
        old = token_logps(policy, tokens)
        ref = token_logps(reference, tokens)
    clipped = []
    for _ in range(INNER):
        new = token_logps(policy, tokens)
        ratio = (new - old).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        kl = (ref - new).exp() - (ref - new) - 1
        per_token = -(surrogate - BETA * kl)
        loss = ((per_token * mask).sum(1) / mask.sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        clipped.append((((ratio - 1).abs() > CLIP).float() * mask).sum().item() / mask.sum().item())
    scheduler.step()
    if (iteration + 1) % 5 == 0:
        reference.load_state_dict(policy.state_dict())
        kl_mean = (kl * mask).sum() / mask.sum()
        print(
            f"{iteration + 1}: reward {rewards.mean():.4f}, length {mask.sum(1).mean():.2f}, kl {kl_mean:.5f}, "
            f"clipped {sum(clipped) / len(clipped):.4f}, norm {norm:.4f}"
        )
greedy = rollout(policy, torch.arange(9).view(3, 3).to(device), temperature=0.01)
print(greedy[::GROUP].tolist())
torch.save({"policy": policy.state_dict(), "reference": reference.state_dict()}, "policy.pt")
