"""An answer that a proxy between a client and its service has compressed wrongly."""

from collections.abc import Iterator

import httpx


class _NoGzip(httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield b"no gzip"


def wrongly_compressed() -> httpx.Response:
    """Answer of success whose content cannot be unpacked, although its header says that it is compressed."""
    return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=_NoGzip())
