"""Makes tensors on the device they are used on.

`torch.randn(n).to(device)` fills a buffer on the host, copies it to the GPU and throws it away; `torch.randn(n, device=device)`
fills it where it is needed, without the copy and without making the host wait. The same goes for tensors moved in the next
statement (`x = x.to(device)`, `if use_cuda: x = x.cuda()`, for which `device="cuda" if use_cuda else "cpu"` is written where no variable has that), for
those joined in the expression that moves them (`torch.cat([torch.ones(n), torch.zeros(n)]).to(device)`), and for the typed constructors of old: the idiom
`Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor` becomes a `device`, `Tensor(n, 1).fill_(1.0)` becomes
`torch.ones(n, 1, device=device)`, `x.type(Tensor)` becomes `x.to(device, dtype=torch.float32)`.

Random numbers then come from the GPU's generator: the same distribution, but for one seed another stream than the CPU's.

Left alone: tensors the host works with before they are moved; draws that decide something (a permutation for a split, an
index, a branch), initial weights, and scripts that save the CPU generator's state; `requires_grad=True` before the move
(the moved tensor is then no leaf); `out=` and `generator=`; `torch.tensor` of what may be a tensor; fractions that
`arange` or `linspace` round differently on the GPU; a `Tensor` alias of which one use cannot be replaced.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.devices.alias_rewrites import AliasRewrite, rewrite_aliases
from ..optimizer.analysis.devices.construction import Construction
from ..optimizer.analysis.devices.device_code import DeviceCode
from ..optimizer.analysis.devices.host_moves import HostMove
from ..optimizer.analysis.devices.joined_constructions import JoinedConstruction
from ..optimizer.analysis.editing.splice import Piece, bounds, spliced, without_method
from ..optimizer.analysis.facts import Fact
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.wording import listed
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import Edit, FileEdit, RemoveStatement, ReplaceExpression
from .base import Change, Example, Skip, Stage, StepPart, Transform

_REASON = "it is only used on that device; made there, it needs no tensor on the host to be moved"
_DRAW = "; the random numbers come from the device's generator: the same distribution, another stream for the same seed"
_ALIAS_REASON = "every use of the alias is replaced, each with its dtype; made on the device, they need no tensors on the host to be moved"


class DeviceConstruction(Transform):
    name = "device-construction"
    tier = Tier.EXACT
    stage = Stage.DEVICE
    relieves = StepPart.COPIES
    example = Example(
        before="""\
            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            generator = nn.Linear(16, 64).to(device)
            for step in range(100):
                noise = torch.randn(32, 16).to(device)
                labels = torch.zeros(32, dtype=torch.long)
                labels = labels.to(device)
                loss = nn.functional.cross_entropy(generator(noise), labels)
        """,
        after="""\
            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            generator = nn.Linear(16, 64).to(device)
            for step in range(100):
                noise = torch.randn(32, 16, device=device)
                labels = torch.zeros(32, dtype=torch.long, device=device)
                loss = nn.functional.cross_entropy(generator(noise), labels)
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        code = DeviceCode(script.resolver)
        for alias in script.tensor_aliases:
            if alias.refusal is not None:
                yield self.skip(alias.path, alias.span, f"{alias.refusal}; the alias stays")
        replaced: set[ast.AST] = set()
        for rewrite in rewrite_aliases(script.resolver, script.tensor_aliases):
            replaced |= rewrite.replaced
            yield self._without_aliases(rewrite)
        for construction in script.constructions:
            if construction.factory not in replaced:
                yield self._constructed(construction, code)
        for joined in script.joined_constructions:
            yield self._joined(joined, code)
        for moves in _together(script.host_moves):
            yield self._moved(moves, code)
        movable = {move.node for move in script.host_moves}
        movable |= {joined.node for joined in script.joined_constructions}
        for move in script.computed_moves:
            if not movable.isdisjoint({move.node, move.module.statement(move.node)}):
                continue
            factory = move.module.code(move.factory)
            why = f"it is computed from `{factory}`, and a GPU may round otherwise"
            if not move.rounds:
                why = f"it is put together from `{factory}`, which is made above"
            yield self._left(move, why)

    def _without_aliases(self, rewrite: AliasRewrite) -> Change | Skip:
        names = listed(f"`{name}`" for name in rewrite.names)
        if rewrite.refusal is not None:
            return self.skip(rewrite.path, rewrite.span, f"{names} left: {rewrite.refusal}")
        message = f"{names} replaced by `{rewrite.device}`: tensors are made on it"
        return self.change(rewrite.path, rewrite.span, message, _ALIAS_REASON, rewrite.edits)

    def _constructed(self, found: Construction, code: DeviceCode) -> Change | Skip:
        if found.refusal is not None:
            return self._left(found, found.refusal)
        new = code.constructed(
            found.node,
            found.factory,
            found.steps,
            found.device,
            found.module,
            found.node,
            found.dtype,
        )
        if isinstance(new, str):
            return self._left(found, new)
        whole = found.module.span(found.replaced)
        edit = FileEdit(found.path, ReplaceExpression(whole, new.code))
        return self._change(found, found.draws, found.device, (*new.edits, edit))

    def _joined(self, found: JoinedConstruction, code: DeviceCode) -> Change | Skip:
        if found.refusal is not None:
            return self._left(found, found.refusal)
        module, device = found.module, found.parts[0].device
        pieces = [without_method(module, found.node)]
        imports: list[FileEdit] = []
        for part in found.parts:
            new = code.constructed(part.node, part.factory, part.steps, device, module)
            if isinstance(new, str):
                return self._left(found, new)
            pieces.append(Piece(*bounds(module, part.node), new.code))
            imports += new.edits
        whole = ReplaceExpression(found.span, spliced(module, found.node, pieces))
        draws = any(part.draws for part in found.parts)
        return self._change(found, draws, device, (*imports, FileEdit(found.path, whole)))

    def _moved(self, moves: list[HostMove], code: DeviceCode) -> Change | Skip:
        first = moves[0]
        refusal = next((move.refusal for move in moves if move.refusal is not None), None)
        if refusal is not None:
            return self._left(first, refusal)
        edits: list[Edit] = []
        imports: list[FileEdit] = []
        module = first.module
        for move in moves:
            new = code.constructed(move.value, move.factory, move.steps, move.device, module)
            if isinstance(new, str):
                return self._left(first, new)
            edits.append(ReplaceExpression(module.span(move.value), new.code))
            imports += new.edits
        edits.append(RemoveStatement(module.span(_removable(moves))))
        here = (FileEdit(first.path, edit) for edit in edits)
        draws = any(move.draws for move in moves)
        return self._change(first, draws, first.device, (*imports, *here))

    def _left(self, found: Fact, why: str) -> Skip:
        return self.skip(found.path, found.span, f"made on the host, then moved: {why}")

    def _change(
        self,
        found: Fact,
        draws: bool,
        device: str,
        edits: tuple[FileEdit, ...],
    ) -> Change:
        message = f"the tensor is made on `{device}` instead of being moved there"
        reason = _REASON + (_DRAW if draws else "")
        return self.change(found.path, found.span, message, reason, edits)


def _together(moves: tuple[HostMove, ...]) -> list[list[HostMove]]:
    """Those of one statement; those of a whole ``if use_cuda:`` where nothing keeps one of them, so that it goes with them."""
    groups: dict[ast.stmt, list[HostMove]] = {}
    for move in moves:
        groups.setdefault(move.node, []).append(move)
    for statement in list(groups):
        if statement not in groups:
            continue
        around = groups[statement][0].module.parents[statement]
        if not isinstance(around, ast.If) or around.orelse or len(around.body) < 2:
            continue
        inside = [groups.get(one, []) for one in around.body]
        if all(part and all(move.refusal is None for move in part) for part in inside):
            for one in around.body:
                del groups[one]
            groups[around] = [move for part in inside for move in part]
    return sorted(groups.values(), key=lambda group: (str(group[0].path), group[0].span))


def _removable(moves: list[HostMove]) -> ast.stmt:
    """The statement that moves, with the ``if`` around it when that holds nothing else."""
    module, nodes = moves[0].module, {move.node for move in moves}
    statement: ast.stmt = moves[0].node
    parent = module.parents[statement]
    while (
        isinstance(parent, ast.If)
        and (parent.body == [statement] or nodes.issuperset(parent.body))
        and not parent.orelse
    ):
        statement, parent = parent, module.parents[parent]
    return statement
