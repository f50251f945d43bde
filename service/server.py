"""uvicorn, told to drain: on SIGTERM streams and waiting lease requests end at once instead of holding the process."""

from types import FrameType

import uvicorn

from shardtune.service.process.context import Context


class Server(uvicorn.Server):
    """A server that passes the signal on to whatever waits."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; uvicorn then closes the listener, waits for requests under way and ends."""
        self._context.stopping.set()
        super().handle_exit(sig, frame)
