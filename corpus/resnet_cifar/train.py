# Image classification with ResNet-18, mixed precision and the profiler.
import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.cuda.amp import autocast, GradScaler
from torch.profiler import profile, record_function, ProfilerActivity
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

from cifar_jpegs import make_split

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="./data")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--image-size", type=int, default=224)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--num-train", type=int, default=10000)
parser.add_argument("--num-test", type=int, default=2000)
args = parser.parse_args()

torch.manual_seed(0)

# device
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("Using", device)

# preprocessing, ImageNet statistics
train_transform = transforms.Compose([
    transforms.RandomResizedCrop(args.image_size),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
])
test_transform = transforms.Compose([
    transforms.Resize((args.image_size, args.image_size)),
    transforms.ToTensor(),
    transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
])

# data
train_dataset = datasets.ImageFolder(make_split(args.data, "train", args.num_train, seed=1), train_transform)
test_dataset = datasets.ImageFolder(make_split(args.data, "test", args.num_test, seed=2), test_transform)
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(test_dataset, batch_size=args.batch_size)

# model, loss, optimizer
model = models.resnet18(num_classes=len(train_dataset.classes)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
scaler = GradScaler()


# training with mixed precision
def train_one_epoch():
    model.train()
    running_loss = 0.0
    correct = 0
    for i, (inputs, labels) in enumerate(train_loader):
        inputs, labels = inputs.to(device), labels.to(device)

        optimizer.zero_grad()

        with autocast():
            outputs = model(inputs)
            loss = criterion(outputs, labels)

        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

        running_loss += loss.item()
        correct += (outputs.argmax(dim=1) == labels).sum().item()
        if (i + 1) % 20 == 0:
            print(f"  step {i + 1}/{len(train_loader)}: loss = {loss.item():.4f}")

        # where does the time go?
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as prof:
            with record_function("model_inference"):
                _ = model(inputs)

        print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=3))

    print(f"  train loss = {running_loss / len(train_loader):.4f}, accuracy = {correct / len(train_dataset):.4f}")


def evaluate():
    model.eval()
    test_loss = 0.0
    correct = 0
    for inputs, labels in test_loader:
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        test_loss += criterion(outputs, labels).item()
        correct += (outputs.argmax(dim=1) == labels).sum().item()
    print(f"  test loss = {test_loss / len(test_loader):.4f}, accuracy = {correct / len(test_dataset):.4f}")


for epoch in range(args.epochs):
    print(f"Epoch {epoch + 1}/{args.epochs}")
    train_one_epoch()
    evaluate()

torch.save(model.state_dict(), "resnet18_cifar.pth")
print("Saved resnet18_cifar.pth")
