"""Each code has its words: a code that the words forgot is named here, and fails no page of a user's."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, get_args

import pytest

from shardtune import api_schemas
from shardtune.api_schemas.access.keys import Scope
from shardtune.api_schemas.machines.fingerprints import Effect, Freshness
from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.notifications.webhooks import DeliveryState
from shardtune.api_schemas.recommendations.best import (
    ConfidenceLevel,
    DecisionAction,
    RecommendationState,
    UserDecision,
)
from shardtune.api_schemas.retuning.canaries import CanaryRole, CanaryVerdict
from shardtune.api_schemas.retuning.costs import CostCause
from shardtune.api_schemas.retuning.retunes import RetuneCause, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import CatchUp, Overlap, ScheduleSpec, TickKind, TickState, Trigger
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.recipes import LossComparison, LossVerdict
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.studies.verdicts import SustainedOutcome, SustainedSpeed
from shardtune.api_schemas.training.step_trace import TraceFailure, TraceFailureCode
from shardtune.api_schemas.trials.diagnosis import FindingKind, RemedyResult
from shardtune.api_schemas.trials.expected_parts import ExpectedName
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialOrigin, TrialState
from shardtune.service.pages.views import purpose, recommendation, target_speed, words
from shardtune.service.wording import diagnosis_words, event_words, recipe_words, retune_words, study_words
from shardtune.service.wording.answers import sustained_speed
from shardtune.service.wording.answers.verdict_line import verdict_text
from shardtune.service.wording.progress import activity_words
from tests.support.values.synthetic_studies import contender_of

BEST = contender_of(TrialConfig(strategy=DdpConfig()))
EVENT: dict[str, Any] = {
    "model": "llama-tiny", "reason": "the search ended", "phase": "search", "trial_number": 3, "state": "failed",
    "description": "DDP, micro batch 1", "tokens_per_s_per_gpu": 1000.0, "origin": "default", "purpose": "validation",
    "end": "complete", "message": "rank 1 was lost",
}  # fmt: skip


def _verdict(code: Verdict) -> str:
    return verdict_text(StudyResult(best=BEST, baseline=BEST, speedup=None, verdict=code))


def _loss(code: LossVerdict) -> str:
    return recipe_words.loss_text(
        LossComparison(
            steps=200, compared_steps=100, loss=3.2, stated_loss=2.9, difference=0.3, interval=(0.2, 0.4),
            most_difference=0.02, verdict=code,
        )
    )  # fmt: skip


def _resume(code: ResumeOutcome) -> str:
    figures: dict[str, Any] = {
        "steps_before": 3,
        "steps_after": 3,
        "checkpoint_bytes": 1 << 20,
        "save_s": 0.1,
        "load_s": 0.1,
    }
    return study_words.resume_check_text(ResumeCheck(trial_number=1, outcome=code, reason="of this", **figures))


def _sustained(code: SustainedOutcome) -> str:
    speeds = {"compared_tokens_per_s_per_gpu": 2.0, "tokens_per_s_per_gpu": 1.0, "duration_s": 120.0}
    speed = SustainedSpeed(trial_number=1, outcome=code, reason="of this", **speeds)
    result = StudyResult(best=BEST, baseline=BEST, speedup=None, verdict=Verdict.CONFIRMED, sustained=speed)
    return sustained_speed.reasons(result)[0].text


def _trigger(code: Trigger) -> str:
    has_times = code in (Trigger.CRON, Trigger.DRIFT)
    return retune_words.trigger_text(ScheduleSpec(name="x", trigger=code, cron="0 3 * * 0" if has_times else None))


def _remedy(code: Any) -> str:
    runs: dict[str, Any] = {"pairs": 9, "speedup": 1.1, "ci95": (1.0, 1.2), "why": "it crashed"}
    return diagnosis_words.remedy_in_words(RemedyResult(study_id="s", outcome=code, **runs))


def _event(code: EventType) -> str:
    # An event that a study's log leaves out is known to it by that.
    return event_words.event_sentence(code, EVENT) if code in event_words.SHOWN else "left out"


ENUMS: Mapping[type[StrEnum], Callable[[Any], str]] = {
    AttemptEnd: words.ENDS.__getitem__,
    CanaryVerdict: target_speed.CANARY_TEXTS.__getitem__,
    DecisionAction: recommendation.DECISION_TEXTS.__getitem__,
    EventType: _event,
    FailureKind: words.FAILURES.__getitem__,
    LossVerdict: _loss,
    ResumeOutcome: _resume,
    RetuneCause: retune_words.cause,
    RetuneOutcome: lambda code: retune_words.newest_outcome(RetuneState.ENDED, code),
    RetuneState: lambda code: retune_words.newest_outcome(code, None),
    RunPurpose: study_words.run_name,
    SustainedOutcome: _sustained,
    StudyState: words.STATE_TONES.__getitem__,
    SystemStudyKind: purpose.KIND_TEXTS.__getitem__,
    TrialOrigin: words.ORIGINS.__getitem__,
    TrialState: words.TRIAL_TONES.__getitem__,
    Trigger: _trigger,
    Verdict: _verdict,
}
"""What people read, or see as a colour, by the kind of code."""
OWN_WORDS: set[type[StrEnum]] = {
    *(CanaryRole, CatchUp, ConfidenceLevel, CostCause, DeliveryState, Effect, Freshness, Overlap, RecommendationState),
    *(Scope, StudyPurpose, TickKind, TickState, UserDecision),
    # A sentence about a phase says what runs, and depends on the study: `test_event_words` reads each.
    StudyPhase,
    # The sentence of a reason is written where the reason arises, with its figures.
    StudyReasonCode,
}
"""Kinds whose codes people read as they are, and kinds whose sentence another place makes."""
LITERALS: Mapping[str, tuple[Iterable[str], Callable[[Any], str]]] = {
    "ExpectedName": (get_args(ExpectedName), diagnosis_words.EXPECTED_WORDS.__getitem__),
    "FindingKind": (get_args(FindingKind), diagnosis_words.FINDING_TITLES.__getitem__),
    "Progress.phase": (
        get_args(Progress.model_fields["phase"].annotation),
        lambda code: activity_words.describe_step(Progress(phase=code)),
    ),
    "RemedyResult.outcome": (get_args(RemedyResult.model_fields["outcome"].annotation), _remedy),
    "TraceFailureCode": (
        get_args(TraceFailureCode),
        lambda code: TraceFailure(code=code, message="it reads values").note,
    ),
}


def unworded(codes: Iterable[Any], words_of: Callable[[Any], str]) -> list[str]:
    """Codes for which no words are found, or empty ones."""
    missing = []
    for code in codes:
        try:
            text = words_of(code)
        except (KeyError, ValueError):
            text = ""
        if not text:
            missing.append(str(code))
    return missing


def _kinds() -> set[type[StrEnum]]:
    modules = [
        importlib.import_module(m.name) for m in pkgutil.walk_packages(api_schemas.__path__, "shardtune.api_schemas.")
    ]
    values = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {value for value in values if issubclass(value, StrEnum) and value is not StrEnum}


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_every_code_has_words(kind: type[StrEnum]) -> None:
    assert unworded(kind, ENUMS[kind]) == []


@pytest.mark.parametrize("name", LITERALS)
def test_every_value_of_a_closed_list_has_words(name: str) -> None:
    codes, words_of = LITERALS[name]
    assert unworded(codes, words_of) == []


def test_no_kind_of_code_is_forgotten() -> None:
    assert _kinds() == {*ENUMS, *OWN_WORDS}


@pytest.mark.parametrize("kind", [kind for kind in ENUMS if kind is not EventType], ids=lambda kind: kind.__name__)
def test_an_unknown_code_is_named(kind: type[StrEnum]) -> None:
    class Planted(StrEnum):
        UNKNOWN = "unknown_code"

    assert unworded(Planted, ENUMS[kind]) == ["unknown_code"]
