"""`shardtune costs`: what GPUs were used for."""

from typing import Annotated

import typer

from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.service.cli.connection import running
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService

app = typer.Typer()


@app.command("costs")
def costs(
    months: Annotated[int, typer.Option(min=1, help="The present one and those before it.")] = 12,
    project: Annotated[str | None, typer.Option(help="Of this one alone; else of all that the key sees.")] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print GPU-seconds by project, month and cause, and what they cost."""
    with running(service, key_file) as client:
        found = client.costs(months, project)
    print(found.model_dump_json() if as_json else "\n".join(_lines(found)) or "nothing was spent")


def _lines(found: CostReport) -> list[str]:
    return [
        f"{cost.month}  {cost.project_id:20}  {cost.cause:10}  {cost.gpu_seconds:14,.0f} GPU-seconds"
        + (f"  {cost.price:12,.2f} {found.currency}" if cost.price is not None else "")
        for cost in found.costs
    ]
