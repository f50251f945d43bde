"""Make a diagnosis with findings from the traces in a folder, using what is known of the traced job."""

from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.explain.trace_run import RecordedTrial
from shardtune.traces import folder as traces
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings import traced_trial


def explain_folder(folder: Path) -> Diagnosis:
    """Diagnose a training job from nothing but its traces.

    Raises:
        InputError: see `diagnosis_of`.
    """
    return explain.explain(read_diagnosis(folder), None, None)


def explain_trial(recorded: RecordedTrial) -> Diagnosis:
    """Diagnose a trial whose traces were recorded. Its remedies lie within the study's search space and are predicted
    to fit into memory.

    Raises:
        InputError: see `diagnosis_of`.
    """
    diagnosis = read_diagnosis(Path(recorded.traced.folder)).model_copy(update={"recorded": recorded.traced})
    trial = traced_trial.of_study(recorded.study, recorded.task.config, recorded.measured)
    return explain.explain(diagnosis, trial, recorded.measured)


def read_diagnosis(folder: Path) -> Diagnosis:
    """Read the traces in a folder, one for each rank, and return a diagnosis, to which the caller
    adds the findings.

    Raises:
        InputError: the folder has no traces, or a trace cannot be read to its end.
    """
    try:
        return traces.diagnose_folder(folder)
    except UnreadableTrace as error:
        raise InputError(f"--trace ({folder}): {error}") from None
