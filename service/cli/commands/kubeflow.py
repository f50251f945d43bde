"""`shardtune kubeflow-webhook`: complete TrainJobs of Kubeflow Trainer that ask for a recommendation."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.service.cli import missing_extras
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import DEFAULT_SERVICE, KeyFile, RunningService

if TYPE_CHECKING:
    import httpx

    from shardtune.api_schemas import log_lines
    from shardtune.api_schemas.access import credentials
    from shardtune.service import client as api
    from shardtune.service.cli import processes
    from shardtune.service.kubeflow import recommendation, webhook
    from shardtune.tuner.prediction import catalogue
else:
    httpx = LazyModule("httpx")
    log_lines = LazyModule("shardtune.api_schemas.log_lines")
    credentials = LazyModule("shardtune.api_schemas.access.credentials")
    api = LazyModule("shardtune.service.client")
    processes = LazyModule("shardtune.service.cli.processes")
    recommendation = LazyModule("shardtune.service.kubeflow.recommendation")
    webhook = LazyModule("shardtune.service.kubeflow.webhook")
    catalogue = LazyModule("shardtune.tuner.prediction.catalogue")

app = typer.Typer()
log = logging.getLogger(__name__)
_CONNECT_S = 0.5
"""Maximum seconds for connecting to the service; after that, the webhook admits the job unchanged."""


@app.command("kubeflow-webhook")
def command(
    cluster: Annotated[
        list[str],
        typer.Option(
            metavar="CLUSTER", help="Cluster that may be recommended, such as 8xh100 or 4x8xh100; repeatable."
        ),
    ],
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8443,
    certificate: Annotated[
        Path | None, typer.Option(help="File with the server's TLS certificate (default: plain HTTP).")
    ] = None,
    private_key: Annotated[Path | None, typer.Option(help="File with the certificate's private key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="File with authorities; only clients with a certificate of them may ask.")
    ] = None,
    answer_within: Annotated[
        float, typer.Option(min=0.1, max=25, help="Seconds after which a job is admitted unchanged.")
    ] = 5.0,
) -> None:
    """Complete Kubeflow TrainJobs that ask for it: nodes, processes, GPUs and a configuration, by an admission webhook."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise InputError(
            f"the command kubeflow-webhook needs the service's packages; run {missing_extras.install_command('service')}"
        )
    tls = _tls(certificate, private_key, client_ca)
    _check_clusters(cluster)
    log_lines.configure("INFO")
    try:
        keys = credentials.KeySource(file=key_file) if key_file else None
        client = api.ServiceClient(service, api_key=keys, patience_s=0, timeout=service_timeout(answer_within))
    except ValueError as error:
        raise InputError(str(error)) from None
    with client, processes.listening_socket(host, port) as listener:
        log.info("listening on %s port %d, for %s", *listener.getsockname()[:2], ", ".join(cluster))
        application = webhook.create_app(cluster, recommendation.Recommender(client, answer_within))
        webhook.serve(application, listener, tls)


def service_timeout(answer_within_s: float) -> httpx.Timeout:
    """Return the maximum times of one request to the service, whose answer must arrive within half of the webhook's
    time."""
    return httpx.Timeout(answer_within_s / 2, connect=min(_CONNECT_S, answer_within_s / 2))


def _tls(certificate: Path | None, private_key: Path | None, client_ca: Path | None) -> webhook.Tls | None:
    files = {"--certificate": certificate, "--private-key": private_key, "--client-ca": client_ca}
    for name, path in files.items():
        if path is not None and not path.is_file():
            raise InputError(f"{name} ({path}) is no file; name a PEM file")
    if certificate is None and private_key is None:
        if client_ca is not None:
            raise InputError(f"--client-ca ({client_ca}) needs --certificate and --private-key; add them")
        return None
    if certificate is None or private_key is None:
        missing = "--certificate" if certificate is None else "--private-key"
        raise InputError(f"{missing} is missing; give both --certificate and --private-key, or neither")
    return webhook.Tls(certificate, private_key, client_ca)


def _check_clusters(names: list[str]) -> None:
    for name in names:
        try:
            catalogue.parse_cluster(name)
        except ValueError as error:
            raise InputError(f"--cluster ({name}): {error}") from None
