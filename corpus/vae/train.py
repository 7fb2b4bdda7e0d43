"""Convolutional variational autoencoder on pictures of coloured blobs.

Writes reconstructions and samples to --out after every epoch, and the model at the end.
"""
from __future__ import print_function

import argparse
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.utils import save_image

parser = argparse.ArgumentParser(description='Convolutional VAE')
parser.add_argument('--data', default='./data', help='folder of the pictures, drawn if missing')
parser.add_argument('--out', default='./vae_out', help='folder of the sheets of samples')
parser.add_argument('--num-train', type=int, default=20000)
parser.add_argument('--num-test', type=int, default=2000)
parser.add_argument('--image-size', type=int, default=64, help='must be a multiple of 8')
parser.add_argument('--width', type=int, default=64, help='channels of the first layer')
parser.add_argument('--latent-dim', type=int, default=128)
parser.add_argument('--batch-size', type=int, default=128)
parser.add_argument('--epochs', type=int, default=20)
parser.add_argument('--lr', type=float, default=1e-3)
parser.add_argument('--beta', type=float, default=1.0, help='weight of the KL term')
parser.add_argument('--log-interval', type=int, default=20)
parser.add_argument('--seed', type=int, default=1)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
os.makedirs(args.out, exist_ok=True)


def draw_blobs(folder, count, seed):
    """Draws pictures of three discs on a plain background, each its own file."""
    os.makedirs(folder, exist_ok=True)
    for i in range(count):
        path = os.path.join(folder, '%05d.png' % i)
        if os.path.exists(path):
            continue
        rng = random.Random(seed + i)
        img = Image.new('RGB', (64, 64), tuple(rng.randint(0, 90) for _ in range(3)))
        draw = ImageDraw.Draw(img)
        for _ in range(3):
            x, y, r = rng.randint(8, 56), rng.randint(8, 56), rng.randint(6, 18)
            draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(rng.randint(90, 255) for _ in range(3)))
        img.save(path + '.tmp%d' % os.getpid(), format='PNG')
        os.replace(path + '.tmp%d' % os.getpid(), path)


class BlobDataset(Dataset):
    def __init__(self, folder, transform):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert('RGB'))


class VAE(nn.Module):
    def __init__(self, width, latent_dim, image_size):
        super(VAE, self).__init__()
        self.latent_dim = latent_dim
        self.shape = (4 * width, image_size // 8, image_size // 8)
        flat = self.shape[0] * self.shape[1] * self.shape[2]
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1),
            nn.BatchNorm2d(4 * width),
            nn.LeakyReLU(0.2),
        )
        self.fc_mu = nn.Linear(flat, latent_dim)
        self.fc_logvar = nn.Linear(flat, latent_dim)
        self.fc_decode = nn.Linear(latent_dim, flat)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def encode(self, x):
        h = self.encoder(x).view(x.size(0), -1)
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn(std.size(0), std.size(1)).to(device)
        return mu + eps * std

    def decode(self, z):
        h = F.relu(self.fc_decode(z))
        return self.decoder(h.view(-1, *self.shape))

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon, x, mu, logvar):
    """Reconstruction error plus KL divergence, summed over the batch."""
    error = F.mse_loss(recon, x, reduction='sum')
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return error + args.beta * kld


transform = transforms.Compose([transforms.Resize(args.image_size), transforms.ToTensor()])
draw_blobs(os.path.join(args.data, 'train'), args.num_train, seed=0)
draw_blobs(os.path.join(args.data, 'test'), args.num_test, seed=1000000)
train_loader = DataLoader(
    BlobDataset(os.path.join(args.data, 'train'), transform), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(
    BlobDataset(os.path.join(args.data, 'test'), transform), batch_size=args.batch_size, shuffle=False)

model = VAE(args.width, args.latent_dim, args.image_size).to(device)
optimizer = optim.Adam(model.parameters(), lr=args.lr)


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, data in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss = loss_function(recon, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print('Train Epoch: {} [{}/{}]\tLoss: {:.4f}'.format(
                epoch, batch_idx * len(data), len(train_loader.dataset), loss.item() / len(data)))
    print('====> Epoch: {} Average loss: {:.4f}'.format(epoch, train_loss / len(train_loader.dataset)))


def test(epoch):
    test_loss = 0
    for i, data in enumerate(test_loader):
        data = data.to(device)
        recon, mu, logvar = model(data)
        test_loss += loss_function(recon, data, mu, logvar).item()
        if i == 0:
            n = min(data.size(0), 8)
            sheet = torch.cat([data[:n], recon[:n]])
            save_image(sheet.cpu(), os.path.join(args.out, 'reconstruction_%d.png' % epoch), nrow=n)
    print('====> Test set loss: {:.4f}'.format(test_loss / len(test_loader.dataset)))


for epoch in range(1, args.epochs + 1):
    train(epoch)
    test(epoch)
    noise = torch.randn(64, args.latent_dim).to(device)
    sample = model.decode(noise).cpu()
    save_image(sample, os.path.join(args.out, 'sample_%d.png' % epoch))

torch.save(model.state_dict(), os.path.join(args.out, 'vae.pth'))
