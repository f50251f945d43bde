"""Runs under the profiler that a study's user has asked for, and their diagnosis."""

from datetime import datetime

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.trial import TrialState


class StoredTrace(Schema):
    """Trace that one rank recorded, to be downloaded."""

    rank: int
    bytes: int = Field(examples=[412_345])
    """Size as the rank compressed it."""


class TrialDiagnosis(Schema):
    """Diagnosis of a trial, or the state of the run that is to make it."""

    study_id: str
    trial_number: int
    run_id: str
    state: TrialState
    """State: `waiting` for a worker like those that measured the study, `running`, `complete`; `infeasible` and
    `failed` have a `failure`, and change nothing of the study."""
    asked_at: datetime
    """Time at which a person or the study's budget asked for it."""
    finished_at: datetime | None
    worker: str | None
    """Worker that ran it last; the raw traces are with it (`diagnosis.recorded.folder`)."""
    gpu_seconds: float
    """GPU-seconds that it has cost so far."""
    failure: Failure | None = None
    diagnosis: Diagnosis | None = None
    """Diagnosis; None until it is complete."""
    traces: tuple[StoredTrace, ...] = ()
    """Raw traces that the service stores (`GET …/trace?rank=`); the others are with the worker."""
