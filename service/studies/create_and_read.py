"""Create, read and list studies; service.studies.actions changes them, service.planning.study_plan plans their runs."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import Resolved
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study, StudyPage
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import RejectionPage, RunPurpose, TrialPage, TrialState
from shardtune.db.queries import leases, studies, trials
from shardtune.db.queries.studies import StudyFilter
from shardtune.db.tables.studies import StudyRow
from shardtune.service.access import quotas
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound, invalid
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.hub import named_models
from shardtune.service.process.context import Context
from shardtune.service.studies import from_rows, validation
from shardtune.service.studies.choose_precision import choose_precision
from shardtune.service.studies.placement import check_worker, place_study
from shardtune.service.workers import offered_float8, registry, study_clusters
from shardtune.service.workers.named_projection import check_confirms
from shardtune.service.workers.target_rungs import on_rung

log = logging.getLogger(__name__)

_GENERATED_PREFIX, _MAX_ID_LENGTH = "study-", 32


def create_study(
    context: Context,
    request: StudyRequest,
    idempotency: IdempotencyKey = NO_KEY,
    study_id: str | None = None,
    project_id: str | None = None,
    resolve_key: str | None = None,
) -> Study:
    """Store a new study and its first run, in which a worker counts the sizes and FLOPs of the study's model.

    Raises:
        Invalid: no worker could run the study, or its search space is empty; then nothing is stored.
        Conflict: the id is taken.
        TooMany: a quota of the study's project is used up.
    """
    project_id = _project_of_new(context, project_id)
    checked = _check_request(context, request, project_id)
    with idempotency.write(context) as session:
        now = context.now()
        quotas.check_study_quota(session, project_id, now)
        study = StudyRow(
            id=_full_id(study_id, project_id) if study_id else f"{_GENERATED_PREFIX}{secrets.token_hex(6)}",
            project_id=project_id,
            resolve_key=resolve_key,
            state=StudyState.RUNNING if checked.has_worker else StudyState.WAITING,
            phase=StudyPhase.MODEL_SUMMARY,
            spec=checked.spec.with_possible_backends(),
            cluster=checked.cluster,
            baseline=checked.baseline,
            notes=checked.notes,
            created_at=now,
            started_at=now if checked.has_worker else None,
        )
        session.add(study)
        # Flushed here, since a taken id must be told apart from other conflicts of the transaction.
        try:
            session.flush()
        except IntegrityError:
            message = f"study_id ({study_id}) is taken; choose another, or leave it out"
            raise Conflict("study_exists", message) from None
        leases.add_run(session, study, None, RunPurpose.MODEL_SUMMARY, now)
        log.info("study created", extra={"study": study.id, "model": checked.spec.model.name})
        created = from_rows.study_from_row(study, {}, 0)
        if resolve_key is None:
            return idempotency.answer(session, created, 201)
        idempotency.answer(session, Resolved(study=created), 202)
        return created


class _CheckedRequest(NamedTuple):
    """Request for a new study after it was checked. Its cluster and baseline are filled in, and notes for the user
    are added.
    """

    spec: StudySpec
    cluster: Cluster
    has_worker: bool
    baseline: TrialConfig | None
    notes: tuple[str, ...]


def _check_request(context: Context, request: StudyRequest, project_id: str) -> _CheckedRequest:
    """Check a request for a new study. The check runs before the transaction that stores the study, so that other
    requests do not wait for the project's locked row meanwhile.

    Raises:
        Invalid: no worker could run the study, or its search space is empty.
    """
    request = named_models.with_config_of(context, request)
    with context.db.read() as session:
        live = registry.live_workers(context, session, project_id)
        cluster, worker = place_study(request, live)
        memory_notes = study_clusters.host_memory_notes(study_clusters.named_cluster(request), cluster)
        if worker is not None:
            check_worker(request, worker)
        measured = worker.offer.measured if worker is not None else None
        request = on_rung(request, cluster, measured, has_worker=worker is not None)
        devices = study_clusters.dtypes_of(cluster, live)
        offered_float8.check_devices(request, devices)
        precision, precision_notes = choose_precision(request, devices)
        spec = request.with_precision(precision)
        confirmation_notes = check_confirms(session, project_id, spec, cluster)
        baseline = validation.check(spec, cluster)
    notes = (*precision_notes, *memory_notes, *spec.workload.data_notes, *confirmation_notes, *baseline.notes)
    return _CheckedRequest(spec, cluster, worker is not None, baseline.config, notes)


def _full_id(study_id: str, project_id: str) -> str:
    """Full id of a study from the name that its user chose; ids are unique within a project.

    Raises:
        Invalid: the name could be an id that the service generates, or is too long.
    """
    if study_id.startswith(_GENERATED_PREFIX):
        message = f"study_id ({study_id}) begins like the ids that the service generates ({_GENERATED_PREFIX}); choose another"
        raise invalid("study_id", study_id, message)
    # The project is part of the id: a taken id would otherwise reveal another project's study.
    full_id = study_id if project_id == DEFAULT_PROJECT else f"{project_id}.{study_id}"
    if len(full_id) > _MAX_ID_LENGTH:
        message = f"study_id ({study_id}) with its project ({full_id}) must not exceed {_MAX_ID_LENGTH} characters; shorten it"
        raise invalid("study_id", study_id, message)
    return full_id


def _project_of_new(context: Context, requested: str | None) -> str:
    """Project in which a request creates its new study."""
    project_id = requested or context.principal.home
    if not context.principal.sees(project_id):
        raise NotFound("unknown_project", f"project ({project_id}) is not one of the key's projects; leave it out")
    return project_id


def read_study(context: Context, study_id: str) -> Study:
    with context.db.read() as session:
        return study_views(session, [get_study(context, session, study_id)])[0]


def list_studies(
    context: Context, study_filter: StudyFilter, oldest_first: bool, token: str | None, limit: int
) -> StudyPage:
    """Studies visible to the sender, by time of creation."""
    if not context.principal.sees(study_filter.project_id):
        return StudyPage(studies=())
    study_filter = replace(study_filter, project_id=study_filter.project_id or context.principal.project_id)
    filters = (*astuple(study_filter), oldest_first)
    after = paging.parse_token(token, filters, paging.moment_and_id)
    with context.db.read() as session:
        rows = studies.page(session, study_filter, oldest_first, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, filters, lambda row: [row.created_at.isoformat(), row.id]
        )
        return StudyPage(studies=tuple(study_views(session, page_rows)), next_page_token=next_token)


def list_trials(
    context: Context, study_id: str, states: Sequence[TrialState], token: str | None, limit: int
) -> TrialPage:
    """Trials of a study by number, with their runs and attempts."""
    filters = (study_id, *states)
    after = paging.parse_token(token, filters, paging.whole_number)
    with context.db.read() as session:
        get_study(context, session, study_id)
        rows = trials.page(session, study_id, states, after, limit + 1)
        page_rows, next_token = paging.split_page(rows, limit, filters, lambda row: row.number)
        return TrialPage(trials=tuple(from_rows.trial_from_row(row) for row in page_rows), next_page_token=next_token)


def list_rejections(context: Context, study_id: str, token: str | None, limit: int) -> RejectionPage:
    """Configurations of a study that the memory gate rejected (predicted not to fit)."""
    after = paging.parse_token(token, [study_id], paging.whole_number)
    with context.db.read() as session:
        get_study(context, session, study_id)
        rows = trials.rejections(session, study_id, after, limit + 1)
        page_rows, next_token = paging.split_page(rows, limit, [study_id], lambda row: row.id)
        return RejectionPage(rejections=tuple(row.value for row in page_rows), next_page_token=next_token)


def get_study(context: Context, session: Session, study_id: str) -> StudyRow:
    """Find a study in the sender's projects; raises `NotFound` for any other study."""
    # The same answer for another project's study as for none: an id must not reveal what others own.
    row = studies.get(session, study_id)
    if row is None or not context.principal.sees(row.project_id):
        message = f"study {study_id} does not exist"
        raise NotFound("unknown_study", message, api_remedy="GET /v1/studies lists those that do")
    return row


def study_views(session: Session, rows: Sequence[StudyRow]) -> list[Study]:
    """Convert studies into the API's model, with their counts of trials and rejections."""
    # Counted for all rows at once: a page shows up to 500 studies.
    ids = [row.id for row in rows]
    counts, rejected = studies.trial_counts(session, ids), studies.rejection_counts(session, ids)
    return [from_rows.study_from_row(row, counts.get(row.id, {}), rejected.get(row.id, 0)) for row in rows]
