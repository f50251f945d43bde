"""What a configuration is predicted to need and to do, before a GPU-second is spent on it."""

from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSpec, ModelSummary
from shardtune.api_schemas.training.workload import MOST_SAMPLES, ChosenPrecision

Verdict = Literal["fits", "may fit", "does not fit"]
"""By the 90 % interval: all of it is within what a rank may use, some of it, or nothing. Only a run can tell of `may fit`."""

Bound = Literal["compute", "memory bandwidth", "intra-node link", "network", "host link", "host launches"]


class MemoryTerm(Schema):
    """One kind of memory of one rank at the moment its memory peaks."""

    name: str
    gib: float
    source: str
    """Where the formula comes from."""


class MemoryPrediction(Schema):
    """Peak memory of one rank; GiB."""

    terms: tuple[MemoryTerm, ...]
    """Add up to `total_gib`."""
    moment: str
    """Of the step at which it peaks."""
    allocated_gib: float
    """Tensors (torch's `max_memory_allocated`)."""
    reserved_gib: float
    """What the caching allocator holds for them."""
    total_gib: float
    """What the device reports in use: reserved, context and communication library."""
    low_gib: float
    high_gib: float
    """90 % interval of the total."""
    capacity_gib: float
    """What a rank may use: its memory less what a study keeps free by default."""
    verdict: Verdict
    margin_gib: float
    """Capacity less total; negative: by how much it does not fit."""
    host_gib_per_node: float
    """Offloaded to host memory."""


class SpeedPrediction(Schema):
    """Speed of a step; seconds and tokens of one rank."""

    tokens_per_s_per_gpu: float
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """90 % interval."""
    step_time_s: float
    mfu: float | None
    """Model FLOPs (attention in full, nothing recomputed) over the vendor's peak; None where that is unknown."""
    exposed_communication_fraction: float
    """Of the step's time, communication that nothing hides."""
    bound_by: Bound
    parts_s: dict[str, float]
    """Seconds of matrix products, attention, elementwise kernels, launches, communication and the optimizer step."""
    calibrated_on: int = 0
    """Measured trials behind the rates; 0: the catalogue's."""


class TrialPrediction(Schema):
    """What was predicted for a trial when it was made; kept beside what it then measured. Intervals of 90 %."""

    memory_gib: float
    """Peak of the fullest rank: on a GPU what the device reports in use, on CPU ranks tensors."""
    low_memory_gib: float
    high_memory_gib: float
    memory_calibrated_on: int
    """Trials measured on this fingerprint behind the correction; 0: none."""
    tokens_per_s_per_gpu: float | None
    """None for hardware whose rates nobody knows."""
    low_tokens_per_s_per_gpu: float | None
    high_tokens_per_s_per_gpu: float | None
    speed_calibrated_on: int


class Change(Schema):
    """A configuration that fits, near one that does not."""

    description: str
    config: TrialConfig
    total_gib: float
    tokens_per_s_per_gpu: float | None


class Prediction(Schema):
    """Everything said about one configuration."""

    config: TrialConfig
    description: str
    memory: MemoryPrediction
    speed: SpeedPrediction | None
    """None where the catalogue lacks the GPU's rates."""
    longest_sequence: int
    """Tokens per sample that fit with this configuration; 0: none."""
    largest_micro_batch: int
    """Samples that fit at the workload's sequence; 0: none."""
    cheapest_change: Change | None
    """For a configuration that should not fit (`margin_gib` below 0, or too little host memory): the fewest changes that make it fit, the fastest of these."""


class PredictionRequest(Schema):
    """What to predict. Without configurations, the fastest of the search space that fit, and one of each strategy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": EXAMPLE, "cluster": "8xh100"}]})

    model: ModelChoice
    cluster: Cluster | str
    """A cluster, or its short form: `8xh100`, `4x8xa100-80gb`; `local`: a live worker's."""
    hardware: MeasuredHardware | None = None
    """What its GPUs (or CPU ranks) reach, where they are not in the catalogue or were measured; see `measure-hardware`."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """None: the model's own length, up to 4096."""
    micro_batch: int = Field(default=1, ge=1)
    gradient_accumulation: int = Field(default=1, ge=1)
    precision: ChosenPrecision = None
    """As of a workload; null or `auto`: what the cluster's GPUs have."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    configs: tuple[TrialConfig, ...] = Field(default=(), max_length=1000)
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Samples of a step over which the search space is ranked; null: 8 per rank, or those of `micro_batch` if more."""
    top: int | None = Field(default=None, ge=0, le=100)
    """How many of the fastest; null: 10 without configurations, none with some."""
    model_summary: ModelSummary | None = None
    """What was counted on the built model, of an architecture without closed form: a study's, or of `predict --trace`."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_preset(cls, value: object) -> object:
        """Validate a preset's name here, so that the error names this field."""
        return ModelSpec.model_validate(value) if isinstance(value, str) else value


class PredictionTable(Schema):
    """The answer to a request: the fastest of the search space that fit, and one prediction per configuration."""

    model: str
    parameters: int
    cluster: Cluster
    sequence_length: int
    precision: str
    precision_note: str | None = None
    """Why the precision was chosen, where the request left it out, or that the device only emulates its dtype."""
    fastest: tuple[Prediction, ...] = ()
    """Of the search space: those that surely fit, then those that may, each fastest first; empty where none does, or where speed
    cannot be predicted."""
    global_batch: int | None = None
    """Samples of a step of the fastest; null where none were looked for."""
    predictions: tuple[Prediction, ...]
    """One per configuration that was asked about, else one of each strategy, whether it fits or not."""
    notes: tuple[str, ...] = ()
    """What the figures rest on that nobody has checked or measured."""
