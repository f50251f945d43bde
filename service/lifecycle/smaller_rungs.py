"""Find what earlier studies measured on fewer GPUs of the same machines, with the same work for each rank."""

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.db.queries import studies
from shardtune.db.queries.targets import smaller_rungs
from shardtune.db.queries.targets.smaller_rungs import EndedStudy
from shardtune.service.planning import study_snapshot
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.freshness.fingerprints import stale_fields
from shardtune.tuner.projection.rung_test import Rung

_MOST_RUNGS = 4
"""Number of smaller clusters whose trials are read, the largest first: the nearest sizes count most."""
_SIZE_FIELDS = frozenset({"nodes", "gpu_count", "gpu_links", "nics", "intra_node_gb_per_s", "inter_node_gb_per_s"})
"""Fields of a fingerprint that differ because a rung has fewer GPUs or nodes of the same kind."""


def find(
    session: Session, snapshot: StudySnapshot, contenders_of: Callable[[StudySnapshot], Sequence[Contender]]
) -> list[Rung]:
    """Return the smaller clusters of the study's machines, each with the trials of the newest study on it.

    `contenders_of`: the feasible trials of a study.
    """
    study = studies.get(session, snapshot.study_id)
    if study is None or study.fingerprint is None:
        return []
    own = EndedStudy(snapshot.study_id, snapshot.spec, snapshot.cluster, study.fingerprint.value)
    newest: dict[int, EndedStudy] = {}
    for earlier in smaller_rungs.ended_studies(session, study.project_id):
        if is_rung_below(earlier, own):
            newest.setdefault(earlier.cluster.world_size, earlier)
    rungs = []
    for ranks in sorted(newest, reverse=True)[:_MOST_RUNGS]:
        row = studies.get(session, newest[ranks].study_id)
        measured = () if row is None else tuple(contenders_of(study_snapshot.read_study(session, row)))
        rungs += [Rung(newest[ranks].cluster, newest[ranks].study_id, measured)] if measured else []
    return rungs


def is_rung_below(earlier: EndedStudy, own: EndedStudy) -> bool:
    """Whether an earlier study measured the work of one rank of this study on fewer GPUs of the same kind."""
    if earlier.cluster.world_size >= own.cluster.world_size or earlier.cluster.gpu != own.cluster.gpu:
        return False
    if earlier.cluster.nodes > 1 and earlier.cluster.gpus_per_node != own.cluster.gpus_per_node:
        return False
    return _has_same_work(earlier, own) and not set(stale_fields(earlier.fingerprint, own.fingerprint)) - _SIZE_FIELDS


def _has_same_work(earlier: EndedStudy, own: EndedStudy) -> bool:
    mine, theirs = own.spec.workload.global_batch, earlier.spec.workload.global_batch
    is_same_batch = theirs * own.cluster.world_size == mine * earlier.cluster.world_size
    return is_same_batch and _without_batch(earlier.spec) == _without_batch(own.spec)


def _without_batch(spec: StudySpec) -> tuple[object, object]:
    return spec.model, spec.workload.model_copy(update={"global_batch": 1})
