"""Predict in this process, for the command line and for `shardtune.predict`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport
from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import PredictionRequest, PredictionTable
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.predict.model_argument import ModelArgument

if TYPE_CHECKING:
    from shardtune.service.cli import study_file
    from shardtune.service.cli.predict import model_trace
    from shardtune.tuner.prediction import prediction_request
    from shardtune.tuner.prediction.shapes import config_shape
    from shardtune.tuner.search import fastest
else:
    study_file = LazyModule("shardtune.service.cli.study_file")
    model_trace = LazyModule("shardtune.service.cli.predict.model_trace")
    config_shape = LazyModule("shardtune.tuner.prediction.shapes.config_shape")
    prediction_request = LazyModule("shardtune.tuner.prediction.prediction_request")
    fastest = LazyModule("shardtune.tuner.search.fastest")


@dataclass(frozen=True)
class PredictOptions:
    """Model, cluster and options of a prediction."""

    model: ModelArgument
    cluster: Cluster | str
    sequence_length: int | None
    micro_batch: int
    gradient_accumulation: int | None
    precision: str | None
    """Name of the dtypes, such as `bf16-mixed`. If None, the study file decides or, without a study file, a default
    applies. The same holds for the sequence length and the global batch."""
    hardware: HardwareReport | None = None
    """Measured rates of a cluster (computing and communication); if given, they are used in place of `cluster`."""
    global_batch: int | None = None
    top: int = 10
    trace: bool = False
    """Whether to build the model and count its FLOPs even if formulas exist for its architecture."""
    optimizer: str | None = None
    """Kind of the optimizer, such as `adamw`. If None, the study file decides; without a study file it is AdamW."""
    checkpointing: str = "none"
    """Kind of activation checkpointing that the configurations in the table of strategies use."""
    adapter: AdapterSchema | None = None
    """Adapter to train, such as LoRA. If None, the study file decides; without a study file all weights are trained."""
    data: dict[str, JsonValue] | None = None
    """Fields of the workload's data that command-line options set. If None, the study file decides; without a study
    file all samples have one length."""
    float8: str | None = None
    """Scaling of float8 matrix products. If None, the study file decides; without a study file float8 is not used."""
    allowed_models: tuple[str, ...] = ()
    """Names of the user's own models whose code this command may run, to trace one training step."""
    nodes_per_leaf: int | None = None
    """Number of nodes below one leaf switch. If None, the cluster decides."""
    oversubscription: float | None = None
    """Oversubscription of the leaf switches. If None, the cluster decides."""


def predict(options: PredictOptions) -> PredictionTable:
    """Predict the fastest configurations of the search space, and one configuration of each strategy.

    Raises:
        InputError: the model, GPU or precision is unknown, or values contradict each other.
        PlatformFailure: a model that must be built could not be counted.
    """
    with input_errors():
        return predict_table(read_request(options), options)


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn the errors of the schemas and of the predictor into an `InputError` with a line for each."""
    try:
        yield
    except ValidationError as error:
        raise InputError(*study_file.error_lines(error)) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def read_request(options: PredictOptions) -> PredictionRequest:
    """Return the prediction request that the command's options describe.

    Raises:
        ValidationError: a value is wrong.
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
    return _with_leaf_switches(PredictionRequest.model_validate(values), options)


def _with_leaf_switches(request: PredictionRequest, options: PredictOptions) -> PredictionRequest:
    """Return the request with the leaf switches that the options state in place of its cluster's.

    Raises:
        ValidationError: they contradict each other.
        ValueError: the cluster's short form names an unknown GPU.
    """
    given = {"nodes_per_leaf": options.nodes_per_leaf, "oversubscription": options.oversubscription}
    stated = {name: value for name, value in given.items() if value is not None}
    if not stated:
        return request
    cluster = Cluster.model_validate(prediction_request.cluster_of(request).model_dump() | stated)
    return request.model_copy(update={"cluster": cluster})


def _data(options: PredictOptions) -> dict[str, Any] | None:
    """Return the `data` object of a study file, with the fields that command-line options set replaced; None if no
    option sets one."""
    if not options.data:
        return None
    data = options.model.values.get("data")
    return ({} if data is None else data.model_dump()) | options.data


def predict_table(request: PredictionRequest, options: PredictOptions) -> PredictionTable:
    """Predict by formulas for the model's architecture; a model without formulas is built here, and its parameters and
    FLOPs are counted."""
    if request.model.is_own:
        return fastest.answer_request(_traced(request, options), objective=options.model.objective)
    if not options.trace:
        try:
            return fastest.answer_request(request, objective=options.model.objective)
        except config_shape.NoClosedForm:
            pass
    model_summary = model_trace.count_model(request.model, request.sequence_length)
    counted = request.model_copy(update={"model_summary": model_summary})
    return fastest.answer_request(counted, objective=options.model.objective)


def _traced(request: PredictionRequest, options: PredictOptions) -> PredictionRequest:
    """Return the request with one traced step of the user's own model, which runs here only if its name is allowed."""
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
