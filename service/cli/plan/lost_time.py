"""Assumptions about the time that a run loses to checkpoints and failures: as stated, or as a study's resume check
measured them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER
from shardtune.api_schemas.trials.plans import Goodput, Plan
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule

if TYPE_CHECKING:
    from shardtune.api_schemas.studies.study import Study
    from shardtune.service.cli import connection
else:
    connection = LazyModule("shardtune.service.cli.connection")


class StudyOptions(NamedTuple):
    """Options that name a stored study, and the service or the folder in which it is stored."""

    study: str | None
    service: str | None
    key_file: Path | None
    state_dir: Path


class ResumeTimes(NamedTuple):
    """Seconds that a study's resume check measured, with a note on where; without a study, the default of a plan."""

    save_s: float = Goodput().checkpoint_s
    load_s: float = 0.0
    """Seconds to add to the stated time of a restart, which includes loading unless it was measured."""
    note: str = ""

    def noted(self, plan: Plan) -> Plan:
        """Return the plan with a note on the measured times, if there are any."""
        return plan.model_copy(update={"notes": (*plan.notes, self.note)}) if self.note else plan


def measured_times(options: StudyOptions, model: ModelSpec) -> ResumeTimes:
    """Read the times that the resume check of a stored study measured; `model` is the plan's model.

    Raises:
        InputError: there is no such study, its checkpoints are of another training, or its resume check measured nothing.
    """
    if options.study is None:
        return ResumeTimes()
    with connection.connect_or_start(options.service, options.state_dir, options.key_file) as client:
        return times_of(connection.find_study(client, options.study), model)


def times_of(study: Study, model: ModelSpec) -> ResumeTimes:
    """Return the times that a study's resume check measured.

    Raises:
        InputError: the study's checkpoints have another size than the plan's, or its resume check measured nothing.
    """
    _check_training(study, model)
    check = None if study.result is None else study.result.resume_check
    if check is None or check.save_s is None or check.load_s is None:
        reason = f": {check.reason}" if check is not None and check.reason else ""
        raise InputError(
            f"--study ({study.study_id}) has no times of a resume check{reason}; name a study whose result has them, or "
            "state --checkpoint-seconds and --restart-seconds"
        )
    gpus = counted(study.cluster.world_size, "CPU rank" if study.cluster.device == "cpu" else "GPU")
    return ResumeTimes(
        check.save_s,
        check.load_s,
        f"study {study.study_id}: its resume check saved a checkpoint in {check.save_s:.3g} s and loaded it in "
        f"{check.load_s:.3g} s on {gpus}, which was not scaled to other sizes",
    )


def _check_training(study: Study, model: ModelSpec) -> None:
    """Check that a study's checkpoints have what a plan's have: all weights of its model, with the states of AdamW."""
    workload, own, problem = study.spec.workload, study.spec.model, ""
    # Models without a name of their own have that of their architecture, such as llama.
    keys = {TuningTarget(each, workload, study.cluster).model_key for each in (own, model)}
    if len(keys) > 1:
        other = f"another {model.name}" if own.name == model.name else model.name
        problem = f"{own.name}, and the plan is of {other}, whose checkpoint has another size"
    elif workload.adapter is not None:
        problem = (
            f"{workload.adapter.describe()}, whose checkpoint leaves out frozen weights, and plans train all weights"
        )
    elif workload.optimizer.kind != DEFAULT_OPTIMIZER:
        problem = (
            f"with {workload.optimizer.kind}, whose states have another size in a checkpoint than {DEFAULT_OPTIMIZER}'s"
        )
    if problem:
        raise InputError(
            f"--study ({study.study_id}) trained {problem}; name a study of the plan's training, or state "
            "--checkpoint-seconds and --restart-seconds"
        )
