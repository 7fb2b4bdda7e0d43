"""tensor-batches: batches of tensors in memory are cut out at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

IMPORTS = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, Subset, TensorDataset
from torch.utils.data import random_split
"""
DATA = """
x = torch.randn(50, 4)
y = torch.randint(2, (50,))
train_set = TensorDataset(x, y)
"""
MODEL = """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def script(made: str, data: str = DATA, steps: str = TRAIN, imports: str = IMPORTS) -> str:
    return f"{imports}{data}{MODEL}{made}\n{steps}"


LOADER = "loader = DataLoader(train_set, batch_size=16, shuffle=True)"
AFTER = "loader = DataLoader(train_set, batch_size=None, sampler=BatchSampler(RandomSampler(train_set), 16, drop_last=False))"


@pytest.mark.parametrize(
    ("made", "after"),
    [
        (
            "DataLoader(train_set, batch_size=16, shuffle=True)",
            "DataLoader(train_set, batch_size=None, sampler=BatchSampler(RandomSampler(train_set), 16, drop_last=False))",
        ),
        (
            "DataLoader(train_set, 16)",
            "DataLoader(\n    train_set, batch_size=None, "
            "sampler=BatchSampler(SequentialSampler(train_set), 16, drop_last=False)\n)",
        ),
        (
            "DataLoader(train_set, 16, shuffle=False, pin_memory=True)",
            "DataLoader(\n    train_set,\n    batch_size=None,\n"
            "    sampler=BatchSampler(SequentialSampler(train_set), 16, drop_last=False),\n    pin_memory=True,\n)",
        ),
        (
            "DataLoader(train_set, batch_size=size, drop_last=True, shuffle=True)",
            "DataLoader(train_set, batch_size=None, sampler=BatchSampler(RandomSampler(train_set), size, drop_last=True))",
        ),
        (
            "DataLoader(dataset=train_set, batch_size=16, shuffle=True, generator=draws)",
            "DataLoader(\n    dataset=train_set,\n    batch_size=None,\n"
            "    sampler=BatchSampler(RandomSampler(train_set, generator=draws), 16, drop_last=False),\n"
            "    generator=draws,\n)",
        ),
    ],
)
def test_the_arguments_of_a_loader(check_transformed: Check, made: str, after: str) -> None:
    before = "size = 16\ndraws = torch.Generator()\nloader = "
    check_transformed(script(before + made), script(before + after))


def test_an_order_that_the_script_chooses(check_transformed: Check) -> None:
    made = "def load(data, shuffle):\n    return DataLoader(data, batch_size=16, shuffle=shuffle)\n\n\nloader = load(train_set, True)"
    after = """\
def load(data, shuffle):
    return DataLoader(
        data,
        batch_size=None,
        sampler=BatchSampler(RandomSampler(data) if shuffle else SequentialSampler(data), 16, drop_last=False),
    )


loader = load(train_set, True)"""
    check_transformed(script(made), script(after))


def test_a_sampler_of_the_scripts_own(check_transformed: Check) -> None:
    made = "sampler = torch.utils.data.RandomSampler(train_set)\nloader = DataLoader(train_set, sampler=sampler, batch_size=16)"
    after = made.replace(
        "sampler=sampler, batch_size=16",
        "batch_size=None, sampler=BatchSampler(sampler, 16, drop_last=False)",
    )
    check_transformed(script(made), script(after))


def test_comments_beside_what_the_sampler_says_now(check_transformed: Check) -> None:
    made = """\
loader = DataLoader(
    dataset=train_set,
    batch_size=16,  # fits
    shuffle=True,  # sorted by class
    num_workers=0,  # all of it is in memory
)"""
    after = """\
loader = DataLoader(
    dataset=train_set,
    batch_size=None,
    sampler=BatchSampler(RandomSampler(train_set), 16, drop_last=False),  # fits; sorted by class
    num_workers=0,  # all of it is in memory
)"""
    check_transformed(script(made), script(after))


def test_a_size_by_position_in_a_call_of_several_lines(check_transformed: Check) -> None:
    made = """\
loader = DataLoader(
    train_set,{}
    16,
    shuffle=True,
    num_workers=0,
)"""
    after = """\
loader = DataLoader(
    train_set,
    batch_size=None,
    sampler=BatchSampler(RandomSampler(train_set), 16, drop_last=False),
    num_workers=0,
)"""
    with_comment = """\
loader = DataLoader(
    train_set,  # all of it
    None,
    sampler=BatchSampler(RandomSampler(train_set), 16, drop_last=False),
    num_workers=0,
)"""
    check_transformed(script(made.format("")), script(after))
    check_transformed(script(made.format("  # all of it")), script(with_comment))


def test_what_it_needs_is_imported(check_transformed: Check) -> None:
    imports = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
    after = "import torch\nfrom torch import nn\nfrom torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset\n"
    loader = """\
loader = DataLoader(
    train_set,
    batch_size=None,
    sampler=BatchSampler(RandomSampler(train_set), 16, drop_last=False),
)"""
    check_transformed(script(LOADER, imports=imports), script(loader, imports=after))


def test_as_the_file_spells_it(check_transformed: Check) -> None:
    imports = "import torch\nimport torch.utils.data as data\nfrom torch import nn\n"
    of = DATA.replace("TensorDataset", "data.TensorDataset")
    made = "loader = data.DataLoader(train_set, batch_size=16, shuffle=True)"
    after = (
        "loader = data.DataLoader(\n    train_set,\n    batch_size=None,\n"
        "    sampler=data.BatchSampler(data.RandomSampler(train_set), 16, drop_last=False),\n)"
    )
    check_transformed(
        script(made, data=of, imports=imports), script(after, data=of, imports=imports)
    )


def test_a_dataset_without_a_name_gets_one(check_transformed: Check) -> None:
    made = """\
train_loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x, y), batch_size=16)"""
    after = """\
train_dataset = TensorDataset(x, y)
train_loader = DataLoader(
    train_dataset, batch_size=None, sampler=BatchSampler(RandomSampler(train_dataset), 16, drop_last=False)
)
val_dataset = TensorDataset(x, y)
val_loader = DataLoader(
    val_dataset, batch_size=None, sampler=BatchSampler(SequentialSampler(val_dataset), 16, drop_last=False)
)"""
    steps = (
        TRAIN.replace("loader", "train_loader")
        + "    print(len(val_loader), [t for t in val_loader])\n"
    )
    check_transformed(
        script(made, steps=steps),
        script(after, steps=steps),
    )


def test_a_dataset_over_several_lines(check_transformed: Check) -> None:
    made = """\
def load():
    return DataLoader(TensorDataset(
        x.float(),
        y,
    ), batch_size=16)


loader = load()"""
    after = """\
def load():
    dataset = TensorDataset(
        x.float(),
        y,
    )
    return DataLoader(dataset, batch_size=None, sampler=BatchSampler(SequentialSampler(dataset), 16, drop_last=False))


loader = load()"""
    check_transformed(script(made), script(after))


def test_parts_of_a_dataset(check_transformed: Check) -> None:
    made = "parts = random_split(train_set, [40, 10])\ntrain_part, _ = parts\nloader = DataLoader(train_part, batch_size=16)"
    after = (
        made.replace(
            "batch_size=16",
            "batch_size=None, sampler=BatchSampler(SequentialSampler(train_part), 16, drop_last=False)",
        )
        .replace("(train_part, batch", "(\n    train_part, batch")
        .replace("False))", "False)\n)")
    )
    check_transformed(script(made), script(after))


OWN = """
class Rows(Dataset):
    \"\"\"Rows of tensors.\"\"\"

    def __init__(self, x, y):
        self.x = {x}
        self.y = {y}
{more}
    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        {get}


x = np.random.rand(50, 4)
y = torch.randint(2, (50,))
train_set = Rows(x, y)
"""


def own(
    x: str = "torch.tensor(x, dtype=torch.float32)",
    y: str = "y",
    get: str = "return self.x[index], self.y[index]",
    more: str = "",
) -> str:
    return OWN.format(x=x, y=y, get=get, more=more)


@pytest.mark.parametrize(
    "data",
    [
        own(),
        own(x="torch.from_numpy(x).float()"),
        own(x="torch.from_numpy(x.T).permute(1, 0).float() / 255.0"),
        own(get="return {'x': self.x[index].float(), 'y': self.y[index]}"),
        own(get="x = self.x[index]\n        label = self.y[index]\n        return x, label.long()"),
        own(y="(y > 0).long()"),
        own(y="torch.sin(2 * y)"),
    ],
)
def test_classes_that_look_up_rows(check_transformed: Check, data: str) -> None:
    check_transformed(script(LOADER, data=data), script(AFTER, data=data))


@pytest.mark.parametrize(
    "data",
    [
        own(x="x"),  # an array; its numbers are no tensors
        own(x="x.tolist()"),
        own(x="torch.from_numpy(x).float() if y is None else x"),
        own(x="torch.load('x.pt')"),
        own(y="np.asarray(y)"),
        own(get="return self.x[index] * 2, self.y[index]"),
        own(get="return self.x[index].unsqueeze(0), self.y[index]"),
        own(get="return self.x[index], index"),
        own(get="return self.x[index - 1], self.y[index]"),
        own(get="return self.x[index], int(self.y[index])"),
        own(
            get="if index > 3:\n            index = 3\n        return self.x[index], self.y[index]"
        ),
        own(get="index = 3\n        return self.x[index], self.y[index]"),
        own(get="return torch.stack([self.x[index]]), self.y[index]"),
        own(
            more="\n    def __getitems__(self, indices):\n        return [self[i] for i in indices]\n"
        ),
        own() + "train_set.x = x\n",
        own().replace("(Dataset)", "(Dataset, dict)"),
        "train_set = [(torch.randn(4), i % 2) for i in range(50)]\n",
        DATA + "train_set = train_set + train_set\n",
        DATA + "train_set = Subset(train_set, np.arange(20))\n",
        "from data import train_set\n",
    ],
)
def test_items_that_may_be_more_than_rows_of_tensors(check_noop: Check, data: str) -> None:
    check_noop(script(LOADER, data=data))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("DataLoader(train_set, 16, collate_fn=stack)", "its `collate_fn` makes the batches"),
        ("DataLoader(train_set, batch_sampler=sampler)", "its `batch_sampler` makes the batches"),
        (
            "DataLoader(train_set, 16, sampler=sampler)",
            "gives plain indices is not known (`sampler`)",
        ),
        ("DataLoader(train_set, shuffle=True)", "every batch is one sample"),
        ("DataLoader(train_set, batch_size=1)", "every batch is one sample"),
        ("DataLoader(train_set, batch_size=None)", "may be None"),
        ("DataLoader(train_set, 16, True)", "said by position"),
        ("DataLoader(train_set, 16, **more)", "`more` is not known"),
        ("DataLoader(train_set, **dict(batch_size=16))", "its `batch_size` comes by a dict"),
        ("DataLoader(train_set, 16, shuffle=size > 2)", "worked out in its call (`size > 2`)"),
        (
            "DataLoader(train_set, 16, shuffle=True, generator=torch.Generator())",
            "made in its call (`torch.Generator()`)",
        ),
        ("[DataLoader(TensorDataset(x, y), 16) for _ in range(2)][0]", "has no variable"),
    ],
)
def test_loaders_that_stay(check_noop: Check, made: str, reason: str) -> None:
    check_noop(script(f"size = 16\nloader = {made}"), reason=reason)


@pytest.mark.parametrize(
    "use",
    [
        "print(loader.batch_size)",
        "loader.sampler.generator = None",
        "trainer.fit(model, loader)",
        "accelerate(loader)",
        "print(loader)",
        "settings = vars(loader)",
    ],
)
def test_loaders_that_are_asked_for_more_than_batches(check_noop: Check, use: str) -> None:
    start = (
        "from lightning import Trainer\nfrom accelerate import accelerate\ntrainer = Trainer()\n"
    )
    check_noop(script(f"{start}{LOADER}\n{use}"), reason="may depend on how it makes its batches")


@pytest.mark.parametrize(
    "use",
    [
        "print(len(loader), len(loader.dataset), next(iter(loader)))",
        "torch.optim.swa_utils.update_bn(loader, model)",
        "from tqdm import tqdm\nfor i, (x, y) in enumerate(tqdm(loader)):\n    model(x)",
        "loaders = {'train': loader}\nfor x, y in loaders['train']:\n    model(x)",
    ],
)
def test_loaders_that_are_gone_over(check_transformed: Check, use: str) -> None:
    check_transformed(script(f"{LOADER}\n{use}"), script(f"{AFTER}\n{use}"))


def test_a_name_that_is_taken(check_transformed: Check) -> None:
    data = "\n\nclass RandomSampler:\n    pass\n" + DATA
    after = AFTER.replace("RandomSampler", "torch.utils.data.RandomSampler")
    after = after.replace("(train_set, b", "(\n    train_set, b").replace("False))", "False)\n)")
    check_transformed(script(LOADER, data=data), script(after, data=data))


@pytest.mark.parametrize(
    ("x", "tier"),
    [
        ("torch.randn(50, 4)", Tier.EXACT),
        ("torch.tensor(np.ones((50, 4)), dtype=torch.float32)", Tier.EXACT),
        ("torch.randn(50, 4).sin().view(50, 2, 2)", Tier.EXACT),
        ("torch.randn(90, 4)[:50]", Tier.EXACT),
        ("(torch.randn(90, 4) / 2)[10:][:50].float()", Tier.EXACT),
        ("torch.randn(90, 4).double()[40:]", Tier.EXACT),
        ("torch.randn(100, 4)[::2]", Tier.NUMERIC),
        ("torch.randn(50, 4)[:, :2]", Tier.NUMERIC),
        ("torch.randn(4, 90).t()[:50]", Tier.NUMERIC),
        ("load()[:50]", Tier.NUMERIC),
        ("torch.from_numpy(np.ones((50, 4)))", Tier.NUMERIC),
        ("torch.randn(50, 8, 8, 3).permute(0, 3, 1, 2)", Tier.NUMERIC),
        ("load()", Tier.NUMERIC),
    ],
)
def test_what_may_have_other_strides_is_not_called_exact(
    rewrite: Callable[..., RewriteResult], x: str, tier: Tier
) -> None:
    data = DATA.replace("torch.randn(50, 4)", x)
    result = rewrite(script(LOADER, data=data), ["tensor-batches"])
    assert [change.tier for change in result.files[0].changes] == [tier]


def test_several_gpus_share_batches(check_noop: Check, check_transformed: Check) -> None:
    reason = "several GPUs are to share them"
    check_noop(script(LOADER), reason=reason, gpus=2)
    check_noop(script(f"model = nn.DataParallel(model)\n{LOADER}"), reason=reason)
    check_transformed(script(LOADER), script(AFTER), gpus=1)


def test_only_exact_changes_where_no_others_are_allowed(
    check_transformed: Check, check_noop: Check
) -> None:
    check_transformed(script(LOADER), script(AFTER), tier=Tier.EXACT)
    shared = DATA.replace("torch.randn(50, 4)", "torch.from_numpy(np.ones((50, 4)))")
    check_noop(script(LOADER, data=shared), reason="only with --tier numeric", tier=Tier.EXACT)


@pytest.mark.parametrize(("side", "after"), [(32, AFTER), (48, LOADER)])
def test_rows_that_are_as_large_as_photos(
    check_transformed: Check, check_noop: Check, side: int, after: str
) -> None:
    data = DATA.replace("torch.randn(50, 4)", f"torch.randn(50, 3, {side}, {side})")
    if after == LOADER:
        check_noop(script(LOADER, data=data), reason="rows of 6,912 numbers take as long")
    else:
        check_transformed(script(LOADER, data=data), script(after, data=data))


SEED = "\ntorch.manual_seed(0)\n"


def test_is_verified(check_verified: Check) -> None:
    held_out = "held_out = DataLoader(train_set, batch_size=16)\n"
    steps = f"{held_out}{TRAIN}    with torch.no_grad():\n        print([model(x).mean().item() for x, y in held_out])\n"
    check_verified(script(LOADER, data=SEED + own(), steps=steps))


@pytest.mark.slow
def test_a_generator_of_the_samplers_own_is_verified(check_verified: Check) -> None:
    made = """\
sampler = RandomSampler(train_set, generator=torch.Generator().manual_seed(3))
loader = DataLoader(train_set, batch_size=16, sampler=sampler)"""
    check_verified(script(made, data=SEED + DATA))


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_and_draws_are_what_they_were(parts: bool, shuffle: bool) -> None:
    """The claim, on the library itself."""
    whole = TensorDataset(torch.arange(70.0).view(35, 2), torch.arange(35))
    rows = Subset(whole, range(3, 30)) if parts else whole
    order = RandomSampler(rows) if shuffle else SequentialSampler(rows)
    loaders = (
        DataLoader(rows, batch_size=8, shuffle=shuffle),
        DataLoader(rows, batch_size=None, sampler=BatchSampler(order, 8, drop_last=False)),
    )
    found = []
    for loader in loaders:
        torch.manual_seed(3)
        batches = [batch for _ in range(2) for batch in loader]
        found.append((batches, torch.get_rng_state(), len(loader)))
    (ours, our_state, our_length), (theirs, their_state, their_length) = found
    assert our_length == their_length
    assert torch.equal(our_state, their_state)
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
