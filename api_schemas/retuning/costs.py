"""GPU-seconds of every project by month and cause, and their price."""

from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CostCause(StrEnum):
    """Purpose of GPU-seconds."""

    SEARCH = "search"
    """Model summaries and trials, of users' studies and of the searches that retunes begin."""
    FINAL_COMPARISON = "final_comparison"
    """Validation runs of candidates and baseline, and resume checks, of the same studies."""
    CHALLENGE = "challenge"
    """Recommended configurations, measured again against a few others."""
    DIAGNOSIS = "diagnosis"
    """Trials of ended studies that were run again under the profiler, because somebody asked."""
    CANARY = "canary"
    """Recommended configurations, run again to check their speed."""


class Cost(Schema):
    """Costs of one project in one month for one cause."""

    project_id: str
    month: str
    """Month in which the attempts ended, in UTC: `2026-01`."""
    cause: CostCause
    attempts: int
    """Number of attempts that ended, with or without success."""
    gpu_seconds: float
    """Wall seconds × ranks."""
    price: float | None = None
    """Price in the operator's currency; None: no price is set."""


class CostReport(Schema):
    """Costs, newest month first, then by project and cause."""

    price_per_gpu_hour: float | None = None
    """Price that the operator set (SHARDTUNE_PRICE_PER_GPU_HOUR); None: not set."""
    currency: str
    """Currency of all prices (SHARDTUNE_CURRENCY)."""
    costs: tuple[Cost, ...]


def price_of(gpu_seconds: float, price_per_gpu_hour: float | None) -> float | None:
    """Return the price of GPU-seconds, rounded to four digits; None where no price is set."""
    return None if price_per_gpu_hour is None else round(gpu_seconds / 3600 * price_per_gpu_hour, 4)
