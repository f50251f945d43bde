"""Summaries of studies and of their answers, in the words of the command line."""

from collections.abc import Sequence

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli import summary
from shardtune.service.wording import cluster_words
from shardtune.service.wording.answers.verdict_line import verdict_text


def subject(study: Study) -> str:
    """Describe what a study tunes: id, model, cluster and workload."""
    workload = study.spec.workload
    return (
        f"{study.study_id}: {study.spec.model.name} on {cluster_words.cluster(study.cluster)}, sequence "
        f"{workload.sequence_length:,}, global batch {workload.global_batch:,}, {workload.precision.name}"
    )


def state(study: Study) -> str:
    """Describe the state of a study: its phase, its trials and GPU-seconds so far and, once it has ended, its
    verdict."""
    counts = ", ".join(f"{count} {name}" for name, count in summary.trial_counts(study.trials).items())
    phase = f" ({study.phase.value.replace('_', ' ')})" if study.state.is_open else ""
    verdict = "" if study.result is None else f" Verdict: {verdict_text(study.result)}."
    spent = (
        f"{study.gpu_seconds:,.0f} GPU-seconds so far"
        if study.state.is_open
        else f"{study.gpu_seconds:,.0f} GPU-seconds"
    )
    return f"{study.state.value}{phase}: trials {counts}; {spent}.{verdict}"


def answer(result: StudyResult) -> str:
    """Describe the answer of a study: the recommended configuration and the verdict."""
    return f"Recommended: {result.best.description}. Verdict: {verdict_text(result)}."


def reasons(study: Study, result: StudyResult, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the reasons for and against believing a study's answer, followed by the notes of the answer."""
    marks = {"good": "for the answer", "warn": "warning", "bad": "against the answer"}
    believed = (
        f"{marks[reason.tone]}: {reason.text}" if reason.tone in marks else reason.text
        for reason in summary.reasons(study, result, trials)
    )
    return tuple(dict.fromkeys((*believed, *result.notes)))
