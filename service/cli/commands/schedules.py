"""`shardtune schedules` and `shardtune retunes`: of a running service."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from shardtune.api_schemas.access.keys import PROJECT_PATTERN
from shardtune.api_schemas.retuning.retunes import Retune, RetunePage, RetuneState
from shardtune.api_schemas.retuning.schedules import Schedule, SchedulePage, ScheduleSpec, Trigger
from shardtune.service.cli.connection import running
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
    from shardtune.service.wording import retune_words
else:
    study_file = LazyModule("shardtune.service.cli.study_file")
    retune_words = LazyModule("shardtune.service.wording.retune_words")

app = typer.Typer(help="When recommendations are measured again, and what that may cost.", no_args_is_help=True)
retunes_app = typer.Typer(help="What was, is and will be measured again.", no_args_is_help=True)

RetuneId = Annotated[str, typer.Argument(help="A retune's id, as `retunes list` shows it.")]
ScheduleId = Annotated[str, typer.Argument(help="A schedule's id, as `schedules list` shows it.")]
Project = Annotated[str | None, typer.Option(help=f"For keys that see every project ({PROJECT_PATTERN}).")]


@app.command("create")
def create(
    name: Annotated[str, typer.Option(help="What it is for.")],
    trigger: Annotated[Trigger, typer.Option(help="What makes it run; a person always can.")] = Trigger.CRON,
    cron: Annotated[
        str | None,
        typer.Option(
            help="minute hour day-of-month month day-of-week, such as '0 3 * * 0'; of drift: when canaries are sent."
        ),
    ] = None,
    timezone: Annotated[str, typer.Option(help="IANA name; of --cron and --window.")] = "UTC",
    target_key: Annotated[list[str] | None, typer.Option(help="Only this case; once per case. Without: all.")] = None,
    model: Annotated[str | None, typer.Option(help="Only cases of this model.")] = None,
    overlap: Annotated[str, typer.Option(help="While retunes of the tick before run: skip or queue.")] = "skip",
    misfire_grace_s: Annotated[float, typer.Option(help="A tick noticed later than this is a missed one.")] = 300,
    catch_up: Annotated[
        str, typer.Option(help="Missed ticks that are made up for: none, one (for all), or all.")
    ] = "one",
    catch_up_limit: Annotated[int, typer.Option(help="With --catch-up all: at most so many, the newest.")] = 3,
    window: Annotated[list[str] | None, typer.Option(help="When its retunes may start, such as 22:00-06:00.")] = None,
    planned_gpu_hours: Annotated[
        float | None, typer.Option(help="Length of the training run each case is for.")
    ] = None,
    likely_gain: Annotated[float | None, typer.Option(help="Gain to reckon with, such as 0.05.")] = None,
    max_gpu_seconds: Annotated[float | None, typer.Option(help="What one retune may use.")] = None,
    project: Project = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule."""
    values: dict[str, Any] = {
        "name": name,
        "trigger": trigger,
        "cron": cron,
        "timezone": timezone,
        "cases": {"target_keys": target_key or [], "model": model},
        "overlap": overlap,
        "misfire_grace_s": misfire_grace_s,
        "catch_up": catch_up,
        "catch_up_limit": catch_up_limit,
        "windows": window or [],
        "planned_gpu_hours": planned_gpu_hours,
        "likely_gain": likely_gain,
        "max_gpu_seconds": max_gpu_seconds,
    }
    try:
        spec = ScheduleSpec.model_validate(values)
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    with running(service, key_file) as client:
        _print(client.create_schedule(spec, project), as_json)


@app.command("list")
def list_schedules(
    service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Print the schedules, newest first."""
    with running(service, key_file) as client:
        found = SchedulePage(schedules=tuple(client.schedules()))
    _show(found, "\n".join(map(_line, found.schedules)) or "no schedules", as_json)


@app.command("show")
def show(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one schedule and what became of its last ticks."""
    with running(service, key_file) as client:
        found = client.schedule(schedule_id)
    ticks = [f"  {retune_words.tick(tick, found.timezone)}" for tick in found.last_ticks] or ["  no tick yet"]
    _show(found, "\n".join([_line(found), *ticks]), as_json)


@app.command("pause")
def pause(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """No ticks until it is resumed; they are not made up for."""
    _act(schedule_id, "pause", service, key_file, as_json)


@app.command("resume")
def resume(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Go on with the next tick after now."""
    _act(schedule_id, "resume", service, key_file, as_json)


@app.command("run")
def run(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Have its cases measured now."""
    _act(schedule_id, "run", service, key_file, as_json)


@app.command("delete")
def delete(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget a schedule and its ticks."""
    with running(service, key_file) as client:
        found = client.schedule(schedule_id)
        client.delete_schedule(schedule_id)
    _show(found, f"{schedule_id} is deleted", as_json)


@retunes_app.command("list")
def list_retunes(
    target_key: Annotated[str | None, typer.Option(help="Only of this case.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Only those this schedule asked for.")] = None,
    state: Annotated[RetuneState | None, typer.Option(help="Only this state.")] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print retunes, newest first."""
    with running(service, key_file) as client:
        found = RetunePage(retunes=tuple(client.retunes(target_key=target_key, schedule_id=schedule, state=state)))
    _show(found, "\n".join(map(_retune_line, found.retunes)) or "no retunes", as_json)


@retunes_app.command("show")
def show_retune(
    retune_id: RetuneId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one retune: why, its cost, and what came of it."""
    with running(service, key_file) as client:
        found = client.retune(retune_id)
    _show(found, _retune_text(found), as_json)


@retunes_app.command("cancel")
def cancel_retune(
    retune_id: RetuneId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """End a queued or running retune; what is served stays as it is, stale where it was."""
    with running(service, key_file) as client:
        found = client.retune(retune_id, "cancel")
    _show(found, _retune_text(found), as_json)


def _act(schedule_id: str, action: str, service: str, key_file: KeyFile, as_json: bool) -> None:
    with running(service, key_file) as client:
        _print(client.schedule(schedule_id, action), as_json)


def _print(schedule: Schedule, as_json: bool) -> None:
    _show(schedule, _line(schedule), as_json)


def _show(value: BaseModel, text: str, as_json: bool) -> None:
    print(value.model_dump_json() if as_json else text)


def _line(schedule: Schedule) -> str:
    last = f"; last {retune_words.tick(schedule.last_ticks[0], schedule.timezone)}" if schedule.last_ticks else ""
    upcoming = retune_words.next_run(schedule, datetime.now(UTC))
    return f"{schedule.schedule_id}  {schedule.name}  {retune_words.when(schedule)}; next: {upcoming}{last}"


def _retune_text(retune: Retune) -> str:
    studies = [f"  study {name}" for name in (retune.challenge_study_id, retune.search_study_id) if name is not None]
    reason = [f"  {retune.reason}"] if retune.reason else []
    return "\n".join([_retune_line(retune), *reason, *studies])


def _retune_line(retune: Retune) -> str:
    return (
        f"{retune.retune_id}  {retune.target_key[:12]}  {retune_words.cause(retune.cause, retune.changed_fields)}  "
        f"{retune_words.outcome(retune)}  {retune_words.ledger(retune)}"
    )
