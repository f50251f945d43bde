"""Read the result of a study that is complete."""

from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.db.tables.studies import StudyRow
from shardtune.service.http.errors import Conflict
from shardtune.service.process.context import Context
from shardtune.service.studies.create_and_read import get_study


def read_result(context: Context, study_id: str) -> StudyResult:
    """Result of a study that is complete.

    Raises:
        Conflict: the study has no result (yet).
    """
    with context.db.read() as session:
        return stored_result(get_study(context, session, study_id))


def stored_result(row: StudyRow) -> StudyResult:
    """Return the stored result of a study.

    Raises:
        Conflict: the study has no result (yet).
    """
    if row.result is None:
        reason = f": {row.reason}" if row.reason else ""
        remedy = (
            "; wait until it is complete, go on with an interrupted one (shardtune tune --resume), or take a measured "
            f"trial without a verdict: shardtune export {row.id} --which NUMBER"
        )
        remedy = remedy if row.state.is_open else ""
        raise Conflict("study_unfinished", f"study {row.id} is {row.state.value} ({row.phase.value}){reason}{remedy}")
    return row.result
