"""The verdict on one comparison: equivalent, not equivalent, or inconclusive, with its findings and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..execution.observations import Observations
from ..options import Tier
from ..terminal import counted
from .checkpoints import compare_checkpoint_values
from .counterparts import Counterparts
from .exact import compare_bits
from .figures import StepFigures, VectorFigures
from .files import compare_files
from .findings import Finding, Kind, Severity, by_importance, note
from .layers import explain
from .named_files import compare_file_names, under_original_names
from .numeric import compare_numbers
from .reached import within_reach
from .series import step_figures
from .skipped_steps import NEVER_STEPPED, never_stepped, some_steps_behind
from .structure import compare_structure
from .text import compare_text
from .told_shares import own_share_as_whole
from .tolerance import Precision, precision_of_losses

FEWEST_NEIGHBOURS = 2
"""Runs of the original that an envelope is made of at least."""

_OUR_MACHINE = (Kind.TIME_LIMIT, Kind.TOO_FEW_GPUS)
_ENDINGS = (Kind.EXIT_STATUS, *_OUR_MACHINE, Kind.RESOURCE_LIMIT)
"""How the rewritten run ended before anything could be compared; the first for want of time or devices."""

TOLD = frozenset(
    {Kind.STDOUT, Kind.FILES, Kind.FILE_VALUE, Kind.CHECKPOINT_FILES, Kind.CHECKPOINT_VALUE}
)
"""What a script makes of its training and evaluation for its reader."""

HARD = frozenset(
    {
        Kind.EXIT_STATUS,
        *_OUR_MACHINE,
        Kind.RESOURCE_LIMIT,
        Kind.MISSING_OBSERVATION,
        Kind.NON_FINITE,
        Kind.FROZEN_PARAMETER,
        Kind.CHECKPOINT_KEYS,
        Kind.CHECKPOINT_SHAPE,
        Kind.CHECKPOINT_DTYPE,
    }
)
"""Kinds that no change of training which was asked for explains."""


class Outcome(str, Enum):
    """``INCONCLUSIVE``: nothing contradicts equivalence, and what was seen does not show it either."""

    EQUIVALENT = "equivalent"
    NOT_EQUIVALENT = "not equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Verdict:
    """What one comparison came to.

    ``precision`` is None when values were compared bit for bit. ``reason`` is one line without the outcome.
    """

    outcome: Outcome
    tier: Tier
    precision: Precision | None
    reason: str
    findings: tuple[Finding, ...]
    steps: tuple[StepFigures, ...] = ()
    vectors: tuple[VectorFigures, ...] = ()

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.fails)


def repeats_itself(original: Observations, repeat: Observations) -> bool:
    """Whether two runs of the original agree bit for bit."""
    return not any(finding.fails for finding in compare_bits(original, repeat))


def judge_exact(
    original: Observations, repeats: Sequence[Observations], rewritten: Observations
) -> Verdict:
    """Bit for bit; against the original's own spread where its ``repeats`` differ from it."""
    common = Counterparts.of(original, rewritten)
    original, rewritten, *repeats = map(common.in_common, (original, rewritten, *repeats))
    structure = compare_structure(original, rewritten, repeats)
    if structure and structure[0].kind in _ENDINGS:
        return _unfinished(original, rewritten, structure)
    differing = next((run for run in repeats if not repeats_itself(original, run)), None)
    if differing is not None:
        return _within_spread(original, repeats, rewritten, differing)
    findings = [
        *structure,
        *common.notes(),
        *compare_bits(original, rewritten),
        *_printed(original, rewritten, repeats, (), None),
        *compare_files(original, rewritten, repeats, (), None),
        *compare_checkpoint_values(original, rewritten, repeats, None),
    ]
    return _conclude(
        Tier.EXACT,
        None,
        explain(by_importance(findings), original, rewritten),
        f"bit for bit the same over {counted(original.rounds, 'step')}",
        step_figures(original, rewritten),
    )


def judge_conduct(
    original: Observations, repeats: Sequence[Observations], rewritten: Observations
) -> Verdict:
    """What no rounding explains, alone: of a rewrite in which sums are made in another order from the first step on."""
    common = Counterparts.of(original, rewritten)
    original, rewritten, *repeats = map(common.in_common, (original, rewritten, *repeats))
    structure = [*compare_structure(original, rewritten, repeats), *common.notes()]
    return _conclude(
        Tier.NUMERIC, None, structure, "it does the same", step_figures(original, rewritten)
    )


def only_told_differs(exact: Verdict, original: Observations, rewritten: Observations) -> bool:
    """Whether training and evaluation were bit for bit the same, and only what was printed or saved besides was not."""
    kinds = _kinds_apart(exact, original, rewritten)
    return bool(kinds) and kinds <= TOLD


def only_evaluation_differs(
    exact: Verdict, original: Observations, rewritten: Observations
) -> bool:
    """Whether training was bit for bit the same, and what was evaluated, printed and saved besides was not."""
    kinds = _kinds_apart(exact, original, rewritten)
    return Kind.EVALUATION_OUTPUT in kinds and kinds <= TOLD | {Kind.EVALUATION_OUTPUT}


def _kinds_apart(exact: Verdict, original: Observations, rewritten: Observations) -> set[Kind]:
    """What was not bit for bit the same; nothing where that cannot be told.

    It cannot where ``exact`` was judged by the spread of an original that does not repeat itself. Where only one version
    computes in a reduced type, it does so in what was not seen: an evaluation outside modules.
    """
    if exact.precision is not None or original.compute_dtypes != rewritten.compute_dtypes:
        return set()
    return {failure.kind for failure in exact.failures}


def judge_told(
    original: Observations, repeats: Sequence[Observations], rewritten: Observations
) -> Verdict:
    """What was printed and saved, of runs that trained and evaluated bit for bit the same.

    Only the summing up of equal values is left to be rounded, in the type of the losses; how far perturbed *training*
    would take these numbers says nothing about that, so no run of the original but its ``repeats`` widens the rule.
    """
    common = Counterparts.of(original, rewritten)
    original, rewritten, *repeats = map(common.in_common, (original, rewritten, *repeats))
    precision = precision_of_losses(original, rewritten)
    names = compare_file_names(original, rewritten, repeats, (), precision)
    rewritten, *repeats = (under_original_names(original, run) for run in (rewritten, *repeats))
    findings = [
        *names,
        *common.notes(),
        *compare_structure(original, rewritten, repeats),
        *_told(original, rewritten, repeats, (), precision),
    ]
    return _conclude(
        Tier.NUMERIC,
        precision,
        findings,
        same_but_for_told(original, precision),
        step_figures(original, rewritten),
    )


def same_but_for_told(original: Observations, precision: Precision) -> str:
    """The reason why a rewrite is equivalent that trains and evaluates bit for bit the same, and sums up otherwise."""
    return (
        f"bit for bit the same over {counted(original.rounds, 'step')}, "
        f"and what is printed or saved besides within {precision.value} rounding"
    )


def _unfinished(
    original: Observations, rewritten: Observations, structure: Sequence[Finding]
) -> Verdict:
    """Nothing behind the end can be compared; where our own limits ended it, nothing is shown either way."""
    verdict = _conclude(Tier.EXACT, None, structure, "", step_figures(original, rewritten))
    ours = structure[0].kind in _OUR_MACHINE
    return replace(verdict, outcome=Outcome.INCONCLUSIVE) if ours else verdict


def _within_spread(
    original: Observations,
    repeats: Sequence[Observations],
    rewritten: Observations,
    differing: Observations,
) -> Verdict:
    first = compare_bits(original, differing)[0]
    told = note(
        Kind.NOT_REPEATABLE,
        "two runs of the original differ, so their spread is the tolerance: " + first.message,
        step=first.step,
        tensor=first.tensor,
    )
    verdict = judge_numeric(original, repeats, (), rewritten, Precision.FLOAT32)
    return replace(
        verdict,
        tier=Tier.EXACT,
        reason=f"within the spread of {1 + len(repeats)} runs of the original over {counted(original.rounds, 'step')}"
        if verdict.outcome is Outcome.EQUIVALENT
        else verdict.reason,
        findings=by_importance((*verdict.findings, told)),
    )


def judge_numeric(
    original: Observations,
    repeats: Sequence[Observations],
    perturbed: Sequence[Observations],
    rewritten: Observations,
    precision: Precision,
    *,
    same_arithmetic: bool = False,
) -> Verdict:
    """Within what rounding of ``precision`` does to the original.

    ``perturbed`` are runs of the original from perturbed parameters. ``same_arithmetic`` tells that the rewrite was
    shown to do the original's arithmetic when its reduced precision is switched off, so that rounding is all that is
    left to judge, and a comparison without power decides nothing.
    """
    common = Counterparts.of(original, rewritten)
    original, rewritten = common.in_common(original), common.in_common(rewritten)
    repeats = tuple(map(common.in_common, repeats))
    perturbed = tuple(map(common.in_common, perturbed))
    names = compare_file_names(original, rewritten, repeats, perturbed, precision)
    rewritten, *others = (
        under_original_names(original, run) for run in (rewritten, *repeats, *perturbed)
    )
    repeats, perturbed = others[: len(repeats)], others[len(repeats) :]
    spread = () if all(repeats_itself(original, run) for run in repeats) else repeats
    neighbours = (*spread, *perturbed)
    compared = compare_numbers(original, rewritten, neighbours, precision)
    findings = [
        *names,
        *common.notes(),
        *compare_structure(original, rewritten, (*repeats, *perturbed), precision),
        *_where_it_repeats(compared.findings, original, repeats),
        *_told(original, rewritten, repeats, neighbours, precision),
    ]
    findings = within_reach(findings, original, neighbours, FEWEST_NEIGHBOURS)
    if same_arithmetic:
        findings = some_steps_behind(findings, original, rewritten)
    weak = _weakness(neighbours, compared.vectors)
    if weak:
        findings.append(note(Kind.LITTLE_POWER, weak))
    verdict = _conclude(
        Tier.NUMERIC,
        precision,
        explain(by_importance(findings), original, rewritten, neighbours, precision),
        f"within {precision.value} rounding over {counted(original.rounds, 'step')}",
        compared.steps,
        compared.vectors,
    )
    if verdict.outcome is not Outcome.EQUIVALENT:
        return verdict
    if compared.unseen:
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=compared.unseen)
    if never_stepped(rewritten):
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=NEVER_STEPPED)
    if weak and not same_arithmetic:
        return replace(verdict, outcome=Outcome.INCONCLUSIVE, reason=weak)
    return verdict


def _where_it_repeats(
    findings: Sequence[Finding], original: Observations, repeats: Sequence[Observations]
) -> list[Finding]:
    """``findings``, with other initial parameters as a note where the original does not start from the same twice."""
    start = original.snapshot(0)
    again = [run.snapshot(0) for run in repeats]
    if start is None or all(one is None or one.hashes == start.hashes for one in again):
        return list(findings)
    return [
        replace(f, severity=Severity.NOTE) if f.kind is Kind.INITIAL_PARAMETERS else f
        for f in findings
    ]


def _weakness(neighbours: Sequence[Observations], vectors: Sequence[VectorFigures]) -> str | None:
    """Why the comparison could have missed a wrong rewrite, None when it could not.

    Each optimizer needs one vector in which an error of half its length would have shown.
    """
    if len(neighbours) < FEWEST_NEIGHBOURS:
        return (
            f"only {len(neighbours)} neighbouring runs of the original to tell rounding from error"
        )
    groups = {vector.group for vector in vectors}
    blind = groups - {vector.group for vector in vectors if vector.telling}
    if not groups:
        return "neither gradients nor parameters of both runs could be compared"
    if blind:
        return (
            f"rounding alone takes the first step of {', '.join(sorted(blind))} so far "
            "that a wrong rewrite could not be told from it"
        )
    return None


def as_semantic(verdict: Verdict) -> Verdict:
    """The verdict on a rewrite that was asked to change training: never equivalent unless it is.

    Differences that such a change explains become notes; crashes, NaN, frozen parameters and changed checkpoint
    layouts stay failures.
    """
    if verdict.outcome is not Outcome.NOT_EQUIVALENT:
        return replace(verdict, tier=Tier.SEMANTIC)
    findings = tuple(
        f if f.kind in HARD or not f.fails else replace(f, severity=Severity.NOTE)
        for f in verdict.findings
    )
    failures = [finding for finding in findings if finding.fails]
    return replace(
        verdict,
        tier=Tier.SEMANTIC,
        outcome=Outcome.NOT_EQUIVALENT if failures else Outcome.INCONCLUSIVE,
        reason=_named(failures[0])
        if failures
        else "training changes, as was asked for: " + verdict.reason,
        findings=by_importance(findings),
    )


def failed_by(verdict: Verdict, finding: Finding) -> Verdict:
    """``verdict`` with a failure that was found besides."""
    findings = by_importance((finding, *verdict.findings))
    reason = _named(findings[0])
    return replace(verdict, outcome=Outcome.NOT_EQUIVALENT, reason=reason, findings=findings)


def led_by(verdict: Verdict, finding: Finding) -> Verdict:
    """``verdict`` with one of its failures as the reason."""
    others = (other for other in verdict.findings if other is not finding)
    return replace(verdict, reason=_named(finding), findings=(finding, *others))


def _conclude(
    tier: Tier,
    precision: Precision | None,
    findings: Sequence[Finding],
    reason: str,
    steps: tuple[StepFigures, ...],
    vectors: tuple[VectorFigures, ...] = (),
) -> Verdict:
    ordered = by_importance(findings)
    failed = bool(ordered) and ordered[0].fails
    return Verdict(
        Outcome.NOT_EQUIVALENT if failed else Outcome.EQUIVALENT,
        tier,
        precision,
        _named(ordered[0]) if failed else reason,
        ordered,
        steps,
        vectors,
    )


def _named(finding: Finding) -> str:
    tensor = f", {finding.tensor}" if finding.tensor else ""
    return f"{finding.kind.value}{finding.when}{tensor}: {finding.message}"


def _told(
    original: Observations,
    rewritten: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision,
) -> list[Finding]:
    """What was printed and saved, within rounding."""
    return [
        *_printed(original, rewritten, repeats, neighbours, precision),
        *compare_files(original, rewritten, repeats, neighbours, precision),
        *compare_checkpoint_values(original, rewritten, neighbours, precision),
    ]


def _printed(
    original: Observations,
    rewritten: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> list[Finding]:
    """What was printed; when any run's output was cut off, the lines that all of them have in full."""
    texts = [run.stdout for run in (original, rewritten, *repeats, *neighbours)]
    cut = any(run.stdout_cut for run in (original, rewritten))
    if cut:
        common = min(len(text.splitlines()) for text in texts[:2]) - 1
        texts = ["\n".join(text.splitlines()[: max(common, 0)]) for text in texts]
    middle = 2 + len(repeats)
    notes: list[Finding] = []
    if rewritten.ranks:
        own, ranks = rewritten.ranks[0].losses, len(rewritten.ranks)
        texts[1], count = own_share_as_whole(texts[0], texts[1], original.losses, own, ranks)
        if count:
            message = (
                f"in {count} lines rank 0 tells its own loss of a step, not the mean of all ranks"
            )
            notes.append(note(Kind.STDOUT, message))
    found = compare_text(
        texts[0],
        texts[1],
        texts[2:middle],
        texts[middle:],
        precision,
        (original.step_of_line, rewritten.step_of_line),
    )
    return [*found, *notes]
