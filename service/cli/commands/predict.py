"""`shardtune predict`: predict memory and speed of configurations without a trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport
from shardtune.api_schemas.studies.study import Objective
from shardtune.api_schemas.studies.targets import Target
from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import (
    AllowModel,
    AsJson,
    DataFile,
    LastLayersCount,
    LayoutName,
    LoraRank,
    QloraRank,
    StateDir,
    adapter_options,
)

if TYPE_CHECKING:
    from shardtune.service.cli import lengths_file, study_file
    from shardtune.service.cli.models import source as model_source
    from shardtune.service.cli.predict import lines, measured_hardware, model_trace
    from shardtune.tuner.prediction import model_shape, prediction_request
    from shardtune.tuner.search import fastest
else:
    model_source = LazyModule("shardtune.service.cli.models.source")
    lengths_file = LazyModule("shardtune.service.cli.lengths_file")
    study_file = LazyModule("shardtune.service.cli.study_file")
    lines = LazyModule("shardtune.service.cli.predict.lines")
    measured_hardware = LazyModule("shardtune.service.cli.predict.measured_hardware")
    model_trace = LazyModule("shardtune.service.cli.predict.model_trace")
    model_shape = LazyModule("shardtune.tuner.prediction.model_shape")
    prediction_request = LazyModule("shardtune.tuner.prediction.prediction_request")
    fastest = LazyModule("shardtune.tuner.search.fastest")

app = typer.Typer()


@dataclass(frozen=True)
class ModelArgument:
    """Content of the command's argument: a preset, a config.json or a study file."""

    values: dict[str, Any]
    """Fields of a `PredictionRequest`: the model, and the workload of a study file."""
    cluster: Cluster | str = "local"
    objective: Objective = field(default_factory=Objective)
    """Objective of a study file, which decides how much memory stays free."""
    target: Target | None = None
    """Target of a study file, for which its workload states the global batch."""


@dataclass(frozen=True)
class PredictOptions:
    """Command-line options of `predict`."""

    model: ModelArgument
    cluster: Cluster | str
    sequence_length: int | None
    micro_batch: int
    gradient_accumulation: int | None
    precision: str | None
    """Name of the dtypes; None: the study's, or chosen by the device (so, too, sequence length and global batch)."""
    hardware: HardwareReport | None = None
    """Measured rates of a cluster, which replace `cluster`."""
    global_batch: int | None = None
    top: int = 10
    trace: bool = False
    """Whether to count the built model even where its architecture has a closed form."""
    optimizer: str | None = None
    """Kind of the optimizer; None: the study's, or AdamW."""
    checkpointing: str = "none"
    """Activation checkpointing of the table of strategies."""
    adapter: AdapterSchema | None = None
    """Adapter that is trained; None: the study's, or all weights."""
    data: dict[str, JsonValue] | None = None
    """Fields of the data that options state; None: the study's, or samples of one length."""
    float8: str | None = None
    """Scaling of float8; None: the study's, or no float8."""
    allowed_models: tuple[str, ...] = ()
    """Names of the user's own models that may run here to be traced."""


def predict(options: PredictOptions) -> PredictionTable:
    """Predict the fastest configurations of the search space, and one configuration of each strategy.

    Raises:
        InputError: the model, GPU or precision is unknown, or values contradict each other.
        PlatformFailure: a model that must be built could not be counted.
    """
    values: dict[str, Any] = {
        **options.model.values,
        "cluster": options.hardware.cluster if options.hardware else options.cluster,
        "hardware": options.hardware.measured if options.hardware else None,
        "micro_batch": options.micro_batch,
        "gradient_accumulation": options.gradient_accumulation,
        "checkpointing": options.checkpointing,
        "top": options.top,
    }
    of_workload = (
        ("sequence_length", options.sequence_length),
        ("precision", options.precision),
        ("optimizer", options.optimizer),
        ("adapter", options.adapter),
        ("float8", options.float8),
        ("data", _data(options)),
        ("global_batch", options.global_batch),
    )
    # Only options that were given: a null would replace the workload of a study file.
    values |= {name: value for name, value in of_workload if value is not None}
    if options.gradient_accumulation is not None and options.global_batch is None:
        # The option says how large a step is, in place of the study file's global batch.
        values["global_batch"] = None
    try:
        return _predict_table(PredictionRequest.model_validate(values), options)
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def _data(options: PredictOptions) -> dict[str, Any] | None:
    """Return the data of a study file with the fields that options state; None without such options."""
    if not options.data:
        return None
    data = options.model.values.get("data")
    return ({} if data is None else data.model_dump()) | options.data


def _predict_table(request: PredictionRequest, options: PredictOptions) -> PredictionTable:
    """Predict by formulas for the model's architecture; a model without formulas is built here, and its parameters and
    FLOPs are counted."""
    if request.model.is_own:
        return fastest.answer_request(_traced(request, options), objective=options.model.objective)
    if not options.trace:
        try:
            return fastest.answer_request(request, objective=options.model.objective)
        except model_shape.NoClosedForm:
            pass
    model_summary = model_trace.count_model(request.model, request.sequence_length)
    counted = request.model_copy(update={"model_summary": model_summary})
    return fastest.answer_request(counted, objective=options.model.objective)


def _traced(request: PredictionRequest, options: PredictOptions) -> PredictionRequest:
    """Request with a traced step of the user's own code, which runs here only if its name is allowed."""
    name = request.model.entry_point
    if name is None or name not in options.allowed_models:
        what = "script, whose steps cannot be traced; `shardtune tune` measures it"
        remedy = f"own code, which has to be traced to be predicted; allow it to run here: --allow-model {name}"
        raise InputError(f"model ({request.model.name}) is your {remedy if name else what}")
    if request.sequence_length is None:
        raise InputError("sequence_length is missing: your own code is traced at one length; give it by --seq-len")
    precision, _ = prediction_request.precision_of(request)
    ranks = prediction_request.cluster_of(request).world_size
    # A trace takes up to four samples; the batch itself has no influence on it.
    workload = Workload(
        sequence_length=request.sequence_length,
        global_batch=request.global_batch or 8 * ranks,
        precision=precision,
        optimizer=request.optimizer,
    )
    model_summary = model_trace.trace_own_code(request.model, workload)
    return request.model_copy(update={"model_summary": model_summary})


def read_model(name: str) -> ModelArgument:
    """Read the argument: a model's name or folder, or the path of a config.json or study file.

    Raises:
        InputError: the argument is none of these.
    """
    path = Path(name)
    if model_source.is_name(name):
        return ModelArgument({"model": _validated(model_source.named_model(name))})
    content = study_file.read_json_object(path)
    if "model" in content:
        study = study_file.validate_study(content, path.parent)
        names = ("sequence_length", "global_batch", "precision", "optimizer", "adapter", "attention", "data", "float8")
        workload = {name: getattr(study.workload, name) for name in names}
        values = {"model": study.model, "space": study.space, **workload}
        return ModelArgument(values, study.cluster, study.objective, study.target)
    return ModelArgument({"model": _validated(content)})


def _validated(model: JsonValue) -> ModelSpec:
    try:
        return ModelSpec.model_validate(model)
    except ValidationError as error:
        raise InputError(*(entry["msg"].removeprefix("Value error, ") for entry in error.errors())) from None


@app.command("predict")
def command(
    model: Annotated[
        str,
        typer.Argument(
            help="Preset such as llama-2-70b, Hugging Face id, or path of a model's folder, config.json or study file."
        ),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Nodes × GPUs per node × model, such as 8xh100 or 4x8xa100-80gb; `local` for this machine (default: the study's, or local)."
        ),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(min=8, help="Tokens per sample (default: the study's, or the model's maximum up to 4096)."),
    ] = None,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per forward pass and GPU.")] = 1,
    gradient_accumulation: Annotated[
        int | None, typer.Option(min=1, help="Micro batches per step (default: as many as the global batch takes).")
    ] = None,
    checkpointing: Annotated[
        str, typer.Option(help="Activation checkpointing of the table of strategies: none, selective or full.")
    ] = "none",
    precision: Annotated[
        str | None,
        typer.Option(
            help="Dtypes: bf16-mixed, bf16-autocast, bf16-true, fp32, or auto, by the device (default: the study's, or auto)."
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help=f"Optimizer: {', '.join(OPTIMIZERS)} (default: the study's, or {DEFAULT_OPTIMIZER})."),
    ] = None,
    float8: Annotated[
        str | None,
        typer.Option(
            help="Scaling with which linear layers multiply in float8: tensorwise or rowwise (default: the study's, or none)."
        ),
    ] = None,
    lora: LoraRank = None,
    qlora: QloraRank = None,
    last_layers: LastLayersCount = None,
    data: DataFile = None,
    layout: LayoutName = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples per step (default: the study's, or 8 per rank).")
    ] = None,
    top: Annotated[
        int, typer.Option(min=0, max=100, help="Maximum number of the fastest configurations to print.")
    ] = 10,
    trace: Annotated[
        bool, typer.Option("--trace", help="Count the built model even where its architecture has a closed form.")
    ] = False,
    allow_model: AllowModel = None,
    hardware: Annotated[
        Path | None, typer.Option(help="Output file of `measure-hardware --json`, of this machine or another.")
    ] = None,
    state_dir: StateDir = Path(".shardtune"),
    as_json: AsJson = False,
) -> None:
    """Predict the fastest configurations that fit, and memory and speed of each strategy, without running a trial."""
    subject = read_model(model)
    cluster_name: Cluster | str = subject.cluster if cluster is None and hardware is None else cluster or "local"
    report = measured_hardware.hardware_report(cluster_name, hardware, state_dir)
    options = PredictOptions(
        subject,
        cluster_name,
        seq_len,
        micro_batch,
        gradient_accumulation,
        precision,
        report,
        global_batch,
        top,
        trace,
        optimizer,
        checkpointing,
        adapter_options(lora, last_layers, qlora),
        lengths_file.option_values(data, layout),
        float8,
        tuple(allow_model or ()),
    )
    table = predict(options)
    if as_json:
        print(table.model_dump_json())
    else:
        lines.show(table)
