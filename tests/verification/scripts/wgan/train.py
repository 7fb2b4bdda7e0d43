"""WGAN with gradient penalty, a critic under spectral normalization, and several critic steps per generator step."""

import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
latent_dim, n_critic, lambda_gp = 6, 3, 10.0


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(latent_dim, 32),
            nn.BatchNorm1d(32),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(32, 4),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.model(z)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            spectral_norm(nn.Linear(4, 32)), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )

    def forward(self, x):
        return self.model(x)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    gradients = torch.autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


generator, critic = Generator(), Critic()
data = torch.randn(96, 4).tanh()
loader = DataLoader(TensorDataset(data), batch_size=16, shuffle=True, drop_last=True)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.9))
optimizer_D = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.5, 0.9))

batches_done = 0
for epoch in range(3):
    for i, (real,) in enumerate(loader):
        optimizer_D.zero_grad()
        z = torch.randn(real.size(0), latent_dim)
        fake = generator(z)
        penalty = gradient_penalty(critic, real.data, fake.data)
        d_loss = -critic(real).mean() + critic(fake.detach()).mean() + lambda_gp * penalty
        d_loss.backward()
        optimizer_D.step()
        if i % n_critic == 0:
            optimizer_G.zero_grad()
            fake = generator(z)
            g_loss = -critic(fake).mean()
            g_loss.backward()
            optimizer_G.step()
            print(f"[{epoch}/{i}] D {d_loss.item():.5f} G {g_loss.item():.5f}")
            batches_done += n_critic
    generator.eval()
    with torch.no_grad():
        sample = generator(torch.randn(9, latent_dim))
    torch.save(sample, f"sample{epoch}.pt")
    generator.train()
torch.save({"G": generator.state_dict(), "D": critic.state_dict()}, "wgan.pt")
print(generator)
