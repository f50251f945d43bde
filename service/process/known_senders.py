"""Remember which project each API key belongs to, so that a request's sender is known before the database is
queried.
"""

import threading

from starlette.types import Scope

from shardtune.service.process.principal import Principal

_MAX_KEYS = 4096


class KnownSenders:
    """Project of each API key, as known from earlier requests. This knowledge grants no permission; it only decides
    against whose share of request slots a request counts.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._senders: dict[bytes, str] = {}

    def remember(self, secret: str, principal: Principal) -> None:
        """Record the project of a valid API key."""
        with self._guard:
            self._senders[secret.encode()] = principal.sender
            while len(self._senders) > _MAX_KEYS:
                # Bounded: a project may make any number of keys, and each entry stays for the life of the process.
                self._senders.pop(next(iter(self._senders)))

    def sender_of(self, scope: Scope) -> str:
        """Project of the request's API key, if the key was valid in an earlier request; else the address of the
        client.
        """
        # A stranger that sends made-up keys shares the slots of its address with its other requests.
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        # Without the scheme, whose letters count in neither case: `bearer` must not lead to a queue of its own.
        project = self._senders.get(header.partition(b" ")[2].strip())
        return project or f"address {(scope.get('client') or ('',))[0]}"
