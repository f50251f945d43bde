"""Schemas of predicted memory and speed of a configuration, calculated without using a GPU."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from shardtune.api_schemas.base import Bound, Schema
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
"""Whether a configuration fits into a rank's memory. It fits if the whole 90 % interval of the predicted memory lies
within the limit, `may fit` if a part does, so that only a run can tell, and does not fit otherwise."""


class MemoryTerm(Schema):
    """One part of a rank's predicted peak memory, such as parameters or activations: its GiB at the moment of the peak."""

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
    """Predicted memory in GiB that the device reports as used: reserved memory, context and communication library."""
    low_gib: float
    high_gib: float
    """Upper end of the 90 % interval of the predicted total in GiB; `low_gib` is the lower end."""
    capacity_gib: float
    """Memory in GiB that a rank may use: the device's memory minus the part that a study keeps free by default."""
    verdict: Verdict
    margin_gib: float
    """Memory that a rank may use minus the predicted total, in GiB. A negative value is the amount that is missing."""
    host_gib_per_node: float
    """Predicted memory of the host in GiB per node that offloading uses."""


class SpeedPrediction(Schema):
    """Predicted speed of a training step. Times and numbers of tokens are those of one rank."""

    tokens_per_s_per_gpu: float
    """Predicted speed in tokens per second and GPU. Padding does not count."""
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Upper end of the 90 % interval of the predicted speed; `low_tokens_per_s_per_gpu` is the lower end."""
    step_time_s: float
    mfu: float | None
    """Predicted model FLOPs utilisation: the model's FLOPs per second divided by the peak that the vendor states.
    Attention counts in full, recomputation does not. None if the peak is not known."""
    exposed_communication_fraction: float
    """Fraction of the step's time spent in communication that does not overlap with other work."""
    bound_by: Bound
    """Resource that takes the largest part of the step."""
    resource_fractions: dict[Bound, float] = Field(default={}, examples=[{"compute": 0.66, "offload to the host": 0.2}])
    """Predicted fraction of the step's time by the resource that it needs, largest first; resources without time are
    left out."""
    parts_s: dict[str, float]
    """Predicted seconds of a step by part, such as matrix products, communication, optimizer step and offload."""
    calibrated_on: int = 0
    """Number of measured trials by which the hardware's assumed rates were corrected; 0 means that the catalogue's
    rates were used unchanged."""
    padding_fraction: float | None = None
    """Fraction of the computed tokens that is padding; null if all samples have one length."""


class TrialPrediction(Schema):
    """Prediction for a trial at its creation, stored for comparison with its measurement. Intervals are 90 % intervals."""

    memory_gib: float
    """Predicted peak memory in GiB, of the rank that needs most. On a GPU it is the memory that the device reports; on
    CPU ranks it is the memory of tensors."""
    low_memory_gib: float
    high_memory_gib: float
    memory_calibrated_on: int
    """Number of trials measured on this fingerprint (hardware and software) by which the memory prediction was
    corrected; 0 means none."""
    tokens_per_s_per_gpu: float | None
    """Predicted speed in tokens per second and GPU; None if the hardware's rates are unknown."""
    low_tokens_per_s_per_gpu: float | None
    high_tokens_per_s_per_gpu: float | None
    speed_calibrated_on: int


class Change(Schema):
    """Configuration suggested in place of one that does not fit: similar to it, and predicted to fit."""

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
    """Longest sequence, in tokens per sample, that is predicted to fit with this configuration; 0 if none fits."""
    largest_micro_batch: int
    """Largest micro batch, in samples, that is predicted to fit at the workload's sequence length; 0 if none fits."""
    cheapest_change: Change | None
    """Configuration that is predicted to fit and needs the fewest changes; of several, the fastest. It is given only if
    the requested configuration should not fit (`margin_gib` below 0, or too little host memory)."""
    rank: int | None = None
    """Rank of the configuration among the fastest ones, from 1. Configurations whose predicted speeds differ by less
    than the predictor's error (`equal_within`) have the same rank, and the simplest of them is listed first. null means
    that it was not ranked."""


class PredictionRequest(Schema):
    """Request for predictions. If it names no configurations, the response contains the fastest ones of the search
    space that fit, and one for each strategy."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": EXAMPLE, "cluster": "8xh100"}]})

    model: ModelChoice
    cluster: Cluster | str
    """Cluster as an object, or in short form, such as `8xh100` or `4x8xa100-80gb` (4 nodes of 8 GPUs). `local` means
    the cluster of a live worker."""
    hardware: MeasuredHardware | None = None
    """Measured rates of the cluster's GPUs or CPU ranks, as `measure-hardware` prints them. They are required if the
    catalogue has no rates for them."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """Number of tokens per sample. If null, it is the length of the longest sample in `data`; without `data`, the
    model's maximum, up to 4096."""
    data: SampleLengths | None = None
    """Lengths of the samples, as in a workload. If null, every sample has `sequence_length` tokens."""
    micro_batch: int = Field(default=1, ge=1)
    """Number of samples per forward pass and rank. It applies to the table of strategies, which shows one configuration
    for each strategy."""
    checkpointing: Checkpointing = "none"
    """Kind of activation checkpointing. It applies to the table of strategies, which shows one configuration for each
    strategy."""
    gradient_accumulation: int | None = Field(default=None, ge=1)
    """Number of micro batches per step. If given, the global batch is ranks × `micro_batch` × this number. If null,
    there are as many micro batches as the global batch needs."""
    precision: ChosenPrecision = None
    """Precision of training, such as `bf16-mixed`. If null or `auto`, it is chosen for the cluster's GPUs."""
    optimizer: Optimizer = AdamW()
    """Optimizer, as an object with its settings or as its kind alone, such as `"adamw"`."""
    float8: Float8Recipe | None = None
    """Scaling of the float8 matrix products in the linear layers of the model's blocks, as in a workload. If null,
    float8 is not used."""
    adapter: Adapter = None
    """Adapter that is trained while all other weights stay frozen, as in a workload. If null, all weights are
    trained."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    configs: tuple[TrialConfig, ...] = Field(default=(), max_length=1000)
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Number of samples per step in all predictions. If null, it is 8 per rank, or the next multiple of `micro_batch`.
    If `configs` are given without this field and without `gradient_accumulation`, each configuration makes one forward
    pass per step."""
    space: SpaceLimits = SpaceLimits()
    """Limits of the search space from which the fastest configurations are taken, as in a study."""
    top: int | None = Field(default=None, ge=0, le=100)
    """Number of fastest configurations to return. If null, 10 are returned, or none if the request names
    configurations."""
    model_summary: ModelSummary | None = None
    """Summary of the model (parameters and FLOPs), needed if no closed formula covers its architecture. A study or
    `predict --trace` provides it."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_preset(cls, value: object) -> object:
        """Validate the name of a model preset in the request here, so that the error message names this field."""
        return ModelSpec.model_validate(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _samples_that_fit(self) -> Self:
        check_lengths(self.data, self.sequence_length, self.global_batch)
        return self


class PredictionTable(Schema):
    """Response to a prediction request: the fastest configurations of the search space that fit, and a prediction for
    each requested configuration."""

    model: str
    parameters: int
    cluster: Cluster
    sequence_length: int
    precision: str
    precision_note: str | None = None
    """Reason why the precision was chosen, if the request left it open; or a warning that the device only emulates its
    dtype."""
    optimizer: str = "adamw"
    """Kind of the optimizer whose memory and step time the predictions include, such as `adamw`."""
    float8: Float8Recipe | None = None
    """Scaling of the float8 matrix products in the predicted training; null if it does not use float8."""
    adapter: str | None = Field(default=None, examples=["LoRA r=16"])
    """Description of the trained adapter, such as `LoRA r=16`; null if all weights are trained."""
    trained_parameters: int | None = None
    """Number of parameters that are trained; null if all are."""
    matrix_parameters: int = 0
    """Number of parameters in the weight matrices of the model's blocks. Some optimizers, such as Muon, update each of
    these matrices as a whole."""
    fastest: tuple[Prediction, ...] = ()
    """Fastest configurations of the search space, fastest first: first those that certainly fit, then those that may
    fit. Empty if none fits, or if speed cannot be predicted."""
    batch_counts: Literal["samples", "packed rows"] = "samples"
    """Unit of a global batch."""
    global_batch: int | None = None
    """Number of samples (or of packed rows, see `batch_counts`) per step with which the fastest configurations were
    ranked; null if none were requested."""
    equal_within: float = 0.0
    """Typical error when two predicted speeds are compared, as a fraction. Configurations whose speeds differ by less
    have the same rank."""
    strategies_global_batch: int | None = None
    """Number of samples (or of packed rows, see `batch_counts`) per step in the table of strategies; null if the
    request named configurations."""
    strategies_compiled: bool = False
    """Whether the configurations in the table of strategies use `torch.compile`; they do if the fastest configuration
    does."""
    levers: tuple[str, ...] = Field(
        default=(), examples=[["4 times the hardware (4 × 8 H100-SXM5-80GB): FSDP2, micro batch 1 fits with 63.5 GiB"]]
    )
    """Changes that would make the model fit, the simplest first. They are given only if no configuration of the search
    space fits."""
    predictions: tuple[Prediction, ...]
    """Prediction for each requested configuration, whether it fits or not. If the request named none, one prediction
    for each strategy."""
    notes: tuple[str, ...] = ()
    """Assumptions behind the predictions that have not been verified or measured."""
