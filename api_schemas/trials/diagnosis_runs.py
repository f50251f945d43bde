"""Schemas of runs under torch's profiler, requested for a trial, and their diagnosis."""

from datetime import datetime

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.trial import TrialState


class StoredTrace(Schema):
    """Trace that one rank recorded under the profiler, available for download."""

    rank: int
    bytes: int = Field(examples=[412_345])
    """Size of the trace in bytes, as compressed by the rank."""


class TrialDiagnosis(Schema):
    """Diagnosis of a trial from a profiled run; while the run has not ended, its state."""

    study_id: str
    trial_number: int
    run_id: str
    state: TrialState
    """State of the profiled run. `waiting`: it waits for a worker like those that measured the study. `infeasible` and
    `failed` come with a `failure`. No state affects the study."""
    asked_at: datetime
    """Time at which a user, or the study's budget, requested the diagnosis."""
    finished_at: datetime | None
    worker: str | None
    """Name of the last worker that executed the profiled run. The raw traces stay in a folder of this worker
    (`diagnosis.recorded.folder`)."""
    gpu_seconds: float
    """GPU-seconds used by the diagnosis so far."""
    failure: Failure | None = None
    diagnosis: Diagnosis | None = None
    """Diagnosis of the trial; None until the run is complete."""
    traces: tuple[StoredTrace, ...] = ()
    """Raw traces that the service has stored, one per rank (`GET …/trace?rank=`). Traces of all other ranks are only on
    the worker."""
