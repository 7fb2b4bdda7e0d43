# DCGAN on pictures of smileys
import argparse
import os

import numpy as np
import torch
import torch.nn as nn
import torchvision.transforms as transforms
from PIL import Image, ImageDraw
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset
from torchvision.utils import save_image

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=str, default="data", help="where the jpegs are")
parser.add_argument("--n_images", type=int, default=20000, help="how many smileys to draw when there are none")
parser.add_argument("--n_epochs", type=int, default=50)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--n_cpu", type=int, default=0, help="processes that load images")
parser.add_argument("--lr", type=float, default=0.0002, help="for both adams")
parser.add_argument("--b1", type=float, default=0.5, help="adam beta 1")
parser.add_argument("--b2", type=float, default=0.999, help="adam beta 2")
parser.add_argument("--latent_dim", type=int, default=100, help="length of the noise vector")
parser.add_argument("--img_size", type=int, default=64, help="must be a multiple of 16")
parser.add_argument("--sample_interval", type=int, default=200, help="batches between two sample sheets")
opt = parser.parse_args()
print(opt)

os.makedirs("images", exist_ok=True)

cuda = torch.cuda.is_available()

np.random.seed(42)
torch.manual_seed(42)


# ---------------
#  Data
# ---------------

def draw_smileys(folder, count):
    os.makedirs(folder, exist_ok=True)
    for i in range(count):
        path = os.path.join(folder, "%06d.jpg" % i)
        if os.path.exists(path):
            continue
        rng = np.random.RandomState(i)
        background, skin, ink = [tuple(rng.randint(low, low + 100, 3).tolist()) for low in (0, 150, 0)]
        x, y, r = rng.randint([56, 56, 30], [72, 72, 48]).tolist()
        img = Image.new("RGB", (128, 128), background)
        pen = ImageDraw.Draw(img)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=skin, outline=ink, width=3)
        for eye in (x - r // 2, x + r // 2):
            pen.ellipse((eye - 5, y - r // 3 - 5, eye + 5, y - r // 3 + 5), fill=ink)
        pen.arc((x - r // 2, y - r // 4, x + r // 2, y + r * 2 // 3), 20, 160, fill=ink, width=4)
        img.save("%s.%d" % (path, os.getpid()), format="JPEG", quality=90)
        os.replace("%s.%d" % (path, os.getpid()), path)


class SmileyDataset(Dataset):
    def __init__(self, folder, count, transform):
        self.files = [os.path.join(folder, "%06d.jpg" % i) for i in range(count)]
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index]).convert("RGB"))


# ---------------
#  Networks
# ---------------

class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.start = opt.img_size // 8
        self.project = nn.Linear(opt.latent_dim, 128 * self.start ** 2)

        def up(n_in, n_out):
            return [nn.ConvTranspose2d(n_in, n_out, 4, 2, 1), nn.BatchNorm2d(n_out), nn.ReLU()]

        self.blocks = nn.Sequential(*up(128, 128), *up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        x = self.project(z).view(z.size(0), 128, self.start, self.start)
        return self.blocks(x)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()

        def down(n_in, n_out):
            return [nn.Conv2d(n_in, n_out, 4, 2, 1), nn.LeakyReLU(0.2), nn.Dropout2d(0.25)]

        self.blocks = nn.Sequential(*down(3, 32), *down(32, 64), *down(64, 128), *down(128, 128))
        self.verdict = nn.Sequential(nn.Linear(128 * (opt.img_size // 16) ** 2, 1), nn.Sigmoid())

    def forward(self, img):
        x = self.blocks(img)
        return self.verdict(x.view(x.size(0), -1))


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight.data, 0.0, 0.02)


generator = Generator()
discriminator = Discriminator()
adversarial_loss = nn.BCELoss()

if cuda:
    generator.cuda()
    discriminator.cuda()
    adversarial_loss.cuda()

generator.apply(init_weights)
discriminator.apply(init_weights)

draw_smileys(opt.data, opt.n_images)
dataloader = DataLoader(
    SmileyDataset(opt.data, opt.n_images, transforms.Compose([
        transforms.Resize(opt.img_size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.5], [0.5]),
    ])),
    batch_size=opt.batch_size,
    shuffle=True,
    num_workers=opt.n_cpu,
)

optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))

Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor

# ---------------
#  Training
# ---------------

for epoch in range(opt.n_epochs):
    for i, imgs in enumerate(dataloader):

        # what the discriminator should say
        valid = Variable(Tensor(imgs.size(0), 1).fill_(1.0), requires_grad=False)
        fake = Variable(Tensor(imgs.size(0), 1).fill_(0.0), requires_grad=False)

        real_imgs = Variable(imgs.type(Tensor))

        # --- generator: fool the discriminator ---
        optimizer_G.zero_grad()
        z = Variable(Tensor(np.random.normal(0, 1, (imgs.shape[0], opt.latent_dim))))
        gen_imgs = generator(z)
        g_loss = adversarial_loss(discriminator(gen_imgs), valid)
        g_loss.backward()
        optimizer_G.step()

        # --- discriminator: tell real from generated ---
        optimizer_D.zero_grad()
        real_loss = adversarial_loss(discriminator(real_imgs), valid)
        fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()

        print(
            "[epoch %d/%d] [batch %d/%d] [D loss: %f] [G loss: %f]"
            % (epoch, opt.n_epochs, i, len(dataloader), d_loss.item(), g_loss.item())
        )

        batches_done = epoch * len(dataloader) + i
        if batches_done % opt.sample_interval == 0:
            save_image(gen_imgs.data[:25], "images/%d.png" % batches_done, nrow=5, normalize=True)

torch.save(generator.state_dict(), "generator.pth")
