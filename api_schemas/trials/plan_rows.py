"""Schemas of a plan's rows: the configuration for one kind and number of GPUs, with hours, money and date of the run."""

from datetime import date
from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Band, Schema
from shardtune.api_schemas.strategies import TrialConfig

Evidence = Literal["predicted", "projected", "measured"]
"""Basis of a figure in a plan's row. It is predicted from the catalogue alone, projected from measurements on fewer GPUs
or with another batch, or measured on so many GPUs."""
StudyVerdict = Literal["confirmed", "not_faster", "undecided", "too_busy"]
"""Verdict of the study that measured a plan's row: whether paired runs confirmed its configuration."""


class DateBand(Schema):
    """Day on which a training run is expected to end, with the first and last day of the 90 % band."""

    expected: date = Field(examples=["2031-01-17"])
    """Expected day."""
    earliest: date = Field(examples=["2030-12-28"])
    """First day of the band."""
    latest: date = Field(examples=["2031-02-16"])
    """Last day of the band."""


class PlanRow(Schema):
    """Best configuration for one kind and number of GPUs, with the time and the money that the training run takes on
    them."""

    gpu: str
    """Kind of GPU, as the request names it."""
    gpus: int
    """Number of GPUs."""
    config: TrialConfig
    description: str
    evidence: Evidence
    """Basis of the speed: predicted from the catalogue, projected from measurements, or measured on so many GPUs."""
    study_id: str | None = Field(default=None, examples=["study-3f9a0c12be47"])
    """Id of the study that measured or projected the speed. null for predictions, and for measurements that the request
    states."""
    verdict: StudyVerdict | None = Field(default=None, examples=["confirmed"])
    """Verdict of the study about the configuration of a measured row. `confirmed`: paired runs showed that it is faster
    than the baseline or, on the target of a study, than its second choice. Otherwise its speed was measured, and nothing
    shows that it is the fastest. null for rows that no study measured."""
    global_batch: int
    """Number of samples per step: the requested number, rounded so that the ranks can divide it evenly. If the request
    states none, a row of a study has the batch that the study measured or projected."""
    tokens_per_s_per_gpu: Band
    memory_gib: float
    """Peak memory of one GPU in GiB: as the device reports it if it is predicted, otherwise of tensors alone (torch's
    `max_memory_allocated`)."""
    memory_evidence: Evidence = "predicted"
    """Basis of `memory_gib`, which may be another one than that of the speed."""
    may_not_fit: bool
    """Whether the 90 % band of the peak memory, if it was not measured, extends beyond the GPU's memory."""
    goodput: float
    """Fraction of the run's time in which steps are trained. The rest is lost to pauses, failures and checkpoints."""
    checkpoint_interval_s: float | None
    """Seconds between two checkpoints; null if no failures are expected and the request states no interval."""
    hours: Band
    """Hours from start to end."""
    gpu_hours: Band
    """Hours of all GPUs together."""
    cost: Band | None
    """Cost of all GPU-hours of the run, in the currency of the prices; null if this kind of GPU has no price."""
    finish: DateBand
    """Day (UTC) on which the training run ends, with its 90 % band."""
    meets_deadline: Literal["surely", "likely", "unlikely", "no"] | None
    """Whether the run ends before the deadline. `surely`: on every day of the 90 % band of its end; `likely`: on the
    expected day; `unlikely`: only on early days of the band; `no`: on no day of the band. null without a deadline."""
    within_budget: Literal["surely", "likely", "unlikely", "no"] | None
    """Whether the run costs no more than the budget. `surely`: for the whole 90 % band of its cost; `likely`: for the
    expected cost; `unlikely`: only for the low end of the band; `no`: for no cost in the band. null without a price or
    a budget."""
    extrapolated_from: tuple[int, ...] = ()
    """Numbers of GPUs on which the speed was measured, if this row is measured or projected from them; otherwise empty.
    If a study projected it to another kind of GPU, the GPUs are of the study's own kind, which a note names."""


class ImpossibleRow(Schema):
    """Kind and number of GPUs on which no configuration of the training run is possible, with the reason."""

    gpu: str
    """Kind of GPU, as the request names it."""
    gpus: int
    """Number of GPUs."""
    reason: str
    """Reason why no configuration can run, with a remedy."""
