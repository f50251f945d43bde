"""The best configuration for a case: the exact answer, the nearest one with every difference named, or a study."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardtune.api_schemas.best import BestConfig, Confidence, ConfidenceLevel, Difference, Resolved, ResolveRequest
from shardtune.api_schemas.cases import Case, differing
from shardtune.api_schemas.fingerprints import Freshness
from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.models import ModelSpec
from shardtune.api_schemas.native_dtypes import decide
from shardtune.api_schemas.studies import StudyState, Verdict
from shardtune.api_schemas.workload import RECIPES, WorkloadRequest
from shardtune.db.queries import best
from shardtune.db.tables.best import ServedCaseRow
from shardtune.service.best import awaited, nearness
from shardtune.service.http import etags
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.process.context import Context
from shardtune.service.recommendations.decisions import tag_of as tag_of_case
from shardtune.service.recommendations.record import project_of, unknown_key
from shardtune.service.studies import create_and_read
from shardtune.service.studies.chosen_recipe import chosen_recipe
from shardtune.service.workers import compatibility, registry
from shardtune.tuner import export

log = logging.getLogger(__name__)


def by_key(context: Context, case_key: str, project_id: str | None = None) -> BestConfig:
    """What is served under a key.

    Raises:
        NotFound: nothing is known, or what is known waits for approval.
    """
    with context.db.read() as session:
        row = best.current(session, project_of(context, project_id), case_key)
        if row is None or row.serving is None:
            raise awaited.refusal(
                best.newest_proposal(session, row.project_id, row.case_key) if row else None
            ) or unknown_key(case_key)
        return _view(row, (), context.now(), case_key)


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
        found = next((same for case in cases if (same := _find(context, session, project_id, case, None))), None)
        if found is None and lowest is not None:
            found = _find(context, session, project_id, cases[0], lowest)
        proposed = None if found else awaited.proposed(session, project_id, cases)
    if found is not None:
        return found
    name = cases[0].model.name
    nothing = NotFound("unknown_best", f"nothing is known of {name} here; POST /v1/best:resolve starts a study")
    raise awaited.refusal(proposed) or nothing


def cases_of(
    context: Context, model: ModelSpec, workload: WorkloadRequest, cluster: Cluster, project_id: str | None = None
) -> list[Case]:
    """The case that a request means: a recipe that it leaves out is the one a study there would get.

    Where nobody can tell, since the workers are gone and the name says nothing, there is one for each recipe.
    """
    if workload.recipe is not None:
        return [Case(model, workload.with_recipe(workload.recipe), cluster)]
    with context.db.read() as session:
        live = registry.live(context, session, project_of(context, project_id))
    devices = compatibility.dtypes_of(cluster, live)
    recipe, _ = decide(None, devices)
    is_known = any(device.emulates("bfloat16") is not None for device in devices)
    others = () if is_known else (other for other in RECIPES.values() if other != recipe)
    return [Case(model, workload.with_recipe(one), cluster) for one in (recipe, *others)]


def tag_of(found: BestConfig) -> str:
    """The entity tag of an answer, however old."""
    return etags.of(found.model_copy(update={"age_s": 0.0, "asked_key": None}))


def check_unchanged(context: Context, row: ServedCaseRow, if_match: str | None) -> None:
    """Refuse a decision about a case that is not what its sender saw: its answer by key, or its history.

    Raises:
        PreconditionFailed: it has changed.
    """
    served = () if row.serving is None else (tag_of(_view(row, (), context.now())),)
    etags.check_tags(if_match, *served, tag_of_case(row))


def resolve(
    context: Context, request: ResolveRequest, once: Once = ALWAYS, project_id: str | None = None
) -> tuple[Resolved, int]:
    """What is known, with 200; else the study that will know, with 202: one that runs already, or a new one.

    Raises:
        Invalid: no worker offers the cluster.
        NotFound: there is an answer, and it waits for approval.
        Conflict: the last study of this case failed, and another would, too; or its answer was rejected.
    """
    project_id = project_of(context, project_id)
    with context.db.read() as session:
        live = registry.live(context, session, project_id)
        cluster, _ = compatibility.resolve_cluster(request.study, live)
        recipe, _ = chosen_recipe(request.study, compatibility.dtypes_of(cluster, live))
        case = Case(request.study.model, request.study.workload.with_recipe(recipe), cluster)
        found = _find(context, session, project_id, case, request.lowest_confidence if request.accept_nearest else None)
        waiting = None if found else awaited.refusal(awaited.proposed(session, project_id, [case]))
    if found is not None:
        return _kept(context, once, Resolved(best=found), 200)
    if waiting is not None:
        raise waiting
    running = _running(context, project_id, case)
    if running is not None:
        return _kept(context, once, running, 202)
    try:
        study = create_and_read.create(
            context, request.study, once, None, project_id, resolve_key=case.case_key_without_fingerprint
        )
    except (Conflict, IntegrityError):
        running = _running(context, project_id, case)
        if running is None:
            raise
        return _kept(context, once, running, 202)
    return Resolved(study=study), 202


def _kept(context: Context, once: Once, resolved: Resolved, status: int) -> tuple[Resolved, int]:
    """The answer, stored where its request has a name."""
    if once.key is not None:
        with once.write(context) as session:
            once.answer(session, resolved, status)
    return resolved, status


def export_files(context: Context, found: BestConfig) -> Mapping[str, str]:
    """Ready-to-use files of an answer."""
    with context.db.read() as session:
        row = create_and_read.must_exist(context, session, found.study_id)
        return export.files(create_and_read.read_models(session, [row])[0], found.best)


def _running(context: Context, project_id: str, case: Case) -> Resolved | None:
    with context.db.read() as session:
        last = best.last_resolving(session, project_id, case.case_key_without_fingerprint)
        if last is None:
            return None
        if last.state is StudyState.FAILED:
            raise Conflict(
                "study_failed",
                f"study {last.id} of this case failed: {last.reason}; remove the cause and create a study yourself",
            )
        if last.state is StudyState.COMPLETE and not best.standing_of(session, last.id):
            raise Conflict(
                "answer_rejected",
                f"the answer of study {last.id} of this case was rejected; approve it (GET /v1/recommendations has its id), "
                "or delete the study, and another one is started",
            )
        if last.state.is_open or last.state is StudyState.COMPLETE:
            return Resolved(study=create_and_read.read_models(session, [last])[0])
    return None


def _find(
    context: Context, session: Session, project_id: str, case: Case, lowest: ConfidenceLevel | None
) -> BestConfig | None:
    same = best.of_shape(session, project_id, case.case_key_without_fingerprint)
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
        if nearness.may_serve(wanted, known[row.serving_id or ""], names, lowest)
    ]
    if not compared:
        return None
    names, row = min(compared, key=lambda pair: nearness.distance(pair[0]))
    found = known[row.serving_id or ""]
    told = (Difference(field=name, wanted=wanted.get(name), found=found.get(name)) for name in names)
    return _view(row, tuple(told), context.now())


def _confidence(row: ServedCaseRow, found: tuple[Difference, ...]) -> Confidence:
    assert row.serving is not None
    reasons = []
    is_low = False
    if row.freshness != Freshness.FRESH:
        is_low = True
        reasons.append(f"measured before a change of {', '.join(row.changed_fields) or 'the fingerprint'}")
    elif row.changed_fields:
        reasons.append(f"measured before a change of {', '.join(row.changed_fields)}, which should matter little")
    if found:
        is_low = is_low or nearness.is_far([item.field for item in found])
        reasons.append("measured for another case: " + ", ".join(item.field for item in found))
    answer = row.serving.answer
    if Verdict.CONFIRMED not in (answer.result.verdict, answer.renewed and answer.renewed.verdict):
        reasons.append("no configuration was confirmed to beat the baseline")
    return Confidence(
        level=ConfidenceLevel.LOW if is_low else ConfidenceLevel.MEDIUM if reasons else ConfidenceLevel.HIGH,
        reasons=tuple(reasons),
    )


def _view(row: ServedCaseRow, found: tuple[Difference, ...], now: datetime, asked_key: str | None = None) -> BestConfig:
    serving = row.serving
    assert serving is not None
    answer = serving.answer
    result = answer.result
    return BestConfig(
        case_key=row.case_key,
        asked_key=asked_key if asked_key != row.case_key else None,
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
