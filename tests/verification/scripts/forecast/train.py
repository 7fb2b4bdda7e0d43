"""Load forecasting: lr range test, FFT mixer with complex weights, quantile loss, layer-wise lr decay, curriculum over the horizon."""
import copy
import math
import struct
from argparse import Namespace

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Subset

opt = Namespace(hours=420, series=3, lookback=24, horizon=8, d_model=12, layers=2, dropout=0.1, batch=18, accum=2,
                lr=None, epochs=9, patience=1, layer_decay=0.7, wd=0.05, quantiles=(0.1, 0.5, 0.9), seed=2021, stride=3)


class StandardScaler:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)
        return self

    def transform(self, x):
        return (x - self.mean) / self.std

    def inverse_transform(self, x):
        # x: tensor [B, H, C]
        mean = torch.from_numpy(self.mean).type_as(x).to(x.device)
        std = torch.from_numpy(self.std).type_as(x).to(x.device)
        return x * std + mean


def synth():
    rs = np.random.RandomState(0)
    t = np.arange(opt.hours)[:, None]
    phase = rs.rand(1, opt.series) * 6
    y = 100 + 30 * np.sin(2 * np.pi * t / 24 + phase) + 10 * np.sin(2 * np.pi * t / 168 + 2 * phase) + 0.05 * t
    y = y + 6 * rs.randn(opt.hours, opt.series)
    y[rs.rand(*y.shape) < 0.02] = np.nan  # sensor outages
    return y


class Windows(Dataset):
    borders = {"train": (0, 0.65), "val": (0.65, 0.82), "test": (0.82, 1.0)}

    def __init__(self, flag, scaler=None):
        raw = synth()
        lo, hi = (int(b * opt.hours) for b in self.borders[flag])
        lo = max(0, lo - opt.lookback)
        self.scaler = scaler or StandardScaler().fit(np.nan_to_num(raw[lo:hi], nan=100.0))
        self.known = ~np.isnan(raw[lo:hi])
        self.data = self.scaler.transform(np.nan_to_num(raw[lo:hi], nan=100.0))
        self.hour = (np.arange(lo, hi) % 24) / 23.0 - 0.5

    def __len__(self):
        return (len(self.data) - opt.lookback - opt.horizon) // opt.stride + 1

    def __getitem__(self, i):
        a = i * opt.stride
        b = a + opt.lookback
        x = np.concatenate([self.data[a:b], self.hour[a:b, None]], 1)
        return x.astype("float32"), self.data[b:b + opt.horizon].astype("float32"), self.known[b:b + opt.horizon]


class FFTMixer(nn.Module):
    def __init__(self, length, d):
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_real(torch.complex(torch.randn(length // 2 + 1, d), torch.randn(length // 2 + 1, d)) * 0.2))
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(opt.dropout), nn.Linear(2 * d, d))
        self.length = length

    def forward(self, x):
        f = torch.fft.rfft(x, dim=1, norm="ortho")
        f = f * torch.view_as_complex(self.weight)
        x = x + torch.fft.irfft(f, n=self.length, dim=1, norm="ortho")
        return x + self.ff(self.norm(x))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(opt.series + 1, opt.d_model)
        self.layers = nn.ModuleList([FFTMixer(opt.lookback, opt.d_model) for _ in range(opt.layers)])
        self.rnn = nn.GRU(opt.d_model, opt.d_model, batch_first=True)
        self.head = nn.Linear(opt.d_model, opt.horizon * opt.series * len(opt.quantiles))

    def forward(self, x):
        # RevIN-like: last level is taken off and added again
        level = x[:, -1:, : opt.series].detach()
        x = torch.cat([x[..., : opt.series] - level, x[..., opt.series:]], -1)
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        _, h = self.rnn(h)
        out = self.head(h[-1]).view(-1, opt.horizon, opt.series, len(opt.quantiles))
        return out + level[..., None]


def pinball(pred, y, mask, horizon):
    q = torch.tensor(opt.quantiles, device=pred.device)
    e = y[..., None] - pred
    loss = torch.maximum(q * e, (q - 1) * e).sum(-1)
    loss = (loss * mask)[:, :horizon]
    return loss.sum() / mask[:, :horizon].sum().clamp(min=1)


def param_groups(model, lr):
    groups = []
    stages = [model.embed, *model.layers, nn.ModuleList([model.rnn, model.head])]
    for depth, stage in enumerate(stages):
        scale = opt.layer_decay ** (len(stages) - 1 - depth)
        for decays in (True, False):
            ps = [p for n, p in stage.named_parameters() if (p.ndim > 1) == decays]
            groups.append({"params": ps, "lr": lr * scale, "weight_decay": opt.wd if decays else 0.0, "name": f"{depth}{'d' if decays else 'n'}"})
    return groups


def find_lr(model, loader, lo=1e-4, hi=1.0):
    """Smith's range test on a few batches: the steepest slope of the smoothed loss. Leaves the model as it was."""
    state = copy.deepcopy(model.state_dict())
    optimizer = optim.SGD(model.parameters(), lr=lo, momentum=0.9)
    gamma = (hi / lo) ** (1 / (len(loader) - 1))
    avg, curve = 0.0, []
    model.train()
    for i, (x, y, known) in enumerate(loader):
        loss = pinball(model(x), y, known, opt.horizon)
        avg = 0.8 * avg + 0.2 * loss.item()
        smooth = avg / (1 - 0.8 ** (i + 1))
        curve.append((optimizer.param_groups[0]["lr"], smooth))
        if i and smooth > 4 * min(s for _, s in curve):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for g in optimizer.param_groups:
            g["lr"] *= gamma
    model.load_state_dict(state)
    slopes = [(math.log(b[0] / a[0]) and (b[1] - a[1]) / math.log(b[0] / a[0]), a[0]) for a, b in zip(curve, curve[1:])]
    return min(slopes)[1] / 2, curve


class ScalarWriter:
    """Records of (tag length, tag, step, value), little endian."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def add(self, tag, value, step):
        name = tag.encode()
        self.file.write(struct.pack("<H%dsIf" % len(name), len(name), name, step, float(value)))

    def close(self):
        self.file.close()


class EarlyStopping:
    def __init__(self, patience, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter, self.best_score, self.early_stop, self.val_loss_min = 0, None, False, np.inf

    def __call__(self, val_loss, model, path):
        score = -val_loss
        if self.best_score is None or score >= self.best_score + self.delta:
            self.best_score = score
            print(f"Validation loss decreased ({self.val_loss_min:.6f} --> {val_loss:.6f}).  Saving model ...")
            torch.save(model.state_dict(), path)
            self.val_loss_min, self.counter = val_loss, 0
        else:
            self.counter += 1
            print(f"EarlyStopping counter: {self.counter} out of {self.patience}")
            self.early_stop = self.counter >= self.patience


def vali(model, loader, scaler):
    model.eval()
    losses, preds, trues, masks = [], [], [], []
    with torch.no_grad():
        for x, y, known in loader:
            pred = model(x)
            losses.append((pinball(pred, y, known, opt.horizon).item(), len(x)))
            preds.append(scaler.inverse_transform(pred[..., 1]).numpy())
            trues.append(scaler.inverse_transform(y).numpy())
            masks.append(known.numpy())
            lows = scaler.inverse_transform(pred[..., 0])
    model.train()
    p, t, m = (np.concatenate(a) for a in (preds, trues, masks))
    mae = np.abs(p - t)[m].mean()
    rmse = np.sqrt(((p - t) ** 2)[m].mean())
    mape = (np.abs(p - t) / np.abs(t))[m].mean() * 100
    per_step = [np.abs(p - t)[:, h][m[:, h]].mean() for h in range(opt.horizon)]
    loss = sum(l * n for l, n in losses) / sum(n for _, n in losses)
    return loss, dict(mae=mae, rmse=rmse, mape=mape), per_step, p


def main():
    torch.manual_seed(opt.seed)
    np.random.seed(opt.seed)
    train_set = Windows("train")
    val_set, test_set = Windows("val", train_set.scaler), Windows("test", train_set.scaler)
    train_loader = DataLoader(train_set, opt.batch, shuffle=True)
    val_loader, test_loader = DataLoader(val_set, 7), DataLoader(test_set, 7)
    model = Forecaster()
    lr, curve = find_lr(model, DataLoader(Subset(train_set, range(0, len(train_set), 2)), 4))
    print("range test: lr %.4g over %d points, last smoothed loss %.4f" % (lr, len(curve), curve[-1][1]))
    lr = min(max(lr, 0.05), 0.1)
    optimizer = optim.AdamW(param_groups(model, lr), betas=(0.9, 0.98))
    updates = math.ceil(len(train_loader) / opt.accum) * opt.epochs
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, [g["lr"] for g in optimizer.param_groups], total_steps=updates, pct_start=0.3)
    writer, stopper, update = ScalarWriter("events.bin"), EarlyStopping(opt.patience), 0
    for epoch in range(opt.epochs):
        horizon = min(opt.horizon, 2 + 2 * epoch)
        running, count = 0.0, 0
        optimizer.zero_grad()
        for i, (x, y, known) in enumerate(train_loader):
            window = min(opt.accum, len(train_loader) - i // opt.accum * opt.accum)
            loss = pinball(model(x), y, known, horizon)
            (loss / window).backward()
            running += loss.item() * len(x)
            count += len(x)
            if (i + 1) % opt.accum == 0 or i + 1 == len(train_loader):
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                update += 1
                writer.add("grad_norm", norm, update)
                writer.add("lr/head", optimizer.param_groups[-1]["lr"], update)
        val_loss, metrics, _, _ = vali(model, val_loader, train_set.scaler)
        writer.add("loss/train", running / count, epoch)
        writer.add("loss/val", val_loss, epoch)
        print(f"Epoch: {epoch + 1}, Steps: {update} | Train Loss: {running / count:.7f} Vali Loss: {val_loss:.7f} mae {metrics['mae']:.3f}")
        stopper(val_loss, model, "checkpoint.pth")
        if stopper.early_stop:
            print("Early stopping")
            break
    writer.close()
    model.load_state_dict(torch.load("checkpoint.pth"))
    _, metrics, per_step, preds = vali(model, test_loader, train_set.scaler)
    print("mae:{mae:.4f}, rmse:{rmse:.4f}, mape:{mape:.4f}".format(**metrics))
    np.save("metrics.npy", np.array([*metrics.values(), *per_step]))
    np.savez("pred.npz", pred=preds)


if __name__ == "__main__":
    main()
