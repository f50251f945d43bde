"""Resolve host names in separate threads, so that a name server that never answers delays nothing else."""

import socket
from functools import partial

from anyio import CapacityLimiter, to_thread

_MAX_THREADS = 64


class DnsResolver:
    """DNS resolver of one process, with a limited number of threads."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def addresses(self, host: str, port: int) -> list[str]:
        """IP addresses that the system's resolver returns for a host name.

        Raises:
            OSError: the name is unknown, or no server answers.
            UnicodeError: the text is not a valid host name.
        """
        if self._limiter is None:
            # Made on first use: an anyio limiter belongs to the event loop in which it is created.
            self._limiter = CapacityLimiter(_MAX_THREADS)
        # `getaddrinfo` cannot be cancelled: a caller that stops waiting abandons its thread, which ends by itself.
        resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        entries = await to_thread.run_sync(resolve, limiter=self._limiter, abandon_on_cancel=True)
        return [str(entry[4][0]) for entry in entries]
