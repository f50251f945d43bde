"""Schemas for the comparison of configurations: the measurements of each, and the knobs in which they differ."""

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import Speedup
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.training.workload import Workload

MOST_COMPARED = 4


class MeasuredSpeed(Schema):
    """Measured speed of a configuration in tokens per second and GPU, with bounds."""

    tokens_per_s_per_gpu: float
    """Speed in tokens per second and GPU: of the search run, or the median of the validation runs."""
    low: float
    """Lower bound of the speed. Search run: from the 95 % interval of the mean step time. Validation runs: the slowest
    run."""
    high: float
    """Upper bound of the speed. Search run: from the 95 % interval of the mean step time. Validation runs: the fastest
    run."""
    runs: int


class ComparedConfig(Schema):
    """Configuration in a comparison, with the measurements from its study (no predictions)."""

    study_id: str
    trial_number: int
    model: str
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    description: str
    """Short description of the configuration's strategy for people."""
    search: MeasuredSpeed | None = None
    """Speed measured in the configuration's search run; None if not measured."""
    validation: MeasuredSpeed | None = None
    """Speed measured in the validation runs of the study's last final comparison (paired runs that decide); None if the
    configuration was not in it."""
    speedup: Speedup | None = None
    """Speed-up of the configuration over its study's baseline in paired runs; None unless it was the challenger."""
    is_baseline: bool = False
    """Whether the configuration is the baseline of its study."""
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    step_time_s: float | None = None
    mfu: float | None = None
    gpu_seconds: float
    """GPU-seconds of all attempts at this configuration, including failed ones."""
    price: float | None = None
    """Price of `gpu_seconds` in the operator's currency; None if no price is configured."""
    study_gpu_seconds: float
    """GPU-seconds of the whole study that measured the configuration."""
    study_price: float | None = None
    """Price of the whole study in the operator's currency; None if no price is configured."""

    @property
    def peak_gib(self) -> float | None:
        """Peak memory in GiB: reserved by the allocator (GPUs), or else allocated for tensors (CPU ranks)."""
        return self.peak_allocated_gib if self.peak_reserved_gib is None else self.peak_reserved_gib


class KnobDifference(Schema):
    """Knob for which at least two of the compared configurations have different values."""

    knob: str
    values: tuple[KnobValue | None, ...]
    """Values of the knob in the order of the configurations; None if a configuration's backend has no such knob."""


class Comparison(Schema):
    """Comparison of several configurations, in the requested order."""

    configs: tuple[ComparedConfig, ...]
    currency: str
    """Currency of all prices in the comparison (SHARDTUNE_CURRENCY)."""
    differences: tuple[KnobDifference, ...]
    """Knobs whose values differ between the configurations; the values of all knobs are in `configs`."""
    is_one_subject: bool
    """Whether all configurations train the same model and workload on the same cluster; otherwise their speeds are not
    comparable."""
    not_found: tuple[str, ...]
    """Requested configurations that do not exist, or have no measurements yet."""
