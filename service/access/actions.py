"""Actions of the service, and the scopes that they require: the one table behind the API's routes and pages' forms."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from shardtune.api_schemas.access.keys import Scope
from shardtune.service.http.errors import Forbidden
from shardtune.service.process.principal import Principal


class Action(StrEnum):
    """Action that a route or a form performs, as `noun.verb`."""

    READ_STUDIES = "studies.read"
    """Read studies with their schedules, retunes and canaries, the workers and fingerprints that the sender may see,
    and the pages.
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
    """Run a trial once more under the profiler."""
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
    """Act as a worker: register, ask for work, renew, report."""
    DRAIN_WORKER = "workers.drain"
    RESUME_WORKER = "workers.resume"
    FREE_WORKER = "workers.free"
    FORGET_WORKER = "workers.forget"
    READ_KEYS = "keys.read"
    """Read keys, projects and webhooks: the settings page."""
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
    Scope.ADMIN: tuple(Action),
}

SCOPES: Mapping[Action, tuple[Scope, ...]] = {
    action: tuple(scope for scope, actions in _BY_SCOPE.items() if action in actions) for action in Action
}
"""Scopes by action; a key needs one of them. `admin` is always among them."""


def scopes_of(action: str) -> tuple[Scope, ...]:
    """Scopes that suffice for an action: the narrower ones, or `admin` if nothing else does."""
    scopes = SCOPES[Action(action)]
    return tuple(scope for scope in scopes if scope is not Scope.ADMIN) or scopes


def check_scope(principal: Principal, action: Action) -> None:
    """Check that the sender may perform an action.

    Raises:
        Forbidden: names the missing scope.
    """
    if not principal.scopes.isdisjoint(SCOPES[action]):
        return
    # Scopes are listed narrowest first, so the error names the least that would suffice.
    scope = SCOPES[action][0]
    raise Forbidden("scope_missing", f"this needs a key with the scope {scope}; key {principal.name} lacks it")
