"""Comparison of configurations: the measurements of each, and the knobs in which they differ."""

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Speedup
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.training.workload import Workload

MOST_COMPARED = 4


class MeasuredSpeed(Schema):
    """Speed in tokens per second and GPU."""

    tokens_per_s_per_gpu: float
    """Speed of the search run, or the median of validation runs."""
    low: float
    """Lower bound. Search run: lower end of the 95 % interval of its mean step. Validation runs: the slowest."""
    high: float
    """Upper bound. Search run: upper end of the same interval. Validation runs: the fastest."""
    runs: int


class ComparedConfig(Schema):
    """Configuration with the measurements of its study; it has no predictions."""

    study_id: str
    trial_number: int
    model: str
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    description: str
    """Strategy in words."""
    search: MeasuredSpeed | None = None
    """Speed of its search run; None: it has no measurement."""
    fresh: MeasuredSpeed | None = None
    """Speed in the validation runs of the study's last final comparison; None: it took no part."""
    speedup: Speedup | None = None
    """Speed-up over its study's baseline in paired runs; None except for the challenger of the pairs."""
    is_baseline: bool = False
    """Whether it is the baseline of its study."""
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    step_time_s: float | None = None
    mfu: float | None = None
    gpu_seconds: float
    """GPU-seconds of all attempts at this configuration, failed ones included."""
    price: float | None = None
    """Price of `gpu_seconds` in the operator's currency; None: no price is set."""
    study_gpu_seconds: float
    """GPU-seconds of its whole study."""
    study_price: float | None = None
    """Price of the whole study in the operator's currency; None: no price is set."""

    @property
    def peak_gib(self) -> float | None:
        """Peak memory that the memory limit applies to."""
        return self.peak_allocated_gib if self.peak_reserved_gib is None else self.peak_reserved_gib


class KnobDifference(Schema):
    """Knob that at least two of the configurations have, with different values."""

    knob: str
    values: tuple[KnobValue | None, ...]
    """Values in the order of the configurations; None: the backend has no such knob."""


class Comparison(Schema):
    """Configurations in the order they were asked for."""

    configs: tuple[ComparedConfig, ...]
    currency: str
    """Currency of all prices (SHARDTUNE_CURRENCY)."""
    differences: tuple[KnobDifference, ...]
    """Knobs with different values; all knobs are in `configs`."""
    is_one_subject: bool
    """Whether all train the same model and workload on the same cluster. Only then the ratio of two speeds means
    anything."""
    not_found: tuple[str, ...]
    """Configurations that were asked for and do not exist, or have no figures yet."""
