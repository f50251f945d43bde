"""Where a new study would run; what is wrong with it is said before that nobody could run it."""

from collections.abc import Sequence

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import StudyRequest
from shardtune.db.tables.studies import WorkerRow
from shardtune.service.http.errors import Invalid
from shardtune.service.studies import validation
from shardtune.service.workers import compatibility


def placed(request: StudyRequest, live: Sequence[WorkerRow]) -> tuple[Cluster, WorkerRow | None]:
    """The cluster that is meant, and a worker that has it; None where the study is to wait for one.

    Raises:
        Invalid: what is wrong with the request itself; else that nobody has its cluster. The other way round, its sender
            would start a worker and then learn of the mistake.
    """
    try:
        return compatibility.resolve_cluster(request, live)
    except Invalid as nobody:
        if nobody.code == "no_worker":
            validation.check_without_worker(request, compatibility.named_cluster(request))
        raise
