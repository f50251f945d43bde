"""`shardtune costs`: print the GPU-seconds used and their price."""

from typing import Annotated

import typer

from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.service.cli.connection import connect
from shardtune.service.cli.options import DEFAULT_SERVICE, AsJson, KeyFile, RunningService

app = typer.Typer()


@app.command("costs")
def costs(
    months: Annotated[int, typer.Option(min=1, help="Number of months, the current one included.")] = 12,
    project: Annotated[str | None, typer.Option(help="Project (default: all visible).")] = None,
    service: RunningService = DEFAULT_SERVICE,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print GPU-seconds and their price by project, month and cause."""
    with connect(service, key_file) as client:
        report = client.costs(months, project)
    print(report.model_dump_json() if as_json else "\n".join(_cost_lines(report)) or "no GPU-seconds were used")


def _cost_lines(report: CostReport) -> list[str]:
    return [
        f"{cost.month}  {cost.project_id:20}  {cost.cause:10}  {cost.gpu_seconds:14,.0f} GPU-seconds"
        # The price is None where the operator has set no price per GPU-hour.
        + (f"  {cost.price:12,.2f} {report.currency}" if cost.price is not None else "")
        for cost in report.costs
    ]
