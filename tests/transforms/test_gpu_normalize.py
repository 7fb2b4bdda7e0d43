"""Images stay bytes until they are on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

IMPORTS = """\
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, random_split
from torchvision import datasets, transforms
"""
DEVICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
NORMALIZE = "transforms.Normalize([0.49, 0.48, 0.45], [0.2, 0.3, 0.4])"
TAIL = f"transforms.ToTensor(), {NORMALIZE}"
TRANSFORM = f"transform = transforms.Compose([transforms.Resize(32), {TAIL}])\n"
CIFAR = 'dataset = datasets.CIFAR10("data", transform=transform)\n'
LOADER = "loader = DataLoader(dataset, batch_size=4, num_workers=2)\n"
MODEL = "model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)\n"
LOOP = """\
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)
    model(images).sum().backward()
"""
HELPER = """\
mean = torch.tensor([0.49, 0.48, 0.45], device=device).view(3, 1, 1)
std = torch.tensor([0.2, 0.3, 0.4], device=device).view(3, 1, 1)


# ToTensor and Normalize, for uint8 images that are on the device already.
def normalize(images):
    return images.float().div_(255).sub_(mean).div_(std)


"""
CACHED = """\
@functools.cache
def channel_statistics(device):
    mean = torch.tensor([0.49, 0.48, 0.45], device=device).view(3, 1, 1)
    std = torch.tensor([0.2, 0.3, 0.4], device=device).view(3, 1, 1)
    return mean, std


# ToTensor and Normalize, for uint8 images that are on the device already.
def normalize(images):
    mean, std = channel_statistics(images.device)
    return images.float().div_(255).sub_(mean).div_(std)


"""
NEW_TRANSFORM = (
    "transform = transforms.Compose([transforms.Resize(32), transforms.PILToTensor()])\n"
)
NEW_LOOP = LOOP.replace("images.to(device)", "normalize(images.to(device))")
PHOTOS = """\
class Photos(Dataset):
    def __init__(self, files, transform=None):
        self.files = files
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, index
"""


def script(
    transform: str = TRANSFORM,
    dataset: str = CIFAR,
    loader: str = LOADER,
    loop: str = LOOP,
    imports: str = IMPORTS,
) -> str:
    return imports + DEVICE + dedent(transform) + dedent(dataset) + loader + MODEL + dedent(loop)


SHORT = """\
for images, labels in loader:
    images = images.to(device)
    model(images).sum().backward()
"""


def uniform(loop: str = SHORT) -> str:
    return loop.replace(
        "images.to(device)", "images.to(device).float().div_(255).sub_(0.5).div_(0.25)"
    )


# What is emitted


def test_normalization_by_channel(check_transformed: Check) -> None:
    check_transformed(
        script(),
        script(NEW_TRANSFORM, loop=HELPER + NEW_LOOP),
    )


def test_a_long_line_of_copies_stays_as_it_is(check_transformed: Check) -> None:
    copies = "images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)"
    loop = LOOP.replace("images, labels = images.to(device), labels.to(device)", copies)
    below = loop.replace(copies, f"{copies}\n    images = normalize(images)")
    check_transformed(script(loop=loop), script(NEW_TRANSFORM, loop=HELPER + below))


def test_the_comment_names_only_what_is_done(check_transformed: Check) -> None:
    loop = """\
        for images, labels in loader:
            images = images.reshape(len(images), 3072).to(device, non_blocking=True)
            model(images).sum().backward()
    """
    helper = """\


        # ToTensor, for uint8 images that are on the device already.
        def to_float(images):
            return images.float().div_(255)


    """
    new = dedent(loop).replace("    model", "    images = to_float(images)\n    model")
    without = "transform = transforms.Compose([transforms.Resize(32), {}])\n"
    check_transformed(
        script(without.format("transforms.ToTensor()"), loop=loop),
        script(without.format("transforms.PILToTensor()"), loop=dedent(helper) + new),
    )


@pytest.mark.parametrize(
    "numbers",
    [
        "(0.5,), (0.25,)",
        "(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)",
        "(0.5,) * 3, [0.25] * 3",
    ],
)
def test_equal_channels_need_no_tensors(check_transformed: Check, numbers: str) -> None:
    check_transformed(
        script(TRANSFORM.replace(NORMALIZE, f"transforms.Normalize({numbers})"), loop=SHORT),
        script(NEW_TRANSFORM, loop=uniform()),
    )


@pytest.mark.parametrize(
    ("numbers", "operations"),
    [
        ("(0.0,), (0.25,)", ".div_(0.25)"),
        ("(0.5,), (1.0,)", ".sub_(0.5)"),
        ("(0,), (1,)", ""),
    ],
)
def test_numbers_that_change_nothing_are_left_out(
    check_transformed: Check, numbers: str, operations: str
) -> None:
    check_transformed(
        script(TRANSFORM.replace(NORMALIZE, f"transforms.Normalize({numbers})"), loop=SHORT),
        script(NEW_TRANSFORM, loop=uniform().replace(".sub_(0.5).div_(0.25)", operations)),
    )


def test_a_line_that_would_get_too_long(check_transformed: Check) -> None:
    helper = """\
        # ToTensor and Normalize, for uint8 images that are on the device already.
        def normalize(images):
            return images.float().div_(255).sub_(0.5).div_(0.25)


        """
    check_transformed(
        script(TRANSFORM.replace(NORMALIZE, "transforms.Normalize([0.5], [0.25])")),
        script(NEW_TRANSFORM, loop="\n\n" + dedent(helper) + NEW_LOOP),
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "transforms.Compose([transforms.ToTensor()])",
            "transforms.Compose([transforms.PILToTensor()])",
        ),
        ("transforms.ToTensor()", "transforms.PILToTensor()"),
    ],
)
def test_to_tensor_alone(check_transformed: Check, before: str, after: str) -> None:
    loop = LOOP.replace("images.to(device)", "images.to(device).float().div_(255)")
    check_transformed(
        script(f"transform = {before}\n"), script(f"transform = {after}\n", loop=loop)
    )


def test_second_version_of_the_transforms(check_transformed: Check) -> None:
    imports = IMPORTS + "from torchvision.transforms import v2\n"
    tail = "v2.ToDtype(torch.float32, scale=True),\n    v2.Normalize(mean=[0.5], std=[0.25]),\n"
    transform = f"transform = v2.Compose([\n    v2.ToImage(),\n    v2.Resize(32),\n    {tail}])\n"
    loop = SHORT.replace(
        "images.to(device)", "images.to(device).float().mul_(1 / 255).sub_(0.5).div_(0.25)"
    )
    check_transformed(
        script(transform, imports=imports, loop=SHORT),
        script(
            "transform = v2.Compose([\n    v2.ToImage(),\n    v2.Resize(32),\n])\n",
            loop=loop,
            imports=imports,
        ),
    )


def test_names_imported_from_the_transforms(check_transformed: Check) -> None:
    imports = "import torch as th\nfrom torch import nn\nfrom torch.utils.data import DataLoader\nfrom torchvision import datasets\n"
    before = "from torchvision.transforms import Compose, Normalize, Resize, ToTensor\n"
    after = "from torchvision.transforms import Compose, PILToTensor, Resize\n"
    device = DEVICE.replace("torch", "th")
    transform = "transform = Compose([Resize(32), ToTensor(), Normalize([0.5], [0.25])])\n"
    rest = CIFAR + LOADER + MODEL
    check_transformed(
        imports + before + device + transform + rest + SHORT,
        imports
        + after
        + device
        + "transform = Compose([Resize(32), PILToTensor()])\n"
        + rest
        + uniform(),
    )


def test_constants_keep_their_names(check_transformed: Check) -> None:
    names = "MEAN = (0.49, 0.48, 0.45)\nSTD = (0.2, 0.3, 0.4)\n"
    helper = HELPER.replace("[0.49, 0.48, 0.45]", "MEAN").replace("[0.2, 0.3, 0.4]", "STD")
    check_transformed(
        script(names + TRANSFORM.replace(NORMALIZE, "transforms.Normalize(mean=MEAN, std=STD)")),
        script(names + NEW_TRANSFORM, loop=helper + NEW_LOOP),
    )


NAMED_HELPER = """\


@functools.cache
def channel_statistics(device):
    {prefix}mean = torch.tensor({mean}, device=device).view(3, 1, 1)
    {prefix}std = torch.tensor({std}, device=device).view(3, 1, 1)
    return {prefix}mean, {prefix}std


# ToTensor and Normalize, for uint8 images that are on the device already.
def normalize(images):
    {prefix}mean, {prefix}std = channel_statistics(images.device)
    return images.float().div_(255).sub_({prefix}mean).div_({prefix}std)


"""


@pytest.mark.parametrize(
    ("setup", "mean", "std", "prefix"),
    [
        # What the helper makes of a global list must not hide it.
        ("mean = [0.49, 0.48, 0.45]\nstd = [0.2, 0.3, 0.4]\n", "mean", "std", "image_"),
        # Settings are read where they are kept, equal or not.
        ("import config as cf\n", "cf.mean", "cf.std", ""),
        ("from config import mean, std\n", "mean", "std", "image_"),
    ],
)
def test_names_of_lists_and_settings(
    check_transformed: Check, setup: str, mean: str, std: str, prefix: str
) -> None:
    config = "mean = [0.48, 0.48, 0.48]\nstd = [0.2, 0.2, 0.2]\n"
    helper = NAMED_HELPER.format(mean=mean, std=std, prefix=prefix)
    loop = LOOP.replace("images.to(device)", "images.cuda()")
    normalize = f"transforms.Normalize({mean}, {std})"
    before = script(TRANSFORM.replace(NORMALIZE, normalize), loop=loop, imports=IMPORTS + setup)
    after = script(
        NEW_TRANSFORM,
        loop=helper + loop.replace("images.cuda()", "normalize(images.cuda())"),
        imports="import functools\n\n" + IMPORTS + setup,
    )
    check_transformed(
        {"train.py": before, "config.py": config}, {"train.py": after, "config.py": config}
    )


def test_a_shared_normalize_goes_with_its_last_use(check_transformed: Check) -> None:
    shared = f"norm = {NORMALIZE}\n"
    check_transformed(
        script(shared + TRANSFORM.replace(NORMALIZE, "norm")),
        script(NEW_TRANSFORM, loop=HELPER + NEW_LOOP),
    )


def test_a_normalize_used_elsewhere_stays(check_transformed: Check) -> None:
    shared = f"norm = {NORMALIZE}\n"
    check_transformed(
        script(shared + TRANSFORM.replace(NORMALIZE, "norm") + "print(norm)\n"),
        script(shared + NEW_TRANSFORM + "print(norm)\n", loop=HELPER + NEW_LOOP),
    )


@pytest.mark.parametrize("removed", ["", "  # to [-1, 1]"])
@pytest.mark.parametrize("comma", ["", ","])
def test_comments_in_the_list_stay(check_transformed: Check, removed: str, comma: str) -> None:
    before = f"transform = transforms.Compose([\n    transforms.ToTensor(),  # to [0, 1]\n    transforms.Normalize([0.5], [0.25]){comma}{removed}\n])\n"
    after = "transform = transforms.Compose([\n    transforms.PILToTensor(),  # to [0, 1]\n])\n"
    check_transformed(script(before, loop=SHORT), script(after, loop=uniform()))


def test_the_comment_of_what_is_removed_goes_with_it(check_transformed: Check) -> None:
    before = "transform = transforms.Compose([\n    transforms.ToTensor(),\n    transforms.Normalize([0.5], [0.25]),  # to [-1, 1]\n])\n"
    after = "transform = transforms.Compose([\n    transforms.PILToTensor(),\n])\n"
    check_transformed(script(before, loop=SHORT), script(after, loop=uniform()))


FUNCTIONS = """\
def train(model, loader, device):
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        model(images).sum().backward()


def evaluate(model, loader, device):
    with torch.no_grad():
        for i, batch in enumerate(loader):
            x, y = batch
            print(x.size(0), model(x.to(device)).sum())


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_transform = transforms.Compose([transforms.RandomHorizontalFlip(), {tail}])
    test_transform = transforms.Compose([{tail}])
    train_set = Photos(["a.jpg"], train_transform)
    test_set = Photos(["b.jpg"], transform=test_transform)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
    train(model, DataLoader(train_set, 4), device)
    evaluate(model, DataLoader(test_set, 4), device)
    print(len(train_set), train_set.files)


main()
"""


def test_functions_share_a_helper(check_transformed: Check) -> None:
    after = FUNCTIONS.format(tail="transforms.PILToTensor()")
    copy = "images = images.to(device, non_blocking=True)\n"
    after = after.replace(copy, f"{copy}        images = normalize(images)\n")
    after = after.replace("x.to(device)", "normalize(x.to(device))")
    check_transformed(
        IMPORTS + "\n\n" + PHOTOS + "\n\n" + FUNCTIONS.format(tail=TAIL),
        "import functools\n\n" + IMPORTS + "\n\n" + PHOTOS + "\n\n" + CACHED + after,
    )


def test_no_tensor_on_the_gpu_where_worker_processes_import_the_file(
    check_transformed: Check,
) -> None:
    loop = """\
        @torch.no_grad()
        def evaluate():
            for images, labels in loader:
                images = images.to(device)
                print(model(images).sum())


        if __name__ == "__main__":
            evaluate()
        """
    new = dedent(loop).replace("        print", "        images = normalize(images)\n        print")
    check_transformed(
        script(loop=loop),
        script(NEW_TRANSFORM, loop="\n\n" + CACHED + new, imports="import functools\n\n" + IMPORTS),
    )


def test_over_files(check_transformed: Check) -> None:
    data = f"""\
        from torch.utils.data import DataLoader
        from torchvision import datasets, transforms

        def loaders(size):
            t = transforms.Compose([{TAIL}])
            sets = {{x: datasets.ImageFolder(x, t) for x in ["train", "val"]}}
            return {{x: DataLoader(sets[x], batch_size=4) for x in ["train", "val"]}}
        """
    train = """\
        import torch
        from torch import nn
        from data import loaders

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
        both = loaders(32)
        for phase in ["train", "val"]:
            for inputs, labels in both[phase]:
                inputs = inputs.to(device)
                model(inputs).sum().backward()
        """
    new_train = dedent(train).replace("both = loaders(32)\n", "both = loaders(32)\n" + HELPER)
    check_transformed(
        {"train.py": train, "data.py": data},
        {
            "train.py": new_train.replace(
                "        model(", "        inputs = normalize(inputs)\n        model("
            ),
            "data.py": dedent(data).replace(TAIL, "transforms.PILToTensor()"),
        },
    )


def test_a_shared_normalize_of_a_function_goes_whatever_other_files_name(
    check_transformed: Check,
) -> None:
    data = f"""\
        from torch.utils.data import DataLoader
        from torchvision import datasets, transforms

        def loaders():
            norm = {NORMALIZE}
            return DataLoader(datasets.ImageFolder("x", transforms.Compose([transforms.ToTensor(), norm])))
        """
    train = """\
        import torch
        from torch import nn
        from data import *

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)).to(device)
        norm = 2
        for inputs, labels in loaders():
            model(inputs.to(device)).norm(p=norm).backward()
        """
    new_data = dedent(data).replace(f"    norm = {NORMALIZE}\n", "")
    new_data = new_data.replace("transforms.ToTensor(), norm", "transforms.PILToTensor()")
    new_train = dedent(train).replace("norm = 2\n", "norm = 2\n" + HELPER)
    check_transformed(
        {"train.py": train, "data.py": data},
        {
            "train.py": new_train.replace("inputs.to(device)", "normalize(inputs.to(device))"),
            "data.py": new_data,
        },
    )


def test_list_that_the_dataset_composes(check_transformed: Check) -> None:
    dataset = PHOTOS.replace("transform=None", "transforms_=None").replace(
        "self.transform = transform\n", "self.transform = transforms.Compose(transforms_)\n"
    )
    items = dataset.replace("return image, index", 'return {"hr": image, "index": index}')
    use = 'loader = DataLoader(Photos(["a.jpg"], transforms_=tail), 4)\n'
    loop = 'for i, batch in enumerate(loader):\n    hr = batch["hr"].cuda()\n    model(hr).sum().backward()\n'
    check_transformed(
        script(
            "tail = [transforms.ToTensor(), transforms.Normalize([0.5], [0.25])]\n",
            items,
            use,
            loop,
        ),
        script(
            "tail = [transforms.PILToTensor()]\n",
            items,
            use,
            loop.replace(".cuda()", ".cuda().float().div_(255).sub_(0.5).div_(0.25)"),
        ),
    )


def test_memory_format_of_the_copy(check_transformed: Check) -> None:
    copy = "images.to(device, memory_format=torch.channels_last)"
    check_transformed(
        script(
            "transform = transforms.ToTensor()\n", loop=SHORT.replace("images.to(device)", copy)
        ),
        script(
            "transform = transforms.PILToTensor()\n",
            loop=SHORT.replace("images.to(device)", f"{copy}.float().div_(255)"),
        ),
    )


@pytest.mark.parametrize("start", ["iter(loader)", "loader.__iter__()"])
def test_batches_taken_by_hand(check_transformed: Check, start: str) -> None:
    loop = f"""\
        batches = {start}
        for step in range(100):
            try:
                images, labels = next(batches)
            except StopIteration:
                batches = {start}
                images, labels = next(batches)
            model(images.to(device)).sum().backward()
        """
    check_transformed(
        script("transform = transforms.ToTensor()\n", loop=loop),
        script(
            "transform = transforms.PILToTensor()\n",
            loop=loop.replace("images.to(device)", "images.to(device).float().div_(255)"),
        ),
    )


def test_a_step_for_the_batches_of_two_loaders(check_transformed: Check) -> None:
    loader = "other = datasets.CIFAR10('data', transform=transforms.ToTensor())\n" + LOADER
    loop = """\
        def step(images):
            return model(images.to(device)).sum()


        for images, labels in loader:
            step(images).backward()
        for images, labels in DataLoader(other, 4):
            print(step(images).item())
        """
    check_transformed(
        script("transform = transforms.ToTensor()\n", loader=loader, loop=loop),
        script(
            "transform = transforms.PILToTensor()\n",
            loader=loader.replace("ToTensor", "PILToTensor"),
            loop=loop.replace("images.to(device)", "images.to(device).float().div_(255)"),
        ),
    )


def test_every_way_out_of_an_item(check_transformed: Check) -> None:
    dataset = PHOTOS.replace(
        "        return image, index",
        "        if index:\n            return image, index\n        return image, -index",
    )
    dataset += 'dataset = Photos(["a.jpg"], transform)\n'
    check_transformed(
        script("transform = transforms.ToTensor()\n", dataset, loop=SHORT),
        script(
            "transform = transforms.PILToTensor()\n",
            dataset,
            loop=SHORT.replace("images.to(device)", "images.to(device).float().div_(255)"),
        ),
    )


def test_splits_and_single_batches(check_transformed: Check) -> None:
    loader = (
        "train_set, rest = random_split(dataset, [10, 5])\n"
        "loader = DataLoader(train_set, 4)\n"
        "first, _ = next(iter(DataLoader(Subset(rest, [1, 2]), 4)))\n"
        "print(first.shape, len(loader.dataset), dataset.classes, dataset[0][0].shape)\n"
    )
    transform = "transform = transforms.ToTensor()\n"
    check_transformed(
        script(transform, loader=loader),
        script(
            transform.replace("ToTensor", "PILToTensor"),
            loader=loader,
            loop=LOOP.replace("images.to(device)", "images.to(device).float().div_(255)"),
        ),
    )


def test_dtype_of_the_copy(check_transformed: Check) -> None:
    loop = SHORT.replace(
        "images.to(device)", "images.to(device, dtype=torch.float32, non_blocking=True)"
    )
    after = SHORT.replace(
        "images.to(device)", "images.to(device, non_blocking=True).float().div_(255)"
    )
    check_transformed(
        script("transform = transforms.ToTensor()\n", loop=loop),
        script("transform = transforms.PILToTensor()\n", loop=after),
    )


@pytest.mark.parametrize("targets", ["images, labels", "images"])
def test_dtype_of_a_copy_that_is_normalized_below(
    rewrite: Callable[..., RewriteResult], targets: str
) -> None:
    moved = "{}.to(device, dtype=torch.{}, non_blocking=True, memory_format=torch.channels_last)"
    copies = [moved.format("images", "float32"), "labels.to(device, dtype=torch.int64)"]
    copies = copies[: targets.count(",") + 1]
    copied = f"{targets} = {', '.join(copies)}"
    loop = SHORT.replace("images = images.to(device)", copied)
    (file,) = rewrite(script(loop=loop), ["gpu-normalize"]).files
    copied = copied.replace(" dtype=torch.float32,", "")
    assert f"    {copied}\n    images = normalize(images)\n" in file.text


def test_mnist_flattened_before_the_copy(check_transformed: Check) -> None:
    dataset = CIFAR.replace("CIFAR10", "MNIST")
    loop = SHORT.replace("images.to(device)", "images.view(-1, 784).to(device)")
    after = loop.replace(".to(device)", ".to(device).float().div_(255).sub_(0.1).div_(0.3)")
    check_transformed(
        script(
            f"transform = transforms.Compose([{TAIL}])\n".replace(
                NORMALIZE, "transforms.Normalize((0.1,), (0.3,))"
            ),
            dataset,
            loop=loop,
        ),
        script("transform = transforms.Compose([transforms.PILToTensor()])\n", dataset, loop=after),
    )


# What is left alone: the transforms


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (f"{TAIL}, transforms.RandomErasing()", "`transforms.RandomErasing()` works on the floats"),
        (f"transforms.ToTensor(), transforms.RandomErasing(), {NORMALIZE}", "RandomErasing"),
        ("transforms.ToTensor(), transforms.Lambda(lambda x: x * 2)", "works on the floats"),
        ("transforms.ToTensor(), lambda x: x + torch.rand(3, 32, 32)", "works on the floats"),
        (f"{TAIL}, {NORMALIZE}", "not written out"),
        (f"transforms.Lambda(lambda x: x), {TAIL}", "what `transforms.Lambda(lambda x: x)` makes"),
        (f"lambda x: x, {TAIL}", "what `lambda x: x` makes"),
        (f"transforms.ToPILImage(), {TAIL}", "ToPILImage"),
        (f"transforms.RandomApply([lambda x: x]), {TAIL}", "RandomApply"),
        ("transforms.ToTensor(), transforms.Normalize(mean, [1.0])", "not written out"),
        ("transforms.ToTensor(), transforms.Normalize([0.5], [0.0])", "not written out"),
        ("transforms.ToTensor(), transforms.Normalize([0.5] * n, [1.0] * n)", "not written out"),
        ("transforms.ToTensor(), transforms.Normalize([0.5, 0.5], [1.0])", "not written out"),
    ],
)
def test_other_transforms(check_noop: Check, tail: str, reason: str) -> None:
    transform = f"import sys\nmean = sys.argv[1:]\ntransform = transforms.Compose([{tail}])\n"
    check_noop(script(transform), reason=reason)


@pytest.mark.parametrize(
    "more",
    [
        "ts = [{tail}]\nts.append(transforms.RandomErasing())\ntransform = transforms.Compose(ts)\n",
        "ts = [{tail}]\nts += [transforms.RandomErasing()]\ntransform = transforms.Compose(ts)\n",
        "transform = transforms.Compose([{tail}] + [transforms.RandomErasing()])\n",
        "transform = transforms.Compose([transforms.Compose([{tail}]), transforms.RandomErasing()])\n",
        "transform = transforms.Compose([{tail}])\ntransform.transforms.append(transforms.RandomErasing())\n",
        "transform = transforms.Compose([{tail}])\nprint(transform(Image.open('a.jpg').convert('RGB')).mean())\n",
        "to_tensor = transforms.ToTensor()\ntransform = transforms.Compose([to_tensor, transforms.RandomErasing()])\n",
        "transform = transforms.RandomChoice([transforms.Compose([{tail}]), transforms.ToTensor()])\n",
    ],
)
def test_transforms_used_otherwise(check_noop: Check, more: str) -> None:
    check_noop(script(more.format(tail=TAIL)), reason="images become floats in the dataset")


@pytest.mark.parametrize(
    "other",
    [
        "class Other(Dataset):\n    transform = transform\n\nprint(Other().transform(3))\n",
        "class Other(Dataset):\n    def __init__(self, t):\n        self.__dict__.update(locals())\n\nOther(transform)\n",
        "def other(t=transform):\n    return t(3)\n",
        "other = [transform]\nfor t in other:\n    t(3)\n",
        "import argparse\nargs = argparse.Namespace()\nargs.t = transform\nprint(args.t(3))\n",
        "def other():\n    global image\n    image = transform(3)\nother()\n",
    ],
)
def test_a_transform_used_twice(check_noop: Check, other: str) -> None:
    check_noop(script(dataset=CIFAR + other), reason="images become floats in the dataset")


def test_target_transform(check_noop: Check) -> None:
    dataset = CIFAR.replace(
        "transform=transform", "transform=transform, target_transform=transform"
    )
    check_noop(script(dataset=dataset), reason="its images also come from")


def test_either_of_two_transforms(check_noop: Check) -> None:
    dataset = "import sys\nother = transforms.Lambda(len)\n" + CIFAR.replace(
        "=transform", "=transform if sys.argv else other"
    )
    check_noop(script(dataset=dataset), reason="may be another transform")


def test_other_script_that_uses_the_data(check_noop: Check) -> None:
    data = IMPORTS + TRANSFORM + CIFAR + LOADER
    train = "from data import *\n" + DEVICE + MODEL + LOOP
    files = {
        "train.py": train,
        "data.py": data,
        "test.py": "from data import loader\nprint(loader)\n",
    }
    check_noop(files, reason="`test.py` uses `data.py`, too")


def test_pipelines_that_differ(check_noop: Check) -> None:
    both = """\
        other = transforms.Compose([transforms.ToTensor()])
        for dataset in [datasets.CIFAR10("data", transform=transform), datasets.CIFAR10("data", transform=other)]:
            pass
        """
    loader = "loader = DataLoader(dataset, 4)\n"
    check_noop(script(dataset=both, loader=loader), reason="images become floats")


def test_two_normalizations_at_one_copy(check_noop: Check) -> None:
    source = FUNCTIONS.format(tail=TAIL).replace("evaluate(model", "train(model")
    source = source.replace(f"[{TAIL}]", "[transforms.ToTensor()]")
    check_noop(IMPORTS + PHOTOS + source, reason="normalized otherwise")


# What is left alone: the datasets


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (CIFAR.replace("CIFAR10", "CocoDetection"), "its images also come from"),
        (CIFAR.replace("CIFAR10", "VOCSegmentation"), "its images also come from"),
        (
            'dataset = datasets.ImageFolder("d", transform, loader=open)\n',
            "its images also come from",
        ),
        ('dataset = datasets.DatasetFolder("d", open, transform=transform)\n', "also come from"),
        (CIFAR + "dataset.transform = None\n", "its dataset is also used in `dataset.transform`"),
        (CIFAR + "stats = torch.stack([x for x, _ in dataset]).mean()\n", "also used in"),
        (CIFAR + "image = dataset[0][0] * 2\n", "the host uses the images"),
        (CIFAR + "print(max(dataset[0][0].tolist()))\n", "`dataset[0][0].tolist()`"),
        (CIFAR + "loaders = dict(train=dataset)\n", "its dataset is also used"),
        (CIFAR + "both = torch.utils.data.ConcatDataset([dataset, dataset])\n", "also used"),
    ],
)
def test_other_uses_of_the_dataset(check_noop: Check, dataset: str, reason: str) -> None:
    check_noop(script(dataset=dataset), reason=reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('.convert("RGB")', "", "not known to be an image of 8 bits"),
        ('"RGB"', '"F"', "not known to be an image of 8 bits"),
        ('"RGB"', '"I;16"', "not known to be an image of 8 bits"),
        ('"RGB"', '"1"', "not known to be an image of 8 bits"),
        ('Image.open(self.files[index]).convert("RGB")', "torch.load(self.files[index])", "8 bits"),
        ("return image, index", "return image + 1, index", "works on the floats in the dataset"),
        (
            "        return image, index",
            "        if image is None:\n            return torch.zeros(3, 4, 4), -1\n        return image, index",
            "`return torch.zeros(3, 4, 4), -1` returns something else",
        ),
        ("return image, index", "return image.half(), index", "works on the floats in the dataset"),
        ("return image, index", "return (image if index else 0), index", "works on the floats"),
        (
            "    def __len__",
            "    def peek(self):\n        return self[0]\n\n    def __len__",
            "may make items",
        ),
        (
            "    def __len__",
            "    def __iter__(self):\n        yield 1\n\n    def __len__",
            "`__iter__`",
        ),
        (
            "    def __len__",
            "    def all(self):\n        return [x for x in self]\n\n    def __len__",
            "may make items",
        ),
        ("(Dataset)", "(torch.utils.data.IterableDataset)", "more than a map-style Dataset"),
        ("class Photos", "class Photos", "derives from"),
    ],
)
def test_other_datasets(check_noop: Check, old: str, new: str, reason: str) -> None:
    dataset = PHOTOS.replace(old, new)
    if reason == "derives from":
        dataset += "class More(Photos):\n    pass\n"
    check_noop(script(dataset=dataset + 'dataset = Photos(["a.jpg"], transform)\n'), reason=reason)


# What is left alone: the loaders and loops


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("loader = DataLoader(dataset, 4, collate_fn=list)\n", "made by a `collate_fn`"),
        ("loader = DataLoader(dataset, batch_size=None)\n", "no batches"),
        (
            "import sys\nloader = DataLoader(dataset, **eval(sys.argv[1]))\n",
            "may name a `collate_fn`",
        ),
        (LOADER + "print(list(loader)[0])\n", "its loader is also used in `list(loader)`"),
        (
            LOADER + "import accelerate\nloader = accelerate.Accelerator().prepare(loader)\n",
            "prepare",
        ),
        (LOADER + "class Box:\n    pass\nbox = Box()\nsetattr(box, 'loader', loader)\n", "setattr"),
    ],
)
def test_other_uses_of_the_loader(check_noop: Check, loader: str, reason: str) -> None:
    check_noop(script(loader=loader), reason=reason)


FOLLOWED = "could not be followed"


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ("for images, labels in loader:\n    model(images).sum().backward()\n", "`model(images)`"),
        (
            LOOP.replace("    images, labels", "    images = images * 2\n    images, labels"),
            "images * 2",
        ),
        (LOOP + "for images, _ in loader:\n    print(images.mean())\n", "`images.mean()`"),
        (LOOP + "x = next(iter(loader))[0]\nprint(x)\n", "`print(x)`"),
        (LOOP.replace("images.to(device)", "images.float().to(device)"), "images.float()"),
        (LOOP.replace("images.to(device)", "images.to(torch.float16)"), "mere copy"),
        (LOOP.replace("images.to(device)", "images.to(device, torch.float16)"), "mere copy"),
        (LOOP.replace("images.to(device)", "images.to(device, dtype=torch.float16)"), "mere copy"),
        (LOOP.replace("images.to(device)", "images.view(-1, 3072).to(device)"), "reshaped"),
        (LOOP.replace("images.to(device)", "images[:, :1].to(device)"), "images[:, :1]"),
        ("for batch in loader:\n    x, y = [b.to(device) for b in batch]\n", FOLLOWED),
        ("for batch in loader:\n    x, y = map(lambda b: b.to(device), batch)\n", FOLLOWED),
        (
            "def to(b):\n    return b.to(device)\nfor x, y in loader:\n    x, y = to(x), to(y)\n",
            "something else",
        ),
        (
            "import sys\nfor images, labels in loader:\n    if sys.argv:\n        images = torch.rand(4)\n    model(images.to(device))\n",
            "something else",
        ),
        (
            "for images, labels in loader:\n    pass\nmodel(torch.rand(2).to(device))\n",
            "no loop copies",
        ),
        (
            "from torchvision.utils import save_image\nfor images, labels in loader:\n    save_image(images, 'a.png')\n"
            "    model(images.to(device))\n",
            "save_image",
        ),
    ],
)
def test_other_loops(check_noop: Check, loop: str, reason: str) -> None:
    check_noop(script(loop=loop), reason=reason)


# Copies under `if use_cuda:`

USE = "use_cuda = torch.cuda.is_available()\n"
UNDER = """\
for images, labels in loader:
    if use_cuda:
        images, labels = images.cuda(), labels.cuda()
    model(images).sum().backward()
"""
UNDER_AFTER = UNDER.replace("    model", "    images = normalize(images)\n    model")


@pytest.mark.parametrize(
    ("copy", "imports"),
    [
        ("    if use_cuda:\n        images, labels = images.cuda(), labels.cuda()\n", ""),
        ("    if use_cuda:\n        images = images.to('cuda', non_blocking=True)\n", ""),
        (
            "    if use_cuda:\n        images = Variable(images.cuda())\n    else:\n        images = Variable(images)\n",
            "from torch.autograd import Variable\n",
        ),
        (
            "    if use_cuda:\n        images = images.cuda()\n    elif labels.sum() > 9:\n        images = images.to('cuda:1')\n",
            "",
        ),
        (
            "    if use_cuda:\n        with torch.no_grad():\n            images = images.cuda()\n",
            "",
        ),
        ("    if use_cuda:\n        x = images.cuda()\n    else:\n        x = images\n", ""),
    ],
)
def test_copies_under_a_test(check_transformed: Check, copy: str, imports: str) -> None:
    loop = USE + "for images, labels in loader:\n" + copy + "    {}model({}).sum().backward()\n"
    name = "x" if "x =" in copy else "images"
    after = CACHED + loop.format(f"{name} = normalize({name})\n    ", name)
    after = after.replace(CACHED + USE, USE + "\n\n" + CACHED)
    check_transformed(
        script(loop=loop.format("", name), imports=imports + IMPORTS),
        "import functools\n\n" + script(NEW_TRANSFORM, loop=after, imports=imports + IMPORTS),
    )


def test_equal_channels_below_a_test(check_transformed: Check) -> None:
    transform = TRANSFORM.replace(NORMALIZE, "transforms.Normalize([0.5], [0.25])")
    loop = USE + UNDER.replace("images.cuda()", "images.to(device, dtype=torch.float32)")
    after = USE + UNDER.replace("images.cuda()", "images.to(device)")
    scaled = "    images = images.float().div_(255).sub_(0.5).div_(0.25)\n    model"
    check_transformed(
        script(transform, loop=loop),
        script(NEW_TRANSFORM, loop=after.replace("    model", scaled)),
    )


def test_loops_with_and_without_a_test(check_transformed: Check) -> None:
    loop = """\
        def train():
        {}
        def test():
            for images, _ in loader:
                model({})
        train()
        test()
    """
    body = "".join(f"            {line}\n" for line in UNDER.splitlines())
    body_after = "".join(f"            {line}\n" for line in UNDER_AFTER.splitlines())
    before = dedent(loop.replace("        {}\n", body).replace("{}", "images.to(device)"))
    after = dedent(
        loop.replace("        {}\n", body_after).replace("{}", "normalize(images.to(device))")
    )
    check_transformed(
        script(loop=USE + before),
        "import functools\n\n" + script(NEW_TRANSFORM, loop=USE + "\n\n" + CACHED + after),
    )


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (
            "images, _ = next(iter(loader))\nfor _ in range(2):\n    if use_cuda:\n        images = images.cuda()\n"
            "    model(images)\n",
            "`images` may be of an earlier pass where `if use_cuda:` copies it",
        ),
        (
            "batches = iter(loader)\nfor i in range(9):\n    if i % 2 == 0:\n        images, _ = next(batches)\n"
            "    if use_cuda:\n        images = images.cuda()\n    model(images)\n",
            "earlier pass",
        ),
        (
            UNDER.replace("    model", "        model(images)\n    model"),
            "the host uses the images in `model(images)`",
        ),
        (
            UNDER.replace(
                "    model", "    elif len(labels):\n        images = torch.rand(4)\n    model"
            ),
            "something else",
        ),
        (
            UNDER.replace("    model", "    else:\n        images = images * 2\n    model"),
            "images * 2",
        ),
        (
            "for images, labels in loader:\n    if len(labels):\n        if use_cuda:\n            images = images.cuda()\n"
            "    model(images)\n",
            "the host uses the images in `model(images)`",
        ),
        (UNDER + "    images = torch.rand(4)\n    model(images)\nmodel(images)\n", "host uses"),
        (
            UNDER.replace(
                "    if", "    if labels.sum():\n        images = images.view(4, -1)\n    if"
            ),
            "reshaped",
        ),
        (UNDER + "    def closure():\n        return model(images)\n", "the host uses the images"),
        (
            "for images, labels in loader:\n    if use_cuda:\n        labels = labels.cuda()\n    model(images)\n",
            "the host uses the images in `model(images)`",
        ),
    ],
)
def test_no_place_below_a_test(check_noop: Check, loop: str, reason: str) -> None:
    check_noop(script(loop=USE + loop), reason=reason)


def test_a_progress_bar_in_a_with_statement(check_transformed: Check) -> None:
    bar = "with tqdm(loader, unit='batch') as bar:\n    {}    bar.set_postfix(done=1)\n"
    imports = IMPORTS + "from tqdm import tqdm\n"

    def in_bar(loop: str) -> str:
        return bar.format(loop.replace("loader", "bar").replace("\n", "\n    ").lstrip())

    before = script(loop=in_bar(LOOP), imports=imports)
    after = script(NEW_TRANSFORM, loop=HELPER + in_bar(NEW_LOOP), imports=imports)
    check_transformed(before, after)


def test_a_bar_whose_name_is_handed_on(check_noop: Check) -> None:
    loop = "with tqdm(loader) as bar:\n    elsewhere(bar)\n" + LOOP
    check_noop(
        script(loop=loop, imports=IMPORTS + "from tqdm import tqdm\n"), reason="also used in"
    )


@pytest.mark.parametrize("test", ["gpu is not None", "gpu is not None and use_cuda"])
def test_images_that_data_parallel_copies_are_normalized_by_the_workers(
    check_noop: Check, test: str
) -> None:
    """As in PyTorch's example for ImageNet: only with ``--gpu`` the loop copies them itself."""
    parallel = "gpu = None\nmodel = nn.DataParallel(model).cuda()\n"
    check_noop(
        script(loop=parallel + UNDER.replace("if use_cuda:", f"if {test}:")),
        reason="where `gpu` is None, they stay on the host until `DataParallel` copies them",
    )


def test_images_whose_size_is_asked_for_behind_the_loop(
    check_transformed: Check, check_noop: Check
) -> None:
    behind = "print(images.shape[0], len(images), images.size(0))\n"
    check_transformed(
        script(loop=LOOP + behind), script(NEW_TRANSFORM, loop=HELPER + NEW_LOOP + behind)
    )
    reason = "the host uses the images in `images.mean()`"
    check_noop(script(loop=LOOP + "print(images.mean())\n"), reason=reason)


def test_copy_shared_with_another_loader(check_noop: Check) -> None:
    other = "other = DataLoader(datasets.CIFAR10('data', transform=len), 4)\n"
    loop = """\
        def run(loader):
            for images, labels in loader:
                model(images.to(device)).sum().backward()
        run(loader)
        run(other)
        """
    check_noop(script(loader=LOADER + other, loop=loop), reason="`loader` may be something else")


@pytest.mark.parametrize(
    ("dataset", "loader", "reason"),
    [
        (
            PHOTOS + 'dataset = Photos(["a"], transform)\nmore = {"photos": Photos}\n',
            LOADER,
            "may make a",
        ),
        (
            PHOTOS + "dataset = Photos(['a'], transform)\ndef more(cls=Photos):\n    pass\n",
            LOADER,
            "may make a",
        ),
        (
            "import sys\nif len(sys.argv) > 1:\n    dataset = datasets.FakeData(8, (3, 4, 4), 2, transforms.Lambda(len))\n"
            "else:\n    " + CIFAR,
            LOADER,
            "may read `torchvision.datasets.FakeData`, too",
        ),
        (
            CIFAR,
            "import sys\n" + LOADER + "if len(sys.argv) > 1:\n    loader = open\n",
            "something else",
        ),
        (
            CIFAR,
            "import other\nloader = DataLoader(dataset, 4) if other.a else other.b()\n",
            "something else",
        ),
    ],
)
def test_loaders_that_may_give_other_images(
    check_noop: Check, dataset: str, loader: str, reason: str
) -> None:
    check_noop(script(dataset=dataset, loader=loader), reason=reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.set_default_dtype(torch.float64)\n", "default type of floats"),
        ('torch.set_default_device("cuda")\n', "made on the GPU by default"),
        (
            'import torchvision\ntorchvision.set_image_backend("accimage")\n',
            "another image backend",
        ),
    ],
)
def test_settings_of_the_script(check_noop: Check, line: str, reason: str) -> None:
    check_noop(script(line + TRANSFORM), reason=reason)


def test_scripts_for_the_cpu(check_noop: Check) -> None:
    check_noop(script().replace(DEVICE, 'device = "cpu"\n'), reason="the script does not use a GPU")


def test_lightning_hands_its_loader_to_the_trainer(check_noop: Check) -> None:
    loop = """\
        class Module(nn.Module):
            def train_dataloader(self):
                return DataLoader(dataset, 4)
        print("cuda")
        """
    check_noop(script(loop=loop), reason="images become floats")


VERIFIED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
torch.manual_seed(0)
transform = transforms.Compose([
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize([0.49, 0.48, 0.45], [0.2, 0.3, 0.4]),
])
dataset = datasets.FakeData(24, (3, 8, 8), 4, transform=transform)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in DataLoader(dataset, 4):
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    "copies",
    [
        "images, labels = images.to(device), labels.to(device)",
        "if use_cuda:\n        images, labels = images.cuda(), labels.cuda()",
    ],
)
def test_verified(check_verified: Check, copies: str) -> None:
    check_verified(
        VERIFIED.replace("images, labels = images.to(device), labels.to(device)", copies)
    )


MASKED = """\
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Masked(Dataset):
    def __init__(self, files):
        self.files = files
        self.to_tensor = transforms.{0}()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        mask = Image.open(self.files[i] + ".mask").convert("L")
        return self.to_tensor(image), self.to_tensor(mask)


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
MASKED_TRAINING = """\
loader = DataLoader(Masked(["a.png", "b.png"]), batch_size=2, num_workers=2)
other = DataLoader(Masked(["c.png"]), num_workers=2)
model = nn.Conv2d(3, 1, 3, padding=1).to(device)
{3}for images, masks in loader:
    images, masks = images.to(device, non_blocking=True), masks.to(device, non_blocking=True)
{0}    nn.functional.l1_loss(model(images), masks).backward()
for images, masks in other:
    images, masks = {1}, {2}
    nn.functional.l1_loss(model(images), masks).backward()
"""


def test_several_copies_of_a_statement_are_scaled_in_their_order(check_transformed: Check) -> None:
    images, masks = "images.to(device)", "masks.to(device)"
    below = "    images = to_float(images)\n    masks = to_float(masks)\n"
    helper = """\


# ToTensor, for uint8 images that are on the device already.
def to_float(images):
    return images.float().div_(255)


"""
    check_transformed(
        MASKED.format("ToTensor") + MASKED_TRAINING.format("", images, masks, ""),
        MASKED.format("PILToTensor")
        + MASKED_TRAINING.format(below, f"to_float({images})", f"to_float({masks})", helper),
    )
