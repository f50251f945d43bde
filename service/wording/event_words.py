"""Sentences about the events of a study: what happened, and why."""

from collections.abc import Callable, Mapping
from typing import Any

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialReason
from shardtune.service.wording import change_words, study_words

Data = Mapping[str, Any]

_PHASES = {
    "model_summary": "the model's parameters and FLOPs are counted first",
    "search": "trials run, each measured by itself",
    "final_comparison": "the fastest trials and the baseline run in pairs, which decide",
}
"""Sentence for each phase of a study, by the phase's name. The phase `done` has no sentence, because the end of a
study is a separate event. The sentences also fit an extended study, which enters a phase again without repeating
earlier runs."""
_ORIGINS = {
    "baseline": "your baseline",
    "default": "a documented default, for comparison",
    "challenger": "a challenger of the recommendation",
}
_SYSTEM_ORIGINS = {"baseline": "the current recommendation"}
_ENDS = {
    # The cause follows: other programs, or a GPU whose clocks were lowered.
    AttemptEnd.DISTURBED: "discarded, because it was disturbed; it runs again",
    AttemptEnd.RELEASED: "returned by its worker; it runs again",
    AttemptEnd.PREEMPTED: "ended, because a user's study needs the worker; it runs again",
    AttemptEnd.WORKER_LOST: "lost with its worker; it runs again",
    AttemptEnd.CANCELLED: "cancelled",
}
SHOWN = (
    EventType.STUDY_CREATED,
    EventType.STUDY_STARTED,
    EventType.STUDY_PHASE_CHANGED,
    EventType.STUDY_PAUSED,
    EventType.STUDY_RESUMED,
    EventType.STUDY_EXTENDED,
    EventType.STUDY_BEST_CHANGED,
    EventType.STUDY_COMPLETE,
    EventType.STUDY_CANCELLED,
    EventType.STUDY_FAILED,
    EventType.TRIAL_CREATED,
    EventType.TRIAL_INFEASIBLE,
    EventType.TRIAL_FAILED,
    EventType.TRIAL_PRUNED,
    EventType.RUN_ENDED,
)
"""Types of events that a study's log describes in a sentence. Events of other types are left out: they would only
repeat these."""


def event_sentence(
    kind: EventType, data: Data, reason: TrialReason | None = None, cause: str = "", is_system: bool = False
) -> str:
    """Describe an event of a study in a sentence; empty for an event that adds nothing to the log.

    `reason`: the sampler's reason for the event's trial. `cause`: message of the failure that ended the event's run.
    `is_system`: whether the service started the study itself, so that the baseline is the current recommendation,
    not the user's.
    """
    if kind is EventType.TRIAL_CREATED:
        return _created(data, reason, _ORIGINS | _SYSTEM_ORIGINS if is_system else _ORIGINS)
    if kind is EventType.RUN_ENDED:
        return _run_ended(data, cause)
    return _SENTENCES[kind](data)


def _created(data: Data, reason: TrialReason | None, origins: Mapping[str, str]) -> str:
    text = f"trial {data['trial_number']} chosen: {data['description']}"
    if data["origin"] in origins:
        return f"{text} ({origins[data['origin']]})"
    if reason is None:
        return text
    return f"{text} ({change_words.describe_reason(reason)})"


def _run_ended(data: Data, cause: str) -> str:
    if data["end"] is None or data["purpose"] == RunPurpose.TRACE:
        return ""
    trial = "" if data["trial_number"] is None else f"trial {data['trial_number']}, "
    name = f"{trial}{study_words.run_name(RunPurpose(data['purpose']))}"
    if data["end"] == AttemptEnd.COMPLETE:
        speed = data["tokens_per_s_per_gpu"]
        return f"{name}: {study_words.rate(speed)} tokens/s/GPU" if speed else f"{name}: complete"
    end = _ENDS.get(AttemptEnd(data["end"]))
    # Other ends are failures of the trial, whose own event names them.
    if end is None:
        return ""
    return f"{name}: {end}" + (f" ({' '.join(cause.split())})" if cause else "")


def _with_reason(text: str) -> Callable[[Data], str]:
    return lambda data: text + (f": {data['reason']}" if data.get("reason") else "")


def _failed(data: Data) -> str:
    message = " ".join(str(data.get("message", "")).split())
    verb = "could not be measured" if data["state"] == "failed" else "cannot be used"
    return f"trial {data['trial_number']} {verb}" + (f": {message}" if message else "")


def _best_changed(data: Data) -> str:
    speed = study_words.rate(data["tokens_per_s_per_gpu"])
    return f"trial {data['trial_number']} leads: {data['description']}, {speed} tokens/s/GPU (not confirmed yet)"


_SENTENCES: Mapping[EventType, Callable[[Data], str]] = {
    EventType.STUDY_CREATED: lambda data: f"the study of {data['model']} was created",
    EventType.STUDY_STARTED: _with_reason("a worker has come, and the study started"),
    EventType.STUDY_PHASE_CHANGED: lambda data: _PHASES.get(data["phase"], ""),
    EventType.STUDY_PAUSED: _with_reason("paused"),
    EventType.STUDY_RESUMED: _with_reason("the study goes on"),
    EventType.STUDY_EXTENDED: lambda _: "the budget was raised",
    EventType.STUDY_BEST_CHANGED: _best_changed,
    EventType.STUDY_COMPLETE: _with_reason("complete"),
    EventType.STUDY_CANCELLED: _with_reason("cancelled"),
    EventType.STUDY_FAILED: _with_reason("failed"),
    EventType.TRIAL_INFEASIBLE: _failed,
    EventType.TRIAL_FAILED: _failed,
    EventType.TRIAL_PRUNED: lambda data: f"trial {data['trial_number']} ended early: it cannot become the fastest",
}
