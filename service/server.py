"""uvicorn server that stops at once on SIGTERM, and closes slow connections.

On SIGTERM, streams and waiting lease requests end at once instead of delaying the end of the process. A client that
sends or reads slowly occupies a connection, and uvicorn itself does not limit this time.
"""

import gc
import resource
import socket
from types import FrameType
from typing import Any

import uvicorn

from shardtune.service.connection import Connection, ConnectionConfig, ConnectionLimits
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings

# uvicorn answers 503 when all connections are taken, which is only needed where this does not help.
_CROWDED_FRACTION = 0.9
"""Fraction of the maximum number of connections. If more are open, each new connection closes the one whose request
has been unfinished for longest.
"""
# With Python's default of 700, collections took a twentieth of the time of claims and reports, whose sessions create
# and free thousands of objects.
_GC_THRESHOLD = 5_000
"""Number of newly created objects between two runs of Python's garbage collection."""
_OTHER_FILES = 256
"""Number of files that the process may have open besides its connections; its limit of open files must allow for
both.
"""


class Server(uvicorn.Server):
    """uvicorn server that passes the stop signal (SIGTERM) on, so that waiting requests and background tasks end."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, with garbage collection tuned for short pauses."""
        # Objects loaded until now live forever; scanning them for garbage stops all requests for 0.1 s and more.
        await super().startup(sockets)
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record the stop signal. uvicorn then closes the listener, waits for running requests and ends."""
        self._context.stopping.set()
        super().handle_exit(sig, frame)


class ServerConfig(ConnectionConfig):
    """uvicorn configuration that limits the number of connections, and how slow they may be."""

    def __init__(self, app: Any, settings: Settings, **options: Any) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            limit_concurrency=settings.max_connections,
            # Its own log configuration would replace ours.
            log_config=None,
            timeout_graceful_shutdown=5,
            # Given here, so that uvicorn does not read FORWARDED_ALLOW_IPS, which may say "*".
            forwarded_allow_ips=list(settings.trusted_proxies),
            **options,
        )
        self.limits = ConnectionLimits(
            receive_s=settings.request_receive_s, crowd=int(settings.max_connections * _CROWDED_FRACTION)
        )


def allow_files(connections: int) -> None:
    """Raise the process's limit of open files so that it suffices for the process's connections, as far as the system
    allows.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft_limit != resource.RLIM_INFINITY and soft_limit < needed:
        new_limit = needed if hard_limit == resource.RLIM_INFINITY else min(needed, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))
