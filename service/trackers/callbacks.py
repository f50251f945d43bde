"""Callbacks that a program gives to `Study.wait`: each gets every ended trial once, then the ended study."""

from collections.abc import Sequence
from typing import Protocol

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.trial import Trial


class StudyCallback(Protocol):
    """Interface of an object that receives a study's ended trials and its answer."""

    def trial_ended(self, study: Study, trial: Trial) -> None:
        """Receive a trial that has ended. The same trial is passed again if the study is waited for a second time."""
        ...

    def study_ended(self, study: Study) -> None:
        """Receive a study that has ended, with its result if it has one."""
        ...


class CallbackFeed:
    """Passes a study that is being waited for to its callbacks: each trial once after the trial's end, and the study
    at its own end.
    """

    def __init__(self, callbacks: Sequence[StudyCallback]) -> None:
        self._callbacks = callbacks
        self._sent: set[int] = set()

    def send(self, study: Study, trials: Sequence[Trial]) -> None:
        """Pass to the callbacks the trials that have ended since the last call, and the study if it has ended."""
        for trial in trials:
            if trial.state.is_open or trial.number in self._sent:
                continue
            for callback in self._callbacks:
                callback.trial_ended(study, trial)
            self._sent.add(trial.number)
        if not study.state.is_open:
            for callback in self._callbacks:
                callback.study_ended(study)
