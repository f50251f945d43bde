"""Short steps: which studies and runs train on fewer micro batches than the workload's step has, and on how many.

A whole step repeats the same micro batch many times. Two small numbers of them show what one more takes, and what
happens once a step (docs/decisions/0013-short-steps.md).
"""

import math

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, pipeline_schedules
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.short_steps import Accumulations, ShortSteps

LONG_STEP_S = 2.0
"""Predicted seconds of a step above which a study times short steps (with fewer micro batches). For faster steps this
would save little, as a run's start takes longer than its steps."""
# Not 1: the peak with a single micro batch holds no accumulated gradient beside activations, and a strategy that
# reduces after the last micro batch alone would have no other one.
FEWER = 2
"""Smaller of the two numbers of micro batches, per pipeline stage, of the short steps that are timed to extrapolate to
whole steps."""
MORE, MOST = 4, 6
"""Larger of the two numbers of micro batches, per pipeline stage, of the short steps that are timed; `MOST` if a whole
step has many. A larger difference between the two numbers takes more time, but extrapolates to the whole step with less
error."""
_MANY = 3 * MOST
_PARITY_SAMPLES_PER_RANK = 2
# CPU ranks record their peak in these steps alone, and it may lie in a micro batch that is neither the first nor the
# last. On a GPU the timed steps have such micro batches.
_FEWEST_RECORDED = {"cpu": 3, "cuda": 2}
_HOLDS_WHOLE_STEP = ("gpipe",)
"""Pipeline schedules whose peak memory grows with the number of micro batches in a step, so that a short step would not
reach the whole step's peak."""


def parity_samples(spec: StudySpec, cluster: Cluster, predicted_step_s: float | None) -> int | None:
    """Number of different samples in the recorded first steps of all runs of a study that times short steps (with fewer
    micro batches); None where the study trains on whole steps.

    `predicted_step_s`: predicted seconds of a whole step; None where it is unknown.
    """
    workload = spec.workload
    # Your own code makes its batches itself, from ranges of samples, which cannot name a sample twice.
    if not spec.budget.short_steps or spec.model.is_own:
        return None
    # Micro batches of several lengths take different times: two small numbers of them do not show what one more takes.
    if workload.data is not None:
        return None
    if predicted_step_s is None or predicted_step_s <= LONG_STEP_S:
        return None
    if workload.global_batch <= 2 * MORE * cluster.world_size:
        return None
    # A divisor of the global batch, so that each configuration's micro batches can hold equal copies of each sample.
    return math.gcd(workload.global_batch, _PARITY_SAMPLES_PER_RANK * cluster.world_size)


def measure_plan(
    plan: MeasurePlan,
    samples: int | None,
    config: TrialConfig,
    workload: Workload,
    cluster: Cluster,
    *,
    times_whole_step: bool = False,
) -> MeasurePlan:
    """Add to a run's measurement plan how many micro batches its steps have.

    Args:
        plan: plan of the run, without its numbers of micro batches.
        samples: number of different samples in the recorded first steps; None where the study has whole steps.
        times_whole_step: whether this is the run that times whole steps after the verdict.
    """
    if samples is None:
        return plan.model_copy(update={"short_steps": None})
    micro_batches = of_run(samples, config, workload, cluster, is_whole=times_whole_step)
    return (whole_step_plan(plan) if times_whole_step else plan).model_copy(update={"short_steps": micro_batches})


def of_run(
    samples: int, config: TrialConfig, workload: Workload, cluster: Cluster, *, is_whole: bool = False
) -> ShortSteps:
    """Numbers of micro batches in the recorded and in the timed steps of a run, for a study that times short steps
    (with fewer micro batches than a whole step).

    Args:
        samples: number of different samples in the recorded first steps.
        is_whole: whether whole steps are timed, whatever their number of micro batches.
    """
    whole = config.accumulation(workload.global_batch, cluster.world_size)
    return ShortSteps(
        parity_samples=samples,
        parity_accumulation=_parity_accumulation(samples, config, cluster, whole),
        accumulations=None if is_whole else accumulations(config, whole),
    )


def accumulations(config: TrialConfig, whole: int) -> Accumulations | None:
    """Two numbers of micro batches whose steps are timed, to extrapolate to a whole step of `whole` micro batches; None
    where this saves too little time, or where the configuration needs whole steps."""
    # A schedule fills and drains once a step, and is linear from two micro batches a stage on.
    stages = config.strategy.stages
    fewer, more = FEWER * stages, (MOST if whole >= _MANY * stages else MORE) * stages
    if whole <= 2 * more or not all(_can_run(config, count) for count in (fewer, more)):
        return None
    return fewer, more


def whole_step_plan(plan: MeasurePlan) -> MeasurePlan:
    """Measurement plan of the run that times whole steps after the verdict: just enough steps to show whether the
    extrapolation from short steps (with fewer micro batches) was right."""
    return plan.model_copy(update={"max_warmup_steps": 1, "min_windows": 2, "max_windows": 2, "undecided_s": None})


def _parity_accumulation(samples: int, config: TrialConfig, cluster: Cluster, whole: int) -> int:
    """Smallest number of micro batches that divides the recorded samples evenly and reaches the peak memory of a whole
    step."""
    stages = config.strategy.stages
    per_micro_batch = config.micro_batch * config.data_ranks(cluster.world_size)
    fewest = min(_FEWEST_RECORDED[cluster.device], whole) if stages == 1 else FEWER * stages
    fitting = (
        count
        for count in range(fewest, whole, stages)
        if count * per_micro_batch % samples == 0 and _can_run(config, count)
    )
    return next(fitting, whole)


def _can_run(config: TrialConfig, count: int) -> bool:
    """Whether a configuration can run a short step of `count` micro batches that reaches the whole step's peak memory."""
    strategy = config.strategy
    # DeepCompile builds the number of micro batches into the program.
    if getattr(strategy, "deepcompile", False):
        return False
    if strategy.stages == 1:
        return True
    schedule: str = getattr(strategy, "pipeline_schedule", "1f1b")
    return schedule not in _HOLDS_WHOLE_STEP and pipeline_schedules.obstacle(schedule, strategy.stages, count) is None
