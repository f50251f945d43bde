"""What GPUs were used for: seconds of every project by month and cause, and what they cost."""

from enum import StrEnum

from shardtune.api_schemas.base import Schema


class CostCause(StrEnum):
    """What GPU-seconds were spent on."""

    SEARCH = "search"
    """Profiles and trials, of users' studies and of the searches that retunes begin."""
    FINAL_COMPARISON = "final_comparison"
    """Validation runs of candidates and baseline and resume checks, of the same."""
    CHALLENGE = "challenge"
    """What is served, measured again against a few others."""
    DIAGNOSIS = "diagnosis"
    """Trials of ended studies once more under the profiler, because somebody asked."""
    CANARY = "canary"
    """What is served, run again to see whether it is as fast as it was."""


class Cost(Schema):
    """What one project spent in one month on one cause."""

    project_id: str
    month: str
    """`2026-01`, in UTC, of the end of the attempts."""
    cause: CostCause
    attempts: int
    """That ended, well or not."""
    gpu_seconds: float
    """Wall seconds × ranks."""
    price: float | None = None
    """In the operator's currency; None: no price is set."""


class CostReport(Schema):
    """Costs, newest month first, then by project and cause."""

    price_per_gpu_hour: float | None = None
    """As the operator set it (SHARDTUNE_PRICE_PER_GPU_HOUR); None: not set."""
    currency: str
    """Of all prices (SHARDTUNE_CURRENCY)."""
    costs: tuple[Cost, ...]


def price_of(gpu_seconds: float, price_per_gpu_hour: float | None) -> float | None:
    """What so many GPU-seconds cost, to a hundredth of a hundredth; None where no price is set."""
    return None if price_per_gpu_hour is None else round(gpu_seconds / 3600 * price_per_gpu_hour, 4)
