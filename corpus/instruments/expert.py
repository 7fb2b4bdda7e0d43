"""Which instrument plays? train.py, tuned by hand. What changed, and why:

- One process per GPU under torchrun instead of DataParallel, which copies the network in every step and has one process
  feed all GPUs. The global batch, the checkpoint's keys and `python train.py` stay.
- Each process evaluates some of the batches; what they count is added up.
- Worker processes load the recordings into pinned memory; evaluation builds no graph and waits for the GPU once.
"""
import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, SequentialSampler

from recordings import INSTRUMENTS, record

RANK = int(os.environ.get("RANK", 0))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data")
parser.add_argument("--train-recordings", type=int, default=8000)
parser.add_argument("--test-recordings", type=int, default=800)
parser.add_argument("--length", type=int, default=8000, help="samples of a recording")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=128, help="over all GPUs")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--resume", default="", help="a checkpoint to go on from")
parser.add_argument("--seed", type=int, default=0)


class Recordings(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        name = os.path.basename(self.paths[i])[6:-4]
        return torch.from_numpy(np.load(self.paths[i])), INSTRUMENTS.index(name)


class Ears(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.listen = nn.Sequential(
            nn.Conv1d(1, width, 64, stride=8), nn.ReLU(),
            nn.Conv1d(width, width, 16, stride=4), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 8, stride=2), nn.ReLU(),
        )
        self.decide = nn.Linear(2 * width, len(INSTRUMENTS))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, sound, instrument):
        heard = self.listen(sound.unsqueeze(1)).amax(dim=2)
        scores = self.decide(heard)
        return scores, self.criterion(scores, instrument)


def train(loader, model, optimizer, device):
    model.train()
    total = torch.zeros((), device=device)
    for sounds, instruments in loader:
        sounds, instruments = sounds.to(device, non_blocking=True), instruments.to(device, non_blocking=True)
        _, loss = model(sounds, instruments)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    if WORLD_SIZE > 1:
        dist.all_reduce(total)
    return total.item() / len(loader) / WORLD_SIZE


@torch.no_grad()
def test(loader, model, device):
    model.eval()
    confusion = torch.zeros(len(INSTRUMENTS), len(INSTRUMENTS), dtype=torch.long, device=device)
    for sounds, instruments in loader:
        sounds, instruments = sounds.to(device, non_blocking=True), instruments.to(device, non_blocking=True)
        scores, _ = model(sounds, instruments)
        pairs = instruments * len(INSTRUMENTS) + scores.argmax(dim=1)
        confusion += torch.bincount(pairs, minlength=len(INSTRUMENTS) ** 2).view_as(confusion)
    if WORLD_SIZE > 1:
        dist.all_reduce(confusion)
    return confusion.diag().sum().item() / len(loader.dataset), confusion.cpu()


def main():
    args = parser.parse_args()
    if args.batch_size % WORLD_SIZE:
        parser.error("--batch-size must be a multiple of the number of processes")
    if WORLD_SIZE > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    if RANK > 0:
        dist.barrier()
    record(os.path.join(args.data, "train"), args.train_recordings, args.length, seed=0)
    record(os.path.join(args.data, "test"), args.test_recordings, args.length, seed=10 ** 6)
    if RANK == 0 and WORLD_SIZE > 1:
        dist.barrier()
    train_set = Recordings(os.path.join(args.data, "train"))
    test_set = Recordings(os.path.join(args.data, "test"))
    loading = dict(num_workers=2, persistent_workers=True, pin_memory=device == "cuda")
    sampler = DistributedSampler(train_set, seed=args.seed) if WORLD_SIZE > 1 else None
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size // WORLD_SIZE, shuffle=sampler is None, sampler=sampler, **loading
    )
    # every WORLD_SIZE-th batch: each is evaluated once, by one process
    batches = list(BatchSampler(SequentialSampler(test_set), args.batch_size, drop_last=False))
    test_loader = DataLoader(test_set, batch_sampler=batches[RANK::WORLD_SIZE], **loading)

    model = Ears(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]

    ddp_model = DistributedDataParallel(model) if WORLD_SIZE > 1 else model

    for epoch in range(start, args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        loss = train(train_loader, ddp_model, optimizer, device)
        accuracy, confusion = test(test_loader, model, device)
        if RANK == 0:
            print("epoch %d: loss %.4f, accuracy %.4f" % (epoch + 1, loss, accuracy))
            print(confusion)
            torch.save({
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch + 1,
            }, "ears.pt")

    if WORLD_SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
