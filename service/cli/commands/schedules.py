"""`shardtune schedules` and `shardtune retunes`: manage those of a running service."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from shardtune.api_schemas.access.keys import PROJECT_PATTERN
from shardtune.api_schemas.retuning.retunes import Retune, RetunePage, RetuneState
from shardtune.api_schemas.retuning.schedules import Schedule, SchedulePage, ScheduleSpec, Trigger
from shardtune.service.cli.connection import connect
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
    from shardtune.service.wording import retune_words
else:
    study_file = LazyModule("shardtune.service.cli.study_file")
    retune_words = LazyModule("shardtune.service.wording.retune_words")

app = typer.Typer(help="Manage schedules, which measure recommendations again within a budget.", no_args_is_help=True)
retunes_app = typer.Typer(
    help="List and cancel retunes (repeated measurements of recommendations).", no_args_is_help=True
)

RetuneId = Annotated[str, typer.Argument(help="Retune id, as `retunes list` shows it.")]
ScheduleId = Annotated[str, typer.Argument(help="Schedule id, as `schedules list` shows it.")]
Project = Annotated[
    str | None, typer.Option(help=f"Project, for keys with access to every project ({PROJECT_PATTERN}).")
]


@app.command("create")
def create(
    name: Annotated[str, typer.Option(help="Name.")],
    trigger: Annotated[Trigger, typer.Option(help="Trigger; every schedule can also be run by hand.")] = Trigger.CRON,
    cron: Annotated[
        str | None,
        typer.Option(
            help="Cron expression (minute hour day-of-month month day-of-week), such as '0 3 * * 0'; for drift: when canaries are sent."
        ),
    ] = None,
    timezone: Annotated[str, typer.Option(help="IANA time zone of --cron and --window.")] = "UTC",
    target_key: Annotated[
        list[str] | None, typer.Option(help="Key of a tuning target; repeat the option for several (default: all).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only tuning targets with this model.")] = None,
    overlap: Annotated[
        str, typer.Option(help="Action on a tick while retunes of the previous tick run: skip or queue.")
    ] = "skip",
    misfire_grace_s: Annotated[float, typer.Option(help="Seconds after which a late tick counts as missed.")] = 300,
    catch_up: Annotated[str, typer.Option(help="Missed ticks to run later: none, one (merged), or all.")] = "one",
    catch_up_limit: Annotated[
        int, typer.Option(help="Maximum number of missed ticks to run with --catch-up all, newest first.")
    ] = 3,
    window: Annotated[
        list[str] | None, typer.Option(help="Time window in which its retunes may start, such as 22:00-06:00.")
    ] = None,
    planned_gpu_hours: Annotated[
        float | None, typer.Option(help="GPU-hours of the training run that each tuning target is for.")
    ] = None,
    likely_gain: Annotated[float | None, typer.Option(help="Expected speed-up, such as 0.05.")] = None,
    max_gpu_seconds: Annotated[float | None, typer.Option(help="Maximum GPU-seconds of one retune.")] = None,
    project: Project = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a schedule."""
    # Validated as a whole: each wrong option becomes a line, where keyword arguments would stop at their types.
    values: dict[str, Any] = {
        "name": name,
        "trigger": trigger,
        "cron": cron,
        "timezone": timezone,
        "targets": {"target_keys": target_key or [], "model": model},
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
        # Validated here, too: the messages name fields of a file, and need no service.
        spec = ScheduleSpec.model_validate(values)
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    with connect(service, key_file) as client:
        _print_schedule(client.create_schedule(spec, project), as_json)


@app.command("list")
def list_schedules(
    service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Print schedules, newest first."""
    with connect(service, key_file) as client:
        # The API's own page, so that --json prints the object that the API answers.
        page = SchedulePage(schedules=tuple(client.schedules()))
    _print_value(page, "\n".join(map(_schedule_line, page.schedules)) or "no schedules", as_json)


@app.command("show")
def show(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print a schedule and the results of its last ticks."""
    with connect(service, key_file) as client:
        schedule = client.schedule(schedule_id)
    ticks = [f"  {retune_words.tick(tick, schedule.timezone)}" for tick in schedule.last_ticks] or ["  no tick yet"]
    _print_value(schedule, "\n".join([_schedule_line(schedule), *ticks]), as_json)


@app.command("pause")
def pause(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Pause a schedule; ticks in the meantime are skipped, not run later."""
    _change_schedule(schedule_id, "pause", service, key_file, as_json)


@app.command("resume")
def resume(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Resume a schedule with its next tick."""
    _change_schedule(schedule_id, "resume", service, key_file, as_json)


@app.command("run")
def run(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a schedule now: measure its tuning targets again."""
    _change_schedule(schedule_id, "run", service, key_file, as_json)


@app.command("delete")
def delete(
    schedule_id: ScheduleId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a schedule and its ticks."""
    with connect(service, key_file) as client:
        # Fetched before: a service answers a deletion with an empty body, and --json prints the deleted schedule.
        schedule = client.schedule(schedule_id)
        client.delete_schedule(schedule_id)
    _print_value(schedule, f"{schedule_id} is deleted", as_json)


@retunes_app.command("list")
def list_retunes(
    target_key: Annotated[str | None, typer.Option(help="Only retunes of this tuning target.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Only retunes of this schedule.")] = None,
    state: Annotated[RetuneState | None, typer.Option(help="Only retunes in this state.")] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print retunes, newest first."""
    with connect(service, key_file) as client:
        page = RetunePage(retunes=tuple(client.retunes(target_key=target_key, schedule_id=schedule, state=state)))
    _print_value(page, "\n".join(map(_retune_line, page.retunes)) or "no retunes", as_json)


@retunes_app.command("show")
def show_retune(
    retune_id: RetuneId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print a retune with its cause, cost and outcome."""
    with connect(service, key_file) as client:
        retune = client.retune(retune_id)
    _print_value(retune, _retune_text(retune), as_json)


@retunes_app.command("cancel")
def cancel_retune(
    retune_id: RetuneId,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a queued or running retune; its recommendation does not change."""
    with connect(service, key_file) as client:
        retune = client.retune(retune_id, "cancel")
    _print_value(retune, _retune_text(retune), as_json)


def _change_schedule(schedule_id: str, action: str, service: str, key_file: KeyFile, as_json: bool) -> None:
    with connect(service, key_file) as client:
        _print_schedule(client.schedule(schedule_id, action), as_json)


def _print_schedule(schedule: Schedule, as_json: bool) -> None:
    _print_value(schedule, _schedule_line(schedule), as_json)


def _print_value(value: BaseModel, text: str, as_json: bool) -> None:
    print(value.model_dump_json() if as_json else text)


def _schedule_line(schedule: Schedule) -> str:
    last = f"; last {retune_words.tick(schedule.last_ticks[0], schedule.timezone)}" if schedule.last_ticks else ""
    upcoming = retune_words.next_run(schedule, datetime.now(UTC))
    return f"{schedule.schedule_id}  {schedule.name}  {retune_words.trigger_text(schedule)}; next: {upcoming}{last}"


def _retune_text(retune: Retune) -> str:
    studies = [f"  study {name}" for name in (retune.challenge_study_id, retune.search_study_id) if name is not None]
    reason = [f"  {retune.reason}"] if retune.reason else []
    return "\n".join([_retune_line(retune), *reason, *studies])


def _retune_line(retune: Retune) -> str:
    return (
        f"{retune.retune_id}  {retune.target_key[:12]}  {retune_words.cause(retune.cause, retune.changed_fields)}  "
        f"{retune_words.outcome(retune)}  {retune_words.ledger(retune)}"
    )
