"""Predictions of a configuration's memory and speed, before a GPU-second is spent on it."""

from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import MOST_SAMPLES, ChosenPrecision

Verdict = Literal["fits", "may fit", "does not fit"]
"""Verdict by the 90 % interval: all of it is within the memory that a rank may use, some of it, or nothing. Only a
run can decide about `may fit`."""

Bound = Literal["compute", "memory bandwidth", "intra-node link", "network", "host link", "host launches"]


class MemoryTerm(Schema):
    """One kind of memory of one rank at the moment its memory peaks."""

    name: str
    gib: float
    source: str
    """Source of the formula."""


class MemoryPrediction(Schema):
    """Peak memory of one rank, in GiB."""

    terms: tuple[MemoryTerm, ...]
    """Terms, which add up to `total_gib`."""
    moment: str
    """Moment of the step at which memory peaks."""
    allocated_gib: float
    """Memory of tensors (torch's `max_memory_allocated`)."""
    reserved_gib: float
    """Memory that the caching allocator holds for the tensors."""
    total_gib: float
    """Memory that the device reports in use: reserved, context and communication library."""
    low_gib: float
    high_gib: float
    """Upper end of the 90 % interval of the total; `low_gib` is the lower."""
    capacity_gib: float
    """Memory that a rank may use: its memory less what a study keeps free by default."""
    verdict: Verdict
    margin_gib: float
    """Capacity less total; negative: the amount that does not fit."""
    host_gib_per_node: float
    """Memory offloaded to the host."""


class SpeedPrediction(Schema):
    """Speed of a step; seconds and tokens of one rank."""

    tokens_per_s_per_gpu: float
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Upper end of the 90 % interval; `low_tokens_per_s_per_gpu` is the lower."""
    step_time_s: float
    mfu: float | None
    """Model FLOPs (attention in full, nothing recomputed) over the vendor's peak; None where that is unknown."""
    exposed_communication_fraction: float
    """Fraction of the step's time in communication that nothing hides."""
    bound_by: Bound
    parts_s: dict[str, float]
    """Seconds of matrix products, attention, elementwise kernels, launches, communication and the optimizer step."""
    calibrated_on: int = 0
    """Number of measured trials behind the rates; 0: the catalogue's."""


class TrialPrediction(Schema):
    """Prediction for a trial at its creation, kept beside its measurement. Intervals of 90 %."""

    memory_gib: float
    """Peak memory of the fullest rank: on a GPU as the device reports it, on CPU ranks tensors."""
    low_memory_gib: float
    high_memory_gib: float
    memory_calibrated_on: int
    """Number of trials measured on this fingerprint behind the correction; 0: none."""
    tokens_per_s_per_gpu: float | None
    """Predicted speed; None for hardware whose rates are unknown."""
    low_tokens_per_s_per_gpu: float | None
    high_tokens_per_s_per_gpu: float | None
    speed_calibrated_on: int


class Change(Schema):
    """Configuration that fits, near one that does not."""

    description: str
    config: TrialConfig
    total_gib: float
    tokens_per_s_per_gpu: float | None


class Prediction(Schema):
    """Prediction of one configuration."""

    config: TrialConfig
    description: str
    memory: MemoryPrediction
    speed: SpeedPrediction | None
    """Predicted speed; None where the catalogue lacks the GPU's rates."""
    longest_sequence: int
    """Tokens per sample that fit with this configuration; 0: none."""
    largest_micro_batch: int
    """Samples that fit at the workload's sequence; 0: none."""
    cheapest_change: Change | None
    """Fewest changes that make the configuration fit, the fastest of these. Only for one that should not fit
    (`margin_gib` below 0, or too little host memory)."""


class PredictionRequest(Schema):
    """Request for predictions. Without configurations, the answer has the fastest of the search space that fit, and
    one of each strategy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": EXAMPLE, "cluster": "8xh100"}]})

    model: ModelChoice
    cluster: Cluster | str
    """Cluster in full, or its short form: `8xh100`, `4x8xa100-80gb`; `local`: a live worker's."""
    hardware: MeasuredHardware | None = None
    """Rates of its GPUs (or CPU ranks), where they are not in the catalogue or were measured; see
    `measure-hardware`."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """Tokens per sample; None: the model's own length, up to 4096."""
    micro_batch: int = Field(default=1, ge=1)
    gradient_accumulation: int = Field(default=1, ge=1)
    precision: ChosenPrecision = None
    """Precision as of a workload; null or `auto`: chosen by the cluster's GPUs."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    configs: tuple[TrialConfig, ...] = Field(default=(), max_length=1000)
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Samples of a step over which the search space is ranked; null: 8 per rank, or those of `micro_batch` if more."""
    top: int | None = Field(default=None, ge=0, le=100)
    """Number of the fastest configurations; null: 10 without configurations, none with some."""
    model_summary: ModelSummary | None = None
    """Model summary of an architecture without closed form: a study's, or of `predict --trace`."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_preset(cls, value: object) -> object:
        """Validate a preset's name here, so that the error names this field."""
        return ModelSpec.model_validate(value) if isinstance(value, str) else value


class PredictionTable(Schema):
    """Answer to a request: the fastest configurations of the search space that fit, and one prediction per
    configuration."""

    model: str
    parameters: int
    cluster: Cluster
    sequence_length: int
    precision: str
    precision_note: str | None = None
    """Reason for the precision, where the request left it out, or a warning that the device only emulates its dtype."""
    fastest: tuple[Prediction, ...] = ()
    """Fastest of the search space: those that surely fit, then those that may, each fastest first; empty where none
    does, or where speed cannot be predicted."""
    global_batch: int | None = None
    """Samples of a step of the fastest; null where none were looked for."""
    predictions: tuple[Prediction, ...]
    """Prediction of each configuration that was asked about, else one of each strategy, whether it fits or not."""
    notes: tuple[str, ...] = ()
    """Unverified or unmeasured assumptions behind the figures."""
