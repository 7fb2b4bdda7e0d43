"""Follows the images of one pipeline through its dataset and loader to the copies to the device."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from ..calls.callbacks import has_known_callers
from ..calls.signatures import call_argument
from ..facts import DataLoader, Fact
from ..loading.loaders import DATALOADER
from ..obstacles import Obstacle
from ..program.scopes import Path
from ..program.syntax import Module
from ..program.trees import is_none, walk
from ..training.loops import WRAPPING_ITERATORS
from ..values.object_flow import EACH, ObjectFlow, Steps, Use
from ..values.resolver import Resolver
from ..values.values import Class, Display, External, Literal, Made
from .image_flow import ImageCopy, ImageFlow, Refused, around, refuse
from .image_obstacles import check_dataset_class
from .image_pipelines import COMPOSE, ImagePipeline
from .pil_images import gives_bytes, is_pil_image, is_pil_value, library_transform

_INDEX_ONLY = frozenset(
    {
        "builtins.len",
        "builtins.print",
        "builtins.type",
        "builtins.isinstance",
        *(
            f"torch.utils.data.{name}"
            for name in "RandomSampler SequentialSampler DistributedSampler".split()
        ),
    }
)
"""What never asks a dataset for an item."""
_DATASET_ATTRIBUTES = frozenset(
    "classes class_to_idx targets labels data imgs samples train_labels test_labels root indices train "
    "__len__ attr identity".split()
)
_LOADER_ATTRIBUTES = frozenset("batch_size sampler batch_sampler num_workers drop_last".split())
_BAR_METHODS = frozenset(
    "set_description set_description_str set_postfix set_postfix_str update close write refresh".split()
)


@dataclass(eq=False)
class ImageTrace:
    """Follows one pipeline, from the transform to the copies of its images, or to what is in the way (``obstacle``).

    ``places`` are the calls it goes through; ``items`` where a dataset returns its images; ``iterated`` what loops go over.
    """

    resolver: Resolver
    known_loaders: tuple[DataLoader, ...]
    known: tuple[ImagePipeline, ...]
    pipeline: ImagePipeline
    general: str | None
    copies: list[ImageCopy] = field(default_factory=list[ImageCopy])
    loaders: list[DataLoader] = field(default_factory=list[DataLoader])
    items: list[Use] = field(default_factory=list[Use])
    iterated: list[Use] = field(default_factory=list[Use])
    places: set[ast.AST] = field(default_factory=set[ast.AST])
    followed: set[tuple[ast.AST, Path, Steps]] = field(
        default_factory=set[tuple[ast.AST, Path, Steps]]
    )
    obstacle: Obstacle | None = None

    @cached_property
    def images(self) -> ImageFlow:
        return ImageFlow(self.resolver)

    def meets(self, other: ImageTrace) -> bool:
        """Whether both pipelines feed the same dataset, loader or copy."""
        return bool(self.places & other.places)

    def run(self) -> None:
        pipeline = self.pipeline
        try:
            if pipeline.obstacle is not None:
                refuse(pipeline, pipeline.obstacle)
            if self.general is not None:
                refuse(pipeline, self.general)
            self._follow_pipeline()
            if self.loaders and not self.copies:
                refuse(pipeline, "no loop copies its images to a device")
        except Refused as refused:
            self.obstacle = refused.obstacle

    # The transform

    def _follow_pipeline(self) -> None:
        pipeline = self.pipeline
        flow = ObjectFlow(self.resolver)
        pending = flow.follow(pipeline.root, pipeline.module)
        composed = pipeline.display is None
        while pending:
            use = pending.pop()
            call = use.argument_of
            names = self.resolver.names(call.func, use.module) if call else frozenset[str]()
            if call is not None and not composed and names and names <= COMPOSE:
                self.places.add(call)
                inner = ObjectFlow(self.resolver)
                for applied in inner.follow(call, use.module):
                    self._follow_transform(applied)
            elif composed:
                self._follow_transform(use)
            else:
                refuse(use, f"its list of transforms is used in `{around(use)}`")

    def _follow_transform(self, use: Use) -> None:
        parent = use.parent
        if isinstance(parent, ast.Call) and not use.steps:
            if parent.func is use.node:
                self._follow_application(parent, use)
                return
            given = library_transform(parent)
            if given is use.node and gives_bytes(self.resolver, parent, use.module):
                self._check_alternatives(use)
                self.places.add(parent)
                self._follow_dataset(parent, use.module, (0,))
                return
        refuse(use, f"its images also come from `{around(use)}`")

    def _check_alternatives(self, use: Use) -> None:
        """That where this transform is applied, any other one that may be is a pipeline, too."""
        roots = {known.node for known in self.known}
        for value in self.resolver.values(use.node, use.module):
            if isinstance(value, Literal) and value.value is None:
                continue
            if not isinstance(value, Made) or not (value.call in roots or self._is_composed(value)):
                refuse(use, f"`{use.excerpt}` may be another transform")
            self.places.add(value.call)

    def _is_composed(self, value: Made) -> bool:
        if not (isinstance(value.maker, External) and value.maker.name in COMPOSE):
            return False
        given = call_argument(value.call, "transforms", 0)
        if given is None:
            return False
        displays = {known.display for known in self.known}
        return all(
            isinstance(part, Display) and part.node in displays
            for part in self.resolver.values(given, value.module)
        )

    def _follow_application(self, call: ast.Call, use: Use) -> None:
        """``self.transform(image)`` in the code of a dataset."""
        self._check_alternatives(use)
        self.places.add(call)
        if len(call.args) != 1 or call.keywords:
            refuse(use, f"`{use.module.code(call)}` transforms more than an image")
        if not is_pil_image(self.resolver, call.args[0], use.module):
            image = use.module.code(call.args[0])
            refuse(
                use,
                f"`{image}` is not known to be an image of 8 bits a channel (a PIL image after `.convert(..)`)",
            )
        flow = ObjectFlow(self.resolver, exact=True)
        for made in flow.follow(call, use.module):
            self._follow_item(made)
        for fact in flow.mixed():
            # Where no transform is given, the item is the PIL image itself, of which no batch can be made.
            if not self._is_image_or(call, fact):
                refuse(fact, f"`{fact.excerpt}` may be something else than the images")

    def _is_image_or(self, call: ast.Call, read: Fact) -> bool:
        assert isinstance(read.node, ast.expr)
        values = self.resolver.values(read.node, read.module)
        return all(
            (isinstance(value, Display) and value.node is call)
            or is_pil_value(self.resolver, value)
            for value in values
        )

    def _follow_item(self, use: Use) -> None:
        function = use.function
        is_returned = isinstance(use.parent, ast.Return)
        cls = use.module.parents.get(function) if function is not None else None
        if not is_returned or not isinstance(cls, ast.ClassDef) or function is None:
            refuse(use, f"`{around(use)}` works on the floats in the dataset")
        if function.name != "__getitem__":
            refuse(use, f"`{function.name}` hands its images to code that is not seen")
        self.items.append(use)
        owner = Class(cls, use.module)
        check_dataset_class(self.resolver, owner, use)
        self.places.add(cls)
        for module in self.resolver.project.modules:
            for call in module.calls:
                if owner in self.resolver.values(call.func, module):
                    self.places.add(call)
                    self._follow_dataset(call, module, use.steps)

    # The dataset

    def _follow_images(self, node: ast.expr, module: Module, path: Steps) -> None:
        self.images.begin(node, module, path)
        self._take_copies()

    def _take_copies(self) -> None:
        for copy in self.images.copies():
            self.places.add(copy.node)
            self.copies.append(copy)
        while self.images.yielded:
            use = self.images.yielded.pop()
            self._follow_generator(use, use.steps)

    def _follow_generator(self, use: Use, item: Steps) -> None:
        """The calls of the generator that hands on ``use``, which holds images at ``item``."""
        function = use.function
        if function is None or not has_known_callers(self.resolver, function, use.module):
            refuse(use, f"who gets `{around(use)}` is not seen")
        if sum(isinstance(n, ast.Yield | ast.YieldFrom) for n in walk(function)) > 1:
            refuse(use, f"`{function.name}` yields in several places")
        for site in self.resolver.call_sites(function):
            if site.call not in self.places:
                self._follow_iterable(site.call, site.module, (), item)

    def _follow_dataset(self, node: ast.expr, module: Module, item: Steps, at: Steps = ()) -> None:
        for use in ObjectFlow(self.resolver).follow(node, module, at):
            self._dataset_use(use, item)

    def _dataset_use(self, use: Use, item: Steps) -> None:
        parent = use.parent
        if isinstance(parent, ast.Attribute) and not use.steps:
            if parent.attr == "dataset" and isinstance(parent.ctx, ast.Load):
                self._follow_dataset(parent, use.module, item)
                return
            if isinstance(parent.ctx, ast.Load) and self._is_plain_attribute(parent, use):
                return
        call = use.argument_of
        if call is not None:
            names = self.resolver.names(call.func, use.module)
            if names == frozenset({DATALOADER}):
                self._follow_loader_call(call, use, item)
                return
            if names and names <= _INDEX_ONLY:
                return
            if names <= {"torch.utils.data.Subset", "torch.utils.data.random_split"} and names:
                is_split = "torch.utils.data.random_split" in names
                self._follow_dataset(call, use.module, item, (EACH,) if is_split else ())
                return
        if isinstance(parent, ast.Subscript) and parent.value is use.node and not use.steps:
            self._follow_images(parent, use.module, item)
            return
        refuse(use, f"its dataset is also used in `{around(use)}`")

    def _is_plain_attribute(self, attribute: ast.Attribute, use: Use) -> bool:
        """Whether reading an attribute of a dataset makes no item of it."""
        values = self.resolver.values(use.node, use.module)
        if all(isinstance(v, Made) and isinstance(v.maker, Class) for v in values):
            # The class itself uses no items, and its transform is followed by itself.
            return attribute.attr not in {"__getitem__", "__iter__"}
        return attribute.attr in _DATASET_ATTRIBUTES

    # The loader

    def _follow_loader_call(self, call: ast.Call, use: Use, item: Steps) -> None:
        loader = next((known for known in self.known_loaders if known.node is call), None)
        dataset = loader.arguments.get("dataset") if loader is not None else None
        if loader is None or dataset is None or dataset.value is not use.node:
            refuse(use, f"its dataset is also used in `{around(use)}`")
        if loader.opaque is not None:
            code = loader.module.code(loader.opaque)
            refuse(loader, f"`{code}` may name a `collate_fn`")
        collate = loader.arguments.get("collate_fn")
        if collate is not None and not is_none(collate.value):
            refuse(loader, "its batches are made by a `collate_fn` of their own")
        size = loader.arguments.get("batch_size")
        if size is not None and is_none(size.value):
            refuse(loader, "its loader makes no batches")
        self.loaders.append(loader)
        self.places.add(call)
        self._follow_iterable(call, loader.module, (), item)

    def _follow_iterable(self, node: ast.expr, module: Module, element: Path, item: Steps) -> None:
        """``node`` is a loader or an iterator over one, whose elements hold the batch at ``element``."""
        if (node, element, item) in self.followed:
            return  # ``loader = tqdm(loader)`` in a loop: what it goes over may be itself
        if any(known is node and len(path) < len(element) for known, path, _ in self.followed):
            refuse(Fact(module, node), "what its batches lie in cannot be told")
        self.followed.add((node, element, item))
        self.places.add(node)
        for use in ObjectFlow(self.resolver).follow(node, module):
            self._iterable_use(use, element, item)

    def _iterable_use(self, use: Use, element: Path, item: Steps) -> None:
        parent, module = use.parent, use.module
        if isinstance(parent, ast.withitem) and not use.steps:
            self._follow_context(parent, module, element, item)
            return
        is_loop = isinstance(parent, ast.For | ast.comprehension)
        if is_loop and parent.iter is use.node and not use.steps:
            self.iterated.append(use)
            self.images.begin_at_target(parent.target, module, (*element, *item))
            self._take_copies()
            return
        if isinstance(parent, ast.YieldFrom):
            self.iterated.append(use)
            self._follow_generator(use, (*element, *item))
            return
        if isinstance(parent, ast.Attribute) and not use.steps:
            called = module.parents[parent]
            if parent.attr == "dataset":
                self._follow_dataset(parent, module, item)
                return
            if parent.attr in _LOADER_ATTRIBUTES | _BAR_METHODS:
                return
            if parent.attr == "__iter__" and isinstance(called, ast.Call):
                self.iterated.append(use)
                self._follow_iterable(called, module, element, item)
                return
            if parent.attr in {"next", "__next__"} and isinstance(called, ast.Call):
                self.iterated.append(use)
                self._follow_images(called, module, (*element, *item))
                return
        call = use.argument_of
        if call is None or not self._goes_on_through(call, use, element, item):
            refuse(use, f"its loader is also used in `{around(use)}`")

    def _follow_context(
        self, context: ast.withitem, module: Module, element: Path, item: Steps
    ) -> None:
        """``with tqdm(loader) as bar:``, which names the very bar."""
        if context.optional_vars is not None:
            flow = ObjectFlow(self.resolver)
            for use in flow.follow_target(context.optional_vars, module, ()):
                self._iterable_use(use, element, item)

    def _goes_on_through(self, call: ast.Call, use: Use, element: Path, item: Steps) -> bool:
        """Whether ``call`` does nothing with the loader it is given, or gives its batches, which are followed then."""
        module = use.module
        names = self.resolver.names(call.func, module)
        if names <= {"builtins.len", "builtins.print"} and names:
            return True
        self.iterated.append(use)
        if names == frozenset({"builtins.next"}) and call.args[:1] == [use.node]:
            self._follow_images(call, module, (*element, *item))
            return True
        if names == frozenset({"builtins.zip"}) and use.node in call.args:
            position = call.args.index(use.node)
            self._follow_iterable(call, module, (position, *element), item)
            return True
        wrapping = names and names <= WRAPPING_ITERATORS - {"builtins.list"}
        if wrapping and call.args[:1] == [use.node]:
            counted = names == frozenset({"builtins.enumerate"})
            self._follow_iterable(call, module, (1, *element) if counted else element, item)
            return True
        return False
