"""HTTPS server of the admission webhook. One request is one TrainJob, and is answered by a thread."""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from shardtune.service.kubeflow import review
from shardtune.service.kubeflow.recommendation import Recommender

_MOST_BYTES = 8 * 2**20
"""Maximum size of an admission review; Kubernetes stores objects of at most 1.5 MiB, and a review may hold two."""
_MOST_REQUESTS = 40
"""Maximum number of requests at once; the API server admits jobs unchanged that are answered by 503."""


@dataclass(frozen=True)
class Tls:
    """Files of the server's TLS."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Certificates of authorities; a client must have a certificate of one of them. None: any client may ask."""


def create_app(offered: Sequence[str], recommender: Recommender) -> Starlette:
    """Create the application; `offered`: clusters that it may recommend."""

    async def admit(request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                return PlainTextResponse(f"the review exceeds {_MOST_BYTES:,} bytes; shorten the job", 413)
        try:
            return JSONResponse(await run_in_threadpool(review.answer, bytes(body), offered, recommender))
        except review.NoReview as error:
            return PlainTextResponse(str(error), 400)

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/admit", admit, methods=["POST"]), Route("/healthz", alive, methods=["GET"])])


def serve(app: Starlette, listener: socket.socket, tls: Tls | None) -> None:
    """Serve until a signal; `tls` None: plain HTTP, for a proxy in front of it."""
    options = {} if tls is None else _tls_options(tls)
    config = uvicorn.Config(app, log_config=None, limit_concurrency=_MOST_REQUESTS, ws="none", **options)
    uvicorn.Server(config).run(sockets=[listener])


def _tls_options(tls: Tls) -> dict[str, Any]:
    own = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    if tls.client_ca is None:
        return own
    return own | {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
