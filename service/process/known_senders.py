"""Who sent requests with which key lately, so that a sender is known before the database is asked."""

import threading

from starlette.types import Scope

from shardtune.service.process.principal import Principal

_MOST = 4096


class KnownSenders:
    """Projects by key. What is remembered lets nobody in: it tells only whose turn a request takes."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[bytes, str] = {}

    def note(self, secret: str, principal: Principal) -> None:
        """A key was good."""
        with self._guard:
            self._known[f"Bearer {secret}".encode()] = principal.sender
            while len(self._known) > _MOST:
                self._known.pop(next(iter(self._known)))

    def sender_of(self, scope: Scope) -> str:
        """The project of the request's key where that was good before, else the address it comes from."""
        key = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        known = self._known.get(key)
        return known or f"address {(scope.get('client') or ('',))[0]}"
