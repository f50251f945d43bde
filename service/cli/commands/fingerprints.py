"""`shardtune fingerprints`: which hardware and software there was, what changed, and what depends on it."""

import json
from typing import Annotated

import typer

from shardtune.api_schemas.machines.fingerprints import Effect, FingerprintDetail, FingerprintHolder, FingerprintRecord
from shardtune.service.cli.connection import running
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService

app = typer.Typer(help="Hardware and software of the workers, and what changed.", no_args_is_help=True)


@app.command("list")
def list_fingerprints(
    service: RunningService = DEFAULT_SERVICE,
    worker: Annotated[str | None, typer.Option(help="Only those this worker (name or id) had.")] = None,
    current: Annotated[bool, typer.Option("--current", help="Only those that some worker has now.")] = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the fingerprints, newest first: who had them when, and what had changed."""
    with running(service, key_file) as client:
        found = client.fingerprints(worker, current)
    if as_json:
        typer.echo(json.dumps({"fingerprints": [record.model_dump(mode="json") for record in found]}))
        return
    typer.echo("\n".join(line for record in found for line in lines(record)) or "no worker has registered yet")


@app.command("show")
def show(
    fingerprint_id: Annotated[str, typer.Argument(help="Its id, as `fingerprints list` shows it.")],
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print one fingerprint field by field, who had it, and the recommendations measured under it."""
    with running(service, key_file) as client:
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
        change.describe() + (" (lowers the confidence only)" if change.effect == Effect.CONFIDENCE else "")
        for change in holder.changes
    )
    return f"{holder.worker} from {holder.since:%Y-%m-%d %H:%M} until {until}" + (f": {changed}" if changed else "")


def _text(value: object) -> str:
    return (", ".join(map(str, value)) or "nothing that counts") if isinstance(value, tuple) else str(value)


def details(record: FingerprintDetail) -> list[str]:
    """A line for each known field, and for each recommendation measured under it."""
    value = record.fingerprint
    shown = value.model_dump(exclude={"version", "overridden"}, exclude_none=True)
    fields = [
        f"  {name}: {_text(known)}{' (declared)' if name in value.overridden else ''}" for name, known in shown.items()
    ]
    return fields + [
        f"  measured under it: {item.model}, study key {item.target_key}: {item.freshness}"
        + (f" ({', '.join(item.changed_fields)})" if item.changed_fields else "")
        for item in record.dependents
    ]
