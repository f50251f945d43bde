"""The agent's eyes on its GPUs: a child process looks once a second, a thread keeps what it saw.

Before work is taken the devices must be free and whole; after a run, what was seen in it says whether it counts.
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
from shardtune.workers.machine.device_health import Look
from shardtune.workers.status_note import doing

WATCH_COMMAND = (*PYTHON, "-m", "shardtune.workers.machine.nvml_watch")
_KEPT = 4 * 3600
"""Looks; more than the longest run takes."""
_FRESH_S = 15.0

log = logging.getLogger(__name__)


class DevicesUnfit(Exception):
    """A device must not be used; the message names it, the reason and what to do."""


class DeviceWatch:
    """Watches the given GPUs from `start` to `close`."""

    def __init__(
        self, uuids: Sequence[str], work_dir: Path, command: Sequence[str] = WATCH_COMMAND, patience_s: float = 60.0
    ) -> None:
        """`patience_s`: how long devices may take to become free before `require_fit` gives up."""
        self._work_dir = work_dir
        self._uuids = list(uuids)
        self._command = command
        self._patience_s = patience_s
        self._looks: deque[Look] = deque(maxlen=_KEPT)
        self._base_bytes: dict[str, int] = {}
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start looking. Without the pool's mark, which would end it with the ranks of every trial."""
        self._child = start_child([*self._command, *self._uuids], os.environ, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        threading.Thread(target=self._read, args=(self._child.stdout,), name="device-watch", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _read(self, stdout: IO[bytes]) -> None:
        try:
            for line in stdout:
                self._looks.append(Look.model_validate_json(line))
        except (OSError, ValueError, ValidationError) as error:
            log.warning("the GPUs cannot be watched any more: %s", error)

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Return once the devices are whole and free; while no rank of ours runs.

        Raises:
            DevicesUnfit: a device is broken, or is not free in time, or nobody can tell.
        """
        until_s = now_s() + self._patience_s
        reason = self._why_unfit()
        while reason is not None and not give_up():
            with doing(self._work_dir, f"waiting for the GPUs: {reason}"):
                while (now := self._why_unfit()) == reason and not give_up():
                    if now_s() > until_s:
                        raise DevicesUnfit(reason)
                    time.sleep(0.25)
            reason = now
        if self._looks:
            self._keep_base(self._looks[-1])

    def _why_unfit(self) -> str | None:
        """None where work may be taken now."""
        look = self._looks[-1] if self._looks else None
        if look is None or now_s() - look.at_s > _FRESH_S:
            return "NVML has said nothing about them lately; see the worker's log"
        broken = device_health.broken(look)
        if broken:
            raise DevicesUnfit("; ".join(broken))
        return "; ".join(device_health.occupied(look, self._base_bytes)) or None

    def _keep_base(self, look: Look) -> None:
        """The lowest level seen while free is what the devices must come back to."""
        for device in look.devices:
            used = device.memory_used_bytes
            self._base_bytes[device.uuid] = min(used, self._base_bytes.get(device.uuid, used))

    def between(self, begin_s: float, end_s: float) -> list[Look]:
        """The last look before `begin_s`, and those until `end_s`."""
        looks = [look for look in self._looks if look.at_s <= end_s]
        before = [look for look in looks if look.at_s <= begin_s]
        return before[-1:] + [look for look in looks if look.at_s > begin_s]
