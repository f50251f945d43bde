"""Sentences of a study's log: each event that the log reads has one, with its cause."""

import pytest

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.trial import AttemptEnd
from shardtune.service.wording.event_words import SHOWN, event_sentence

DATA = {
    "model": "llama-tiny", "reason": "the search ended", "phase": "search", "trial_number": 3, "state": "failed",
    "description": "DDP, micro batch 1", "tokens_per_s_per_gpu": 1000.0, "origin": "default", "purpose": "validation",
    "end": "complete", "message": "rank 1\nwas lost",
}  # fmt: skip


@pytest.mark.parametrize("kind", SHOWN)
def test_every_event_of_the_log_has_a_sentence(kind: EventType) -> None:
    sentence = event_sentence(kind, DATA)
    assert sentence and "\n" not in sentence and "None" not in sentence


def test_a_repeated_run_is_named_with_its_cause() -> None:
    ended = DATA | {"end": "disturbed"}
    text = event_sentence(EventType.RUN_ENDED, ended, cause="other programs kept 1.2 CPU cores busy: clang")
    assert text == (
        "trial 3, validation run: discarded, because it was disturbed; it runs again "
        "(other programs kept 1.2 CPU cores busy: clang)"
    )


@pytest.mark.parametrize("end", AttemptEnd)
def test_every_end_of_an_attempt_can_be_told(end: AttemptEnd) -> None:
    assert isinstance(event_sentence(EventType.RUN_ENDED, DATA | {"end": end.value}), str)


@pytest.mark.parametrize("phase", StudyPhase)
def test_a_phase_says_only_what_runs_now(phase: StudyPhase) -> None:
    """A cancelled study ends in phase done, and an extension returns to the final comparison without a search."""
    sentence = event_sentence(EventType.STUDY_PHASE_CHANGED, DATA | {"phase": phase.value})
    assert "ended" not in sentence and "began" not in sentence and (not sentence) == (phase is StudyPhase.DONE)


def test_a_study_of_the_service_has_no_users_baseline() -> None:
    created = DATA | {"origin": "baseline"}
    assert event_sentence(EventType.TRIAL_CREATED, created).endswith("(your baseline)")
    assert event_sentence(EventType.TRIAL_CREATED, created, is_system=True).endswith("(the current recommendation)")
