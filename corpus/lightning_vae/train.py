# Convolutional variational autoencoder, structured with PyTorch Lightning.
import argparse

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import transforms

from shapes import Shapes


class VAE(pl.LightningModule):
    def __init__(self, width=32, latent=16, lr=1e-3):
        super().__init__()
        self.width = width
        self.latent = latent
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(),
            nn.Flatten(),
        )
        self.mu = nn.Linear(2 * width * 7 * 7, latent)
        self.log_var = nn.Linear(2 * width * 7 * 7, latent)
        self.expand = nn.Linear(latent, 2 * width * 7 * 7)
        self.decoder = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, 2, 1),
        )
        self.epoch_losses = []

    def forward(self, x):
        h = self.encoder(x)
        mu, log_var = self.mu(h), self.log_var(h)
        noise = torch.randn(mu.size(0), self.latent).to(self.device)
        z = mu + noise * torch.exp(0.5 * log_var)
        h = self.expand(z).view(-1, 2 * self.width, 7, 7)
        return self.decoder(h), mu, log_var

    def loss(self, x):
        logits, mu, log_var = self(x)
        reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.size(0)
        kl = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp()) / x.size(0)
        return reconstruction, kl

    def training_step(self, batch, batch_idx):
        reconstruction, kl = self.loss(batch)
        loss = reconstruction + kl
        self.log("train_loss", loss.item())
        self.log_dict({"reconstruction": reconstruction.item(), "kl": kl.item()})
        self.epoch_losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: train loss {sum(self.epoch_losses) / len(self.epoch_losses):.4f}")
        self.epoch_losses.clear()

    def validation_step(self, batch, batch_idx):
        reconstruction, kl = self.loss(batch)
        self.log("val_loss", reconstruction + kl)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--num-train", type=int, default=20000)
    parser.add_argument("--num-val", type=int, default=2000)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()

    pl.seed_everything(0)
    train_set = Shapes(args.data, args.num_train, 1, transforms.ToTensor())
    val_set = Shapes(args.data, args.num_val, 2, transforms.ToTensor())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    model = VAE(args.width)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        profiler="simple",
    )
    trainer.fit(model, train_loader, val_loader)
    torch.save(model.state_dict(), "vae.pt")


if __name__ == "__main__":
    main()
