"""Descriptions of schedules and retunes, shared by the command line and the pages."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.retuning.retunes import Retune, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import Schedule, ScheduleSpec, Tick, Trigger
from shardtune.service.schedules import cron
from shardtune.service.wording import study_words

_TRIGGER_TEXTS = {
    Trigger.FINGERPRINT: "when hardware or software changes",
    Trigger.DRIFT: "when a canary measures a slowdown",
    Trigger.MANUAL: "by hand only",
}
_STATE_TEXTS = {
    RetuneState.QUEUED: "to be measured again",
    RetuneState.RUNNING: "being measured again",
    RetuneState.ENDED: "measured again",
}
_OUTCOME_TEXTS = {
    RetuneOutcome.KEPT: "measured again and kept",
    RetuneOutcome.REPLACED: "measured again and replaced by a faster one",
    RetuneOutcome.INCONCLUSIVE: "measured again without a clear answer",
    RetuneOutcome.FAILED: "could not be measured again",
    RetuneOutcome.SKIPPED: "not measured again",
}
_CAUSE_TEXTS = {
    "fingerprint": "hardware or software changed",
    "schedule": "scheduled",
    "drift": "slower than before",
    "manual": "requested by hand",
}


def trigger_text(spec: ScheduleSpec) -> str:
    """Describe the trigger of a schedule: `At 03:00 on Sunday (Europe/Berlin)`."""
    if spec.cron is None:
        return _TRIGGER_TEXTS[spec.trigger]
    times = f"{cron.describe(spec.cron)} ({spec.timezone})"
    return times if spec.trigger is Trigger.CRON else f"{_TRIGGER_TEXTS[spec.trigger]}; canaries: {times}"


def next_run(schedule: Schedule, now: datetime) -> str:
    """Describe the time of a schedule's next run: `Sunday 22 November 2026, 03:00 CET, in 17 h 2 min`; or the reason
    why there is none.
    """
    if schedule.is_paused:
        return "paused"
    if schedule.next_tick_at is None:
        return _TRIGGER_TEXTS.get(schedule.trigger, "never again")
    # UTC stands beside the local time: logs and cluster maintenance plans are mostly in UTC.
    local = schedule.next_tick_at.astimezone(ZoneInfo(schedule.timezone))
    in_utc = "" if local.utcoffset() == timedelta() else f" ({schedule.next_tick_at.astimezone(UTC):%H:%M} UTC)"
    return f"{local:%A} {local.day} {local:%B %Y, %H:%M %Z}{in_utc}, {_time_until(schedule.next_tick_at, now)}"


def tick(ended: Tick, zone: str) -> str:
    """Describe a tick of a schedule in a time zone: `22 November 03:00 CET: requested 3 retunes`."""
    local = ended.at.astimezone(ZoneInfo(zone))
    return f"{local.day} {local:%B %H:%M %Z}{tick_result(ended)}"


def tick_result(ended: Tick) -> str:
    """Describe the result of a schedule's tick as text that follows the tick's time: ` by hand: requested 3
    retunes`."""
    by = " by hand" if ended.kind == "manual" else ""
    action: str = ended.state
    if ended.state == "started":
        action = f"requested {counted(ended.targets, 'retune')}"
    # Missed ticks are merged into one; without their number the history would show gaps.
    more = f", for {ended.merged_ticks} ticks" if ended.merged_ticks > 1 else ""
    why = f" ({ended.reason})" if ended.reason else ""
    return f"{by}: {action}{more}{why}"


def cause(kind: str, changed_fields: Sequence[str] = ()) -> str:
    """Describe the cause of a retune (repeated measurement of a recommendation): `hardware or software changed: driver,
    nccl`.
    """
    return _CAUSE_TEXTS[kind] + (f": {', '.join(changed_fields)}" if changed_fields else "")


def outcome(retune: Retune) -> str:
    """Describe the outcome of a retune, or the state of a retune that has not ended: `replaced (+12.3 % [10.1,
    14.6])`, `kept`, `running`."""
    if retune.state is not RetuneState.ENDED or retune.outcome is None:
        return retune.state.value
    if retune.outcome is RetuneOutcome.REPLACED and retune.gain is not None:
        low, high = retune.gain.ci95
        return f"replaced ({retune.gain.value - 1:+.1%} [{(low - 1) * 100:.1f}, {(high - 1) * 100:.1f}])"
    return retune.outcome.value


def newest_outcome(state: RetuneState, outcome: RetuneOutcome | None) -> str:
    """Describe the result of the newest retune (repeated measurement of a recommendation) of a tuning target: `measured
    again and kept`, `being measured again`.
    """
    return _OUTCOME_TEXTS[outcome] if state is RetuneState.ENDED and outcome is not None else _STATE_TEXTS[state]


def ledger(retune: Retune) -> str:
    """Compare the cost of a retune (repeated measurement of a recommendation) with its saving: `312 GPU-s; saves 1,440
    GPU-s of the declared 7,200`.
    """
    spent = f"{retune.gpu_seconds:,.0f} GPU-s"
    if retune.planned_gpu_seconds is None:
        return f"{spent}; saving unknown: no training run is declared"
    planned = f"the declared {retune.planned_gpu_seconds:,.0f}"
    if retune.expected_saving_gpu_seconds is None:
        return f"{spent}; saving unknown, of {planned}"
    return f"{spent}; saves {retune.expected_saving_gpu_seconds:,.0f} GPU-s of {planned}"


def _time_until(moment: datetime, now: datetime) -> str:
    remaining_s = (moment.astimezone(UTC) - now).total_seconds()
    return f"in {study_words.duration(remaining_s)}" if remaining_s > 0 else "due now"
