"""Thread that renews a lease, sends the run's progress and receives the service's orders to stop. It never touches the
ranks."""

import logging
import threading
from collections.abc import Callable

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import Heartbeat, Lease
from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.agent.client import WorkerClient
from shardtune.workers.agent.client_errors import LeaseLost, RequestRejected, Unreachable
from shardtune.workers.clock import LeaseClock, now_s

log = logging.getLogger(__name__)


class HeartbeatThread(threading.Thread):
    """Thread that renews one lease until `finish` is called. The main thread reads `stop_reason`, and ends the ranks if
    there is one."""

    def __init__(
        self,
        client: WorkerClient,
        session: str,
        lease: Lease,
        leased_at_s: float,
        progress: Callable[[], Progress | None],
        renewed: Callable[[float], None] = lambda _: None,
        protocol_version: int = PROTOCOL_VERSION,
    ):
        """Prepare the heartbeat thread. After every renewal of the lease it calls `renewed` with the time by which the
        ranks must now have ended."""
        super().__init__(name=f"heartbeat-{lease.run_id}", daemon=True)
        self._client = client
        self._session = session
        self._lease = lease
        self._progress = progress
        self._renewed = renewed
        self._protocol_version = protocol_version
        self._finished = threading.Event()
        self._clock = LeaseClock(leased_at_s, lease.lease_s)
        self._stop_reason: str | None = None
        self._told_draining = False

    @property
    def stop_reason(self) -> str | None:
        """Reason why the ranks must be ended now, such as a lost lease; None while the ranks may continue."""
        if self._stop_reason is None and self._clock.must_end():
            return "the lease could not be renewed"
        return self._stop_reason

    @property
    def ranks_end_s(self) -> float:
        """Time (on the clock of `clock.now_s`) by which the ranks must have ended by themselves."""
        return self._clock.ranks_end_s

    def finish(self) -> None:
        """Stop the heartbeat thread. Do not wait for a request that it may just be sending."""
        self._finished.set()

    def run(self) -> None:
        """Send heartbeats until `finish` is called or the service orders the run to stop."""
        while not self._finished.wait(self._lease.heartbeat_s) and self._stop_reason is None:
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        # The lease counts from the sending: the answer may have been under way for long.
        sent_at_s = now_s()
        heartbeat = Heartbeat(
            protocol_version=self._protocol_version,
            session=self._session,
            attempt=self._lease.attempt,
            progress=self._progress(),
        )
        try:
            answer = self._client.heartbeat(self._lease.run_id, heartbeat)
        # Not yet a reason to stop: the clock ends the ranks if no renewal succeeds in time.
        except Unreachable as error:
            log.warning("heartbeat not answered: %s", error)
        except (LeaseLost, RequestRejected) as error:
            self._stop_reason = f"lease lost: {error}"
        else:
            self._clock.renew(sent_at_s, answer.lease_s)
            self._renewed(self.ranks_end_s)
            if answer.is_draining and not self._told_draining:
                self._told_draining = True
                log.info("this worker is being drained: it gets no more work after this run")
            if answer.action == "stop":
                self._stop_reason = answer.reason or "stopped by the service"
