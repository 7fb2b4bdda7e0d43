"""What a script already says about precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.precision.precision import (
    find_frameworks,
    find_precision_uses,
    imported_packages,
    runs_in_double,
    under_autocast,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = "import torch\nfrom torch import nn\nmodel = nn.Linear(2, 2)\n"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("scaler = torch.cuda.amp.GradScaler()", "`GradScaler`"),
        ("from torch import autocast\nwith autocast('cuda'):\n    pass", "`autocast`"),
        ("x = torch.zeros(2, dtype=torch.half)", "`torch.half`"),
        ("x.to(torch.bfloat16)", "`torch.bfloat16`"),
        ("model.half()", "`.half()`"),
        ("model.bfloat16()", "`.bfloat16()`"),
    ],
)
def test_in_use(script: Script, code: str, what: str) -> None:
    uses = find_precision_uses(script(f"{HEAD}{code}\n").resolver)
    assert [use.what for use in uses] == [what]


@pytest.mark.parametrize(
    "code",
    [
        "from torch.cuda.amp import autocast",
        "half = len(x) // 2\nprint(half)",
        "name = 'torch.float16'",
        "class autocast:\n    pass\nautocast()",
        "args.half",
        "split(half=1)",
    ],
)
def test_not_in_use(script: Script, code: str) -> None:
    assert find_precision_uses(script(f"{HEAD}{code}\n").resolver) == ()


@pytest.mark.parametrize(
    ("code", "framework"),
    [
        ("from apex import amp\namp.initialize(model, o)", "NVIDIA Apex"),
        ("from accelerate import Accelerator\nAccelerator()", "Accelerate"),
        ("import pytorch_lightning as pl\nclass M(pl.LightningModule):\n    pass", "Lightning"),
        ("from transformers import Trainer\nTrainer(model)", "the Hugging Face Trainer"),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(model)", "FSDP"),
    ],
)
def test_frameworks(script: Script, code: str, framework: str) -> None:
    found = find_frameworks(script(f"{HEAD}{code}\n").resolver)
    assert {use.framework for use in found} == {framework}


def test_libraries_that_leave_the_step_alone(script: Script) -> None:
    code = (
        "import torch.distributed as dist\nfrom transformers import AutoModel\n"
        "from apex.parallel import convert_syncbn_model\n"
        "dist.init_process_group('nccl')\nAutoModel.from_pretrained('x')\nconvert_syncbn_model(model)\n"
    )
    assert find_frameworks(script(HEAD + code).resolver) == ()


@pytest.mark.parametrize(
    "code",
    [
        "from pytorch_lightning import seed_everything\nseed_everything(1)\n",
        "from accelerate.utils import set_seed\nset_seed(1)\n",
        "from accelerate.logging import get_logger\nlogger = get_logger(__name__)\n",
        "class Pipeline(Base):\n    def offload(self):\n        from accelerate import cpu_offload\n        cpu_offload(self.net)\n",
        "from pytorch_lightning.utilities import rank_zero_only\n@rank_zero_only\ndef log(): ...\n",
        "from lightning.pytorch.loggers import WandbLogger\nlogger = WandbLogger()\n",
        "from mmcv.runner import BaseModule, ModuleList\nclass Block(BaseModule):\n    layers = ModuleList()\n",
        "from mmengine.model import Sequential\nfrom mmengine.runner import load_checkpoint\n"
        "load_checkpoint(Sequential(), 'x')\n",
    ],
)
def test_helpers_of_frameworks_run_no_step(script: Script, code: str) -> None:
    assert find_frameworks(script(HEAD + code).resolver) == ()


LAYERS = """\
import pytorch_lightning as pl
from torch import nn


class Net(nn.Module):
    pass


class Lit(pl.LightningModule):
    def __init__(self):
        super(Lit, self).__init__()
"""


@pytest.mark.parametrize(
    ("train", "is_used"),
    [
        ("from layers import *\nloss = Net()(x)\n", False),
        ("from layers import Lit, Net\nloss = Net()(x)\n", False),
        ("from layers import *\nloss = Net()(x)\nLit()\n", True),
        ("import layers\nloss = layers.Lit()(x)\n", True),
        ("from layers import Lit as Chosen\nloss = Chosen()(x)\n", True),
    ],
)
def test_a_module_of_lightning_runs_no_step_unless_it_is_used_and_something_runs_it(
    script: Script, train: str, is_used: bool
) -> None:
    by_hand = f"{train}loss.backward()\n"
    trainer = "from pytorch_lightning import Trainer\nTrainer().fit(other)\n"
    for code, expected in ((by_hand, False), (by_hand + trainer, True)):
        found = find_frameworks(script({"train.py": code, "layers.py": LAYERS}).resolver)
        uses = [use for use in found if use.path.name == "layers.py"]
        assert bool(uses) is (expected and is_used)
    found = find_frameworks(script({"train.py": train, "layers.py": LAYERS}).resolver)
    assert found  # whoever trains it


def test_float64(script: Script) -> None:
    assert runs_in_double(script(f"{HEAD}model.double()\n").resolver) is not None
    default = "torch.set_default_dtype(torch.float64)\n"
    assert runs_in_double(script(HEAD + default).resolver) is not None
    assert runs_in_double(script(f"{HEAD}x = y.double()\nz = torch.float64\n").resolver) is None


def test_packages(script: Script) -> None:
    understood = script("import a.b as c\nfrom d.e import f\nfrom . import g\n")
    assert imported_packages(understood.project) == {"a", "d"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "    with torch.autocast('cuda'):\n        loss = model(x).sum()\n    loss.backward()\n",
            True,
        ),
        ("    with context:\n        loss = model(x).sum()\n    loss.backward()\n", True),
        ("    loss = model(x).sum()\n    loss.backward()\n", False),
        ("    loss = loss_of(x)\n    loss.backward()\n", True),
    ],
)
def test_under_autocast(script: Script, body: str, expected: bool) -> None:
    understood = script(
        f"{HEAD}context = torch.autocast('cuda') if ok else None\n"
        "def loss_of(x):\n    with torch.autocast('cuda'):\n        return model(x).sum()\n"
        f"for x in data:\n{body}"
    )
    (step,) = understood.step_code
    assert under_autocast(understood.resolver, step) is expected
