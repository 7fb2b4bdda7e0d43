# Which state is the machine in? A small MLP on sensor readings, in many small steps.
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from machine_logs import SENSORS, STATES, read_logs, write_logs

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="./data")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--machines", type=int, default=40)
parser.add_argument("--rows", type=int, default=2000)
args = parser.parse_args()

torch.manual_seed(1)
device = "cuda:0" if torch.cuda.is_available() else "cpu"


class MLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(SENSORS, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, len(STATES))
        self.bn1 = nn.BatchNorm1d(hidden)
        self.bn2 = nn.BatchNorm1d(hidden)

    def forward(self, x):
        x = F.relu(self.bn1(self.fc1(x)))
        x = F.relu(self.bn2(self.fc2(x)))
        x = F.relu(self.fc3(x))
        return self.out(x)


# everything fits on the GPU, so no DataLoader
files = write_logs(args.data, args.machines, args.rows)
train_y, train_x = (torch.tensor(column).to(device) for column in read_logs(files[2:]))
test_y, test_x = (torch.tensor(column).to(device) for column in read_logs(files[:2]))

model = MLP(args.hidden).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
history = []


def train(epoch):
    model.train()
    start = time.time()
    epoch_loss = 0
    correct = 0
    order = torch.randperm(len(train_x), device=device)
    for i in range(0, len(order), args.batch_size):
        batch = order[i:i + args.batch_size]
        x, y = train_x[batch], train_y[batch]

        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()

        epoch_loss += loss.item() * len(x)
        _, predicted = torch.max(output.data, 1)
        correct += (predicted == y).sum().item()
        if i // args.batch_size % 200 == 0:
            print('epoch %d [%d/%d] loss %.4f' % (epoch, i, len(order), loss.item()))
    seconds = time.time() - start
    print('epoch %d: train loss %.4f, accuracy %.3f, %.1f s' % (
        epoch, epoch_loss / len(order), correct / len(order), seconds))
    history.append(epoch_loss / len(order))


def test():
    model.eval()
    test_loss, correct = 0.0, 0
    for i in range(0, len(test_x), args.batch_size):
        x, y = test_x[i:i + args.batch_size], test_y[i:i + args.batch_size]
        output = model(x)
        test_loss += F.cross_entropy(output, y, reduction='sum').item()
        correct += (output.argmax(1) == y).sum().item()
    print('test loss %.4f, accuracy %.3f' % (test_loss / len(test_x), correct / len(test_x)))


for epoch in range(1, args.epochs + 1):
    train(epoch)
    test()

torch.save({'model': model.state_dict(), 'history': history}, 'mlp.pt')
