"""When a run counts for nothing, because its machine was disturbed meanwhile, and how often it is repeated for that.

The rule looks at circumstances only, never at the speed that came out, and is the same for every configuration. So a pair's
sign stays a fair coin where the two are alike (tuner.verdict.paired_test), however often either was repeated.
docs/measurements/verdicts.md has the runs that it was chosen on.
"""

from collections.abc import Callable

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.measurements import Measurement

MOST_TAKEN = 0.15
"""Share of the cores the ranks need that other programs may take."""
CORES_PER_GPU = 2.0
"""That a rank on a GPU needs: one launches kernels, one backward's. Ranks on CPU use all cores there are."""
MOST_SPREAD = 0.10
"""Half of the 95 % interval within the run, as a share of its step time: beyond, something came and went meanwhile. Only asked
where the worker could not see the cores that other programs took."""
MOST_REPEATS = 5
"""Of one run; then it counts as it is."""
FREE_REPEATS = 4
"""Of a study, before `budget.repeat_disturbed` limits them to a share of the runs that count."""


def reason(measured: Measurement, cluster: Cluster, cores_of: Callable[[], int | None]) -> str | None:
    """Why a run says nothing about its configuration, in words; None where it does.

    `cores_of` tells the cores of its machine; asked only where other programs were seen. Beside other runs of ours on the same
    host a worker sees the programs on its own cores.
    """
    foreign = measured.conditions.foreign_cpu_cores if measured.conditions is not None else None
    cores = cores_of() if foreign else None
    if foreign == 0 or cores:
        # Seen: windows that lie apart on a quiet machine are the configuration's own.
        return taken(foreign or 0.0, cluster, cores) if cores else None
    if measured.conditions is not None and measured.conditions.neighbours:
        # They come and go as planned, in runs that guide a search and decide nothing.
        return None
    spread = measured.step_time_half_width_s / measured.step_time_s
    if spread > MOST_SPREAD:
        return f"its timed windows lie apart by ±{spread:.0%} of the step time"
    return None


def taken(foreign: float, cluster: Cluster, cores: int) -> str | None:
    """Whether other programs took too many of a host's cores from the ranks of such a cluster, in words; None where not."""
    needed = cores if cluster.device == "cpu" else min(cores, CORES_PER_GPU * cluster.gpus_per_node)
    is_too_much = foreign - (cores - needed) > MOST_TAKEN * needed
    return f"other programs kept {foreign:.1f} of {cores} cores busy" if is_too_much else None


def may_repeat(share: float, of_run: int, of_study: int, counted: int) -> bool:
    """Whether a disturbed run is repeated once more.

    `share`: `budget.repeat_disturbed`. `of_run`, `of_study`: repeats so far. `counted`: complete runs of the study.
    """
    return share > 0 and of_run < MOST_REPEATS and of_study < FREE_REPEATS + share * counted
