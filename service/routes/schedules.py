"""Routes of schedules, which request retunes (repeated measurements of recommendations)."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from shardtune.api_schemas.retuning.schedules import Schedule, SchedulePage, ScheduleSpec, TickPage
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http import etags
from shardtune.service.http.error_codes import problems
from shardtune.service.http.etags import IfMatchParam
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep
from shardtune.service.routes.studies import ProjectParam
from shardtune.service.schedules import manage


class _Id(StringConvertor):
    """URL convertor that matches schedule ids, which contain no colon."""

    regex = "[^/:]+"


# With the default convertor, another method on `/{schedule_id}:pause` would change a schedule named `…:pause`;
# it must be 405.
register_url_convertor("schedule", _Id())
router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

READ = [requires(Action.READ_STUDIES)]
_UNKNOWN = problems("unknown_schedule")
_CHANGED = problems("unknown_schedule", "precondition_failed")

ScheduleIdParam = Annotated[str, Path(description="Id of the schedule.", max_length=32)]


@router.post(
    "",
    status_code=201,
    dependencies=[requires(Action.CREATE_SCHEDULE)],
    responses=problems("unknown_project", "too_many_schedules"),
)
def create_schedule(
    context: ContextDep, spec: ScheduleSpec, once: IdempotencyDep, response: Response, project: ProjectParam = None
) -> Schedule:
    """Create a schedule of retunes (repeated measurements of recommendations): at fixed times, on a change of hardware
    or software, or by hand.
    """
    schedule = manage.create_schedule(context, spec, once, project)
    response.headers["Location"] = f"/v1/schedules/{schedule.schedule_id}"
    response.headers["ETag"] = etags.tag_of(schedule)
    return schedule


@router.get("", dependencies=READ, responses=problems("invalid_page_token"))
def list_schedules(
    context: ContextDep, project: ProjectParam = None, limit: LimitParam = 50, page_token: PageTokenParam = None
) -> SchedulePage:
    """List schedules of retunes (repeated measurements of recommendations), newest first."""
    return manage.list_schedules(context, project, page_token, limit)


@router.get("/{schedule_id:schedule}", dependencies=READ, responses=_UNKNOWN | etags.UNCHANGED, response_model=Schedule)
def read_schedule(
    context: ContextDep, schedule_id: ScheduleIdParam, request: Request, response: Response
) -> Schedule | Response:
    """Read one schedule, its next tick (moment at which it is due), and the results of its last ticks."""
    schedule = manage.read(context, schedule_id)
    return etags.set_etag(request, response, schedule) or schedule


@router.get("/{schedule_id}/ticks", dependencies=READ, responses=_UNKNOWN | problems("invalid_page_token"))
def list_ticks(
    context: ContextDep, schedule_id: ScheduleIdParam, limit: LimitParam = 50, page_token: PageTokenParam = None
) -> TickPage:
    """List the ticks of a schedule (moments at which it was due) with their results, newest first."""
    return manage.list_ticks(context, schedule_id, page_token, limit)


@router.put("/{schedule_id:schedule}", dependencies=[requires(Action.CHANGE_SCHEDULE)], responses=_CHANGED)
def put_schedule(
    context: ContextDep,
    schedule_id: ScheduleIdParam,
    spec: ScheduleSpec,
    response: Response,
    if_match: IfMatchParam = None,
) -> Schedule:
    """Replace a schedule. Ticks (moments at which a schedule is due) from before the change are not run later."""
    schedule = manage.replace_schedule(context, schedule_id, spec, if_match)
    response.headers["ETag"] = etags.tag_of(schedule)
    return schedule


@router.delete(
    "/{schedule_id:schedule}",
    status_code=204,
    dependencies=[requires(Action.DELETE_SCHEDULE)],
    responses=_CHANGED,
)
def delete_schedule(context: ContextDep, schedule_id: ScheduleIdParam, if_match: IfMatchParam = None) -> None:
    """Delete a schedule and the record of its ticks (moments at which it was due). Its queued retunes (repeated
    measurements of recommendations) are skipped; running ones continue.
    """
    manage.delete(context, schedule_id, if_match)


@router.post("/{schedule_id}:pause", dependencies=[requires(Action.PAUSE_SCHEDULE)], responses=_CHANGED)
def pause_schedule(
    context: ContextDep, schedule_id: ScheduleIdParam, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Schedule:
    """Pause a schedule until it is resumed. What was due during the pause is not run later, and the schedule's queued
    retunes (repeated measurements of recommendations) are skipped.
    """
    return manage.pause(context, schedule_id, True, once, if_match)


@router.post("/{schedule_id}:resume", dependencies=[requires(Action.RESUME_SCHEDULE)], responses=_CHANGED)
def resume_schedule(
    context: ContextDep, schedule_id: ScheduleIdParam, once: IdempotencyDep, if_match: IfMatchParam = None
) -> Schedule:
    """Resume a paused schedule. Its next tick is the first moment after now at which it is due."""
    return manage.pause(context, schedule_id, False, once, if_match)


@router.post("/{schedule_id}:run", dependencies=[requires(Action.RUN_SCHEDULE)], responses=_UNKNOWN)
def run_schedule(context: ContextDep, schedule_id: ScheduleIdParam, once: IdempotencyDep) -> Schedule:
    """Measure the schedule's recommendations again now, whatever its trigger is, even while it is paused."""
    return manage.run_now(context, schedule_id, once)
