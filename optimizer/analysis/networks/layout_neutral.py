"""Whether a network computes the same, but for rounding, when its images are laid out channels last.

Only what is known to be so passes: convolutions, norms, pooling, element by element operations and linear layers behind a
``flatten``. ``view`` fails on images that are laid out so, where ``reshape`` does not, and dropout would draw its mask in
another order.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import Reached
from ..facts import CallFact, Fact, Model
from ..loading.written_views import is_written
from ..program.classes import class_attribute
from ..program.scopes import Parameter
from ..program.syntax import Module
from ..program.trees import walk
from ..tensors.flat_tensors import FlatTrace, Shape
from ..values.resolver import Resolver
from ..values.values import Class, Element, External, Function, Made, Value
from .called_layers import held_layers
from .forward_code import forward_code
from .network_layers import network_code
from .networks import Networks

_LAYERS = frozenset(
    "Conv2d ConvTranspose2d BatchNorm2d BatchNorm1d GroupNorm InstanceNorm2d Linear Flatten Identity Sequential ModuleList "
    "ModuleDict Module ReLU ReLU6 LeakyReLU PReLU ELU SELU GELU SiLU Mish Hardswish Hardsigmoid Hardtanh Sigmoid Tanh Softmax "
    "LogSoftmax Softplus CrossEntropyLoss NLLLoss MSELoss L1Loss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss KLDivLoss "
    "LayerNorm Embedding PixelUnshuffle MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d Upsample UpsamplingBilinear2d "
    "UpsamplingNearest2d PixelShuffle Dropout2d Dropout ZeroPad2d ConstantPad2d ReflectionPad2d ReplicationPad2d Parameter CELU GLU "
    "Softsign LogSigmoid Softmin Softmax2d Threshold LPPool2d ChannelShuffle".split()
)
_FUNCTIONS = frozenset(
    "cat concat stack add sub mul div relu relu_ relu6 leaky_relu elu gelu silu mish hardswish sigmoid tanh softmax "
    "log_softmax softplus max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d interpolate pad flatten reshape "
    "mean sum clamp exp log sqrt abs squeeze unsqueeze dropout2d dropout conv2d linear chunk split maximum minimum add_ mul_ pow normalize "
    "sub_ div_ clamp_ sigmoid_ tanh_ neg sign square rsqrt sin cos erf lerp addcmul where masked_fill max min amax amin argmax argmin "
    "var std norm matmul mm bmm baddbmm einsum permute transpose swapaxes movedim unbind expand repeat_interleave roll flip tile "
    "index_select gather topk cumsum layer_norm group_norm batch_norm instance_norm pixel_shuffle pixel_unshuffle grid_sample "
    "affine_grid embedding one_hot cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits kl_div equal any all isnan isinf isfinite round floor ceil".split()
)
"""What goes by the dimensions of a tensor, not by how it lies in memory; but for ``dropout``, nothing of it draws."""
_METHODS = (
    _FUNCTIONS - {"stack", "pad", "cat", "concat", "interpolate", "conv2d", "linear"}
) | frozenset(
    "size dim contiguous detach float half bfloat16 double long int bool item expand_as repeat append pop extend items keys values get "
    "insert reverse clear type_as".split()
)
DRAW_LIKE = frozenset("randn_like rand_like randint_like bernoulli".split())
"""Draw a tensor of the layout of another, in the order of its memory."""
_CONVERSIONS = frozenset("float half bfloat16 double to cuda".split())
_NEW = frozenset("randn rand randint zeros ones full empty tensor arange linspace eye".split())
"""Make tensors of a size that is given, in the usual layout, whatever that of the images is."""
_AROUND = frozenset(
    "no_grad enable_grad inference_mode set_grad_enabled is_grad_enabled autocast is_autocast_enabled is_tensor "
    "is_scripting is_tracing is_compiling".split()
)
"""What a forward pass runs under, or asks about that: no tensor goes into it, or none of its values."""
_CLASSIFIERS = (
    "resnet",
    "resnext",
    "wide_resnet",
    "vgg",
    "alexnet",
    "mobilenet",
    "efficientnet",
    "regnet",
    "mnasnet",
)
"""Networks of torchvision that flatten with ``torch.flatten`` and drop out behind it."""
_LIBRARIES = ("torchvision.", "timm.", "segmentation_models_pytorch.")
_SEQUENTIAL = "torch.nn.Sequential"
_FIRST_LAYERS = frozenset({"torch.nn.Conv2d", "torch.nn.BatchNorm2d", "torch.nn.ReflectionPad2d"})


@dataclass(frozen=True, eq=False)
class LayoutObstacle(Fact):
    """Code that knows, or may know, how images lie in memory; ``message`` says which."""

    message: str


class LayoutProof:
    """Answers for one network."""

    def __init__(self, resolver: Resolver, network: Model) -> None:
        self._resolver = resolver
        self._network = network
        self._flat = FlatTrace(resolver)
        self._networks = Networks(resolver)
        self.views: list[CallFact] = []
        """The calls of ``view`` that have to be ``reshape``, once the obstacles were looked for."""

    @property
    def _is_classifier(self) -> bool:
        return _is_classifier(self._network.library_name)

    def obstacle(self) -> LayoutObstacle | None:
        """What keeps the images inside the network as they are; None when nothing does."""
        replaced = self._replaced()
        if replaced is not None:
            return replaced
        if self._network.library_name is not None and not self._network.library_name.startswith(
            "torch.nn."
        ):
            if self._is_classifier:
                return None
            why = f"the inside of `{self._network.library_name}` is not known"
            return LayoutObstacle(self._network.module, self._network.node, why)
        return next(self._obstacles(), None)

    def _obstacles(self) -> Iterator[LayoutObstacle]:
        forward = {reached.node for reached in forward_code(self._resolver, [self._network])}
        for reached in network_code(self._resolver, (self._network,)):
            node, module = reached.node, reached.module
            if not isinstance(node, ast.Call):
                continue
            why = self._layer(node, module)
            if why is None and node in forward:
                why = self._operation(reached, node)
            if why is not None:
                yield LayoutObstacle(module, node, why)

    def _replaced(self) -> LayoutObstacle | None:
        """A part that the script exchanges for one of its own (``model.layer4 = Attention()``)."""
        for module in self._resolver.project.modules:
            for statement in module.nodes:
                if not isinstance(statement, ast.Assign):
                    continue
                if any(self._is_part(target, module) for target in statement.targets):
                    for call in (n for n in walk(statement.value) if isinstance(n, ast.Call)):
                        names = self._resolver.names(call.func, module)
                        known = {n for n in names if n.startswith("torch.nn.")}
                        layers = {n.rpartition(".")[2] for n in known}
                        if any(
                            isinstance(v, Class) for v in self._resolver.values(call.func, module)
                        ):
                            why = "a part of the network is exchanged for one that is not known"
                            return LayoutObstacle(module, statement, why)
                        if not layers <= _LAYERS:
                            why = f"`nn.{min(layers - _LAYERS)}` is not known to take any memory format"
                            return LayoutObstacle(module, statement, why)
        return None

    def _is_part(self, target: ast.expr, module: Module) -> bool:
        """Whether ``target`` is an attribute of the network, or of a part of it."""
        if not isinstance(target, ast.Attribute | ast.Subscript):
            return False
        base: ast.expr = target
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
            if any(
                isinstance(value, Made) and value.call is self._network.node
                for value in self._resolver.values(base, module)
            ):
                return True
        return False

    def _layer(self, node: ast.Call, module: Module) -> str | None:
        for name in sorted(self._resolver.names(node.func, module)):
            package, _, last = name.rpartition(".")
            if package == "torch.nn" and last[:1].isupper():
                if last not in _LAYERS:
                    return f"`nn.{last}` is not known to take any memory format"
                if last == "Dropout" and not self._follows_linear(node, module):
                    return "dropout draws its mask in the order of memory"
            elif name.startswith(_LIBRARIES) and not _is_classifier(name):
                return f"the inside of `{name}` is not known"
        return None

    def _follows_linear(self, node: ast.Call, module: Module) -> bool:
        """Whether a dropout layer stands behind a linear layer of its ``Sequential``, or is called on what is flat."""
        parent = module.parents.get(node)
        if isinstance(parent, ast.Call) and node in parent.args:
            before = parent.args[: parent.args.index(node)]
            return any(
                self._resolver.maker_names(layer, module) & {"torch.nn.Linear", "torch.nn.Flatten"}
                for layer in before
            )
        calls = [
            (reached.node, reached.module)
            for reached in forward_code(self._resolver, [self._network])
            if isinstance(reached.node, ast.Call)
            and any(
                isinstance(value, Made) and value.call is node
                for value in self._resolver.values(reached.node.func, reached.module)
            )
        ]
        return bool(calls) and all(
            call.args and self._flat.shape(call.args[0], where) is Shape.FLAT
            for call, where in calls
        )

    def _operation(self, reached: Reached, node: ast.Call) -> str | None:
        resolver, module = self._resolver, reached.module
        if self._networks.is_call(node, module) or resolver.callees(node, module):
            return None
        names = resolver.names(node.func, module)
        if names:
            found = (self._function(name, node, module) for name in sorted(names))
            return next((why for why in found if why is not None), None)
        if not isinstance(node.func, ast.Attribute):
            return f"`{module.code(node.func)}` cannot be followed"
        if node.func.attr == "view":
            if self._may_be_viewed(node.func.value, module):
                return None
            # A view of what is still an image, such as that of a shuffle of channels, would be a copy in each pass.
            is_end = self._flat.shape(node, module) is Shape.FLAT or self._flat.is_projected(
                node.func.value, module
            )
            if is_end and not is_written(self._resolver, node, module):
                self.views.append(CallFact(module, node, "view"))
                return None
            return (
                "`.view` fails on images laid out channels last (`.flatten` and `.reshape` do not)"
            )
        if node.func.attr not in _METHODS:
            return f"`.{node.func.attr}` is not known to take any memory format"
        return None

    def _function(self, name: str, node: ast.Call, module: Module) -> str | None:
        package, _, called = name.rpartition(".")
        if package == "builtins":
            return None if hasattr(builtins, called) else f"`{called}` cannot be followed"
        if called == "dropout":
            flat = node.args and self._flat.shape(node.args[0], module) is Shape.FLAT
            return None if flat else "dropout draws its mask in the order of memory"
        if called in DRAW_LIKE:
            drawn_like = node.args[0] if node.args else None
            if drawn_like is not None and self._is_new(drawn_like, module):
                return None
            return f"`{name}` draws in the order of memory"
        if package in {"math", "einops", "torch.nn"} or (
            name.startswith("torch.") and called in _FUNCTIONS | _NEW | _AROUND
        ):
            return None
        return f"`{name}` is not known to take any memory format"

    def _is_new(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` makes a tensor in the usual layout, maybe converted: ``torch.tensor(p).float()``."""
        while isinstance(node, ast.Call) and not self._resolver.names(node.func, module):
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in _CONVERSIONS:
                return False
            node = node.func.value
        made = self._resolver.names(node.func, module) if isinstance(node, ast.Call) else ()
        return bool(made) and all(
            name.startswith("torch.") and name.rpartition(".")[2] in _NEW for name in made
        )

    def _may_be_viewed(self, node: ast.expr, module: Module) -> bool:
        is_contiguous = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "contiguous"
        )
        return is_contiguous or self._flat.shape(node, module) is not Shape.UNKNOWN

    # What goes in and what comes out

    def takes_images(self, position: int = 0) -> bool:
        """Whether the network gives its argument at ``position`` to a two-dimensional convolution as it is."""
        if self._is_classifier:
            return position == 0
        made = Made(self._network.node, self._network.module, self._maker())
        return self._takes_images(made, set(), position)

    def _maker(self) -> External | Class:
        return self._network.cls or External(self._network.library_name or "")

    def _takes_images(self, value: Value, seen: set[ast.AST], position: int = 0) -> bool:
        if isinstance(value, Element):  # `for layer in self.layers: x = layer(x)`
            held = held_layers(self._resolver, value)
            return bool(held) and all(self._takes_images(layer, seen) for layer in held)
        if not isinstance(value, Made) or value.call in seen:
            return False
        seen = seen | {value.call}
        made = self._sequence(value) if position == 0 else None
        if made is not None and made[0].args:
            layers = self._resolver.values(made[0].args[0], made[1])
            return bool(layers) and all(self._takes_images(layer, seen) for layer in layers)
        if isinstance(value.maker, External):
            known = value.maker.name in _FIRST_LAYERS or _is_classifier(value.maker.name)
            return known and position == 0
        return any(
            self._gives_on(function, seen, position)
            for function in class_attribute(self._resolver, value.maker, "forward")
            if isinstance(function, Function)
        )

    def _sequence(self, value: Made) -> tuple[ast.Call, Module] | None:
        """The call that is given the layers of a ``Sequential``, or of a class that is one and nothing more."""
        if isinstance(value.maker, External):
            return (value.call, value.module) if value.maker.name == _SEQUENTIAL else None
        if class_attribute(self._resolver, value.maker, "forward"):
            return None
        if self._resolver.base_names(value.maker) != frozenset({_SEQUENTIAL}):
            return None
        inits = [
            (call, function.module)
            for function in class_attribute(self._resolver, value.maker, "__init__")
            if isinstance(function, Function)
            for call in walk(function.node)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "__init__"
        ]
        return inits[0] if len(inits) == 1 else None

    def _gives_on(self, forward: Function, seen: set[ast.AST], position: int = 0) -> bool:
        """Whether ``forward``, or a method that it calls, calls such a layer on its own argument at ``position``."""
        node = forward.node
        place = position + 1
        if not isinstance(node, ast.FunctionDef) or len(node.args.args) <= place or node in seen:
            return False
        seen = seen | {node}
        given = node.args.args[place].arg
        for call in (n for n in walk(node) if isinstance(n, ast.Call)):
            first = call.args[0] if call.args else None
            if not (isinstance(first, ast.Name) and first.id == given):
                continue
            found = forward.module.scope(first).lookup(given)
            earlier = [
                binding
                for binding in (found[1] if found else [])
                if not isinstance(binding.source, Parameter)
                and getattr(binding.node, "lineno", 0) < call.lineno
            ]
            values = self._resolver.values(call.func, forward.module)
            if not earlier and values and all(self._takes_on(v, seen) for v in values):
                return True
        return False

    def _takes_on(self, value: Value, seen: set[ast.AST]) -> bool:
        if isinstance(value, Function):
            return value.bound and self._gives_on(value, seen)
        return self._takes_images(value, seen)

    def returns_flat(self) -> bool:
        """Whether what the network returns has no height and width any more."""
        if self._is_classifier:
            return True
        return self._flat_result(Made(self._network.node, self._network.module, self._maker()))

    def _flat_result(self, value: Made) -> bool:
        if isinstance(value.maker, External):
            args = value.call.args
            return value.maker.name == _SEQUENTIAL and any(
                self._resolver.maker_names(layer, value.module) == frozenset({"torch.nn.Flatten"})
                for layer in args
            )
        forwards = [
            f
            for f in class_attribute(self._resolver, value.maker, "forward")
            if isinstance(f, Function) and isinstance(f.node, ast.FunctionDef)
        ]
        returned = [
            (r.value, f.module)
            for f in forwards
            for r in walk(f.node)
            if isinstance(r, ast.Return) and r.value is not None
        ]
        return bool(returned) and all(
            self._flat.shape(r, module) is Shape.FLAT for r, module in returned
        )


def _is_classifier(name: str | None) -> bool:
    package, _, last = (name or "").rpartition(".")
    return package == "torchvision.models" and last.startswith(_CLASSIFIERS)
