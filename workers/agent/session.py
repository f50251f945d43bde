"""Worker's session with the service: registration, the agreed protocol version, and registering again when the service no
longer knows the session or was replaced by another release."""

import contextlib
import logging
from collections.abc import Callable

from shardtune import __version__
from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.protocol import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    SPOKEN,
    VersionRange,
    agreed_version,
)
from shardtune.api_schemas.trials.leases import Registered, Registration
from shardtune.workers.agent.client import WorkerClient, call_patiently
from shardtune.workers.agent.client_errors import ClientError, LeaseLost, LeaseUnreadable, RequestRejected, Unreachable
from shardtune.workers.clock import now_s

log = logging.getLogger(__name__)

_RIVAL_WINDOW_S, _MOST_REGISTRATIONS = 60.0, 3


class WorkerSession:
    """Session of one worker with the service: its id, and the protocol version of its messages."""

    def __init__(self, client: WorkerClient, name: str, give_up: Callable[[], bool]) -> None:
        """Prepare a session without registering. `give_up` ends waits for a service that does not answer."""
        self._client = client
        self._name = name
        self._give_up = give_up
        self._registered_s: list[float] = []
        self.id = ""
        self.protocol_version = PROTOCOL_VERSION

    def register(self, inventory: Inventory, *, anew: bool = True) -> Registered | None:
        """Register the worker, or update its inventory if `anew` is false; None if `give_up` ended the wait.

        Raises:
            RequestRejected: the service does not accept this worker, or both sides speak no common protocol version.
            LeaseLost: the service does not know the present session (only if `anew` is false).
        """
        registration = Registration(
            protocol_version=PROTOCOL_VERSION,
            oldest_protocol_version=OLDEST_PROTOCOL_VERSION,
            release=__version__,
            session=None if anew else self.id,
            name=self._name,
            inventory=inventory,
        )
        registered = call_patiently(
            lambda: self._client.register(registration), give_up=self._give_up, on_unreachable=warn_unreachable
        )
        if registered is not None:
            _check_version(registered.protocol_version)
            self.id, self.protocol_version = registered.session, registered.protocol_version
            self._registered_s.append(now_s())
            log.info(
                "registered as %s (%s), protocol %d", self._name, registered.worker_id, registered.protocol_version
            )
        return registered

    def send_inventory(self, inventory: Inventory) -> Registered | None:
        """Send the worker's changed inventory under the present session. If the service does not know the session,
        register again. None if `give_up` ended the wait."""
        try:
            return self.register(inventory, anew=False)
        except LeaseLost as error:
            return self.register_anew(inventory, error)

    def register_anew(self, inventory: Inventory, cause: ClientError) -> Registered | None:
        """Register again after the service lost this worker session, for example because its database or its release
        was replaced. None if `give_up` ended the wait.

        Raises:
            RequestRejected: the service lost the session repeatedly within a minute.
        """
        log.warning("the service does not know this session (any more), registering again: %s", cause)
        # A live worker with our name closes our sessions as we close its: without a limit the two would do so for ever.
        recent = [moment for moment in self._registered_s if now_s() - moment < _RIVAL_WINDOW_S]
        if len(recent) > _MOST_REGISTRATIONS:
            raise RequestRejected(
                f"name ({self._name}) seems to belong to another live worker, which closes our sessions; "
                f"stop one of the two, or give it another --name (last answer: {cause})"
            )
        return self.register(inventory)

    def hand_back_unread(self, error: LeaseUnreadable) -> None:
        """Give a run back to the service because this release cannot read its lease. From then on the service gives
        this worker no more runs."""
        log.error(
            "the lease of run %s cannot be read by this release (%s); install the service's release on this worker and "
            "restart it",
            error.run_id,
            error,
        )
        # An older service has no such request; it takes the run back when this worker asks for work often enough.
        with contextlib.suppress(ClientError):
            self._client.hand_back_unread(self.id, self.protocol_version, error)


def warn_unreachable(error: Unreachable) -> None:
    """Log that the service does not answer."""
    log.warning("the service does not answer, trying again: %s", error)


def _check_version(version: int) -> None:
    """Check that a service chose a protocol version that this worker speaks.

    Raises:
        RequestRejected: the worker does not speak that version; the message names both versions.
    """
    if agreed_version(SPOKEN, VersionRange(version, version)) is None:
        raise RequestRejected(
            f"protocol_version ({version}) of the service is not one of the worker's ({SPOKEN}, shardtune {__version__}); "
            "install the service's release on the worker"
        )
