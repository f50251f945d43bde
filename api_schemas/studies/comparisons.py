"""Configurations side by side: what was measured of each, and the knobs in which they differ."""

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Speedup
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.training.workload import Workload

MOST_COMPARED = 4


class MeasuredSpeed(Schema):
    """Tokens per second and GPU."""

    tokens_per_s_per_gpu: float
    """Of the search run; the median of validation runs."""
    low: float
    """Search run: lower end of the 95 % interval of its mean step. Validation runs: the slowest."""
    high: float
    """Search run: upper end of the same. Validation runs: the fastest."""
    runs: int


class ComparedConfig(Schema):
    """One of them: what was measured of it in its study, nothing that was predicted."""

    study_id: str
    trial_number: int
    model: str
    workload: Workload
    cluster: Cluster
    config: TrialConfig
    description: str
    """The strategy in words."""
    search: MeasuredSpeed | None = None
    """Its search run; None: it has no measurement."""
    fresh: MeasuredSpeed | None = None
    """Its runs in the study's last final comparison; None: it took no part."""
    speedup: Speedup | None = None
    """Over its study's baseline in paired runs; None but for the challenger of the pairs."""
    is_baseline: bool = False
    """Of its study."""
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    step_time_s: float | None = None
    mfu: float | None = None
    gpu_seconds: float
    """All attempts at this configuration, failed ones too."""
    price: float | None = None
    """Of these, in the operator's currency; None: no price is set."""
    study_gpu_seconds: float
    """All of its study."""
    study_price: float | None = None
    """The same in the operator's currency; None: no price is set."""

    @property
    def peak_gib(self) -> float | None:
        """What the memory limit is about."""
        return self.peak_allocated_gib if self.peak_reserved_gib is None else self.peak_reserved_gib


class KnobDifference(Schema):
    """A knob that at least two of them have, with different values."""

    knob: str
    values: tuple[KnobValue | None, ...]
    """In the order of the configurations; None: its backend has no such knob."""


class Comparison(Schema):
    """Configurations in the order they were asked for."""

    configs: tuple[ComparedConfig, ...]
    currency: str
    """Of all prices (SHARDTUNE_CURRENCY)."""
    differences: tuple[KnobDifference, ...]
    """Knobs with different values; all are in `configs`."""
    is_one_subject: bool
    """They train the same model and workload on the same cluster: only then is one's speed over another's a ratio of anything."""
    not_found: tuple[str, ...]
    """What was asked for and is not there, or has no figures yet."""
