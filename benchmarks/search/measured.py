"""Tables of measured configurations, whatever their source, with the interface of a search."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from benchmarks.search.table_space import TableSpace
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.trial import Rejection
from shardtune.service.cli.errors import InputError
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.learning import ComparedRun
from shardtune.tuner.search.guided_sampler.pool import Pool


@dataclass(frozen=True)
class Run:
    """One line of a table."""

    step_time_s: float | None
    """Step time; None: the run failed."""
    half_width_s: float
    peak_gib: float | None
    failure: str
    wall_s: float | None

    def infeasible(self, limit_gib: float) -> FailureKind | None:
        """Reason why the run does not count: the line's failure, or more memory than the study's ranks may use."""
        if self.step_time_s is None:
            word = self.failure.split(":")[0].strip().lower()
            return FailureKind(word) if word in set(FailureKind) else FailureKind.CRASH
        return FailureKind.OVER_LIMIT if self.peak_gib is not None and self.peak_gib > limit_gib else None


@dataclass(frozen=True)
class MeasuredTable(ABC):
    """Configurations and their runs, the memory gate before them, and what is predicted of them."""

    name: str
    workload: Workload
    cluster: Cluster
    space: TableSpace
    runs: dict[str, tuple[Run, ...]]
    """Runs by the content key of the configuration's canonical form."""

    @property
    @abstractmethod
    def limit_gib(self) -> float:
        """GiB that a rank may use."""

    @abstractmethod
    def pool(self) -> Pool:
        """Configurations of the table, with the prediction of each."""

    @abstractmethod
    def compared(self, history: Sequence[Observation]) -> list[ComparedRun]:
        """Measured trials of a search, beside their predictions."""

    @abstractmethod
    def memory(self, history: Sequence[Observation]) -> MemoryCalibration:
        """Correction of predicted peaks after these trials: tables teach nothing about themselves or each other."""

    @abstractmethod
    def gate(self, config: TrialConfig, memory: MemoryCalibration) -> Rejection | None:
        """Reason why a configuration will not fit; None where it might."""

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Step time of every configuration that can be an answer: the median of its runs."""
        results = {}
        for key, runs in self.runs.items():
            times = [run.step_time_s for run in runs if run.step_time_s and run.infeasible(self.limit_gib) is None]
            if times and 2 * len(times) > len(runs):
                results[key] = median(times)
        return results

    @cached_property
    def speeds(self) -> dict[str, float]:
        """Speed in tokens per second and rank."""
        tokens = self.workload.tokens_per_step / self.cluster.world_size
        return {key: tokens / seconds for key, seconds in self.seconds.items()}

    @cached_property
    def best(self) -> float:
        """The fastest of the table."""
        return max(self.speeds.values())

    def share(self, key: str) -> float:
        """Speed of a configuration as a share of the best; 0 for one that is no answer."""
        return self.speeds.get(key, 0.0) / self.best

    @cached_property
    def usual_wall_s(self) -> float:
        """Wall time of runs whose own is not recorded."""
        recorded = [run.wall_s for runs in self.runs.values() for run in runs if run.wall_s]
        return median(recorded) if recorded else 0.0


def names_are_unique(tables: Sequence[MeasuredTable]) -> None:
    """Raises InputError where two tables have one name."""
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"table ({name}) is given twice, or two have this name; rename one")
