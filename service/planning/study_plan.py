"""What a study does next, decided by the tuner from one consistent view of it. Nothing here reads, writes or waits.

`plan` runs outside any transaction; `service.lifecycle.advance` applies its answer only if the study is as it was, but for
runs that ended while a new trial was planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study import StudyPhase, StudyResult, StudySpec, StudyState
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement, StepTimeRange
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialReason
from shardtune.service.planning import agreement, study_sampler
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, memory_gate, traced_shape
from shardtune.tuner.search import seeds, space, stopping, suggest, warm_start
from shardtune.tuner.verdict import final_comparison, parity, ranking, resume_check, run_length


@dataclass(frozen=True)
class Wait:
    """Nothing to do until a run ends (or a worker asks)."""

    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class NewTrial:
    """Try this configuration."""

    config: TrialConfig
    origin: TrialOrigin
    rejections: tuple[Rejection, ...]
    prediction: TrialPrediction | None
    reason: TrialReason | None = None
    undecided_s: StepTimeRange | None = None
    """Where its step time has to be known well."""


@dataclass(frozen=True)
class NewConfirmation:
    """Run this trial again, in this block of the final comparison."""

    trial_number: int
    block: int
    undecided_s: StepTimeRange | None = None


@dataclass(frozen=True)
class NewResumeRun:
    """The verdict stands; have this trial go on from its own checkpoint."""

    trial_number: int


@dataclass(frozen=True)
class Confirm:
    """The search is over; promote these, or check the only one there is."""

    final_comparison: Finalists
    reason: str | None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Complete:
    """The study has its answer."""

    result: StudyResult
    reason: str | None = None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Fail:
    """The study cannot have an answer."""

    reason: str
    rejections: tuple[Rejection, ...] = ()


Step = Wait | NewTrial | NewConfirmation | NewResumeRun | Confirm | Complete | Fail


def judge(history: Sequence[Observation], spec: StudySpec) -> parity.ParityGroups:
    """Who trains the same thing, as far as is known while the search runs."""
    return parity.judge(history, spec.workload.precision, single_backend=len(spec.space.backends) == 1)


def confirm_failure(
    history: Sequence[Observation],
    rejected: Sequence[Rejection],
    spec: StudySpec,
    number: int,
    measurement: Measurement,
) -> Failure | None:
    """Why a validation run is no repetition of its trial: it left the study's reference."""
    reference = agreement.final_parity_groups(history, rejected, spec).parity_groups.reference
    trial_of = {obs.number: obs for obs in history}
    if reference is None or number not in trial_of:
        return None
    again = replace(trial_of[number], measurement=measurement)
    bounds = parity.tolerance(spec.workload.precision)
    reason = parity.difference(trial_of[reference], again, bounds)
    return Failure(kind=FailureKind.NUMERICS, message=reason) if reason else None


def plan(seen: StudySnapshot, planner_cache: PlannerCache, now: datetime, may_ask: bool) -> Step:
    """The next step. `may_ask` False: only what needs no worker; a study that could ask waits."""
    if seen.state is not StudyState.RUNNING or seen.model_summary is None:
        return Wait()
    if seen.phase is StudyPhase.FINAL_COMPARISON and seen.final_comparison is not None:
        return _next_confirmation(seen, seen.final_comparison)
    if seen.phase is StudyPhase.FINAL_COMPARISON:
        return _end_of_search(seen, None, ())
    elapsed_s = (now - seen.started_at).total_seconds()
    reason = stopping.end_of_search(seen.history, seen.spec.budget, seen.gpu_seconds, elapsed_s)
    if reason is not None:
        return _end_of_search(seen, reason, ())
    return _ask(seen, seen.model_summary, planner_cache) if may_ask else Wait()


def _ask(seen: StudySnapshot, model_summary: ModelSummary, planner_cache: PlannerCache) -> Step:
    spec = seen.spec
    try:
        built = planner_cache.space(
            seen.study_id,
            lambda: space.build(spec.workload, seen.cluster, model_summary, spec.space, seen.cores),
        )
    except ValueError as error:
        return Fail(str(error))
    shape, known = traced_shape.of_study(spec.model, model_summary), seen.calibrations
    memory = learning.memory_of(known, shape)
    sampler = study_sampler.of(seen, built, shape, planner_cache)
    challengers = seen.system_study.challengers if seen.system_study is not None else ()
    suggestion = suggest.next_config(
        built,
        study_sampler.seeds_of(seen, seeds.seed_configs(built, seen.cluster, seen.baseline, challengers), shape),
        seen.history,
        {rejection.config.content_key() for rejection in seen.rejected},
        lambda config: memory_gate.gate(config, shape, spec.workload, seen.cluster, spec.objective, memory),
        spec.seed,
        warm_start.levelled(seen.warm, seen.history),
        sampler,
    )
    settled = stopping.no_gain_expected(suggestion.reason, seen.history, spec.budget)
    if settled is not None:
        return _end_of_search(seen, settled, suggestion.rejections)
    if suggestion.config is not None:
        assert suggestion.origin is not None
        prediction = learning.predict_trial(shape, spec.workload, seen.cluster, suggestion.config, known, seen.hardware)
        return NewTrial(
            suggestion.config,
            suggestion.origin,
            suggestion.rejections,
            prediction,
            suggestion.reason,
            run_length.of_search(seen.history, judge(seen.history, spec).infeasible),
        )
    return _end_of_search(seen, stopping.EXHAUSTED, suggestion.rejections)


def _end_of_search(seen: StudySnapshot, reason: str | None, rejections: tuple[Rejection, ...]) -> Step:
    """Wait for what still runs, then pick who is promoted, or say why there is nobody."""
    if seen.has_open_run:
        return Wait(rejections)
    rejected = (*seen.rejected, *rejections)
    settled = agreement.final_parity_groups(seen.history, rejected, seen.spec)
    failure = agreement.why_no_winner(seen.history, rejected, seen.spec, settled.parity_groups)
    if failure is not None:
        # Where nothing ran, the failure has said why.
        return Fail(
            failure if reason is None or not seen.history else f"{failure} (search ended: {reason})", rejections
        )
    field = ranking.pick(seen.history, seen.baseline is not None, settled.parity_groups)
    field = replace(field, notes=(*seen.notes, *settled.notes, *field.notes, *resume_check.notes(seen.restarts)))
    return Confirm(field, reason, rejections)


def _next_confirmation(seen: StudySnapshot, field: Finalists) -> Step:
    if seen.has_open_run and not seen.is_stranded:
        return Wait()
    if not field.has_rivals:
        return _checked(seen, ranking.unbeaten(seen.history, field))
    searched = ranking.search_speeds(seen.history)
    ranking_state = final_comparison.ranking_state(
        field, searched, seen.fresh, seen.spec.budget.max_pairs, seen.study_id
    )
    if ranking_state.next is not None:
        return validation_run(seen, ranking_state.next, searched)
    return _checked(seen, ranking.result(seen.history, field, ranking_state, seen.final_comparison_cost))


def validation_run(
    seen: StudySnapshot, due: final_comparison.NextRun, searched: Mapping[int, float]
) -> NewConfirmation:
    """The next run of a final comparison, timed as long as its block needs."""
    tokens = seen.spec.workload.tokens_per_step / seen.cluster.world_size
    return NewConfirmation(due.trial, due.block, run_length.of_block(due, searched, seen.fresh, tokens))


def _checked(seen: StudySnapshot, result: StudyResult) -> Step:
    """Before it is given as the answer, the best goes on from its own checkpoint."""
    check = resume_check.next_step(result, seen.spec, seen.restarts, seen.has_resume_worker)
    if isinstance(check, resume_check.CheckDue):
        return NewResumeRun(result.best.trial_number)
    return Complete(result.model_copy(update={"resume_check": check}))
