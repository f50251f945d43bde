"""`shardtune fingerprints`: show the workers' hardware and software, their changes, and the recommendations they affect."""

import json
from typing import Annotated

import typer

from shardtune.api_schemas.machines.fingerprints import Effect, FingerprintDetail, FingerprintHolder, FingerprintRecord
from shardtune.service.cli.connection import connect
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService

app = typer.Typer(help="Show the hardware and software of the workers, and their changes.", no_args_is_help=True)


@app.command("list")
def list_fingerprints(
    service: RunningService = DEFAULT_SERVICE,
    worker: Annotated[str | None, typer.Option(help="Only fingerprints of this worker (name or id).")] = None,
    current: Annotated[bool, typer.Option("--current", help="Only fingerprints that a worker has now.")] = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print fingerprints, newest first, with their workers, times and changes."""
    with connect(service, key_file) as client:
        records = client.fingerprints(worker, current)
    if as_json:
        typer.echo(json.dumps({"fingerprints": [record.model_dump(mode="json") for record in records]}))
        return
    typer.echo("\n".join(line for record in records for line in lines(record)) or "no worker has registered yet")


@app.command("show")
def show(
    fingerprint_id: Annotated[str, typer.Argument(help="Fingerprint id, as `fingerprints list` shows it.")],
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the fields of a fingerprint, its workers, and the recommendations measured under it."""
    with connect(service, key_file) as client:
        record = client.fingerprint(fingerprint_id)
    typer.echo(record.model_dump_json() if as_json else "\n".join([*lines(record), *details(record)]))


def lines(record: FingerprintRecord) -> list[str]:
    """Return the summary of a fingerprint (hardware and software versions), and a line for each worker that has it."""
    value = record.fingerprint
    hardware = f"{value.gpu_count} × {value.gpu}" if value.device == "cuda" else f"CPU ranks on {value.cpu}"
    declared = f"  declared, not detected: {', '.join(value.overridden)}" if value.overridden else ""
    return [
        f"{record.fingerprint_id}  {hardware}{declared}",
        *(f"  {_worker_line(holder)}" for holder in record.holders),
    ]


def _worker_line(holder: FingerprintHolder) -> str:
    until = f"{holder.until:%Y-%m-%d %H:%M}" if holder.until else ("now" if holder.is_live else "it was last seen")
    changed = "; ".join(
        change.describe() + (" (lowers the confidence only)" if change.effect == Effect.CONFIDENCE else "")
        for change in holder.changes
    )
    return f"{holder.worker} from {holder.since:%Y-%m-%d %H:%M} until {until}" + (f": {changed}" if changed else "")


def _field_text(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def details(record: FingerprintDetail) -> list[str]:
    """Return a line for each known field of a fingerprint (hardware and software versions), and for each
    recommendation that was measured under it."""
    value = record.fingerprint
    # A field without a value was not detected, which is no fact about the machine.
    shown = value.model_dump(exclude={"version", "overridden"}, exclude_none=True)
    fields = [
        f"  {name}: {_field_text(field)}{' (declared)' if name in value.overridden else ''}"
        for name, field in shown.items()
    ]
    return fields + [
        f"  measured under it: {item.model}, target key {item.target_key}: {item.freshness}"
        + (f" ({', '.join(item.changed_fields)})" if item.changed_fields else "")
        for item in record.dependents
    ]
