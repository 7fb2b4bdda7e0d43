"""Training loops, evaluation loops and what they iterate."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.facts import LoopKind
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm
loader = DataLoader(data, batch_size=4)
test_loader = DataLoader(test_data)
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = "loss = model(x).sum(); loss.backward(); optimizer.step()"


def kinds(script: TrainingScript) -> list[tuple[str, LoopKind]]:
    return [(ast.unparse(loop.node).splitlines()[0], loop.kind) for loop in script.loops]


def test_a_wrapper_that_is_wrapped_again_and_again(script: Script) -> None:
    found = script(
        f"""{SETUP}
for epoch in range(3):
    bar = enumerate(loader)
    if epoch:
        bar = tqdm(bar)
    for i, x in bar:
        {STEP}
"""
    )
    assert [loop.kind for loop in found.loops if "enumerate" not in ast.unparse(loop.node)] == [
        LoopKind.TRAINING
    ]
    again = f"""{SETUP}
while True:
    bar = tqdm(bar)
    for x in bar:
        {STEP}
"""
    assert script(again).loops


@pytest.mark.parametrize(
    ("header", "batch"),
    [
        ("for x, y in loader:", "(x, y)"),
        ("for i, (x, y) in enumerate(loader):", "(x, y)"),
        ("for i, batch in enumerate(tqdm(loader), 1):", "batch"),
        ("for x in tqdm(loader, desc='train'):", "x"),
        ("from tqdm.autonotebook import tqdm as bar\nfor x in bar(loader):", "x"),
        ("from barbar import Bar\nfor x in Bar(loader):", "x"),
        ("for x, z in zip(loader, range(3)):", "x"),
        ("for batch in iter(loader):", "batch"),
    ],
)
def test_batches_are_found_through_wrapping_iterators(
    script: Script, header: str, batch: str
) -> None:
    found = script(f"{SETUP}\n{header}\n    {STEP}")
    (loop,) = found.training_loops
    assert [loader.node.lineno for loader in loop.loaders] == [6]
    assert ast.unparse(loop.batch_target) == batch


def test_epochs_and_training(script: Script) -> None:
    found = script(f"{SETUP}\nfor epoch in range(9):\n    for x in loader:\n        {STEP}")
    assert [kind for _, kind in kinds(found)] == [LoopKind.EPOCHS, LoopKind.TRAINING]


def test_training_through_a_function(script: Script) -> None:
    source = f"""{SETUP}
def step(x):
    {STEP}
def train(batches):
    for x in batches:
        step(x)
for epoch in range(9):
    train(loader)
"""
    found = script(source)
    (loop,) = found.training_loops
    assert loop.function is not None
    assert loop.function.name == "train"
    assert [loader.node.lineno for loader in loop.loaders] == [6]
    assert [call.name for call in loop.optimizer_steps] == ["step"]


@pytest.mark.parametrize(
    ("update", "kind"),
    [("self.optimizer.step()", LoopKind.TRAINING), ("x.grad.zero_()", LoopKind.EVALUATION)],
)
def test_a_forward_that_is_a_training_step(script: Script, update: str, kind: LoopKind) -> None:
    """A meta-learner's; one that only takes gradients belongs to the network."""
    found = script(
        f"""{SETUP}
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def forward(self, x):
        self.net(x).sum().backward()
        {update}
learner = Learner()
for x in loader:
    learner(x)
"""
    )
    assert kinds(found) == [("for x in loader:", kind)]


def test_a_forward_that_backpropagates_for_its_caller(script: Script) -> None:
    found = script(
        f"""{SETUP}
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)
    def forward(self, x):
        loss = self.net(x).sum()
        loss.backward()
        return loss
learner = Learner()
for x in loader:
    learner(x)
    optimizer.step()
"""
    )
    assert kinds(found) == [("for x in loader:", LoopKind.TRAINING)]


def test_a_closure_handed_to_step_is_training(script: Script) -> None:
    source = f"""{SETUP}
for i in range(5):
    def closure():
        loss = model(x).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
    assert [kind for _, kind in kinds(script(source))] == [LoopKind.TRAINING]


def test_evaluation(script: Script) -> None:
    found = script(f"{SETUP}\nfor x in test_loader:\n    hits = model(x).argmax()")
    (loop,) = found.evaluation_loops
    assert [loader.node.lineno for loader in loop.loaders] == [7]


def test_a_loop_without_a_model_is_neither(script: Script) -> None:
    found = script(f"{SETUP}\nfor x in test_loader:\n    total = x.sum()")
    assert [kind for _, kind in kinds(found)] == [LoopKind.OTHER]


def test_the_critic_loop_and_the_loader_loop_around_it_both_train(script: Script) -> None:
    found = script(f"{SETUP}\nfor x in loader:\n    for _ in range(5):\n        {STEP}")
    assert [kind for _, kind in kinds(found)] == [LoopKind.TRAINING, LoopKind.TRAINING]


def test_an_optimizer_of_transformers_steps(script: Script) -> None:
    source = f"""{SETUP}
import transformers
optimizer = transformers.AdamW(model.parameters())
scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 0, 9)
for x in loader:
    {STEP}
    scheduler.step()
"""
    (loop,) = script(source).training_loops
    assert [ast.unparse(call.node) for call in loop.optimizer_steps] == ["optimizer.step()"]


def test_a_scheduler_step_is_not_an_optimizer_step(script: Script) -> None:
    source = f"""{SETUP}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for x in loader:
    {STEP}
    scheduler.step()
"""
    (loop,) = script(source).training_loops
    assert [ast.unparse(call.node) for call in loop.optimizer_steps] == ["optimizer.step()"]


def test_class_based_trainer(script: Script) -> None:
    source = f"""{SETUP}
class Trainer:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader
        self.optimizer = torch.optim.Adam(self.model.parameters())
    def run_batch(self, x):
        loss = self.model(x).sum()
        loss.backward()
        self.optimizer.step()
    def fit(self):
        for epoch in range(3):
            for x in self.loader:
                self.run_batch(x)
Trainer(model, loader).fit()
"""
    (loop,) = script(source).training_loops
    assert [loader.node.lineno for loader in loop.loaders] == [6]
    assert [ast.unparse(call.node.func) for call in loop.forwards] == ["self.model"]


def test_batches_are_found_through_a_generator_of_the_project(script: Script) -> None:
    source = f"{SETUP}\ndef logged(it):\n    for b in it:\n        yield b\nfor x in logged(loader):\n    {STEP}"
    (loop,) = script(source).training_loops
    assert [loader.node.lineno for loader in loop.loaders] == [6]


@pytest.mark.parametrize(
    ("yields", "target"),
    [
        ("for b in self.it:\n            yield b", "x"),
        (
            "for i, b in enumerate(self.it):\n            if i > 3:\n                break\n            yield b",
            "x",
        ),
        ("for i, b in enumerate(self.it):\n            yield i, b", "i, x"),
        ("for b, c in zip(self.it, names):\n            yield b", "x"),
    ],
)
def test_an_object_that_yields_from_a_loader(script: Script, yields: str, target: str) -> None:
    source = f"""{SETUP}
class Logged:
    def __init__(self, it):
        self.it = it
    def __iter__(self):
        {yields}
def make():
    return Logged(loader)
for {target} in make():
    {STEP}"""
    (loop,) = script(source).training_loops
    assert [loader.node.lineno for loader in loop.loaders] == [6]
    assert loop.batch_target is not None
    assert ast.unparse(loop.batch_target) == "x"


@pytest.mark.parametrize(
    "yields",
    [
        "for b in self.it:\n            yield b + 1",
        "for i, b in enumerate(self.it):\n            yield i",
    ],
)
def test_an_object_that_yields_something_else(script: Script, yields: str) -> None:
    source = f"{SETUP}\nclass Logged:\n    it = loader\n    def __iter__(self):\n        {yields}\nfor x in Logged():\n    {STEP}"
    (loop,) = script(source).training_loops
    assert loop.loaders == ()


def test_a_generator_that_yields_from_itself_ends(script: Script) -> None:
    source = f"{SETUP}\ndef parts(w):\n    for p in parts(w):\n        yield p\nfor x in parts(loader):\n    {STEP}"
    (loop,) = [loop for loop in script(source).training_loops if loop.function is None]
    assert loop.loaders == ()


def test_a_backward_of_a_library_is_none(script: Script) -> None:
    step = "grads = kernels.backward(x, x, x, x); optimizer.step()"
    found = script(
        f"{SETUP}try:\n    import kernels\nexcept ImportError:\n    pass\nfor x in loader:\n    {step}\n"
    )
    assert [loop.backwards for loop in found.loops] == [()]


def test_loops_below_the_main_guard_of_an_imported_file_are_another_scripts(script: Script) -> None:
    loops = f"{SETUP}\ndef fit():\n    for x in loader:\n        {STEP}\n"
    guarded = f"if __name__ == '__main__':\n    for x in loader:\n        {STEP}\n"
    found = script({"train.py": "import tool\ntool.fit()\n", "tool.py": loops + guarded})
    assert [step.function is not None for step in found.step_code] == [True]
    assert len(found.training_loops) == 1
    assert (
        len(script(loops + guarded).step_code) == len(script(loops + guarded).training_loops) == 2
    )
