"""For histories drawn at random: no verdict without a pair, and no finalist is dropped before it ran beside the
baseline."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hypothesis import event, given, settings
from hypothesis import strategies as st

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.planning import study_plan
from shardtune.service.planning.planner_cache import PlannerCache
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import Complete, NewValidationRun, StartFinalComparison
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict.comparison_blocks import ValidationRun
from shardtune.tuner.verdict.run_load import RunLoad
from tests.support.values.synthetic_studies import CPU, study_of
from tests.support.values.tuner_inputs import TINY, complete, measured

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STRATEGIES = (DdpConfig(), ZeroConfig(stage=2), Fsdp2Config(dp_shard=2))
MOST_TRIALS = 12
OPEN = (Verdict.UNDECIDED, Verdict.TOO_BUSY)
"""Verdicts that claim nothing about the candidate."""


def measurement_at(speed: float, is_disturbed: bool) -> Measurement:
    return measured(speed).model_copy(update={"disturbed": "other programs" if is_disturbed else None})


@dataclass
class Machine:
    """Runs trials of given true speeds, each under a load drawn for it: a burst slows it down, and is seen or not."""

    draw: st.DrawFn
    speeds: list[float]
    is_busy: bool

    def run(self, trial: int) -> Measurement:
        load = self.draw(st.sampled_from((1.0, 1.0, 1.02, 0.98, 0.6, 0.4)))
        is_seen = load < 0.9 and self.draw(st.booleans())
        return measurement_at(self.speeds[trial] * load, is_seen or self.is_busy)

    def worker(self) -> str:
        return self.draw(st.sampled_from(("w",) * 9 + ("v",)))


@st.composite
def played(draw: st.DrawFn) -> tuple[list[StartFinalComparison], StudySnapshot, StudyResult]:
    """A study from the end of its search to its result, planned by the service's planner, run by run."""
    count = draw(st.integers(1, MOST_TRIALS))
    speeds = draw(st.lists(st.sampled_from((50.0, 80.0, 95.0, 100.0, 105.0, 150.0)), min_size=count, max_size=count))
    machine = Machine(draw, speeds, draw(st.booleans()))
    has_baseline, defaults = draw(st.booleans()), draw(st.integers(0, 3))
    history = []
    for number in range(count):
        config = TrialConfig(strategy=STRATEGIES[number % 3], micro_batch=1 + number // 3)
        origin = "baseline" if has_baseline and number == 0 else "default" if number <= defaults else "sampler"
        history.append(replace(complete(number, config, 1.0, origin), measurement=machine.run(number)))
    snapshot = snapshot_of(history, history[0].config if has_baseline else None)
    started = []
    while True:
        step = study_plan.plan_next_step(snapshot, PlannerCache(), NOON, may_ask=False)
        match step:
            case StartFinalComparison():
                started.append(step)
                snapshot = replace(snapshot, phase=StudyPhase.FINAL_COMPARISON, final_comparison=step.final_comparison)
            case NewValidationRun():
                snapshot = with_run(snapshot, step, machine.run(step.trial_number), machine.worker())
            case Complete():
                return started, snapshot, step.result
            case _:
                raise AssertionError(step)


def snapshot_of(history: list[Observation], baseline: TrialConfig | None) -> StudySnapshot:
    study = study_of()
    space = study.spec.space.model_copy(update={"backends": ("ddp",)}) if len(history) == 1 else study.spec.space
    budget = Budget(max_trials=len(history), max_pairs=FEWEST_PAIRS + 3, resume_check=False)
    return StudySnapshot(
        study_id=study.study_id, version=1, state=StudyState.RUNNING, phase=StudyPhase.SEARCH,
        spec=study.spec.model_copy(update={"budget": budget, "space": space}), cluster=CPU, baseline=baseline,
        model_summary=TINY, notes=(), gpu_seconds=0.0, started_at=NOON, final_comparison=None, history=tuple(history),
        rejected=(), validation_runs=(), final_comparison_cost=(0, 0.0), has_waiting_run=False, has_open_run=False,
    )  # fmt: skip


def with_run(snapshot: StudySnapshot, step: NewValidationRun, run: Measurement, worker: str) -> StudySnapshot:
    history = tuple(
        replace(obs, validation_runs=(*obs.validation_runs, run)) if obs.number == step.trial_number else obs
        for obs in snapshot.history
    )
    speed, is_disturbed = run.tokens_per_s_per_gpu, run.disturbed is not None
    added = ValidationRun(step.trial_number, step.comparison_block, worker, speed, load=RunLoad(is_disturbed))
    return replace(snapshot, history=history, validation_runs=(*snapshot.validation_runs, added))


def blocks_of(snapshot: StudySnapshot) -> list[dict[int, ValidationRun]]:
    """The blocks that count: those whose runs were on one worker."""
    blocks: dict[int, dict[int, ValidationRun]] = {}
    for run in snapshot.validation_runs:
        blocks.setdefault(run.comparison_block, {})[run.trial] = run
    return [block for block in blocks.values() if len({run.worker for run in block.values()}) == 1]


@settings(max_examples=300, deadline=None)
@given(played())
def test_a_verdict_rests_on_pairs_and_not_on_disturbed_runs_alone_and_nobody_is_dropped_without_one(
    ended: tuple[list[StartFinalComparison], StudySnapshot, StudyResult],
) -> None:
    (started, *_), snapshot, result = ended
    finalists, baseline = started.final_comparison, result.baseline.trial_number
    speeds = {obs.number: obs.measurement.tokens_per_s_per_gpu for obs in snapshot.history if obs.measurement}
    paired = {trial for block in blocks_of(snapshot) if baseline in block for trial in block if trial != baseline}
    event(result.verdict.value)
    fastest = max((number for number in speeds if number != finalists.baseline), key=speeds.__getitem__, default=None)
    assert fastest is None or fastest in finalists.candidates
    if not paired:
        assert result.verdict in OPEN
    # Whoever went no further was left behind by a run of its own beside the baseline's.
    if result.verdict not in OPEN:
        assert set(finalists.members) - {baseline} <= paired
        assert fastest in paired or fastest == baseline
    if all(run.load.is_disturbed for run in snapshot.validation_runs):
        assert result.verdict in OPEN
    assert result.search_runs == len(snapshot.history)
    assert result.disturbed_search_runs == sum(obs.is_disturbed for obs in snapshot.history)
    comparison = result.final_comparison
    if comparison is not None and result.verdict is Verdict.NOT_FASTER:
        assert comparison.pairs > 0 and comparison.disturbed_pairs < comparison.pairs
