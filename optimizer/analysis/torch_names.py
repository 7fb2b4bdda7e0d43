"""What torch's names mean: one canonical spelling for each, and what star imports bring.

Known without importing torch. A class can be reached through its defining module
(``torch.utils.data.dataloader.DataLoader``) or its public one (``torch.utils.data.DataLoader``); facts use the latter.
"""

from __future__ import annotations

import re

_PUBLIC_HOME: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), home)
    for pattern, home in (
        (
            r"^torch\.(?:\w+\.)+torch\.",
            "torch.",
        ),  # what a module of torch imports: torch.sparse.torch.eye
        (
            r"^torch\.utils\.data\.(?:dataloader|dataset|sampler|distributed|_utils\.\w+)\.",
            "torch.utils.data.",
        ),
        (r"^torch\.nn\.modules\.(?:\w+\.)?(?=[A-Z])", "torch.nn."),
        (
            r"^torch\.nn\.parallel\.(?:data_parallel|distributed|parallel_apply)\.",
            "torch.nn.parallel.",
        ),
        (r"^torch\.nn\.DataParallel$", "torch.nn.parallel.DataParallel"),
        (r"^torch\.optim\.(?!lr_scheduler|swa_utils)[a-z]\w*\.(?=[A-Z])", "torch.optim."),
        (r"^torch\.cuda\.amp\.(?:autocast_mode|grad_scaler|common)\.", "torch.cuda.amp."),
        (r"^torch\.amp\.(?:autocast_mode|grad_scaler)\.", "torch.amp."),
        (r"^torch\.autocast$", "torch.amp.autocast"),
        (r"^torch\.autograd\.variable\.", "torch.autograd."),
        (r"^torch\.autograd\.grad_mode\.", "torch."),
        (r"^torch\.functional\.", "torch."),
        (r"^torchvision\.transforms\.transforms\.", "torchvision.transforms."),
        (r"^torchvision\.datasets\.(?:mnist|cifar|folder|svhn|celeba)\.", "torchvision.datasets."),
        (
            r"^torchvision\.models\.(?:resnet|vgg|densenet|alexnet|mobilenet|inception)\.",
            "torchvision.models.",
        ),
    )
)


def canonical(name: str) -> str:
    """The public spelling of a dotted torch or torchvision name; other names are returned as they are."""
    if not name.startswith("torch"):
        return name
    for pattern, home in _PUBLIC_HOME:
        name = pattern.sub(home, name)
    return name


REWEIGHTING = frozenset(
    f"torch.nn.utils.{name}"
    for name in (
        "weight_norm",
        "spectral_norm",
        "parametrizations.weight_norm",
        "parametrizations.spectral_norm",
    )
)
"""Functions that return the layer they are given, with weights of another norm."""

_CLASS_NAME = re.compile(r"^[A-Z]\w*$")

_STAR_EXPORTS: dict[str, frozenset[str]] = {
    "torch": frozenset(
        "tensor zeros ones rand randn randint randperm arange empty full eye linspace cat stack from_numpy "
        "Tensor FloatTensor LongTensor device nn optim autograd cuda utils save load manual_seed no_grad "
        "float32 float64 float16 bfloat16 int64 long float".split()
    ),
    "torch.utils.data": frozenset(
        "DataLoader Dataset IterableDataset TensorDataset ConcatDataset ChainDataset Subset random_split "
        "Sampler RandomSampler SequentialSampler SubsetRandomSampler WeightedRandomSampler BatchSampler "
        "DistributedSampler default_collate get_worker_info".split()
    ),
    "torch.optim": frozenset(
        "Adadelta Adagrad Adam Adamax AdamW ASGD LBFGS NAdam Optimizer RAdam RMSprop Rprop SGD SparseAdam "
        "lr_scheduler".split()
    ),
    "torch.optim.lr_scheduler": frozenset(
        "LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR ExponentialLR SequentialLR "
        "CosineAnnealingLR ChainedScheduler ReduceLROnPlateau CyclicLR CosineAnnealingWarmRestarts OneCycleLR "
        "PolynomialLR LRScheduler".split()
    ),
    "torch.nn.functional": frozenset(
        "relu leaky_relu softmax log_softmax cross_entropy nll_loss mse_loss l1_loss dropout pad interpolate "
        "binary_cross_entropy binary_cross_entropy_with_logits conv2d linear max_pool2d avg_pool2d sigmoid tanh "
        "gelu normalize one_hot embedding kl_div smooth_l1_loss".split()
    ),
    "torch.autograd": frozenset(["Variable", "Function", "grad", "backward"]),
    "torch.cuda.amp": frozenset(["autocast", "GradScaler", "custom_fwd", "custom_bwd"]),
    "torch.amp": frozenset(["autocast", "GradScaler", "custom_fwd", "custom_bwd"]),
    "torch.nn.parallel": frozenset(["DataParallel", "DistributedDataParallel"]),
    "tqdm": frozenset(["tqdm", "trange", "tqdm_notebook", "tnrange"]),
    "tqdm.auto": frozenset(["tqdm", "trange"]),
    "tqdm.notebook": frozenset(["tqdm", "trange"]),
}

_CLASS_ONLY_EXPORTS = frozenset({"torch.nn", "torchvision.transforms", "torchvision.datasets"})


def star_exports(module: str, name: str) -> bool | None:
    """Whether ``from module import *`` binds ``name``; None when ``module`` is not one we know."""
    if module in _STAR_EXPORTS:
        return name in _STAR_EXPORTS[module]
    if module in _CLASS_ONLY_EXPORTS:
        return bool(_CLASS_NAME.match(name)) or name in {"functional", "init"}
    return None
