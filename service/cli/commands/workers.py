"""`shardtune workers`: who works for a running service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shardtune.api_schemas.machines.demand import Need
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.leases import Worker
from shardtune.service.cli.connection import running
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService
from shardtune.service.wording import host_words

if TYPE_CHECKING:
    from shardtune.service.client import ServiceClient

app = typer.Typer(help="Workers of a running service. `shardtune worker` runs one.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A worker's name or id.")]


@app.command("list")
def list_workers(service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Print the workers ever registered, by name."""
    with running(service, key_file) as client:
        found = client.workers()
    if as_json:
        print(json.dumps({"workers": [worker.model_dump(mode="json") for worker in found]}))
    else:
        print("\n".join(map(_line, found)) or "no workers; start one with `shardtune worker`")


@app.command("demand")
def show_demand(service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Print what open studies need of workers: what an autoscaler should start, and may stop."""
    with running(service, key_file) as client:
        found = client.demand()
    if as_json:
        print(found.model_dump_json())
    else:
        print("\n".join(map(_need, found.needs)) or "no study needs a worker")


@app.command()
def drain(
    name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Give a worker no more work, also after a restart; what it runs may finish."""
    _set(name, service, key_file, as_json, draining=True)


@app.command()
def resume(
    name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Give a drained worker work again."""
    _set(name, service, key_file, as_json, draining=False)


@app.command()
def free(
    name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Let another key of the project register under a worker's name, which belongs to the key that has done so."""
    with running(service, key_file) as client:
        worker = client.free_worker(_named(client, name).worker_id)
    print(worker.model_dump_json() if as_json else _line(worker))


@app.command()
def forget(name: Name, service: RunningService = DEFAULT_SERVICE, key_file: KeyFile = None) -> None:
    """Forget a worker that is gone; it is known again when it registers."""
    with running(service, key_file) as client:
        client.forget_worker(_named(client, name).worker_id)
    print(f"{name} is forgotten")


def _set(name: str, service: str, key_file: KeyFile, as_json: bool, draining: bool) -> None:
    with running(service, key_file) as client:
        worker = client.drain(_named(client, name).worker_id, draining)
    print(worker.model_dump_json() if as_json else _line(worker))


def _named(client: ServiceClient, name: str) -> Worker:
    known = client.workers()
    found = next((worker for worker in known if name in (worker.name, worker.worker_id)), None)
    if found is None:
        listed = ", ".join(worker.name for worker in known) or "none"
        raise InputError(f"worker ({name!r}) is not known here; registered: {listed}")
    return found


def _shape(cluster: Cluster) -> str:
    unit = "CPU ranks" if cluster.device == "cpu" else f"× {cluster.gpu}"
    return f"{cluster.nodes} × {cluster.gpus_per_node} {unit}"


def _need(need: Need) -> str:
    code = need.entry_point or need.script
    until = f" until {need.until:%Y-%m-%d %H:%M}" if need.until else ""
    return (
        f"{_shape(need.cluster)}{f' allowing {code}' if code else ''}: {len(need.waiting)} waiting{until}, "
        f"{need.running} running, {need.live_workers} workers live"
    )


def _line(worker: Worker) -> str:
    state = "live" if worker.is_live else f"last seen {worker.seen_at:%Y-%m-%d %H:%M}"
    doing = f", runs {worker.run_id}" if worker.run_id else ", draining" if worker.is_draining else ""
    named = host_words.hosts(worker.inventory)
    where = f" on {named}" if named else ""
    return f"{worker.worker_id}  {worker.name}  {_shape(worker.inventory.cluster)}{where}  {state}{doing}"
