"""Addresses of names, looked up in threads of their own: a name server that never answers holds up nothing else."""

import socket
from functools import partial

from anyio import CapacityLimiter, to_thread

_AT_ONCE = 64


class LookUps:
    """Name look-ups of one process."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def addresses(self, host: str, port: int) -> list[str]:
        """What the system's resolver says. Who stops waiting leaves the thread to end by itself.

        Raises:
            OSError: the name is not known, or nobody says.
            UnicodeError: it is no name.
        """
        if self._limiter is None:
            # Made inside the loop it belongs to.
            self._limiter = CapacityLimiter(_AT_ONCE)
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        entries = await to_thread.run_sync(ask, limiter=self._limiter, abandon_on_cancel=True)
        return [str(entry[4][0]) for entry in entries]
