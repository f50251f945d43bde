"""State, phase and purpose of a study."""

from enum import StrEnum


class StudyState(StrEnum):
    """State of a study: `waiting → running ⇄ paused → complete | cancelled | failed`. A study that is complete or
    failed runs again if it is extended."""

    WAITING = "waiting"
    """The study waits because no worker has its cluster yet."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Whether the study has not ended: it is running, paused or waiting for a worker."""
        return self in OPEN_STUDY_STATES


OPEN_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)
ACTIVE_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING)
"""States in which a study needs a worker. Studies in these states count against quotas, and are reported as demand for
workers."""


class StudyPhase(StrEnum):
    """Phase of a running study."""

    MODEL_SUMMARY = "model_summary"
    SEARCH = "search"
    FINAL_COMPARISON = "final_comparison"
    """Phase of the validation runs, which compare the fastest trials of the search with the baseline and decide the
    verdict."""
    DONE = "done"


class StudyPurpose(StrEnum):
    """Purpose of a study. The service starts studies of purpose `retune` and `canary`, which run only on workers that
    no user's study needs."""

    USER = "user"
    RETUNE = "retune"
    CANARY = "canary"
