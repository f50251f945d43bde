"""Error codes of the API, each with its HTTP status and meaning. Programs may rely on a code; messages may change."""

from typing import Any, NamedTuple

from pydantic import BaseModel, JsonValue


class Meaning(NamedTuple):
    """HTTP status and meaning of one error code."""

    status: int
    text: str


class FieldError(BaseModel):
    """Mistake in one field of a request."""

    field: str
    """Dotted path of the wrong field in the request body, such as `workload.global_batch`."""
    value: JsonValue = None
    """Value that the client sent in the wrong field; long values are cut."""
    message: str
    """Description of the mistake in the field, and the remedy."""


class Problem(BaseModel):
    """Body of every error response (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """Stable error code that programs can rely on."""
    errors: list[FieldError] = []


# The codes are part of the API: clients branch on them, so a code is never renamed; the texts may change.
CODES: dict[str, Meaning] = {
    "bad_request": Meaning(400, "The request cannot be read."),
    "protocol_version": Meaning(
        400,
        "The worker and the service speak no common version of the protocol; the message names the side to upgrade.",
    ),
    "key_required": Meaning(401, "An API key is required."),
    "key_invalid": Meaning(401, "The API key is unknown, expired or revoked."),
    "scope_missing": Meaning(403, "The API key lacks a scope that the route requires."),
    "local_only": Meaning(
        403,
        "The service has no API keys, and then serves only programs of its own user on its own machine, without a proxy.",
    ),
    "not_found": Meaning(404, "No such address."),
    "unknown_study": Meaning(404, "No such study in the key's project."),
    "unknown_trial": Meaning(404, "No such trial in the study."),
    "unknown_diagnosis": Meaning(404, "The trial was never run under the profiler."),
    "unknown_trace": Meaning(404, "The rank's raw trace is not stored, or was deleted to make room or by age."),
    "unknown_run": Meaning(404, "No such run."),
    "unknown_best": Meaning(404, "No configuration is recommended for this tuning target."),
    "awaits_approval": Meaning(404, "The recommendation for this tuning target waits for approval."),
    "unknown_recommendation": Meaning(404, "No such recommendation of this tuning target."),
    "unknown_worker": Meaning(404, "No such worker in the key's project."),
    "unknown_fingerprint": Meaning(404, "No worker that the key may see ever had this fingerprint."),
    "unknown_webhook": Meaning(404, "No such webhook in the key's project."),
    "unknown_key": Meaning(404, "No such API key in the key's project."),
    "unknown_project": Meaning(404, "No such project, or the key may not see it."),
    "unknown_schedule": Meaning(404, "No such schedule in the key's project."),
    "unknown_retune": Meaning(404, "No such retune in the key's project."),
    "unknown_file": Meaning(404, "No such file in the export."),
    "unknown_action": Meaning(404, "No such action on a study."),
    "method_not_allowed": Meaning(405, "The address does not support the method; `Allow` lists those that it does."),
    "not_acceptable": Meaning(406, "The service offers none of the accepted media types."),
    "no_secret_key": Meaning(409, "Webhooks need SHARDTUNE_SECRET_KEY, which is not set."),
    "too_many_webhooks": Meaning(409, "The project has the maximum number of webhooks (SHARDTUNE_MAX_WEBHOOKS)."),
    "too_many_workers": Meaning(409, "The project has the maximum number of workers (SHARDTUNE_MAX_WORKERS)."),
    "too_many_schedules": Meaning(409, "The project has the maximum number of schedules (SHARDTUNE_MAX_SCHEDULES)."),
    "study_ended": Meaning(409, "The study has ended."),
    "study_deleted": Meaning(409, "The study was deleted."),
    "study_running": Meaning(409, "The study still runs, and a run under the profiler would disturb its measurements."),
    "trial_untraceable": Meaning(409, "The study's trials cannot be run under the profiler."),
    "study_waiting": Meaning(409, "The study still waits for a worker."),
    "study_changed": Meaning(409, "Another request changed the study's state meanwhile; read the study again."),
    "nothing_to_extend": Meaning(409, "The larger budget would change nothing for the study."),
    "made_by_service": Meaning(
        409, "The service created the study for a retune or a canary, and decides what it runs."
    ),
    "retune_ended": Meaning(409, "The retune has ended."),
    "retune_starting": Meaning(409, "The retune is being started; try again in a few seconds."),
    "study_unfinished": Meaning(409, "The study has no result yet, or ended without one."),
    "study_exists": Meaning(409, "Another study has this id."),
    "trial_unmeasured": Meaning(409, "The trial has no measurement."),
    "unknown_session": Meaning(
        409, "The worker session is not valid: it was never issued, or a newer one replaced it."
    ),
    "lease_lost": Meaning(409, "The attempt does not belong to the sender, or has ended."),
    "report_differs": Meaning(409, "The attempt was reported before with another content."),
    "worker_name_taken": Meaning(409, "Another API key of the project registered a worker under this name."),
    "worker_live": Meaning(409, "The worker is live, and would register again at once."),
    "key_revoked": Meaning(409, "The API key was revoked or has expired."),
    "study_failed": Meaning(409, "The last study of this tuning target failed."),
    "answer_rejected": Meaning(409, "The result of the last study of this tuning target was rejected."),
    "too_busy": Meaning(
        409, "The machine was too busy to answer for this tuning target; `lowest_confidence=low` accepts what is known."
    ),
    "nothing_to_decide": Meaning(409, "The decision does not apply to the present state."),
    "precondition_failed": Meaning(412, "`If-Match` names another version than the present one."),
    "content_too_large": Meaning(413, "The body has more bytes or values than its address accepts."),
    "unsupported_media_type": Meaning(415, "The address does not read bodies of this media type."),
    "invalid_request": Meaning(422, "Fields of the request are wrong; `errors` lists them."),
    "invalid_page_token": Meaning(422, "The page token is not from this list with these filters."),
    "invalid_idempotency_key": Meaning(422, "The `Idempotency-Key` is empty, too long or not printable ASCII."),
    "idempotency_key_reused": Meaning(422, "The `Idempotency-Key` was used before for another request."),
    "no_worker": Meaning(422, "No live worker has the cluster."),
    "model_not_allowed": Meaning(422, "No worker's owner allows this user code."),
    "unknown_model_type": Meaning(422, "The worker's transformers library does not support the architecture."),
    "too_many_streams": Meaning(
        429, "This client, or all clients together, have the maximum number of event streams open."
    ),
    "quota_requests": Meaning(429, "The project's requests per minute are used up; see `Retry-After`."),
    "quota_registrations": Meaning(
        429, "The project registered too many new workers or fingerprints this minute; see `Retry-After`."
    ),
    "quota_running_studies": Meaning(429, "The project runs the maximum number of studies; see `Retry-After`."),
    "quota_gpu_seconds": Meaning(429, "The project's GPU-seconds of the day are used up; see `Retry-After`."),
    "too_many_bytes": Meaning(
        429, "The sender's unfinished bodies and unread responses use its share of memory; see `Retry-After`."
    ),
    "internal_error": Meaning(500, "The service failed on this request; its log has the reason."),
    "database_busy": Meaning(
        503, "Another transaction holds a lock that the request needs, or a statement took too long; try again."
    ),
    "database_unreachable": Meaning(503, "The database does not answer; try again."),
    "hub_unreachable": Meaning(503, "The model hub did not answer, or not as a hub does; try again."),
    "memory_busy": Meaning(503, "The memory for bodies and responses is in use by other senders; see `Retry-After`."),
    "database_not_migrated": Meaning(503, "The database's schema is of another revision than the service."),
}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` entry for a route that can answer with errors of these codes."""
    responses: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        status, text = CODES[code]
        response = responses.setdefault(status, {"model": Problem, "description": ""})
        response["description"] = f"{response['description']}\n\n`{code}`: {text}".strip()
    return responses
