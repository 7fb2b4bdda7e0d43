"""``TrainingArguments`` of the Hugging Face Trainer."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.options import AmpDtype, Target

Check = Callable[..., None]

HEAD = """\
import torch
from transformers import AutoModel, HfArgumentParser, Trainer, TrainingArguments
from data import train_set, test_set

"""
RUN = "Trainer(model, args, train_dataset=train_set).train()\n"
BF16 = "bf16=torch.cuda.is_bf16_supported(including_emulation=False)"
WORKERS = "dataloader_num_workers=2"
FUSED = 'optim="adamw_torch_fused"'


def script(arguments: str, more: str = "", head: str = HEAD) -> str:
    return f"{head}{more}args = TrainingArguments({arguments})\n{RUN}"


def check(rewrite: Callable[..., object], before: str, after: str, **options: object) -> list[str]:
    result = rewrite(before, ["hf-trainer"], **options)
    (file,) = [f for f in result.files if f.path.name == "train.py"]  # type: ignore[attr-defined]
    assert not file.errors
    assert ast.unparse(ast.parse(file.text)) == ast.unparse(ast.parse(after))
    assert not rewrite(file.text, ["hf-trainer"], **options).files[0].changes  # type: ignore[attr-defined]
    return [found.message for found in (*file.skips, *file.changes)]


@pytest.mark.parametrize(
    ("before", "added", "options"),
    [
        ("'out'", [BF16, WORKERS, FUSED.replace('"', "'")], {}),
        ('output_dir="out", num_train_epochs=3', [BF16, WORKERS, FUSED], {}),
        ("output_dir=out, bf16=False", [WORKERS, FUSED], {}),
        ("output_dir=out, fp16=True", [WORKERS, FUSED], {}),
        ("output_dir=out, dataloader_num_workers=0", [BF16, FUSED], {}),
        ("output_dir=out, optim='adafactor'", [BF16, WORKERS], {}),
        ("output_dir=out, use_cpu=True", [WORKERS], {"workers": 2}),
        ("output_dir=out, deepspeed='ds.json'", [WORKERS], {}),
        (
            "output_dir=out",
            ["bf16=torch.cuda.is_available()", WORKERS, FUSED],
            {"amp": AmpDtype.BF16},
        ),
        (
            "output_dir=out",
            ["fp16=torch.cuda.is_available()", WORKERS, FUSED],
            {"amp": AmpDtype.FP16},
        ),
        ("output_dir=out", [WORKERS], {"target": Target.CPU, "workers": 2}),
        ("output_dir=out", [BF16, WORKERS.replace("2", "5"), FUSED], {"workers": 5}),
        ("output_dir=out", [BF16, FUSED], {"workers": 0}),
        (
            "output_dir=out",
            [
                "bf16=torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)",
                WORKERS,
            ],
            {"torch_version": (2, 3)},
        ),
        ("output_dir=out", [BF16, FUSED], {"platform": "win32"}),
    ],
)
def test_arguments(
    rewrite: Callable[..., object], before: str, added: list[str], options: dict[str, object]
) -> None:
    check(rewrite, script(before), script(", ".join([before, *added])), **options)


def test_other_names_and_no_import_of_torch(check_transformed: Check) -> None:
    before = """
        import transformers as tf

        args = tf.Seq2SeqTrainingArguments(
            output_dir='out',
            optim='sgd',
        )
    """
    after = """
        import torch
        import transformers as tf

        args = tf.Seq2SeqTrainingArguments(
            output_dir='out',
            optim='sgd',
            bf16=torch.cuda.is_bf16_supported(including_emulation=False),
            dataloader_num_workers=2,
        )
    """
    check_transformed(before, after)


def test_other_file(check_transformed: Check) -> None:
    entry = "from settings import make\nfrom transformers import Trainer\nTrainer(model, make('o')).train()\n"
    settings = "import torch as th\nfrom transformers import TrainingArguments\n\n\ndef make(out):\n    return TrainingArguments({})\n"
    before = "out, bf16=True, optim='sgd'"
    after = "out, bf16=True, optim='sgd', dataloader_num_workers=2"
    check_transformed(
        {"train.py": entry, "settings.py": settings.format(before)},
        {"train.py": entry, "settings.py": settings.format(after)},
    )


@pytest.mark.parametrize(
    ("more", "added", "reason"),
    [
        ("stream = load_dataset('c4', streaming=True)\n", [BF16, FUSED], "streamed dataset"),
        ("stream = train_set.to_iterable_dataset()\n", [BF16, FUSED], "streamed dataset"),
        (
            "class Stream(torch.utils.data.IterableDataset):\n    pass\n\n\n",
            [BF16, FUSED],
            "streamed dataset",
        ),
        (
            "model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)\n",
            [WORKERS, FUSED],
            "already",
        ),
        (
            "class Mine(Trainer):\n    def compute_loss(self, model, x):\n"
            "        return torch.linalg.svd(model(x))\n\n\n",
            [WORKERS, FUSED],
            "half precision",
        ),
        (
            "class Mine(Trainer):\n    def compute_loss(self, model, x):\n"
            "        return torch.autograd.grad(model(x), x)\n\n\n",
            [WORKERS, FUSED],
            "by hand",
        ),
        (
            "class Mine(Trainer):\n    def create_optimizer(self):\n        pass\n\n\n",
            [BF16, WORKERS],
            "optimizer of its own",
        ),
        ("Trainer(model, optimizers=(adam, None))\n", [BF16, WORKERS], "optimizer of its own"),
    ],
)
def test_some_are_left_out(
    rewrite: Callable[..., object], more: str, added: list[str], reason: str
) -> None:
    given = 'output_dir="out"'
    after = script(", ".join([given, *added]), more)
    skips = check(rewrite, script(given, more), after)
    assert any(reason in skip for skip in skips), skips


@pytest.mark.parametrize(
    ("line", "amp", "half"),
    [
        ("x = self.rnn(x)[0]", AmpDtype.AUTO, []),
        ("x = self.rnn(x)[0]", AmpDtype.FP16, ["fp16=torch.cuda.is_available()"]),
        ("x = x.masked_fill(x > 0, -1e9)", AmpDtype.AUTO, [BF16]),
        ("x = x.masked_fill(x > 0, -1e9)", AmpDtype.FP16, []),
    ],
)
def test_what_only_one_type_breaks(
    rewrite: Callable[..., object], line: str, amp: AmpDtype, half: list[str]
) -> None:
    network = (
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.rnn = torch.nn.LSTM(2, 2)\n\n"
        f"    def forward(self, x):\n        {line}\n        return torch.relu(x)\n\n\nmodel = Net()\n"
    )
    given = 'output_dir="out"'
    after = script(", ".join([given, *half, WORKERS, FUSED]), network)
    check(rewrite, script(given, network), after, amp=amp)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("**settings", "not all known (`settings`)"),
        ("'out', True", "not all known (`True`)"),
        ("*given", None),
    ],
)
def test_unknown_arguments(check_noop: Check, arguments: str, reason: str | None) -> None:
    if reason is not None:
        check_noop(script(arguments), reason)


def test_nothing_for_a_cpu(check_noop: Check) -> None:
    check_noop(script("output_dir=out"), "the script runs on the CPU", target=Target.CPU)
    check_noop(script("output_dir=out, use_cpu=True"), "needs the CPU's cores")


@pytest.mark.parametrize(
    "parser",
    [
        "HfArgumentParser(TrainingArguments)",
        "HfArgumentParser((Mine, TrainingArguments))",
        "HfArgumentParser([Mine])",
    ],
)
def test_arguments_of_the_command_line(check_noop: Check, parser: str) -> None:
    text = f"{HEAD}class Mine(TrainingArguments):\n    pass\n\n\nparser = {parser}\n"
    check_noop(text, "--bf16 --dataloader_num_workers 2")


@pytest.mark.parametrize(
    "text",
    [
        "from mine import TrainingArguments\nargs = TrainingArguments('out')\n",
        "import transformers\nmodel = transformers.AutoModel.from_pretrained('x')\n",
        "from transformers import TrainingArguments\nprint(TrainingArguments)\n",
        "from trl import SFTConfig\nargs = SFTConfig('out')\n",
        "from transformers import TrainingArguments\n"
        "args = TrainingArguments('out', bf16=True, dataloader_num_workers=2, optim='adafactor')\n",
        "from transformers import TrainingArguments\n"
        "args = TrainingArguments('out', fp16=False, dataloader_num_workers=4, optim='sgd')\n",
    ],
)
def test_nothing_to_say(rewrite: Callable[..., object], text: str) -> None:
    (file,) = rewrite(text, ["hf-trainer"]).files  # type: ignore[attr-defined]
    assert not file.changes
    assert not file.skips


TRAINING = """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = BertForSequenceClassification(config)
    data = [{"input_ids": torch.randint(50, (8,)), "labels": i % 2} for i in range(48)]
    args = TrainingArguments(
        output_dir="out", max_steps=6, save_strategy="no", report_to="none", disable_tqdm=True
    )
    Trainer(model, args, train_dataset=data).train()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_trains_the_same(check_verified: Check) -> None:
    pytest.importorskip("transformers")
    check_verified(TRAINING)


REVIEWS = """\
import torch
from transformers import Trainer, TrainingArguments

class Reviews(torch.utils.data.Dataset):
    def __init__(self, lines):
        self.lines = lines
        self.noise = 0.0

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return {"input_ids": [ord(c) for c in self.lines[index]], "labels": int(self.noise)}

train_set, test_set = Reviews(open("train").readlines()), Reviews(open("test").readlines())
"""
TRAINER = "trainer = Trainer(model, args, train_dataset=train_set, eval_dataset=test_set)\n"


def test_workers_live_on_where_the_datasets_stay_as_they_are(
    rewrite: Callable[..., object],
) -> None:
    text = f"{REVIEWS}args = TrainingArguments('out'%s)\n{TRAINER}trainer.train()\n"
    kept = "dataloader_num_workers=2, dataloader_persistent_workers=True"
    fused = FUSED.replace('"', "'")
    check(rewrite, text % "", text % f", {BF16}, {kept}, {fused}")
    said = ", bf16=True, optim='sgd', dataloader_persistent_workers=False"
    check(rewrite, text % said, text % f"{said}, {WORKERS}")


@pytest.mark.parametrize(
    ("dataset", "trainer"),
    [
        (REVIEWS, TRAINER + "train_set.noise = 0.5\n"),
        (REVIEWS, TRAINER.replace("=train_set", "=load(train_set)")),
        (REVIEWS, "trainer = Trainer(model, args)\n"),
        (REVIEWS, "trainer = Trainer(model, args, collate, train_set, read('test'))\n"),
    ],
)
def test_workers_start_anew_where_the_datasets_may_change(
    rewrite: Callable[..., object], dataset: str, trainer: str
) -> None:
    text = f"{dataset}args = TrainingArguments('out', bf16=True, optim='sgd'%s)\n{trainer}trainer.train()\n"
    check(rewrite, text % "", text % f", {WORKERS}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            (
                "    def __len__",
                "    def seen(self, index):\n        self.noise += 1\n        return self.noise\n\n    def __len__",
            ),
            "`self.noise += 1` changes what later items or the script may read (line 10)",
        ),
        (
            (
                "    def __len__",
                "    def seen(self, index):\n        return torch.ones(1).cuda()\n\n    def __len__",
            ),
            "uses the GPU, which a worker process must not",
        ),
        (("class", 'torch.set_default_device("cuda")\n\n\nclass'), "made on the GPU by default"),
    ],
)
def test_no_workers_where_their_copies_would_not_do(
    rewrite: Callable[..., object], change: tuple[str, str], reason: str
) -> None:
    dataset = REVIEWS.replace(*change)
    if "def seen" in dataset:
        dataset = dataset.replace("int(self.noise)", "self.seen(index)")
    text = f"{dataset}args = TrainingArguments('out', bf16=True%s)\n{TRAINER}trainer.train()\n"
    fused = FUSED.replace('"', "'")
    said = check(rewrite, text % "", text % f", {fused}")
    assert any("no `dataloader_num_workers`" in found and reason in found for found in said)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("use_cpu=False", None),
        ("no_cuda=not torch.cuda.is_available()", None),
        ("use_cpu=cpu_only", "the script may run on the CPU (`cpu_only`)"),
    ],
)
def test_settings_that_leave_the_gpu_to_it(
    rewrite: Callable[..., object], given: str, reason: str | None
) -> None:
    before = script(f"'out', {given}, dataloader_num_workers=2")
    if reason is None:
        fused = FUSED.replace('"', "'")
        check(rewrite, before, before.replace("num_workers=2", f"num_workers=2, {BF16}, {fused}"))
    else:
        assert any(reason in said for said in check(rewrite, before, before))


def test_what_is_set_later_is_said(rewrite: Callable[..., object]) -> None:
    before = f"{HEAD}args = TrainingArguments('out')\nargs.bf16 = True\nargs.dataloader_num_workers = 4\n{RUN}"
    check(rewrite, before, before.replace("'out'", "'out', optim='adamw_torch_fused'"))


def test_no_optimizer_where_nothing_is_trained(rewrite: Callable[..., object]) -> None:
    run = "print(Trainer(model, args, eval_dataset=test_set).evaluate())\n"
    mode = "head = torch.nn.Linear(8, 2)\nhead.train(False)\n"
    for code in (run, mode + run):
        before = f'{HEAD}args = TrainingArguments("out", bf16=True)\n{code}'
        check(rewrite, before, before.replace("True", f"True, {WORKERS}"))
