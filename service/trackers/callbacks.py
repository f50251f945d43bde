"""Callbacks that a program gives to `Study.wait`: each gets every ended trial once, then the ended study."""

from collections.abc import Sequence
from typing import Protocol

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial


class StudyCallback(Protocol):
    """Receiver of a study's trials and of its answer."""

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """Take a trial that has ended. A trial may come again: when it was waited for before."""
        ...

    def study_ended(self, study: Study) -> None:
        """Take a study that has ended, with its result if it has one."""
        ...


class CallbackFeed:
    """Feeds callbacks while a study is followed, with each ended trial once."""

    def __init__(self, callbacks: Sequence[StudyCallback]) -> None:
        self._callbacks = callbacks
        self._sent: set[int] = set()

    def send(self, study: Study, trials: Sequence[Trial]) -> None:
        """Send the trials that have ended since the last call, and the study if it has ended."""
        for trial in trials:
            if trial.state.is_open or trial.number in self._sent:
                continue
            for callback in self._callbacks:
                callback.trial_ended(study, trial)
            self._sent.add(trial.number)
        if not study.state.is_open:
            for callback in self._callbacks:
                callback.study_ended(study)
