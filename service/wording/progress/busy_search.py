"""Warn, while a study is compared, that its whole search was disturbed: users can still quiet their machine then."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.conditions import program_names
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import RunPurpose, Trial, TrialState
from shardtune.service.wording.progress import activity_words

_FEWEST = 3
"""Minimum number of search runs, all disturbed, that show a load that stays."""


def describe_busy_search(study: Study, trials: Sequence[Trial]) -> str | None:
    """Describe how to get a verdict although other programs disturbed each search run. None if fewer runs or not all of
    them were disturbed, before the final comparison, and once one of its runs was undisturbed."""
    if study.phase is not StudyPhase.FINAL_COMPARISON:
        return None
    searched = activity_words.runs_of(trials, RunPurpose.SEARCH, TrialState.COMPLETE)
    measured = [run.measurement for _, run in searched if run.measurement is not None]
    compared = [run.measurement for _, run in activity_words.validation_runs(study, trials) if run.measurement]
    if len(measured) < _FEWEST or any(run.disturbed is None for run in (*measured, *compared)):
        return None
    seen = (measured + compared)[-1].conditions
    named = program_names(seen.foreign_programs) if seen is not None else ""
    programs = f"other programs ({named})" if named else "other programs"
    # The remedy first: the table of a narrow terminal cuts the end of a line.
    return (
        f"end {programs} now, or begin again with --wait-for-quiet: they disturbed all {len(measured)} search runs, and only "
        "undisturbed runs can confirm an answer"
    )
