"""``ddp`` where a script writes files, and reads what it has written."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

from .test_ddp import FLAT, code

GPUS = {"gpus": 8}


def test_what_the_training_saved_by_another_name_is_waited_for(
    rewrite: Callable[..., RewriteResult],
) -> None:
    saving = "def save(name):\n    torch.save(model.state_dict(), os.path.join('out', name))\n\n\n"
    loading = "def load(name):\n    model.load_state_dict(torch.load('out/' + name, map_location='cpu'))\n\n\n"
    source = FLAT.replace("for epoch", f"{saving}{loading}for epoch").replace(
        "data = ", "import os\ndata = "
    )
    source += "    save('best.pt')\n"
    looked = "if os.path.exists('out/last.pt'):\n    torch.load('out/last.pt')\n"
    text = code(rewrite(source + looked + "load('best.pt')\n", ["ddp"], **GPUS))
    barrier = "if WORLD_SIZE > 1:\n    dist.barrier()  # until it is saved\n"
    assert f"\n{barrier}if os.path.exists(" in text
    inner = barrier.replace("if", "    if").replace("    dist", "        dist")
    assert f"def load(name):\n{inner}    model.load_state_dict(" in text
    assert "barrier()" not in code(rewrite(source, ["ddp"], **GPUS))


def test_what_is_written_for_the_training_is_waited_for_once(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """The first process has written and read it before the others begin."""
    prepare = (
        "import os\ndef prepare(name):\n    if not os.path.exists(name):\n        torch.save(torch.randn(40, 8), name)\n"
        "    return torch.load(name)\n\n\nx = prepare('x.pt')\n"
    )
    text = code(rewrite(FLAT.replace("data = ", f"{prepare}data = "), ["ddp"], **GPUS))
    assert "the first process prepares the data" in text
    assert "until it is saved" not in text


@pytest.mark.parametrize(
    "statement",
    [
        "shutil.copy2('a', 'b')",
        "shutil.move('a', 'b')",
        "os.unlink('a')",
        "Path('a').unlink()",
        "(folder / 'a').write_text('text')",
        "np.savez_compressed('a', b=1)",
        "pd.DataFrame([]).to_csv('a')",
        "Image.fromarray(picture).save('a')",
        "with open('a', 'a') as file:\n    csv.writer(file).writerow([1])",
        "with open('a', 'w') as file:\n    rows = csv.DictWriter(file, ['x'])\n    rows.writeheader()\n    rows.writerows([])",
        "with open('a', 'a') as file:\n    line = f'{epoch}'\n    file.write(line)",
        "fig, ax = plt.subplots()\nax.plot([1, 2])\nax.set_title('losses')\nfig.savefig('a.png')\nplt.close(fig)",
        "fig = plt.figure()\nax = fig.add_subplot(221)\nax.title.set_text('losses')\nax.xaxis.label.set_size(9)\nplt.savefig('a.png')",
    ],
)
def test_only_the_first_process_writes_files(
    rewrite: Callable[..., RewriteResult], statement: str
) -> None:
    head = (
        "import csv, os, shutil\nfrom pathlib import Path\nimport numpy as np\nimport pandas as pd\n"
        "import matplotlib.pyplot as plt\nfrom PIL import Image\n"
    )
    text = code(rewrite(head + FLAT + indent(f"{statement}\n", "    "), ["ddp"], **GPUS))
    assert text.endswith(indent(f"{statement}\n", "        "))
    assert text.removesuffix(indent(f"{statement}\n", "        ")).endswith(
        "print(epoch, global_loss)\n"
    )


@pytest.mark.parametrize("choice", ["plt.switch_backend('agg')", "matplotlib.use('agg')"])
def test_every_process_chooses_how_to_draw(
    rewrite: Callable[..., RewriteResult], choice: str
) -> None:
    head = f"import matplotlib\nimport matplotlib.pyplot as plt\n{choice}\n"
    assert f"\n{choice}\n" in code(rewrite(head + FLAT, ["ddp"], **GPUS))


def test_what_is_needed_elsewhere_is_made_by_all(rewrite: Callable[..., RewriteResult]) -> None:
    kept = "    with open('a', 'w') as file:\n        line = f'{epoch}'\n        file.write(line)\n    last = line\n"
    text = code(rewrite(FLAT + kept, ["ddp"], **GPUS))
    assert "\n    with open('a', 'w') as file:\n        line = " in text
    drawn = "    fig, ax = plt.subplots()\n    ax.plot([1])\n    figures = [fig]\n"
    text = code(rewrite("import matplotlib.pyplot as plt\n" + FLAT + drawn, ["ddp"], **GPUS))
    assert "\n    fig, ax = plt.subplots()\n    if RANK == 0:\n        ax.plot" in text


def test_what_another_script_has_had_changed(rewrite: Callable[..., RewriteResult]) -> None:
    util = (
        "import torch\n\n\ndef save(state, name):\n    if name:\n        torch.save(state, name)\n\n\n"
        "def report(state):\n    print(len(state))\n    torch.save(state, 'last.pt')\n"
    )
    train = f"from util import report, save\n{FLAT}    save(model.state_dict(), 'a.pt')\n    report({{}})\n"
    first = rewrite({"train.py": train, "util.py": util}, ["ddp"], **GPUS)
    texts = {file.path.name: file.text for file in first.files}
    assert texts["util.py"].count("RANK == 0") == 2
    again = rewrite({"other.py": train, "util.py": texts["util.py"]}, ["ddp"], **GPUS)
    others = {file.path.name: file.text for file in again.files}
    assert others["other.py"] == texts["train.py"]
    assert others["util.py"] == texts["util.py"]


@pytest.mark.parametrize(
    ("other", "is_done"),
    [
        ("from util import save\n\nsave({})\n", True),
        ("import util\nimport torch.distributed as dist\n\nutil.save({})\n", False),
        ("from accelerate import Accelerator\nfrom util import save\n\nsave({})\n", False),
    ],
)
def test_what_other_scripts_share_acts_under_torchrun_alone(
    rewrite: Callable[..., RewriteResult], other: str, is_done: bool
) -> None:
    util = "import torch\n\n\ndef save(state):\n    torch.save(state, 'last.pt')\n"
    train = f"from util import save\n{FLAT}    save(model.state_dict())\n"
    result = rewrite({"train.py": train, "util.py": util, "finetune.py": other}, ["ddp"], **GPUS)
    texts = {file.path.name: file.text for file in result.files}
    assert ("if RANK == 0:\n        torch.save(" in texts["util.py"]) is is_done
    assert ("DistributedDataParallel" in texts["train.py"]) is is_done
    if not is_done:
        (skip,) = (skip for file in result.files for skip in file.skips)
        assert "not done, `finetune.py` uses `save`, too" in skip.message
