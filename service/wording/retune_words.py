"""Schedules and retunes in words, shared by the command line and the pages."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from shardtune.api_schemas.retuning.retunes import Retune, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import Schedule, ScheduleSpec, Tick, Trigger
from shardtune.service.schedules import cron
from shardtune.service.wording import study_words

_WHEN = {
    Trigger.FINGERPRINT: "when hardware or software changes",
    Trigger.DRIFT: "when a canary finds it slower",
    Trigger.MANUAL: "by hand only",
}
_STANDS = {
    RetuneState.QUEUED: "to be measured again",
    RetuneState.RUNNING: "being measured again",
    RetuneState.ENDED: "measured again",
}
_CAME_OF = {
    RetuneOutcome.KEPT: "measured again and kept",
    RetuneOutcome.REPLACED: "measured again, and a faster one was found",
    RetuneOutcome.INCONCLUSIVE: "measured again without a clear answer",
    RetuneOutcome.FAILED: "could not be measured again",
    RetuneOutcome.SKIPPED: "not measured again",
}
_CAUSES = {
    "fingerprint": "hardware or software changed",
    "schedule": "scheduled",
    "drift": "slower than it was",
    "manual": "asked for by hand",
}


def when(spec: ScheduleSpec) -> str:
    """What makes a schedule run: `At 03:00 on Sunday (Europe/Berlin)`."""
    if spec.cron is None:
        return _WHEN[spec.trigger]
    times = f"{cron.explain(spec.cron)} ({spec.timezone})"
    return times if spec.trigger is Trigger.CRON else f"{_WHEN[spec.trigger]}; canaries: {times}"


def next_run(schedule: Schedule, now: datetime) -> str:
    """`Sunday 22 November 2026, 03:00 CET, in 17 h 2 min`; or why there is none."""
    if schedule.is_paused:
        return "paused"
    if schedule.next_tick_at is None:
        return _WHEN.get(schedule.trigger, "never again")
    local = schedule.next_tick_at.astimezone(ZoneInfo(schedule.timezone))
    in_utc = "" if local.utcoffset() == timedelta() else f" ({schedule.next_tick_at.astimezone(UTC):%H:%M} UTC)"
    return f"{local:%A} {local.day} {local:%B %Y, %H:%M %Z}{in_utc}, {_until(schedule.next_tick_at, now)}"


def tick(found: Tick, zone: str) -> str:
    """`22 November 03:00 CET: asked for 3 recommendations`."""
    local = found.at.astimezone(ZoneInfo(zone))
    return f"{local.day} {local:%B %H:%M %Z}{tick_words(found)}"


def tick_words(found: Tick) -> str:
    """What came of a tick, to follow its time: ` by hand: asked for 3 recommendations`."""
    by = " by hand" if found.kind == "manual" else ""
    did: str = found.state
    if found.state == "started":
        did = f"asked for {found.cases} recommendation{'s' if found.cases != 1 else ''} to be measured again"
    more = f", for {found.stands_for} ticks" if found.stands_for > 1 else ""
    why = f" ({found.reason})" if found.reason else ""
    return f"{by}: {did}{more}{why}"


def cause(kind: str, changed_fields: Sequence[str] = ()) -> str:
    """Why a retune was asked for: `hardware or software changed: driver, nccl`."""
    return _CAUSES[kind] + (f": {', '.join(changed_fields)}" if changed_fields else "")


def outcome(retune: Retune) -> str:
    """`replaced (+12.3 % [10.1, 14.6])`, `kept`, `running`."""
    if retune.state is not RetuneState.ENDED or retune.outcome is None:
        return retune.state.value
    if retune.outcome is RetuneOutcome.REPLACED and retune.gain is not None:
        low, high = retune.gain.ci95
        return f"replaced ({retune.gain.value - 1:+.1%} [{(low - 1) * 100:.1f}, {(high - 1) * 100:.1f}])"
    return retune.outcome.value


def short_reason(outcome: RetuneOutcome | None, reason: str | None) -> str:
    """Why it ended so, without the outcome that stands beside it."""
    if outcome is RetuneOutcome.REPLACED:
        # The gain stands beside it, too.
        return (reason or "").partition("]")[2].lstrip(":; ") or reason or ""
    return (reason or "").removeprefix(f"{outcome.value}: " if outcome else "")


def came_of(state: RetuneState, outcome: RetuneOutcome | None) -> str:
    """What a case's newest retune means for it: `measured again and kept`, `being measured again`."""
    return _CAME_OF[outcome] if state is RetuneState.ENDED and outcome is not None else _STANDS[state]


def ledger(retune: Retune) -> str:
    """What it cost against what it saves: `312 GPU-s; saves 1,440 GPU-s of the declared 7,200`."""
    spent = f"{retune.gpu_seconds:,.0f} GPU-s"
    if retune.planned_gpu_seconds is None:
        return f"{spent}; no saving claimed: no run is declared"
    planned = f"the declared {retune.planned_gpu_seconds:,.0f}"
    if retune.expected_saving_gpu_seconds is None:
        return f"{spent}; saving not known, of {planned}"
    return f"{spent}; saves {retune.expected_saving_gpu_seconds:,.0f} GPU-s of {planned}"


def _until(moment: datetime, now: datetime) -> str:
    left_s = (moment.astimezone(UTC) - now).total_seconds()
    return f"in {study_words.duration(left_s)}" if left_s > 0 else "due now"
