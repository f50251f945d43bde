"""A run under the profiler that a study's user has asked for, and what it told."""

from datetime import datetime

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.trial import TrialState


class StoredTrace(Schema):
    """What one rank recorded, to be downloaded."""

    rank: int
    bytes: int = Field(examples=[412_345])
    """Compressed, as the rank left it."""


class TrialDiagnosis(Schema):
    """Where the steps of a trial went, or what became of the run that is to tell."""

    study_id: str
    trial_number: int
    run_id: str
    state: TrialState
    """`waiting` for a worker like those that measured the study, `running`, `complete`; `infeasible` and `failed` have a
    `failure`, and nothing of the study follows from it."""
    asked_at: datetime
    """When a person or the study's budget asked for it."""
    finished_at: datetime | None
    worker: str | None
    """That ran it last; the raw traces are with it (`diagnosis.recorded.folder`)."""
    gpu_seconds: float
    """That it has cost so far."""
    failure: Failure | None = None
    diagnosis: Diagnosis | None = None
    """None until it is complete."""
    traces: tuple[StoredTrace, ...] = ()
    """Raw ones that the service stores (`GET …/trace?rank=`); the others are with the worker."""
