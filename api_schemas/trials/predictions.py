"""Schemas of predicted memory and speed of a configuration, calculated without using a GPU."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import Checkpointing, TrialConfig
from shardtune.api_schemas.training.adapters import Adapter
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSpec, ModelSummary
from shardtune.api_schemas.training.optimizers import AdamW, Optimizer
from shardtune.api_schemas.training.sample_lengths import SampleLengths, check_lengths
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import MOST_SAMPLES, ChosenPrecision

Verdict = Literal["fits", "may fit", "does not fit"]
"""Whether a configuration fits into memory, by the 90 % interval of the prediction: entirely, partly or not at all
within a rank's memory. `may fit` needs a run to decide."""

Bound = Literal["compute", "memory bandwidth", "intra-node link", "network", "host link", "host launches"]


class MemoryTerm(Schema):
    """Contribution to the predicted memory of one rank at the moment of its peak, such as parameters or activations."""

    name: str
    gib: float
    source: str
    """Source of the formula that predicts this part of the memory."""


class MemoryPrediction(Schema):
    """Predicted peak memory of one rank, in GiB."""

    terms: tuple[MemoryTerm, ...]
    """Contributions to the predicted memory, whose sum is `total_gib`."""
    moment: str
    """Moment of the training step at which memory peaks."""
    allocated_gib: float
    """Predicted memory of tensors in GiB (torch's `max_memory_allocated`)."""
    reserved_gib: float
    """Predicted memory in GiB that the caching allocator reserves for tensors."""
    total_gib: float
    """Predicted memory in GiB that the device reports in use: reserved memory, context and communication library."""
    low_gib: float
    high_gib: float
    """Upper end of the 90 % interval of the predicted total in GiB; `low_gib` is the lower end."""
    capacity_gib: float
    """Memory in GiB that a rank may use: the device's memory minus the part that a study keeps free by default."""
    verdict: Verdict
    margin_gib: float
    """Capacity minus predicted total in GiB; if negative, the missing amount."""
    host_gib_per_node: float
    """Predicted host memory per node in GiB used by offloading."""


class SpeedPrediction(Schema):
    """Predicted speed of a training step; times and tokens are of one rank."""

    tokens_per_s_per_gpu: float
    """Predicted tokens per second and GPU, without padding."""
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Upper end of the 90 % interval of the predicted speed; `low_tokens_per_s_per_gpu` is the lower end."""
    step_time_s: float
    mfu: float | None
    """Predicted model FLOPs utilisation: model FLOPs (attention in full, without recomputation) over the vendor's peak;
    None if the peak is unknown."""
    exposed_communication_fraction: float
    """Fraction of the step's time spent in communication that does not overlap with other work."""
    bound_by: Bound
    parts_s: dict[str, float]
    """Predicted seconds of a step by part: matrix products, attention, elementwise kernels, launches, communication and
    optimizer step."""
    calibrated_on: int = 0
    """Number of measured trials that calibrated the prediction's rates; 0: the rates are the catalogue's."""
    padding_fraction: float | None = None
    """Fraction of the computed tokens that is padding; null where all samples have one length."""


class TrialPrediction(Schema):
    """Prediction for a trial at its creation, stored for comparison with its measurement. Intervals are 90 % intervals."""

    memory_gib: float
    """Predicted peak memory in GiB of the rank with the most: on a GPU as the device reports it, on CPU ranks the
    memory of tensors."""
    low_memory_gib: float
    high_memory_gib: float
    memory_calibrated_on: int
    """Number of trials measured on this fingerprint (hardware and software) that calibrated the memory prediction; 0:
    none."""
    tokens_per_s_per_gpu: float | None
    """Predicted speed in tokens per second and GPU; None if the hardware's rates are unknown."""
    low_tokens_per_s_per_gpu: float | None
    high_tokens_per_s_per_gpu: float | None
    speed_calibrated_on: int


class Change(Schema):
    """Suggested configuration that is predicted to fit, similar to a configuration that does not fit."""

    description: str
    config: TrialConfig
    total_gib: float
    tokens_per_s_per_gpu: float | None


class Prediction(Schema):
    """Predicted memory and speed of one configuration."""

    config: TrialConfig
    description: str
    memory: MemoryPrediction
    speed: SpeedPrediction | None
    """Predicted speed; None if the catalogue has no rates for the GPU."""
    longest_sequence: int
    """Longest sequence (tokens per sample) predicted to fit with this configuration; 0: none."""
    largest_micro_batch: int
    """Largest micro batch (samples) predicted to fit at the workload's sequence length; 0: none."""
    cheapest_change: Change | None
    """Configuration with the fewest changes that fits, and of several the fastest. Only given if the configuration
    should not fit (`margin_gib` below 0, or too little host memory)."""
    rank: int | None = None
    """Place among the fastest configurations, from 1. Configurations whose predicted speeds differ by less than the
    error of such a comparison (`equal_within`) share a place, the simplest first. null: not ranked."""


class PredictionRequest(Schema):
    """Request for predictions. Without configurations, the response contains the fastest ones of the search space that
    fit, and one of each strategy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": EXAMPLE, "cluster": "8xh100"}]})

    model: ModelChoice
    cluster: Cluster | str
    """Cluster in full, or by its short form: `8xh100`, `4x8xa100-80gb`; `local`: the cluster of a live worker."""
    hardware: MeasuredHardware | None = None
    """Measured rates of the cluster's GPUs or CPU ranks, required if they are not in the catalogue; see
    `measure-hardware`."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """Tokens per sample; null: the longest sample of `data`, or without data the model's maximum, up to 4096."""
    data: SampleLengths | None = None
    """Lengths of the samples, as in a workload; null: every sample has `sequence_length` tokens."""
    micro_batch: int = Field(default=1, ge=1)
    """Samples per forward pass and rank that the table of strategies assumes."""
    checkpointing: Checkpointing = "none"
    """Activation checkpointing that the table of strategies assumes."""
    gradient_accumulation: int | None = Field(default=None, ge=1)
    """Micro batches per step; null: as many as the global batch takes. With a value, all ranks × `micro_batch` × this
    are the global batch."""
    precision: ChosenPrecision = None
    """Precision of training; null or `auto`: chosen for the cluster's GPUs."""
    optimizer: Optimizer = AdamW()
    """Optimizer with its settings, or its kind alone, such as `adamw`."""
    float8: Float8Recipe | None = None
    """Scaling of the float8 matrix products in the linear layers of blocks, as in a workload; null: no float8."""
    adapter: Adapter = None
    """Adapter that is trained while all other weights stay frozen, as in a workload; null: all weights are trained."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    configs: tuple[TrialConfig, ...] = Field(default=(), max_length=1000)
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Samples per step of all predictions; null: 8 per rank, or a multiple of `micro_batch` above it. With `configs`
    and neither this nor `gradient_accumulation`, each configuration makes one forward pass a step."""
    space: SpaceLimits = SpaceLimits()
    """Limits of the search space in which the fastest configurations are sought, as in a study."""
    top: int | None = Field(default=None, ge=0, le=100)
    """Number of fastest configurations to return; null: 10 if the request has no configurations, else none."""
    model_summary: ModelSummary | None = None
    """Model summary for an architecture without a closed formula: from a study, or from `predict --trace`."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_preset(cls, value: object) -> object:
        """Validate the name of a model preset in the request, so that the error names this field."""
        return ModelSpec.model_validate(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _samples_that_fit(self) -> Self:
        check_lengths(self.data, self.sequence_length, self.global_batch)
        return self


class PredictionTable(Schema):
    """Response to a prediction request: the fastest configurations of the search space that fit, and one prediction per
    requested configuration."""

    model: str
    parameters: int
    cluster: Cluster
    sequence_length: int
    precision: str
    precision_note: str | None = None
    """Reason for the chosen precision if the request left it open, or a warning that the device only emulates its
    dtype."""
    optimizer: str = "adamw"
    """Kind of the optimizer whose memory and step time are included in the predictions."""
    float8: Float8Recipe | None = None
    """Scaling of float8 in the predictions; null: no float8."""
    adapter: str | None = Field(default=None, examples=["LoRA r=16"])
    """Description of the trained adapter, such as `LoRA r=16`; null: all weights are trained."""
    trained_parameters: int | None = None
    """Number of the parameters that are trained; null: all."""
    matrix_parameters: int = 0
    """Number of the parameters in weight matrices of blocks; some optimizers update each such matrix as a whole."""
    fastest: tuple[Prediction, ...] = ()
    """Fastest configurations of the search space: first those that certainly fit, then those that may fit, each fastest
    first. Empty if none fits, or if speed cannot be predicted."""
    batch_counts: Literal["samples", "packed rows"] = "samples"
    """Unit of a global batch."""
    global_batch: int | None = None
    """Samples, or packed rows, per step with which the fastest configurations were ranked; null if none were requested."""
    equal_within: float = 0.0
    """Error of a comparison of two predicted speeds, as a fraction: configurations that are closer share one place in
    the order."""
    strategies_global_batch: int | None = None
    """Samples, or packed rows, per step of the table of strategies; null if configurations were requested."""
    strategies_compiled: bool = False
    """Whether the table of strategies is compiled, as the fastest configuration is."""
    levers: tuple[str, ...] = Field(
        default=(), examples=[["4 times the hardware (4 × 8 H100-SXM5-80GB): FSDP2, micro batch 1 fits with 63.5 GiB"]]
    )
    """Changes that would make the model fit where nothing in the search space does, the simplest first."""
    predictions: tuple[Prediction, ...]
    """Prediction for each requested configuration, or without any for one of each strategy, whether it fits or not."""
    notes: tuple[str, ...] = ()
    """Unverified or unmeasured assumptions behind the predictions."""
