"""Rest of a study's budget: what the study has spent, what its further runs should take, and whether they fit into its
limits of GPU-seconds and time.

A run should take what the study's complete runs took in the median. Nothing here applies to a budget without such a
limit.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from shardtune.api_schemas.formatting import stated
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS, Budget
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict.comparison_blocks import NEAR_FRACTION
from shardtune.tuner.verdict.final_comparison import max_runs

_RESUME_RUNS = 2
"""Number of usual runs that take as long as a resume check, which starts its ranks twice."""
_WHOLE_STEPS = 3
"""Number of steps in a run that times whole steps after the verdict."""


class StudySpent(NamedTuple):
    """GPU-seconds that a study has used so far, and seconds since it could first run."""

    gpu_seconds: float
    elapsed_s: float

    def plus(self, seconds: float, ranks: int) -> "StudySpent":
        """Return what the study has spent once further runs have taken `seconds` on all `ranks`."""
        return StudySpent(self.gpu_seconds + seconds * ranks, self.elapsed_s + seconds)


class Shortage(NamedTuple):
    """Limit of a budget that further runs of the study would exceed."""

    code: StudyReasonCode
    limit: str
    """Name and value of the limit, such as `budget.max_gpu_seconds (400)`."""
    left: str
    """Rest of the limit, with its unit."""
    needed: str
    """Amount that the runs should take, in the same unit."""

    def describe(self, runs: str = "it") -> str:
        """Describe the limit, its rest and the need of the runs, which are named in the singular."""
        return f"{self.limit} leaves {self.left}, and {runs} takes about {self.needed}"


def is_limited(budget: Budget) -> bool:
    """Whether a budget limits GPU-seconds or time."""
    return budget.max_gpu_seconds is not None or budget.max_wall_seconds is not None


def shortage(budget: Budget, spent: StudySpent, needed_s: float, ranks: int) -> Shortage | None:
    """Limit that would be exceeded by runs which take `needed_s` seconds on all `ranks`; None if they fit. With 0
    seconds, the limit that is reached already."""
    most_gpu_s, most_s = budget.max_gpu_seconds, budget.max_wall_seconds
    if most_gpu_s is not None and _exceeds(spent.gpu_seconds, needed_s * ranks, most_gpu_s):
        return Shortage(
            StudyReasonCode.GPU_SECONDS_USED,
            f"budget.max_gpu_seconds ({stated(most_gpu_s)})",
            *_amounts(most_gpu_s - spent.gpu_seconds, needed_s * ranks, " GPU-seconds", ""),
        )
    if most_s is not None and _exceeds(spent.elapsed_s, needed_s, most_s):
        return Shortage(
            StudyReasonCode.WALL_SECONDS_USED,
            f"budget.max_wall_seconds ({stated(most_s)})",
            *_amounts(most_s - spent.elapsed_s, needed_s, " s", " s"),
        )
    return None


def _exceeds(spent: float, needed: float, limit: float) -> bool:
    return spent >= limit or spent + needed > limit


def _amounts(left: float, needed: float, left_unit: str, needed_unit: str) -> tuple[str, str]:
    """Write the rest of a limit and what runs need with as few decimals as tell the two apart."""
    left = max(0.0, left)
    digits = next((digits for digits in (0, 1, 2) if f"{left:,.{digits}f}" != f"{needed:,.{digits}f}"), 0)
    return f"{left:,.{digits}f}{left_unit}", f"{needed:,.{digits}f}{needed_unit}"


def usual_run_s(history: Sequence[Observation], trials: Collection[int] | None = None) -> float | None:
    """Median seconds of a study's complete runs, or of those of some trials; None before the first one."""
    chosen = (obs for obs in history if trials is None or obs.number in trials)
    seconds = [run.elapsed_s for obs in chosen for run in _complete_runs(obs)]
    return median(seconds) if seconds else None


def _complete_runs(obs: Observation) -> Iterator[Measurement]:
    # A pruned run ended early, so that it says nothing of a whole one.
    if obs.state is TrialState.COMPLETE and obs.measurement is not None:
        yield obs.measurement
    yield from obs.validation_runs


def block_s(history: Sequence[Observation], trials: Collection[int]) -> float:
    """Seconds that one run of each of these trials should take, directly after each other."""
    return sum(usual_run_s(history, {trial}) or 0.0 for trial in trials)


def checks_s(history: Sequence[Observation], spec: StudySpec) -> float:
    """Seconds of the runs that check an answer after the pairs: its resume check, and one run of whole steps for each of
    the two configurations if step times were extrapolated from short steps (with fewer micro batches)."""
    usual_s = usual_run_s(history) or 0.0
    resume_s = _RESUME_RUNS * usual_s if spec.budget.resume_check and spec.model.script is None else 0.0
    steps = [run.step_time_s for obs in history for run in _complete_runs(obs) if run.is_extended]
    return resume_s + (2 * (usual_s + _WHOLE_STEPS * median(steps)) if steps else 0.0)


def fewest_runs(field: Finalists, speeds: Mapping[int, float]) -> int:
    """Number of validation runs in a final comparison that ends after the fewest pairs which can have a verdict on any
    machine: those that choose the baseline and the challenger, and the pairs.

    `speeds`: tokens_per_s_per_gpu of the search runs, by trial number.
    """
    if not field.needs_runs:
        return 0
    fastest = max((speeds[trial] for trial in field.defaults), default=0.0)
    near = [trial for trial in field.defaults if speeds[trial] >= NEAR_FRACTION * fastest]
    # All defaults run once, and those that may still be the fastest a second time.
    among_defaults = len(field.defaults) + (len(near) if len(near) > 1 else 0) if len(field.defaults) > 1 else 0
    rivals = {*field.candidates, *near} - {field.baseline}
    return among_defaults + max_runs(len(rivals), FEWEST_PAIRS)
