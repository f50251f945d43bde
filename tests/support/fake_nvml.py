"""Answers as nvidia-ml-py gives them, from a table; run as a script it is `workers.machine.nvml_watch` over a file of such answers."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from shardtune.workers.machine.nvml_watch import Watch

GIB = 1 << 30


class FakeNvml:
    """`devices` by UUID: used (bytes), pids, reasons, ecc, remapped; a missing answer is NVML_ERROR_NOT_SUPPORTED."""

    class NVMLError(Exception):
        pass

    nvmlEventTypeXidCriticalError = 8
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, devices, events=()):
        self.devices, self.events = devices, list(events)

    def _of(self, handle, name):
        if name not in self.devices[handle]:
            raise self.NVMLError("Not Supported")
        return self.devices[handle][name]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        assert (kinds, events) == (8, "events")

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        if not self.events:
            time.sleep(timeout_ms / 1000)
            raise self.NVMLError("Timeout")
        uuid, xid = self.events.pop(0)
        return SimpleNamespace(device=uuid, eventType=8, eventData=xid)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=self._of(handle, "used"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=GIB) for pid in self._of(handle, "pids")]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._of(handle, "reasons")

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        assert (kind, counter) == (1, 0)
        return self._of(handle, "ecc")

    def nvmlDeviceGetRemappedRows(self, handle):
        return self._of(handle, "remapped")


def main():
    file, *uuids = sys.argv[1:]
    nvml = FakeNvml({})
    while True:
        nvml.devices = json.loads(Path(file).read_text())
        print(json.dumps(next(Watch(uuids, nvml).looks())), flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
