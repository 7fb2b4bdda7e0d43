"""`tf32`: where float32 matrix products stay, and where nobody may touch them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

from .test_fused_optimizer import NETWORK_OF_ITS_CALLERS

Check = Callable[..., None]

MLP = "nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())"
SCRIPT = """\
import torch
from torch import nn

{setup}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = {model}.to(device)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
    {more}
    loss.backward()
    optimizer.step()
"""


def script(
    setup: str = "torch.manual_seed(0)",
    model: str = MLP,
    optimizer: str = "SGD",
    more: str = "pass",
) -> str:
    return SCRIPT.format(setup=setup, model=model, optimizer=optimizer, more=more)


def test_below_the_seed(check_transformed: Check) -> None:
    after = 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(), script(after))


def test_below_the_last_of_several_seeds(check_transformed: Check) -> None:
    seeds = "import random\nrandom.seed(0)\ntorch.manual_seed(0)\ntorch.cuda.manual_seed_all(0)"
    after = seeds + '\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(seeds), script(after))


def test_below_a_condition_around_the_seed(check_transformed: Check) -> None:
    seeds = "if args.seed is not None:\n    torch.manual_seed(args.seed)"
    after = seeds + '\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(seeds), script(after))


def test_below_a_function_that_seeds(check_transformed: Check) -> None:
    seeds = "def seed_all(n):\n    torch.manual_seed(n)\n\n\nseed_all(3)"
    after = seeds + '\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(seeds), script(after))


def test_below_the_device_without_a_seed(check_transformed: Check) -> None:
    before = script("")
    line = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    after = before.replace(line, line + 'torch.set_float32_matmul_precision("high")\n')
    check_transformed(before, after)


def test_below_the_options_among_which_the_device_is(check_transformed: Check) -> None:
    setting = 'torch.set_float32_matmul_precision("high")'
    setup = 'args.batch_size = 64\nargs.device = "cuda"\nargs.lr = 3e-4\nargs.steps = 2 * args.batch_size\n{}\nargs.n = len(loader)'
    head, rest = script("{setup}").split('device = torch.device("cuda"', 1)
    before = head + rest.split("\n", 1)[1].replace("device", "args.device")
    after = before.replace("{setup}", setup.replace("{}", setting))
    check_transformed(before.replace("{setup}", setup.replace("{}\n", "")), after)


def test_above_the_data_that_are_made_first(check_transformed: Check) -> None:
    text = """\
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        print("training")
        {}# data
        data = TensorDataset(torch.rand(9, 8))
        loader = DataLoader(data)
        model = nn.Linear(8, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
        """
    setting = 'torch.set_float32_matmul_precision("high")\n' + " " * 8
    check_transformed(dedent(text.format("")), dedent(text.format(setting)))


def test_below_the_settings_there_are(check_transformed: Check) -> None:
    before = script("torch.set_num_threads(4)\nprint(1)\n")
    line = "torch.set_num_threads(4)\n"
    after = before.replace(line, line + 'torch.set_float32_matmul_precision("high")\n')
    check_transformed(before, after)


def test_not_inside_the_first_of_several_trainings(check_transformed: Check) -> None:
    before = """\
        import torch
        from torch import nn

        def learning_rate():
            net = nn.TransformerEncoderLayer(8, 2).cuda()
            net(torch.ones(2, 8).cuda()).sum().backward()
            return 0.1

        def fit(lr):
            net = nn.TransformerEncoderLayer(8, 2).cuda()
            opt = torch.optim.AdamW(net.parameters(), lr=lr)
            for x in batches:
                opt.zero_grad()
                net(x.cuda()).mean().backward()
                opt.step()

        if __name__ == "__main__":
            lr = learning_rate()
            fit(lr)
    """
    line = "            lr = learning_rate()\n"
    setting = 'torch.set_float32_matmul_precision("high")\n'
    check_transformed(before, before.replace(line, f"            {setting}{line}"))


def test_alias_of_torch_and_quotes(check_transformed: Check) -> None:
    before = """\
        import torch as th
        from torch import nn

        def main():
            th.manual_seed(0)
            net = nn.TransformerEncoderLayer(8, 2).cuda()
            opt = th.optim.AdamW(net.parameters(), lr=float('1e-3'))
            for x in batches:
                opt.zero_grad()
                net(x.cuda()).mean().backward()
                opt.step()

        if __name__ == '__main__':
            main()
    """
    seed = "            th.manual_seed(0)\n"
    check_transformed(
        before, before.replace(seed, seed + "            th.set_float32_matmul_precision('high')\n")
    )


def test_in_main_when_networks_and_loop_are_in_other_files(check_transformed: Check) -> None:
    train = """\
        import torch
        from engine import fit
        from model import Net


        def main():
            model = Net().cuda()
            fit(model)


        if __name__ == "__main__":
            main()
    """
    files = {
        "train.py": train,
        "model.py": """\
            import torch
            from torch import nn


            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = nn.Parameter(torch.zeros(8, 8))

                def forward(self, x):
                    return x @ self.weight
        """,
        "engine.py": """\
            import torch


            def fit(model):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x in batches:
                    optimizer.zero_grad()
                    model(x.cuda()).sum().backward()
                    optimizer.step()
        """,
    }
    made = "            model = Net().cuda()\n"
    setting = '            torch.set_float32_matmul_precision("high")\n'
    check_transformed(files, {**files, "train.py": train.replace(made, setting + made)})


@pytest.mark.parametrize(
    "setup",
    [
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.allow_tf32 = False",
        "torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.fp32_precision = 'tf32'",
        "torch.set_float32_matmul_precision('highest')",
        "setattr(torch.backends.cuda.matmul, 'allow_tf32', False)",
        "import os\nos.environ['NVIDIA_TF32_OVERRIDE'] = '0'",
        "from torch import set_float32_matmul_precision as precise\n"
        "def unused():\n    torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    ],
)
def test_the_script_decides_by_itself(check_noop: Check, setup: str) -> None:
    check_noop(script(setup))


@pytest.mark.parametrize(
    "setup",
    [
        "torch.backends.cudnn.deterministic = True",
        "torch.backends.cudnn.benchmark = False",
        "import torch.backends.cudnn as cudnn\ncudnn.deterministic = args.deterministic",
        "torch.use_deterministic_algorithms(True)",
        "torch.set_deterministic_debug_mode('error')",
        "import os\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'",
        "from seeds import seed_everything\nseed_everything(1, deterministic=True)",
    ],
)
def test_determinism_is_asked_for(check_noop: Check, setup: str) -> None:
    check_noop(script(setup), reason="determinism")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("loss = loss + torch.linalg.inv(model(x)).sum()", "torch.linalg.inv"),
        ("print(x.t() @ x - y.t() @ y)", "covariances"),
        ("print(torch.sin(6.28 * x @ y))", "lose their phase with its digits"),
        ("print(torch.cdist(x, y))", "rounding cancels"),
        ("print(torch.cdist(x, y, 2.0))", "rounding cancels"),
        ("print(torch.cdist(x, y, p=order))", "rounding cancels"),
        ("d = x.pow(2).sum(1) - 2 * x @ y + y.pow(2).sum(0)", "rounding cancels"),
        ("loss = loss.double()", "float64"),
        ("loss = loss.to(torch.float64)", "torch.float64"),
        ("g = torch.autograd.grad(loss, x, create_graph=True)[0]", "differentiated"),
        ("torch.autograd.gradcheck(model, x)", "gradcheck"),
        ("h = torch.autograd.functional.hessian(f, x)", "hessian"),
        ("s = torch.fft.rfft(x)", "torch.fft.rfft"),
    ],
)
def test_precision_matters(check_noop: Check, more: str, reason: str) -> None:
    check_noop(script(more=more), reason=reason)


@pytest.mark.parametrize(
    ("more", "use"),
    [
        ("loss = loss + model[0](x.half()).sum()", "`.half()`"),
        ("model.bfloat16()", "`.bfloat16()`"),
        ("for layer in model.modules():\n        layer.half()", "`.half()`"),
        ("model = model.to(torch.float16)", "`torch.float16`"),
    ],
)
def test_networks_that_the_script_takes_to_half_precision(
    check_noop: Check, more: str, use: str
) -> None:
    check_noop(script(more=more), reason=f"{use} is in use, and what stays in float32 beside it")


@pytest.mark.parametrize(
    "setup",
    [
        "def save(weights):\n    torch.save(weights.half(), 'weights.pt')",
        "@torch.autocast('cuda', dtype=torch.bfloat16)\ndef show(x):\n    return net(x)",
    ],
)
def test_half_precision_beside_the_step(check_transformed: Check, setup: str) -> None:
    after = 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")\n' + setup
    check_transformed(script("torch.manual_seed(0)\n" + setup), script(after))


@pytest.mark.parametrize("more", ["print(torch.cdist(x, y, p=1))", "print(torch.cdist(x, y, 1.0))"])
def test_other_distances_are_not_made_of_products(check_transformed: Check, more: str) -> None:
    after = 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(more=more), script(after, more=more))


AGAIN = """
def back(loss, create_graph={}):
    loss.backward(create_graph=create_graph)

torch.manual_seed(0)
"""


def test_gradients_that_could_be_differentiated_but_are_not(check_transformed: Check) -> None:
    setup = AGAIN.format(False)
    after = setup.rstrip() + '\ntorch.set_float32_matmul_precision("high")\n'
    check_transformed(script(setup, more="back(loss)"), script(after, more="back(loss)"))


@pytest.mark.parametrize(
    ("default", "call"), [(True, "back(loss)"), (False, "back(loss, True)"), (False, "back(*them)")]
)
def test_gradients_that_are_differentiated(check_noop: Check, default: bool, call: str) -> None:
    check_noop(script(AGAIN.format(default), more=call), reason="differentiated")


METER = """
import torch.distributed as dist

def exchanged(count, total):
    t = torch.tensor([count, total], dtype=torch.float64, device="cuda")
    {}
    return t

torch.manual_seed(0)
"""


@pytest.mark.parametrize(
    "exchange",
    [
        "dist.barrier()\n    dist.all_reduce(t)\n    t = t.tolist()",
        "dist.all_reduce(t, op=dist.ReduceOp.SUM)\n    count = int(t[0].item())\n    t = t[1].item()",
    ],
)
def test_numbers_that_processes_exchange(check_transformed: Check, exchange: str) -> None:
    setup = METER.format(exchange)
    after = setup.rstrip() + '\ntorch.set_float32_matmul_precision("high")\n'
    check_transformed(script(setup), script(after))


SUM = """\
import torch.distributed as dist

def total(value, other):
    t = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    dist.all_reduce(t)
    if torch.is_tensor({}):
        return t.to(value)
    return t.item()

torch.manual_seed(0)
"""
SUMS = """\
import torch.distributed as dist

def totals(*values):
    t = torch.tensor([float(value) for value in values], dtype=torch.float64)
    dist.all_reduce(t)
    return [each.to(v) if torch.is_tensor(v) else {} for v, each in zip(values, t)]

torch.manual_seed(0)
"""


@pytest.mark.parametrize("setup", [SUM.format("value"), SUMS.format("each.item()")])
def test_sums_of_processes_that_become_what_was_added_up(
    check_transformed: Check, setup: str
) -> None:
    after = setup.rstrip() + '\ntorch.set_float32_matmul_precision("high")\n'
    check_transformed(script(setup), script(after))


@pytest.mark.parametrize("setup", [SUM.format("other"), SUMS.format("each * 2")])
def test_sums_of_processes_that_stay_float64(check_noop: Check, setup: str) -> None:
    check_noop(script(setup), reason="torch.float64")


@pytest.mark.parametrize(
    "use",
    [
        "dist.all_reduce(t)",
        "t = t.tolist()",
        "dist.all_reduce(t)\n    model(t * 2)\n    t = t.tolist()",
        "dist.all_reduce(t)\n    t = t.sum()",
    ],
)
def test_numbers_that_are_used_otherwise(check_noop: Check, use: str) -> None:
    check_noop(script(METER.format(use)), reason="torch.float64")


@pytest.mark.parametrize(
    "more", ["total += loss.detach().double() * 3", "hits = (y == 1).sum().double() / 8"]
)
def test_sums_in_float64_are_book_keeping(check_transformed: Check, more: str) -> None:
    after = 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(more=more), script(after, more=more))


def test_lbfgs(check_noop: Check) -> None:
    check_noop(script(optimizer="LBFGS"), reason="LBFGS")


def test_convolutions_use_tf32_already(check_noop: Check) -> None:
    model = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))"
    check_noop(script(model=model), reason="convolutions")


def test_a_torchvision_resnet(check_noop: Check) -> None:
    model = "torchvision.models.resnet18()"
    check_noop(script("import torchvision", model), reason="convolutions")


def test_a_vision_transformer(check_transformed: Check) -> None:
    setup = "import torchvision\ntorch.manual_seed(0)"
    model = "torchvision.models.VisionTransformer(8, 4, 1, 1, 8, 8)"
    before = script(setup, model)
    with_products = before.replace(
        f"model = {model}", f"model = nn.Sequential({model}, nn.Linear(8, 1))"
    )
    after = with_products.replace(
        "torch.manual_seed(0)", 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'
    )
    check_transformed(with_products, after)


def test_under_autocast(check_noop: Check) -> None:
    source = script().replace(
        "    loss = nn", '    with torch.autocast("cuda"):\n        loss = nn'
    )
    check_noop(source, reason="autocast")


OPTIONS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--cuda", action="store_true")
args = parser.parse_args()
scaler = torch.cuda.amp.GradScaler() if args.amp else None
torch.manual_seed(0)"""


@pytest.mark.parametrize(
    "context",
    [
        'torch.autocast("cuda", enabled=args.amp)',
        "torch.cuda.amp.autocast(args.amp)",
        'torch.autocast("cuda", enabled=scaler is not None)',
        'torch.autocast("cuda", enabled=False)',
    ],
)
def test_where_autocast_is_an_option(check_transformed: Check, context: str) -> None:
    def source(setup: str) -> str:
        return script(setup).replace("    loss = nn", f"    with {context}:\n        loss = nn")

    check_transformed(
        source(OPTIONS), source(OPTIONS + '\ntorch.set_float32_matmul_precision("high")')
    )


def test_where_a_branch_of_the_step_has_no_autocast(check_transformed: Check) -> None:
    loss = "loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))"
    branches = f"""\
if scaler:
        with torch.autocast("cuda"):
            {loss}
    else:
        {loss}"""

    def source(setup: str) -> str:
        return script(setup).replace(loss, branches)

    check_transformed(
        source(OPTIONS), source(OPTIONS + '\ntorch.set_float32_matmul_precision("high")')
    )


def test_a_branch_for_the_cpu_is_no_option(check_noop: Check) -> None:
    loss = "loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))"
    branches = f"""\
if torch.cuda.is_available():
        with torch.autocast("cuda"):
            {loss}
    else:
        {loss}"""
    check_noop(script().replace(loss, branches), reason="autocast")


@pytest.mark.parametrize(
    "enabled", ["True", "args.cuda", 'device.type == "cuda"', "torch.cuda.is_available()"]
)
def test_autocast_on_every_gpu_is_no_option(check_noop: Check, enabled: str) -> None:
    context = f'with torch.autocast("cuda", enabled={enabled}):\n        loss = nn'
    check_noop(script(OPTIONS).replace("    loss = nn", f"    {context}"), reason="autocast")


def test_lives_with_autocast(rewrite: Callable[..., RewriteResult]) -> None:
    """A step that autocast takes to half precision has no float32 products left."""
    source = script(model="nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))")
    result = rewrite(source, ["autocast", "tf32"])
    assert {c.transform for file in result.files for c in file.changes} == {"autocast"}


def test_a_script_for_the_cpu(check_noop: Check) -> None:
    source = script().replace("cuda", "cpu").replace("torch.cpu.is_available()", "True")
    check_noop(source, reason="does not use a GPU")


def test_a_network_that_stays_on_the_cpu(check_noop: Check) -> None:
    source = script().replace(f"{MLP}.to(device)", MLP)
    check_noop(source, reason="not seen to be moved to a GPU")


def test_a_framework_owns_the_step(check_noop: Check) -> None:
    setup = "from accelerate import Accelerator\naccelerator = Accelerator()"
    check_noop(script(setup), reason="Accelerate")


STARTED = """\
import torch
import torch.multiprocessing as mp
from torch import nn

def train(rank, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()

def alone():
    train(0, nn.Linear(512, 512).cuda())

def worker(rank, n=1):
    torch.cuda.set_device(rank)
    model = nn.Linear(512, 512).cuda()
    train(rank, model)

class Worker(mp.Process):
    def run(self):
        worker(0)

def launch(function, n):
    mp.spawn(function, args=(n,), nprocs=n)

if __name__ == "__main__":
    torch.manual_seed(0)
{start}
"""


@pytest.mark.parametrize(
    "start",
    [
        "mp.spawn(worker, nprocs=2)",
        "mp.start_processes(worker, nprocs=2)",
        "launch(worker, 2)",
        "mp.Process(target=worker, args=(0,)).start()",
        'ctx = mp.get_context("spawn")\n[ctx.Process(target=worker, args=(r,)).start() for r in range(2)]',
        "Worker().start()",
        "mp.spawn(worker, nprocs=2) if torch.cuda.device_count() > 1 else worker(0)",
    ],
)
def test_set_in_the_processes_that_train(check_transformed: Check, start: str) -> None:
    before = STARTED.format(start=indent(start, " " * 4))
    place = "    torch.cuda.set_device(rank)\n"
    setting = '    torch.set_float32_matmul_precision("high")\n'
    check_transformed(before, before.replace(place, f"{place}{setting}"))


def test_processes_that_do_not_train(check_transformed: Check) -> None:
    start = "mp.Process(target=print).start()\nworker(0)"
    before = STARTED.format(start=indent(start, " " * 4)).replace("worker(0)\n\ndef", "pass\n\ndef")
    seed = "    torch.manual_seed(0)\n"
    setting = '    torch.set_float32_matmul_precision("high")\n'
    check_transformed(before, before.replace(seed, f"{seed}{setting}"))


@pytest.mark.parametrize(
    "start",
    [
        "for epoch in range(9):\n    alone()\nmp.spawn(worker, nprocs=2)",
        "mp.spawn(worker, nprocs=2)\nmp.Process(target=train, args=(0, None)).start()",
    ],
)
def test_no_place_that_all_processes_pass(check_noop: Check, start: str) -> None:
    source = STARTED.format(start=indent(start, " " * 4)).replace(
        "    train(rank, model)", "    for _ in range(3):\n        train(rank, model)"
    )
    check_noop(source, reason="no place is found")


def test_in_the_branch_that_trains(check_transformed: Check) -> None:
    before = """\
        import torch
        from torch import nn

        def train(args):
            torch.manual_seed(args.seed)
            model = nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in batches:
                optimizer.zero_grad()
                model(x.cuda()).sum().backward()
                optimizer.step()

        def main():
            args = parse()
            if args.command == "train":
                train(args)
            else:
                convert(args)

        try:
            main()
        except KeyboardInterrupt:
            pass
    """
    seed = "            torch.manual_seed(args.seed)\n"
    setting = '            torch.set_float32_matmul_precision("high")\n'
    check_transformed(before, before.replace(seed, seed + setting))


def test_above_what_is_made_first(check_transformed: Check) -> None:
    before = """\
        import torch
        from torch import nn

        def network():
            return nn.Linear(8, 8)

        print("training")
        model = network().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches:
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
    """
    made = "        model = network()"
    setting = '        torch.set_float32_matmul_precision("high")\n'
    check_transformed(before, before.replace(made, setting + made))


def test_a_name_that_lies(check_noop: Check) -> None:
    """`Linear` of the script's own multiplies nothing that is known."""
    source = script("class Linear(nn.Module):\n    def forward(self, x):\n        return x\n")
    check_noop(source.replace("nn.Linear(8, 8)", "Linear()").replace("nn.Linear(8, 1), ", ""))


def test_an_attribute_of_the_options_is_no_setting(check_transformed: Check) -> None:
    setup = (
        "import argparse\nargs = argparse.ArgumentParser().parse_args()\nargs.deterministic = True"
    )
    check_transformed(
        script(setup + "\ntorch.manual_seed(0)"),
        script(setup + '\ntorch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'),
    )


def test_a_seed_inside_the_training_loop_is_no_place(check_transformed: Check) -> None:
    before = script("", more="torch.manual_seed(1)")
    line = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    after = before.replace(line, line + 'torch.set_float32_matmul_precision("high")\n')
    check_transformed(before, after)


@pytest.mark.slow
@pytest.mark.torch
def test_verified(check_verified: Check) -> None:
    check_verified(
        """\
        import torch
        from torch import nn

        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            x = torch.randn(16, 8).to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), torch.randint(2, (16,)).to(device))
            loss.backward()
            optimizer.step()
        """
    )


FLOAT32_REGION = """
class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x):
        q = self.query(x)
        with torch.autocast("cuda", enabled=False):
            return {product}


torch.manual_seed(0)
"""
FLOAT32_FUNCTION = """
@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
def forward(ctx, q, k):
    return torch.matmul(q, k.t())


torch.manual_seed(0)
"""


@pytest.mark.parametrize("product", ["q.float() @ x.t()", "torch.einsum('ij,kj->ik', q, x)"])
def test_autocast_is_off_for_a_product(check_noop: Check, product: str) -> None:
    source = script(FLOAT32_REGION.format(product=product), model="Scores()")
    check_noop(source, reason='which TF32 would round (`torch.autocast("cuda", enabled=False)`)')


def test_a_function_that_casts_its_inputs_to_float32(check_noop: Check) -> None:
    check_noop(script(FLOAT32_FUNCTION), reason="autocast is off here")


@pytest.mark.parametrize("product", ["q.sigmoid() * x", "q.float().softmax(-1)"])
def test_autocast_is_off_for_something_else(check_transformed: Check, product: str) -> None:
    before = script(FLOAT32_REGION.format(product=product), model="Scores()")
    seed = "torch.manual_seed(0)\n"
    setting = 'torch.set_float32_matmul_precision("high")\n'
    check_transformed(before, before.replace(seed, seed + setting))


@pytest.mark.parametrize(
    "more",
    [
        "loss = loss + (x.float() @ y.float().t()).sum()",
        "a, b = x.float(), y.to(torch.float32)\n    loss = loss + torch.matmul(a / 8, b.t()).sum()",
    ],
)
def test_operands_taken_back_to_float32_beside_autocast(check_noop: Check, more: str) -> None:
    source = script(OPTIONS, more=more).replace(
        "    loss = nn", '    with torch.autocast("cuda", enabled=args.amp):\n        loss = nn'
    )
    check_noop(source, reason="taken back to float32")


def test_operands_made_float32_where_there_is_no_autocast(check_transformed: Check) -> None:
    more = "loss = loss + (x.float() @ y.float().t()).sum()"
    after = 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'
    check_transformed(script(more=more), script(after, more=more))


RECURRENT = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.{layer}(8, 8)

    def forward(self, x):
        return self.layer(x)[0]


torch.manual_seed(0)
"""


def test_recurrent_layers_are_in_tf32_as_it_is(check_noop: Check) -> None:
    source = script(RECURRENT.format(layer="LSTM"), model="Tagger()")
    check_noop(source, reason="the networks consist of recurrent layers, which use TF32 already")


def test_a_loss_of_logits_that_autocast_needs_comes_first(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """The loss is rewritten before autocast fits around it: nothing of the step stays in float32."""
    model = "nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.Sigmoid())"
    source = script(model=model).replace("mse_loss", "binary_cross_entropy")
    text = rewrite(source, ["autocast", "tf32"], tier=Tier.SEMANTIC).files[0].text
    assert "with_logits" in text
    assert "torch.autocast" in text
    assert "set_float32_matmul_precision" not in text
    numeric = rewrite(source, ["autocast", "tf32"], tier=Tier.NUMERIC).files[0].text
    assert "set_float32_matmul_precision" in numeric


def test_recurrent_cells(rewrite: Callable[..., RewriteResult]) -> None:
    source = script(RECURRENT.format(layer="LSTMCell"), model="Tagger()")
    (change,) = rewrite(source, ["tf32"]).files[0].changes
    assert "the matrix products of recurrent cells in float32" in change.reason


def test_network_that_only_the_callers_know(check_noop: Callable[..., None]) -> None:
    check_noop(NETWORK_OF_ITS_CALLERS, reason="which network it runs, its callers know")
