"""Contenders: summaries of measured trials for users, and the recommended trial's gain over each documented default."""

from collections.abc import Iterable, Sequence
from statistics import median

from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.verdicts import AgainstDefault
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.tuner.history import Observation


def contender(obs: Observation) -> Contender:
    """Summarize a measured trial for a user, with the figures of its validation runs (repeats in the final comparison)
    where it has any, else of its search run."""
    runs = obs.validation_runs or ((obs.measurement,) if obs.measurement is not None else ())
    assert runs, "a contender has been measured"
    speeds = [run.tokens_per_s_per_gpu for run in runs]
    # A measured whole step says more than any number of extended ones, unless other programs slowed it down.
    whole = obs.whole_step_run
    final = runs if whole is None or whole.disturbed is not None else (whole,)
    mfus = [run.mfu for run in final if run.mfu is not None]
    return Contender(
        trial_number=obs.number,
        config=obs.config,
        description=obs.config.describe(),
        tokens_per_s_per_gpu=median(run.tokens_per_s_per_gpu for run in final),
        spread=(min(speeds), max(speeds)) if len(obs.validation_runs) > 1 else None,
        peak_allocated_gib=_largest(run.memory.peak_allocated_gib for run in _all_runs(obs)),
        peak_reserved_gib=_largest(run.memory.peak_reserved_gib for run in _all_runs(obs)),
        mfu=median(mfus) if mfus else None,
        runs=len(runs),
    )


def compare_with_defaults(
    best: Contender, history: Sequence[Observation], paired: int | None = None
) -> tuple[AgainstDefault, ...]:
    """Compare the study's recommended trial with each documented default that ran, at the default's fastest micro
    batch.

    The recommended trial and the trial that it was `paired` with are left out.
    """
    measured = [obs for obs in history if obs.state is TrialState.COMPLETE and obs.measurement is not None]
    best_trial = next(obs for obs in history if obs.number == best.trial_number)
    rows = []
    # A gain over micro batch 1 alone says little: every default has micro batch 1 and most are faster with more.
    for default in (obs for obs in measured if obs.origin == TrialOrigin.DEFAULT):
        variants = [obs for obs in measured if _without_micro_batch(obs) == _without_micro_batch(default)]
        fastest_variant = max(variants, key=lambda obs: contender(obs).tokens_per_s_per_gpu)
        # The pairs of the paired trial say more than the two medians of this table.
        if fastest_variant.number not in (best.trial_number, paired):
            sizes = tuple(sorted({obs.config.micro_batch for obs in variants}))
            row = _against_default(best_trial, fastest_variant, sizes)
            rows += [] if row in rows else [row]
    return tuple(rows)


def _against_default(best: Observation, default: Observation, micro_batches: tuple[int, ...]) -> AgainstDefault:
    # Like with like: the machine may have carried another load during the search than during the validation runs.
    by_search = not (best.validation_runs and default.validation_runs)
    best_runs, default_runs = (
        ((obs.measurement,) if obs.measurement is not None else ()) if by_search else obs.validation_runs
        for obs in (best, default)
    )
    speed = median(run.tokens_per_s_per_gpu for run in default_runs)
    return AgainstDefault(
        trial_number=default.number,
        description=default.config.describe(),
        micro_batches=micro_batches,
        tokens_per_s_per_gpu=speed,
        runs=len(default_runs),
        ratio=median(run.tokens_per_s_per_gpu for run in best_runs) / speed,
        is_by_search_runs=by_search,
        is_disturbed=any(run.disturbed is not None for run in (*best_runs, *default_runs)),
    )


def _without_micro_batch(obs: Observation) -> str:
    return obs.config.model_copy(update={"micro_batch": 1}).content_key()


def _all_runs(obs: Observation) -> tuple[Measurement, ...]:
    return tuple(run for run in (*obs.validation_runs, obs.measurement, obs.whole_step_run) if run is not None)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
