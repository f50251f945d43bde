"""From traces in a folder to findings, with whatever else is known of the job that left them."""

from pathlib import Path

from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.explain.trace_run import Recorded
from shardtune.traces import folder as traces
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings import traced_trial


def explained(folder: Path) -> Diagnosis:
    """Of a job of which nothing else is known.

    Raises:
        InputError: see `diagnosis_of`.
    """
    return explain.explained(diagnosis_of(folder), None, None)


def explained_trial(recorded: Recorded) -> Diagnosis:
    """Of a trial of a study, with remedies that its space and the memory gate admit.

    Raises:
        InputError: see `diagnosis_of`.
    """
    found = diagnosis_of(Path(recorded.traced.folder)).model_copy(update={"recorded": recorded.traced})
    trial = traced_trial.of_study(recorded.study, recorded.task.config, recorded.measured)
    return explain.explained(found, trial, recorded.measured)


def diagnosis_of(folder: Path) -> Diagnosis:
    """Of the traces in a folder, one a rank.

    Raises:
        InputError: there are none, or one cannot be read to its end.
    """
    try:
        return traces.diagnosis_of(folder)
    except UnreadableTrace as error:
        raise InputError(f"--trace ({folder}): {error}") from None
