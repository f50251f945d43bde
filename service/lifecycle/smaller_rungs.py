"""Find what earlier studies measured on fewer GPUs of the same machines, with the same work for each rank."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.targets import MOST_RUNGS
from shardtune.db.queries import studies
from shardtune.db.queries.targets import smaller_rungs
from shardtune.db.queries.targets.smaller_rungs import EndedStudy
from shardtune.service.planning import study_snapshot
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.tuner.freshness.fingerprints import stale_fields
from shardtune.tuner.projection.rung_test import Rung

_MOST_STUDIES = 4
"""Maximum number of studies of one cluster size whose trials are read, since reading each study is costly. The
studies with the most trials are chosen.
"""
_SIZE_FIELDS = frozenset({"nodes", "gpu_count", "gpu_links", "nics", "intra_node_gb_per_s", "inter_node_gb_per_s"})
"""Fields of a fingerprint (hardware and software versions) that may differ between a study and an earlier one on a
smaller cluster, because that cluster has fewer GPUs or nodes of the same kind.
"""

ContendersOf = Callable[[StudySnapshot], Sequence[Contender]]
"""Function that returns the feasible trials of a study."""


def find(session: Session, snapshot: StudySnapshot, contenders_of: ContendersOf) -> list[Rung]:
    """Return clusters with fewer GPUs of the study's kind, each with the trials that earlier studies measured there."""
    study = studies.get(session, snapshot.study_id)
    if study is None or study.fingerprint is None:
        return []
    own = EndedStudy(snapshot.study_id, snapshot.spec, snapshot.cluster, study.fingerprint.value)
    below: dict[tuple[int, int], list[EndedStudy]] = defaultdict(list)
    for earlier in smaller_rungs.ended_studies(session, study.project_id):
        if is_rung_below(earlier, own):
            below[earlier.cluster.nodes, earlier.cluster.gpus_per_node].append(earlier)
    rungs: dict[int, Rung] = {}
    for nodes, per_node in sorted(below, key=lambda shape: -shape[0] * shape[1]):
        ranks = nodes * per_node
        if ranks not in rungs and len(rungs) == MOST_RUNGS:
            break
        rung = _rung(session, below[nodes, per_node], contenders_of)
        # As many ranks on one node and on several are two clusters; the one that shows more counts.
        if rung.measured and (ranks not in rungs or len(rung.measured) > len(rungs[ranks].measured)):
            rungs[ranks] = rung
    return list(rungs.values())


def _rung(session: Session, on_it: Sequence[EndedStudy], contenders_of: ContendersOf) -> Rung:
    """Return a smaller cluster with the trials of the studies that ran on it. If several studies measured a
    configuration, only the newest of these trials counts.
    """
    # A study of two or three trials, such as a confirmation, must not hide what a longer one measured there: each
    # configuration counts as the newest of the studies has it.
    longest = sorted(on_it, key=lambda earlier: -earlier.complete_trials)[:_MOST_STUDIES]
    chosen = {earlier.study_id for earlier in longest}
    newest: dict[str, tuple[str, Contender]] = {}
    for earlier in (earlier for earlier in on_it if earlier.study_id in chosen):
        row = studies.get(session, earlier.study_id)
        for contender in () if row is None else contenders_of(study_snapshot.read_study(session, row)):
            newest.setdefault(contender.config.content_key(), (earlier.study_id, contender))
    return Rung(
        on_it[0].cluster,
        tuple(dict.fromkeys(study_id for study_id, _ in newest.values())),
        tuple(contender for _, contender in newest.values()),
    )


def is_rung_below(earlier: EndedStudy, own: EndedStudy) -> bool:
    """Whether an earlier study measured the same work for each rank as this study, on fewer GPUs of the same kind."""
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
