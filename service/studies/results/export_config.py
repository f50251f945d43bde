"""Export a measured configuration of a study as files for a program."""

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.db.queries import trials
from shardtune.db.tables.studies import StudyRow
from shardtune.service.http.errors import Conflict, NotFound, invalid
from shardtune.service.planning import study_snapshot
from shardtune.service.process.context import Context
from shardtune.service.studies.changes import study_page
from shardtune.service.studies.changes.page import FILE as CHANGES_FILE
from shardtune.service.studies.create_and_read import get_study, study_views
from shardtune.service.studies.results.study_result import stored_result
from shardtune.service.studies.results.target_config import study_on_target, target_files
from shardtune.tuner import export
from shardtune.tuner.verdict import contenders


def export_as(context: Context, study_id: str, which: str, form: ExportFormat) -> Export:
    """Export a configuration in the format of one program that reads it (such as DeepSpeed or Accelerate), with notes
    on settings that the format cannot express.

    Raises:
        Conflict: the configuration has not been measured (yet).
        Invalid: the program has no such backend.
    """
    with context.db.read() as session:
        row = get_study(context, session, study_id)
        study = study_views(session, [row])[0]
        if which == "target":
            study, contender = study_on_target(study)
        else:
            contender = _contender(session, row, which)
        page = (
            study_page.changes_page_of(context, session, row, study) if (which, form) == ("best", "standard") else None
        )
    try:
        exported = export.export(study, contender, form)
    except ValueError as error:
        raise invalid("format", form, f"format ({form!r}): {error}") from error
    if (which, form) == ("target", "standard"):
        return exported.model_copy(update={"files": {**exported.files, **target_files(study)}})
    if page is None:
        return exported
    return exported.model_copy(update={"files": {**exported.files, CHANGES_FILE: page}})


def _contender(session: Session, row: StudyRow, which: str) -> Contender:
    if which == "best":
        return stored_result(row).best
    if which == "baseline":
        return stored_result(row).baseline
    # Digits of other scripts are decimal, too, and no header of a response can carry them.
    is_number = which.isascii() and which.isdecimal() and len(which) < 10
    trial = trials.by_number(session, row.id, int(which)) if is_number else None
    if trial is None:
        raise NotFound(
            "unknown_trial", f"which ({which!r}) is not best, baseline, target or the number of a trial of {row.id}"
        )
    observed = study_snapshot.observation(trial, row.comparison_round)
    if observed.measurement is None:
        raise Conflict(
            "trial_unmeasured", f"trial {which} is {trial.state.value} and has no measurement; choose another"
        )
    return contenders.contender(observed)
