"""Schemas of the cost that a study should have, estimated before anything runs."""

from collections.abc import Sequence

from pydantic import Field

from shardtune.api_schemas.base import Schema


class Range(Schema):
    """Lowest and highest expected value of a quantity."""

    low: float = Field(ge=0)
    """Lowest expected value."""
    high: float = Field(ge=0)
    """Highest expected value."""


class ExpectedGain(Schema):
    """Expected gain of a study: predicted speed of the fastest configuration that surely fits, divided by the predicted
    speed of the baseline."""

    value: float
    """Predicted speed of the fastest configuration divided by the predicted speed of the baseline. Never below 1,
    because the baseline itself may be the answer."""
    low: float
    """Lower end of the 90 % band of the gain. Never below 1, because a study does not recommend a configuration that is
    slower than its baseline."""
    high: float
    """Upper end of the 90 % band of the expected gain (speed-up over the baseline)."""
    fastest: str = Field(examples=["FSDP2, sharded ×8, compiled, micro batch 1"])
    """Description of the configuration that is predicted to be the fastest."""
    baseline: str = Field(examples=["ZeRO-2, micro batch 1"])
    """Description of the baseline: the one that the study states, or otherwise the fastest documented default that
    fits."""


class StudyCost(Schema):
    """Estimate of what a study will cost and gain. It is made from the study's budget and from predictions, without a
    measurement."""

    trials: Range
    """Lowest and highest expected number of trials in the search."""
    validation_runs: Range
    """Lowest and highest expected number of runs in the final comparison, in which pairs of runs decide."""
    recipe_runs: Range = Range(low=0, high=0)
    """Lowest and highest expected number of runs that compare considered recipes (precisions, optimizers) with the
    workload's own. 0 if the study considers none."""
    minutes: Range | None
    """Lowest and highest expected minutes of the study on one worker; null if step times cannot be predicted."""
    gpu_hours: Range | None
    """Lowest and highest expected GPU-hours (hours × ranks) of the study, for CPU ranks rank-hours; null if step times
    cannot be predicted."""
    expected_gain: ExpectedGain | None
    """Expected gain of the study; null if speeds cannot be predicted, or if no configuration surely fits."""
    stops: tuple[str, ...] = Field(examples=[["the search ends after 8 trials (budget.max_trials)"]])
    """Sentences that say at which limits the search and the final comparison end."""
    basis: str = Field(examples=["an estimate from the budget and predicted step times, not a measurement"])
    """Sources and assumptions of the estimate."""
    no_worker: str | None = Field(
        default=None,
        examples=[
            "cluster (local) is not offered by any live worker: no worker is registered; start one with `shardtune worker`"
        ],
    )
    """Reason why no live worker could run the study now, with the remedy. Null if a worker could, if the study may wait
    for one, or if no service was asked."""
    used_up_quota: str | None = Field(
        default=None, examples=["project (team-a) may run 2 studies at once; wait for one to end, pause or cancel one"]
    )
    """Reason why a quota of your project rejects a new study now, with the remedy. Null if the quotas allow one, or if no
    service was asked."""


class SizeCost(Schema):
    """Estimate of what a study will cost and gain on one of several cluster sizes."""

    size: int = Field(ge=1)
    """Number of ranks on which the study runs; with a launcher, number of nodes."""
    cost: StudyCost
    """Estimate for this size."""


class CostOfSizes(Schema):
    """Estimate of what `tune --rungs` will cost: one study on each size, one after the other."""

    sizes: tuple[SizeCost, ...]
    """Estimate for each size, smallest first; the last one is the study's full size."""
    minutes: Range | None
    """Lowest and highest expected minutes of all studies together; null if step times of one cannot be predicted."""
    gpu_hours: Range | None
    """Lowest and highest expected GPU-hours of all studies together; null if step times of one cannot be predicted."""

    @classmethod
    def of_sizes(cls, sizes: Sequence[SizeCost]) -> "CostOfSizes":
        """Add the estimates of all sizes."""
        return cls(
            sizes=tuple(sizes),
            minutes=_sum([size.cost.minutes for size in sizes]),
            gpu_hours=_sum([size.cost.gpu_hours for size in sizes]),
        )


def _sum(ranges: Sequence[Range | None]) -> Range | None:
    known = [each for each in ranges if each is not None]
    if len(known) < len(ranges):
        return None
    return Range(low=sum(each.low for each in known), high=sum(each.high for each in known))
