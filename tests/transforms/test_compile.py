"""Trained networks are compiled in place, above the training loop, where that works and can pay."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent
from typing import Any

import pytest

from torchopt_cli.optimizer.options import CompileMode, Target
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]
Rewrite = Callable[..., RewriteResult]

SETUP = """
model = Net().cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """

for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""


def in_step(statement: str) -> str:
    return LOOP.replace("        loss.backward()", f"        {statement}\n        loss.backward()")


def script(*parts: str, forward: str = "return self.fc(x)", layer: str = "nn.Linear(8, 2)") -> str:
    body = indent(dedent(forward).strip("\n"), " " * 8)
    net = f"""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = {layer}

    def forward(self, x):
{body}


"""
    return net + "".join(dedent(part).removeprefix("\n") for part in parts)


def test_below_the_set_up(check_transformed: Check) -> None:
    check_transformed(script(SETUP, LOOP), script(SETUP, "model.compile()\n", LOOP))


def test_a_network_of_which_a_part_is_trained(check_transformed: Check) -> None:
    setup = """
    head = nn.Sequential(nn.Linear(8, 2), nn.ReLU())
    model = Net(head).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)
    """
    before = script(setup, LOOP, layer="head").replace("__init__(self)", "__init__(self, head)")
    check_transformed(before, before.replace("\n\nfor epoch", "\nmodel.compile()\n\nfor epoch"))


PYTORCHS_OWN = {
    "a container": ("nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))", "nn.Sequential"),
    "a class of the script that is one": (
        "Stack(nn.Linear(8, 8), nn.Linear(8, 2))",
        "nn.Sequential",
    ),
    "attention": (
        "nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)",
        "nn.TransformerEncoder",
    ),
}


@pytest.mark.parametrize(("made", "own"), PYTORCHS_OWN.values(), ids=PYTORCHS_OWN)
def test_what_runs_as_pytorchs_own_is_compiled_where_that_does_something(
    rewrite: Rewrite, name: str, check_noop: Check, made: str, own: str
) -> None:
    stack = "class Stack(nn.Sequential):\n    pass\n\n\n"
    text = script(stack, SETUP.replace("Net()", made), LOOP)
    why = f"before PyTorch 2.14 compiling in place does nothing for a network that runs as `torch.{own}` does"
    for version in ((2, 4), (2, 11), (2, 13)):
        check_noop(text, why, torch_version=version)
    assert "model.compile()\n" in rewrite(text, [name], torch_version=(2, 14)).files[0].text


@pytest.mark.torch
def test_compiling_in_place_does_what_is_told_of_it() -> None:
    torch = pytest.importorskip("torch")
    compiled: list[object] = []

    def backend(graph: Any, _: object) -> Any:
        compiled.append(graph)
        return graph.forward

    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    network.compile(backend=backend)
    network(torch.ones(4, 8))
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert bool(compiled) == (release >= (2, 14))


def test_a_forward_of_its_own_is_compiled_everywhere(rewrite: Rewrite, name: str) -> None:
    stack = """
    class Stack(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2


    """
    for made in (
        "Net()",
        "Stack(nn.Linear(8, 8), nn.Linear(8, 2))",
        "torchvision.models.resnet18()",
    ):
        text = "import torchvision\n" + script(stack, SETUP.replace("Net()", made), LOOP)
        assert "model.compile()\n" in rewrite(text, [name], torch_version=(2, 11)).files[0].text


def test_directly_above_the_loop_when_nothing_is_there(check_transformed: Check) -> None:
    check_transformed(
        script(SETUP, "\n\ndef helper():\n    pass\n\n", LOOP),
        script(SETUP, "\n\ndef helper():\n    pass\n\n\nmodel.compile()\n", LOOP.lstrip("\n")),
    )


def test_above_the_try_that_the_training_opens(check_transformed: Check) -> None:
    loop = "try:" + indent(LOOP, "    ").removeprefix("\n").replace("\n\n", "\n", 1)
    loop += "except KeyboardInterrupt:\n    print('stopped')\n"
    check_transformed(script(SETUP, loop), script(SETUP, "model.compile()\n", loop))


@pytest.mark.parametrize(
    ("device", "move", "condition"),
    [
        (
            'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n',
            ".to(device)",
            'device.type == "cuda"',
        ),
        (
            'device = "cuda" if torch.cuda.is_available() else "cpu"\n',
            ".to(device)",
            'device == "cuda"',
        ),
        ("use_cuda = torch.cuda.is_available()\n", ".cuda() if use_cuda else Net()", "use_cuda"),
    ],
)
def test_only_on_a_gpu_where_there_may_be_none(
    check_transformed: Check, device: str, move: str, condition: str
) -> None:
    setup = device + SETUP.replace(".cuda()", move)
    check_transformed(
        script(setup, LOOP),
        script(setup, f"if {condition}:\n    model.compile()\n", LOOP),
    )


def test_a_gpu_that_was_found_is_not_asked_for_again(check_transformed: Check) -> None:
    train = """
    def train(model, optimizer):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()


    """
    start = """
    if torch.cuda.is_available():
        model = Net().cuda()
        {}train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    """
    check_transformed(
        script(train, start.format("")), script(train, start.format("model.compile()\n        "))
    )


def test_for_the_cpu_when_asked(check_noop: Check, check_transformed: Check) -> None:
    setup, loop = SETUP.replace(".cuda()", ""), LOOP.replace(".cuda()", "")
    before = script(setup, loop)
    for options in ({}, {"target": Target.CPU}, {"compile_mode": CompileMode.DEFAULT}):
        check_noop(before, reason="compiling may not pay", **options)
    asked = {"target": Target.CPU, "compile_mode": CompileMode.DEFAULT}
    check_transformed(before, script(setup, "model.compile()\n", loop), **asked)


@pytest.mark.parametrize(
    "loop",
    [
        LOOP.replace("loss.backward()", "loss.backward(retain_graph=True)"),
        in_step("loss.backward(retain_graph=True)"),
        in_step("loss.backward(retain_graph=False)"),
    ],
    ids=["in every pass", "in the first of a step", "not kept"],
)
def test_a_graph_kept_from_the_first_pass_on(check_transformed: Check, loop: str) -> None:
    check_transformed(script(SETUP, loop), script(SETUP, "model.compile()\n", loop))


def test_after_checkpoints_and_wrappers(check_transformed: Check) -> None:
    setup = SETUP + (
        "if resume:\n"
        '    model.load_state_dict(torch.load("model.pt"))\n'
        "model = nn.parallel.DistributedDataParallel(model)\n"
    )
    check_transformed(script(setup, LOOP), script(setup, "model.compile()\n", LOOP))


def test_networks_that_went_through_one_function(check_transformed: Check) -> None:
    setup = """
    def load_weights(model, path):
        model.load_state_dict(torch.load(path))
        return model


    a, b = Net().cuda(), Net().cuda()
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
    a = load_weights(a, "a.pt")
    b = load_weights(b, "b.pt")
    """
    loop = LOOP.replace("criterion(model(x.cuda()), y.cuda())", "(a(x.cuda()) - b(y.cuda())).sum()")
    check_transformed(script(setup, loop), script(setup, "a.compile()\nb.compile()\n", loop))


def test_both_networks_of_a_gan(check_transformed: Check) -> None:
    setup = """
    G, D = Net().cuda(), Net().cuda()
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    cuda = torch.cuda.is_available()
    """
    loop = """

    for real in loader:
        opt_d.zero_grad()
        fake = G(torch.randn(4, 8, device="cuda"))
        d_loss = D(fake.detach()).mean() - D(real.cuda()).mean()
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = -D(fake).mean()
        g_loss.backward()
        opt_g.step()
    """
    check_transformed(
        script(setup, loop),
        script(setup, "G.compile()\nD.compile()\n", loop),
    )


def test_in_main_for_a_loop_in_a_function(check_transformed: Check) -> None:
    before = """
    def train(net, loader, optimizer):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(net, x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()


    def loss_of(net, x, y):
        return nn.functional.cross_entropy(net(x), y)


    def main():
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        print(loss_of(model, *first))
        for epoch in range(epochs):
            train(model, loader, optimizer)


    main()
    """
    check_transformed(
        script(before),
        script(
            before.replace(
                "        print(loss_of(model, *first))\n",
                "        print(loss_of(model, *first))\n        model.compile()\n",
            )
        ),
    )


def test_above_the_call_of_main_for_a_network_of_the_module(check_transformed: Check) -> None:
    before = """
    def main():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            loss = model(x.cuda()).sum()
            loss.backward()
            optimizer.step()


    model = Net().cuda()
    main()
    """
    check_transformed(
        script(before), script(before.replace("    main()\n", "    model.compile()\n    main()\n"))
    )


def test_trainer_object(check_transformed: Check) -> None:
    before = """
    class Trainer:
        def __init__(self, model):
            self.model = model.cuda()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def fit(self, epochs):
            for epoch in range(epochs):
                self.epoch(loader)

        def epoch(self, loader):
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
                loss.backward()
                self.optimizer.step()


    Trainer(Net()).fit(10)
    """
    check_transformed(
        script(before),
        script(
            before.replace(
                "            for epoch in range(epochs):",
                "            self.model.compile()\n            for epoch in range(epochs):",
            )
        ),
    )


def test_every_fold_has_a_network_of_its_own(check_transformed: Check) -> None:
    before = """
    for fold in folds:
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(epochs):
            for x, y in fold:
                loss = model(x.cuda()).sum()
                loss.backward()
                optimizer.step()
    """
    check_transformed(
        script(before),
        script(
            before.replace("        for epoch in", "        model.compile()\n        for epoch in")
        ),
    )


GRAPHS = """
def collate(graphs):
    sizes = [len(graph) for graph in graphs]
    return torch.cat(graphs), [torch.arange(size) for size in sizes]

loader = torch.utils.data.DataLoader(graphs, 16, collate_fn=collate)
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for atoms, places in loader:
    loss = model(atoms.cuda()).sum()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("forward", "is_unrolled"),
    [
        ("return torch.stack([self.fc(x[place]) for place in places])", True),
        ("for i, place in enumerate(places):\n    x[place] = self.fc(x[place])\nreturn x", True),
        ("return self.pool(x, places)", True),
        ("places = [x, x]\nfor place in places:\n    x = self.fc(place)\nreturn x", False),
        ("return self.fc(x)", False),
    ],
)
def test_loops_over_lists_that_are_collated(
    rewrite: Rewrite, name: str, forward: str, *, is_unrolled: bool
) -> None:
    pool = "    def pool(self, x, kept):\n        return torch.cat([x[one] for one in kept])\n\n"
    source = script(
        dedent(GRAPHS).replace("model(atoms.cuda())", "model(atoms.cuda(), places)"),
        forward=forward,
    )
    source = source.replace("forward(self, x)", "forward(self, x, places)")
    source = source.replace("    def forward", pool + "    def forward")
    for text, is_left in (
        (source, is_unrolled),
        (source.replace(", collate_fn=collate", ""), False),
    ):
        (file,) = rewrite(text, [name]).files
        told = [skip.message for skip in file.skips]
        assert (
            any("a list that a `collate_fn` may make longer" in one for one in told) == is_left
        ), told
        assert ("model.compile()" in file.text) != is_left, told


def test_padded_batches_are_dynamic(check_transformed: Check, rewrite: Rewrite, name: str) -> None:
    setup = """
    from torch.nn.utils.rnn import pad_sequence

    def collate(samples):
        return pad_sequence(samples, batch_first=True)

    loader = torch.utils.data.DataLoader(data, 16, collate_fn=collate)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    loop = """

    for x in loader:
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
    """
    check_transformed(script(setup, loop), script(setup, "model.compile(dynamic=True)\n", loop))
    one_length = script(setup.replace(", collate_fn=collate", ""), loop)
    reasons = [
        change.reason
        for text in (script(setup, loop), one_length)
        for change in rewrite(text, [name]).files[0].changes
    ]
    assert ["can take minutes" in reason for reason in reasons] == [True, False]


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("from torchtext.data import BucketIterator", "BucketIterator(data, batch_size=16)"),
        ("from torchtext import data", "data.BucketIterator.splits((a, b), batch_size=16)[0]"),
        ("from torchtext.legacy import data as d", "d.Iterator(data, batch_size=16)"),
    ],
)
def test_buckets_of_texts_are_dynamic(check_transformed: Check, imported: str, made: str) -> None:
    setup = f"""
    {imported}
    loader = {made}
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    loop = """

    for x in loader:
        loss = model(x.text.cuda()).sum()
        loss.backward()
        optimizer.step()
    """
    check_transformed(script(setup, loop), script(setup, "model.compile(dynamic=True)\n", loop))


def test_frozen_networks_are_left(check_transformed: Check) -> None:
    setup = SETUP + "teacher = Net().cuda()\n"
    loop = LOOP.replace("model(x.cuda())", "model(x.cuda()) + teacher(x.cuda()).detach()")
    check_transformed(script(setup, loop), script(setup, "model.compile()\n", loop))


def test_network_with_an_obstacle_beside_one_without(rewrite: Rewrite, name: str) -> None:
    source = script(
        """
        class Encoder(nn.Module):
            def forward(self, x):
                return x + torch.cuda.FloatTensor(x.shape).normal_()


        encoder, model = Encoder().cuda(), Net().cuda()
        optimizer = torch.optim.SGD([*encoder.parameters(), *model.parameters()], lr=0.1)
        for x in loader:
            loss = model(encoder(x.cuda())).sum()
            loss.backward()
            optimizer.step()
        """
    )
    result = rewrite(source, [name]).files[0]
    assert "\nmodel.compile()\n" in result.text
    assert "encoder.compile" not in result.text
    assert [s for s in result.skips if "legacy tensor constructor" in s.message]


def test_a_network_that_may_be_one_with_an_obstacle(check_noop: Check) -> None:
    setup = """
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 2)

        def forward(self, x):
            return self.fc(x / 2 if x.max() > 3 else x)


    if simple:
        model = Net().cuda()
    else:
        model = Other().cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """
    check_noop(script(setup, LOOP), "a branch depends on the values in a tensor")


def test_statically_many_steps(check_transformed: Check) -> None:
    loop = """

    for step in range(600):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    """
    check_transformed(script(SETUP, loop), script(SETUP, "model.compile()\n", loop))


FORWARD = {
    "branch on values": ("if x.sum() > 0:\n    x = -x\nreturn self.fc(x)", "branch depends"),
    "assertion on values": ("assert torch.isfinite(x).all()\nreturn self.fc(x)", "branch depends"),
    "item": ("return self.fc(x) * x.max().item()", "`.item()`"),
    "NumPy": ("return self.fc(x) * float(x.cpu().numpy()[0])", "`.numpy()`"),
    "legacy constructor": ("return self.fc(x) + torch.FloatTensor(2)", "legacy"),
    "new": ("return self.fc(x) + x.new(2)", "legacy"),
    "NumPy's random numbers": (
        "import numpy as np\nreturn self.fc(x) * np.random.rand()",
        "random numbers",
    ),
    "print": ("print(x.shape)\nreturn self.fc(x)", "printing"),
    "loop over time": (
        "steps = x.size(1)\nfor t in range(steps):\n    x = self.fc(x)\nreturn x",
        "unrolled",
    ),
    "loop over a shape": (
        "for t in range(x.shape[1]):\n    x = self.fc(x)\nreturn x",
        "unrolled",
    ),
    "comprehension over time": (
        "return torch.stack([self.fc(x[:, t]) for t in range(x.size(1))]).mean(0)",
        "unrolled",
    ),
    "loop back in time": (
        "for t in reversed(range(x.size(1))):\n    x = self.fc(x)\nreturn x",
        "unrolled",
    ),
    "counter": ("self.calls += 1\nreturn self.fc(x)", "compiled anew"),
    "cut where a draw says": (
        "at = torch.randint(9, (1,))\nreturn self.fc(x)[:, : at + 1]",
        "depends on the values",
    ),
    "cut where a tensor says": ("return self.fc(x)[x.argmax() : x.max()]", "depends on the values"),
    "a mask": ("h = self.fc(x)\nmask = h > 0\nreturn h[mask]", "depends on the values"),
    "a mask of rows": ("h = self.fc(x)\nreturn h[:, torch.isnan(h[0])]", "depends on the values"),
    "what a mask adds to": (
        "h = self.fc(x)\nh[~(h > 0) & (h < 9)] += 1\nreturn h",
        "depends on the values",
    ),
    "shape by values": ("return self.fc(x)[x.nonzero()[:, 0]]", "depends on the values"),
    "function of such a shape": (
        "sizes = torch.unique_consecutive(x.long())\nreturn self.fc(x) * sizes.numel()",
        "depends on the values",
    ),
    "gradients asked for": (
        "x = x.clone().detach().requires_grad_(True)\nreturn self.fc(x)",
        "asks for gradients",
    ),
    "packed sequences": (
        "x = nn.utils.rnn.pack_padded_sequence(x, self.lengths)\nreturn self.fc(x.data)",
        "packed sequences",
    ),
}


@pytest.mark.parametrize(("forward", "reason"), FORWARD.values(), ids=FORWARD)
def test_forward_code_that_cannot_be_compiled(check_noop: Check, forward: str, reason: str) -> None:
    check_noop(script(SETUP, LOOP, forward=forward), reason)


BUFFER = """nn.Linear(8, 2)
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))"""


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("start = int(self.pointer)\nreturn self.fc(x) * start", "`int(self.pointer)` takes"),
        ("return self.fc(x) * float(self.pointer[0])", "takes a value out of the graph"),
        ("return self.fc(x) * float(x.max())", "`float(x.max())` takes"),
        ("if self.pointer == 0:\n    x = -x\nreturn self.fc(x)", "branch depends"),
        ("if not self.pointer:\n    x = -x\nreturn self.fc(x)", "branch depends"),
    ],
)
def test_values_of_buffers(check_noop: Check, forward: str, reason: str) -> None:
    check_noop(script(SETUP, LOOP, forward=forward, layer=BUFFER), reason)


@pytest.mark.parametrize(
    "forward",
    [
        "if self.pointer is not None:\n    x = x + self.pointer\nreturn self.fc(x)",
        "if self.pointer.shape[0] == 1:\n    x = x + self.pointer\nreturn self.fc(x)",
        "return self.fc(x) * int(x.shape[0] ** 0.5)",
        "h = self.fc(x).clone()\nh[h > 9] = 9\nreturn h",
    ],
)
def test_buffers_that_are_only_computed_with(rewrite: Rewrite, name: str, forward: str) -> None:
    text = rewrite(script(SETUP, LOOP, forward=forward, layer=BUFFER), [name]).files[0].text
    assert "\nmodel.compile()\n" in text


@pytest.mark.parametrize(
    "forward",
    [
        "if self.training:\n    x = -x\nreturn self.fc(x)",
        "if x.size(0) > 1 and x.dim() == 2:\n    x = -x\nreturn self.fc(x)",
        "if self.extra is not None:\n    x = self.extra(x)\nreturn self.fc(x)",
        "for layer in self.layers:\n    x = layer(x)\nreturn self.fc(x)",
        "for i in range(3):\n    x = self.norm(x)\nreturn self.fc(x)",
        "return self.fc(x) + self.table.requires_grad_(False)",
    ],
)
def test_python_that_can_be_compiled(rewrite: Rewrite, name: str, forward: str) -> None:
    text = rewrite(script(SETUP, LOOP, forward=forward), [name]).files[0].text
    assert "\nmodel.compile()\n" in text


def test_obstacle_in_a_layer(check_noop: Check) -> None:
    block = """
    class Block(nn.Module):
        def forward(self, x):
            if x.max() > 1:
                x = x / x.max()
            return x

    """
    check_noop(
        script(block, SETUP, LOOP, layer="nn.Sequential(Block(), nn.Linear(8, 2))"), "branch"
    )


def test_networks_of_the_hub(check_noop: Check, rewrite: Rewrite, name: str) -> None:
    loaded = SETUP.replace("Net()", "torch.hub.load({!r}, 'net')")
    layer = "torch.hub.load({!r}, 'net')"
    for source in (
        script(loaded.format("somebody/nets"), LOOP),
        script(SETUP, LOOP, layer=f"nn.Sequential({layer.format('somebody/nets')})"),
    ):
        check_noop(source, "whether `torch.hub.load` can be compiled is not known")
    text = rewrite(script(loaded.format("pytorch/vision"), LOOP), [name]).files[0].text
    assert "\nmodel.compile()\n" in text


@pytest.mark.parametrize(
    "layer",
    [
        "torch_geometric.nn.GCNConv(8, 2)",
        "nn.Sequential(nn.Linear(8, 8), torch_geometric.nn.MLP([8, 2]))",
        "elsewhere.Attention(8, 2)",
    ],
)
def test_layers_whose_code_is_not_in_sight(check_noop: Check, layer: str) -> None:
    imports = "import elsewhere\nimport torch_geometric\n"
    check_noop(imports + script(SETUP, LOOP, layer=layer), "can be compiled is not known")


@pytest.mark.parametrize(
    "layers",
    [
        """
        self.layers = nn.ModuleList()
        self.layers.append(torch_geometric.nn.SAGEConv(8, 8))
        """,
        """
        self.layers = nn.ModuleList([nn.Linear(8, 8)])
        layer = torch_geometric.nn.SAGEConv(8, 8)
        self.layers.append(layer)
        """,
        """
        self.layers = nn.Sequential()
        self.layers.add_module("graph", torch_geometric.nn.SAGEConv(8, 8))
        """,
        """
        layers = [nn.Linear(8, 8)]
        layers.append(torch_geometric.nn.SAGEConv(8, 8))
        self.layers = nn.Sequential(*layers)
        """,
        """
        layers = [torch_geometric.nn.SAGEConv(8, 8) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        """,
    ],
)
def test_such_layers_put_in_a_container_later(check_noop: Check, layers: str) -> None:
    forward = "for layer in self.layers:\n    x = layer(x)\nreturn self.fc(x)"
    text = "import torch_geometric\n" + script(SETUP, LOOP, forward=forward)
    first = "        super().__init__()\n"
    text = text.replace(first, first + indent(dedent(layers).removeprefix("\n"), " " * 8))
    check_noop(text, "`torch_geometric.nn.SAGEConv` can be compiled is not known")


@pytest.mark.parametrize(
    "layer",
    [
        "torchvision.ops.MLP(8, [2])",
        "nn.Sequential(timm.layers.Mlp(8, 2), Rearrange('b c -> c b'))",
    ],
)
def test_layers_of_libraries_that_are_compiled_every_night(
    check_transformed: Check, layer: str
) -> None:
    imports = "import timm\nimport torchvision\nfrom einops.layers.torch import Rearrange\n"
    check_transformed(
        imports + script(SETUP, LOOP, layer=layer),
        imports + script(SETUP, "model.compile()\n", LOOP, layer=layer),
    )


@pytest.mark.parametrize(
    "given", ["encoder", "nn.ModuleList([encoder])", "*layers", "nn.Sequential(*layers)"]
)
def test_recurrent_part_that_is_handed_to_the_network(check_noop: Check, given: str) -> None:
    parts = """
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(8, 8)

        def forward(self, x):
            return self.rnn(x)[0]


    class Whole(nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def forward(self, x):
            return self.encoder(x)


    layers = []
    encoder = Encoder()
    layers.append(encoder)
    """
    setup = SETUP.replace("Net()", f"Whole({given})")
    check_noop(script(parts, setup, LOOP), "recurrent layers (`nn.LSTM`)")


@pytest.mark.parametrize("layer", ["nn.LSTM(8, 2)", "nn.GRU(8, 2)", "nn.Sequential(nn.RNN(8, 2))"])
def test_recurrent_networks(check_noop: Check, layer: str) -> None:
    check_noop(script(SETUP, LOOP, layer=layer), "recurrent layers")
    bare = SETUP.replace("Net()", layer)
    assert bare != SETUP
    check_noop(script(bare, LOOP), "recurrent layers")


SECOND_LOSS = "        criterion(model(-x.cuda()), y.cuda()).backward(retain_graph=True)"


REFUSED = {
    "graph kept after one that is freed": (
        (SETUP, LOOP.replace("loss.backward()", f"loss.backward()\n{SECOND_LOSS}")),
        "keeps its graph",
    ),
    "graph kept in some passes": (
        (SETUP, in_step("if epoch: loss.backward(retain_graph=True)")),
        "keeps its graph",
    ),
    "graph kept in one of two loops": (
        (SETUP, LOOP, LOOP.replace("loss.backward()", "loss.backward(retain_graph=True)")),
        "keeps its graph",
    ),
    "graph kept behind training": (
        (
            SETUP,
            LOOP,
            """
losses = criterion(model(x.cuda()), y.cuda())
for loss in losses:
    torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
""",
        ),
        "keeps its graph",
    ),
    "gradient penalty": (
        (
            SETUP,
            in_step("loss += torch.autograd.grad(loss, [x], create_graph=True)[0].norm()"),
        ),
        "differentiates its gradients",
    ),
    "curvature behind training": (
        (
            SETUP,
            LOOP,
            "grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)\n",
        ),
        "it may be differentiated twice beside the steps seen",
    ),
    "curvature in a function": (
        (
            SETUP,
            "def curvature(x):\n"
            "    f = lambda z: model(z).sum()\n"
            "    return torch.autograd.functional.hvp(f, x, x)\n",
            in_step("curvature(x)"),
            "curvature(x)\n",
        ),
        "differentiate",
    ),
    "compiled with the wrapper": ((SETUP, "model = torch.compile(model)\n", LOOP), "already"),
    "another function compiled": ((SETUP, "f = torch.compile(print)\n", LOOP), "already"),
    "scripted": ((SETUP.replace("Net().cuda()", "torch.jit.script(Net().cuda())"), LOOP), "Script"),
    "loaded in TorchScript": (
        (SETUP, 'features = torch.jit.load("vgg16.pt")\n', LOOP),
        "the script loads a network in TorchScript",
    ),
    "exported": ((SETUP, LOOP, 'torch.onnx.export(model, x, "m.onnx")\n'), "ONNX"),
    "graph for TensorBoard": ((SETUP, "writer.add_graph(model, x)\n", LOOP), "add_graph"),
    "traced with FX": ((SETUP, LOOP, "torch.fx.symbolic_trace(model)\n"), "FX"),
    "quantized": ((SETUP, LOOP, "torch.ao.quantization.prepare(model)\n"), "quantizes"),
    "captured": ((SETUP, "graph = torch.cuda.CUDAGraph()\n", LOOP), "CUDA graph"),
    "replicas of its own": (
        (SETUP, in_step("nn.parallel.parallel_apply([model], [x])")),
        "DataParallel replicas are not compiled",
    ),
    "data parallel": (
        (SETUP.replace("Net()", "nn.DataParallel(Net())"), LOOP),
        "DataParallel replicas",
    ),
    "hooks": ((SETUP, "model.fc.register_forward_hook(print)\n", LOOP), "hooks"),
    "processes": ((SETUP, "model.share_memory()\n", LOOP), "share_memory"),
    "sparse": ((SETUP, "adjacency = adjacency.to_sparse()\n", LOOP), "sparse"),
    "framework": (
        ("import deepspeed\n", SETUP, "deepspeed.initialize(model=model)\n", LOOP),
        "DeepSpeed",
    ),
    "method instead of the network": (
        (SETUP, LOOP.replace("model(x.cuda())", "model.forward(x.cuda())")),
        "does not reach",
    ),
    "rebound in the loop": (
        (SETUP, in_step("model = model.float()")),
        "no single place",
    ),
    "made by a stranger": ((SETUP.replace("Net()", "find_net()"), LOOP), "no network"),
    "not trained by an optimizer": (
        (SETUP.replace("model.parameters()", "[torch.zeros(1)]"), LOOP),
        "no network that an optimizer is seen to train",
    ),
    "a copy": (
        (SETUP.replace("model = Net()", "import copy\n\nmodel = copy.deepcopy(Net())"), LOOP),
        "`model` is a copy of a network",
    ),
    "detection": (
        (
            "import torchvision\n",
            SETUP.replace("Net()", "torchvision.models.detection.fasterrcnn_resnet50_fpn()"),
            LOOP,
        ),
        "detection",
    ),
}


@pytest.mark.parametrize(
    "hint",
    [
        "if torch.jit.is_scripting():\n    print('never')\n",
        "bias = torch.jit._unwrap_optional(model.fc.bias)\n",
        "@torch.jit.script_if_tracing\ndef double(x):\n    return x * 2\n",
    ],
)
def test_what_only_torchscript_reads_is_no_obstacle(rewrite: Rewrite, hint: str) -> None:
    text = rewrite(script(SETUP, hint, LOOP), ["compile"]).files[0].text
    assert "model.compile()" in text


@pytest.mark.parametrize(("parts", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(check_noop: Check, parts: tuple[str, ...], reason: str) -> None:
    check_noop(script(*parts), reason)


def test_few_steps(check_noop: Check) -> None:
    loop = LOOP.replace("range(epochs)", "range(2)").replace("in loader", "in range(30)")
    check_noop(script(SETUP, loop), "60 steps do not pay back")
    once = loop.replace("range(2)", "range(1)").replace("range(30)", "range(1)")
    check_noop(script(SETUP, once), "1 step does not pay back")


def test_own_compile_method(check_noop: Check) -> None:
    net = """
    class Own(Net):
        def compile(self, loss):
            self.loss = loss

    """
    check_noop(script(net, SETUP.replace("Net()", "Own()"), LOOP), "of its own")


def test_own_call(check_noop: Check) -> None:
    net = """
    class Own(Net):
        def __call__(self, x):
            return self.forward(x)

    """
    reason = "`Own` has a `__call__` of its own, which `compile` does not reach"
    check_noop(script(net, SETUP.replace("Net()", "Own()"), LOOP), reason)


CHOSEN = """
    import sys
    {0}
    for x in loader:
        optimizer.zero_grad()
        {1}
        loss.backward()
        optimizer.step()
"""
MADE = "model = Net().cuda()\n        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"


@pytest.mark.parametrize(
    ("made", "used"),
    [
        (f"if deep:\n        {MADE}", "loss = model(x.cuda()).sum() if deep else 0"),
        (f"if deep:\n        {MADE}", "if deep:\n            loss = model(x.cuda()).sum()"),
        (
            f"if deep:\n        {MADE}\n    elif wide:\n        {MADE}",
            "if deep or wide:\n            loss = model(x.cuda()).sum()",
        ),
    ],
)
def test_network_that_may_not_be_there(check_noop: Check, made: str, used: str) -> None:
    check_noop(script(CHOSEN.format(made, used)), "no single place")


def test_global_network_that_may_not_be_there(check_noop: Check) -> None:
    loop = """
        if deep:
            model = Net().cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            if deep:
                loss = model(x.cuda()).sum()
                loss.backward()
                optimizer.step()

        for x in loader:
            step(x)
    """
    check_noop(script(loop), "no single place")


@pytest.mark.parametrize(
    ("made", "used"),
    [
        (f"if deep:\n        {MADE}", "loss = model(x.cuda()).sum()"),
        (f"with here:\n        {MADE}", "loss = model(x.cuda()).sum() if deep else 0"),
        (
            f"if deep:\n        {MADE}\n    elif wide:\n        {MADE}\n    else:\n        raise ValueError",
            "if deep:\n            loss = model(x.cuda()).sum()",
        ),
        (
            f"if deep:\n        {MADE}\n    else:\n        sys.exit(1)",
            "if deep:\n            loss = model(x.cuda()).sum()",
        ),
    ],
)
def test_network_that_is_there(rewrite: Rewrite, made: str, used: str) -> None:
    result = rewrite(script(CHOSEN.format(made, used)), ["compile"])
    assert "model.compile()\nfor x in loader:" in result.files[0].text


def test_two_places_that_train(check_noop: Check) -> None:
    check_noop(
        script(
            """
            def train(net):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for x in loader:
                    loss = net(x.cuda()).sum()
                    loss.backward()
                    optimizer.step()

            def first():
                train(Net().cuda())

            def second():
                net = Net().cuda()
                train(net)

            first()
            second()
            """
        ),
        "no single place",
    )


TRAIN = """
    def train(net, optimizer):
        for x in loader:
            optimizer.zero_grad()
            loss = net(x.cuda()).sum()
            loss.backward()
            optimizer.step()
        return net

"""


@pytest.mark.parametrize(
    "training",
    [
        "model = train(model, optimizer)\n",
        "train(model, optimizer)\nmodel = load_best()\nmodel(x)\n",
        "train(model, optimizer)\ntrain(model, optimizer)\nmodel = load_best()\n",
    ],
)
def test_a_name_that_is_another_networks_behind_the_training(
    check_transformed: Check, training: str
) -> None:
    before = script(TRAIN, SETUP, training)
    check_transformed(before, before.replace(training, f"model.compile()\n{training}"))


@pytest.mark.parametrize(
    "training",
    [
        "train(model, optimizer)\nmodel = Net().cuda()\ntrain(model, optimizer)\n",
        "model = train(model, optimizer)\nmodel = train(model, optimizer)\n",
    ],
)
def test_a_name_that_may_be_another_networks_in_a_later_training(
    check_noop: Check, training: str
) -> None:
    check_noop(script(TRAIN, SETUP, training), "no single place")


def test_never_on_a_gpu(check_noop: Check) -> None:
    setup, loop = SETUP.replace(".cuda()", ""), LOOP.replace(".cuda()", "")
    check_noop(script(setup, loop), "runs on the CPU")
    check_noop(script(setup, loop, "# cuda\n"), "not seen to be moved to a GPU")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(platform="win32"), "no Triton for Windows"),
        (dict(python_version=(3, 12), torch_version=(2, 3)), "needs PyTorch 2.4"),
        (dict(python_version=(3, 13), torch_version=(2, 5)), "needs PyTorch 2.6"),
        (dict(python_version=(3, 14), torch_version=(2, 9)), "needs PyTorch 2.10"),
    ],
)
def test_machines_that_cannot_compile(
    check_noop: Check, options: dict[str, object], reason: str
) -> None:
    check_noop(script(SETUP, LOOP), reason, **options)


NEW_PRECISION = "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"


@pytest.mark.parametrize(
    ("setting", "version", "mode", "reason"),
    [
        (NEW_PRECISION, (2, 9), CompileMode.AUTO, "torch.compile before PyTorch 2.11 fails"),
        (
            "torch.backends.fp32_precision = 'tf32'\n",
            (2, 10),
            CompileMode.AUTO,
            "before PyTorch 2.11",
        ),
        (NEW_PRECISION, (2, 11), CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS, "autotuning fails beside"),
        (NEW_PRECISION, (2, 11), CompileMode.AUTO, None),
        (NEW_PRECISION, (2, 8), CompileMode.AUTO, None),
        ("torch.backends.cuda.matmul.allow_tf32 = True\n", (2, 9), CompileMode.MAX_AUTOTUNE, None),
    ],
)
def test_the_new_setting_of_precision(
    rewrite: Rewrite,
    name: str,
    setting: str,
    version: tuple[int, int],
    mode: CompileMode,
    reason: str | None,
) -> None:
    text = script(setting, SETUP, LOOP)
    result = rewrite(text, [name], torch_version=version, compile_mode=mode).files[0]
    assert result.changed == (reason is None)
    assert reason is None or any(reason in skip.message for skip in result.skips), result.skips


def test_compiled_already(rewrite: Rewrite, name: str) -> None:
    result = rewrite(script(SETUP, "model.compile()\n", LOOP), [name]).files[0]
    assert not result.changed
    assert not result.skips


def test_nothing_to_compile(check_noop: Check) -> None:
    check_noop("print('cuda')\n")
    check_noop(script("print(Net().cuda()(torch.zeros(1, 8).cuda()))\n"))


@pytest.mark.torch
@pytest.mark.slow
def test_a_network_compiled_in_place_stays_what_it_was() -> None:
    """What the transform promises of ``model.compile()``: keys, children, pickle and copies."""
    import copy
    import io

    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    keys, children = list(model.state_dict()), list(model.children())
    x = torch.randn(4, 8)
    expected = model(x)
    model.compile(backend="eager")
    assert torch.allclose(model(x), expected)
    assert list(model.state_dict()) == keys
    assert list(model.children()) == children
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.allclose(torch.load(buffer, weights_only=False)(x), expected)
    assert torch.allclose(copy.deepcopy(model)(x), expected)


@pytest.mark.torch
@pytest.mark.slow
def test_compiled_training_is_alike(check_verified: Check) -> None:
    check_verified(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.manual_seed(0)
        inputs = torch.randn(256, 8)
        data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
        loader = DataLoader(data, batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
        torch.save(model.state_dict(), "model.pt")
        """,
        target=Target.CPU,
        compile_mode=CompileMode.DEFAULT,
    )


def test_trainer_whose_methods_are_called_in_a_loop(check_transformed: Check) -> None:
    before = """
    class Trainer:
        def __init__(self, model):
            self.model = model.cuda()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def step(self, x):
            self.optimizer.zero_grad()
            self.loss(x).backward()
            self.optimizer.step()

        def loss(self, x):
            return self.model(x.cuda()).sum()


    trainer = Trainer(Net())
    for x in loader:
        trainer.step(x)
    """
    check_transformed(
        script(before),
        script(
            before.replace(
                "    for x in loader:", "    trainer.model.compile()\n    for x in loader:"
            )
        ),
    )


def test_object_made_out_of_sight(check_noop: Check) -> None:
    check_noop(
        script(
            """
            class Trainer:
                def __init__(self):
                    self.model = Net().cuda()
                    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

                def step(self, x):
                    loss = self.model(x.cuda()).sum()
                    loss.backward()
                    self.optimizer.step()


            def run(trainer):
                for x in loader:
                    trainer.step(x)


            run(Trainer())
            """
        ),
        "no single place",
    )


@pytest.mark.parametrize(
    "gradient",
    [
        "torch.autograd.grad(net(x).sum(), x, None, True, True)[0]",
        "torch.autograd.grad(net(x).sum(), x, create_graph=penalty > 0)[0]",
        "torch.autograd.grad(net(x).sum(), x, **options)[0]",
    ],
)
def test_a_network_that_one_step_differentiates_twice_is_not_compiled_for_another(
    check_noop: Callable[..., None], gradient: str
) -> None:
    source = f"""
import torch
from torch import nn
from settings import options, penalty

net = nn.Linear(2, 1).cuda()
optimizer = torch.optim.Adam(net.parameters())
for i in range(100000):
    x = torch.randn(4, 2, device="cuda", requires_grad=True)
    optimizer.zero_grad()
    {gradient}.norm().backward()
    optimizer.step()
for i in range(100000):
    x = torch.randn(4, 2, device="cuda")
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()
"""
    check_noop(source, "differentiates its gradients")


def test_module_whose_callers_are_not_seen(check_noop: Check) -> None:
    check_noop(
        """
        from torch import nn


        def train_one_epoch(model, loader, optimizer, device):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
        """,
        reason="nothing in this file calls this step",
    )


def test_layer_that_is_trained_belongs_to_its_network(check_transformed: Check) -> None:
    check_transformed(
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        model.compile()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        """,
    )


FITTED = """
def fit(self, loader, epochs):
    optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, y in loader:
            self.step(optimizer, x.cuda(), y.cuda())

def step(self, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy({call}, y).backward()
    optimizer.step()
"""


def fitted(*parts: str, call: str = "self(x)") -> str:
    methods = indent(FITTED.format(call=call), " " * 4)
    return script().rstrip() + "\n" + methods + "\n\n" + "".join(parts)


@pytest.mark.parametrize("cls", ["Net", "Wide"])
def test_network_that_fits_itself(check_transformed: Check, cls: str) -> None:
    derived = "class Wide(Net):\n    pass\n\n\n" if cls == "Wide" else ""
    made, fit = f"net = {cls}().cuda()\n", "net.fit(loader, epochs)\n"
    check_transformed(fitted(derived, made, fit), fitted(derived, made, "net.compile()\n", fit))


@pytest.mark.parametrize(
    ("call", "more", "reason"),
    [
        ("self.forward(x)", "net.fit(loader, epochs)\n", "`compile` does not reach"),
        ("self(x)", "Net().cuda().fit(loader, epochs)\n", "no single place"),
        ("self(x)", "other = Net()\nnet.fit(loader, epochs)\nother.fit(loader, epochs)\n", ""),
    ],
)
def test_network_that_fits_itself_and_is_left(
    check_noop: Check, call: str, more: str, reason: str
) -> None:
    check_noop(fitted("net = Net().cuda()\n", more, call=call), reason)


def test_network_whose_forward_is_a_training_step(check_noop: Check) -> None:
    step = """
        self.optimizer.zero_grad()
        loss = self.fc(x).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
    """
    loop = "net = Net().cuda()\nfor x in loader:\n    net(x.cuda())\n"
    layer = "nn.Linear(8, 2)\n        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)"
    check_noop(script(loop, forward=step, layer=layer), "a backward pass inside of it")


def test_one_network_trained_in_two_loops_is_compiled_once(check_transformed: Check) -> None:
    source = """
        import torch
        from torch import nn

        model = nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {0}for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
        for x, y in other_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
    """
    check_transformed(source.format(""), source.format("model.compile()\n        "))


def test_network_that_a_pass_may_replace(check_noop: Check) -> None:
    check_noop(
        """
        import torch
        from torch import nn

        model = nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(start, 100):
            if epoch == 3:
                model = torch.load("model.pt").cuda()
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
                optimizer.step()
        """,
        reason="no single place above the training loop",
    )


# Modes


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        (CompileMode.DEFAULT, ""),
        (CompileMode.REDUCE_OVERHEAD, 'mode="reduce-overhead"'),
        (CompileMode.MAX_AUTOTUNE, 'mode="max-autotune"'),
        (CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS, 'mode="max-autotune-no-cudagraphs"'),
    ],
)
def test_the_mode_asked_for(check_transformed: Check, mode: CompileMode, arguments: str) -> None:
    check_transformed(
        script(SETUP, LOOP), script(SETUP, f"model.compile({arguments})\n", LOOP), compile_mode=mode
    )


PADDED = """
def pad(samples):
    return nn.utils.rnn.pad_sequence(samples), None


loader = torch.utils.data.DataLoader(samples, batch_size=8, collate_fn=pad)
"""


def test_a_mode_beside_dynamic_shapes(check_transformed: Check) -> None:
    mode = CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS
    compiled = 'model.compile(mode="max-autotune-no-cudagraphs", dynamic=True)\n'
    check_transformed(
        script(PADDED, SETUP, LOOP), script(PADDED, SETUP, compiled, LOOP), compile_mode=mode
    )


def step(*lines: str) -> str:
    return "\n\nfor epoch in range(epochs):\n    for x, y in loader:\n" + "".join(
        f"        {line}\n" for line in lines
    )


USUAL = (
    "optimizer.zero_grad()",
    "out = model(x.cuda())",
    "loss = criterion(out, y.cuda())",
    "loss.backward()",
    "optimizer.step()",
)


@pytest.mark.parametrize(
    "after",
    [
        "losses.append(loss.detach())",
        "kept.append(out.detach().cpu())",
        "right.append((out.argmax(1) == y).sum())",
        "shapes.append(out.shape)",
        "out = out * 2; kept.append(y)",
    ],
)
def test_results_that_are_read_at_once_do_not_keep_graphs_away(
    check_transformed: Check, after: str
) -> None:
    loop = step(*USUAL, after)
    check_transformed(
        script(SETUP, loop),
        script(SETUP, 'model.compile(mode="reduce-overhead")\n', loop),
        compile_mode=CompileMode.REDUCE_OVERHEAD,
    )


EVALUATION = """

def evaluate(loader):
    model.eval()
    outputs = []
    for x, y in loader:
        outputs.append(model(x.cuda()))
    return torch.cat(outputs)
"""
TWICE = """

def half(x):
    return model(x.cuda())
"""
KEPT = "results of the network are kept"
AGAIN = "calls the network more than once"
NOT_EMPTY = "begin without gradients"


@pytest.mark.parametrize(
    ("before", "lines", "reason"),
    [
        ("", (*USUAL, "outputs.append(out)"), KEPT),
        ("", (*USUAL, "outputs += [out.detach()]"), KEPT),
        ("", (*USUAL, "top = out[:, 0]", "tops.append(top)"), KEPT),
        ("", (*USUAL, "state.last = out"), KEPT),
        ("", ("optimizer.zero_grad()", "self.last = out = model(x)", *USUAL[2:]), KEPT),
        ("", (USUAL[0], "out = torch.cat([model(part) for part in x.cuda()])", *USUAL[2:]), AGAIN),
        ("", (USUAL[0], "out = model(x.cuda())", "out = out + model(-x.cuda())", *USUAL[2:]), AGAIN),
        (TWICE, (USUAL[0], "out = half(x)", "out = out - half(-x)", *USUAL[2:]), AGAIN),
        ("", (*USUAL[1:4], "if step % 4 == 0:", "    optimizer.step()", f"    {USUAL[0]}"), NOT_EMPTY),
        ("", (*USUAL[1:],), NOT_EMPTY),
        ("", ("optimizer.zero_grad(set_to_none=False)", *USUAL[1:]), "filled with zeros"),
        ("", (*USUAL[:4], "out2 = loss2.backward()", USUAL[4]), "several backward passes"),
    ],
)  # fmt: skip
def test_what_cuda_graphs_would_break(
    check_noop: Check, before: str, lines: tuple[str, ...], reason: str
) -> None:
    mode = CompileMode.REDUCE_OVERHEAD
    check_noop(script(SETUP, before, step(*lines)), reason=reason, compile_mode=mode)


MEASURE = """

def measure():
    total = 0.0
    for x in held_out:
        total += model(x.cuda()).sum().item()
    return total
"""


@pytest.mark.parametrize(
    "lines",
    [
        (*USUAL, "if step % 100 == 0:", "    print(measure())"),
        ("before = measure()", "print(before)", *USUAL),
        (*USUAL, "right = (out.argmax(1) == y).sum()", "if step % 9 == 0:", "    print(measure())"),
        (
            *USUAL,
            "if step % 9 == 0:",
            "    with torch.no_grad():",
            "        print(model(x.cuda()))",
        ),
    ],
)
def test_an_evaluation_between_steps_does_not_keep_graphs_away(
    check_transformed: Check, lines: tuple[str, ...]
) -> None:
    before, loop = SETUP + MEASURE, step(*lines)
    check_transformed(
        script(before, loop),
        script(before, '\n\nmodel.compile(mode="reduce-overhead")\n', loop.lstrip("\n")),
        compile_mode=CompileMode.REDUCE_OVERHEAD,
    )


@pytest.mark.parametrize(
    "lines",
    [
        (*USUAL, "if step % 9 == 0:", "    print(measure())", "right = (out.argmax(1) == y).sum()"),
        ("old = model(x.cuda())", *USUAL, "print((old - out).norm())"),
        (*USUAL[:2], "print(measure())", *USUAL[2:]),
        (*USUAL[:3], "if step % 9 == 0:", "    print(measure())", *USUAL[3:]),
        (*USUAL, "_ = model(x.cuda())"),
    ],
)
def test_no_graphs_where_a_result_is_read_after_another_call(
    check_noop: Check, lines: tuple[str, ...]
) -> None:
    mode = CompileMode.REDUCE_OVERHEAD
    check_noop(script(SETUP, MEASURE, step(*lines)), reason=AGAIN, compile_mode=mode)


def test_results_kept_in_evaluation(check_noop: Check) -> None:
    loop = step(*USUAL).replace("epochs):\n", "epochs):\n    evaluate(loader)\n", 1)
    mode = CompileMode.REDUCE_OVERHEAD
    check_noop(script(SETUP, EVALUATION, loop), reason=KEPT, compile_mode=mode)


def test_no_graphs_of_padded_batches(check_noop: Check) -> None:
    reason, mode = "every length takes a graph", CompileMode.REDUCE_OVERHEAD
    check_noop(script(PADDED, SETUP, LOOP), reason=reason, compile_mode=mode)


def test_no_graphs_of_several_networks(check_noop: Check) -> None:
    setup = """
    G, D = Net().cuda(), Net().cuda()
    opt_g = torch.optim.Adam(G.parameters())
    opt_d = torch.optim.Adam(D.parameters())
    """
    loop = """

    for real in loader:
        opt_d.zero_grad()
        fake = G(torch.randn(4, 8, device="cuda"))
        d_loss = D(fake.detach()).mean() - D(real.cuda()).mean()
        d_loss.backward()
        opt_d.step()
    """
    reason = "several compiled networks"
    check_noop(script(setup, loop), reason=reason, compile_mode=CompileMode.MAX_AUTOTUNE)


def test_a_cpu_has_no_cuda_graphs(check_noop: Check, check_transformed: Check) -> None:
    setup, loop = SETUP.replace(".cuda()", ""), LOOP.replace(".cuda()", "")
    before = script(setup, loop)
    reduce = {"target": Target.CPU, "compile_mode": CompileMode.REDUCE_OVERHEAD}
    check_noop(before, reason="which a CPU does not have", **reduce)
    tuned = {"target": Target.CPU, "compile_mode": CompileMode.MAX_AUTOTUNE}
    check_transformed(before, script(setup, 'model.compile(mode="max-autotune")\n', loop), **tuned)


ENGINE = """
import torch
from torch import nn


class Engine:
    def __init__(self, config):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x.cuda()).sum().backward()
            self.optimizer.step()


class Linear(Engine):
    def __init__(self, config):
        self.model = nn.Linear(8, 2)
        if config["gpu"] is True:
            self.model.cuda()
        super().__init__(config)


class Deep(Engine):
    def __init__(self, config):
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
        if config["gpu"] is True and config["deep"]:
            self.model.cuda()
        super().__init__(config)
"""


def test_one_name_of_which_the_step_may_train_other_networks(check_transformed: Check) -> None:
    """A class beside the one that is made has a network of its own by that name: it is compiled once all the same."""
    train = """
    from data import loader
    from engine import Deep, Linear

    config = {"gpu": True, "deep": False}
    trainer = Linear(config)
    for epoch in range(epochs):
        trainer.fit(loader)
    """
    compiled = 'if config["gpu"] is True:\n        trainer.model.compile()\n    for epoch'
    check_transformed(
        {"train.py": train, "engine.py": ENGINE},
        {"train.py": train.replace("for epoch", compiled), "engine.py": ENGINE},
    )


def test_a_warm_up_that_some_runs_skip(check_transformed: Check) -> None:
    warm_up = """
    if not resumed:
        for x in loader:
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
    """
    check_transformed(
        script(SETUP, warm_up, LOOP), script(SETUP, "model.compile()\n", warm_up, LOOP)
    )
    again = warm_up.replace("not resumed:", "not resumed:\n        model = model.float()")
    compiled = again.replace("        for x in", "        model.compile()\n        for x in")
    check_transformed(
        script(SETUP, again, LOOP), script(SETUP, compiled, "model.compile()\n", LOOP)
    )


TWO_KINDS = """
import torch
from data import loader
from torch import nn


class Trainer:
    def __init__(self, config):
        self.kind = config["kind"]
        if self.kind == "deep":
            self.make_deep()
        elif self.kind == "wide":
            self.wide = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 2)).cuda()

    def make_deep(self):
        self.deep = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).cuda()

    def fit(self):
        network = self.deep if self.kind == "deep" else self.wide
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for x in loader:
            optimizer.zero_grad()
            if self.kind == "deep":
                loss = self.deep(x.cuda()).sum()
            else:
                loss = self.wide(x.cuda()).sum()
            loss.backward()
            optimizer.step()


Trainer(config).fit()
"""


def test_networks_of_which_an_object_has_one(check_noop: Check, check_transformed: Check) -> None:
    check_noop(TWO_KINDS, reason="no single place above the training loop")
    wide = TWO_KINDS.replace('        elif self.kind == "wide":\n    ', "")
    compiled = "        self.wide.compile()\n        for x in loader:"
    check_transformed(wide, wide.replace("        for x in loader:", compiled))


def test_a_file_without_torch_imports_it_for_the_condition(check_transformed: Check) -> None:
    trainer = """
    import torch
    from torch import nn


    class Trainer:
        def __init__(self):
            self.model = nn.Linear(8, 2)
            if torch.cuda.is_available() and torch.cuda.device_count() > 0:
                self.model = self.model.to("cuda")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def fit(self, x):
            self.optimizer.zero_grad()
            self.model(x).sum().backward()
            self.optimizer.step()
    """
    train = """
    from data import loader
    from trainer import Trainer

    trainer = Trainer()
    for x in loader:
        trainer.fit(x)
    """
    after = """
    import torch
    from data import loader
    from trainer import Trainer

    trainer = Trainer()
    if torch.cuda.is_available() and torch.cuda.device_count() > 0:
        trainer.model.compile()
    for x in loader:
        trainer.fit(x)
    """
    check_transformed(
        {"train.py": train, "trainer.py": trainer}, {"train.py": after, "trainer.py": trainer}
    )


def test_steps_that_lightning_runs(check_noop: Check) -> None:
    text = """\
        import pytorch_lightning as pl
        from torch import nn


        class Net(pl.LightningModule):
            def training_step(self, batch, index):
                x, y = batch
                return nn.functional.cross_entropy(self.layer(x), y)


        trainer = pl.Trainer(accelerator="gpu")
        trainer.fit(Net())
    """
    check_noop(text, "not compiled: Lightning runs the step in its own way")


@pytest.mark.parametrize("name", ["compile", "autocast"])
@pytest.mark.parametrize(
    ("used", "changed"), [("print(epochs)", True), ("tools.sparse(epochs)", False)]
)
def test_a_leftover_of_an_imported_file_is_no_obstacle(
    rewrite: Rewrite, name: str, used: str, changed: bool
) -> None:
    tools = """
    import torch

    def sparse(adjacency):
        return torch.sparse_coo_tensor(*adjacency)

    if __name__ == "__main__":
        print(torch.sparse_coo_tensor([[0], [1]], [1.0]))
    """
    train = "import tools\n" + script(SETUP, f"{used}\n", LOOP)
    result = rewrite({"train.py": train, "tools.py": tools}, [name])
    assert result.files[0].changed is changed, result.files[0].skips


def test_a_network_that_only_an_imported_script_trains_is_none_of_this_one(
    rewrite: Rewrite,
) -> None:
    base = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
            self.fc = nn.Linear(1024, 2)

        def forward(self, x):
            return self.fc(self.body(x))

    def measure(model, batches):
        total = 0.0
        for x, y in batches:
            total += nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        return total

    def train(batches):
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(100):
            print(measure(model, batches))
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
                optimizer.step()

    if __name__ == "__main__":
        train(torch.load("batches.pt"))
    """
    finetune = """
    import torch
    from torch import nn
    from base import Net, measure

    batches = torch.load("batches.pt")
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        if step % 100 == 0:
            print(measure(model, batches))
        x, y = batches[step]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    """
    result = rewrite({"finetune.py": finetune, "base.py": base}, ["compile"])
    assert not [error for file in result.files for error in file.errors]
    assert result.files[0].text.count("model.compile()") == 1
