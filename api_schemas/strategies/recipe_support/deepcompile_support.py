"""Workloads for which DeepSpeed's DeepCompile was not compared with the other backends, so that no search draws it."""

from collections.abc import Iterable, Mapping

from shardtune.api_schemas.strategies.recipe_support import lora_support
from shardtune.api_schemas.training.workload import WorkloadRequest

_KNOB = "deepcompile"
_NOT_COMPARED = "nobody has compared it"


def obstacle(workload: WorkloadRequest) -> str | None:
    """Return the setting of the workload that excludes DeepCompile from all trials, with its value. None if there is no
    such setting."""
    if workload.precision is not None and workload.precision.scales_loss:
        return f"precision ({workload.precision.name!r})"
    if workload.float8 is not None:
        return f"workload.float8 ({workload.float8!r})"
    if workload.adapter is not None and not lora_support.can_deepcompile(workload.adapter):
        return f"workload.adapter ({workload.adapter.describe()})"
    if workload.data is not None:
        return f"workload.data ({workload.data.describe()})"
    return None


def check_limits(knobs: Mapping[str, object], workload: WorkloadRequest) -> None:
    """Reject search limits that leave only DeepCompile, if DeepCompile has not been compared with the other backends
    for this kind of workload.

    Raises:
        ValueError: names the knob, its values and the remedy.
    """
    values, setting = _values(knobs), obstacle(workload)
    # By identity: 1, "true" and a range are no values of the knob, and rejected as such.
    if setting is not None and values and all(value is True for value in values):
        raise ValueError(f"space.knobs.{_KNOB} (true) cannot train with {setting}: {_NOT_COMPARED}; leave it out")


def dropped_note(backends: Iterable[str], knobs: Mapping[str, object], workload: WorkloadRequest) -> tuple[str, ...]:
    """Return a note that the search leaves out DeepCompile although its limits name it; empty if it leaves out nothing."""
    setting = obstacle(workload)
    if setting is None or "zero" not in backends or not any(value is True for value in _values(knobs)):
        return ()
    return (f"space.knobs.{_KNOB} (true) cannot train with {setting}: {_NOT_COMPARED}; it is not searched",)


def _values(knobs: Mapping[str, object]) -> tuple[object, ...]:
    stated = knobs.get(_KNOB, False)
    return tuple(stated) if isinstance(stated, list | tuple) else (stated,)
