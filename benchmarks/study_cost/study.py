"""One study in virtual time: the service's planner decides each step, and a simulated machine makes its runs."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from benchmarks.study_cost.cases import Case
from benchmarks.study_cost.machine import Ended, Machine, Seconds
from benchmarks.study_cost.truth import Truth
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.measure_plan import MeasurePlan, StepTimeRange
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialOrigin, TrialState
from shardtune.service.lifecycle.outcomes import JudgedEnd, next_state
from shardtune.service.planning import study_plan
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import (
    Complete,
    Fail,
    NewResumeRun,
    NewTrial,
    NewValidationRun,
    StartFinalComparison,
)
from shardtune.tuner import objective
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction import learning, memory_gate
from shardtune.tuner.prediction.calibration import Calibrations
from shardtune.tuner.prediction.learning import ComparedRun, MeasuredTrials
from shardtune.tuner.verdict import run_length, short_steps
from shardtune.tuner.verdict.comparison_blocks import ValidationRun
from shardtune.tuner.verdict.run_load import RunLoad
from shardtune.tuner.verdict.whole_steps import WHOLE_STEP_BLOCK
from shardtune.tuner.verdict.winner.resume_check import ResumeRun

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_WORKER = "simulated"


@dataclass
class Spending:
    """Wall-clock seconds of a study's runs."""

    by_phase: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the runs of each purpose; those of a final comparison before and within the pairs."""
    by_activity: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of each part of a run, over all runs."""
    runs: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, phase: str, seconds: Seconds) -> None:
        """Count a run."""
        self.runs[phase] += 1
        self.by_phase[phase] += sum(seconds.values())
        for name, spent in seconds.items():
            self.by_activity[name] += spent

    @property
    def wall_s(self) -> float:
        """Seconds of the whole study."""
        return sum(self.by_phase.values())


@dataclass(frozen=True)
class SimulatedStudy:
    """End of one study."""

    result: StudyResult | None
    """None: the study failed."""
    failure: str | None
    spending: Spending
    truth: Truth


class VirtualStudy:
    """Study that runs in virtual time."""

    def __init__(self, case: Case, cache: PlannerCache, truth: Truth, noise: float, seed: str) -> None:
        """`cache` may serve all studies of a case: their spaces and predictions are the same."""
        self._case, self._cache, self._truth = case, cache, truth
        self._machine = Machine(truth, case.spec.workload, case.cluster, case.overheads, noise, seed)
        self._plan, self._resume_plan = MeasurePlan(), ResumePlan()
        self._compared: list[ComparedRun] = []
        self._parity_samples: int | None = None
        self._spending = Spending()
        self._spending.add("model summary", {"model summary": case.overheads.summary_s})
        self._snapshot = _first_snapshot(case, f"study {seed}")

    def run(self) -> SimulatedStudy:
        """Plan and run until the study ends."""
        while True:
            now = _BEGIN + timedelta(seconds=self._spending.wall_s)
            step = study_plan.plan_next_step(self._snapshot, self._cache, now, may_ask=True)
            match step:
                case NewTrial():
                    self._search(step)
                case StartFinalComparison():
                    self._snapshot = replace(
                        self._snapshot, phase=StudyPhase.FINAL_COMPARISON, final_comparison=step.final_comparison
                    )
                case NewValidationRun():
                    self._validate(step)
                case NewResumeRun():
                    self._check_resume(step.trial_number)
                case Complete():
                    return SimulatedStudy(step.result, None, self._spending, self._truth)
                case Fail():
                    return SimulatedStudy(None, step.reason.sentence, self._spending, self._truth)
                case _:
                    raise AssertionError(f"no run is open, so the planner may not wait: {step}")

    def _search(self, step: NewTrial) -> None:
        may_prune = step.origin == TrialOrigin.SAMPLER and self._case.spec.budget.prune
        if not self._snapshot.history:
            self._parity_samples = self._choose_short_steps(step.prediction)
        state, ended, earlier = TrialState.WAITING, Ended(None, None, {}), list[AttemptEnd]()
        while state is TrialState.WAITING:
            ended = self._attempt(step.config, step.undecided_s, may_prune, "search")
            judged = JudgedEnd(ended.wall_s, ended.measurement, failure=ended.failure)
            state = next_state(RunPurpose.SEARCH, judged, earlier, self._might_fit(ended, step.prediction))
            earlier.append(judged.end)
        trial = Observation(
            len(self._snapshot.history), step.config, step.origin, state, ended.measurement, ended.failure
        )
        known = {rejection.config.content_key() for rejection in self._snapshot.rejected}
        rejected = (item for item in step.rejections if item.config.content_key() not in known)
        self._snapshot = replace(
            self._snapshot,
            history=(*self._snapshot.history, trial),
            rejected=(*self._snapshot.rejected, *rejected),
            calibrations=self._learn(trial),
        )

    def _choose_short_steps(self, prediction: TrialPrediction | None) -> int | None:
        """Decide as the service does with a study's first trial (`service.leasing.grant`)."""
        case, speed = self._case, prediction.tokens_per_s_per_gpu if prediction is not None else None
        step_s = None if speed is None else case.spec.workload.tokens_per_step / speed / case.cluster.world_size
        return short_steps.parity_samples(case.spec, case.cluster, step_s)

    def _learn(self, trial: Observation) -> Calibrations:
        if trial.measurement is not None:
            case = self._case
            group = MeasuredTrials(
                case.shape, case.spec.workload, case.cluster, [trial.config], [trial.measurement], case.hardware
            )
            self._compared += learning.compare(group)
        return learning.learn(self._compared)

    def _might_fit(self, ended: Ended, prediction: TrialPrediction | None) -> bool:
        case = self._case
        return ended.failure is not None and memory_gate.near_the_edge(
            ended.failure, prediction, case.cluster, case.spec.objective
        )

    def _validate(self, step: NewValidationRun) -> None:
        number, trials = step.trial_number, list(self._snapshot.history)
        is_whole = step.comparison_block == WHOLE_STEP_BLOCK
        phase = "whole steps" if is_whole else "final comparison"
        ended = self._attempt(trials[number].config, step.undecided_s, False, phase, is_whole)
        if ended.measurement is None:
            # As in the service: the comparison begins anew without the trial.
            trials[number] = replace(trials[number], state=TrialState.INFEASIBLE, failure=ended.failure)
            self._snapshot = replace(self._snapshot, history=tuple(trials), final_comparison=None, validation_runs=())
            return
        measured = ended.measurement
        if is_whole:
            trials[number] = replace(trials[number], whole_step_run=measured)
            self._snapshot = replace(self._snapshot, history=tuple(trials))
            return
        trials[number] = replace(trials[number], validation_runs=(*trials[number].validation_runs, measured))
        run = ValidationRun(
            number, step.comparison_block, _WORKER, measured.tokens_per_s_per_gpu, load=RunLoad.of(measured)
        )
        self._snapshot = replace(
            self._snapshot, history=tuple(trials), validation_runs=(*self._snapshot.validation_runs, run)
        )

    def _attempt(
        self,
        config: TrialConfig,
        undecided_s: StepTimeRange | None,
        may_prune: bool,
        phase: str,
        times_whole_step: bool = False,
    ) -> Ended:
        ended = self._machine.run(config, self._measure_plan(config, undecided_s, may_prune, times_whole_step))
        self._spending.add(phase, ended.seconds)
        if ended.measurement is None:
            return ended
        failure = objective.over_limit_failure(ended.measurement, self._case.cluster, self._case.spec.objective)
        return ended if failure is None else replace(ended, measurement=None, failure=failure)

    def _measure_plan(
        self, config: TrialConfig, undecided_s: StepTimeRange | None, may_prune: bool, times_whole_step: bool = False
    ) -> MeasurePlan:
        return short_steps.measure_plan(
            run_length.measure_plan(self._plan, undecided_s, may_prune),
            self._parity_samples,
            config,
            self._case.spec.workload,
            self._case.cluster,
            times_whole_step=times_whole_step,
        )

    def _check_resume(self, number: int) -> None:
        config = self._snapshot.history[number].config
        parameters = self._case.summary.parameters
        plan = self._measure_plan(config, None, False)
        measured, seconds = self._machine.resume_check(config, self._resume_plan, parameters, plan.short_steps)
        self._spending.add("resume check", seconds)
        check = ResumeRun(number, TrialState.COMPLETE, measured)
        self._snapshot = replace(self._snapshot, resume_runs=(*self._snapshot.resume_runs, check))


def _first_snapshot(case: Case, study_id: str) -> StudySnapshot:
    # The sustained run adds its seconds to every study alike, and the records simulate studies without it.
    budget = case.spec.budget.model_copy(update={"sustained_run_s": 0.0})
    return StudySnapshot(
        study_id=study_id,
        version=0,
        state=StudyState.RUNNING,
        phase=StudyPhase.SEARCH,
        spec=case.spec.model_copy(update={"budget": budget}),
        cluster=case.cluster,
        baseline=None,
        model_summary=case.summary,
        notes=(),
        gpu_seconds=0.0,
        started_at=_BEGIN,
        final_comparison=None,
        history=(),
        rejected=(),
        validation_runs=(),
        final_comparison_cost=(0, 0.0),
        has_waiting_run=False,
        has_open_run=False,
        hardware=case.hardware,
    )
