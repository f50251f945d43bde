"""Decide whether a finished search has a winner, which requires that trials of two backends trained with equal losses
(parity).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas import formatting
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.trial import Rejection, TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import parity
from shardtune.tuner.verdict.parity import ParityGroups, Tolerance


@dataclass(frozen=True)
class FinalParity:
    """Parity groups at the end of a search, and notes on how they were formed. A parity group contains the trials
    that have equal losses.
    """

    parity_groups: ParityGroups
    notes: tuple[str, ...] = ()


def measured_differences(
    history: Sequence[Observation], workload: Workload, cluster: Cluster, groups: ParityGroups
) -> tuple[str, ...]:
    """Note with the largest differences (such as of losses) between trials that count as the same training, each with
    the allowed difference. There is no note on CPU ranks, or if no two trials can be compared.

    The allowed differences were chosen from measurements on CPU ranks; the notes of studies on GPUs show whether they
    suit GPUs.
    """
    if cluster.device == "cpu":
        return ()
    bounds = parity.tolerance(workload.precision, workload.optimizer, workload.float8)
    largest = parity.largest_differences(history, groups)
    figures = ", ".join(f"{label} {apart:.1e} (allowed {_allowed(bounds, label)})" for label, apart in largest.items())
    return (f"largest differences from the reference training: {figures}",) if figures else ()


def _allowed(bounds: Tolerance, label: str) -> str:
    """Text with the allowed difference of a figure, such as a loss. It also contains the difference allowed between
    trials of different micro batches, if that has a value of its own.
    """
    name = label.replace("gradient", "grad").replace(" ", "_")
    text, other = f"{getattr(bounds, name):.0e}", bounds.other_micro_batch
    return text if other is None else f"{text}, between micro batches {getattr(other, name):.0e}"


def final_parity_groups(history: Sequence[Observation], rejected: Sequence[Rejection], spec: StudySpec) -> FinalParity:
    """Group the measured trials of a search by parity (equal losses). The reference losses must be confirmed by two
    backends.

    One backend is enough if every other backend was tried and has no feasible configuration.
    """
    workload, requested = spec.workload, set(spec.space.backends)
    stated = workload.optimizer, workload.float8
    parity_groups = parity.group_by_parity(history, workload.precision, len(requested) == 1, *stated)
    measured = {obs.config.backend for obs in history if obs.is_measured}
    if parity_groups.reference is not None or len(measured) != 1:
        return FinalParity(parity_groups)
    # A backend without any attempt could still contradict the only one measured, so it must have been tried or rejected
    # first.
    if not requested <= measured | _tried_without_success(history, rejected):
        return FinalParity(parity_groups)
    measured_backend = next(iter(measured))
    note = f"only configurations of backend {measured_backend} are feasible, so no other backend could confirm what they train"
    return FinalParity(parity.group_by_parity(history, workload.precision, True, *stated), (note,))


def why_no_winner(
    history: Sequence[Observation], rejected: Sequence[Rejection], spec: StudySpec, parity_groups: ParityGroups
) -> StudyReason | None:
    """Reason why a finished search has no winner; None if the search has a winner."""
    measured = [obs for obs in history if obs.is_measured]
    if not measured:
        return _nothing_feasible(history, rejected)
    if parity_groups.reference is not None:
        return None
    backends = {obs.config.backend for obs in measured}
    if len(backends) > 1:
        return _no_agreement("no winner: no two backends train the same thing", _disagreement(measured, spec))
    untried = sorted(set(spec.space.backends) - backends - _tried_without_success(history, rejected))
    if untried:
        return _no_agreement(
            f"no winner: only {next(iter(backends))} was tried, and no second backend confirms what it trains; "
            f"raise the budget so that {' or '.join(untried)} runs too"
        )
    return _no_agreement("no winner: no two configurations train the same thing", _disagreement(measured, spec))


def _tried_without_success(history: Sequence[Observation], rejected: Sequence[Rejection]) -> set[str]:
    """Backends that were tried without success: all their configurations were predicted not to fit, or their runs
    ended without a valid measurement.
    """
    ended = (TrialState.INFEASIBLE, TrialState.FAILED)
    unsuccessful = {obs.config.backend for obs in history if obs.state in ended}
    return unsuccessful | {rejection.config.backend for rejection in rejected}


def _nothing_feasible(history: Sequence[Observation], rejected: Sequence[Rejection]) -> StudyReason:
    parts, details = [], ""
    if rejected:
        closest = min(rejected, key=lambda rejection: rejection.needed_gib - rejection.available_gib)
        parts.append(
            f"the memory prediction rejected {'all ' if not history else ''}{len(rejected)}, so that no trial was run for them; "
            f"the closest needs at least {formatting.memory(closest.needed_gib)} where {formatting.memory(closest.available_gib)} are "
            "available"
        )
        details = closest.reason
    reasons: dict[str, list[Observation]] = {}
    for obs in history:
        kind = obs.failure.kind.value if obs.failure else obs.state.value
        reasons.setdefault(kind, []).append(obs)
    for kind, trials in reasons.items():
        first = trials[0].failure
        parts.append(f"{len(trials)} ended as {kind}" + (f", the first with: {first.message}" if first else ""))
    memory = bool(rejected) or {FailureKind.OOM.value, FailureKind.OVER_LIMIT.value} & reasons.keys()
    remedy = "; use more or larger GPUs, a smaller model, or a shorter sequence_length" if memory else ""
    text = "no configuration is feasible: " + "; ".join(parts) + remedy
    return StudyReason(code=StudyReasonCode.NOTHING_FEASIBLE, text=text, details=details)


def _no_agreement(text: str, details: str = "") -> StudyReason:
    return StudyReason(code=StudyReasonCode.NO_AGREEMENT, text=text, details=details)


def _disagreement(measured: Sequence[Observation], spec: StudySpec) -> str:
    workload = spec.workload
    bounds = parity.tolerance(workload.precision, workload.optimizer, workload.float8)
    first = measured[0]
    for other in measured[1:]:
        reason = parity.difference(first, other, bounds)
        if reason is not None:
            return f"trial {other.number} against trial {first.number}: {reason}"
    return "there is a single trajectory"
