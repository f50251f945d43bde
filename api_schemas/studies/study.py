"""Schemas of a study (a search for the fastest training configuration) as stored: its state, progress and result."""

from datetime import datetime

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.training.models import ModelSummary


class Study(Schema):
    """Study as stored, with its state, progress and result."""

    study_id: str
    project_id: str = DEFAULT_PROJECT
    state: StudyState
    phase: StudyPhase
    spec: StudySpec
    cluster: Cluster
    """Cluster that the study's request names. If the request names `local`, it is the actual hardware."""
    model_summary: ModelSummary | None = None
    """Summary of the study's model (parameters and FLOPs); None until a worker has built the model."""
    fingerprint: Fingerprint | None = None
    trials: dict[str, int]
    """Number of the study's trials by state."""
    rejected: int
    """Number of configurations rejected by the memory gate (predicted not to fit); they are not trials."""
    gpu_seconds: float
    final_comparison: int = 0
    """Number of the study's final comparison (paired runs that decide) whose runs count; runs of earlier ones do not.
    It increases when a final comparison begins, and when a search continues after one."""
    final_comparison_runs: int | None = None
    """Maximum number of validation runs in the final comparison (paired runs that decide); None before the comparison
    has begun."""
    created_at: datetime
    started_at: datetime | None = None
    """Time at which the study could first run, because a worker had its cluster; None if it still waits for a
    worker."""
    finished_at: datetime | None = None
    deleted_at: datetime | None = None
    """Time at which the study was deleted, after which lists omit it; None if not deleted."""
    best_so_far: Contender | None = None
    """Fastest configuration of the search so far. Its speed comes from a search run, and paired runs have not confirmed
    it yet."""
    result: StudyResult | None = None
    """Result of the study. If the study is extended, the previous result remains until a new one replaces it."""
    reason: str | None = None
    """Sentence that says why the search stopped, why the study failed, or why no worker takes its runs. None if there
    is nothing to explain."""
    reason_code: StudyReasonCode | None = None
    """Code of the field `reason`, for programs. If None, there is no reason, or it has no code."""
    reason_details: str = ""
    """Last part of the text in `reason`, which stands there in brackets, such as the losses that differ."""
    system_study: SystemStudy | None = None
    """Purpose and settings of a study that the service started itself; None for a user's study."""
    warnings: tuple[str, ...] = ()
    """Warnings about the request of the study. Examples are: the precision that was chosen for `auto`, and why; a dtype
    that the device only emulates; keys of the baseline that are unknown or have no effect; values that were assumed for
    missing keys."""


class StudyPage(Schema):
    """Page of studies in the requested order."""

    studies: tuple[Study, ...]
    next_page_token: str | None = None
    """Token with which to request the next page; None on the last page."""
