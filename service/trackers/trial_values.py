"""Parameters, figures and notes of trials and answers as flat values, for every tracker."""

from datetime import datetime

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.wording import cluster_words, study_words
from shardtune.tuner.search.space.flat import flatten

MEASURED_SPEED, MEASURED_MEMORY = "measured_tokens_per_s_per_gpu", "measured_peak_memory_gib"


def parameters(trial: Trial) -> dict[str, KnobValue]:
    """Return the knobs of a trial's configuration, each with its name and value."""
    return flatten(trial.config)


def figures(trial: Trial) -> dict[str, float]:
    """Return the figures of a trial that are known; the name of each figure says whether it was measured or
    predicted.
    """
    prediction = trial.prediction
    known = {
        MEASURED_SPEED: trial.tokens_per_s_per_gpu,
        MEASURED_MEMORY: study_words.peak_memory(trial),
        "predicted_tokens_per_s_per_gpu": None if prediction is None else prediction.tokens_per_s_per_gpu,
        "predicted_memory_gib": None if prediction is None else prediction.memory_gib,
    }
    return {name: value for name, value in known.items() if value is not None}


def notes(trial: Trial) -> dict[str, str]:
    """Return the texts about a trial that accompany its figures: state, description, origin, and the reason of an
    early end.
    """
    texts = {
        "state": trial.state.value,
        "description": trial.description,
        "origin": trial.origin.value,
        "failure": study_words.failure_line(trial),
        "pruned": study_words.pruning_note(trial),
        "chosen_because": "" if trial.reason is None else trial.reason.tests,
    }
    return {name: text for name, text in texts.items() if text}


def study_notes(study: Study) -> dict[str, str]:
    """Return texts about a study: model, cluster, workload and state. Once the study has a result, also its verdict
    and the recommended and compared configurations.
    """
    result = study.result
    texts = {
        "study_id": study.study_id,
        "state": study.state.value,
        "model": study.spec.model.name,
        "cluster": cluster_words.cluster(study.cluster),
        "sequence_length": str(study.spec.workload.sequence_length),
        "global_batch": str(study.spec.workload.global_batch),
        "precision": study.spec.workload.precision.name,
        "optimizer": study.spec.workload.optimizer.kind,
        "reason": study.reason or "",
        "verdict": "" if result is None else result.verdict.value,
        "best": "" if result is None else result.best.description,
        "best_trial": "" if result is None else str(result.best.trial_number),
        "baseline": "" if result is None else result.baseline.description,
    }
    return {name: text for name, text in texts.items() if text}


def answer_figures(study: Study) -> dict[str, float]:
    """Return the measured figures of a study's answer; empty if the study has no answer."""
    result = study.result
    if result is None:
        return {}
    known = {
        "best_measured_tokens_per_s_per_gpu": result.best.tokens_per_s_per_gpu,
        "baseline_measured_tokens_per_s_per_gpu": result.baseline.tokens_per_s_per_gpu,
        "measured_gpu_seconds": study.gpu_seconds,
    }
    if result.speedup is not None:
        low, high = result.speedup.ci95
        known |= {"measured_speedup": result.speedup.value, "speedup_ci95_low": low, "speedup_ci95_high": high}
    return known


def ran_between(trial: Trial) -> tuple[datetime, datetime] | None:
    """Return the time from the start of a trial's first attempt to the end of its last one; None before any attempt
    has ended.
    """
    attempts = [attempt for run in trial.runs for attempt in run.attempts]
    ends = [attempt.finished_at for attempt in attempts if attempt.finished_at is not None]
    return (min(attempt.started_at for attempt in attempts), max(ends)) if ends else None
