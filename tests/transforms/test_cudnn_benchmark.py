"""`cudnn-benchmark`: convolutions whose shapes are proven to come back, and all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Check = Callable[..., None]

SCRIPT = """\
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

{setup}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = {loader}
model = {model}.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    {more}
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
"""
CIFAR = 'torchvision.datasets.CIFAR10("data", transform=transforms.ToTensor())'
CONVOLUTIONS = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(7200, 10))"
FLAG = "torch.backends.cudnn.benchmark = True"


def script(
    setup: str = "torch.manual_seed(0)",
    loader: str = f"DataLoader({CIFAR}, batch_size=64, shuffle=True)",
    model: str = CONVOLUTIONS,
    more: str = "pass",
) -> str:
    return SCRIPT.format(setup=setup, loader=loader, model=model, more=more)


def folder(*steps: str) -> str:
    return f'torchvision.datasets.ImageFolder("data", transforms.Compose([{", ".join(steps)}]))'


def transformed(**parts: str) -> tuple[str, str]:
    setup = parts.pop("setup", "torch.manual_seed(0)")
    return script(setup, **parts), script(f"{setup}\n{FLAG}", **parts)


def test_below_the_seed(check_transformed: Check) -> None:
    check_transformed(*transformed())


def test_the_script_s_own_name_for_cudnn(check_transformed: Check) -> None:
    setup = "import torch.backends.cudnn as cudnn\n\ntorch.manual_seed(0)"
    check_transformed(script(setup), script(f"{setup}\ncudnn.benchmark = True"))


def test_torchvision_network(check_transformed: Check) -> None:
    check_transformed(*transformed(model="torchvision.models.resnet18(num_classes=10)"))


@pytest.mark.parametrize("batch_size", ["1", "size_of_batches()"])
@pytest.mark.parametrize(
    "steps",
    [
        ("transforms.Resize((32, 32))", "transforms.ToTensor()"),
        ("transforms.Resize(40)", "transforms.CenterCrop(32)", "transforms.ToTensor()"),
        ("transforms.RandomResizedCrop(32)", "transforms.ToTensor()", "transforms.Normalize(m, s)"),
        ("transforms.RandomCrop(32)", "transforms.RandomRotation(15)", "transforms.ToTensor()"),
    ],
)
def test_images_of_a_fixed_size_in_batches_of_any_size(
    check_transformed: Check, steps: tuple[str, ...], batch_size: str
) -> None:
    loader = f"DataLoader({folder(*steps)}, batch_size={batch_size})"
    check_transformed(*transformed(loader=loader))


@pytest.mark.parametrize(
    "steps",
    [
        ("transforms.ToTensor()",),
        ("transforms.Resize(32)", "transforms.ToTensor()"),
        ("transforms.CenterCrop(32)", "transforms.RandomRotation(90, expand=True)"),
        ("transforms.CenterCrop(32)", "transforms.Lambda(shrink)"),
        ("transforms.Pad(2)", "transforms.ToTensor()"),
    ],
)
def test_single_images_of_their_own_sizes(check_noop: Check, steps: tuple[str, ...]) -> None:
    loader = f"DataLoader({folder(*steps)}, batch_size=1)"
    check_noop(script(loader=loader), reason="may differ in size")


def test_images_of_one_size_that_a_transform_may_cut(check_noop: Check) -> None:
    transform = "transforms.Compose([transforms.Lambda(shrink), transforms.ToTensor()])"
    data = f"torchvision.datasets.CIFAR10('data', transform={transform})"
    reason = "images of `torchvision.datasets.CIFAR10` may differ in size: not all transforms are known to keep it"
    check_noop(script(loader=f"DataLoader({data}, batch_size=1)"), reason=reason)


def test_stacked_images_have_one_size(check_transformed: Check) -> None:
    loader = f"DataLoader({folder('transforms.ToTensor()')}, batch_size=8, shuffle=True)"
    check_transformed(*transformed(loader=loader))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("batch_size=8, collate_fn=pad", "collate_fn"),
        ("batch_sampler=buckets(data)", "batch_sampler"),
        ("batch_size=8, sampler=by_length(data)", "sampler"),
        ("**options", "collate_fn"),
    ],
)
def test_batches_made_in_other_ways(check_noop: Check, arguments: str, reason: str) -> None:
    check_noop(script(loader=f"DataLoader({CIFAR}, {arguments})"), reason=reason)


def test_an_iterable_dataset(check_noop: Check) -> None:
    setup = """\
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from images()
"""
    loader = "DataLoader(Stream(), batch_size=8)"
    check_noop(script(setup, loader), reason="iterable")


def test_a_dataset_whose_size_is_changed_between_epochs(check_noop: Check) -> None:
    source = """\
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, Dataset

        class Scaled(Dataset):
            def __init__(self):
                self.size = 32

            def __len__(self):
                return 100

            def __getitem__(self, i):
                return torch.zeros(3, self.size, self.size)

        data = Scaled()
        loader = DataLoader(data, batch_size=8)
        model = nn.Conv2d(3, 3, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(100):
            data.size = 32 + epoch
            for x in loader:
                optimizer.zero_grad()
                model(x.cuda()).sum().backward()
                optimizer.step()
    """
    check_noop(source, reason="is changed while it is in use")


def test_no_loader(check_noop: Check) -> None:
    check_noop(script(loader="batches()"), reason="come from no DataLoader")


def test_sizes_that_are_drawn_in_the_step(check_noop: Check) -> None:
    more = "import random; x = nn.functional.interpolate(x, size=random.choice([32, 64]))"
    check_noop(script(more=more), reason="sizes may be drawn")


@pytest.mark.parametrize(
    "resized",
    [
        "nn.functional.interpolate(x, scale_factor=2, mode='nearest')",
        "nn.functional.interpolate(x, x.shape[-2:], mode='nearest')",
        "nn.functional.interpolate(x, size=(height * 2, int(width / 2)))",
        "nn.functional.interpolate(input=x, size=SIDE)",
        "transforms.Resize((32, 32))(x)",
        "net.upsample(x)",
    ],
)
def test_sizes_that_are_not_drawn_beside_other_draws(
    check_transformed: Check, resized: str
) -> None:
    more = f"height, width = x.size()[2:]; t = torch.randint(0, 9, (8,)); x = {resized}"
    setup = (
        "SIDE = 32\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.upsample = nn.Upsample(scale_factor=2)\n\n\nnet = Net()\ntorch.manual_seed(0)"
    )
    check_transformed(*transformed(setup=setup, more=more))


@pytest.mark.parametrize(
    "resized",
    [
        "nn.functional.interpolate(x, scale_factor=float(torch.rand(1)))",
        "nn.functional.interpolate(x, size=(side, side))",
        "nn.functional.interpolate(x, **sizes)",
        "x.resize_(side)",
        "x.resize((side, side))",
        "nn.functional.interpolate(x, size=x.shape[side:])",
    ],
)
def test_sizes_that_may_be_drawn(check_noop: Check, resized: str) -> None:
    more = f"side = int(torch.randint(0, 9, (1,))); sizes = dict(size=side); x = {resized}"
    check_noop(script(more=more), reason="sizes may be drawn")


def test_a_mask_that_picks_samples(check_noop: Check) -> None:
    check_noop(script(more="x = x[y > 3]"), reason="varying number")


@pytest.mark.parametrize(
    "more",
    [
        "x[x > 3] = 3",
        "import numpy as np; shown = np.array(x); print(shown[shown > 3])",
        "shown = x.cpu().numpy().copy(); print(shown[shown > 3])",
    ],
)
def test_masks_that_change_no_size_of_a_tensor(check_transformed: Check, more: str) -> None:
    check_transformed(*transformed(more=more))


def test_detection(check_noop: Check) -> None:
    model = "torchvision.models.detection.fasterrcnn_resnet50_fpn()"
    check_noop(script(model=model), reason="own sizes")


def test_evaluation_on_whole_images(check_noop: Check) -> None:
    source = script() + (
        f"test_loader = DataLoader({folder('transforms.ToTensor()')}, batch_size=1)\n"
        "model.eval()\nwith torch.no_grad():\n    for x, y in test_loader:\n        print(model(x.to(device)))\n"
    )
    check_noop(source, reason="may differ in size")


def test_a_loop_over_whole_images_in_which_no_network_is_seen(check_noop: Check) -> None:
    source = script() + (
        f"test_loader = DataLoader({folder('transforms.ToTensor()')}, batch_size=1)\n"
        "for x, y in test_loader:\n    print(registry[name](x.to(device)))\n"
    )
    check_noop(source, reason="may differ in size")


def test_no_convolutions(check_noop: Check) -> None:
    check_noop(script(model="nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))"))


@pytest.mark.parametrize(
    "setup",
    [
        "torch.backends.cudnn.deterministic = True",
        "if args.seed:\n    torch.backends.cudnn.deterministic = True",
        "torch.use_deterministic_algorithms(mode)",
        "import os\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':16:8'",
        "def unused():\n    setattr(torch.backends.cudnn, 'deterministic', True)",
    ],
)
def test_determinism_is_asked_for(check_noop: Check, setup: str) -> None:
    check_noop(script(setup), reason="determinism")


@pytest.mark.parametrize(
    "setup",
    [
        "torch.manual_seed(0)\ntorch.backends.cudnn.deterministic = True\ntorch.backends.cudnn.benchmark = False",
        "torch.backends.cudnn.benchmark = True",
        "from torch.backends import cudnn\ncudnn.deterministic, cudnn.benchmark = True, False",
        "import torch.backends.cudnn as c\nc.enabled = False",
        "with torch.backends.cudnn.flags(enabled=False):\n    pass",
    ],
)
def test_the_script_decides_by_itself(check_noop: Check, setup: str) -> None:
    check_noop(script(setup))


def test_determinism_switched_off_is_no_wish_for_it(check_transformed: Check) -> None:
    setup = "torch.manual_seed(0)\ntorch.backends.cudnn.deterministic = False"
    check_transformed(*transformed(setup=setup))


def test_a_script_for_the_cpu(check_noop: Check) -> None:
    source = script().replace("cuda", "cpu").replace("torch.cpu.is_available()", "True")
    check_noop(source, reason="does not use a GPU")


def test_convolutions_of_another_file(check_transformed: Check) -> None:
    train, after = transformed(model="Net(8)", setup="from model import *\n\ntorch.manual_seed(0)")
    model = """\
        from torch import nn


        def block(n):
            return nn.Sequential(nn.Conv2d(3, n, 3), nn.ReLU())


        class Net(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.body = block(n)
                self.head = nn.Linear(7200, 10)

            def forward(self, x):
                return self.head(self.body(x).flatten(1))
    """
    check_transformed(
        {"train.py": train, "model.py": model}, {"train.py": after, "model.py": model}
    )


def test_next_to_tf32(check_with: Check) -> None:
    model = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), *[nn.Linear(9, 9) for _ in n], nn.Linear(9, 1), nn.Linear(1, 1), nn.Linear(1, 1))"
    before = script(model=model)
    after = script(
        f'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")\n{FLAG}', model=model
    )
    check_with(["tf32", "cudnn-benchmark"], before, after)


@pytest.mark.slow
@pytest.mark.torch
def test_verified(check_verified: Check) -> None:
    check_verified(
        """\
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        data = TensorDataset(torch.randn(20, 3, 8, 8), torch.randint(2, (20,)))
        loader = DataLoader(data, batch_size=8, shuffle=True)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
        """
    )


def test_rather_in_the_script_than_in_its_launcher(check_transformed: Check) -> None:
    """The launcher starts the training in two ways: what either sets does not reach the other."""
    head, _, body = script(setup="").partition("\n\n")
    body = "".join(f"    {line}\n" if line else "\n" for line in body.split("\n"))
    launcher = """\
import torch


def launch(fn, gpus):
    if gpus > 1:
        torch.multiprocessing.spawn(worker, args=(fn,), nprocs=gpus)
    else:
        fn()


def worker(rank, fn):
    fn()
"""
    before = f"{head}\nfrom launcher import launch\n\n\ndef main():\n{body.rstrip()}\n\n\nlaunch(main, 1)\n"
    check_transformed(
        {"train.py": before, "launcher.py": launcher},
        {
            "train.py": before.replace("    loader =", f"    {FLAG}\n    loader ="),
            "launcher.py": launcher,
        },
    )


def test_in_the_process_that_trains(check_transformed: Check) -> None:
    before = f"""\
        import torch
        import torchvision
        import torch.multiprocessing as mp
        from torch import nn
        from torch.utils.data import DataLoader
        from torchvision import transforms

        def worker(rank, seed):
            torch.manual_seed(seed)
            loader = DataLoader({CIFAR}, batch_size=64)
            model = {CONVOLUTIONS}.to(rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.to(rank)), y.to(rank)).backward()
                optimizer.step()

        if __name__ == "__main__":
            mp.spawn(worker, args=(0,), nprocs=torch.cuda.device_count())
    """
    seed = "            torch.manual_seed(seed)\n"
    check_transformed(before, before.replace(seed, f"{seed}            {FLAG}\n"))
