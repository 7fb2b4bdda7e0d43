"""What library names do to the autograd graph: which results never carry one, which calls may need one.

Derived from https://docs.pytorch.org/docs/stable/torch.html: comparisons and index functions give integer or boolean tensors,
which cannot require gradients; factories make new leaves; everything else hands the graph on.
"""

from __future__ import annotations

_INTEGER_RESULTS = frozenset(
    "argmax argmin argsort argwhere bincount bucketize eq ne lt gt le ge equal allclose greater greater_equal less "
    "less_equal not_equal isclose isfinite isinf isnan is_nonzero logical_and logical_not logical_or logical_xor "
    "nonzero numel multinomial one_hot searchsorted".split()
)
GRAPH_FREE_METHODS = _INTEGER_RESULTS | frozenset(
    "item tolist numpy detach detach_ size dim ndimension nelement data_ptr element_size stride storage_offset "
    "get_device is_contiguous is_floating_point long int bool byte short char any all new_zeros new_ones new_empty "
    "new_full new_tensor state_dict "
    # of strings and dictionaries
    "format join strip rstrip lstrip lower upper startswith endswith keys zfill isdigit".split()
)
"""Methods whose result holds no autograd graph, whatever library object they are called on."""

GRAPH_FREE_ATTRIBUTES = frozenset(
    "data shape dtype device ndim layout grad requires_grad is_cuda is_leaf grad_fn itemsize nbytes training".split()
)
"""Attributes of tensors and modules that hold no graph."""

INDEX_OF_PAIR = frozenset("max min topk sort kthvalue median mode cummax cummin".split())
"""Functions that return values and, second, indices."""

_FACTORIES = frozenset(
    "tensor from_numpy zeros ones empty full rand randn randint randperm arange linspace logspace eye zeros_like "
    "ones_like empty_like full_like rand_like randn_like randint_like tril_indices triu_indices manual_seed device "
    "Generator Size no_grad get_default_dtype is_tensor finfo iinfo initial_seed get_rng_state".split()
)
_BUILTINS = frozenset(
    "len int float bool str repr format isinstance issubclass hasattr callable range open id hash type input ord chr "
    "any all print bin hex dir super object bytes bytearray slice property".split()
)
_GRAPH_FREE_PACKAGES = frozenset(
    "numpy math cmath time datetime os sys random json csv re string pathlib PIL cv2 sklearn scipy matplotlib pandas "
    "logging argparse shutil glob socket uuid gzip zipfile hashlib nltk sacrebleu sacremoses skimage imageio yaml "
    "platform subprocess warnings gc psutil wandb tensorboard tensorboardX visdom seaborn plotly spacy editdistance "
    "jiwer rouge rouge_score sentencepiece tokenizers gym gymnasium tabulate termcolor pprint traceback contextlib "
    "typing inspect struct urllib requests signal threading".split()
)
_CARRIES_GRAPHS = ("torch.cuda.amp.", "torch.cuda.comm.", "typing.cast", "contextlib.nullcontext")
"""What hands a graph on although its package gives none."""
_GRAPH_FREE_PREFIXES = (
    "torch.utils.data.",
    "torch.utils.tensorboard.",
    "torch.cuda.",
    "torch.backends.",
    "torch.optim.",
    "torch.version",
    "torchvision.datasets.",
    "torchvision.utils.",
    "torchvision.io.",
    "torchvision.transforms.ToPILImage",
    "torchvision.transforms.functional.to_pil_image",
)
_PASS_THROUGH_BUILTINS = frozenset(
    "next iter zip enumerate list tuple dict set frozenset sorted reversed map filter sum max min abs round pow "
    "divmod getattr".split()
)
_TENSOR_PACKAGES = frozenset(
    "torch torchvision torchaudio torchtext einops torchmetrics kornia lpips pytorch_msssim piq opt_einsum timm "
    "torch_geometric segmentation_models_pytorch monai transformers collections itertools operator copy tqdm "
    "accelerate diffusers sentence_transformers".split()
)
_DIFFERENTIATING = (
    "torch.autograd.",
    "torch.func.",
    "functorch.",
    "torch.distributed.autograd.",
    "torch.utils.hooks.",
)
_HARMLESS_AUTOGRAD = (
    "torch.autograd.Variable",
    "torch.autograd.Function",
    "torch.autograd.profiler",
    "torch.autograd.no_grad",
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.detect_anomaly",
)


def package(name: str) -> str:
    """The top-level package of a dotted name."""
    return name.partition(".")[0]


def gives_no_graph(name: str) -> bool:
    """Whether calling the library ``name`` never returns a tensor with a graph, whatever it is given.

    ``requires_grad=True`` given to a factory is the caller's business.
    """
    last = name.rpartition(".")[2]
    top = package(name)
    if top == "builtins":
        return last in _BUILTINS or last.endswith(("Error", "Exception", "Warning"))
    if top == "torch" and name.count(".") <= 3 and last in _INTEGER_RESULTS | _FACTORIES:
        return True
    if name.startswith(_CARRIES_GRAPHS):
        return False
    return top in _GRAPH_FREE_PACKAGES or name.startswith(_GRAPH_FREE_PREFIXES)


def makes_no_tensor(name: str) -> bool:
    """Whether calling the library ``name`` gives an object that is no tensor and can never hold one."""
    is_factory = package(name) == "torch" and name.rpartition(".")[2] in _FACTORIES
    is_plain = name in {"torch.device", "torch.Generator", "torch.Size"}
    return is_plain or (gives_no_graph(name) and not is_factory)


def passes_graph_on(name: str) -> bool:
    """Whether calling the library ``name`` does nothing with a graph but hand it on in its result."""
    top = package(name)
    if top == "builtins":
        return name.rpartition(".")[2] in _PASS_THROUGH_BUILTINS
    if name.startswith(_CARRIES_GRAPHS):
        return True
    return top in _TENSOR_PACKAGES and not needs_graph(name)


def needs_graph(name: str) -> bool:
    """Whether the library ``name`` differentiates, or asks whether gradients are recorded."""
    if name.startswith(_DIFFERENTIATING):
        return not name.startswith(_HARMLESS_AUTOGRAD)
    return name in {"torch.enable_grad", "torch.is_grad_enabled", "torch.nn.utils.clip_grad_norm_"}


SETS_GRAD_MODE = frozenset(
    f"torch.{prefix}{name}"
    for prefix in ("", "autograd.", "autograd.grad_mode.")
    for name in ("no_grad", "inference_mode", "set_grad_enabled", "enable_grad")
)
"""What switches the recording of gradients on or off."""

BACKWARD_METHODS = frozenset({"backward", "manual_backward"})

GRAPH_QUESTIONS = frozenset(
    "requires_grad grad_fn is_leaf register_hook retain_grad requires_grad_".split()
)
"""Attributes and methods of a tensor that show whether it has a graph, or need it."""

MUTATING_METHODS = frozenset(
    "append appendleft extend insert add update put setdefault push push_back copy_".split()
)
"""Methods that keep what they are given in the object they are called on."""

TENSOR_METHODS = frozenset(
    "view reshape mul add sub div dot mm matmul bmm mv addmm addcmul addcdiv sum mean cat stack expand expand_as "
    "type_as view_as reshape_as gather scatter index_select index_add masked_fill masked_select where pow clamp min max "
    "maximum minimum cross outer lerp dist take put_along_dim to type cuda cpu float half double t transpose permute "
    "squeeze unsqueeze repeat softmax log_softmax norm std var prod cumsum exp log sqrt abs tanh sigmoid relu round "
    "log_prob entropy baddbmm addbmm ger atan2 fmod remainder true_divide divide multiply subtract".split()
)
"""Methods of tensors that hand the graph on."""

ARRANGING_METHODS = frozenset(
    "view view_as reshape reshape_as expand expand_as repeat permute transpose unsqueeze squeeze flatten unflatten narrow "
    "triu tril flip roll chunk split unbind diagonal to type type_as".split()
)
"""Methods of tensors whose result has the graph of the tensor alone: what they are given are sizes, places and types."""

REPORTING_METHODS = frozenset(
    "add_scalar add_scalars add_image add_images add_histogram add_figure add_text add_embedding set_postfix "
    "set_description imshow savefig log_metric log_metrics log_artifact".split()
)
"""Methods of loggers and progress bars, which take numbers out of tensors."""


def mutates(method: str) -> bool:
    """Whether a method keeps its arguments in its object, or changes it in place."""
    return method in MUTATING_METHODS or (method.endswith("_") and not method.endswith("__"))
