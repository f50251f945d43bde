"""The server around the application."""

import asyncio
import gc
import socket
from typing import Any, cast

from shardtune.service.server import Server, ServerConfig
from shardtune.service.settings import Settings


async def _nothing(_scope: object, _receive: object, _send: object) -> None:
    return


def test_what_was_loaded_before_it_serves_is_not_searched_for_garbage():
    async def story() -> int:
        config = ServerConfig(_nothing, Settings(database_url="sqlite:///unused.sqlite3"), lifespan="off")
        config.load()
        server = Server(config, cast("Any", None))
        server.lifespan = config.lifespan_class(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            await server.startup([listener])
            frozen = gc.get_freeze_count()
            await server.shutdown([listener])
        return frozen

    gc.unfreeze()
    try:
        assert asyncio.run(story()) > 50_000
    finally:
        gc.unfreeze()
