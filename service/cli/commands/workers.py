"""`shardtune workers`: list and manage the workers of a running service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.api_schemas.machines.demand import Need
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.machines.workers import Worker
from shardtune.service.cli.connection import connect
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService
from shardtune.service.wording import host_words

if TYPE_CHECKING:
    from shardtune.service.client import ServiceClient

app = typer.Typer(
    help="List and manage workers of a running service (`shardtune worker` runs one).", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Worker name or id.")]


@app.command("list")
def list_workers(service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Print all registered workers, by name."""
    with connect(service, key_file) as client:
        workers = client.workers()
    if as_json:
        print(json.dumps({"workers": [worker.model_dump(mode="json") for worker in workers]}))
    else:
        print("\n".join(map(_worker_line, workers)) or "no workers; start one with `shardtune worker`")


@app.command("demand")
def show_demand(
    cluster: Annotated[
        str | None, typer.Option(help="Only studies for workers with this cluster, such as 8xh100.")
    ] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the workers that open studies need, for an autoscaler to start or stop."""
    with connect(service, key_file) as client:
        demand = client.demand(cluster)
    if as_json:
        print(demand.model_dump_json())
    else:
        print("\n".join(map(_need_line, demand.needs)) or "no study needs a worker")


@app.command()
def drain(
    name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Drain a worker: it finishes its run and gets no new one, even after a restart."""
    _set_draining(name, service, key_file, as_json, draining=True)


@app.command()
def resume(
    name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Resume a drained worker."""
    _set_draining(name, service, key_file, as_json, draining=False)


@app.command()
def free(
    name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Release a worker's name from the key that registered it, so that another key of the project may use it."""
    with connect(service, key_file) as client:
        worker = client.free_worker(_find_worker(client, name).worker_id)
    print(worker.model_dump_json() if as_json else _worker_line(worker))


@app.command()
def forget(name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None) -> None:
    """Remove a worker that is gone; it appears again when it registers."""
    with connect(service, key_file) as client:
        client.forget_worker(_find_worker(client, name).worker_id)
    print(f"{name} is removed")


def _set_draining(name: str, service: str, key_file: KeyFile, as_json: bool, draining: bool) -> None:
    with connect(service, key_file) as client:
        worker = client.drain(_find_worker(client, name).worker_id, draining)
    print(worker.model_dump_json() if as_json else _worker_line(worker))


def _find_worker(client: ServiceClient, name: str) -> Worker:
    # By name, too: ids are random, and the name is what people give a worker.
    workers = client.workers()
    match = next((worker for worker in workers if name in (worker.name, worker.worker_id)), None)
    if match is None:
        listed = ", ".join(worker.name for worker in workers) or "none"
        raise InputError(f"worker ({name!r}) is not registered here; registered are: {listed}")
    return match


def _cluster_text(cluster: Cluster) -> str:
    unit = "CPU ranks" if cluster.device == "cpu" else f"× {cluster.gpu}"
    return f"{cluster.nodes} × {cluster.gpus_per_node} {unit}"


def _need_line(need: Need) -> str:
    code = need.entry_point or need.script
    until = f" until {need.until:%Y-%m-%d %H:%M}" if need.until else ""
    return (
        f"{_cluster_text(need.cluster)}{f' allowing {code}' if code else ''}: {len(need.waiting)} waiting{until}, "
        f"{need.running} running, {need.live_workers} workers live"
    )


def _worker_line(worker: Worker) -> str:
    state = "live" if worker.is_live else f"last seen {worker.seen_at:%Y-%m-%d %H:%M}"
    drained = f", {worker.set_aside}" if worker.set_aside else ", draining"
    doing = f", runs {worker.run_id}" if worker.run_id else drained if worker.is_draining else ""
    named = host_words.hosts(worker.inventory)
    where = f" on {named}" if named else ""
    return f"{worker.worker_id}  {worker.name}  {_cluster_text(worker.inventory.cluster)}{where}  {state}{doing}"
