"""Answers of the tools about studies: recommendations, comparisons, states, diagnoses and exports."""

from datetime import datetime
from typing import Literal

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.service.mcp.schemas.answers import ShownConfig, ToolAnswer
from shardtune.service.mcp.schemas.figures import Figure


class MeasuredConfig(ShownConfig):
    """Configuration with measured figures."""

    trial_number: int
    """Number of the trial in its study."""
    runs: int
    """Number of runs from which the speed is calculated."""


class ListedStudy(Schema):
    """Study in a list."""

    study_id: str
    state: StudyState
    phase: StudyPhase
    model: str
    cluster: str
    """Cluster in words."""
    sequence_length: int
    """Tokens per sample."""
    global_batch: int
    """Samples per step."""
    trained: str
    """Part of the model that is trained: `all weights`, or the adapter in words."""
    samples: str
    """Lengths of the samples: `equal lengths`, or their range, mean and layout."""
    trials: int
    """Number of trials so far."""
    gpu_seconds: Figure
    """GPU-seconds that the study has used."""
    created_at: datetime
    best: MeasuredConfig | None
    """Recommended configuration; while the study runs, the fastest so far, which is not confirmed."""


class StudiesListAnswer(ToolAnswer):
    """Answer of `studies_list`."""

    studies: tuple[ListedStudy, ...]
    """Studies that the key sees, newest first."""


class StudyOutcome(Schema):
    """Result of a study."""

    verdict: Verdict
    """Verdict of the paired runs; only `confirmed` proves a gain."""
    speedup: Figure | None
    """Speed of the challenger divided by that of the baseline, in paired runs."""
    best: MeasuredConfig
    """Recommended configuration."""
    baseline: MeasuredConfig
    """Configuration that the others were compared with: the user's, or the fastest documented default."""
    candidate: MeasuredConfig | None
    """Configuration that was compared with the baseline but did not become the recommendation."""
    notes: tuple[str, ...]
    """Notes about the result."""


class StudiesStatusAnswer(ToolAnswer):
    """Answer of `studies_status`."""

    study: ListedStudy
    """Study with its progress."""
    reason: str | None
    """Reason why the search stopped, or why the study failed."""
    warnings: tuple[str, ...]
    """Warnings about the study's request."""
    result: StudyOutcome | None
    """Result; null while the study runs."""


class StudiesCreateAnswer(ToolAnswer):
    """Answer of `studies_create`: an estimate, or the study that was created."""

    state: Literal["needs_confirmation", "created"]
    """`needs_confirmation` means that nothing was started: show the estimate to the user, and repeat the call with the
    code."""
    confirmation: str | None
    """Code of this estimate. It is valid for exactly this request and budget, for 12 hours, and creates one study."""
    max_gpu_seconds: float
    """Budget of the study in GPU-seconds."""
    gpu_hours: Figure | None
    """Expected GPU-hours within the budget; null: step times cannot be predicted."""
    minutes: Figure | None
    """Expected minutes on one worker, within the budget."""
    expected_gain: Figure | None
    """Predicted speed of the fastest configuration divided by that of the baseline."""
    stops: tuple[str, ...]
    """Limits that end the study."""
    study: ListedStudy | None
    """Study that was created; null if the call had no confirmation code."""


class BestAnswer(ToolAnswer):
    """Answer of `best`."""

    target_key: str
    match: Literal["exact", "nearest"]
    """Whether the configuration was measured for exactly this job."""
    differences: dict[str, tuple[JsonValue, JsonValue]]
    """Fields in which the measured job differs from the requested one, each with the requested and the measured
    value."""
    confidence: Literal["high", "medium", "low"]
    """Confidence in the configuration for this job."""
    reasons: tuple[str, ...]
    """Reasons that lower the confidence."""
    freshness: str
    """Whether hardware and software are still those on which the configuration was measured."""
    trained: str
    """Part of the model that is trained: `all weights`, or the adapter in words."""
    samples: str
    """Lengths of the samples: `equal lengths`, or their range, mean and layout."""
    study_id: str
    measured_at: datetime
    verdict: Verdict
    """Verdict of the paired runs; only `confirmed` proves a gain."""
    speedup: Figure | None
    """Speed of the challenger divided by that of the baseline, in paired runs."""
    best: MeasuredConfig
    """Recommended configuration."""
    baseline: MeasuredConfig
    """Baseline of the study."""


class ComparedSide(MeasuredConfig):
    """Configuration of a comparison."""

    study_id: str
    model: str
    cluster: str
    """Cluster in words."""
    step_time: Figure | None
    """Seconds of a step; null: not measured."""
    is_baseline: bool
    """Whether the configuration is the baseline of its study."""
    speedup: Figure | None
    """Speed divided by that of the study's baseline, in paired runs; null unless this configuration was compared with
    it in pairs."""


class CompareAnswer(ToolAnswer):
    """Answer of `compare`."""

    configurations: tuple[ComparedSide, ...]
    """Compared configurations, in the order of the call's `picks`."""
    differences: dict[str, tuple[JsonValue, ...]]
    """Knobs that differ between the configurations, each with its value in every configuration."""
    is_one_subject: bool
    """Whether all configurations train the same model and workload on the same cluster; otherwise their speeds are not
    comparable."""
    not_found: tuple[str, ...]
    """Entries of `picks` that name no trial, or a trial without a measurement."""


class DiagnosedFinding(Schema):
    """Known performance problem with its remedy."""

    kind: str = Field(examples=["late_rank"])
    title: str
    """Name of the problem in words."""
    evidence: str
    """Evidence with its figures."""
    remedy: str
    """Recommended change."""
    knobs: dict[str, JsonValue]
    """Recommended change, as values of knobs; empty if the configuration of the traced job is not known."""
    expected_gain: Figure
    """Expected saving of the change, as a fraction of the step time."""
    tried: str | None
    """Measured result of the recommended change; null if it was not tried."""


class DiagnosedCollective(Schema):
    """Time of the collectives of one kind and purpose."""

    name: str
    calls: float
    """Number of calls per step and rank."""
    exposed: Figure
    """Seconds per step in which communication ran and no computation overlapped with it."""
    waiting: Figure
    """Seconds per step in which ranks waited until the last rank had joined the collective."""


class DiagnoseAnswer(ToolAnswer):
    """Answer of `diagnose`."""

    state: str = Field(examples=["complete"])
    """`complete`, or the state of the run under the profiler that is not complete yet; then call again later."""
    study_id: str | None
    trial_number: int | None
    """Number of the trial; null if a folder of traces was diagnosed."""
    device: str | None
    """Device of the ranks: `cuda` or `cpu`."""
    ranks: int
    """Number of ranks whose traces were read."""
    step_time: Figure | None
    """Mean seconds of a step under the profiler."""
    parts: dict[str, Figure]
    """Fraction of the step time that each part takes, largest first; the fractions sum to 1."""
    overlap: Figure | None
    """Fraction of the communication time that overlaps with computation; null if there was no communication."""
    late_rank: int | None
    """Rank that the other ranks wait for most; null if there is none."""
    findings: tuple[DiagnosedFinding, ...]
    """Known performance problems that were found, starting with the largest expected gain. Empty if no rule applies."""
    collectives: tuple[DiagnosedCollective, ...]
    """Kinds of collectives with the longest exposed time (communication that no computation overlaps)."""
    gpu_seconds: Figure | None
    """GPU-seconds that the run under the profiler took; null if a folder of traces was diagnosed."""
    notes: tuple[str, ...]
    """Questions that the traces cannot answer."""


class ExportAnswer(ToolAnswer):
    """Answer of `export`."""

    format: str
    """Format of the files."""
    release: str | None
    """Release of the program for which the files are made."""
    files: dict[str, str]
    """Content of each file by its name."""
    lossy: tuple[str, ...]
    """Settings that the program cannot express, each with what the program does instead."""
