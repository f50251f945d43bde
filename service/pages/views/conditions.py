"""The circumstances of a measurement in words: what the worker saw of its machine, and how the timing went."""

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.pages.figures import memory, percent, seconds

_BUSY_CORES = 0.5
"""From here on, other programs are worth a warning."""
_STRAGGLES = 1.1
"""Slowest over fastest rank in the same calculation."""


def circumstances(measured: Measurement) -> tuple[tuple[str, str], ...]:
    """Tone and sentence of each thing worth knowing; empty where an older worker recorded none."""
    return (*_timing(measured), *surroundings(measured.conditions))


def conditions_of(measured: Measurement | None, failure: Failure | None) -> Conditions | None:
    """What the worker saw around a run, however it ended."""
    return measured.conditions if measured is not None else failure.conditions if failure is not None else None


def surroundings(seen: Conditions | None) -> tuple[tuple[str, str], ...]:
    """Tone and sentence of everything that was seen of the machine."""
    if seen is None:
        return ()
    return (*_machine(seen), *(line for device in seen.devices for line in _device(device)))


def troubles(seen: Conditions | None) -> tuple[tuple[str, str], ...]:
    """Of these, what was not as it should be."""
    return tuple((tone, text) for tone, text in surroundings(seen) if tone in ("warn", "bad"))


def _timing(measured: Measurement) -> list[tuple[str, str]]:
    found = []
    if measured.is_pruned:
        found.append(("quiet", "timing ended within the warm-up, since the trial was surely too slow"))
    if measured.is_steady is not None and not measured.is_pruned:
        found.append(
            _either(
                measured.is_steady,
                "the step time was steady before timing began",
                "the step time was not steady when warm-up had to end",
            )
        )
    if measured.is_precise is not None and not measured.is_pruned:
        found.append(
            _either(
                measured.is_precise,
                "timing went on until it was precise enough",
                "timing ended by its limits, before it was precise",
            )
        )
    if measured.startup_s is not None:
        ends = f", {seconds(measured.teardown_s)} after the last" if measured.teardown_s is not None else ""
        found.append(("quiet", f"{seconds(measured.startup_s)} passed before the first forward{ends} step"))
    return found


def _machine(seen: Conditions) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if seen.neighbours:
        found.append(
            ("quiet", f"{_neighbours(seen.neighbours)} of its host meanwhile: its speed guides the search only")
        )
    cores = seen.foreign_cpu_cores
    if cores is not None:
        found.append(
            _either(
                cores < _BUSY_CORES,
                "no other program kept the CPU busy",
                f"other programs kept {cores:.1f} CPU cores busy{_where(seen, 'foreign_cpu_cores', cores)}",
            )
        )
    if seen.cpu_throttled_s:
        where = _where(seen, "cpu_throttled_s", seen.cpu_throttled_s)
        found.append(("warn", f"the CPU limit held threads back for {seconds(seen.cpu_throttled_s)}{where}"))
    if seen.memory_available_gib is not None:
        found.append(("quiet", f"{memory(seen.memory_available_gib)} of host memory were free before"))
    if len(seen.rank_pace_s) > 1:
        worst = max(seen.rank_pace_s) / min(seen.rank_pace_s)
        found.append(
            _either(
                worst < _STRAGGLES,
                "all ranks were equally fast",
                f"the slowest rank took {worst:.2f}× as long as the fastest for the same calculation: other programs, heat or a limit slow one of them",
            )
        )
    return found


def _neighbours(count: int) -> str:
    return "another worker used other devices" if count == 1 else f"{count} other workers used other devices"


def _where(seen: Conditions, field: str, worst: float) -> str:
    """Of several hosts, the one that a figure is of."""
    hosts = [node.host for node in seen.nodes if getattr(node, field) == worst]
    return f" on {hosts[0]}" if hosts and len(seen.hosts) > 1 else ""


def _device(device: DeviceSeen) -> list[tuple[str, str]]:
    name = device.uuid[:12] if device.host is None else f"{device.uuid[:12]} of {device.host}"
    found = []
    if device.foreign_processes:
        found.append(("bad", f"{name}: other processes on the GPU: {', '.join(device.foreign_processes)}"))
    if device.throttled_fraction is None:
        found.append(("quiet", f"{name}: does not say whether its clocks were lowered"))
    elif device.throttled_fraction:
        reasons = ", ".join(device.throttle_reasons) or "an unknown reason"
        found.append(
            ("warn", f"{name}: clocks were lowered {percent(device.throttled_fraction)} of the time by {reasons}")
        )
    if device.power_capped_fraction:
        found.append(
            ("quiet", f"{name}: the power cap held the clocks down {percent(device.power_capped_fraction)} of the time")
        )
    if device.xids or device.uncorrected_ecc:
        found.append(
            (
                "bad",
                f"{name}: driver errors {', '.join(map(str, device.xids)) or 'none'}, memory errors {device.uncorrected_ecc or 0}",
            )
        )
    return found


def _either(is_well: bool, well: str, otherwise: str) -> tuple[str, str]:
    return ("good", well) if is_well else ("warn", otherwise)
