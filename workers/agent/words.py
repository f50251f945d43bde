"""Short descriptions of tasks and results for the worker's log."""

from typing import assert_never

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import Lease
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement


def task(lease: Lease) -> str:
    """Short description of a lease's task for the worker's log."""
    if lease.task.kind == "model_summary":
        return "model_summary"
    return f"{lease.task.kind} of {lease.task.config.describe()}"


def end(
    result: Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | Diagnosis | RehearsalReport | Failure,
) -> str:
    """Short description of an attempt's result for the worker's log."""
    match result:
        case Failure():
            return f"{result.kind} ({result.message})"
        case Measurement():
            return f"{result.tokens_per_s_per_gpu:.1f} tokens/s/GPU"
        case ResumeMeasurement():
            return f"saved in {result.save_s:.2f} s, loaded in {result.load_s:.2f} s"
        case ProfilerRecording():
            return f"{result.steps} steps recorded in {result.folder}"
        case Diagnosis():
            return f"a diagnosis of steps of {1e3 * result.step_s:.1f} ms"
        case RehearsalReport():
            problem = result.answers[-1].problem
            return "rehearsed" if problem is None else f"not rehearsed ({problem.code}): {problem.message}"
        case ModelSummary():
            return f"{result.parameters:,} parameters"
        case _:
            assert_never(result)
