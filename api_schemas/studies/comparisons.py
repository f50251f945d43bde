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
    """Speed in tokens per second and GPU: that of the search run, or the median of the validation runs."""
    low: float
    """Lower bound of the speed, in tokens per second and GPU. For a search run, it follows from the 95 % interval of
    the mean step time; for validation runs, it is the slowest run."""
    high: float
    """Upper bound of the speed, in tokens per second and GPU. For a search run, it follows from the 95 % interval of
    the mean step time; for validation runs, it is the fastest run."""
    runs: int


class ComparedConfig(Schema):
    """Configuration in a comparison, with the figures that its study measured; none are predicted."""

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
    """Speed measured in validation runs of the study's last final comparison, in which paired runs decide. None if the
    configuration did not take part."""
    speedup: Speedup | None = None
    """Speed-up of the configuration over its study's baseline, from paired runs. None unless it was the challenger (the
    configuration paired with the baseline)."""
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
        """Peak memory in GiB: on GPUs what the allocator reserved, on CPU ranks what was allocated for tensors."""
        return self.peak_allocated_gib if self.peak_reserved_gib is None else self.peak_reserved_gib


class KnobDifference(Schema):
    """Knob for which the compared configurations have different values, or which only some of their backends have and
    one of them sets to another value than its default."""

    knob: str
    values: tuple[KnobValue | None, ...]
    """Value of the knob in each configuration, in the order of the configurations. None for a configuration whose
    backend has no such knob."""


class Comparison(Schema):
    """Comparison of several configurations, in the requested order."""

    configs: tuple[ComparedConfig, ...]
    currency: str
    """Currency of all prices in the comparison (SHARDTUNE_CURRENCY)."""
    differences: tuple[KnobDifference, ...]
    """Knobs whose values differ between the configurations. `configs` holds the values of all knobs."""
    is_one_subject: bool
    """Whether all configurations train the same model and workload on the same cluster. If not, their speeds cannot be
    compared."""
    not_found: tuple[str, ...]
    """Names of requested configurations that do not exist, or that have no measurements yet."""
