"""The best configuration for a case: the exact answer, or the nearest one with every difference named."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import BestConfig, Confidence, ConfidenceLevel, Difference
from shardtune.api_schemas.recommendations.tuning_targets import Case, differing
from shardtune.api_schemas.studies.study import Verdict
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.native_dtypes import decide
from shardtune.api_schemas.training.workload import PRECISIONS, WorkloadRequest
from shardtune.db.queries import best
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.best import local_clusters, pending_approval, target_distance
from shardtune.service.http import etags
from shardtune.service.http.errors import NotFound
from shardtune.service.process.context import Context
from shardtune.service.recommendations.decisions import tag_of as tag_of_case
from shardtune.service.recommendations.record import project_of, unknown_key
from shardtune.service.studies import create_and_read
from shardtune.service.workers import compatibility, registry
from shardtune.tuner import export

log = logging.getLogger(__name__)


def by_key(context: Context, target_key: str, project_id: str | None = None) -> BestConfig:
    """What is served under a key.

    Raises:
        NotFound: nothing is known, or what is known waits for approval.
    """
    with context.db.read() as session:
        row = best.current(session, project_of(context, project_id), target_key)
        if row is None or row.serving is None:
            raise pending_approval.rejection(
                best.newest_proposal(session, row.project_id, row.target_key) if row else None
            ) or unknown_key(target_key)
        return _view(row, (), context.now(), target_key)


def by_case(
    context: Context, cases: Sequence[Case], lowest: ConfidenceLevel | None, project_id: str | None = None
) -> BestConfig:
    """What is served for the first of these cases that is known, on any fingerprint, fresh before stale; else what is
    nearest to the first, at this confidence or a higher one. `lowest` None: of the case itself only.

    Raises:
        NotFound: nothing is known that could serve, or it waits for approval.
    """
    project_id = project_of(context, project_id)
    with context.db.read() as session:
        found = next((same for case in cases if (same := find(context, session, project_id, case, None))), None)
        if found is None and lowest is not None:
            found = find(context, session, project_id, cases[0], lowest)
        proposed = None if found else pending_approval.proposed(session, project_id, cases)
        is_unknown = found is None and proposed is None
        other = find(context, session, project_id, cases[0], ConfidenceLevel.LOW) if is_unknown else None
    if found is not None:
        return found
    raise pending_approval.rejection(proposed) or _nothing(cases[0], lowest, other)


def _nothing(case: Case, lowest: ConfidenceLevel | None, other: BestConfig | None) -> NotFound:
    """What is said where nothing was given; `other`: what there is for who asks for less."""
    start = "POST /v1/best:resolve starts a study"
    if other is None:
        return NotFound("unknown_best", f"nothing is known of {case.model.name} here; {start}")
    fields = ", ".join(item.field for item in other.differences)
    wider = ["match=nearest"] if lowest is None else []
    if lowest is not None or other.confidence.level is ConfidenceLevel.LOW:
        wider.append(f"lowest_confidence={other.confidence.level.value}")
    return NotFound(
        "unknown_best",
        f"nothing is known of just this case of {case.model.name}; study {other.study_id} measured one with another {fields}, "
        f"and {'&'.join(wider)} gives its answer; {start}",
    )


def cases_of(
    context: Context,
    model: ModelSpec,
    workload: WorkloadRequest,
    cluster: Cluster | None,
    project_id: str | None = None,
) -> list[Case]:
    """The case that a request means: a precision that it leaves out is the one a study there would get. `cluster` None: `local`.

    Where nobody can tell, since the workers are gone and the name says nothing, there is one for each precision.

    Raises:
        Invalid: `local` could mean several clusters, or none.
    """
    project_id = project_of(context, project_id)
    if cluster is None:
        meant = local_clusters.meant(context, project_id)
        return [case for one in meant for case in cases_of(context, model, workload, one, project_id)]
    if workload.precision is not None:
        return [Case(model, workload.with_precision(workload.precision), cluster)]
    with context.db.read() as session:
        live = registry.live(context, session, project_id)
    devices = compatibility.dtypes_of(cluster, live)
    precision, _ = decide(None, devices)
    is_known = any(device.emulates("bfloat16") is not None for device in devices)
    others = () if is_known else (other for other in PRECISIONS.values() if other != precision)
    return [Case(model, workload.with_precision(one), cluster) for one in (precision, *others)]


def tag_of(found: BestConfig) -> str:
    """The entity tag of an answer, however old."""
    return etags.of(found.model_copy(update={"age_s": 0.0, "asked_key": None}))


def check_unchanged(context: Context, row: TuningTargetRow, if_match: str | None) -> None:
    """Reject a decision about a case that is not what its sender saw: its answer by key, or its history.

    Raises:
        PreconditionFailed: it has changed.
    """
    served = () if row.serving is None else (tag_of(_view(row, (), context.now())),)
    etags.check_tags(if_match, *served, tag_of_case(row))


def export_files(context: Context, found: BestConfig) -> Mapping[str, str]:
    """Ready-to-use files of an answer."""
    with context.db.read() as session:
        row = create_and_read.must_exist(context, session, found.study_id)
        return export.files(create_and_read.read_models(session, [row])[0], found.best)


def find(
    context: Context, session: Session, project_id: str, case: Case, lowest: ConfidenceLevel | None
) -> BestConfig | None:
    """What is served for a case, else what is nearest to it, as `by_case` says."""
    same = best.of_shape(session, project_id, case.target_key_without_fingerprint)
    if same:
        return _view(min(same, key=lambda row: row.freshness != Freshness.FRESH), (), context.now())
    if lowest is None:
        return None
    near = best.near(session, project_id, case.model_key, case.model_type, case.cluster.device)
    known = context.cases.of(session, [row.serving_id for row in near if row.serving_id is not None])
    wanted = case.flat()
    compared = [(differing(wanted, known[row.serving_id]), row) for row in near if row.serving_id in known]
    compared = [
        (names, row)
        for names, row in compared
        if target_distance.may_serve(wanted, known[row.serving_id or ""], names, lowest)
    ]
    if not compared:
        return None
    names, row = min(compared, key=lambda pair: target_distance.distance(pair[0]))
    found = known[row.serving_id or ""]
    told = (Difference(field=name, wanted=wanted.get(name), found=found.get(name)) for name in names)
    return _view(row, tuple(told), context.now())


def _confidence(row: TuningTargetRow, found: tuple[Difference, ...]) -> Confidence:
    assert row.serving is not None
    reasons = []
    is_low = False
    if row.freshness != Freshness.FRESH:
        is_low = True
        reasons.append(f"measured before a change of {', '.join(row.changed_fields) or 'the fingerprint'}")
    elif row.changed_fields:
        reasons.append(f"measured before a change of {', '.join(row.changed_fields)}, which should matter little")
    if found:
        is_low = is_low or target_distance.is_far([item.field for item in found])
        reasons.append("measured for another case: " + ", ".join(item.field for item in found))
    answer = row.serving.answer
    if Verdict.CONFIRMED not in (answer.result.verdict, answer.renewed and answer.renewed.verdict):
        reasons.append("no configuration was confirmed to beat the baseline")
    return Confidence(
        level=ConfidenceLevel.LOW if is_low else ConfidenceLevel.MEDIUM if reasons else ConfidenceLevel.HIGH,
        reasons=tuple(reasons),
    )


def _view(
    row: TuningTargetRow, found: tuple[Difference, ...], now: datetime, asked_key: str | None = None
) -> BestConfig:
    serving = row.serving
    assert serving is not None
    answer = serving.answer
    result = answer.result
    return BestConfig(
        target_key=row.target_key,
        asked_key=asked_key if asked_key != row.target_key else None,
        match="nearest" if found else "exact",
        differences=found,
        freshness=row.freshness,
        changed_fields=row.changed_fields,
        is_pinned=row.is_pinned,
        confidence=_confidence(row, found),
        measured_at=serving.created_at,
        age_s=max(0.0, (now - serving.created_at).total_seconds()),
        recommendation_id=serving.id,
        study_id=serving.study_id,
        description=result.best.description,
        verdict=result.verdict,
        speedup=result.speedup,
        renewed=answer.renewed,
        best=result.best,
        baseline=result.baseline,
        model=answer.model,
        workload=answer.workload,
        cluster=answer.cluster,
        fingerprint=answer.fingerprint,
    )
