"""Plan the next step of a challenge or a canary (studies of the service itself) from one consistent snapshot, without
any writes.

The configurations of these studies are given; the wide search of a retune is planned by service.planning.study_plan,
like any other search.
"""

from dataclasses import replace
from functools import partial

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy, SystemStudyKind
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialState
from shardtune.service.planning import agreement
from shardtune.service.planning.final_steps import confirm_extension, result_of, validation_run
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import (
    Complete,
    Fail,
    NewTrial,
    NewValidationRun,
    StartFinalComparison,
    Step,
    Wait,
)
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, memory_gate, traced_shape
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.search import suggest
from shardtune.tuner.verdict import challenge, final_comparison, ranking

_INCUMBENT_INFEASIBLE = "the incumbent cannot be run any longer"
_ALL_RAN = StudyReason(code=StudyReasonCode.CHALLENGERS_RAN, text="the incumbent and its challengers have run")


def plan(snapshot: StudySnapshot, system_study: SystemStudy, may_ask: bool) -> Step:
    """Plan the next step of a challenge (comparison of a recommendation with other configurations) or of a canary
    (repeated run of a recommendation). With `may_ask` False, plan only steps that need no worker.
    """
    # One run at a time: these studies compare, so nothing of their own may run beside a run.
    if snapshot.state is not StudyState.RUNNING or snapshot.model_summary is None or snapshot.has_open_run:
        return Wait()
    if system_study.kind == SystemStudyKind.CANARY:
        return _plan_canary(snapshot, system_study)
    if snapshot.phase is StudyPhase.FINAL_COMPARISON:
        return (
            _next_pair(snapshot, snapshot.final_comparison)
            if snapshot.final_comparison is not None
            else _pick_rival(snapshot, ())
        )
    suggestion = suggest.next_listed(
        _given_trials(snapshot, system_study),
        snapshot.history,
        {rejection.config.content_key() for rejection in snapshot.rejected},
        _challenger_gate(snapshot),
    )
    if suggestion.config is None:
        return _pick_rival(snapshot, suggestion.rejections)
    if not may_ask:
        return Wait()
    assert suggestion.origin is not None
    shape = traced_shape.of_study(snapshot.spec.model, snapshot.model_summary, snapshot.spec.workload.adapter)
    calibrations, hardware = snapshot.calibrations, snapshot.hardware
    prediction = learning.predict_trial(
        shape, snapshot.spec.workload, snapshot.cluster, suggestion.config, calibrations, hardware
    )
    return NewTrial(suggestion.config, suggestion.origin, suggestion.rejections, prediction)


def _given_trials(snapshot: StudySnapshot, system_study: SystemStudy) -> list[tuple[TrialConfig, TrialOrigin]]:
    assert snapshot.baseline is not None
    baseline_trial: list[tuple[TrialConfig, TrialOrigin]] = [(snapshot.baseline, TrialOrigin.BASELINE)]
    return [*baseline_trial, *((config, TrialOrigin.CHALLENGER) for config in system_study.challengers)]


def _challenger_gate(snapshot: StudySnapshot) -> suggest.MemoryGate:
    """Memory gate for the challengers of a retune (repeated measurement of a recommendation): it rejects
    configurations predicted not to fit. The incumbent (recommended configuration) always passes.
    """
    # The incumbent has run before; whether it still does is the question of the challenge, and no prediction may answer
    # it.
    assert snapshot.model_summary is not None
    shape = traced_shape.of_study(snapshot.spec.model, snapshot.model_summary, snapshot.spec.workload.adapter)
    memory = calibration_choice.memory_calibration(snapshot.calibrations, shape)

    def gate(config: TrialConfig) -> Rejection | None:
        if config == snapshot.baseline:
            return None
        return memory_gate.reject_if_too_large(
            config, shape, snapshot.spec.workload, snapshot.cluster, snapshot.spec.objective, memory
        )

    return gate


def _pick_rival(snapshot: StudySnapshot, rejections: tuple[Rejection, ...]) -> Step:
    """Choose the challenger (configuration that may replace the recommendation) that is paired with the incumbent
    (recommended configuration), after all challengers have run once.
    """
    rejected = (*snapshot.rejected, *rejections)
    final_parity = agreement.final_parity_groups(snapshot.history, rejected, snapshot.spec)
    incumbent = next((obs for obs in snapshot.history if obs.origin == TrialOrigin.BASELINE), None)
    if incumbent is None or incumbent.state is not TrialState.COMPLETE:
        return Fail(_incumbent_failure(incumbent), rejections)
    failure = agreement.why_no_winner(snapshot.history, rejected, snapshot.spec, final_parity.parity_groups)
    if failure is not None:
        return Fail(failure, rejections)
    finalists = ranking.pick_finalists(snapshot.history, True, final_parity.parity_groups)
    if finalists.baseline != incumbent.number:
        return Fail(
            _incumbent_failed(f"{_INCUMBENT_INFEASIBLE}: it trains something else than its challengers"), rejections
        )
    finalists = challenge.finalists_with_rival(finalists)
    finalists = replace(finalists, notes=(*snapshot.notes, *final_parity.notes, *finalists.notes))
    if not finalists.candidates:
        return Complete(ranking.result_of_baseline(snapshot.history, finalists), _ALL_RAN, rejections)
    return StartFinalComparison(finalists, _ALL_RAN, rejections)


def _incumbent_failure(incumbent: Observation | None) -> StudyReason:
    if not is_infeasible(incumbent):
        # A failure of the platform, or no run at all: nothing is known of the configuration.
        failure = incumbent.failure if incumbent is not None else None
        return _incumbent_failed("the incumbent could not be measured" + (f": {failure.message}" if failure else ""))
    assert incumbent is not None and incumbent.failure is not None
    return _incumbent_failed(f"{_INCUMBENT_INFEASIBLE} ({incumbent.failure.kind.value}): {incumbent.failure.message}")


def _incumbent_failed(text: str) -> StudyReason:
    return StudyReason(code=StudyReasonCode.INCUMBENT_FAILED, text=text)


def is_infeasible(incumbent: Observation | None) -> bool:
    """Whether the incumbent (recommended configuration) fails when it runs. A failure of the platform does not count."""
    return incumbent is not None and incumbent.failure is not None and incumbent.failure.is_infeasible


def _next_pair(snapshot: StudySnapshot, finalists: Finalists) -> Step:
    # The two search runs that made it the rival count as the first pair, never towards a win (decision 6).
    max_pairs = snapshot.spec.budget.max_pairs
    assert finalists.baseline is not None
    first = challenge.search_log_ratio(snapshot.history, finalists.baseline, finalists.candidates[0])
    decide = partial(challenge.decide, first_log_ratio=first)
    searched = ranking.search_speeds(snapshot.history)
    ranking_state = final_comparison.ranking_state(
        finalists,
        searched,
        snapshot.validation_runs,
        max_pairs,
        snapshot.study_id,
        decide,
        ranking.disturbed_searches(snapshot.history),
        # A challenge gives up by a rule of its own, which counts signs.
        may_end_early=False,
    )
    if ranking_state.next is not None:
        return validation_run(snapshot, ranking_state.next, searched)
    confirmed = confirm_extension(snapshot, finalists, result_of(snapshot, finalists, ranking_state))
    return confirmed if isinstance(confirmed, NewValidationRun) else Complete(confirmed)


def _plan_canary(snapshot: StudySnapshot, system_study: SystemStudy) -> Step:
    """Plan a canary, which runs a recommended configuration once to check its speed. Plan another run while every run
    so far was slow, or while runs for the reference speed are missing.
    """
    assert snapshot.baseline is not None
    # No prediction: a canary compares measured speeds, and must not teach the predictor one configuration again and
    # again.
    if not snapshot.history:
        return NewTrial(snapshot.baseline, TrialOrigin.BASELINE, (), None)
    trial = snapshot.history[0]
    if trial.state is not TrialState.COMPLETE or trial.measurement is None:
        return Fail(_incumbent_failure(trial))
    only_finalist = Finalists(trial.number, (), snapshot.notes)
    if snapshot.phase is StudyPhase.SEARCH and _needs_another(trial, system_study):
        return StartFinalComparison(only_finalist, None)
    if snapshot.final_comparison is not None and _needs_another(trial, system_study):
        return NewValidationRun(trial.number, len(trial.validation_runs))
    return Complete(ranking.result_of_baseline(snapshot.history, only_finalist))


def _needs_another(trial: Observation, system_study: SystemStudy) -> bool:
    """Whether a canary (repeated run of a recommended configuration) needs and may have one more run: because every
    run so far was slow, or because its runs count towards a reference speed that needs more of them.
    """
    assert trial.measurement is not None
    runs = (trial.measurement, *trial.validation_runs)
    slow_below = system_study.repeat_below
    return len(runs) < system_study.most_runs and (
        slow_below is None or all(run.tokens_per_s_per_gpu < slow_below for run in runs)
    )
