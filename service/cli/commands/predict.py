"""`shardtune predict`: what fits, how fast it should be and why, before a GPU-second is spent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.hardware import HardwareReport
from shardtune.api_schemas.models import ModelSpec, preset_names
from shardtune.api_schemas.predictions import Prediction, PredictionRequest, PredictionTable
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.options import AsJson, StateDir
from shardtune.tuner.prediction.predict import predictions

app = typer.Typer()

_WIDTH = 150
"""Of a table that is not on a terminal."""


@dataclass(frozen=True)
class PredictOptions:
    """The command line of `predict`."""

    model: str
    cluster: str
    sequence_length: int | None
    micro_batch: int
    gradient_accumulation: int
    recipe: str
    hardware: HardwareReport | None = None
    """In place of `cluster`."""


def hardware_report(cluster: str, file: Path | None, state_dir: Path) -> HardwareReport | None:
    """What was measured: of a file, or for `local` the newest of the state directory; None for a named cluster.

    Raises:
        InputError: nothing was measured here, the file is no report, or both a cluster and a file are given.
    """
    if cluster != "local":
        if file is not None:
            raise InputError(f"--hardware ({file}) says which cluster it is; leave out --cluster ({cluster})")
        return None
    if file is None:
        found = sorted((state_dir / "worker").glob("hardware-*.json"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise InputError(
                "--cluster ('local'): this machine has not been measured; run `shardtune measure-hardware` (a minute), "
                "or name a cluster such as 8xh100"
            )
        file = found[-1]
    try:
        return HardwareReport.model_validate(study_file.read_json_object(file))
    except ValidationError as error:
        wrong = (f"--hardware ({file}): {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(*wrong) from None


def predict(options: PredictOptions) -> PredictionTable:
    """The predictions for one of each strategy.

    Raises:
        InputError: an unknown model, GPU or recipe, or values that contradict each other.
    """
    values: dict[str, Any] = {
        "model": _model(options.model),
        "cluster": options.hardware.cluster if options.hardware else options.cluster,
        "hardware": options.hardware.measured if options.hardware else None,
        "sequence_length": options.sequence_length,
        "micro_batch": options.micro_batch,
        "gradient_accumulation": options.gradient_accumulation,
        "recipe": options.recipe,
    }
    try:
        return predictions(PredictionRequest.model_validate(values))
    except ValidationError as error:
        raise InputError(*(entry["msg"].removeprefix("Value error, ") for entry in error.errors())) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def show(table: PredictionTable) -> None:
    """Print the table and, per strategy, where its memory goes."""
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    cluster = table.cluster
    console.print(
        f"{table.model}: {_count(table.parameters)} parameters, sequence {table.sequence_length}, {table.recipe}, "
        f"{cluster.nodes} × {cluster.gpus_per_node} {cluster.gpu} of {memory(cluster.memory_gib)}"
    )
    if table.recipe_note is not None:
        console.print(table.recipe_note)
    console.print("Predicted, not measured. Memory of the fullest rank; intervals of 90 %; speed as if it fitted.")
    console.print("longest: tokens per sample that still fit; micro: largest micro batch that still fits.")
    console.print(_overview(table))
    for prediction in table.predictions:
        _explain(console, prediction)
    for note in table.notes:
        console.print(f"note: {note}", style="dim")


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"


def _overview(table: PredictionTable) -> Table:
    shown = Table(box=None, pad_edge=False)
    for heading in (
        "configuration",
        "fits",
        "memory",
        "of",
        "tokens/s/GPU",
        "MFU",
        "exposed comm",
        "bound by",
        "longest",
        "micro",
    ):
        shown.add_column(heading, justify="left" if heading in ("configuration", "fits", "bound by") else "right")
    for one in table.predictions:
        peak, speed = one.memory, one.speed
        fits = peak.verdict if peak.margin_gib >= 0 else f"{peak.verdict} by {memory(-peak.margin_gib)}"
        row = [one.description, fits, memory(peak.total_gib), memory(peak.capacity_gib)]
        if speed is None:
            row += ["unknown GPU rates", "", "", ""]
        else:
            low, high = speed.low_tokens_per_s_per_gpu, speed.high_tokens_per_s_per_gpu
            row.append(f"{speed.tokens_per_s_per_gpu:,.0f} ({low:,.0f}–{high:,.0f})")
            row.append("" if speed.mfu is None else f"{speed.mfu:.0%}")
            row += [f"{speed.exposed_communication_share:.0%}", speed.bound_by]
        shown.add_row(*row, f"{one.longest_sequence:,}", f"{one.largest_micro_batch:,}")
    return shown


def _explain(console: Console, one: Prediction) -> None:
    peak = one.memory
    shown = (term for term in peak.terms if term.gib >= 0.01 * peak.total_gib)
    terms = ", ".join(f"{term.name} {memory(term.gib)}" for term in shown)
    interval = f"{memory(peak.low_gib)} to {memory(peak.high_gib)}"
    console.print(f"\n{one.description} (peak at {peak.moment}; {interval})")
    console.print(f"  {terms}")
    if peak.host_gib_per_node:
        console.print(f"  host memory per node: {memory(peak.host_gib_per_node)}")
    if one.cheapest_change is not None:
        change = one.cheapest_change
        console.print(f"  fits with: {change.description} ({memory(change.total_gib)})")


def _model(name: str) -> Any:
    """A preset by name, else the content of a config.json."""
    if name in preset_names():
        return name
    path = Path(name)
    if path.suffix != ".json" and not path.exists():
        raise InputError(f"model ({name!r}) is not a preset; use one of {', '.join(preset_names())}, or a config.json")
    try:
        return ModelSpec.model_validate(study_file.read_json_object(path)).model_dump()
    except ValidationError as error:
        raise InputError(*(entry["msg"].removeprefix("Value error, ") for entry in error.errors())) from None


@app.command("predict")
def command(
    model: Annotated[str, typer.Argument(help="A preset such as llama-2-70b, or the path of a config.json.")],
    cluster: Annotated[
        str,
        typer.Option(help="Nodes × GPUs per node × model, such as 8xh100 or 4x8xa100-80gb; `local`: measured here."),
    ] = "local",
    seq_len: Annotated[int | None, typer.Option(min=8, help="Tokens per sample; the model's own up to 4096.")] = None,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per forward pass and GPU.")] = 1,
    gradient_accumulation: Annotated[int, typer.Option(min=1, help="Micro batches per step.")] = 1,
    recipe: Annotated[str, typer.Option(help="Dtypes: bf16-mixed, fp32, or auto: by the device.")] = "auto",
    hardware: Annotated[
        Path | None, typer.Option(help="What `measure-hardware --json` printed, here or elsewhere; for `local`.")
    ] = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Predict memory and speed of one configuration of each strategy, without running anything."""
    report = hardware_report(cluster, hardware, state_dir)
    options = PredictOptions(model, cluster, seq_len, micro_batch, gradient_accumulation, recipe, report)
    table = predict(options)
    if as_json:
        print(table.model_dump_json())
    else:
        show(table)
