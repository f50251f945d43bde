"""Pairs of a final comparison (the candidate's and the baseline's run of one comparison block), and which of them count."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import SEED_ORIGINS, Run, RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.tuner.verdict.run_load import RunLoad, is_even

_EVEN_BEFORE = 4
"""Number of pairs that are assumed to have counted before the first one: a single pair that was left out does not promise
that the next ones will be, too."""


class BlockRun(NamedTuple):
    """Validation run in a comparison block of the current final comparison, in any state."""

    trial_number: int
    origin: TrialOrigin
    comparison_block: int
    state: TrialState
    worker: str | None
    """Worker of the run's last attempt; None before the first attempt."""
    stored_measurement: Measurement | None

    @property
    def measurement(self) -> Measurement:
        """Measurement of a complete run."""
        assert self.stored_measurement is not None
        return self.stored_measurement

    @property
    def is_measured(self) -> bool:
        """Whether the run is complete and has a measurement."""
        return self.state is TrialState.COMPLETE and self.stored_measurement is not None


class ComparedPair(NamedTuple):
    """Complete runs of candidate and baseline in one comparison block."""

    candidate: BlockRun
    baseline: BlockRun

    @property
    def left_out_reason(self) -> str | None:
        """Reason why the pair does not count; None if it does."""
        if _machine(self.candidate) != _machine(self.baseline):
            return "its two runs were on different machines"
        loads = [RunLoad.of(run.measurement) for run in self]
        return None if is_even(*loads) else self._unequal_load(loads)

    def _unequal_load(self, loads: Sequence[RunLoad]) -> str:
        """Return how the loads of the two runs differed, as far as a worker observed it."""
        left = [load.cores_left for load in loads if load.cores_left is not None]
        if len(left) == len(self):
            # The rule compares what is left: 1.66 and 1.71 busy cores of 2 would look alike.
            candidate, baseline = _unlike(left)
            return f"unequal load: on average, {candidate} CPU cores were left to the candidate, {baseline} to the baseline"
        seen = [run.measurement.conditions for run in self]
        observed = [conditions.foreign_cpu_cores for conditions in seen if conditions is not None]
        cores = [number for number in observed if number is not None]
        if len(cores) < len(self):
            both = all(load.is_disturbed for load in loads)
            return (
                "both runs were disturbed, by what is not known" if both else "only one of its two runs was disturbed"
            )
        candidate, baseline = _unlike(cores)
        took = f"{candidate} CPU cores beside the candidate, {baseline} beside the baseline"
        return f"unequal load: on average, other programs took {took}"


class PairCounts(NamedTuple):
    """Numbers of complete pairs of a final comparison."""

    counted: int = 0
    left_out: int = 0
    """Number of pairs that do not count: others run in their place."""

    def expected_repeats(self, left: int, most_pairs: int) -> int:
        """Return the expected number of further runs whose pairs will be left out, if that happens as often as so far.
        `left`: number of runs that are left if no further pair is left out; `most_pairs`: the limit of the budget."""
        # So many pairs that were left out end the comparison (`too_busy.may_go_on`).
        may_follow = max(0, math.ceil(most_pairs / 2) - self.left_out)
        return 2 * min(may_follow, round(left / 2 * self.left_out / (self.counted + _EVEN_BEFORE)))


NO_PAIRS = PairCounts()
"""Counts before the first pair is complete."""


def compared_runs(study: Study, trials: Sequence[Trial]) -> list[BlockRun]:
    """Return the runs in comparison blocks of a study's current final comparison."""
    return [
        BlockRun(
            trial.number,
            trial.origin,
            run.comparison_block,
            run.state,
            run.attempts[-1].worker if run.attempts else None,
            run.measurement,
        )
        for trial in trials
        for run in trial.runs
        if is_compared(study, run) and run.comparison_block is not None
    ]


def is_compared(study: Study, run: Run) -> bool:
    """Whether a run belongs to the blocks of a study's current final comparison."""
    is_current = run.final_comparison in (None, study.final_comparison)
    return run.purpose == RunPurpose.VALIDATION and not run.is_whole_step and is_current


def is_comparison_over(study: Study, trials: Sequence[Trial]) -> bool:
    """Whether no further run belongs to the current final comparison: the study is complete, or a run that follows the
    comparison is open."""
    open_runs = [run for trial in trials for run in trial.runs if run.state.is_open]
    return study.state is StudyState.COMPLETE or any(not is_compared(study, run) for run in open_runs)


def complete_pairs(runs: Iterable[BlockRun], *, is_over: bool) -> dict[int, ComparedPair]:
    """Return the complete pairs of a final comparison by the number of their comparison block, in order. `is_over`:
    whether no further run belongs to the comparison."""
    blocks = dict[int, list[BlockRun]]()
    for run in runs:
        blocks.setdefault(run.comparison_block, []).append(run)
    if not is_over:
        # The runs of a block are planned one by one: the newest block may lack some of its trials.
        blocks.pop(max(blocks, default=0), None)
    measured = {block: arms for block, arms in sorted(blocks.items()) if all(run.is_measured for run in arms)}
    pairs = {block: _candidate_and_baseline(arms) for block, arms in measured.items()}
    return {block: pair for block, pair in pairs.items() if pair is not None}


def count_pairs(runs: Iterable[BlockRun], *, is_over: bool) -> PairCounts:
    """Count the complete pairs of a final comparison. `is_over`: whether no further run belongs to the comparison."""
    pairs = complete_pairs(runs, is_over=is_over).values()
    left_out = sum(pair.left_out_reason is not None for pair in pairs)
    return PairCounts(len(pairs) - left_out, left_out)


def _candidate_and_baseline(arms: Sequence[BlockRun]) -> ComparedPair | None:
    """Return the runs of a comparison block as a pair; None if they are not the candidate's and the baseline's."""
    if len(arms) != 2:
        return None
    first, second = sorted(arms, key=lambda run: _seed_rank(run.origin), reverse=True)
    # Two documented defaults run beside each other to find the faster one, which becomes the baseline.
    is_pair = _seed_rank(second.origin) < _seed_rank(first.origin)
    return ComparedPair(first, second) if is_pair else None


def _unlike(cores: Sequence[float]) -> list[str]:
    """Format numbers of CPU cores with so many digits that they do not look alike, two at most."""
    digits = 1 if len({f"{number:.1f}" for number in cores}) > 1 else 2
    return [f"{number:.{digits}f}" for number in cores]


def _seed_rank(origin: TrialOrigin) -> int:
    return SEED_ORIGINS.index(origin) if origin in SEED_ORIGINS else len(SEED_ORIGINS)


def _machine(run: BlockRun) -> tuple[str | None, frozenset[str]]:
    conditions = run.measurement.conditions
    return run.worker, frozenset(conditions.hosts if conditions is not None else ())
