"""What a study does next, decided by the tuner from one consistent view of it. Nothing here writes or waits.

`plan` runs outside any transaction; `service.steps` applies its answer only if the study's version is unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from api_schemas.errands import Errand
from api_schemas.failures import Failure, FailureKind
from api_schemas.hardware import Cluster, MeasuredHardware
from api_schemas.measurements import Measurement
from api_schemas.models import ModelProfile
from api_schemas.predictions import TrialPrediction
from api_schemas.strategies import TrialConfig
from api_schemas.studies import StudyPhase, StudyResult, StudySpec, StudyState
from api_schemas.trials import Rejection, TrialState
from db import leases, studies, trials
from db.rows import RunRow, StudyRow, TrialRow
from service import crowning
from service.askers import Askers
from tuner import (
    feasibility,
    learning,
    numerics,
    promotion,
    ranking,
    restart,
    seeds,
    space,
    stopping,
    suggest,
    traced_shape,
    warm_start,
)
from tuner.calibration import NOTHING_LEARNT, Calibrations
from tuner.history import Observation, Origin
from tuner.promotion import FreshRun, Match
from tuner.restart import RestartRun
from tuner.warm_start import WarmStart

_OPEN = (TrialState.WAITING, TrialState.RUNNING)


@dataclass(frozen=True)
class StudyView:
    """A study at one version."""

    study_id: str
    version: int
    state: StudyState
    phase: StudyPhase
    spec: StudySpec
    cluster: Cluster
    baseline: TrialConfig | None
    profile: ModelProfile | None
    has_nvme: bool
    notes: tuple[str, ...]
    gpu_seconds: float
    created_at: datetime
    match: Match | None
    history: tuple[Observation, ...]
    rejected: tuple[Rejection, ...]
    fresh: tuple[FreshRun, ...]
    """Complete runs of this promotion, in order."""
    promotion_cost: tuple[int, float]
    """Runs and GPU-seconds of all promotions so far."""
    has_waiting_run: bool
    has_open_run: bool
    calibrations: Calibrations = NOTHING_LEARNT
    """What its fingerprint's runs have taught; the priors where nothing is asked."""
    hardware: MeasuredHardware | None = None
    """What a worker of that fingerprint has measured."""
    errand: Errand | None = None
    warm: WarmStart | None = None
    restarts: tuple[RestartRun, ...] = ()
    """Runs that ask a winner to go on from its checkpoint."""
    has_restart_worker: bool = True
    """A live worker understands such a run."""

    @property
    def has_work(self) -> bool:
        """A run waits that some live worker can take."""
        return self.has_waiting_run and not self.is_stranded

    @property
    def is_stranded(self) -> bool:
        """What waits is a restart check, and no worker that is left understands it."""
        return not self.has_restart_worker and any(run.state is TrialState.WAITING for run in self.restarts)


@dataclass(frozen=True)
class Wait:
    """Nothing to do until a run ends (or a worker asks)."""

    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class NewTrial:
    """Try this configuration."""

    config: TrialConfig
    origin: Origin
    rejections: tuple[Rejection, ...]
    prediction: TrialPrediction | None


@dataclass(frozen=True)
class NewConfirmation:
    """Run this trial again, in this block of the promotion."""

    trial_number: int
    block: int


@dataclass(frozen=True)
class NewRestart:
    """The verdict stands; have this trial go on from its own checkpoint."""

    trial_number: int


@dataclass(frozen=True)
class Confirm:
    """The search is over; promote these, or check the only one there is."""

    match: Match
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


Step = Wait | NewTrial | NewConfirmation | NewRestart | Confirm | Complete | Fail


def view(session: Session, study: StudyRow) -> StudyView:
    """The study and its history as the transaction sees them."""
    open_runs = leases.open_runs(session, study.id)
    confirm_runs = leases.confirm_runs(session, study.id, study.match_round)
    return StudyView(
        study_id=study.id,
        version=study.version,
        state=study.state,
        phase=study.phase,
        spec=study.spec,
        cluster=study.cluster,
        baseline=study.baseline,
        profile=study.profile,
        has_nvme=study.has_nvme,
        notes=tuple(study.notes),
        gpu_seconds=study.gpu_seconds,
        created_at=study.created_at,
        match=stored_match(study),
        history=tuple(observation(row, study.match_round) for row in trials.of_study(session, study.id)),
        rejected=tuple(row.value for row in trials.rejections(session, study.id)),
        fresh=tuple(fresh for run in confirm_runs if (fresh := _fresh(run)) is not None),
        promotion_cost=leases.promotion_cost(session, study.id),
        restarts=tuple(_restart(run) for run in leases.restart_runs(session, study.id)),
        has_waiting_run=any(run.state is TrialState.WAITING for run in open_runs),
        has_open_run=bool(open_runs),
        errand=study.errand,
        warm=_warm(session, study.errand),
    )


def _warm(session: Session, errand: Errand | None) -> WarmStart | None:
    if errand is None or errand.warm_study_id is None:
        return None
    earlier = studies.get(session, errand.warm_study_id)
    if earlier is None:
        return None
    rows = trials.of_study(session, earlier.id)
    return WarmStart(earlier.id, earlier.fingerprint_key, tuple(observation(row, earlier.match_round) for row in rows))


def stored_match(study: StudyRow) -> Match | None:
    """Who is promoted."""
    if study.match is None:
        return None
    return Match(study.match["baseline"], tuple(study.match["candidates"]), tuple(study.match["notes"]))


def _fresh(run: RunRow) -> FreshRun | None:
    if run.trial is None or run.block is None or run.measurement is None or run.state is not TrialState.COMPLETE:
        return None
    return FreshRun(run.trial.number, run.block, run.worker_id or "", run.measurement.tokens_per_s_per_gpu)


def _restart(run: RunRow) -> RestartRun:
    assert run.trial is not None
    return RestartRun(run.trial.number, run.state, run.restart, run.failure)


def observation(row: TrialRow, match_round: int) -> Observation:
    """A trial as the tuner sees it; fresh runs of earlier promotions do not count."""
    return Observation(
        number=row.number,
        config=row.config,
        origin=_origin(row),
        state=row.state,
        measurement=next((run.measurement for run in row.runs if run.purpose == "search"), None),
        failure=row.failure,
        confirmations=tuple(run.measurement for run in row.runs if _counts(run, match_round) and run.measurement),
    )


def _counts(run: RunRow, match_round: int) -> bool:
    return run.purpose == "confirm" and run.match_round == match_round and run.state is TrialState.COMPLETE


def _origin(row: TrialRow) -> Origin:
    match row.origin:
        case "baseline" | "default" | "challenger" | "sampler":
            return row.origin
    raise AssertionError(row.origin)


def judge(history: Sequence[Observation], spec: StudySpec) -> numerics.Judgement:
    """Who trains the same thing, as far as is known while the search runs."""
    return numerics.judge(history, spec.workload.recipe, single_backend=len(spec.space.backends) == 1)


def confirm_failure(seen: StudyView, number: int, measurement: Measurement) -> Failure | None:
    """Why a fresh run is no repetition of its trial: it left the study's reference."""
    reference = crowning.judgement_at_the_end(seen.history, seen.rejected, seen.spec).judgement.reference
    trial_of = {obs.number: obs for obs in seen.history}
    if reference is None or number not in trial_of:
        return None
    again = replace(trial_of[number], measurement=measurement)
    bounds = numerics.tolerance(seen.spec.workload.recipe)
    reason = numerics.difference(trial_of[reference], again, bounds)
    return Failure(kind=FailureKind.NUMERICS, message=reason) if reason else None


def plan(seen: StudyView, askers: Askers, now: datetime, may_ask: bool) -> Step:
    """The next step. `may_ask` False: only what needs no worker; a study that could ask waits."""
    if seen.state is not StudyState.RUNNING or seen.profile is None:
        return Wait()
    if seen.phase is StudyPhase.CONFIRM and seen.match is not None:
        return _next_confirmation(seen, seen.match)
    if seen.phase is StudyPhase.CONFIRM:
        return _end_of_search(seen, None, ())
    elapsed_s = (now - seen.created_at).total_seconds()
    reason = stopping.end_of_search(seen.history, seen.spec.budget, seen.gpu_seconds, elapsed_s)
    if reason is not None:
        return _end_of_search(seen, reason, ())
    return _ask(seen, seen.profile, askers) if may_ask else Wait()


def _ask(seen: StudyView, profile: ModelProfile, askers: Askers) -> Step:
    spec = seen.spec
    try:
        built = askers.space(
            seen.study_id, lambda: space.build(spec.workload, seen.cluster, profile, spec.space, nvme=seen.has_nvme)
        )
    except ValueError as error:
        return Fail(str(error))
    shape, known = traced_shape.of_study(spec.model, profile), seen.calibrations
    memory = learning.memory_of(known, shape)
    challengers = seen.errand.challengers if seen.errand is not None else ()
    suggestion = suggest.next_config(
        built,
        seeds.seed_configs(built, spec.workload, seen.cluster, seen.baseline, challengers),
        seen.history,
        {rejection.config.content_key() for rejection in seen.rejected},
        lambda config: feasibility.gate(config, shape, spec.workload, seen.cluster, spec.objective, memory),
        spec.seed,
        warm_start.levelled(seen.warm, seen.history),
    )
    if suggestion.config is not None:
        assert suggestion.origin is not None
        prediction = learning.predict_trial(shape, spec.workload, seen.cluster, suggestion.config, known, seen.hardware)
        return NewTrial(suggestion.config, suggestion.origin, suggestion.rejections, prediction)
    return _end_of_search(seen, stopping.EXHAUSTED, suggestion.rejections)


def _end_of_search(seen: StudyView, reason: str | None, rejections: tuple[Rejection, ...]) -> Step:
    """Wait for what still runs, then pick who is promoted, or say why there is nobody."""
    if seen.has_open_run:
        return Wait(rejections)
    rejected = (*seen.rejected, *rejections)
    settled = crowning.judgement_at_the_end(seen.history, rejected, seen.spec)
    failure = crowning.why_nobody(seen.history, rejected, seen.spec, settled.judgement)
    if failure is not None:
        return Fail(failure if reason is None else f"{failure} (search ended: {reason})", rejections)
    match = ranking.pick(seen.history, seen.baseline is not None, settled.judgement)
    match = replace(match, notes=(*seen.notes, *settled.notes, *match.notes, *restart.notes(seen.restarts)))
    return Confirm(match, reason, rejections)


def _next_confirmation(seen: StudyView, match: Match) -> Step:
    if seen.has_open_run and not seen.is_stranded:
        return Wait()
    if not match.candidates:
        return _checked(seen, ranking.unbeaten(seen.history, match))
    searched = ranking.search_speeds(seen.history)
    standing = promotion.standing(match, searched, seen.fresh, seen.spec.budget.max_pairs, seen.study_id)
    if standing.next is not None:
        return NewConfirmation(standing.next.trial, standing.next.block)
    return _checked(seen, ranking.result(seen.history, match, standing, seen.promotion_cost))


def _checked(seen: StudyView, result: StudyResult) -> Step:
    """Before it is given as the answer, the best goes on from its own checkpoint."""
    check = restart.next_step(result, seen.spec, seen.restarts, seen.has_restart_worker)
    if check == "run":
        return NewRestart(result.best.trial_number)
    return Complete(result.model_copy(update={"restart": check}))
