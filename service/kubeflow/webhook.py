"""HTTPS server of the admission webhook. One request is one TrainJob, and is answered by a thread."""

import asyncio
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
from shardtune.service.kubeflow.renewal import CertificateRenewal, RenewingServer

_MOST_BYTES = 4 * 2**20
"""Maximum size of an admission review; Kubernetes stores objects of at most 1.5 MiB, and a review may hold the old and
the new one.
"""
_MOST_REQUESTS = 16
"""Maximum number of admission reviews handled at once. Further ones are answered with 503; the API server then admits
their jobs unchanged.
"""
_READ_S = 5.0
"""Maximum seconds for an admission review to arrive completely."""


@dataclass(frozen=True)
class Tls:
    """Files of the server's TLS."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """File with the certificate authorities, one of which must have signed each client's certificate. If None,
    clients need no certificate.
    """


def create_app(offered: Sequence[str], recommender: Recommender) -> Starlette:
    """Create the web application that answers admission reviews. `offered` lists the clusters that it may recommend."""
    # Reviews, not connections: idle connections of strangers must not close it to the API server.
    in_work: set[int] = set()

    async def admit(request: Request) -> Response:
        if len(in_work) >= _MOST_REQUESTS:
            return PlainTextResponse("too many reviews at once; the job is created as it is", 503)
        in_work.add(id(request))
        try:
            return await _answered(request)
        finally:
            in_work.discard(id(request))

    async def _answered(request: Request) -> Response:
        body = bytearray()
        try:
            async with asyncio.timeout(_READ_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        return PlainTextResponse(f"the review exceeds {_MOST_BYTES:,} bytes; shorten the job", 413)
        except TimeoutError:
            return PlainTextResponse(f"the review did not arrive in {_READ_S:g} s; send it again", 408)
        try:
            return JSONResponse(await run_in_threadpool(review.answer, bytes(body), offered, recommender))
        except review.NoReview as error:
            return PlainTextResponse(str(error), 400)

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/admit", admit, methods=["POST"]), Route("/healthz", alive, methods=["GET"])])


def serve(app: Starlette, listener: socket.socket, tls: Tls | None) -> None:
    """Serve the application until a signal stops it. If `tls` is None, it serves plain HTTP, for a proxy in front of
    it.
    """
    options = {} if tls is None else _tls_options(tls)
    config = uvicorn.Config(app, log_config=None, ws="none", **options)
    config.load()
    server = uvicorn.Server(config)
    if tls is not None and config.ssl is not None:
        server = RenewingServer(config, CertificateRenewal(config.ssl, tls.certificate, tls.key))
    server.run(sockets=[listener])


def _tls_options(tls: Tls) -> dict[str, Any]:
    own = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    if tls.client_ca is None:
        return own
    return own | {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
