"""Measured trials as a user is shown them: alone, and the answer beside each documented default."""

from collections.abc import Iterable, Sequence
from statistics import median

from shardtune.api_schemas.studies.study import Contender
from shardtune.api_schemas.studies.verdicts import AgainstDefault
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialOrigin, TrialState
from shardtune.tuner.history import Observation


def contender(obs: Observation) -> Contender:
    """A measured trial as shown to a user; its figures are those of its validation runs where it has them."""
    runs = obs.validation_runs or ((obs.measurement,) if obs.measurement is not None else ())
    assert runs, "a contender has been measured"
    speeds = [run.tokens_per_s_per_gpu for run in runs]
    mfus = [run.mfu for run in runs if run.mfu is not None]
    return Contender(
        trial_number=obs.number,
        config=obs.config,
        description=obs.config.describe(),
        tokens_per_s_per_gpu=median(speeds),
        spread=(min(speeds), max(speeds)) if len(obs.validation_runs) > 1 else None,
        peak_allocated_gib=_largest(run.memory.peak_allocated_gib for run in _all_runs(obs)),
        peak_reserved_gib=_largest(run.memory.peak_reserved_gib for run in _all_runs(obs)),
        mfu=median(mfus) if mfus else None,
        runs=len(runs),
    )


def beside_defaults(
    best: Contender, history: Sequence[Observation], paired: int | None = None
) -> tuple[AgainstDefault, ...]:
    """Each documented default that ran, with the micro batch with which it was fastest: a gain over micro batch 1 alone says
    little. Without the answer itself, and without the trial that it was `paired` with: the pairs say more than two medians."""
    measured = [obs for obs in history if obs.state is TrialState.COMPLETE and obs.measurement is not None]
    found = []
    for default in (obs for obs in measured if obs.origin == TrialOrigin.DEFAULT):
        alike = [obs for obs in measured if _without_micro_batch(obs) == _without_micro_batch(default)]
        shown = max(map(contender, alike), key=lambda one: one.tokens_per_s_per_gpu)
        if shown.trial_number not in (best.trial_number, paired):
            row = AgainstDefault(
                trial_number=shown.trial_number,
                description=shown.description,
                micro_batches=tuple(sorted({obs.config.micro_batch for obs in alike})),
                tokens_per_s_per_gpu=shown.tokens_per_s_per_gpu,
                runs=shown.runs,
                ratio=best.tokens_per_s_per_gpu / shown.tokens_per_s_per_gpu,
            )
            found += [] if row in found else [row]
    return tuple(found)


def _without_micro_batch(obs: Observation) -> str:
    return obs.config.model_copy(update={"micro_batch": 1}).content_key()


def _all_runs(obs: Observation) -> tuple[Measurement, ...]:
    return (*obs.validation_runs, obs.measurement) if obs.measurement is not None else obs.validation_runs


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
