"""Check the study that a new study says to confirm."""

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.db.queries import studies
from shardtune.service.http.errors import invalid
from shardtune.service.planning.target_comparison import comparing_study, difference

_REMEDY = "export its target again (`shardtune export STUDY --which target`), or leave confirms out"


def check_confirms(session: Session, project_id: str, spec: StudySpec, cluster: Cluster) -> tuple[str, ...]:
    """Check a study that is to test another study's projection (prediction for a larger cluster), which it names in
    its field `confirms`. Returns notes for the user; there are none if the study names no other.

    Raises:
        Invalid: the named study has no projection with two choices, or this study would compare something else than
            these choices.
    """
    named = spec.confirms
    if named is None:
        return ()
    original = studies.get(session, named)
    # The same answer for another project's study as for none: an id must not reveal what others own.
    if original is None or original.project_id != project_id or original.deleted_at is not None:
        # A job may run with a database of its own, where its comparison is worth as much.
        return (f"confirms ({named}) is no study of this database: the answer stays in this study",)
    projection = None if original.result is None else original.result.projection
    if projection is None or not projection.runners_up:
        raise invalid(
            "confirms", named, f"confirms ({named}) is a study without two projected choices; leave confirms out"
        )
    field = difference(spec, cluster, comparing_study(named, original.spec, projection))
    if field is not None:
        raise invalid(
            "confirms",
            named,
            f"confirms ({named}): this study has another {field} than the comparison of that study's first two choices on "
            f"its target; {_REMEDY}",
        )
    return ()
