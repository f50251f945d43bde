"""Lines about a trial of a running study: its configuration, the reason to try it, and what its search run measured."""

from collections.abc import Sequence

from shardtune.api_schemas.base import DTYPE_BYTES, GIB
from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.workload import Precision
from shardtune.api_schemas.trials.trial import RunPurpose, Trial, TrialOrigin, TrialState
from shardtune.service.wording import change_words, disambiguate, study_words
from shardtune.service.wording.progress import activity_words, kept_runs

_ORIGINS = {TrialOrigin.BASELINE: " (yours)", TrialOrigin.DEFAULT: " (a documented default)"}
_LARGE = 0.5
"""Minimum part of a trial's peak memory that a buffer takes where the line explains the peak by it."""


def origin_note(origin: TrialOrigin) -> str:
    """Return a note in brackets for a configuration that the search did not choose: ` (a documented default)`. Empty for
    others."""
    return _ORIGINS.get(origin, "")


def trial_line(study: Study, trial: Trial, trials: Sequence[Trial], *, is_first: bool) -> str:
    """Describe the present state of a trial. `is_first`: whether this is the first line about the trial, which also says
    why the sampler chose it."""
    limit = study.spec.budget.max_trials
    name = f"trial {trial.number}" + (f" ({trial.number + 1} of {limit})" if limit else "")
    # A study of the service has its present recommendation as the baseline, which is nobody's own.
    origin = "" if study.system_study is not None else origin_note(trial.origin)
    name += f": {disambiguate.describe_trials(trials)[trial.number]}{origin}"
    tested = change_words.sampler_note(trial) if is_first else ""
    if trial.state is TrialState.COMPLETE:
        return f"{name}: {_measured(study, trial, trials)}{tested}"
    if trial.state is TrialState.WAITING:
        return f"{name}: waiting {activity_words.waiting_reason(trial)}{tested}"
    reason = study_words.failure_line(trial) or study_words.pruning_note(trial)
    return f"{name}: {trial.state.value}{tested}" + (f", {reason}" if reason else "")


def _measured(study: Study, trial: Trial, trials: Sequence[Trial]) -> str:
    is_best = study.best_so_far is not None and study.best_so_far.trial_number == trial.number
    search_run = next((run for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    mark = "" if search_run is None else kept_runs.kept_mark(study, trials, trial, search_run)
    return (
        f"{study_words.rate(trial.tokens_per_s_per_gpu)} tokens/s/GPU, {study_words.trial_memory(trial)}"
        f"{_buffer_note(study, trial)}{study_words.prediction_note(trial)}{mark}" + (", best so far" if is_best else "")
    )


def _buffer_note(study: Study, trial: Trial) -> str:
    """Return a note on DeepSpeed's buffer of gradients if it is most of a trial's peak memory, which would otherwise look
    wrong beside that of a configuration that shards nothing: `, of which 954 MiB are …`. Empty for other trials."""
    peak, buffer = study_words.peak_memory(trial), _gradient_buffer_gib(trial.config, study.spec.workload.precision)
    # A buffer above the peak was not allocated like that.
    if peak is None or not _LARGE * peak <= buffer <= peak:
        return ""
    return f", of which {study_words.memory(buffer, peak)} are DeepSpeed's gradient buffer"


def _gradient_buffer_gib(config: TrialConfig, precision: Precision) -> float:
    """Return the GiB of the buffer that ZeRO-1 and ZeRO-2 allocate for contiguous gradients, however small the model; 0 for
    other configurations."""
    strategy = config.strategy
    if not isinstance(strategy, ZeroConfig) or strategy.stage == 3 or not strategy.contiguous_gradients:
        return 0.0
    dtype = precision.reduce_dtype if strategy.stage == 1 else precision.weights_dtype
    # DeepSpeed's BF16_Optimizer, which it then uses in stage 1, has no such buffer.
    if strategy.stage == 1 and dtype != precision.weights_dtype and strategy.offload_optimizer is None:
        return 0.0
    # `overlap_comm` doubles it.
    return (1 + strategy.overlap_comm) * strategy.reduce_bucket_size * DTYPE_BYTES[dtype] / GIB
