"""Disturbance: when a run is discarded because other programs disturbed its machine, and how often a run is repeated.

The rule uses circumstances only, never the measured speed, and is the same for every configuration. So the sign of a
pair of equal configurations is still a fair coin (`tuner.verdict.paired_test`), however often either run was repeated.
docs/measurements/verdicts.md has the runs from which the rule was chosen.
"""

from collections.abc import Callable

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.measurements import Measurement

MAX_FOREIGN_FRACTION = 0.15
"""Largest number of cores that other programs may use during a run, as a fraction of the cores that the run's ranks
need."""
CORES_PER_GPU = 2.0
"""Number of CPU cores that a rank on a GPU needs: one launches the kernels, one runs the backward pass. Ranks on CPU
use all cores."""
MAX_SPREAD = 0.10
"""Largest half-width of the 95 % interval of a run's step time, as a fraction of the step time, at which the run counts
as undisturbed; checked only where the worker could not measure the cores that other programs used."""
MAX_REPEATS = 5
"""Maximum number of repeats of a disturbed run; after that many, the last run counts although it was disturbed."""
FREE_REPEATS = 4
"""Number of disturbed runs that a study may always repeat, before `budget.repeat_disturbed` limits repeats to a
fraction of the runs that count."""
MAX_DISCARDED_IN_A_ROW = 4
"""Number of disturbed runs in a row that a study discards on one machine. After that many the load is steady, and a repeat
would meet it again: no run is repeated there until one was undisturbed, or the study was extended."""


def reason(measured: Measurement, cluster: Cluster, cores_of: Callable[[], int | None]) -> str | None:
    """Reason, in words, to discard a run because other programs disturbed its machine; None where the run counts.

    `cores_of` returns the number of cores of the run's machine and is called only where other programs ran. A worker
    that shares its host with other workers measures the programs on its own cores.
    """
    foreign = measured.conditions.foreign_cpu_cores if measured.conditions is not None else None
    cores = cores_of() if foreign else None
    if foreign == 0 or cores:
        # The worker saw the cores. Windows that differ on a quiet machine are a property of the configuration.
        return foreign_load(foreign or 0.0, cluster, cores) if cores else None
    if measured.conditions is not None and measured.conditions.co_tenants:
        # Co-tenants come and go as planned, in search runs, which guide the search and decide nothing.
        return None
    spread = measured.step_time_half_width_s / measured.step_time_s
    if spread > MAX_SPREAD:
        return f"its timed windows lie apart by ±{spread:.0%} of the step time"
    return None


def throttling(measured: Measurement) -> str | None:
    """Reason, in words, to repeat a run once because heat, power brake or hardware lowered a GPU's clocks; None where
    no GPU was throttled.

    Such a run is not `disturbed`: a machine that always throttles trains at that speed, so its runs count.
    """
    devices = measured.conditions.devices if measured.conditions is not None else ()
    for device in devices:
        if device.is_throttled:
            reasons = ", ".join(device.throttle_reasons) or "reason unknown"
            name = device.uuid if device.host is None else f"{device.uuid} of {device.host}"
            return f"GPU {name} was throttled in {device.throttled_fraction:.0%} of the run ({reasons})"
    return None


def foreign_load(foreign: float, cluster: Cluster, cores: int) -> str | None:
    """Message that other programs used too many of a host's CPU cores during a run; None where they did not."""
    is_too_much = foreign > most_foreign_cores(cluster, cores)
    return f"other programs kept {foreign:.1f} of {cores} cores busy" if is_too_much else None


def most_foreign_cores(cluster: Cluster, cores: int) -> float:
    """Largest number of a host's CPU cores that other programs may use during a run that counts as undisturbed."""
    needed = _needed_cores(cluster, cores)
    return (cores - needed) + MAX_FOREIGN_FRACTION * needed


def cores_left(foreign: float, cluster: Cluster, cores: int) -> float:
    """Number of a host's CPU cores that other programs left for a run's ranks, at most as many as the ranks need."""
    return round(max(0.0, min(_needed_cores(cluster, cores), cores - foreign)), 2)


def _needed_cores(cluster: Cluster, cores: int) -> float:
    return cores if cluster.device == "cpu" else min(cores, CORES_PER_GPU * cluster.gpus_per_node)


def may_repeat(
    repeat_fraction: float, run_repeats: int, study_repeats: int, complete_runs: int, discarded_in_a_row: int
) -> bool:
    """Whether a disturbed run may be repeated once more under the study's budget.

    `repeat_fraction` is `budget.repeat_disturbed`; the next three arguments are numbers of repeats of the run and of
    the study so far, and of the study's complete runs. `discarded_in_a_row`: number of the study's runs that were
    discarded on this machine since its last undisturbed one, or since the study was extended.
    """
    return (
        repeat_fraction > 0
        and run_repeats < MAX_REPEATS
        and discarded_in_a_row < MAX_DISCARDED_IN_A_ROW
        and study_repeats < FREE_REPEATS + repeat_fraction * complete_runs
    )
