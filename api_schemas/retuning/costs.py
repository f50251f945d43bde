"""Schemas of costs: GPU-seconds of every project by month and cause, and their price."""

from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CostCause(StrEnum):
    """Cause of used GPU-seconds."""

    SEARCH = "search"
    """Model summaries and trials of searches, in users' studies and in studies started by a retune."""
    FINAL_COMPARISON = "final_comparison"
    """Final comparisons: validation runs (repeated runs of candidates and baseline that decide) and resume checks."""
    CHALLENGE = "challenge"
    """Retunes that measure a recommended configuration again against a few challengers."""
    DIAGNOSIS = "diagnosis"
    """Runs under the profiler, requested by users for trials of ended studies."""
    CANARY = "canary"
    """Canaries: runs of recommended configurations that check their speed."""


class Cost(Schema):
    """GPU-seconds of one project in one month and their price, for one kind of work (`cause`)."""

    project_id: str
    month: str
    """Month in UTC in which the attempts ended, such as `2026-01`."""
    cause: CostCause
    attempts: int
    """Number of attempts at runs that ended, successful or not."""
    gpu_seconds: float
    """GPU-seconds of the attempts: wall seconds × ranks."""
    price: float | None = None
    """Price of the GPU-seconds in the operator's currency; None if no price is configured."""


class CostReport(Schema):
    """Report of costs in GPU-seconds and price, sorted by month (newest first), project and cause."""

    price_per_gpu_hour: float | None = None
    """Price of one GPU-hour set by the operator (SHARDTUNE_PRICE_PER_GPU_HOUR); None if not set."""
    currency: str
    """Currency of all prices in the report (SHARDTUNE_CURRENCY)."""
    costs: tuple[Cost, ...]


def price_of(gpu_seconds: float, price_per_gpu_hour: float | None) -> float | None:
    """Return the price of GPU-seconds, rounded to four digits; None if no price is configured."""
    return None if price_per_gpu_hour is None else round(gpu_seconds / 3600 * price_per_gpu_hour, 4)
