"""Neural style transfer: a picture is optimized by L-BFGS against the features of a frozen network."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

SIZE = 16
mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, input):
        self.loss = F.mse_loss(input, self.target)
        return input


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    G = torch.mm(features, features.t())
    return G.div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super().__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


class Normalization(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.mean = mean.clone().view(-1, 1, 1)
        self.std = std.clone().view(-1, 1, 1)

    def forward(self, img):
        return (img - self.mean) / self.std


def features():
    torch.manual_seed(11)
    layers, channels = [], 3
    for width in (8, 8, 12):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    layers.insert(6, nn.MaxPool2d(2))
    return nn.Sequential(*layers).eval()


def get_model_and_losses(cnn, style_img, content_img, content_layers=("conv_2",), style_layers=("conv_1", "conv_2", "conv_3")):
    content_losses, style_losses = [], []
    model = nn.Sequential(Normalization(mean, std))
    i = 0
    for layer in cnn.children():
        if isinstance(layer, nn.Conv2d):
            i += 1
            name = f"conv_{i}"
        elif isinstance(layer, nn.ReLU):
            name = f"relu_{i}"
            layer = nn.ReLU(inplace=False)
        elif isinstance(layer, nn.MaxPool2d):
            name = f"pool_{i}"
        else:
            name = f"bn_{i}"
        model.add_module(name, layer)
        if name in content_layers:
            content_loss = ContentLoss(model(content_img))
            model.add_module(f"content_loss_{i}", content_loss)
            content_losses.append(content_loss)
        if name in style_layers:
            style_loss = StyleLoss(model(style_img))
            model.add_module(f"style_loss_{i}", style_loss)
            style_losses.append(style_loss)
    for i in range(len(model) - 1, -1, -1):
        if isinstance(model[i], (ContentLoss, StyleLoss)):
            break
    return model[: i + 1], style_losses, content_losses


def pictures():
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    content = np.stack([np.hypot(x - 0.5, y - 0.5) < 0.3, x, 1 - y]).astype(np.float32)
    style = np.stack([0.5 + 0.5 * np.sin(20 * x), 0.5 + 0.5 * np.sin(14 * (x + y)), 0.3 + 0 * x]).astype(np.float32)
    return torch.from_numpy(content)[None], torch.from_numpy(style)[None]


def total_variation(img):
    return (img[..., 1:, :] - img[..., :-1, :]).abs().mean() + (img[..., :, 1:] - img[..., :, :-1]).abs().mean()


def main(num_steps=60, style_weight=1e4, content_weight=1.0, tv_weight=0.1):
    content_img, style_img = pictures()
    input_img = content_img.clone()
    model, style_losses, content_losses = get_model_and_losses(features(), style_img, content_img)
    input_img.requires_grad_(True)
    model.eval()
    model.requires_grad_(False)
    optimizer = optim.LBFGS([input_img], lr=0.5, max_iter=6, history_size=8)
    run = [0]
    best, kept = np.inf, None
    while run[0] <= num_steps:

        def closure():
            with torch.no_grad():
                input_img.clamp_(0, 1)
            optimizer.zero_grad()
            model(input_img)
            style_score = sum(sl.loss for sl in style_losses) * style_weight
            content_score = sum(cl.loss for cl in content_losses) * content_weight
            loss = style_score + content_score + tv_weight * total_variation(input_img)
            loss.backward()
            run[0] += 1
            if run[0] % 12 == 0:
                print(f"run {run[0]}: Style Loss : {style_score.item():4f} Content Loss: {content_score.item():4f}")
            return loss

        loss = optimizer.step(closure).item()
        if loss < best:
            best, kept = loss, input_img.detach().clone()
    with torch.no_grad():
        input_img.clamp_(0, 1)
    np.save("output.npy", (255 * input_img.detach()[0].permute(1, 2, 0)).round().byte().numpy())
    torch.save({"best": best, "image": kept, "last": input_img.detach()}, "style.pt")
    print(f"best {best:.5f}")


if __name__ == "__main__":
    main()
