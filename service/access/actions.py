"""Actions of the service and the scopes that each requires: one table that API routes and page forms both use."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from shardtune.api_schemas.access.keys import Scope
from shardtune.service.http.errors import Forbidden
from shardtune.service.process.principal import Principal


class Action(StrEnum):
    """Action that a route or a form performs, named `noun.verb`."""

    READ_STUDIES = "studies.read"
    """Read studies with their schedules, retunes and canaries (repeated runs of recommended configurations), the
    workers and fingerprints visible to the sender, and the pages.
    """
    CREATE_STUDY = "studies.create"
    CLONE_STUDY = "studies.clone"
    EXTEND_STUDY = "studies.extend"
    PAUSE_STUDY = "studies.pause"
    RESUME_STUDY = "studies.resume"
    CANCEL_STUDY = "studies.cancel"
    DELETE_STUDY = "studies.delete"
    UNDELETE_STUDY = "studies.undelete"
    DIAGNOSE_TRIAL = "trials.diagnose"
    """Run a trial once more under the profiler, to diagnose where its step time goes."""
    READ_BEST = "best.read"
    RESOLVE_BEST = "best.resolve"
    PLAN_RUN = "best.plan"
    DECIDE_ON_BEST = "best.decide"
    """Pin, unpin, approve, reject or roll back a recommendation."""
    PREDICT = "predictions.create"
    CREATE_SCHEDULE = "schedules.create"
    CHANGE_SCHEDULE = "schedules.change"
    PAUSE_SCHEDULE = "schedules.pause"
    RESUME_SCHEDULE = "schedules.resume"
    RUN_SCHEDULE = "schedules.run"
    DELETE_SCHEDULE = "schedules.delete"
    CANCEL_RETUNE = "retunes.cancel"
    LEASE = "workers.lease"
    """Act as a worker: register, request work, renew a lease, report the end of a run."""
    DRAIN_WORKER = "workers.drain"
    RESUME_WORKER = "workers.resume"
    FREE_WORKER = "workers.free"
    FORGET_WORKER = "workers.forget"
    READ_KEYS = "keys.read"
    """Read API keys, projects and webhooks, as shown on the settings page."""
    CREATE_KEY = "keys.create"
    ROTATE_KEY = "keys.rotate"
    REVOKE_KEY = "keys.revoke"
    SET_PROJECT = "projects.set"
    CREATE_WEBHOOK = "webhooks.create"
    ENABLE_WEBHOOK = "webhooks.enable"
    DISABLE_WEBHOOK = "webhooks.disable"
    ROTATE_WEBHOOK = "webhooks.rotate"
    TEST_WEBHOOK = "webhooks.test"
    DELETE_WEBHOOK = "webhooks.delete"
    READ_METRICS = "metrics.read"


# One table for routes and forms: a key may do the same through the API and through the pages.
_BY_SCOPE: Mapping[Scope, Sequence[Action]] = {
    Scope.STUDIES_READ: (Action.READ_STUDIES, Action.PREDICT),
    Scope.CONFIGS_READ: (Action.READ_BEST, Action.PREDICT),
    Scope.STUDIES_WRITE: (
        Action.CREATE_STUDY,
        Action.CLONE_STUDY,
        Action.EXTEND_STUDY,
        Action.PAUSE_STUDY,
        Action.RESUME_STUDY,
        Action.CANCEL_STUDY,
        Action.DELETE_STUDY,
        Action.UNDELETE_STUDY,
        Action.DIAGNOSE_TRIAL,
        Action.RESOLVE_BEST,
        Action.PLAN_RUN,
        Action.CREATE_SCHEDULE,
        Action.CHANGE_SCHEDULE,
        Action.PAUSE_SCHEDULE,
        Action.RESUME_SCHEDULE,
        Action.RUN_SCHEDULE,
        Action.DELETE_SCHEDULE,
        Action.CANCEL_RETUNE,
    ),
    Scope.WORKERS_LEASE: (Action.LEASE,),
    Scope.METRICS_READ: (Action.READ_METRICS,),
    Scope.ADMIN: tuple(Action),
}

SCOPES: Mapping[Action, tuple[Scope, ...]] = {
    action: tuple(scope for scope, actions in _BY_SCOPE.items() if action in actions) for action in Action
}
"""Scopes that permit each action, of which an API key needs one. The scope `admin` permits every action."""


def scopes_of(action: str) -> tuple[Scope, ...]:
    """Scopes of which an API key needs one to perform an action. `admin` is among them only if no narrower scope
    permits the action.
    """
    scopes = SCOPES[Action(action)]
    return tuple(scope for scope in scopes if scope is not Scope.ADMIN) or scopes


def check_scope(principal: Principal, action: Action) -> None:
    """Check that the sender of a request has a scope that allows an action.

    Raises:
        Forbidden: names the missing scope.
    """
    if not principal.scopes.isdisjoint(SCOPES[action]):
        return
    # Scopes are listed narrowest first, so the error names the least that would suffice.
    scope = SCOPES[action][0]
    raise Forbidden("scope_missing", f"this needs a key with the scope {scope}; key {principal.name} lacks it")
