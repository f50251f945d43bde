"""Schemas of plans: hours, money and finish date of a whole training run, by kind and number of GPUs."""

import math
import re
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from shardtune.api_schemas.base import Band, Schema
from shardtune.api_schemas.machines.hardware import MOST_RANKS
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSpec
from shardtune.api_schemas.training.workload import MOST_SAMPLES, ChosenPrecision

MOST_GPUS = MOST_RANKS
"""Largest number of GPUs of a plan."""
MOST_CELLS = 120
"""Largest number of rows of a plan: kinds times numbers of GPUs."""
GpuName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")]
Evidence = Literal["predicted", "projected"]
"""Basis of a plan's row: predicted from the catalogue alone, or projected from measurements on fewer GPUs. No run
confirms a row."""


class PlanMeasurement(Schema):
    """Speed of one configuration on a few GPUs, from which larger numbers of the same GPUs are projected."""

    gpu: GpuName
    """Kind of GPU by its name in the catalogue."""
    gpus: int = Field(ge=1, le=MOST_GPUS)
    """Number of GPUs of the measured run."""
    config: TrialConfig
    gradient_accumulation: int = Field(default=1, ge=1, le=100_000)
    """Micro batches per step of the measured run."""
    tokens_per_s_per_gpu: float = Field(gt=0, le=1e9)
    peak_gib: float | None = Field(default=None, gt=0, le=1e5)
    """Measured peak of the tensors on one GPU in GiB (torch's `max_memory_allocated`); null: not measured."""


class Goodput(Schema):
    """Assumptions about the time that a training run loses to evaluation, restarts, failures and checkpoints."""

    overhead: float = Field(default=0.15, ge=0, le=5)
    """Time for evaluation, data, restarts by hand and other pauses, as a fraction of step time. Four published runs that
    state both lost 0.10 to 0.20."""
    failures_per_gpu_hour: float = Field(default=2e-5, ge=0, le=1)
    """Failures that end the job, per GPU and hour; 2e-5 is that of Llama 3 (419 in 54 days on 16,384 H100,
    arXiv:2407.21783, section 3.3.4)."""
    checkpoint_s: float = Field(default=60.0, ge=0, le=86_400)
    """Seconds for which a checkpoint stops the training."""
    checkpoint_interval_s: float | None = Field(default=None, gt=0, le=31_536_000)
    """Seconds between checkpoints; null: the interval that loses least (Young and Daly)."""
    restart_s: float = Field(default=600.0, ge=0, le=604_800)
    """Seconds from a failure to the next step: detection, start, loading of the checkpoint."""


class PlanRequest(Schema):
    """Request for a plan: a training run of a number of tokens, over kinds and numbers of GPUs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": EXAMPLE, "tokens": 3e11, "gpus": ["h100", "h200"], "counts": [64, 128]}]
        }
    )

    model: ModelChoice
    tokens: float = Field(ge=1, le=1e16)
    """Number of tokens that the run trains on; tokens that several epochs repeat count once for each epoch."""
    gpus: tuple[GpuName, ...] = Field(min_length=1, max_length=12, examples=[["h100", "h200"]])
    """Kinds of GPUs by their names in the catalogue, such as `h100`."""
    counts: tuple[int, ...] = Field(min_length=1, max_length=64)
    """Numbers of GPUs."""
    gpus_per_node: int = Field(default=8, ge=1, le=72)
    """Number of GPUs of one node."""
    prices: dict[GpuName, float] = Field(default={}, max_length=12)
    """Price of one GPU for an hour by kind, in your currency. Kinds without a price get no cost."""
    budget: float | None = Field(default=None, gt=0, le=1e15)
    """Money that the run may cost, in the currency of the prices."""
    start: date | None = Field(default=None, examples=["2026-12-01"])
    """Day on which the run starts; null: today."""
    deadline: date | None = Field(default=None, examples=["2027-03-01"])
    """Last day on which the run may end."""
    sequence_length: int | None = Field(default=None, ge=8, le=4_194_304)
    """Tokens per sample; null: the model's maximum, up to 4096."""
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    """Samples per step; null: by the FLOPs of the run (DeepSeek LLM, arXiv:2401.02954, equation 1), but at least one for each GPU."""
    precision: ChosenPrecision = None
    goodput: Goodput = Goodput()
    """Assumptions about the time lost to pauses, failures and checkpoints, in which the run does not advance."""
    measurements: tuple[PlanMeasurement, ...] = Field(default=(), max_length=100)
    """Measurements on a few GPUs, from which larger numbers of the same kind are projected."""

    @field_validator("model", mode="before")
    @classmethod
    def _known_preset(cls, value: object) -> object:
        """Validate the name of a model preset in the request, so that the error names this field."""
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
        unknown = [name for name in self.prices if _fold(name) not in map(_fold, self.gpus)]
        if unknown:
            raise ValueError(f"prices ({unknown[0]}) names no kind of gpus ({', '.join(self.gpus)}); correct the name")
        if self.budget is not None and not self.prices:
            raise ValueError(f"budget ({self.budget:g}) needs prices; give the price of a GPU-hour for each kind")
        if self.start and self.deadline and self.deadline <= self.start:
            raise ValueError(f"deadline ({self.deadline}) must be after the start ({self.start}); give a later day")
        return self

    def price_of(self, gpu: str) -> float | None:
        """Price of a GPU-hour of one kind, None where the request has none."""
        return next((price for name, price in self.prices.items() if _fold(name) == _fold(gpu)), None)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class DateBand(Schema):
    """Day on which a run ends, with its 90 % band."""

    expected: date = Field(examples=["2027-01-17"])
    """Expected day."""
    earliest: date = Field(examples=["2026-12-28"])
    """First day of the band."""
    latest: date = Field(examples=["2027-02-16"])
    """Last day of the band."""


class PlanRow(Schema):
    """Best configuration for one kind and number of GPUs, with the time and money that the training run takes."""

    gpu: str
    """Kind of GPU, as the request names it."""
    gpus: int
    """Number of GPUs."""
    config: TrialConfig
    description: str
    evidence: Evidence
    """Whether the speed is predicted or projected from measurements."""
    global_batch: int
    """Samples per step: the requested number, rounded so that the ranks divide it evenly."""
    tokens_per_s_per_gpu: Band
    memory_gib: float
    """Predicted peak of one GPU in GiB, as the device reports it."""
    may_not_fit: bool
    """Whether the band of the peak reaches beyond the GPU's memory."""
    goodput: float
    """Fraction of the run's time in which steps advance it."""
    checkpoint_interval_s: float | None
    """Seconds between checkpoints; null where no failures are expected."""
    hours: Band
    """Hours from start to end."""
    gpu_hours: Band
    """Hours of all GPUs together."""
    cost: Band | None
    """Cost of all GPU-hours in the currency of the prices; null without a price of this kind of GPU."""
    finish: DateBand
    """Day on which the run ends."""
    meets_deadline: Literal["surely", "likely", "unlikely", "no"] | None
    """Whether the run ends before the deadline: `surely` over the whole 90 % band, `likely` by its expected value,
    `unlikely` within the band only, or `no`; null without a deadline."""
    within_budget: Literal["surely", "likely", "unlikely", "no"] | None
    """Whether the run costs no more than the budget: `surely` over the whole 90 % band, `likely` by its expected value,
    `unlikely` within the band only, or `no`; null without a price or a budget."""
    extrapolated_from: tuple[int, ...] = ()
    """Numbers of GPUs that were measured, for a projected row."""


class ImpossibleRow(Schema):
    """Kind and number of GPUs without any configuration, and the reason."""

    gpu: str
    """Kind of GPU, as the request names it."""
    gpus: int
    """Number of GPUs."""
    reason: str
    """Reason why no configuration can run, with a remedy."""


class Plan(Schema):
    """Plan of a training run: a row for each kind and number of GPUs, and the rows to choose by cost or time."""

    model: str
    parameters: int
    tokens: float
    """Number of tokens that the run trains on."""
    sequence_length: int
    start: date = Field(examples=["2026-12-01"])
    """Day on which the run starts."""
    deadline: date | None = Field(examples=["2027-03-01"])
    """Last day on which the run may end; null: none was given."""
    budget: float | None
    """Money that the run may cost; null: none was given."""
    rows: tuple[PlanRow, ...]
    """Best configuration of each kind and number of GPUs."""
    impossible: tuple[ImpossibleRow, ...] = ()
    """Kinds and numbers of GPUs on which nothing can run."""
    cheapest_in_time: PlanRow | None = None
    """Row with the least cost among those that surely or likely meet the deadline; without prices, the one with the
    fewest GPU-hours."""
    fastest_in_budget: PlanRow | None = None
    """Row that ends earliest among those that surely or likely cost no more than the budget."""
    knees: tuple[PlanRow, ...] = ()
    """Row with the most GPUs of each kind whose GPU-hours are at most a tenth above the fewest of that kind. With more
    GPUs than that, a shorter run costs disproportionately more."""
    notes: tuple[str, ...] = ()
    """Assumptions behind the plan, and which of them are unchecked."""
