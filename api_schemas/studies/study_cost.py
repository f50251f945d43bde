"""Schemas of the cost that a study should have, estimated before anything runs."""

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
    """Predicted speed of the fastest configuration divided by that of the baseline, at least 1."""
    low: float
    """Lower end of the 90 % band of the gain, at least 1: a study never recommends less than its baseline."""
    high: float
    """Upper end of the 90 % band of the gain."""
    fastest: str = Field(examples=["FSDP2, sharded ×8, compiled, micro batch 1"])
    """Description of the configuration that is predicted to be the fastest."""
    baseline: str = Field(examples=["ZeRO-2, micro batch 1"])
    """Description of the baseline: the study's own, or the fastest documented default that fits."""


class StudyCost(Schema):
    """Estimate of a study's cost and gain, from its budget and the predictor, without a measurement."""

    trials: Range
    """Number of trials of the search."""
    validation_runs: Range
    """Number of runs of the final comparison."""
    recipe_runs: Range = Range(low=0, high=0)
    """Number of runs that compare considered recipes (precisions, optimizers) with the stated one; 0 if the study
    considers none."""
    minutes: Range | None
    """Minutes on one worker; null: step times cannot be predicted."""
    gpu_hours: Range | None
    """GPU-hours (hours × ranks), for CPU ranks rank-hours; null: step times cannot be predicted."""
    expected_gain: ExpectedGain | None
    """Expected gain; null: speeds cannot be predicted, or nothing surely fits."""
    stops: tuple[str, ...] = Field(examples=[["the search ends after 8 trials (budget.max_trials)"]])
    """Limits that end the search and the final comparison, in words."""
    basis: str = Field(examples=["an estimate from the budget and predicted step times, not a measurement"])
    """Sources and assumptions of the estimate."""
