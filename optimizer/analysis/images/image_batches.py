"""Where the images of a dataset's transforms go: through datasets and loaders to the copies to the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..distributed.data_parallel import data_parallel_calls
from ..facts import DataLoader, Fact, excerpt
from ..loading.batches import BatchTrace
from ..loading.datasets import find_datasets
from ..obstacles import Obstacle
from ..program.classes import kept_as
from ..program.scopes import Assigned, Path
from ..program.sharing import in_words, other_importer
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Literal, Made
from .image_flow import ImageCopy
from .image_obstacles import general_obstacle
from .image_pipelines import ImagePipeline, find_image_pipelines
from .image_trace import ImageTrace

_SIZES = frozenset({"shape", "size", "dim", "ndim", "numel", "nelement"})


@dataclass(frozen=True, eq=False)
class ImageBatches:
    """Pipelines whose images meet, and every place where those are copied to the device, unless something is in the way."""

    pipelines: tuple[ImagePipeline, ...]
    copies: tuple[ImageCopy, ...]
    obstacle: Obstacle | None

    @property
    def scaling(self) -> object:
        """Equal for pipelines that do the same to the bytes of an image."""
        return _scaling(self.pipelines[0])


def find_image_batches(
    resolver: Resolver, loaders: tuple[DataLoader, ...]
) -> tuple[ImageBatches, ...]:
    """The pipelines of a script, grouped by whose images are copied at the same places."""
    pipelines = find_image_pipelines(resolver)
    if not pipelines:
        return ()
    general = general_obstacle(resolver)
    traces = [ImageTrace(resolver, loaders, pipelines, pipeline, general) for pipeline in pipelines]
    groups: list[list[ImageTrace]] = []
    for trace in traces:
        trace.run()
        meeting = [g for g in groups if any(trace.meets(other) for other in g)]
        groups = [g for g in groups if g not in meeting]
        groups.append([t for g in meeting for t in g] + [trace])
    return tuple(_joined(resolver, loaders, group) for group in groups if _is_used(group))


def _is_used(group: list[ImageTrace]) -> bool:
    return any(trace.copies or trace.obstacle for trace in group)


def _joined(
    resolver: Resolver, loaders: tuple[DataLoader, ...], group: list[ImageTrace]
) -> ImageBatches:
    group.sort(key=lambda trace: (str(trace.pipeline.path), trace.pipeline.span))
    copies = {copy.node: copy for trace in group for copy in trace.copies}
    obstacle = next((trace.obstacle for trace in group if trace.obstacle is not None), None)
    pipelines = tuple(trace.pipeline for trace in group)
    if obstacle is None:
        obstacle = (
            _mixed_images(group)
            or _repeated(group)
            or _other_items(group)
            or _other_sources(resolver, group)
            or _strangers(resolver, loaders, group, copies.values())
            or _left_to_data_parallel(resolver, copies.values())
            or _different(group)
            or _other_script(resolver, group)
        )
    return ImageBatches(pipelines, tuple(copies.values()), obstacle)


def _other_script(resolver: Resolver, group: list[ImageTrace]) -> Obstacle | None:
    """A pipeline or copy in a file that another script uses, too."""
    for trace in group:
        for fact in (trace.pipeline, *trace.copies):
            path = other_importer(resolver.project, fact.module)
            if path is not None:
                return Obstacle(fact.module, fact.node, in_words(path, fact.path.name))
    return None


def _left_to_data_parallel(resolver: Resolver, copies: Iterable[ImageCopy]) -> Obstacle | None:
    """A copy to the GPU of a number, where without a number ``DataParallel`` copies: the host would normalize, without its workers."""
    for copy in copies:
        for test in _all_of(copy.under.node.test) if copy.under is not None else ():
            match test:
                case ast.Compare(gpu, [ast.IsNot()], [ast.Constant(None)]):
                    if data_parallel_calls(resolver):
                        code = copy.module.code(gpu)
                        message = f"where `{code}` is None, they stay on the host until `DataParallel` copies them"
                        return Obstacle(copy.module, copy.node, message)
                case _:
                    pass
    return None


def _all_of(test: ast.expr) -> list[ast.expr]:
    """The tests that all must be true for ``test`` to be."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _mixed_images(group: list[ImageTrace]) -> Obstacle | None:
    """A variable that may hold the group's images and something else."""
    for trace in group:
        for fact in trace.images.mixed(other.images for other in group):
            if _asks_for_size(fact):
                continue  # which is the same before and behind the copy
            message = f"`{fact.excerpt}` may be something else than the images"
            return Obstacle(fact.module, fact.node, message)
    return None


def _asks_for_size(read: Fact) -> bool:
    """Whether ``read`` is a variable of which only the size is asked for: ``images.shape[0]``, ``len(images)``."""
    match read.module.parents[read.node]:
        case ast.Attribute(attr=name):
            return name in _SIZES
        case ast.Call(func=ast.Name("len"), args=[argument]):
            return argument is read.node
        case _:
            return False


def _repeated(group: list[ImageTrace]) -> Obstacle | None:
    """An ``if`` that copies images, and that the same images may come to twice: they would be normalized twice."""
    for trace in group:
        for copy in trace.images.again():
            test = copy.module.code(copy.node.test)
            message = f"`{copy.name}` may be of an earlier pass where `if {test}:` copies it"
            return Obstacle(copy.module, copy.node, message)
    return None


def _other_items(group: list[ImageTrace]) -> Obstacle | None:
    """A way out of a ``__getitem__`` on which the item is not, or not at the same place, an image of the group."""
    found = [(use.parent, use.steps) for trace in group for use in trace.items]
    for trace in group:
        for use in trace.items:
            for node in walk(use.function or use.node):
                if isinstance(node, ast.Return) and (node, use.steps) not in found:
                    message = f"`{excerpt(use.module, node)}` returns something else"
                    return Obstacle(use.module, node, message)
    return None


def _other_sources(resolver: Resolver, group: list[ImageTrace]) -> Obstacle | None:
    """A loader that may read another dataset, or a loop that may go over something else."""
    made = {node for trace in group for node in trace.places}
    for trace in group:
        for loader in trace.loaders:
            for dataset in find_datasets(resolver, loader):
                if dataset.node not in made:
                    message = f"its loader may read {dataset.name}, too"
                    return Obstacle(loader.module, loader.node, message)
        for use in trace.iterated:
            if not _gives_only(resolver, use.node, use.module, made):
                message = f"`{use.excerpt}` may be something else than a loader of these images"
                return Obstacle(use.module, use.node, message)
    return None


def _gives_only(resolver: Resolver, iterable: ast.expr, module: Module, made: set[ast.AST]) -> bool:
    """Whether ``iterable`` is certainly one of ``made``: loaders, and calls of generators over them."""
    if iterable in made:
        return True
    found: Sequence[tuple[ast.expr, Path, Module]] = ()
    match iterable:
        case ast.Name():
            known = module.scope(iterable).lookup(iterable.id)
            sources = [binding.source for binding in known[1]] if known is not None else []
            assigned = [source for source in sources if isinstance(source, Assigned)]
            if len(assigned) == len(sources):
                found = [(source.value, source.path, module) for source in assigned]
        case ast.Attribute(attr=name):
            found = kept_as(resolver, module.enclosing_class(iterable), module, name)
        case _:
            pass
    if found and all(value in made and not path for value, path, _ in found):
        return True
    return all(
        (isinstance(value, Literal) and value.value is None)
        or (isinstance(value, Made) and value.call in made)
        for value in resolver.values(iterable, module)
    )


def _strangers(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    group: list[ImageTrace],
    copies: Iterable[ImageCopy],
) -> Obstacle | None:
    """A copy that may also copy something else than the images of the group's loaders."""
    own = {loader for trace in group for loader in trace.loaders}
    trace = BatchTrace(resolver, loaders)
    for copy in copies:
        for part in trace.parts(copy.source, copy.module):
            if part is None or part.loader not in own:
                message = f"`{copy.excerpt}` may copy something else, too"
                return Obstacle(copy.module, copy.node, message)
    return None


def _different(group: list[ImageTrace]) -> Obstacle | None:
    """A pipeline that scales otherwise than the others of its group, or one of whose copies comes too early."""
    first = group[0].pipeline
    for trace in group:
        pipeline = trace.pipeline
        if _scaling(pipeline) != _scaling(first):
            message = (
                "its images are normalized otherwise than others that are copied at the same place"
            )
            return Obstacle(pipeline.module, pipeline.node, message)
        normalization = pipeline.normalization
        if normalization is not None and not normalization.is_uniform:
            for copy in trace.copies:
                if copy.is_view or (copy.under is not None and trace.images.reshapes):
                    message = f"`{copy.excerpt}` copies reshaped images, whose channels are not told apart"
                    return Obstacle(copy.module, copy.node, message)
    return None


def _scaling(pipeline: ImagePipeline) -> tuple[object, ...]:
    normalization = pipeline.normalization
    numbers = (normalization.mean, normalization.std) if normalization is not None else ()
    return (pipeline.by_dtype, numbers)
