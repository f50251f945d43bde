"""Watch of the agent on its GPUs: a child process observes them once a second, a thread keeps its observations.

Before work is taken the devices must be free and healthy; after a run, the observations decide whether it counts.
"""

import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from shardtune.workers.clock import now_s
from shardtune.workers.launchers.processes import PYTHON, start_child
from shardtune.workers.machine import device_health
from shardtune.workers.machine.device_health import GpuObservation
from shardtune.workers.status_note import doing

WATCH_COMMAND = (*PYTHON, "-m", "shardtune.workers.machine.nvml_watch")
_KEPT = 4 * 3600
"""Maximum number of GPU observations that are kept. Even the longest run produces fewer."""
_RELEASE_S = 3.0
"""Seconds that the driver may take to release GPU memory that this worker's own ranks held."""
_NEXT_S = 3.0
"""Seconds to wait for the next GPU observation; there is one a second."""
_FRESH_S = 15.0
"""Age in seconds above which the last GPU observation is too old to be used."""

log = logging.getLogger(__name__)


class DevicesUnfit(Exception):
    """Exception for a device that must not be used. The message gives its name, the reason and the remedy."""


class DeviceWatch:
    """Watch on some GPUs: records their clocks, temperatures and other programs' use of them from `start` to `close`."""

    def __init__(
        self, uuids: Sequence[str], work_dir: Path, command: Sequence[str] = WATCH_COMMAND, patience_s: float = 60.0
    ) -> None:
        """Prepare the watch. `patience_s`: seconds that devices may take to become free before `require_fit` raises an
        error."""
        self._work_dir = work_dir
        self._uuids = list(uuids)
        self._command = command
        self._patience_s = patience_s
        self._observations: deque[GpuObservation] = deque(maxlen=_KEPT)
        self._base_bytes: dict[str, int] = {}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the child process that observes the GPUs."""
        # Without the launch tag, by which it would be killed with the ranks of every trial.
        self._child = start_child([*self._command, *self._uuids], os.environ, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        threading.Thread(target=self._read, args=(self._child.stdout,), name="device-watch", daemon=True).start()

    def close(self) -> None:
        """End the child process that observes the GPUs."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _read(self, stdout: IO[bytes]) -> None:
        try:
            for line in stdout:
                self._observations.append(GpuObservation.model_validate_json(line))
        except (OSError, ValueError, ValidationError) as error:
            log.warning("the GPUs cannot be watched any more: %s", error)

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait until the watched GPUs are healthy and free; call this while no rank of this worker runs.

        Raises:
            DevicesUnfit: a device is broken or not free in time, or NVML does not answer.
        """
        until_s = now_s() + self._patience_s
        reason = self._reason_after_release(min(_RELEASE_S, self._patience_s), give_up)
        while reason is not None and not give_up():
            with doing(self._work_dir, f"waiting for the GPUs: {reason}"):
                # The note is rewritten only when the reason changes, so that its log line appears once.
                while (now := self._unfit_reason()) == reason and not give_up():
                    if now_s() > until_s:
                        raise DevicesUnfit(reason)
                    time.sleep(0.25)
            reason = now
        if self._observations:
            self._keep_base(self._observations[-1])

    def _reason_after_release(self, release_s: float, give_up: Callable[[], bool]) -> str | None:
        """Reason why the GPUs are not free; None if they are. Before it gives a reason, it waits `release_s` seconds
        for the driver to release what this worker's last ranks held. NVML lists an ended process for up to a second
        (driver 580 on an H200), although the GPU is free by then."""
        until_s = now_s() + release_s
        while (reason := self._unfit_reason()) is not None and now_s() < until_s and not give_up():
            time.sleep(0.1)
        return reason

    def _unfit_reason(self) -> str | None:
        """Reason why the GPUs are not free; None if the worker may start a run on them."""
        look = self._observations[-1] if self._observations else None
        if look is None or now_s() - look.at_s > _FRESH_S:
            return "NVML has reported nothing about them lately; see the worker's log"
        broken = device_health.broken_devices(look)
        if broken:
            raise DevicesUnfit("; ".join(broken))
        return "; ".join(device_health.occupied_devices(look, self._base_bytes)) or None

    def _keep_base(self, look: GpuObservation) -> None:
        """Store the lowest memory use of each GPU that was observed while the GPU was free. After a run, its memory use
        must return to this level."""
        for device in look.devices:
            used = device.memory_used_bytes
            self._base_bytes[device.uuid] = min(used, self._base_bytes.get(device.uuid, used))

    def await_look(self, after_s: float) -> None:
        """Wait until there is an observation of the GPUs after the time `after_s`, for three periods of the watch at most."""
        until_s = now_s() + _NEXT_S
        while now_s() < until_s and not any(look.at_s > after_s for look in list(self._observations)[-1:]):
            time.sleep(0.02)

    def between(self, begin_s: float, end_s: float) -> list[GpuObservation]:
        """Last GPU observation before the time `begin_s`, and all observations from then until the time `end_s`."""
        # A copy, which is made at once: the reading thread may append meanwhile, and a deque that grows ends its iteration.
        looks = [look for look in list(self._observations) if look.at_s <= end_s]
        before = [look for look in looks if look.at_s <= begin_s]
        return before[-1:] + [look for look in looks if look.at_s > begin_s]
