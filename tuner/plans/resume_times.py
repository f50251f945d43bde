"""Times of checkpoints that a study's resume check measured, for the goodput of a plan."""

from typing import NamedTuple

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.plans import Goodput


class ResumeTimes(NamedTuple):
    """Seconds in which a study's resume check saved and loaded a checkpoint, with a note on where."""

    save_s: float
    load_s: float
    note: str


def resume_times(study: Study) -> ResumeTimes | None:
    """Return the times that a study's resume check measured; None if it measured none."""
    check = None if study.result is None else study.result.resume_check
    if check is None or check.save_s is None or check.load_s is None:
        return None
    gpus = counted(study.cluster.world_size, "CPU rank" if study.cluster.device == "cpu" else "GPU")
    note = (
        f"study {study.study_id}: its resume check saved a checkpoint in {check.save_s:.3g} s and loaded it in "
        f"{check.load_s:.3g} s on {gpus}, which was not scaled to other sizes"
    )
    return ResumeTimes(check.save_s, check.load_s, note)


def why_no_times(study: Study) -> str:
    """Say in a few words that a study has no times of a resume check, with the check's own reason if it states one."""
    check = None if study.result is None else study.result.resume_check
    reason = f": {check.reason}" if check is not None and check.reason else ""
    return f"has no times of a resume check{reason}"


def with_times(goodput: Goodput, times: ResumeTimes | None) -> Goodput:
    """Return the assumptions with the measured times in place of those that the request leaves out."""
    if times is None:
        return goodput
    stated = goodput.model_fields_set
    changes = {} if "checkpoint_s" in stated else {"checkpoint_s": times.save_s}
    if "restart_s" not in stated:
        changes["restart_s"] = goodput.restart_s + times.load_s
    # Validated: a checkpoint may have taken longer than a plan allows.
    return Goodput.model_validate(goodput.model_dump() | changes)
