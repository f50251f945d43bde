"""Schemas of plans: hours, money and finish date of a whole training run, by kind and number of GPUs."""

import math
import re
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from shardtune.api_schemas.base import Band, Schema
from shardtune.api_schemas.machines.hardware import MOST_RANKS, NodesPerLeaf, Oversubscription
from shardtune.api_schemas.machines.networks import NetworkName
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSpec
from shardtune.api_schemas.training.workload import MOST_SAMPLES, ChosenPrecision

MOST_GPUS = MOST_RANKS
"""Largest number of GPUs for which a plan can be made."""
MOST_CELLS = 120
"""Maximum number of rows of a plan: the number of kinds of GPUs times the number of cluster sizes."""
GpuName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
Evidence = Literal["predicted", "projected", "measured"]
"""Basis of the speed in a plan's row. It is predicted from the catalogue alone, projected from measurements on fewer
GPUs, or measured, if the request has a measurement of this very configuration on so many GPUs."""


class PlanMeasurement(Schema):
    """Measured speed of one configuration on a few GPUs. Speeds of more GPUs of the same kind are projected from it."""

    gpu: GpuName
    """Kind of GPU by its name in the catalogue."""
    gpus: int = Field(ge=1, le=MOST_GPUS)
    """Number of GPUs of the measured run."""
    config: TrialConfig
    gradient_accumulation: int = Field(default=1, ge=1, le=100_000)
    """Number of micro batches per step in the measured run."""
    tokens_per_s_per_gpu: float = Field(gt=0, le=1e9)
    peak_gib: float | None = Field(default=None, gt=0, le=1e5)
    """Measured peak memory of tensors on one GPU, in GiB (torch's `max_memory_allocated`); null if it was not
    measured."""


class Goodput(Schema):
    """Assumptions about the time that a training run loses to evaluation, restarts, failures and checkpoints, in which
    no steps are trained."""

    overhead: float = Field(default=0.15, ge=0, le=5)
    """Time for evaluation, data, restarts by hand and other pauses, in addition to the time of the steps and as a
    fraction of it: 0.15 adds 15 %. Four published runs that state both lost 0.10 to 0.20."""
    failures_per_gpu_hour: float = Field(default=2e-5, ge=0, le=1)
    """Number of failures that end the job, per GPU and hour. The default, 2e-5, is the rate of Llama 3 (419 failures in
    54 days on 16,384 H100; arXiv:2407.21783, section 3.3.4)."""
    checkpoint_s: float = Field(default=60.0, ge=0, le=86_400)
    """Seconds for which a checkpoint stops the training."""
    checkpoint_interval_s: float | None = Field(default=None, gt=0, le=31_536_000)
    """Seconds between two checkpoints. If null, it is the interval with which least time is lost, by the formula of
    Young and Daly."""
    restart_s: float = Field(default=600.0, ge=0, le=604_800)
    """Seconds from a failure to the next training step. They include detection, start and loading of the checkpoint."""


class PlanRequest(Schema):
    """Request for a plan of a training run: how long a number of tokens takes on several kinds and numbers of GPUs, and
    what it costs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": EXAMPLE, "tokens": 3e11, "gpus": ["h100", "h200"], "counts": [64, 128]}]
        }
    )

    model: ModelChoice
    tokens: float = Field(ge=1, le=1e16)
    """Number of tokens on which the run trains. A token that is repeated in several epochs counts once for each
    epoch."""
    gpus: tuple[GpuName, ...] = Field(min_length=1, max_length=12, examples=[["h100", "h200"]])
    """Kinds of GPUs by their names in the catalogue, such as `h100`."""
    counts: tuple[int, ...] = Field(min_length=1, max_length=64)
    """Numbers of GPUs."""
    gpus_per_node: int = Field(default=8, ge=1, le=72)
    """Number of GPUs per node."""
    network: NetworkName | None = Field(default=None, examples=["infiniband-ndr"])
    """Network between nodes by name. If null, it is the usual one of each kind of GPU, by the catalogue."""
    nodes_per_leaf: NodesPerLeaf = Field(default=None, examples=[32])
    """Number of nodes below one leaf switch. In a rail-optimized network, where each GPU's port has a leaf switch of its
    own, it is the number of nodes that share these switches. If null, all nodes are below one leaf switch."""
    oversubscription: Oversubscription = Field(default=None, examples=[2.0])
    """Oversubscription of a leaf switch: bandwidth of its nodes divided by the bandwidth of its uplinks. If null, it is
    1, so that the uplinks carry whatever the nodes send."""
    prices: dict[GpuName, float] = Field(default={}, max_length=12)
    """Price of one GPU for one hour, in your currency, by kind of GPU. No cost is calculated for kinds without a
    price."""
    budget: float | None = Field(default=None, gt=0, le=1e15)
    """Maximum amount of money that the run may cost, in the currency of the prices; null for no limit."""
    start: date | None = Field(default=None, examples=["2026-12-01"])
    """Day (UTC) on which the run starts, at midnight; if null, the run starts at the moment of the request."""
    deadline: date | None = Field(default=None, examples=["2027-03-01"])
    """Last day on which the run may end; null for no deadline."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """Number of tokens per sample. If null, it is the model's maximum, up to 4096."""
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Number of samples per step. If null, it follows from the FLOPs of the run (DeepSeek LLM, arXiv:2401.02954,
    equation 1), but there is at least one sample for each GPU."""
    precision: ChosenPrecision = None
    goodput: Goodput = Goodput()
    """Assumptions about the time that the run loses to pauses, failures and checkpoints, in which no steps are
    trained."""
    measurements: tuple[PlanMeasurement, ...] = Field(default=(), max_length=100)
    """Speeds measured on a few GPUs, from which the speeds of more GPUs of the same kind are projected. Speeds of other
    kinds are predicted."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_preset(cls, value: object) -> object:
        """Validate the name of a model preset in the request here, so that the error message names this field."""
        return ModelSpec.model_validate(value) if isinstance(value, str) else value

    @field_validator("counts")
    @classmethod
    def _in_range(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        for count in value:
            if not 1 <= count <= MOST_GPUS:
                raise ValueError(f"counts ({count}) must be between 1 and {MOST_GPUS} GPUs; correct or drop it")
        return tuple(sorted(set(value)))

    @field_validator("prices")
    @classmethod
    def _positive(cls, value: dict[str, float]) -> dict[str, float]:
        for name, price in value.items():
            if not 0 < price <= 1e6 or not math.isfinite(price):
                raise ValueError(
                    f"prices.{name} ({price}) must be above 0 and at most 1000000 for a GPU-hour; correct it"
                )
            earlier = next(other for other in value if fold_gpu_name(other) == fold_gpu_name(name))
            if earlier != name:
                raise ValueError(f"prices.{name} ({price}) is the same kind as {earlier}; give its price once")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        cells = len(self.gpus) * len(self.counts)
        if cells > MOST_CELLS:
            raise ValueError(
                f"gpus ({len(self.gpus)} kinds) × counts ({len(self.counts)}) are more than {MOST_CELLS} rows; leave some out"
            )
        node = self.gpus_per_node
        uneven = [count for count in self.counts if count > node and count % node]
        if uneven:
            raise ValueError(
                f"counts ({uneven[0]}) must be a multiple of gpus_per_node ({node}), or no larger; try "
                f"{uneven[0] // node * node}"
            )
        unknown = [name for name in self.prices if fold_gpu_name(name) not in map(fold_gpu_name, self.gpus)]
        if unknown:
            raise ValueError(f"prices ({unknown[0]}) names no kind of gpus ({', '.join(self.gpus)}); correct the name")
        if self.start and self.deadline and self.deadline <= self.start:
            raise ValueError(f"deadline ({self.deadline}) must be after the start ({self.start}); give a later day")
        return self

    def price_of(self, gpu: str) -> float | None:
        """Return the price of one hour of a kind of GPU; None if the request states none."""
        return next((price for name, price in self.prices.items() if fold_gpu_name(name) == fold_gpu_name(gpu)), None)


def fold_gpu_name(name: str) -> str:
    """Return the spelling by which names of one kind of GPU are compared: lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class DateBand(Schema):
    """Day on which a training run is expected to end, with the first and last day of the 90 % band."""

    expected: date = Field(examples=["2027-01-17"])
    """Expected day."""
    earliest: date = Field(examples=["2026-12-28"])
    """First day of the band."""
    latest: date = Field(examples=["2027-02-16"])
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
    """Basis of the speed: predicted from the catalogue, projected from measurements on fewer GPUs, or measured on so
    many GPUs."""
    global_batch: int
    """Number of samples per step: the requested number, rounded so that the ranks can divide it evenly."""
    tokens_per_s_per_gpu: Band
    memory_gib: float
    """Predicted peak memory of one GPU in GiB, as the device reports it."""
    may_not_fit: bool
    """Whether the 90 % band of the predicted peak memory extends beyond the GPU's memory."""
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
    """Numbers of GPUs on which the speed was measured, if this row is measured or projected from them; otherwise
    empty."""


class ImpossibleRow(Schema):
    """Kind and number of GPUs on which no configuration of the training run is possible, with the reason."""

    gpu: str
    """Kind of GPU, as the request names it."""
    gpus: int
    """Number of GPUs."""
    reason: str
    """Reason why no configuration can run, with a remedy."""


class Plan(Schema):
    """Plan of a training run. It has a row for each kind and number of GPUs, and names the rows to choose by cost or by
    time."""

    model: str
    parameters: int
    tokens: float
    """Number of tokens on which the run trains."""
    sequence_length: int
    start: date = Field(examples=["2026-12-01"])
    """Day (UTC) on which the run starts."""
    deadline: date | None = Field(examples=["2027-03-01"])
    """Last day on which the run may end; null if the request states none."""
    budget: float | None
    """Maximum amount of money that the run may cost; null if the request states none."""
    rows: tuple[PlanRow, ...]
    """Rows of the plan: the best configuration for each kind and number of GPUs."""
    impossible: tuple[ImpossibleRow, ...] = ()
    """Kinds and numbers of GPUs on which no configuration of the training run is possible."""
    cheapest_in_time: PlanRow | None = None
    """Cheapest row among those that surely or likely meet the deadline, or among all rows without a deadline. Without
    prices, it is the one with the fewest GPU-hours. null if no row meets the deadline."""
    fastest_in_budget: PlanRow | None = None
    """Row that ends earliest among those that surely or likely cost no more than the budget. null if there is none, or
    if the request states no budget or no prices."""
    knees: tuple[PlanRow, ...] = ()
    """Row for each kind of GPU up to which more GPUs are worth their money: the one with the most GPUs whose GPU-hours
    are at most a tenth above the fewest of that kind. With even more GPUs, the run is shorter and costs
    disproportionately more."""
    notes: tuple[str, ...] = ()
    """Sentences about the assumptions behind the plan, and about which of them were not checked."""
