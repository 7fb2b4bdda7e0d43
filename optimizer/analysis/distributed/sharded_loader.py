"""A training DataLoader that gives each of several processes its own part of every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

from ...rewriting.edits import FileEdit, InsertBefore, SetArgument
from ..editing.free_names import free_name
from ..editing.references import quoted
from ..editing.replacing import replacement
from ..facts import Argument, DataLoader, Fact
from ..loading.datasets import find_datasets, is_iterable
from ..loading.last_batches import only_trains
from ..loading.loaders import DATALOADER, PARAMETERS
from ..obstacles import Obstacle
from ..program.module_names import name_reads
from ..program.syntax import Module, first_name
from ..script import TrainingScript
from ..training.batch_division import counted_on, known_number, other_use
from ..training.shown_tensors import ShownTensors
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Literal
from .asked_sizes import asked_size_edits, asked_size_obstacle
from .common_seeds import CommonSeeds
from .library_samplers import library_sampler
from .process_names import Place, ProcessNames

_SAMPLERS, _SETS = ("train_sampler", "distributed_sampler"), ("train_set", "training_set")
"""What is called so where the script has a sampler or a dataset without a name: the first that it has no use for."""
_DEFAULTS = {"batch_size": "1", "shuffle": "False", "drop_last": "False"}
_NEEDED = ("dataset", "batch_size")


@dataclass(frozen=True, eq=False)
class ShardedLoader(Fact):
    """A DataLoader whose batches can be shared by processes; ``shuffles`` says whether every epoch has its own order."""

    loader: DataLoader
    shuffles: bool
    edits: tuple[FileEdit, ...]


def shard_loader(
    script: TrainingScript,
    loader: DataLoader,
    step: StepCode,
    names: ProcessNames,
    processes: int | None,
    seeds: CommonSeeds,
) -> ShardedLoader | Fact:
    """``loader``, of which ``step`` gets its batches, with a DistributedSampler, or what forbids that. It is seeded as the script is, if by one of ``seeds``."""
    resolver = script.resolver
    obstacle = _obstacle(script, loader, step, processes or 1)
    if obstacle is not None:
        return obstacle
    module, statement = loader.module, loader.module.statement(loader.node)
    made, own = library_sampler(resolver, loader), _empty_sampler(loader)
    if own is not None and made is None and _is_used_elsewhere(own, loader):
        return Obstacle(module, loader.node, f"`{own.id}` is a name of the script's own")
    sampler_name = own.id if own is not None else _free_name(module, _SAMPLERS)
    edits: list[FileEdit] = []
    dataset = loader.arguments["dataset"]
    code = module.code(dataset.value)
    rows: list[str] = []
    if made is None and not isinstance(dataset.value, ast.Name | ast.Attribute):
        name = _free_name(module, _SETS)
        rows.append(f"{name} = {module.unindented_code(dataset.value)}")
        edits.append(replacement(module, dataset.value, name))
        code = name
    size = loader.arguments["batch_size"]
    world = names.name(Place.WORLD_SIZE, module)
    batch = _said(loader, "batch_size")
    if not isinstance(size.value, ast.Constant | ast.Name | ast.Attribute):
        batch = f"({batch})"
    told = quoted(module, "every process gets an equal part of every batch")
    rows.append(f"assert {batch} % {world} == 0, {told}")
    shuffles = made.shuffles if made is not None else _shuffles(resolver, loader)
    sampler = _sampler(script, loader, names, code, seeds if shuffles else None)
    if made is not None:
        code = f"{sampler} if {world} > 1 else {module.code(made.call)}"
        edits.append(replacement(module, made.call, code))
    else:
        rows.append(f"{sampler_name} = {sampler} if {world} > 1 else None")
    edits.append(FileEdit(module.path, InsertBefore(module.span(statement), "\n".join(rows))))
    changed = {"batch_size": f"{batch} // {world}"}
    shuffle = loader.arguments.get("shuffle")
    if shuffle is not None and shuffles and not _asks_for(shuffle.value, sampler_name):
        alone = f"{sampler_name} is None"
        literal = isinstance(shuffle.value, ast.Constant) and _is(resolver, loader, shuffle, True)
        changed["shuffle"] = alone if literal else f"{_said(loader, 'shuffle')} and {alone}"
    edits += _changed_arguments(loader, changed)
    if own is None and made is None:
        place = PARAMETERS.index("sampler")
        edit = SetArgument(module.span(loader.node), "sampler", sampler_name, place)
        edits.append(FileEdit(module.path, edit))
    edits += asked_size_edits(resolver, loader, script.loaders, names)
    return ShardedLoader(module, loader.node, loader, shuffles, tuple(edits))


def _empty_sampler(loader: DataLoader) -> ast.Name | None:
    """The variable that ``loader`` is given for its sampler, as scripts do that leave room for one: it is None."""
    given = loader.arguments.get("sampler")
    if given is None or given.value not in _written(loader):
        return None
    return given.value if isinstance(given.value, ast.Name) else None


def _is_used_elsewhere(sampler: ast.Name, loader: DataLoader) -> bool:
    """Whether the variable is that of another function, or used for more than ``loader`` and to ask whether it is there."""
    module = loader.module
    owner = module.scope(sampler).lookup(sampler.id)
    if owner is None or owner[0].node is not (module.function(loader.node) or module.tree):
        return True
    return any(
        loader.node not in module.ancestors(read)
        for read in name_reads(sampler, module)
        if not isinstance(module.parents[read], ast.Compare)
    )


def _asks_for(test: ast.expr, name: str) -> bool:
    """Whether ``test`` is ``name is None``."""
    return isinstance(test, ast.Compare) and ast.unparse(test) == f"{name} is None"


def _written(loader: DataLoader) -> set[ast.expr]:
    """The arguments that stand in the call of ``loader`` itself."""
    return {*loader.node.args, *(k.value for k in loader.node.keywords if k.arg is not None)}


def _keyword_dict(loader: DataLoader) -> ast.expr | None:
    """The variable with the one dict of keywords that ``loader`` is made with."""
    dicts = [k.value for k in loader.node.keywords if k.arg is None]
    is_variable = len(dicts) == 1 and isinstance(dicts[0], ast.Name | ast.Attribute)
    return dicts[0] if is_variable else None


def _said(loader: DataLoader, name: str) -> str:
    """How the argument ``name`` of ``loader`` is spelled beside its call."""
    module, argument = loader.module, loader.arguments[name]
    keywords = _keyword_dict(loader)
    if argument.value in _written(loader) or keywords is None:
        return module.code(argument.value)
    key, code = quoted(module, name), module.code(keywords)
    if len(loader.displays) == 1 and _holds(loader.displays[0][0], name):
        return f"{code}[{key}]"
    return f"{code}.get({key}, {_DEFAULTS[name]})"  # put into the dict later, maybe


def _holds(display: ast.Dict | ast.Call, key: str) -> bool:
    """Whether ``key`` is written in ``display``."""
    if isinstance(display, ast.Dict):
        return any(isinstance(k, ast.Constant) and k.value == key for k in display.keys)
    return any(keyword.arg == key for keyword in display.keywords)


def _changed_arguments(loader: DataLoader, changed: Mapping[str, str]) -> Iterator[FileEdit]:
    """The edits that give ``loader`` the arguments ``changed``, where they stand or over those of its dict."""
    module, keywords = loader.module, _keyword_dict(loader)
    over: list[str] = []
    for name, code in changed.items():
        value = loader.arguments[name].value
        if value in _written(loader):
            yield replacement(module, value, code)
        else:
            over.append(f"{quoted(module, name)}: {code}")
    if over and keywords is not None:
        yield replacement(
            module, keywords, "{" + ", ".join([f"**{module.code(keywords)}", *over]) + "}"
        )


def _obstacle(
    script: TrainingScript, loader: DataLoader, step: StepCode, processes: int
) -> Fact | None:
    resolver, module = script.resolver, loader.module
    why = _not_shared(resolver, loader) or only_trains(
        resolver, loader, script.loops, script.iterations
    )
    if why is not None:
        return Obstacle(module, loader.node, f"its DataLoader cannot be shared: {why}")
    asked = asked_size_obstacle(resolver, loader, script.loaders)
    if asked is not None:
        return asked
    size = loader.arguments["batch_size"]
    values = resolver.values(size.value, size.module)
    number = known_number(values)
    written = [v.value for v in values if isinstance(v, Literal)]
    shown = ShownTensors(resolver, step)
    if number is not None and number in written and number % processes:
        why = f"a batch of {number} samples does not divide into {processes} equal parts"
        return Obstacle(module, loader.node, why)
    if number is not None and number > 1:  # a 1 in the step says nothing about the batch
        counted = counted_on(resolver, number, step.loop, shown)
        if counted is not None:
            return counted
    if isinstance(size.value, ast.Constant):
        return None
    return other_use(resolver, values, script.loaders, shown)


def _not_shared(resolver: Resolver, loader: DataLoader) -> str | None:
    module = loader.module
    if loader.opaque is not None:
        return f"`{module.code(loader.opaque)}` is not known"
    if resolver.names(loader.node.func, module) != frozenset({DATALOADER}):
        return "its class is the script's own"
    for name in ("sampler", "batch_sampler"):
        given = loader.arguments.get(name)
        if given is not None and not resolver.is_always(given.value, given.module, None):
            if name == "sampler" and library_sampler(resolver, loader) is not None:
                continue
            return f"it has a `{name}` of its own"
    for name in (*_NEEDED, "shuffle", "drop_last"):
        argument = loader.arguments.get(name)
        by_dict = argument is not None and argument.value not in _written(loader)
        if by_dict and (_keyword_dict(loader) is None or name == "dataset"):
            return f"its `{name}` comes by a dict"
        if argument is None and name in _NEEDED:
            return f"its `{name}` is not given"
    if any(
        isinstance(p, ast.comprehension | ast.DictComp | ast.ListComp | ast.Lambda)
        for p in module.ancestors(loader.node)
    ):
        return "it is one of several that one expression makes"
    datasets = find_datasets(resolver, loader)
    if any(is_iterable(resolver, dataset) for dataset in datasets):
        return "its dataset is only iterated: every process would read all of it"
    shuffle = loader.arguments.get("shuffle")
    made = library_sampler(resolver, loader)
    shuffled = shuffle is not None and _is(resolver, loader, shuffle, True)
    if not datasets and not (shuffled or (made is not None and made.shuffles)):
        return "the length of its dataset is not known"
    return None


def _shuffles(resolver: Resolver, loader: DataLoader) -> bool:
    shuffle = loader.arguments.get("shuffle")
    return shuffle is not None and not _is(resolver, loader, shuffle, False)


def _sampler(
    script: TrainingScript,
    loader: DataLoader,
    names: ProcessNames,
    dataset: str,
    seeds: CommonSeeds | None,
) -> str:
    """The call that makes the sampler of ``dataset``; ``seeds`` where it shuffles."""
    module = loader.module
    cls = names.imported(module, "torch.utils.data", "DistributedSampler")
    given = [dataset, *_sampler_arguments(script, loader, seeds)]
    if module is not script.entry and module.function(loader.node) is None:
        # Made as the file is imported, before the processes have met.
        world, rank = names.name(Place.WORLD_SIZE, module), names.name(Place.RANK, module)
        given += [f"num_replicas={world}", f"rank={rank}"]
    return f"{cls}({', '.join(given)})"


def _sampler_arguments(
    script: TrainingScript, loader: DataLoader, seeds: CommonSeeds | None
) -> Iterator[str]:
    resolver, shuffle = script.resolver, loader.arguments.get("shuffle")
    if seeds is None:
        yield "shuffle=False"
    elif (
        shuffle is not None
        and not _is(resolver, loader, shuffle, True)
        and not ((own := _empty_sampler(loader)) is not None and _asks_for(shuffle.value, own.id))
    ):
        yield f"shuffle={_said(loader, 'shuffle')}"
    seed = _seed(script, loader, seeds) if seeds is not None else None
    if seed is not None:
        yield f"seed={seed}"
    drop_last = loader.arguments.get("drop_last")
    if drop_last is not None and not _is(resolver, loader, drop_last, False):
        yield f"drop_last={_said(loader, 'drop_last')}"


def _seed(script: TrainingScript, loader: DataLoader, common: CommonSeeds) -> str | None:
    """The script's own seed as it can be written where the loader is made."""
    seeds = [seed for seed in script.seeding.seeds if "torch" in seed.libraries]
    if not seeds or not isinstance(seeds[0].node, ast.Call) or not seeds[0].node.args:
        return None
    first, place = seeds[0].node.args[0], seeds[0].module
    if isinstance(first, ast.Constant):
        return None if first.value == 0 else place.code(first)
    base = first_name(first)
    if base is None or place is not loader.module:
        return None
    if not common.is_alike(seeds[0]):
        return None  # the processes have to shuffle alike
    there = place.scope(first).lookup(base.id)
    here = loader.module.scope(loader.node).lookup(base.id)
    same = there is not None and here is not None and there[0] is here[0]
    return place.code(first) if same else None


def _is(resolver: Resolver, loader: DataLoader, argument: Argument, wanted: bool) -> bool:
    """Whether ``argument`` is ``wanted``; what a dict says may change before and after the loader is made."""
    if argument.value not in _written(loader):
        return False
    return resolver.is_always(argument.value, argument.module, wanted)


def _free_name(module: Module, names: Sequence[str]) -> str:
    private = (f"{'_' * more}{names[0]}" for more in count(1))
    name = free_name(module, chain(names, private))
    assert name is not None
    return name
