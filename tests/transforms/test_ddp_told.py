"""``ddp`` where a training loop tells what it has added up so far, or what a step has measured."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

START = """\
import math
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

torch.manual_seed(0)
train_set = TensorDataset(torch.randn(200, 8), torch.randint(0, 3, (200,)))
loader = DataLoader(train_set, batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter()
step = 0

for epoch in range(9):
    running, correct, seen, largest = 0.0, 0, 0, 0.0
    began = time.time()
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        step += 1
        running += loss.item()
        correct += (out.argmax(1) == y).sum().item()
        seen += len(x)
        largest += x.max().item()
"""
OWN = "where it is not added up, the first process tells its own share"
Told = Callable[[str], tuple[str, str]]


def distributed(rewrite: Callable[..., RewriteResult], source: str) -> tuple[str, str]:
    """What becomes of the end of the loop of ``source``, and the reason of the change with its notes."""
    file = rewrite(source, ["ddp"], gpus=2).files[0]
    assert not file.errors
    assert len(file.changes) == 1, file.skips
    behind = file.text.partition("largest += x.max().item()\n")[2]
    return dedent(behind), file.changes[0].reason


@pytest.fixture
def told(rewrite: Callable[..., RewriteResult]) -> Told:
    """What becomes of statements at the end of the loop, and the reason of the change with its notes."""

    def run(statements: str) -> tuple[str, str]:
        source = START + indent(dedent(statements).lstrip("\n"), " " * 8)
        return distributed(rewrite, source)

    return run


def test_running_sums_are_told_of_all_processes(told: Told) -> None:
    text, reason = told("""
        if i % 5 == 4:
            print(f"[{epoch}, {i + 1}] {running / 5:.4f} {correct / seen:.4f}")
            running = 0.0
    """)
    assert (
        text
        == """\
if i % 5 == 4:
    global_running, global_correct, global_seen = sums_over_processes(
        running / WORLD_SIZE, correct, seen
    )
    if RANK == 0:
        print(
            f"[{epoch}, {i + 1}] {global_running / 5:.4f} {global_correct / global_seen:.4f}"
        )
    running = 0.0
"""
    )
    assert OWN not in reason


def test_one_number_is_told_by_itself(told: Told) -> None:
    text, reason = told("""
        if i % 5 == 0 and epoch:
            print("%.3f" % loss.item(), seen, "%d%%" % (100 * i / len(loader)))
    """)
    both = "sums_over_processes(\n        loss.item() / WORLD_SIZE, seen\n    )\n"
    assert f"    global_loss, global_seen = {both}" in text
    text, reason = told("if i % 5 == 0:\n    print(f'{loss.item():.3f}')\n")
    assert (
        text
        == """\
if i % 5 == 0:
    global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
    if RANK == 0:
        print(f'{global_loss:.3f}')
"""
    )
    assert OWN not in reason


def test_a_count_that_is_a_tensor_is_shown_as_one(told: Told) -> None:
    text, _ = told(
        "hits = 0\nhits += (out.argmax(1) == y).sum()\nif i % 5 == 0:\n    print(hits)\n"
    )
    assert "    global_hits = sum_over_processes(hits)\n" in text
    text, _ = told("hits = 0.0\nhits += loss\nif i % 5 == 0:\n    print(hits)\n")
    assert "global_hits" not in text


def test_samples_are_counted_without_an_exchange(told: Told) -> None:
    text, _ = told("print('{}/{}'.format(i * len(x), len(loader.dataset)), y.size(0))\n")
    assert (
        text
        == """\
if RANK == 0:
    print(
        '{}/{}'.format(i * len(x) * WORLD_SIZE, len(loader.dataset)),
        y.size(0) * WORLD_SIZE,
    )
"""
    )


def test_what_is_calculated_on_the_way_follows(told: Told) -> None:
    text, reason = told("""
        if i % 5 == 4:
            current = running / 5
            perplexity = math.exp(current)
            passed = time.time() - began
            print(current, perplexity, seen / passed)
            writer.add_scalar("loss", current, step)
            running = 0.0
            began = time.time()
    """)
    assert (
        text
        == """\
if i % 5 == 4:
    global_running, global_seen = sums_over_processes(
        running / WORLD_SIZE, seen
    )
    current = global_running / 5
    perplexity = math.exp(current)
    passed = time.time() - began
    if RANK == 0:
        print(current, perplexity, global_seen / passed)
        writer.add_scalar("loss", current, step)
    running = 0.0
    began = time.time()
"""
    )
    assert OWN not in reason


def test_several_places_tell(told: Told) -> None:
    text, _ = told("""
        if i % 2:
            print(running)
            running = 0.0
            print(running, correct)
        elif i % 3:
            writer.add_scalar("correct", correct / seen, step)
        else:
            print("nothing")
    """)
    assert text.startswith("""\
if i % 2:
    global_running, global_correct = sums_over_processes(
        running / WORLD_SIZE, correct
    )
    if RANK == 0:
        print(global_running)
    running = 0.0
    if RANK == 0:
        print(running, global_correct)
elif i % 3:
    global_correct, global_seen = sums_over_processes(correct, seen)
    if RANK == 0:
""")


def test_what_is_changed_between_is_exchanged_again(told: Told) -> None:
    text, _ = told("""
        if i % 5 == 4:
            print(running)
            running += loss.item()
            print(running)
    """)
    assert (
        text
        == """\
if i % 5 == 4:
    global_running = sum_over_processes(running) / WORLD_SIZE
    if RANK == 0:
        print(global_running)
    running += loss.item()
    global_running = sum_over_processes(running) / WORLD_SIZE
    if RANK == 0:
        print(global_running)
"""
    )


def test_what_is_told_in_every_step(told: Told) -> None:
    text, _ = told("writer.add_scalar('loss', loss.item(), step)\nprint('step')\n")
    assert (
        text
        == """\
global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
if RANK == 0:
    writer.add_scalar('loss', global_loss, step)
    print('step')
"""
    )


def test_a_sum_made_zero_on_the_way_is_told_behind_the_loop(told: Told) -> None:
    text, _ = told("if i % 5 == 4:\n    running = 0.0\n")
    assert "running = sum" not in text
    source = "if i % 5 == 4:\n    running = 0.0\n"
    text, reason = told(source + "print(i)\n")
    assert OWN not in reason


@pytest.mark.parametrize(
    "statements",
    [
        "if loss.item() < 1:\n    print(running)\n",
        "if random.random() < 0.1:\n    print(running)\n",
        "if time.time() - began > 60:\n    print(running)\n    began = time.time()\n",
        "for name in range(correct):\n    print(running)\n",
        "try:\n    print(running)\nexcept ValueError:\n    raise\n",
        "if i % 5 == 4:\n    print(largest)\n",
        "if i % 5 == 4:\n    print(running / largest)\n",
        "if i % 5 == 4:\n    print(out.max().item())\n",
        "if i % 5 == 4:\n    print(loss)\n",
        "if i % 5 == 4:\n    print(locals()['running'], str([running][0]))\n",
        "smooth = 0.9 * smooth + loss.item() if i else loss.item()\nprint(smooth)\n",
        "total = loss + out.max()\ntotal.backward\nprint(f'{total:.3f}')\n",
        "running *= 0.9\nif i % 5 == 4:\n    print(running)\n",
        "if loss.item() > 3:\n    running = 0.0\nif i % 5 == 4:\n    print(loss.item() ** out[0, 0].item())\n",
    ],
)
def test_what_is_not_understood_is_told_as_it_is(told: Told, statements: str) -> None:
    text, reason = told(statements)
    assert "_over_processes(" not in text
    assert "global_" not in text
    assert OWN in reason


def test_a_loss_that_is_trained_on_stays_that_of_the_process(told: Told) -> None:
    text, _ = told("""
        if i % 5 == 4:
            penalty = nn.functional.mse_loss(out, out.detach())
            whole = loss + 0.1 * penalty
            print(f"{whole:.3f}")
    """)
    assert "    whole = loss + 0.1 * penalty\n" in text
    assert "    global_whole = sum_over_processes(whole) / WORLD_SIZE\n" in text


def test_what_all_processes_have_in_common_is_not_added_up_again(told: Told) -> None:
    text, _ = told("""
        if i % 5 == 4:
            mean, right = running / 5, correct
            mean = running / 5
            right = correct
            print(mean, right)
    """)
    assert "    right = correct\n" in text
    assert "    mean = global_running / 5\n" in text
    text, _ = told("""
        if i % 5 == 4:
            mean = running / 5
            print(mean)
        if i == 9:
            print(mean)
    """)
    assert text.count("sum_over_processes(") == 1


def test_a_dictionary_of_every_step(told: Told) -> None:
    text, reason = told("""
        log = {"loss": loss.item(), "rate": optimizer.param_groups[0]["lr"]}
        writer.add_scalars("train", log, step)
        tqdm.write(f"{step}")
    """)
    assert (
        text
        == """\
global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
log = {"loss": global_loss, "rate": optimizer.param_groups[0]["lr"]}
if RANK == 0:
    writer.add_scalars("train", log, step)
    tqdm.write(f"{step}")
"""
    )
    assert OWN not in reason


BAR = """\
import sys


def progress_bar(current, total, message=None):
    sys.stdout.write(" [")
    for _ in range(int(65.0 * current / total)):
        sys.stdout.write("=")
    sys.stdout.write("] %s\\n" % message)
    sys.stdout.flush()


"""


def test_a_bar_that_the_script_draws_itself(rewrite: Callable[..., RewriteResult]) -> None:
    call = "        progress_bar(i, len(loader), 'Loss: %.3f' % (running / (i + 1)))\n"
    file = rewrite(BAR + START + call, ["ddp"], gpus=2).files[0]
    assert file.text.endswith("""\
        global_running = sum_over_processes(running) / WORLD_SIZE
        if RANK == 0:
            progress_bar(i, len(loader), 'Loss: %.3f' % (global_running / (i + 1)))
""")


def test_a_progress_bar_shows_the_first_process(
    rewrite: Callable[..., RewriteResult],
) -> None:
    source = START.replace("in enumerate(loader):", "in enumerate(bar := tqdm(loader)):")
    source = START.replace(
        "    for i, (x, y) in enumerate(loader):",
        "    bar = tqdm(loader)\n    for i, (x, y) in enumerate(bar):",
    )
    file = rewrite(
        source + "        bar.set_postfix(loss=running / seen)\n", ["ddp"], gpus=2
    ).files[0]
    assert "bar.set_postfix(loss=running / seen)" in file.text
    assert "progress bars show the first process's share" in file.changes[0].reason
    assert OWN not in file.changes[0].reason


def test_the_count_of_a_loop_in_a_progress_bar_is_the_same_everywhere(
    rewrite: Callable[..., RewriteResult],
) -> None:
    source = START.replace(
        "in enumerate(loader):", "in tqdm(enumerate(loader), total=len(loader)):"
    )
    file = rewrite(
        source + "        if i % 5 == 4:\n            print(correct / seen)\n", ["ddp"], gpus=2
    ).files[0]
    assert "sums_over_processes(correct, seen)" in file.text


def test_a_condition_under_which_only_constants_are_told_stays_one(told: Told) -> None:
    text, reason = told("if i % 5 == 4:\n    print('step', i)\n")
    assert text == "if RANK == 0 and i % 5 == 4:\n    print('step', i)\n"
    assert OWN not in reason


def test_a_taken_name_is_left_to_the_script(told: Told) -> None:
    text, _ = told("global_running = 3\nif i % 5 == 4:\n    print(running)\n")
    assert "all_running = sum_over_processes(running) / WORLD_SIZE" in text


BEHIND = """\
    if epoch % 2:
        last = loss.item()
        print(f"{last:.4f} {running / len(loader)} {correct / seen}")
        losses.append(last)
"""


def test_the_last_loss_is_told_behind_the_loop(rewrite: Callable[..., RewriteResult]) -> None:
    source = START.replace("step = 0\n", "step = 0\nlosses = []\n") + BEHIND
    file = rewrite(source, ["ddp"], gpus=2).files[0]
    assert file.text.endswith("""\
    running = sum_over_processes(running) / WORLD_SIZE
    correct = sum_over_processes(correct)
    seen = sum_over_processes(seen)
    if epoch % 2:
        global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
        last = global_loss
        if RANK == 0:
            print(f"{last:.4f} {running / len(loader)} {correct / seen}")
        losses.append(last)
""")
    assert OWN not in file.changes[0].reason


@pytest.mark.parametrize(
    "behind",
    [
        "if loss.item() < 1:\n    print(loss.item())\n",
        "for x in range(3):\n    print(x, loss.item())\n",
        "print(largest)\n",
        "loss = out.max()\nprint(loss.item())\n",
    ],
)
def test_what_is_not_understood_behind_the_loop_stays(
    rewrite: Callable[..., RewriteResult], behind: str
) -> None:
    file = rewrite(START + indent(behind, "    "), ["ddp"], gpus=2).files[0]
    assert len(file.changes) == 1
    assert "global_" not in file.text


METER = """\
class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output, target, topk=(1,)):
    batch_size = target.size(0)
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    res = []
    for k in topk:
        correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
        res.append(correct_k.mul_(100.0 / batch_size))
    return res


losses, top1, times = AverageMeter(), AverageMeter(), AverageMeter()

"""


@pytest.fixture
def given(rewrite: Callable[..., RewriteResult]) -> Told:
    """``told``, with meters that the statements may give something to."""

    def run(statements: str, meter: str = METER) -> tuple[str, str]:
        source = START.replace("for epoch in", meter + "for epoch in", 1)
        source += indent(dedent(statements).lstrip("\n"), " " * 8)
        return distributed(rewrite, source)

    return run


def test_meters_are_given_what_all_processes_have_measured(given: Told) -> None:
    text, reason = given("""
        acc1, acc2 = accuracy(out, y, topk=(1, 2))
        losses.update(loss.item(), x.size(0))
        top1.update(acc1[0], x.size(0))
        if i % 5 == 4:
            print('Loss {loss.val:.4f} ({loss.avg:.4f})'.format(loss=losses), top1.avg.item())
    """)
    assert (
        text
        == """\
acc1, acc2 = accuracy(out, y, topk=(1, 2))
global_loss, global_acc1 = sums_over_processes(
    loss.item() / WORLD_SIZE, acc1[0] / WORLD_SIZE
)
losses.update(global_loss, x.size(0) * WORLD_SIZE)
top1.update(global_acc1, x.size(0) * WORLD_SIZE)
if RANK == 0 and i % 5 == 4:
    print('Loss {loss.val:.4f} ({loss.avg:.4f})'.format(loss=losses), top1.avg.item())
"""
    )
    assert "what is given to `losses` and `top1` is exchanged each time" in reason
    assert OWN not in reason


def test_meters_are_given_what_a_comprehension_makes(given: Told) -> None:
    loop = METER[METER.index("    res = []") : METER.index("    return res")]
    listed = "    return [correct[:k].reshape(-1).float().sum(0).mul_(100.0 / batch_size) for k in topk]\n"
    meter = METER.replace(loop + "    return res\n", listed)
    text, _ = given(
        "acc1, acc2 = accuracy(out, y, topk=(1, 2))\ntop1.update(acc1.item(), len(x))", meter
    )
    assert "global_acc1 = sum_over_processes(acc1.item()) / WORLD_SIZE\n" in text


@pytest.mark.parametrize(
    "statements",
    [
        "losses.update(x.max().item(), x.size(0))\n",
        "losses.update(loss.item() * x.max().item(), len(x))\n",
        "if loss.item() < 9:\n    losses.update(loss.item(), len(x))\n",
        "kept = losses.update(loss.item(), len(x))\n",
        "losses.update(loss, len(x))\n",
    ],
)
def test_meters_are_given_their_own_share_otherwise(given: Told, statements: str) -> None:
    text, reason = given(statements + "print(losses.avg, times.avg)\n")
    assert text.startswith(statements)
    assert OWN in reason


@pytest.mark.parametrize(
    "statements",
    [
        "times.update(time.time() - began)\n",
        "losses.update(*(loss.item(), len(x)))\n",
        "losses.update(**{'val': loss.item()})\n",
        "losses.update(1.0, 2)\n",
    ],
)
def test_what_is_given_to_meters_stays(given: Told, statements: str) -> None:
    text, _ = given(statements)
    assert text == statements


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class AverageMeter:", "class AverageMeter(nn.Module):"),
        ("        self.val = val\n", "        self.val = val\n        torch.save(val, 'x')\n"),
        ("        self.val = val\n", "        self.val = val\n        model.zero_grad()\n"),
        ("        self.val = val\n", "        self.val = val\n        val.count = 1\n"),
    ],
)
def test_objects_that_do_more_are_no_meters(
    given: Callable[..., tuple[str, str]], old: str, new: str
) -> None:
    text, _ = given(
        "losses.update(loss.item(), len(x))\nprint(losses.avg)\n", METER.replace(old, new)
    )
    assert text.startswith("losses.update(loss.item(), len(x))\n")


def test_lists_are_given_what_all_processes_have_measured(given: Told) -> None:
    text, reason = given(
        """
        losses.append(loss.item())
        sums.append(loss.item() * len(x))
        sizes.append(len(x))
        print(sum(losses) / len(losses))
        """,
        "losses, sums, sizes = [], [], []\n",
    )
    assert (
        text
        == """\
global_loss = sum_over_processes(loss.item()) / WORLD_SIZE
losses.append(global_loss)
sums.append(global_loss * (len(x) * WORLD_SIZE))
sizes.append(len(x) * WORLD_SIZE)
if RANK == 0:
    print(sum(losses) / len(losses))
"""
    )
    assert "what is given to `losses` and `sums` is exchanged each time" in reason


@pytest.mark.parametrize(
    "statements",
    [
        "losses.append(loss)",
        "losses.append(out)",
        "losses.append(x)",
        "losses.append(loss.item() * len(x))\nsizes.append(len(x))\nlosses.append(out.norm().item())",
        "seen.append(loss.item())",
    ],
)
def test_lists_go_on_getting_what_is_not_understood(given: Told, statements: str) -> None:
    text, _ = given(statements, "losses, sizes, seen = [], [], deque()\n")
    assert text == statements


def test_losses_that_the_network_returns_among_other_results(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """The mean over DataParallel's replicas is that over processes."""
    network = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        outputs = (self.body(x),)
        if labels is not None:
            outputs = (nn.functional.cross_entropy(outputs[0], labels),) + outputs
        return outputs

model = nn.DataParallel(Net())
"""
    made = "model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))\n"
    loss = "        loss = nn.functional.cross_entropy(out, y)\n"
    returned = "        loss = out[0]\n        if torch.cuda.device_count() > 1:\n            loss = loss.mean()\n"
    source = START.replace(made, network).replace("model(x)", "model(x, labels=y)")
    source = source.replace(loss, returned).replace("(out.argmax", "(out[1].argmax")
    text, reason = distributed(rewrite, source + "    print(running / len(loader))\n")
    assert "running = sum_over_processes(running) / WORLD_SIZE\n" in text
    assert OWN not in reason
