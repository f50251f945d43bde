"""Observation of GPUs once a second, printed as lines of JSON: `python -m shardtune.workers.machine.nvml_watch UUID…`.

It is a separate process, like `workers.machine.nvml`, so that the agent never holds a device. A figure that the device does not
give is null. `device_health` interprets the observations.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pynvml

_PERIOD_MS = 1000

Value = TypeVar("Value")


class Watch:
    """GPUs that are observed once a second."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._handles = {uuid: pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids}
        self._xids: dict[str, list[int]] = {uuid: [] for uuid in uuids}
        self._events = self._register()

    def _register(self) -> Any:
        """Register with NVML for driver errors (Xid); None if the GPUs report no driver errors."""
        with contextlib.suppress(pynvml.NVMLError):
            events = pynvml.nvmlEventSetCreate()
            for handle in self._handles.values():
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
            return events
        return None

    def observations(self) -> Iterator[dict[str, Any]]:
        """Yield an observation of the GPUs now, and another one after each period of a second."""
        while True:
            yield {
                "at_s": time.clock_gettime(time.CLOCK_BOOTTIME),
                "devices": [self._observe(u) for u in self._handles],
            }
            self._wait()

    def _wait(self) -> None:
        """Wait for one period, and record the driver errors (Xid events) in it."""
        ends_s = time.monotonic() + _PERIOD_MS / 1000
        while (left_ms := int(1000 * (ends_s - time.monotonic()))) > 0:
            if self._events is None:
                time.sleep(left_ms / 1000)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, left_ms)
            except pynvml.NVMLError:  # mostly the timeout
                time.sleep(max(0.0, min(0.05, ends_s - time.monotonic())))
                continue
            for uuid in self._sources(event.device):
                self._xids.setdefault(uuid, []).append(int(event.eventData))

    def _sources(self, handle: Any) -> list[str]:
        """UUID of the GPU that reported a driver error. A GPU that has fallen off the bus (Xid 79) may not even tell its
        UUID; the error then counts for each GPU that does not."""
        uuid = self._query(lambda: pynvml.nvmlDeviceGetUUID(handle))
        if uuid is not None:
            return [uuid]
        return [own for own, known in self._handles.items() if not self._tells_uuid(known)]

    def _tells_uuid(self, handle: Any) -> bool:
        return self._query(lambda: pynvml.nvmlDeviceGetUUID(handle)) is not None

    def _observe(self, uuid: str) -> dict[str, Any]:
        handle = self._handles[uuid]
        try:
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except pynvml.NVMLError as error:
            # A GPU that has fallen off the bus answers no query at all.
            return {"uuid": uuid, "lost": str(error), "xids": list(self._xids[uuid])}
        remapped = self._query(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
        return {
            "uuid": uuid,
            "memory_used_bytes": used,
            "processes": self._query(
                lambda: [_process(p) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            ),
            "clock_reasons": self._query(lambda: _clock_reasons(handle)),
            "sm_clock_mhz": self._query(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))),
            "power_mw": self._query(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle))),
            "temperature_c": self._query(
                lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
            ),
            "uncorrected_ecc": self._query(
                lambda: int(
                    pynvml.nvmlDeviceGetTotalEccErrors(
                        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                    )
                )
            ),
            "remap_pending": bool(remapped[2]) if remapped else None,
            "remap_failed": bool(remapped[3]) if remapped else None,
            "recovery_action": self._query(lambda: _recovery_action(handle)),
            "xids": list(self._xids[uuid]),
        }

    def _query(self, call: Callable[[], Value]) -> Value | None:
        try:
            return call()
        except pynvml.NVMLError:
            return None


def _clock_reasons(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # Drivers before 535 know it by its former name.
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _recovery_action(handle: Any) -> int | None:
    """Action that the driver asks for after an error of the GPU; 0 is none. Drivers before 570 do not know it."""
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(field.value.uiVal) if field.nvmlReturn == pynvml.NVML_SUCCESS else None


def _process(process: Any) -> dict[str, int | None]:
    return {"pid": int(process.pid), "memory_bytes": process.usedGpuMemory}


def main() -> None:
    """Print GPU observations until the reading process closes the pipe."""
    pynvml.nvmlInit()
    with contextlib.suppress(BrokenPipeError):
        for look in Watch(sys.argv[1:]).observations():
            print(json.dumps(look), flush=True)


if __name__ == "__main__":
    main()
