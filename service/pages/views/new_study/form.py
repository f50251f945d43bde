"""Form of a new study and of the calculator: its fields as text, and their conversion to requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.hub_source import looks_like_id
from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER
from shardtune.api_schemas.training.sample_lengths import LAYOUTS
from shardtune.api_schemas.training.search_space import BACKENDS
from shardtune.api_schemas.training.workload import AUTO
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages.views import words
from shardtune.service.pages.views.new_study.form_fields import (
    FormErrors,
    error,
    json_object,
    number,
    positive_int,
    sample_lengths,
)
from shardtune.service.wording import cluster_words
from shardtune.tuner.prediction import catalogue

RequestModel = TypeVar("RequestModel", bound=Schema)

_LONGEST = 400_000
"""Maximum number of characters of a file that a user pastes into the form."""
_NODE = 8
_FASTEST = 5
"""Number of fastest predicted configurations that the form's calculator lists."""


class StudyForm(BaseModel):
    """Fields of the new-study form, kept as text so that the page can show wrong input beside its error."""

    model_config = ConfigDict(extra="ignore")

    model: str = "llama-3.1-8b"
    """Name of a preset; `hub` if the field `hub` names a repository, or `custom` if the field `config` holds the
    model."""
    hub: str = Field(default="", max_length=200)
    """Id of a model on the Hugging Face hub: `OWNER/NAME` or `OWNER/NAME@REVISION`."""
    config: str = Field(default="", max_length=_LONGEST)
    hardware: str = ""
    """Hardware that the form chose: `worker:NAME`, or the name of a GPU in the catalogue."""
    size: int = Field(default=3, ge=0, le=10)
    """Logarithm to base 2 of the number of GPUs, for a GPU of the catalogue. It is ignored for a worker, which states
    its own number."""
    target: str = Field(default="", max_length=100)
    """Larger cluster that the answer is projected to, such as `64x8`; empty for no projection."""
    sequence_length: str = "4096"
    global_batch: str = "64"
    micro_batch: str = "1"
    checkpointing: str = "none"
    precision: str = AUTO
    optimizer: str = DEFAULT_OPTIMIZER
    lora: str = Field(default="", max_length=20)
    """Rank of the LoRA adapters; if empty, all weights are trained."""
    quantization: str = Field(default="", max_length=20)
    """Number format of the frozen weights if LoRA adapters are trained, such as `nf4`; if empty, the weights have the
    format of the computation."""
    lengths: str = Field(default="", max_length=_LONGEST)
    """Lengths of the samples as a JSON list; if empty, every sample has the sequence length."""
    layout: str = LAYOUTS[0]
    max_trials: str = "14"
    max_gpu_seconds: str = ""
    baseline: str = Field(default="", max_length=_LONGEST)
    sampler: str = "guided"
    max_wall_seconds: str = ""
    max_pairs: str = str(Budget().max_pairs)
    memory_headroom: str = f"{Objective().memory_headroom * 100:g}"
    """Fraction of each GPU's memory to keep free, in per cent."""
    backends: list[str] = Field(default=list(BACKENDS), max_length=len(BACKENDS))
    knobs: str = Field(default="", max_length=_LONGEST)
    compile: str = "auto"
    wait_hours: str = ""


@dataclass(frozen=True)
class Hardware:
    """One choice of hardware."""

    value: str
    label: str


def hardware_of(live: Sequence[WorkerRow]) -> tuple[tuple[Hardware, ...], tuple[Hardware, ...]]:
    """Return the choices of hardware: live workers, and GPUs of the catalogue."""
    own = tuple(
        Hardware(f"worker:{worker.name}", f"{worker.name}: {cluster_words.cluster(worker.offer.cluster)}, "
                 f"{words.cluster_memory(worker.offer.cluster)}")
        for worker in live
    )  # fmt: skip
    gpus = [catalogue.find(name) for name in catalogue.names()]
    catalogue_choices = tuple(
        Hardware(gpu.name, f"{gpu.name}, {memory(gpu.memory_gib)}") for gpu in gpus if gpu.memory_gib
    )
    return own, catalogue_choices


def cluster_of(form: StudyForm, live: Sequence[WorkerRow]) -> Cluster:
    """Convert the form's hardware to a cluster.

    Raises:
        FormErrors: the worker is not live, or the GPU is unknown.
    """
    if form.hardware.startswith("worker:"):
        name = form.hardware.removeprefix("worker:")
        for worker in live:
            if worker.name == name:
                return worker.offer.cluster
        raise error("hardware", name, f"worker {name} is no longer live; choose another, or start it again")
    count = 2**form.size
    nodes, per_node = (count // _NODE, _NODE) if count > _NODE else (1, count)
    try:
        return catalogue.parse_cluster(f"{nodes}x{per_node}x{form.hardware}")
    except ValueError as problem:
        raise error("hardware", form.hardware, str(problem)) from None


def with_catalogue_name(form: StudyForm) -> StudyForm:
    """Return the form with an alias of a GPU replaced by its name in the catalogue, which the list of hardware
    shows."""
    if form.hardware.startswith("worker:"):
        return form
    try:
        return form.model_copy(update={"hardware": catalogue.find(form.hardware).name})
    except ValueError:
        return form


def worker_of(form: StudyForm, live: Sequence[WorkerRow]) -> WorkerRow | None:
    """Return the worker that the form names; None if the form names a GPU of the catalogue, or the worker is no longer
    live."""
    name = form.hardware.removeprefix("worker:")
    return None if name == form.hardware else next((worker for worker in live if worker.name == name), None)


def measured_rates(form: StudyForm, live: Sequence[WorkerRow]) -> MeasuredHardware | None:
    """Return the rates that the worker named in the form measured; None if the form names a GPU of the catalogue."""
    worker = worker_of(form, live)
    return None if worker is None else worker.offer.measured


def model_of(form: StudyForm) -> ModelSpec:
    """Convert the form's fields to a model.

    Raises:
        FormErrors: the text is not JSON, or not a model configuration.
    """
    if form.model == "hub":
        # Half an id is what the form sends while somebody writes.
        if not looks_like_id(form.hub.strip()):
            raise error("hub", form.hub, f"hub ({form.hub!r}) must be OWNER/NAME, such as Qwen/Qwen3-8B; enter it")
        return _valid_model("hub", form.hub.strip())
    if form.model != "custom":
        if form.model not in preset_names():
            raise error(
                "model",
                form.model,
                f"model ({form.model!r}) is not a preset; choose one, enter an id of the hub, or paste a config.json",
            )
        return ModelSpec.model_validate(form.model)
    return _valid_model("config", json_object("config", form.config, "a model's config.json"))


def _valid_model(field: str, value: object) -> ModelSpec:
    try:
        return ModelSpec.model_validate(value)
    except ValidationError as problem:
        raise FormErrors(
            [FieldError(field=field, message=e["msg"].removeprefix("Value error, ")) for e in problem.errors()]
        ) from None


def prediction_request(form: StudyForm, live: Sequence[WorkerRow]) -> PredictionRequest:
    """Convert the form to a prediction request, for the fastest configurations and for one configuration of each
    strategy.

    Raises:
        FormErrors: fields that cannot be used.
    """
    cluster = cluster_of(form, live)
    micro = positive_int("micro_batch", form.micro_batch)
    step = micro * cluster.world_size
    values: dict[str, Any] = {
        "model": model_of(form),
        "cluster": cluster,
        "hardware": measured_rates(form, live),
        "sequence_length": positive_int("sequence_length", form.sequence_length),
        "micro_batch": micro,
        "checkpointing": form.checkpointing,
        # Rounded to what the ranks divide: moving the slider should not turn into errors about divisibility.
        "global_batch": step * max(1, positive_int("global_batch", form.global_batch) // step),
        "top": _FASTEST,
        "precision": form.precision,
        "optimizer": form.optimizer,
        "adapter": _adapter(form),
        "data": sample_lengths(form.lengths, form.layout),
    }
    return _validated(PredictionRequest, values)


def _adapter(form: StudyForm) -> dict[str, Any] | None:
    """Return the adapter that the form describes, as a workload states it; None if all weights are trained."""
    if not form.lora.strip():
        if form.quantization:
            raise error(
                "quantization",
                form.quantization,
                f"quantization ({form.quantization:.20}) is of frozen weights beside LoRA; give a LoRA rank, or choose as computed",
            )
        return None
    rank = positive_int("lora", form.lora)
    return {"kind": "lora", "rank": rank, "alpha": 2.0 * rank, "quantization": form.quantization or None}


def study_request(form: StudyForm, live: Sequence[WorkerRow]) -> StudyRequest:
    """Convert the form to a study.

    Raises:
        FormErrors: fields that cannot be used.
    """
    values: dict[str, Any] = {
        "model": model_of(form),
        "workload": {
            "sequence_length": positive_int("sequence_length", form.sequence_length),
            "global_batch": positive_int("global_batch", form.global_batch),
            "precision": form.precision,
            "optimizer": form.optimizer,
            "adapter": _adapter(form),
            "data": sample_lengths(form.lengths, form.layout),
        },
        "cluster": cluster_of(form, live),
        "target": form.target.strip() or None,
        "objective": objective_of(form),
        "budget": _budget(form),
        "space": _space(form),
        "sampler": form.sampler,
    }
    if form.wait_hours.strip():
        values["wait_for_worker_s"] = 3600 * number("wait_hours", form.wait_hours)
    if form.baseline.strip():
        values["baseline"] = json_object("baseline", form.baseline, "a configuration or a DeepSpeed JSON")
    return _validated(StudyRequest, values)


def objective_of(form: StudyForm) -> Objective:
    """Convert the form's fields to the objective of a study.

    Raises:
        FormErrors: the memory to keep free is out of range.
    """
    try:
        return Objective(memory_headroom=number("memory_headroom", form.memory_headroom) / 100)
    except ValidationError:
        text = form.memory_headroom
        raise error(
            "memory_headroom", text, f"memory_headroom ({text}) must be per cent from 0 to below 90, such as 5"
        ) from None


def _budget(form: StudyForm) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for field, read in (
        ("max_trials", positive_int),
        ("max_gpu_seconds", number),
        ("max_wall_seconds", number),
        ("max_pairs", positive_int),
    ):
        if (text := getattr(form, field)).strip():
            limits[field] = read(field, text)
    return limits


def _space(form: StudyForm) -> dict[str, Any]:
    allowed = {"auto": None, "yes": True, "no": False}
    space: dict[str, Any] = {"allow_compile": allowed.get(form.compile)}
    # No ticked backend means all: browsers send nothing for a group without a tick.
    if form.backends:
        space["backends"] = form.backends
    if form.knobs.strip():
        space["knobs"] = json_object("knobs", form.knobs, 'limits by knob, such as {"micro_batch": [1, 2]}')
    return space


def _validated(kind: type[RequestModel], values: Mapping[str, Any]) -> RequestModel:
    try:
        return kind.model_validate(values)
    except ValidationError as problem:
        raise FormErrors([field_error(item) for item in problem.errors()]) from None
