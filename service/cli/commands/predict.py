"""`shardtune predict`: what fits, how fast it should be and why, before a GPU-second is spent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport
from shardtune.api_schemas.training.models import ModelSpec, preset_names
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import AsJson, StateDir

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
    from shardtune.service.cli.predict import lines, model_trace
    from shardtune.tuner.prediction import model_shape
    from shardtune.tuner.search import fastest
else:
    study_file = LazyModule("shardtune.service.cli.study_file")
    lines = LazyModule("shardtune.service.cli.predict.lines")
    model_trace = LazyModule("shardtune.service.cli.predict.model_trace")
    model_shape = LazyModule("shardtune.tuner.prediction.model_shape")
    fastest = LazyModule("shardtune.tuner.search.fastest")

app = typer.Typer()


@dataclass(frozen=True)
class AskedModel:
    """What the argument of the command names."""

    values: dict[str, Any]
    """Fields of a `PredictionRequest`: the model, and of a study file its workload."""
    cluster: Cluster | str = "local"


@dataclass(frozen=True)
class PredictOptions:
    """The command line of `predict`."""

    model: AskedModel
    cluster: Cluster | str
    sequence_length: int | None
    micro_batch: int
    gradient_accumulation: int
    precision: str | None
    """None: the study's, or by the device; likewise the sequence length and the global batch."""
    hardware: HardwareReport | None = None
    """In place of `cluster`."""
    global_batch: int | None = None
    top: int = 10
    trace: bool = False
    """Count the model on the built one even where its architecture has a closed form."""


def hardware_report(cluster: Cluster | str, file: Path | None, state_dir: Path) -> HardwareReport | None:
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
    """The fastest of the search space that should fit, and one of each strategy.

    Raises:
        InputError: an unknown model, GPU or precision, or values that contradict each other.
        PlatformFailure: a model that has to be built could not be counted.
    """
    values: dict[str, Any] = {
        **options.model.values,
        "cluster": options.hardware.cluster if options.hardware else options.cluster,
        "hardware": options.hardware.measured if options.hardware else None,
        "micro_batch": options.micro_batch,
        "gradient_accumulation": options.gradient_accumulation,
        "top": options.top,
    }
    of_workload = (
        ("sequence_length", options.sequence_length),
        ("precision", options.precision),
        ("global_batch", options.global_batch),
    )
    values |= {name: value for name, value in of_workload if value is not None}
    try:
        return _table(PredictionRequest.model_validate(values), options)
    except ValidationError as error:
        raise InputError(*(entry["msg"].removeprefix("Value error, ") for entry in error.errors())) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def _table(request: PredictionRequest, options: PredictOptions) -> PredictionTable:
    """In closed form where there is one, else of the model as it was built here."""
    if not options.trace:
        try:
            return fastest.table(request)
        except model_shape.NoClosedForm:
            if request.model.is_own:
                raise
    model_summary = model_trace.profile_of(request.model, request.sequence_length)
    return fastest.table(request.model_copy(update={"model_summary": model_summary}))


def asked_model(name: str) -> AskedModel:
    """A preset by name, else the content of a config.json, or of a study file as `tune` takes it.

    Raises:
        InputError: it is none of these.
    """
    if name in preset_names():
        return AskedModel({"model": name})
    path = Path(name)
    if path.suffix != ".json" and not path.exists():
        presets = ", ".join(preset_names())
        raise InputError(f"model ({name!r}) is not a preset; use one of {presets}, or a config.json, or a study file")
    content = study_file.read_json_object(path)
    if "model" in content:
        study = study_file.study_spec(content, path.parent)
        fields = ("sequence_length", "global_batch", "precision", "attention")
        workload = {field: getattr(study.workload, field) for field in fields}
        return AskedModel({"model": study.model, **workload}, study.cluster)
    try:
        return AskedModel({"model": ModelSpec.model_validate(content)})
    except ValidationError as error:
        raise InputError(*(entry["msg"].removeprefix("Value error, ") for entry in error.errors())) from None


@app.command("predict")
def command(
    model: Annotated[
        str, typer.Argument(help="A preset such as llama-2-70b, or the path of a config.json or of a study file.")
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Nodes × GPUs per node × model, such as 8xh100 or 4x8xa100-80gb; `local`: measured here. The study's, or local."
        ),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=8, help="Tokens per sample; the study's, or the model's own up to 4096.")
    ] = None,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per forward pass and GPU.")] = 1,
    gradient_accumulation: Annotated[int, typer.Option(min=1, help="Micro batches per step.")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(help="Dtypes: bf16-mixed, bf16-autocast, fp32, or auto: by the device. The study's, or auto."),
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step in the ranking; the study's, or 8 per rank.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, max=100, help="How many of the fastest that should fit.")] = 10,
    trace: Annotated[
        bool, typer.Option("--trace", help="Count the model as it is built; other architectures always are.")
    ] = False,
    hardware: Annotated[
        Path | None, typer.Option(help="What `measure-hardware --json` printed, here or elsewhere; for `local`.")
    ] = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Predict the fastest configurations that fit, and memory and speed of each strategy, without running anything."""
    asked = asked_model(model)
    where: Cluster | str = asked.cluster if cluster is None and hardware is None else cluster or "local"
    report = hardware_report(where, hardware, state_dir)
    options = PredictOptions(
        asked, where, seq_len, micro_batch, gradient_accumulation, precision, report, global_batch, top, trace
    )
    table = predict(options)
    if as_json:
        print(table.model_dump_json())
    else:
        lines.show(table)
