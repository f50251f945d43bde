"""Sentences about the conditions of a measurement: the worker's machine and the course of the timing."""

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen, program_names
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.pages.figures import memory, percent, seconds

_BUSY_CORES = 0.5
"""Number of CPU cores that other programs must keep busy before a warning is shown."""
_IDLE_CORES = 0.05
"""Number of CPU cores that other programs must keep busy to be stated: a smaller number would be shown as 0.0."""
_STRAGGLES = 1.1
"""Ratio of the slowest to the fastest rank's time for the same calculation at which a warning is shown."""


def circumstances(measured: Measurement) -> tuple[tuple[str, str], ...]:
    """Return tone (colour) and sentence of each condition of the machine during a run, such as a busy machine; empty
    if its worker recorded none."""
    return (*_timing(measured), *surroundings(measured.conditions))


def conditions_of(measured: Measurement | None, failure: Failure | None) -> Conditions | None:
    """Return the conditions of the machine (load, clock rates) that the worker recorded around a run, whether the run
    succeeded or not."""
    return measured.conditions if measured is not None else failure.conditions if failure is not None else None


def surroundings(conditions: Conditions | None) -> tuple[tuple[str, str], ...]:
    """Return tone (colour) and sentence of each recorded condition of the machine."""
    if conditions is None:
        return ()
    return (*_machine(conditions), *(line for device in conditions.devices for line in _device(device)))


def troubles(conditions: Conditions | None) -> tuple[tuple[str, str], ...]:
    """Return tone (colour) and sentence of those conditions of the machine that deserve a warning."""
    return tuple((tone, text) for tone, text in surroundings(conditions) if tone in ("warn", "bad"))


def _timing(measured: Measurement) -> list[tuple[str, str]]:
    sentences = []
    if measured.is_pruned:
        sentences.append(("quiet", "timing ended within the warm-up, because the trial was certainly too slow"))
    # A pruned trial ended within its warm-up: steadiness was not reached, and not needed.
    if measured.is_steady is not None and not measured.is_pruned:
        sentences.append(
            _either(
                measured.is_steady,
                "the step time was steady before timing began",
                "the step time was not steady when warm-up had to end",
            )
        )
    if measured.is_precise is not None and not measured.is_pruned:
        sentences.append(
            _either(
                measured.is_precise,
                "timing continued until it was precise enough",
                "timing ended by its limits, before it was precise",
            )
        )
    if measured.startup_s is not None:
        ends = f", {seconds(measured.teardown_s)} after the last" if measured.teardown_s is not None else ""
        sentences.append(("quiet", f"{seconds(measured.startup_s)} passed before the first forward{ends} step"))
    return sentences


def _machine(conditions: Conditions) -> list[tuple[str, str]]:
    sentences: list[tuple[str, str]] = []
    if conditions.co_tenants:
        sentences.append(
            ("quiet", f"{_co_tenants(conditions.co_tenants)} of its host meanwhile: its speed only guides the search")
        )
    if conditions.foreign_cpu_cores is not None:
        sentences.append(_other_programs(conditions, conditions.foreign_cpu_cores))
    if conditions.cpu_throttled_s:
        host = _host_suffix(conditions, "cpu_throttled_s", conditions.cpu_throttled_s)
        sentences.append(("warn", f"the CPU limit throttled threads for {seconds(conditions.cpu_throttled_s)}{host}"))
    if conditions.memory_available_gib is not None:
        sentences.append(
            ("quiet", f"{memory(conditions.memory_available_gib)} of host memory were free before the run")
        )
    if len(conditions.rank_pace_s) > 1:
        sentences.append(_rank_pace(conditions))
    return sentences


def _other_programs(conditions: Conditions, cores: float) -> tuple[str, str]:
    if cores < _IDLE_CORES:
        return "good", "no other process kept the CPU busy"
    text = f"other programs kept {cores:.1f} CPU cores busy{_host_suffix(conditions, 'foreign_cpu_cores', cores)}"
    text += f": {program_names(conditions.foreign_programs, cores)}" if conditions.foreign_programs else ""
    return "quiet" if cores < _BUSY_CORES else "warn", text


def _rank_pace(conditions: Conditions) -> tuple[str, str]:
    """Return tone and sentence of the check, before a run, of how fast each rank computes alone."""
    worst = max(conditions.rank_pace_s) / min(conditions.rank_pace_s)
    if worst < _STRAGGLES:
        return "good", "all ranks were equally fast in a check before the run"
    slower = f"in a check before the run, the slowest rank took {worst:.2f}× as long as the fastest for one calculation"
    if not conditions.devices:
        # The check of a CPU rank takes milliseconds: whatever shares the cores in that moment slows one rank down.
        return "quiet", f"{slower}; CPU ranks share cores, so that this says little of the run"
    return "warn", f"{slower}: other programs, heat or a limit may slow it down"


def _co_tenants(count: int) -> str:
    return "another worker used other devices" if count == 1 else f"{count} other workers used other devices"


def _host_suffix(conditions: Conditions, field: str, worst: float) -> str:
    """Return text that names the host with the worst figure; empty unless the run used several hosts."""
    hosts = [node.host for node in conditions.nodes if getattr(node, field) == worst]
    return f" on {hosts[0]}" if hosts and len(conditions.hosts) > 1 else ""


def _device(device: DeviceSeen) -> list[tuple[str, str]]:
    name = device.uuid[:12] if device.host is None else f"{device.uuid[:12]} of {device.host}"
    sentences = []
    if device.foreign_processes:
        sentences.append(("bad", f"{name}: other programs on the GPU: {', '.join(device.foreign_processes)}"))
    # None is unknown, which must not read as "never throttled".
    if device.throttled_fraction is None:
        sentences.append(("quiet", f"{name}: does not report whether its clocks were lowered"))
    elif device.throttled_fraction:
        reasons = ", ".join(device.throttle_reasons) or "an unknown reason"
        sentences.append(
            ("warn", f"{name}: clocks were lowered {percent(device.throttled_fraction)} of the time by {reasons}")
        )
    # A power cap is normal at full load, so that it is no warning.
    if device.power_capped_fraction:
        sentences.append(
            ("quiet", f"{name}: the power cap held the clocks down {percent(device.power_capped_fraction)} of the time")
        )
    figures = [
        f"{text:.0f} {unit}"
        for text, unit in ((device.sm_clock_mhz, "MHz"), (device.power_w, "W"), (device.temperature_c, "°C at most"))
        if text is not None
    ]
    if figures:
        sentences.append(("quiet", f"{name}: {', '.join(figures)}"))
    if device.lost:
        sentences.append(("bad", f"{name}: did not answer after the run ({device.lost})"))
    if device.recovery_action:
        sentences.append(
            ("bad", f"{name}: the driver asked for recovery action {device.recovery_action} (`nvidia-smi -q`)")
        )
    if device.xids or device.uncorrected_ecc:
        sentences.append(
            (
                "bad",
                f"{name}: driver errors {', '.join(map(str, device.xids)) or 'none'}, memory errors {device.uncorrected_ecc or 0}",
            )
        )
    return sentences


def _either(is_well: bool, good: str, warning: str) -> tuple[str, str]:
    return ("good", good) if is_well else ("warn", warning)
