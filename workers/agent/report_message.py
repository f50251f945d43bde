"""Report of an attempt as a message to the service."""

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis, ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import Lease, Report
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.attempt import AttemptResult
from shardtune.workers.agent.session import WorkerSession

Result = Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | Diagnosis | RehearsalReport | Failure
"""Result of an attempt of any kind of task."""


def report_message(
    session: WorkerSession, lease: Lease, attempted: AttemptResult, result: Result, waited_s: float | None = None
) -> Report:
    """Message to the service that reports the result of an attempt. It names the worker session and the attempt, as in
    the attempt's lease."""
    return Report(
        protocol_version=session.protocol_version,
        session=session.id,
        attempt=lease.attempt,
        measurement=result if isinstance(result, Measurement) else None,
        model_summary=result if isinstance(result, ModelSummary) else None,
        resume_check=result if isinstance(result, ResumeMeasurement) else None,
        diagnosis=result if isinstance(result, Diagnosis) else None,
        rehearsal=result if isinstance(result, RehearsalReport) else None,
        failure=result if isinstance(result, Failure) else None,
        gpu_seconds=attempted.gpu_seconds,
        log_tail=attempted.log_tail,
        waited_s=waited_s,
    )
