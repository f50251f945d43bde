"""Considered recipes: which runs compare them with the stated one after the answer is known, and what the runs say.

All recipes run in comparison blocks, each with one run of the stated recipe and one of every recipe that is not yet
settled, in random order and on the same machine. The first run of each recipe begins with the steps whose losses are
compared. Speeds are judged by the pairs' ratios, with the tests of the final comparison; no ratio chooses anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.recipes import ConsideredRecipe, RecipeRun
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict import quiet_test
from shardtune.tuner.verdict.comparison_blocks import ComparisonBlocks, NextRun, Pair, ValidationRun
from shardtune.tuner.verdict.recipes import configs, summary
from shardtune.tuner.verdict.recipes.summary import Arm
from shardtune.tuner.verdict.run_load import RunLoad

MOST_BLOCKS = FEWEST_PAIRS + 3
"""Maximum number of comparison blocks: as many as the sign test needs pairs, and some more to replace pairs whose two
runs had unequal load from other programs."""
_PRECISE = math.log1p(0.02)
"""Half-width of the interval of a log speed ratio at which the ratio is precise enough, so that no further pairs are
run, whichever recipe is faster."""
_STATED = 0
"""Index of the study's own recipe (precision or optimizer) among the arms of the comparison; the recipes to consider
follow in the study's order."""


@dataclass(frozen=True)
class RecipeObservation:
    """Run of a recipe (precision or optimizer) in the comparison of recipes, with its result once it has ended."""

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
    """Run that the comparison of recipes (precisions or optimizers) needs next."""

    recipe: RecipeRun
    comparison_block: int


@dataclass(frozen=True)
class RecipesState:
    """State of the comparison of recipes (precisions or optimizers), by the runs that have ended so far."""

    next: RecipeRunDue | None
    """Next run; None once the comparison has ended."""
    summaries: tuple[ConsideredRecipe, ...]
    """Summary of each recipe (precision or optimizer) that is compared with the study's own, in the order in which the
    study lists them."""

    @property
    def known(self) -> tuple[ConsideredRecipe, ...]:
        """Summaries of recipes that can be shown: those with runs of both the considered and the stated recipe, or with
        the reason why there are no runs."""
        return tuple(
            recipe
            for recipe in self.summaries
            if recipe.failure is not None or recipe.stated_tokens_per_s_per_gpu is not None
        )


def state(
    spec: StudySpec,
    cluster: Cluster,
    history: Sequence[Observation],
    winner: int,
    runs: Sequence[RecipeObservation],
    salt: str,
) -> RecipesState:
    """Compute the state of the comparison of recipes: its next run, and a summary of each considered recipe.

    Args:
        winner: number of the trial that is the study's answer.
        runs: runs of this comparison, in order; cancelled ones, and those made while another trial was the answer, are
            ignored.
        salt: the study's id, which seeds the order within comparison blocks.
    """
    ended = [run for run in runs if run.state is not TrialState.CANCELLED and run.trial == winner]
    comparison = _Comparison(spec, cluster, history, winner, ended, salt)
    return RecipesState(comparison.next_run(), comparison.summaries())


class _Comparison:
    """Comparison of the considered recipes (precisions or optimizers) with the recipe that the study states, computed
    from the runs that have ended so far."""

    def __init__(
        self,
        spec: StudySpec,
        cluster: Cluster,
        history: Sequence[Observation],
        winner: int,
        runs: Sequence[RecipeObservation],
        salt: str,
    ) -> None:
        trials = [next(obs for obs in history if obs.number == winner), *configs.by_speed(history)]
        self._spec, self._winner = spec, trials[0].config
        names = (None, *spec.consider)
        self._arms = tuple(_arm(name, trials, spec, cluster, runs) for name in names)
        self._blocks = ComparisonBlocks(
            Finalists(_STATED, tuple(range(1, len(names))), ()),
            dict.fromkeys(range(len(names)), 1.0),
            range(len(names)),
            [_as_validation_run(names.index(run.recipe.name), run) for run in runs if run.measurement is not None],
            f"{salt}:recipes",
        )

    def next_run(self) -> RecipeRunDue | None:
        """Next run that the comparison needs. None means that every considered recipe (precision or optimizer) has
        enough pairs of runs, has failed, or has no configuration."""
        while self._blocks.block < MOST_BLOCKS:
            open_arms = [number for number in range(1, len(self._arms)) if self._is_open(number)]
            if not open_arms or self._arms[_STATED].failure is not None:
                # The pairs before a failure stay known.
                self._blocks.take_rest()
                return None
            block = self._blocks.take((_STATED, *open_arms))
            if isinstance(block, NextRun):
                return RecipeRunDue(self._recipe_of(self._arms[block.trial]), block.comparison_block)
        return None

    def summaries(self) -> tuple[ConsideredRecipe, ...]:
        """Summary of each considered recipe."""
        return tuple(
            summary.summarize(self._spec, arm, self._arms[_STATED], even, self._winner, is_settled=is_settled(even))
            for number, arm in enumerate(self._arms)
            if number != _STATED
            for even in (self._even_pairs(number),)
        )

    def _recipe_of(self, arm: Arm) -> RecipeRun:
        """Recipe, configuration and number of recorded losses of the next run of an arm (one of the recipes compared)."""
        assert arm.config is not None, "only recipes with a configuration are open"
        # Of the first run, not of the first block: a block is lost where a worker dies within it.
        loss_steps = 0 if arm.measured else self._spec.consider_steps
        return RecipeRun(name=arm.name, config=arm.config, loss_steps=loss_steps)

    def _is_open(self, number: int) -> bool:
        """Whether the comparison needs further runs of a recipe: it does if the recipe can train, has not failed, and
        has too few pairs of runs."""
        arm = self._arms[number]
        if arm.config is None or arm.failure is not None:
            return False
        return not is_settled(self._even_pairs(number))

    def _even_pairs(self, number: int) -> tuple[Pair, ...]:
        """Pairs of runs, one of a considered recipe (precision or optimizer) and one of the stated recipe, that had
        equal load from other programs."""
        even, _ = self._blocks.pairs_by_evenness(number, _STATED)
        return even


def is_settled(pairs: Sequence[Pair]) -> bool:
    """Whether a recipe (precision or optimizer) has enough pairs of runs. It has if the sign test yields an interval
    or, on a quiet machine, if the interval excludes equal speeds or is narrow."""
    if len(pairs) >= FEWEST_PAIRS:
        return True
    interval = quiet_test.log_interval(pairs)
    if interval is None:
        return False
    low, high = interval
    return low > 0 or high < 0 or high - low <= 2 * _PRECISE


def _arm(
    name: str | None,
    trials: Sequence[Observation],
    spec: StudySpec,
    cluster: Cluster,
    runs: Sequence[RecipeObservation],
) -> Arm:
    """Build an arm of the comparison: a recipe with its configuration and its runs. The first of `trials` is the
    study's answer."""
    own = [run for run in runs if run.recipe.name == name]
    return Arm(
        name=name,
        config=configs.first_legal(name, trials, spec, cluster),
        why_not_answer=configs.why_illegal(name, trials[0].config, spec, cluster),
        measured=tuple(run.measurement for run in own if run.measurement is not None),
        failure=next((run.failure for run in own if run.failure is not None), None),
    )


def _as_validation_run(number: int, run: RecipeObservation) -> ValidationRun:
    assert run.measurement is not None
    conditions = run.measurement.conditions
    return ValidationRun(
        number,
        run.comparison_block,
        run.worker,
        run.measurement.tokens_per_s_per_gpu,
        frozenset(conditions.hosts if conditions is not None else ()),
        RunLoad.of(run.measurement),
    )
