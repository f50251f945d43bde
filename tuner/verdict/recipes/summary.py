"""Summary of a considered recipe: what its runs say beside those of the stated one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.recipes import ConsideredRecipe, LossComparison, RecipeSpeed, changed
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Speedup
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.verdict import loss_difference, paired_test, parity, quiet_test
from shardtune.tuner.verdict.comparison_blocks import Pair


@dataclass(frozen=True)
class Arm:
    """One side of a comparison of recipes: a recipe (precision or optimizer) with its configuration and runs."""

    name: str | None
    """Name of the considered recipe (precision or optimizer). None stands for the recipe that the study itself
    states."""
    config: TrialConfig | None
    """Configuration of the recipe's runs; None if no trial of the study can train with the recipe."""
    why_not_answer: str | None
    """Reason why the recipe cannot train with the configuration that is the study's answer; None if it can."""
    measured: tuple[Measurement, ...]
    """Measurements of the runs, in order."""
    failure: Failure | None
    """Final failure of a run."""


def summarize(
    spec: StudySpec, own: Arm, stated: Arm, even: Sequence[Pair], winner: TrialConfig, *, is_settled: bool
) -> ConsideredRecipe:
    """Summarize the runs of a considered recipe (precision or optimizer).

    Args:
        even: pairs of this recipe and the stated one whose runs had equal load from other programs.
        winner: configuration that is the study's answer.
        is_settled: whether there are enough pairs, so that a later failure of the stated recipe is not reported.
    """
    assert own.name is not None, "the stated recipe is what the others are compared with"
    if own.config is None:
        return ConsideredRecipe(name=own.name, config=None, failure=own.why_not_answer)
    summary = ConsideredRecipe(
        name=own.name,
        config=own.config,
        description=own.config.describe(),
        is_winners_config=own.config == winner,
        tokens_per_s_per_gpu=_median_speed(own.measured),
        peak_gib=_peak_gib(own.measured),
        failure=own.failure.message if own.failure is not None else None,
        notes=_notes(spec, own, stated),
    )
    if own.failure is None and stated.failure is not None and not is_settled:
        reason = f"the stated recipe's run failed: {stated.failure.message}"
        summary = summary.model_copy(update={"failure": reason})
    if not own.measured or not stated.measured:
        return summary
    return summary.model_copy(
        update={
            "stated_tokens_per_s_per_gpu": _median_speed(stated.measured),
            "stated_peak_gib": _peak_gib(stated.measured),
            "speed": _speed(even),
            "ratios": tuple(math.exp(pair.log_ratio) for pair in even),
            "loss": _loss(spec, own, stated),
        }
    )


def _losses(arm: Arm, steps: int) -> tuple[float, ...]:
    """Losses of the first run that reported enough steps; otherwise the losses of the first run."""
    first = arm.measured[0].losses if arm.measured else ()
    return next((run.losses for run in arm.measured if len(run.losses) >= steps), first)


def _loss(spec: StudySpec, own: Arm, stated: Arm) -> LossComparison | None:
    """Compare a considered recipe's losses with the stated recipe's; None where a worker reported the losses of too few
    steps."""
    steps, losses, stated_losses = (
        spec.consider_steps,
        _losses(own, spec.consider_steps),
        _losses(stated, spec.consider_steps),
    )
    if min(len(losses), len(stated_losses)) < steps:
        return None
    return loss_difference.compare(losses[:steps], stated_losses[:steps], spec.most_loss_difference)


def _notes(spec: StudySpec, own: Arm, stated: Arm) -> tuple[str, ...]:
    found = (_few_losses(spec, own, stated), _other_config(own), _unrepeated(spec, own), _skipped_steps(own))
    return tuple(note for note in found if note is not None)


def _few_losses(spec: StudySpec, own: Arm, stated: Arm) -> str | None:
    """Note that a run reported the losses of too few steps to compare recipes."""
    for arm, by_whom in ((own, ""), (stated, " by the stated recipe's run")):
        reported = len(_losses(arm, spec.consider_steps))
        if arm.measured and reported < spec.consider_steps:
            return f"losses of {reported} steps were reported{by_whom}, of {spec.consider_steps} asked for"
    return None


def _other_config(own: Arm) -> str | None:
    return None if own.why_not_answer is None else f"not with the answer's configuration: {own.why_not_answer}"


def _skipped_steps(own: Arm) -> str | None:
    """Note on steps that were skipped because float16 overflowed at the loss scale, from the run with most of them."""
    most = max((run.skipped_steps for run in own.measured), default=0)
    return (
        f"up to {most} steps of a run overflowed float16; they were trained again, and are not timed" if most else None
    )


def _unrepeated(spec: StudySpec, own: Arm) -> str | None:
    """Note that a repeated run of a recipe did not reproduce the losses of the recipe's first run."""
    assert own.name is not None
    workload = changed(spec.workload, own.name)
    bounds = parity.tolerance(workload.precision, workload.optimizer, workload.float8)
    for run in own.measured[1:]:
        pairs = zip(own.measured[0].trajectory, run.trajectory, strict=False)
        reasons = (parity.step_difference(first, again, bounds, "its first run") for first, again in pairs)
        reason = next((text for text in reasons if text is not None), None)
        if reason is not None:
            return f"its runs do not repeat their losses: {reason}"
    return None


def _speed(pairs: Sequence[Pair]) -> RecipeSpeed | None:
    ratio: Speedup | None = quiet_test.speedup(pairs) or paired_test.speedup([pair.log_ratio for pair in pairs])
    return None if ratio is None else RecipeSpeed(value=ratio.value, ci95=ratio.ci95, pairs=ratio.pairs)


def _median_speed(measured: Sequence[Measurement]) -> float | None:
    return median(run.tokens_per_s_per_gpu for run in measured) if measured else None


def _peak_gib(measured: Sequence[Measurement]) -> float | None:
    peaks = (run.memory.peak_reserved_gib or run.memory.peak_allocated_gib for run in measured)
    return max((peak for peak in peaks if peak is not None), default=None)
