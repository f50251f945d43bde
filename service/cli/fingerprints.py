"""`shardtune fingerprints`: which hardware and software there was, what changed, and what depends on it."""

from pathlib import Path
from typing import Annotated

import typer

from api_schemas.fingerprints import FingerprintDetail, FingerprintHolder, FingerprintRecord
from service.cli.connection import connected
from service.cli.options import AsJson, Service, StateDir

app = typer.Typer(help="Hardware and software of the workers, and what changed.", no_args_is_help=True)


@app.command("list")
def list_fingerprints(
    service: Service = None,
    worker: Annotated[str | None, typer.Option(help="Only those this worker (name or id) had.")] = None,
    current: Annotated[bool, typer.Option("--current", help="Only those that some worker has now.")] = False,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Print the fingerprints, newest first: who had them when, and what had changed."""
    with connected(service, state_dir) as client:
        found = client.fingerprints(worker, current)
    if as_json:
        typer.echo("[" + ",".join(record.model_dump_json() for record in found) + "]")
        return
    typer.echo("\n".join(line for record in found for line in lines(record)) or "no worker has registered yet")


@app.command("show")
def show(
    fingerprint_id: Annotated[str, typer.Argument(help="Its id, as `fingerprints list` shows it.")],
    service: Service = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Print one fingerprint field by field, who had it, and the recommendations measured under it."""
    with connected(service, state_dir) as client:
        found = client.fingerprint(fingerprint_id)
    typer.echo(found.model_dump_json() if as_json else "\n".join([*lines(found), *details(found)]))


def lines(record: FingerprintRecord) -> list[str]:
    """A fingerprint in short, and a line for each worker that had it."""
    value = record.fingerprint
    hardware = f"{value.gpu_count} × {value.gpu}" if value.device == "cuda" else f"CPU ranks on {value.cpu}"
    declared = f"  declared, not detected: {', '.join(value.overridden)}" if value.overridden else ""
    return [f"{record.fingerprint_id}  {hardware}{declared}", *(f"  {_holder(holder)}" for holder in record.holders)]


def _holder(holder: FingerprintHolder) -> str:
    until = f"{holder.until:%Y-%m-%d %H:%M}" if holder.until else ("now" if holder.is_live else "it was last heard of")
    changed = "; ".join(
        change.describe() + (" (lowers the confidence only)" if change.effect == "confidence" else "")
        for change in holder.changes
    )
    return f"{holder.worker} from {holder.since:%Y-%m-%d %H:%M} until {until}" + (f": {changed}" if changed else "")


def details(record: FingerprintDetail) -> list[str]:
    """A line for each known field, and for each recommendation measured under it."""
    value = record.fingerprint
    shown = value.model_dump(exclude={"version", "overridden"}, exclude_none=True)
    fields = [f"  {name}: {known}{' (declared)' if name in value.overridden else ''}" for name, known in shown.items()]
    return fields + [
        f"  measured under it: {item.model}, study key {item.study_key}: {item.freshness}"
        + (f" ({', '.join(item.changed_fields)})" if item.changed_fields else "")
        for item in record.dependents
    ]
