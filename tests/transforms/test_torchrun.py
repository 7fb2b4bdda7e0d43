from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

from . import table

GPUS = {"gpus": 2}
SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29512"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def main(rank, world_size, steps):
    setup(rank, world_size)
    torch.manual_seed(rank)
    model = nn.Linear(8, 2)
    if torch.cuda.is_available():
        model = model.to(rank)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    world_size = 2
    mp.spawn(main, args=(world_size, args.steps), nprocs=world_size)
"""


def code(result: RewriteResult) -> str:
    return next(file.text for file in result.files if file.path.name == "train.py")


def test_the_processes_are_started_by_torchrun(check_transformed: Callable[..., None]) -> None:
    after = (
        SCRIPT.replace(
            "\n\ndef setup",
            """

# torchrun starts one process per GPU and tells it its place; without it there is one process.
RANK = int(os.environ.get("RANK", 0))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def setup""",
            1,
        )
        .replace("import torch.multiprocessing as mp\n", "")
        .replace('["MASTER_ADDR"] = "localhost"', '.setdefault("MASTER_ADDR", "localhost")')
        .replace('["MASTER_PORT"] = "29512"', '.setdefault("MASTER_PORT", "29512")')
        .replace("world_size = 2", "world_size = WORLD_SIZE")
        .replace("model.to(rank)", "model.to(LOCAL_RANK)")
        .replace(
            "mp.spawn(main, args=(world_size, args.steps), nprocs=world_size)",
            "main(RANK, world_size, args.steps)",
        )
    )
    check_transformed(SCRIPT, after, **GPUS)


def test_what_else_the_package_is_used_for_keeps_its_import(
    rewrite: Callable[..., RewriteResult],
) -> None:
    shared = SCRIPT.replace(
        "    world_size = 2", "    mp.set_sharing_strategy('file_system')\n    world_size = 2"
    )
    assert "import torch.multiprocessing as mp\n" in code(rewrite(shared, ["torchrun"], **GPUS))


def test_only_where_several_gpus_are_asked_for(check_noop: Callable[..., None]) -> None:
    check_noop(SCRIPT)
    check_noop(SCRIPT, gpus=1)


def test_gpus_are_counted_by_torchrun(rewrite: Callable[..., RewriteResult]) -> None:
    counted = SCRIPT.replace("    world_size = 2\n", "").replace(
        "args=(world_size, args.steps), nprocs=world_size",
        "args=(torch.cuda.device_count(), args.steps), nprocs=torch.cuda.device_count()",
    )
    assert "    main(RANK, WORLD_SIZE, args.steps)\n" in code(
        rewrite(counted, ["torchrun"], **GPUS)
    )


def test_every_way_to_name_a_gpu(rewrite: Callable[..., RewriteResult]) -> None:
    named = SCRIPT.replace(
        "        model = model.to(rank)\n",
        '        device = torch.device(f"cuda:{rank}")\n'
        "        torch.cuda.set_device(rank)\n"
        "        model = model.cuda(rank)\n"
        '        print(f"process {rank}")\n'
        "        torch.manual_seed(steps + rank)\n",
    ).replace("Parallel(model)", "Parallel(model, device_ids=[rank], output_device=rank)")
    chosen = "Parallel(model, device_ids=[rank] if torch.cuda.is_available() else None)"
    text = code(rewrite(SCRIPT.replace("Parallel(model)", chosen), ["torchrun"], **GPUS))
    assert "device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None" in text
    text = code(rewrite(named, ["torchrun"], **GPUS))
    assert 'torch.device(f"cuda:{LOCAL_RANK}")' in text
    assert "set_device(LOCAL_RANK)" in text
    assert "model.cuda(LOCAL_RANK)" in text
    assert "device_ids=[LOCAL_RANK], output_device=LOCAL_RANK" in text
    assert 'print(f"process {rank}")' in text


def test_a_launcher_of_the_users_own_stays(
    rewrite: Callable[..., RewriteResult], tmp_path: Path
) -> None:
    (tmp_path / "launch_train.sh").write_text("mine\n")
    result = rewrite(SCRIPT, ["torchrun"], **GPUS)
    assert [file.path.name for file in result.files if file.created] == ["launch_train.sbatch"]
    assert "launch_train.sh is there already" in result.files[0].changes[0].reason


GUARD = 'if __name__ == "__main__":\n'
SPAWN = "    mp.spawn(main, args=(world_size, args.steps), nprocs=world_size)\n"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (SPAWN, SPAWN + "    print('done')\n", "would run what stands around their start"),
        (SPAWN, "    torch.manual_seed(0)\n" + SPAWN, "would run what stands around their start"),
        (SPAWN, "    os.makedirs('out')\n" + SPAWN, "would run what stands around their start"),
        # A process that is spawned imports the script anew: it does not see what was changed here.
        (GUARD, f"RATE = 1\n{GUARD}    RATE = 2\n", "do not see this change"),
        (GUARD, f"SET = {{}}\n{GUARD}    SET['a'] = 2\n", "do not see this change"),
        (GUARD, f"SET = {{}}\n{GUARD}    own = SET\n    own['a'] = 2\n", "do not see this change"),
        (SPAWN, "    torch.backends.cudnn.benchmark = True\n" + SPAWN, "do not see this change"),
        (SPAWN, "    for _ in range(2):\n    " + SPAWN, "started in a loop"),
        (SPAWN, SPAWN.replace("mp.spawn", "context = mp.spawn"), "is used"),
        (SPAWN, SPAWN.replace("size)\n", "size, join=False)\n"), "goes on while"),
        (SPAWN, SPAWN.replace("size)\n", "size, daemon=True)\n"), "in a way of their own"),
        (SPAWN, SPAWN.replace("spawn(main", "spawn(globals()['main']"), "not one that is known"),
        (SPAWN, SPAWN + SPAWN, "in several places"),
        (SPAWN, SPAWN.replace("nprocs=world_size", "nprocs=args.steps"), "for the script to say"),
        (SPAWN, SPAWN.replace("nprocs=world_size", "nprocs=4"), "that meet is not that of those"),
        ("world_size = 2", "world_size = args.steps", "for the script to say"),
        ("rank=rank, ", "rank=rank + 1, ", "is not the number it is started with"),
        ('"gloo", ', '"gloo", "tcp://localhost:29500", ', "an address of the script's own"),
        ("manual_seed(rank)", "manual_seed(rank * 2)", "is not seen"),
        ("for _ in range(steps)", "for _ in range(rank, steps)", "is not seen"),
        ("    setup(rank", "    rank = rank or 1\n    setup(rank", ""),
        ("manual_seed(rank)", "manual_seed(torch.cuda.device_count())", "count the GPUs"),
        ("dist.init_process_group(", "print(", "do not meet in one place"),
        ("steps", "RANK", "`RANK` is a name of the script's own"),
    ],
)
def test_left_alone(check_noop: Callable[..., None], old: str, new: str, reason: str) -> None:
    assert old in SCRIPT
    check_noop(SCRIPT.replace(old, new), reason, **GPUS)


def test_what_every_process_may_change(rewrite: Callable[..., RewriteResult]) -> None:
    """The environment, which spawned processes inherit, and what the starting process has made for itself."""
    changing = (
        "    import os\n    os.environ['OMP_NUM_THREADS'] = '1'\n    args.steps += 1\n"
        "    given = {}\n    given['a'] = args.steps\n"
    )
    text = code(rewrite(SCRIPT.replace(SPAWN, changing + SPAWN), ["torchrun"], **GPUS))
    assert "main(RANK, world_size, args.steps)" in text


def test_a_function_that_reads_the_arguments(rewrite: Callable[..., RewriteResult]) -> None:
    reading = SCRIPT.replace(GUARD, "def arguments():\n").replace(
        "    args = parser.parse_args()\n",
        f"    return parser.parse_args()\n\n\n{GUARD}    args = arguments()\n",
    )
    assert "main(RANK, world_size, args.steps)" in code(rewrite(reading, ["torchrun"], **GPUS))
    for other in ("print()", "global SCRIPT; SCRIPT = 1"):
        more = "SCRIPT = 0\n\n\ndef arguments():\n    " + other + "\n"
        changed = reading.replace("def arguments():\n", more)
        assert "main(RANK" not in code(rewrite(changed, ["torchrun"], **GPUS))


@pytest.mark.slow
@pytest.mark.torch
def test_torchrun_trains_what_spawned_processes_train(
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
    tmp_path: Path,
) -> None:
    import torch

    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    saved: list[dict[str, torch.Tensor]] = []
    for text, start in ((SCRIPT, []), (code(rewrite(SCRIPT, ["torchrun"], **GPUS)), several)):
        folder = tmp_path / f"run{len(saved)}"
        folder.mkdir()
        (folder / "train.py").write_text(text)
        command = [sys.executable, *start, "train.py"]
        subprocess.run(command, cwd=folder, env=env, check=True, timeout=200)
        saved.append(torch.load(folder / "model.pt"))
    spawned, launched = saved
    assert all(torch.equal(launched[name], spawned[name]) for name in spawned)
    alone = subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, timeout=200)
    assert alone.returncode == 0
    count_case("torchrun", table.VERIFIED)
