"""Schemas of costs: GPU-seconds of every project by month and cause, and their price."""

from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CostCause(StrEnum):
    """Cause of used GPU-seconds."""

    SEARCH = "search"
    """GPU-seconds of model summaries and of trials of searches, both in users' studies and in studies that a retune
    started."""
    FINAL_COMPARISON = "final_comparison"
    """GPU-seconds of final comparisons (paired validation runs of candidates and baseline, which decide) and of resume
    checks."""
    CHALLENGE = "challenge"
    """GPU-seconds of retunes that measure a recommended configuration again, together with a few others that may be
    faster."""
    DIAGNOSIS = "diagnosis"
    """GPU-seconds of runs under the profiler, which users requested for trials of studies that have ended."""
    CANARY = "canary"
    """GPU-seconds of canaries, which are runs of recommended configurations that check their speed."""


class Cost(Schema):
    """GPU-seconds that one project used in one month for one kind of work (`cause`), and their price."""

    project_id: str
    month: str
    """Month in UTC in which the attempts ended, such as `2026-01`."""
    cause: CostCause
    attempts: int
    """Number of attempts at runs that ended in the month, successful or not."""
    gpu_seconds: float
    """GPU-seconds (wall seconds × ranks) that the attempts at runs used."""
    price: float | None = None
    """Price of the attempts' GPU-seconds in the operator's currency; None if no price is configured."""


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
