from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

Check = Callable[..., None]
SCRIPT = """
{imports}import glob
import io
import os
import random
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROOT = "data"


{cls}class Own(Dataset):
    def __init__(self, root):
{init}

    def __len__(self):
        return 4

    def __getitem__(self, index):
{item}


loader = DataLoader(Own(ROOT), batch_size=2)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
"""
CLASS = '''\
class FilesInMemory:
    """The contents of files in one tensor, which DataLoader workers share."""

    def __init__(self, paths):
        self.places, end = {}, 0
        for path in dict.fromkeys(paths):
            if os.path.isfile(path):
                start, end = end, end + os.path.getsize(path)
                self.places[path] = slice(start, end)
        self.data = torch.empty(end, dtype=torch.uint8)
        for path, place in self.places.items():
            with open(path, "rb") as f:
                f.readinto(self.data[place].numpy())

    def open(self, path):
        if path not in self.places:
            return open(path, "rb")
        return io.BytesIO(self.data[self.places[path]].numpy())


'''
PATHS = "self.paths = sorted(glob.glob(root))"


def script(init: str, item: str, cls: str = "") -> str:
    return SCRIPT.format(
        init=indent(init, " " * 8), item=indent(item, " " * 8), cls=cls, imports=""
    )


@pytest.mark.parametrize(
    ("init", "item", "kept", "read"),
    [
        (
            PATHS,
            "return Image.open(self.paths[index])",
            "self.paths",
            "return Image.open(self.files.open(self.paths[index]))",
        ),
        (
            PATHS,
            "path = self.paths[index]\nreturn np.load(path)",
            "self.paths",
            "path = self.paths[index]\nreturn np.load(self.files.open(path))",
        ),
        (
            PATHS,
            'with open(self.paths[index], "rb") as f:\n    return Image.open(f).convert("RGB")',
            "self.paths",
            'with self.files.open(self.paths[index]) as f:\n    return Image.open(f).convert("RGB")',
        ),
        (
            PATHS,
            "return Image.open(self.paths[index % 3])",
            "self.paths",
            "return Image.open(self.files.open(self.paths[index % 3]))",
        ),
        (
            "self.samples = []\nfor path in glob.glob(root):\n    self.samples.append((path, 0))",
            "path, target = self.samples[index]\nreturn torch.load(path, weights_only=True), target",
            "[path for path, _ in self.samples]",
            "path, target = self.samples[index]\n"
            "return torch.load(self.files.open(path), weights_only=True), target",
        ),
        (
            "self.root = Path(root)\nself.names = os.listdir(root)",
            'return Image.open(self.root / "images" / self.names[index])',
            '[self.root / "images" / name for name in self.names]',
            'return Image.open(self.files.open(self.root / "images" / self.names[index]))',
        ),
        (
            "self.names = os.listdir(root)",
            "name = self.names[index]\npath = os.path.join(ROOT, name)\nreturn Image.open(path)",
            "[os.path.join(ROOT, name) for name in self.names]",
            "name = self.names[index]\npath = os.path.join(ROOT, name)\n"
            "return Image.open(self.files.open(path))",
        ),
        (
            'self.rows = [{"file": f} for f in glob.glob(root)]',
            'row = self.rows[index]\nreturn Image.open(row["file"])',
            '[row["file"] for row in self.rows]',
            'row = self.rows[index]\nreturn Image.open(self.files.open(row["file"]))',
        ),
        (
            "self.ids = list(range(4))\nself.root = root",
            'return Image.open(f"{self.root}/{self.ids[index]}.png")',
            '[f"{self.root}/{name}.png" for name in self.ids]',
            'return Image.open(self.files.open(f"{self.root}/{self.ids[index]}.png"))',
        ),
    ],
)
def test_keeps_the_files(
    check_transformed: Check, init: str, item: str, kept: str, read: str
) -> None:
    after = script(f"{init}\nself.files = FilesInMemory({kept})", read, CLASS)
    check_transformed(script(init, item), after)


def test_image_and_mask(check_transformed: Check) -> None:
    init = "self.images = sorted(glob.glob(root))\nself.masks = sorted(glob.glob(root))"
    item = "image = Image.open(self.images[index])\nreturn image, Image.open(self.masks[index])"
    check_transformed(
        script(init, item),
        script(
            f"{init}\nself.files = FilesInMemory([*self.images, *self.masks])",
            "image = Image.open(self.files.open(self.images[index]))\n"
            "return image, Image.open(self.files.open(self.masks[index]))",
            CLASS,
        ),
    )


def test_in_another_file_with_other_names(check_transformed: Check) -> None:
    entry = SCRIPT[SCRIPT.index("loader =") :]
    files = {
        "train.py": "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n"
        f"from data import Own\n\nROOT = 'data'\n{entry}",
        "data.py": """
            import glob
            import torch as th
            from PIL import Image

            class Own:
                def __init__(self, root):
                    self.paths = glob.glob(root + '/*.png')

                def __len__(self):
                    return len(self.paths)

                def __getitem__(self, i):
                    return th.ones(len(Image.open(self.paths[i]).size))
        """,
    }
    after = {
        "data.py": """
            import glob
            import io
            import os
            import torch as th
            from PIL import Image


            class FilesInMemory:
                \"\"\"The contents of files in one tensor, which DataLoader workers share.\"\"\"

                def __init__(self, paths):
                    self.places, end = {}, 0
                    for path in dict.fromkeys(paths):
                        if os.path.isfile(path):
                            start, end = end, end + os.path.getsize(path)
                            self.places[path] = slice(start, end)
                    self.data = th.empty(end, dtype=th.uint8)
                    for path, place in self.places.items():
                        with open(path, 'rb') as f:
                            f.readinto(self.data[place].numpy())

                def open(self, path):
                    if path not in self.places:
                        return open(path, 'rb')
                    return io.BytesIO(self.data[self.places[path]].numpy())


            class Own:
                def __init__(self, root):
                    self.paths = glob.glob(root + '/*.png')
                    self.files = FilesInMemory(self.paths)

                def __len__(self):
                    return len(self.paths)

                def __getitem__(self, i):
                    return th.ones(len(Image.open(self.files.open(self.paths[i])).size))
        """,
    }
    check_transformed(files, {"train.py": files["train.py"], **after})


@pytest.mark.parametrize(
    ("init", "item", "reason"),
    [
        (PATHS, "return Image.open(random.choice(self.paths))", "is not known"),
        (PATHS, "return Image.open(self.paths[index:])", "more than one element"),
        (
            PATHS,
            "path = self.paths[index]\nif index:\n    path = 'x'\nreturn Image.open(path)",
            "not followed",
        ),
        (PATHS, "return Image.open(f'{index}.png')", "where `index` comes from"),
        (PATHS, "return Image.open('one.png')", "not picked from a list"),
        (PATHS, "return open(self.paths[index]).read()", "opened as text"),
        (PATHS, "return open(self.paths[index], 'rb', 0).read()", "opened as text"),
        (
            PATHS,
            "image = Image.open(self.paths[index])\nreturn image, image.filename",
            "`image.filename` asks for the file itself",
        ),
        (
            PATHS,
            "with open(self.paths[index], 'rb') as f:\n    return f.read(), f.name",
            "`f.name` asks for the file itself",
        ),
        (PATHS, "return np.load(self.paths[index], mmap_mode='r')", "mapped into memory"),
        (PATHS, "return cv2.imread(self.paths[index])", "takes a path and no bytes"),
        ("self.paths = root", "return Image.open(self.paths[index])", "not seen to be a list"),
        (
            "self.paths = {0: 'a.png'}",
            "return Image.open(self.paths[index])",
            "not seen to be a list",
        ),
        (
            "if root:\n    self.paths = glob.glob(root)",
            "return Image.open(self.paths[index])",
            "does not always set",
        ),
        (
            f"{PATHS}\nif not self.paths:\n    return",
            "return Image.open(self.paths[index])",
            "may return before its end",
        ),
        (
            PATHS,
            "image = Image.open(self.paths[index])\nimage.save(self.paths[index])\nreturn image",
            "writes files too",
        ),
        (
            "ROOT = 'other'\nself.names = os.listdir(root)",
            "return Image.open(os.path.join(ROOT, self.names[index]))",
            "means something else",
        ),
        (
            PATHS + "\nself.other = os.listdir(root)",
            "return Image.open(os.path.join(self.other[index], self.paths[index]))",
            "several elements",
        ),
        (PATHS, "return Image.open(self.where(self.paths[index]))", "is not known"),
    ],
)
def test_refusals(check_noop: Check, init: str, item: str, reason: str) -> None:
    check_noop(script(init, item), reason)


def test_refuses_where_open_is_another_function(check_noop: Check) -> None:
    source = script(PATHS, "return Image.open(self.paths[index])")
    check_noop(source.replace("import cv2", "from PIL.Image import open"), "`open`")


def test_leaves_open_files_alone(check_noop: Check) -> None:
    check_noop(script("self.paths = [io.BytesIO(b'')]", "return Image.open(self.paths[index])"))
    check_noop(
        script("self.paths = [object()]", "return Image.open(self.paths[index])"), "holds paths"
    )


def test_refuses_what_a_function_opens(check_noop: Check) -> None:
    cls = "def load(path):\n    return Image.open(path)\n\n\n"
    check_noop(script(PATHS, "return load(self.paths[index])", cls), "`__getitem__` calls")


def test_refuses_a_class_that_others_derive_from(check_noop: Check) -> None:
    source = script(PATHS, "return Image.open(self.paths[index])")
    check_noop(source + "\n\nclass Sub(Own):\n    def __init__(self): ...\n", "`Sub` derives from")


def test_refuses_a_dataset_that_is_gone_over_once(check_noop: Check) -> None:
    source = script(PATHS, "return Image.open(self.paths[index])")
    check_noop(source.replace("for epoch in range(3):", "if True:"), "gone over once")


def test_silent_about_datasets_without_files(rewrite: Callable[..., object]) -> None:
    result = rewrite(script(PATHS, "return torch.ones(2) * index"), ["ram-dataset"])
    assert not result.files[0].skips  # pyright: ignore


def test_two_datasets_of_a_file_share_the_class(rewrite: Callable[..., object]) -> None:
    source = script(PATHS, "return Image.open(self.paths[index])")
    second = source[source.index("class Own") : source.index("loader =")].replace("Own", "Other")
    loop = "\nothers = DataLoader(Other(ROOT))\nfor epoch in range(3):\n    for batch in others:\n        model(batch)\n"
    result = rewrite(source.replace("loader =", f"{second}loader =") + loop, ["ram-dataset"])
    text = result.files[0].text  # pyright: ignore
    assert text.count("class FilesInMemory") == 1
    assert text.count("self.files = FilesInMemory(self.paths)") == 2


@pytest.mark.slow
@pytest.mark.torch
def test_trains_the_same(check_verified: Check) -> None:
    check_verified("""
        import os
        import numpy as np
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, Dataset


        class Arrays(Dataset):
            def __init__(self, folder):
                self.folder = folder
                self.items = [(f"{i}.npy", i % 2) for i in range(12)]

            def __len__(self):
                return len(self.items)

            def __getitem__(self, index):
                name, label = self.items[index]
                return torch.from_numpy(np.load(os.path.join(self.folder, name))), label


        def main():
            torch.manual_seed(0)
            os.makedirs("arrays", exist_ok=True)
            for i in range(12):
                np.save(f"arrays/{i}.npy", np.full(4, i / 12, dtype=np.float32))
            loader = DataLoader(Arrays("arrays"), batch_size=4, shuffle=True, num_workers=2)
            model = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                print(epoch, loss.item())


        if __name__ == "__main__":
            main()
    """)
