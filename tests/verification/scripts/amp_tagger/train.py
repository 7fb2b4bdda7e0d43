"""Mixed precision on a GPU with a scaler, clipping and accumulation; a hidden state carried from chunk to chunk."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 16, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x, hidden):
        h, hidden = self.rnn(x, hidden)
        return self.out(h), hidden


def detach(hidden):
    return tuple(h.detach() for h in hidden)


def main():
    torch.manual_seed(14)
    x = torch.randn(8, 60, 6)
    y = (x.cumsum(1)[..., :4]).argmax(-1)
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=10)
    scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda", init_scale=1024.0)
    accumulate = 2
    for epoch in range(3):
        hidden = None
        counts = torch.zeros(2, device=device)
        total = 0.0
        optimizer.zero_grad()
        for i, start in enumerate(range(0, 60, 10)):
            data = x[:, start : start + 10].to(device)
            target = y[:, start : start + 10].to(device)
            hidden = None if hidden is None else detach(hidden)
            with torch.autocast(device.type, dtype=torch.float16, enabled=device.type == "cuda"):
                logits, hidden = model(data, hidden)
                loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
            scaler.scale(loss / accumulate).backward()
            counts += torch.stack([(logits.argmax(-1) == target).sum(), torch.tensor(80.0).to(device)])
            total += loss.item()
            if (i + 1) % accumulate == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
        right, seen = counts.tolist()
        print(f"epoch {epoch}: loss {total / 6:.4f} accuracy {right / seen:.3f}")
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "tagger.pt")


if __name__ == "__main__":
    main()
