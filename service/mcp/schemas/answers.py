"""Answers of the tools that compute: predictions, memory, explanations and plans."""

from typing import Literal

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Bound, Schema
from shardtune.api_schemas.trials.plan_rows import DateBand, ImpossibleRow, StudyVerdict
from shardtune.api_schemas.trials.predictions import Verdict
from shardtune.service.mcp.schemas.figures import Figure

Likelihood = Literal["surely", "likely", "unlikely", "no"]


class ToolAnswer(Schema):
    """Answer of a tool."""

    summary: str = Field(examples=["fastest predicted: FSDP2, micro batch 1: 9,120 tokens/s/GPU, predicted"])
    """Answer in one or two sentences."""


class ShownConfig(Schema):
    """Configuration with its figures."""

    description: str
    """Short description of the configuration in words."""
    config: dict[str, JsonValue]
    """Configuration without the fields that have their default value; `explain_config` accepts it, and a study accepts
    it as baseline."""
    speed: Figure | None
    """Tokens per second of one GPU; null if the GPU's rates are unknown, or nothing was measured."""
    memory: Figure | None
    """Peak memory of one GPU, as the device reports it."""


class PredictedConfig(ShownConfig):
    """Configuration with predicted figures."""

    rank: int | None = None
    """Position in the ranking by predicted speed, from 1. Configurations with the same rank are equal within the
    predictor's error."""
    capacity_gib: float
    """Memory in GiB that a GPU has for training, without the headroom that a study keeps free."""
    fits: Verdict
    """Whether the predicted memory, with its band, lies within the capacity. With `may fit`, only a run can decide."""
    bound_by: Bound | None
    """Resource that takes the largest part of the step."""
    resource_fractions: dict[Bound, float] = Field(examples=[{"compute": 0.66, "offload to the host": 0.2}])
    """Predicted fraction of the step by the resource that it needs, largest first; empty if the GPU's rates are
    unknown."""
    mfu: Figure | None
    """Model FLOPs utilisation."""


class JobAnswer(ToolAnswer):
    """Answer about a training job."""

    model: str
    parameters: int
    """Number of the model's parameters."""
    cluster: str = Field(examples=["1 × 8 H100-SXM5-80GB"])
    """Cluster in words."""
    gpus: int
    """Number of GPUs."""
    sequence_length: int
    """Tokens per sample."""
    precision: str
    """Name of the dtypes."""
    optimizer: str
    """Kind of the optimizer."""
    trained: str = Field(examples=["all weights", "LoRA r=16"])
    """Part of the model that is trained."""
    notes: tuple[str, ...] = ()
    """Assumptions that nobody checked."""


class PredictAnswer(JobAnswer):
    """Answer of `predict`."""

    global_batch: int | None
    """Samples per step for which the configurations were ranked."""
    configurations: tuple[PredictedConfig, ...]
    """Fastest configurations, starting with those that surely fit. Empty if none fits."""
    equal_within: float
    """Difference below which two predicted speeds count as equal, as a fraction."""
    levers: tuple[str, ...] = ()
    """Changes that would make the model fit in memory; empty if a configuration fits."""


class MemoryRow(PredictedConfig):
    """Memory of one strategy."""

    tensors: Figure
    """Peak memory of tensors alone: torch's `max_memory_allocated`."""
    margin_gib: float
    """Capacity minus predicted memory in GiB; if negative, the missing amount."""
    largest_micro_batch: int
    """Largest micro batch that is predicted to fit; 0 if none fits."""
    longest_sequence: int
    """Longest sequence in tokens that is predicted to fit; 0 if none fits."""
    cheapest_change: str | None
    """Smallest change that makes the strategy fit; null if it fits."""
    largest_terms_gib: dict[str, float]
    """Largest contributions to the predicted memory, in GiB."""


class MemoryAnswer(JobAnswer):
    """Answer of `memory`."""

    strategies: tuple[MemoryRow, ...]
    """One row for each strategy, whether it fits or not."""


class Term(Schema):
    """One term of the sum that is the predicted memory of one GPU."""

    name: str
    gib: float
    """Contribution in GiB."""
    source: str
    """Formula of the contribution."""


class ExplainConfigAnswer(JobAnswer):
    """Answer of `explain_config`."""

    configuration: MemoryRow
    """Configuration that the call named, as it was read, with its predicted figures."""
    memory_terms: tuple[Term, ...]
    """Contributions to the predicted memory at its peak, largest first."""
    peak_moment: str
    """Moment of the training step at which memory is highest."""
    step_time: Figure | None
    """Seconds of one step."""
    step_parts_s: dict[str, float]
    """Predicted seconds of one step by part, longest first."""
    exposed_communication: Figure | None
    """Fraction of the step spent in communication that no computation hides."""
    fastest: PredictedConfig | None
    """Configuration that is predicted to be the fastest for the same job; null if none fits."""
    expected_speedup: Figure | None
    """Predicted speed of the fastest configuration divided by that of this one."""
    differences: dict[str, tuple[JsonValue, JsonValue]]
    """Knobs in which the fastest configuration differs from this one, each with this configuration's and the fastest
    one's value; null if a strategy has no such knob. A knob that only one strategy has is left out at its default."""


class PlanChoice(Schema):
    """Best configuration for one kind and number of GPUs, with the time and cost of the run."""

    gpu: str
    """Kind of GPU."""
    gpus: int
    """Number of GPUs."""
    description: str
    """Short description of the configuration in words."""
    speed: Figure
    """Tokens per second of one GPU."""
    verdict: StudyVerdict | None
    """Verdict of the study that measured the configuration; only `confirmed` means that it is shown to be the fastest. null
    if no study measured it."""
    memory: Figure
    """Peak memory of one GPU."""
    may_not_fit: bool
    """Whether the predicted memory, with its band, may exceed the GPU's memory."""
    days: Figure
    """Days from start to end."""
    gpu_hours: Figure
    """Hours of all GPUs together."""
    cost: Figure | None
    """Price of all GPU-hours; null if the GPU has no price."""
    finish: DateBand
    """Day on which the run ends, with its 90 % band."""
    meets_deadline: Likelihood | None
    """Whether the run ends in time; null without a deadline."""
    within_budget: Likelihood | None
    """Whether the run costs no more than the budget; null without a budget."""


class PlanAnswer(ToolAnswer):
    """Answer of `plan`."""

    model: str
    parameters: int
    """Number of the model's parameters."""
    tokens: float
    """Number of tokens that the run trains on."""
    sequence_length: int
    """Tokens per sample."""
    choices: tuple[PlanChoice, ...]
    """Kinds and numbers of GPUs, those with the fewest GPU-hours first."""
    cheapest_in_time: PlanChoice | None
    """Cheapest choice that ends by the deadline. Without prices, it is the choice with the fewest GPU-hours."""
    fastest_in_budget: PlanChoice | None
    """Choice that ends earliest within the budget; null without a budget."""
    impossible: tuple[ImpossibleRow, ...]
    """Kinds and numbers of GPUs for which no configuration exists, each with the reason."""
    omitted: int
    """Number of further choices that were left out because of the call's argument `rows`."""
    notes: tuple[str, ...] = ()
    """Assumptions that nobody checked."""
