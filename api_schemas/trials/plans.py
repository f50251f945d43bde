"""Schemas of plans: hours, money and finish date of a whole training run, by kind and number of GPUs."""

import difflib
import math
import re
from datetime import date
from typing import Annotated, Self

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import MOST_RANKS, NodesPerLeaf, Oversubscription
from shardtune.api_schemas.machines.networks import NetworkName
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSpec
from shardtune.api_schemas.training.workload import MOST_SAMPLES, ChosenPrecision
from shardtune.api_schemas.trials.plan_rows import ImpossibleRow, PlanRow

MOST_GPUS = MOST_RANKS
"""Largest number of GPUs for which a plan can be made."""
MOST_GPUS_PER_NODE = 72
"""Largest number of GPUs of a node for which a plan can be made: that of an NVLink domain of GB200 NVL72."""
MOST_CELLS = 120
"""Maximum number of rows of a plan: the number of kinds of GPUs times the number of cluster sizes."""
GpuName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]


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
    """Seconds for which a checkpoint stops the training. If it is not stated, a study's resume check gives it."""
    checkpoint_interval_s: float | None = Field(default=None, gt=0, le=31_536_000)
    """Seconds between two checkpoints. If null, it is the interval with which least time is lost, by the formula of
    Young and Daly."""
    restart_s: float = Field(default=600.0, ge=0, le=604_800)
    """Seconds from a failure to the next training step. They include detection, start and loading of the checkpoint.
    If it is not stated, the time in which a study's resume check loaded one is added."""


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
    gpus_per_node: int = Field(default=8, ge=1, le=MOST_GPUS_PER_NODE)
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
    currency: str | None = Field(default=None, min_length=1, max_length=8, examples=["USD"])
    """Currency of `prices` and `budget`; null if it is not stated. A service adds its own prices to those of the request
    only if this is the service's currency."""
    budget: float | None = Field(default=None, gt=0, le=1e15)
    """Maximum amount of money that the run may cost, in the currency of the prices; null for no limit."""
    start: date | None = Field(default=None, examples=["2030-12-01"])
    """Day (UTC) on which the run starts, at midnight; if null, the run starts at the moment of the request."""
    deadline: date | None = Field(default=None, examples=["2031-03-01"])
    """Last day (UTC) on which the run may end, until its midnight; null for no deadline. It may be the day of the start,
    but no day before today."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """Number of tokens per sample. If null, it is that of the study, or else the model's maximum, up to 4096."""
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Number of samples per step. If null, it is that of the study's training, or else it follows from the FLOPs of the
    run (DeepSeek LLM, arXiv:2401.02954, equation 1); there is at least one sample for each GPU. Rows that a study
    measured or projected then have the batch of their measurement or projection."""
    precision: ChosenPrecision = None
    goodput: Goodput = Goodput()
    """Assumptions about the time that the run loses to pauses, failures and checkpoints, in which no steps are
    trained."""
    measurements: tuple[PlanMeasurement, ...] = Field(default=(), max_length=100)
    """Speeds measured on a few GPUs, from which the speeds of more GPUs of the same kind are projected. Speeds of other
    kinds are predicted."""
    study: str | None = Field(default=None, min_length=1, max_length=100, examples=["study-3f9a0c12be47"])
    """Id of a stored study of this model. Rows are measured or projected by the study where it measured or projected
    their kind and number of GPUs, and its resume check gives the times of checkpoints that `goodput` leaves out. If the
    request states no sequence length or precision, the study's are used."""

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

    @field_validator("currency")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        # Brackets are markup on a terminal.
        if value is not None and any(sign.isspace() or sign in "[]" or not sign.isprintable() for sign in value):
            raise ValueError(f"currency ({value!r}) must be a name without spaces and brackets; give one such as USD")
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
        unknown = next((name for name in self.prices if not self._has_kind(name)), None)
        if unknown is not None:
            close = difflib.get_close_matches(unknown.lower(), self.gpus, 1)
            remedy = f"did you mean {close[0]}? Otherwise add it to gpus" if close else "correct it, or add it to gpus"
            raise ValueError(f"prices ({unknown}) names no kind of gpus ({', '.join(self.gpus)}); {remedy}")
        if self.start and self.deadline and self.deadline < self.start:
            raise ValueError(
                f"deadline ({self.deadline}) must not be before the start ({self.start}); give a later day"
            )
        return self

    def _has_kind(self, name: str) -> bool:
        return fold_gpu_name(name) in map(fold_gpu_name, self.gpus)

    def price_of(self, gpu: str) -> float | None:
        """Return the price of one hour of a kind of GPU; None if the request states none."""
        return next((price for name, price in self.prices.items() if fold_gpu_name(name) == fold_gpu_name(gpu)), None)


def fold_gpu_name(name: str) -> str:
    """Return the spelling by which names of one kind of GPU are compared: lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Plan(Schema):
    """Plan of a training run. It has a row for each kind and number of GPUs, and names the rows to choose by cost or by
    time."""

    model: str
    parameters: int
    tokens: float
    """Number of tokens on which the run trains."""
    sequence_length: int
    start: date = Field(examples=["2030-12-01"])
    """Day (UTC) on which the run starts."""
    deadline: date | None = Field(examples=["2031-03-01"])
    """Last day on which the run may end; null if the request states none."""
    currency: str | None = Field(default=None, examples=["USD"])
    """Currency of the costs and the budget: the one that the request states, or the service's if all prices are the
    service's own. null if it is not known."""
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
