"""Considered recipes: which runs compare them with the stated one after the answer is known, and what the runs say.

All recipes run in comparison blocks, each with one run of the stated recipe and one of every recipe that is not yet
settled, in random order and on the same machine. The runs of the first block begin with the steps whose losses are
compared. Speeds are judged by the pairs' ratios, with the tests of the final comparison; no ratio chooses anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.recipes import ConsideredRecipe, LossComparison, RecipeRun, RecipeSpeed, changed
from shardtune.api_schemas.studies.study import FEWEST_PAIRS, Speedup, StudySpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import loss_difference, paired_test, parity, quiet_test
from shardtune.tuner.verdict.comparison_blocks import ComparisonBlocks, NextRun, Pair, ValidationRun
from shardtune.tuner.verdict.run_load import RunLoad

LOSS_BLOCK = 0
"""Comparison block whose runs begin with the steps whose losses are compared."""
MOST_BLOCKS = FEWEST_PAIRS + 3
"""Most comparison blocks: as many pairs as the sign test needs, and some in the place of uneven ones."""
_PRECISE = math.log1p(0.02)
"""Half-width of a ratio's logarithm at which fewer pairs are enough, whichever recipe is faster."""
_STATED = 0
"""Number of the stated recipe among the arms; considered ones follow in the order of the study."""


@dataclass(frozen=True)
class RecipeObservation:
    """Run of a recipe, with its result once it has ended."""

    trial: int
    """Number of the trial that was the study's answer when the run was added."""
    recipe: RecipeRun
    comparison_block: int
    state: TrialState
    worker: str = ""
    measurement: Measurement | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class RecipeRunDue:
    """Run that the comparison of recipes needs now."""

    recipe: RecipeRun
    comparison_block: int


def workload_of(spec: StudySpec, recipe: RecipeRun) -> Workload:
    """Workload that a run of a recipe trains."""
    return spec.workload if recipe.name is None else changed(spec.workload, recipe.name)


def why_illegal(name: str | None, config: TrialConfig, spec: StudySpec, cluster: Cluster) -> str | None:
    """Reason why a configuration cannot train with a recipe on a cluster; None if it can, as far as is known before it
    runs."""
    try:
        workload = spec.workload if name is None else changed(spec.workload, name)
        sample_groups.check(config, cluster, workload, spec.model)
        accumulation = config.accumulation(workload.global_batch, cluster.world_size)
        config.strategy.check_cluster(cluster, workload.precision, accumulation)
    except ValueError as error:
        return str(error)
    return None


def next_step(
    spec: StudySpec,
    cluster: Cluster,
    history: Sequence[Observation],
    winner: int,
    runs: Sequence[RecipeObservation],
    salt: str,
) -> RecipeRunDue | tuple[ConsideredRecipe, ...]:
    """Next run of the comparison of recipes, or the summary of each once it has ended.

    Args:
        winner: number of the trial that is the study's answer.
        runs: runs of this comparison, in order; cancelled ones, and those beside another answer, say nothing.
        salt: the study's id, which seeds the order within comparison blocks.
    """
    ended = [run for run in runs if run.state is not TrialState.CANCELLED and run.trial == winner]
    comparison = _Comparison(spec, cluster, history, winner, ended, salt)
    due = comparison.next_run()
    return due if due is not None else tuple(comparison.result(name) for name in spec.consider)


class _Comparison:
    """Comparison of the considered recipes as far as its runs have ended."""

    def __init__(
        self,
        spec: StudySpec,
        cluster: Cluster,
        history: Sequence[Observation],
        winner: int,
        runs: Sequence[RecipeObservation],
        salt: str,
    ) -> None:
        self._spec, self._runs = spec, runs
        self._arms: list[str | None] = [None, *spec.consider]
        trials = [next(obs for obs in history if obs.number == winner), *_by_speed(history)]
        self._configs = {name: _config_of(name, trials, spec, cluster) for name in self._arms}
        self._winner = trials[0].config
        self._why_not = {name: why_illegal(name, trials[0].config, spec, cluster) for name in self._arms}
        self._blocks = ComparisonBlocks(
            Finalists(_STATED, tuple(range(1, len(self._arms))), ()),
            dict.fromkeys(range(len(self._arms)), 1.0),
            range(len(self._arms)),
            [self._as_validation_run(run) for run in runs if run.measurement is not None],
            f"{salt}:recipes",
        )

    def next_run(self) -> RecipeRunDue | None:
        """Next run that is needed; None once every recipe is settled, failed, or has no configuration."""
        while self._blocks.block < MOST_BLOCKS:
            open_arms = [arm for arm, name in enumerate(self._arms) if arm != _STATED and self._is_open(arm, name)]
            if not open_arms or self._failure(None) is not None:
                return None
            block = self._blocks.take((_STATED, *open_arms))
            if isinstance(block, NextRun):
                name = self._arms[block.trial]
                config = self._configs[name]
                assert config is not None, "only recipes with a configuration are open"
                return RecipeRunDue(RecipeRun(name=name, config=config), block.comparison_block)
        return None

    def result(self, name: str) -> ConsideredRecipe:
        """Summarize the runs of a recipe."""
        config, failure = self._configs[name], self._failure(name)
        if config is None:
            return ConsideredRecipe(name=name, config=None, failure=self._why_not[name])
        own, stated = self._measured(name), self._measured(None)
        summary = ConsideredRecipe(
            name=name,
            config=config,
            description=config.describe(),
            is_winners_config=config == self._winner,
            tokens_per_s_per_gpu=_median_speed(own),
            peak_gib=_peak_gib(own),
            failure=failure.message if failure is not None else None,
            notes=self._notes(name, own),
        )
        if not own or not stated:
            stated_failure = self._failure(None)
            if failure is None and stated_failure is not None:
                reason = f"the stated recipe's run failed: {stated_failure.message}"
                return summary.model_copy(update={"failure": reason})
            return summary
        even, _ = self._blocks.pairs_by_evenness(self._arms.index(name), _STATED)
        return summary.model_copy(
            update={
                "stated_tokens_per_s_per_gpu": _median_speed(stated),
                "stated_peak_gib": _peak_gib(stated),
                "speed": _speed(even),
                "ratios": tuple(math.exp(pair.log_ratio) for pair in even),
                "loss": self._loss(own[0], stated[0]),
            }
        )

    def _loss(self, own: Measurement, stated: Measurement) -> LossComparison | None:
        """Comparison of the losses; None where a worker reported too few of them."""
        steps = self._spec.consider_steps
        if min(len(own.losses), len(stated.losses)) < steps:
            return None
        return loss_difference.compare(own.losses[:steps], stated.losses[:steps], self._spec.most_loss_difference)

    def _is_open(self, arm: int, name: str | None) -> bool:
        """Whether a recipe needs further runs."""
        if self._configs[name] is None or self._failure(name) is not None:
            return False
        even, _ = self._blocks.pairs_by_evenness(arm, _STATED)
        return not is_settled(even)

    def _failure(self, name: str | None) -> Failure | None:
        """Final failure of a recipe's run."""
        return next((run.failure for run in self._runs if run.recipe.name == name and run.failure is not None), None)

    def _measured(self, name: str | None) -> list[Measurement]:
        """Measurements of a recipe in the order of the runs; the first has the losses of many steps."""
        return [run.measurement for run in self._runs if run.recipe.name == name and run.measurement is not None]

    def _notes(self, name: str, own: Sequence[Measurement]) -> tuple[str, ...]:
        notes = []
        if own and len(own[0].losses) < self._spec.consider_steps:
            notes.append(
                f"losses of {len(own[0].losses)} steps were reported, of {self._spec.consider_steps} asked for"
            )
        if self._why_not[name] is not None and self._configs[name] is not None:
            notes.append(f"not with the answer's configuration: {self._why_not[name]}")
        workload = changed(self._spec.workload, name)
        bounds = parity.tolerance(workload.precision, workload.optimizer)
        for run in own[1:]:
            pairs = zip(own[0].trajectory, run.trajectory, strict=False)
            reasons = (parity.step_difference(first, again, bounds, "its first run") for first, again in pairs)
            reason = next((text for text in reasons if text is not None), None)
            if reason is not None:
                notes.append(f"its runs do not repeat their losses: {reason}")
                break
        return tuple(notes)

    def _as_validation_run(self, run: RecipeObservation) -> ValidationRun:
        assert run.measurement is not None
        conditions = run.measurement.conditions
        return ValidationRun(
            self._arms.index(run.recipe.name),
            run.comparison_block,
            run.worker,
            run.measurement.tokens_per_s_per_gpu,
            frozenset(conditions.hosts if conditions is not None else ()),
            RunLoad.of(run.measurement),
        )


def is_settled(pairs: Sequence[Pair]) -> bool:
    """Whether pairs are enough: an interval by the sign test, or on a quiet machine one that excludes equal speeds or
    is narrow."""
    if len(pairs) >= FEWEST_PAIRS:
        return True
    interval = quiet_test.log_interval(pairs)
    if interval is None:
        return False
    low, high = interval
    return low > 0 or high < 0 or high - low <= 2 * _PRECISE


def _speed(pairs: Sequence[Pair]) -> RecipeSpeed | None:
    ratio: Speedup | None = quiet_test.speedup(pairs) or paired_test.speedup([pair.log_ratio for pair in pairs])
    return None if ratio is None else RecipeSpeed(value=ratio.value, ci95=ratio.ci95, pairs=ratio.pairs)


def _by_speed(history: Sequence[Observation]) -> list[Observation]:
    """Complete trials, fastest search run first."""
    measured = [obs for obs in history if obs.state is TrialState.COMPLETE and obs.measurement is not None]
    return sorted(measured, key=lambda obs: -obs.measurement.tokens_per_s_per_gpu if obs.measurement else 0.0)


def _config_of(
    name: str | None, trials: Sequence[Observation], spec: StudySpec, cluster: Cluster
) -> TrialConfig | None:
    """Configuration of the first trial that can train with a recipe; None if none can."""
    return next((obs.config for obs in trials if why_illegal(name, obs.config, spec, cluster) is None), None)


def _median_speed(measured: Sequence[Measurement]) -> float | None:
    return median(run.tokens_per_s_per_gpu for run in measured) if measured else None


def _peak_gib(measured: Sequence[Measurement]) -> float | None:
    peaks = (run.memory.peak_reserved_gib or run.memory.peak_allocated_gib for run in measured)
    return max((peak for peak in peaks if peak is not None), default=None)
