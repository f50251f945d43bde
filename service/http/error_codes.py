"""Every code an error can carry, with its status and meaning: the part of an error that programs may rely on."""

from typing import Any, NamedTuple

from pydantic import BaseModel, JsonValue


class Meaning(NamedTuple):
    """What a code stands for."""

    status: int
    text: str


class FieldError(BaseModel):
    """One mistake in a request."""

    field: str
    """Dotted path in the body, such as `workload.global_batch`."""
    value: JsonValue = None
    """What was sent; long values are cut."""
    message: str
    """What is wrong, and what to do."""


class Problem(BaseModel):
    """The body of every error response (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """Stable word for programs."""
    errors: list[FieldError] = []


CODES: dict[str, Meaning] = {
    "bad_request": Meaning(400, "the request cannot be read"),
    "protocol_version": Meaning(400, "the worker speaks another version of the protocol"),
    "key_required": Meaning(401, "the service has keys, or requires them, and the request carries none"),
    "key_invalid": Meaning(401, "the key is unknown, expired or revoked"),
    "scope_missing": Meaning(403, "the key lacks the scope this route needs"),
    "local_only": Meaning(
        403, "without any key the service answers its own machine only, no proxy and no other site's page"
    ),
    "not_found": Meaning(404, "no such route"),
    "unknown_study": Meaning(404, "no such study in the key's project"),
    "unknown_trial": Meaning(404, "no such trial in the study"),
    "unknown_diagnosis": Meaning(404, "the trial was never run under the profiler"),
    "unknown_trace": Meaning(404, "the rank's raw trace is not stored, or not any more"),
    "unknown_run": Meaning(404, "no such run"),
    "unknown_best": Meaning(404, "nothing is known of this case, or nothing was approved"),
    "awaits_approval": Meaning(404, "there is an answer for this case, and it waits for approval"),
    "unknown_recommendation": Meaning(404, "no such recommendation of this case"),
    "unknown_worker": Meaning(404, "no such worker of the key's project"),
    "unknown_fingerprint": Meaning(404, "no worker that the key may see ever had this fingerprint"),
    "unknown_webhook": Meaning(404, "no such webhook of the key's project"),
    "unknown_key": Meaning(404, "no such API key in the key's project"),
    "unknown_project": Meaning(404, "no such project, or not the key's"),
    "unknown_schedule": Meaning(404, "no such schedule in the key's project"),
    "unknown_retune": Meaning(404, "no such retune in the key's project"),
    "unknown_file": Meaning(404, "no such file in the export"),
    "unknown_action": Meaning(404, "no such action on a study"),
    "method_not_allowed": Meaning(405, "the route has no such method"),
    "not_acceptable": Meaning(406, "none of the accepted media types is offered"),
    "no_secret_key": Meaning(409, "webhooks need SHARDTUNE_SECRET_KEY, which is not set"),
    "too_many_webhooks": Meaning(409, "the project has as many webhooks as it may"),
    "too_many_workers": Meaning(409, "the project has registered as many workers as it may"),
    "too_many_schedules": Meaning(409, "the project has as many schedules as it may"),
    "study_ended": Meaning(409, "the study has ended"),
    "study_deleted": Meaning(409, "the study was deleted"),
    "study_running": Meaning(409, "the study still runs, and a profile beside it would disturb what it measures"),
    "trial_untraceable": Meaning(409, "the study's trials cannot be run under the profiler"),
    "study_waiting": Meaning(409, "the study still waits for a worker"),
    "nothing_to_extend": Meaning(409, "the larger budget would change nothing for the study"),
    "made_by_service": Meaning(409, "the service made the study for a retune or a canary, and decides what it runs"),
    "retune_ended": Meaning(409, "the retune has ended"),
    "retune_starting": Meaning(409, "the retune is just being started; try again in some seconds"),
    "study_unfinished": Meaning(409, "the study has no answer yet, or will have none"),
    "study_exists": Meaning(409, "the id is taken by another study"),
    "trial_unmeasured": Meaning(409, "the trial has no measurement"),
    "unknown_session": Meaning(409, "the session is not the worker's, or was replaced by a newer one"),
    "lease_lost": Meaning(409, "the attempt is not the caller's, or has ended"),
    "report_differs": Meaning(409, "the attempt was reported before with another content"),
    "worker_name_taken": Meaning(409, "another key of the project registered a worker under this name"),
    "worker_live": Meaning(409, "the worker is live, and would come back at once"),
    "key_revoked": Meaning(409, "the key was revoked or has expired"),
    "study_failed": Meaning(409, "the last study of this case failed"),
    "answer_rejected": Meaning(409, "the last study of this case has an answer, and it was rejected"),
    "nothing_to_decide": Meaning(409, "the decision does not apply to the present state"),
    "precondition_failed": Meaning(412, "If-Match names another version than the present one"),
    "content_too_large": Meaning(413, "the body has more bytes or values than its address takes"),
    "invalid_request": Meaning(422, "fields of the request are wrong; `errors` lists them"),
    "invalid_page_token": Meaning(422, "the page token is not one this list gave out"),
    "invalid_idempotency_key": Meaning(422, "the Idempotency-Key is empty, too long or not printable ASCII"),
    "idempotency_key_reused": Meaning(422, "the Idempotency-Key was used before for another request"),
    "no_worker": Meaning(422, "no live worker offers the cluster"),
    "model_not_allowed": Meaning(422, "no worker's owner allows this code of the user's own"),
    "unknown_model_type": Meaning(422, "the worker's transformers does not know the architecture"),
    "too_many_streams": Meaning(429, "this client, or all together, have as many event streams open as they may"),
    "quota_requests": Meaning(429, "the project's requests per minute are used up; see Retry-After"),
    "quota_registrations": Meaning(429, "the project registered too much that is new this minute; see Retry-After"),
    "quota_running_studies": Meaning(429, "the project runs as many studies as it may; see Retry-After"),
    "quota_gpu_seconds": Meaning(429, "the project's GPU-seconds of the day are used up; see Retry-After"),
    "internal_error": Meaning(500, "the service failed on this request; its log has the reason"),
    "database_busy": Meaning(503, "what the request needs is held by another, or a statement took too long; try again"),
    "database_unreachable": Meaning(503, "the database does not answer; try again"),
    "database_not_migrated": Meaning(503, "the database is at another revision than the service"),
}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that can answer with these codes, for its OpenAPI entry."""
    responses: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        status, text = CODES[code]
        known = responses.setdefault(status, {"model": Problem, "description": ""})
        known["description"] = f"{known['description']}\n\n`{code}`: {text}".strip()
    return responses
