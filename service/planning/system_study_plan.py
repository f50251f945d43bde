"""What a challenge or a canary does next, decided by the tuner from one consistent view of it. Nothing here writes.

Their trials are given; a retune's wide search is a search like any other (service.planning.study_plan).
"""

from dataclasses import replace
from functools import partial

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialState
from shardtune.service.planning import agreement
from shardtune.service.planning.study_plan import (
    Complete,
    Confirm,
    Fail,
    NewConfirmation,
    NewTrial,
    Step,
    Wait,
    validation_run,
)
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, memory_gate, traced_shape
from shardtune.tuner.search import suggest
from shardtune.tuner.verdict import challenge, final_comparison, ranking

INCUMBENT_FELL = "the incumbent cannot be run any longer"
_ALL_RAN = "the incumbent and its challengers have run"
_GAVE_UP = "the challenge ended before an interval could be given: going on would not have made the challenger a winner"


def plan(seen: StudySnapshot, system_study: SystemStudy, may_ask: bool) -> Step:
    """The next step. `may_ask` False: only what needs no worker."""
    if seen.state is not StudyState.RUNNING or seen.model_summary is None or seen.has_open_run:
        return Wait()
    if system_study.kind == SystemStudyKind.CANARY:
        return _canary(seen, system_study)
    if seen.phase is StudyPhase.FINAL_COMPARISON:
        return _next_pair(seen, seen.final_comparison) if seen.final_comparison is not None else _end(seen, ())
    suggestion = suggest.next_given(
        _given(seen, system_study),
        seen.history,
        {rejection.config.content_key() for rejection in seen.rejected},
        _gate(seen),
    )
    if suggestion.config is None:
        return _end(seen, suggestion.rejections)
    if not may_ask:
        return Wait()
    assert suggestion.origin is not None
    shape = traced_shape.of_study(seen.spec.model, seen.model_summary)
    known, hardware = seen.calibrations, seen.hardware
    prediction = learning.predict_trial(shape, seen.spec.workload, seen.cluster, suggestion.config, known, hardware)
    return NewTrial(suggestion.config, suggestion.origin, suggestion.rejections, prediction)


def _given(seen: StudySnapshot, system_study: SystemStudy) -> list[tuple[TrialConfig, TrialOrigin]]:
    assert seen.baseline is not None
    incumbent: list[tuple[TrialConfig, TrialOrigin]] = [(seen.baseline, TrialOrigin.BASELINE)]
    return [*incumbent, *((config, TrialOrigin.CHALLENGER) for config in system_study.challengers)]


def _gate(seen: StudySnapshot) -> suggest.Gate:
    """Challengers only: the incumbent has run, and whether it still does is the question."""
    assert seen.model_summary is not None
    shape = traced_shape.of_study(seen.spec.model, seen.model_summary)
    memory = learning.memory_of(seen.calibrations, shape)

    def gate(config: TrialConfig) -> Rejection | None:
        if config == seen.baseline:
            return None
        return memory_gate.gate(config, shape, seen.spec.workload, seen.cluster, seen.spec.objective, memory)

    return gate


def _end(seen: StudySnapshot, rejections: tuple[Rejection, ...]) -> Step:
    """All have run once: who is paired with the incumbent?"""
    rejected = (*seen.rejected, *rejections)
    settled = agreement.final_parity_groups(seen.history, rejected, seen.spec)
    incumbent = next((obs for obs in seen.history if obs.origin == TrialOrigin.BASELINE), None)
    if incumbent is None or incumbent.state is not TrialState.COMPLETE:
        return Fail(_why_fallen(incumbent), rejections)
    failure = agreement.why_no_winner(seen.history, rejected, seen.spec, settled.parity_groups)
    if failure is not None:
        return Fail(failure, rejections)
    field = ranking.pick(seen.history, True, settled.parity_groups)
    if field.baseline != incumbent.number:
        return Fail(f"{INCUMBENT_FELL}: it trains something else than its challengers", rejections)
    field = challenge.rival(field, seen.history)
    field = replace(field, notes=(*seen.notes, *settled.notes, *field.notes))
    if not field.candidates:
        return Complete(ranking.unbeaten(seen.history, field), _ALL_RAN, rejections)
    return Confirm(field, _ALL_RAN, rejections)


def _why_fallen(incumbent: Observation | None) -> str:
    if not has_fallen(incumbent):
        # The platform's fault, or nobody's: nothing is known of the configuration.
        return "the incumbent could not be measured" + (
            f": {incumbent.failure.message}" if incumbent is not None and incumbent.failure is not None else ""
        )
    assert incumbent is not None and incumbent.failure is not None
    return f"{INCUMBENT_FELL} ({incumbent.failure.kind.value}): {incumbent.failure.message}"


def has_fallen(incumbent: Observation | None) -> bool:
    """The configuration itself does not run any longer; a failure of the platform says nothing about it."""
    return incumbent is not None and incumbent.failure is not None and incumbent.failure.is_infeasible


def _next_pair(seen: StudySnapshot, field: Finalists) -> Step:
    most = seen.spec.budget.max_pairs
    assert field.baseline is not None
    first = challenge.first_ratio(seen.history, field.baseline, field.candidates[0])
    decide = partial(challenge.decide, first=first)
    searched = ranking.search_speeds(seen.history)
    ranking_state = final_comparison.ranking_state(field, searched, seen.fresh, most, seen.study_id, decide)
    if ranking_state.next is not None:
        return validation_run(seen, ranking_state.next, searched)
    return Complete(ranking.result(seen.history, field, ranking_state, seen.final_comparison_cost, _GAVE_UP))


def _canary(seen: StudySnapshot, system_study: SystemStudy) -> Step:
    """One run of the incumbent; while all were slow, or there is nothing to hold them against, another."""
    assert seen.baseline is not None
    if not seen.history:
        return NewTrial(seen.baseline, TrialOrigin.BASELINE, (), None)
    trial = seen.history[0]
    if trial.state is not TrialState.COMPLETE or trial.measurement is None:
        return Fail(_why_fallen(trial))
    alone = Finalists(trial.number, (), seen.notes)
    if seen.phase is StudyPhase.SEARCH and _needs_another(trial, system_study):
        return Confirm(alone, None)
    if seen.final_comparison is not None and _needs_another(trial, system_study):
        return NewConfirmation(trial.number, len(trial.validation_runs))
    return Complete(ranking.unbeaten(seen.history, alone))


def _needs_another(trial: Observation, system_study: SystemStudy) -> bool:
    """There may be more runs, and every one so far was slow or is to be part of what is normal."""
    assert trial.measurement is not None
    runs = (trial.measurement, *trial.validation_runs)
    least = system_study.repeat_below
    return len(runs) < system_study.most_runs and (
        least is None or all(run.tokens_per_s_per_gpu < least for run in runs)
    )
