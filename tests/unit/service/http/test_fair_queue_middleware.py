"""A request takes a slot of the fair queue even if nobody reads its body."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.types import Message, Receive, Scope, Send

from shardtune.db.session import Database
from shardtune.service.http.fair_queue_middleware import MAX_REQUESTS, FairQueueMiddleware
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"1")], [(b"transfer-encoding", b"chunked")]], ids=str)
def test_a_body_that_no_route_reads_spares_no_request_the_queue(
    method: str, headers: list[tuple[bytes, bytes]], tmp_path: Path
) -> None:
    handled: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        handled.append(scope)
        await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError("nobody reads the body")

    async def send(_message: Message) -> None:
        raise AssertionError("nobody answers")

    async def send_many() -> None:
        context = Context(Database(f"sqlite:///{tmp_path}/none.sqlite3"), Settings())
        service = SimpleNamespace(state=SimpleNamespace(context=context))
        scope = {"type": "http", "method": method, "path": "/v1/studies", "headers": headers, "app": service}
        middleware = FairQueueMiddleware(app)
        requests = [asyncio.create_task(middleware(dict(scope), receive, send)) for _ in range(2 * MAX_REQUESTS)]
        for _ in range(10 * MAX_REQUESTS):
            await asyncio.sleep(0)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        context.db.close()

    asyncio.run(send_many())
    assert 0 < len(handled) < MAX_REQUESTS, "one sender has half of the slots"
