"""Arguments of the Python API that several functions share: models, clusters and workloads as Python values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.workload import Precision
from shardtune.service.cli import baseline_file, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.models import source as model_source
from shardtune.service.cli.predict import model_argument
from shardtune.service.cli.predict.model_argument import ModelArgument

ModelLike = str | Path | Mapping[str, Any] | ModelSpec
"""Model of a call: a preset such as `llama-3.1-8b`, a Hugging Face id, the path of a model's folder, of a
`config.json` or of a study file, or the content of one of these files."""
ClusterLike = str | Mapping[str, Any] | Cluster
"""Cluster of a call: a short form such as `8xh100` or `4x8xa100-80gb`, `local`, or a cluster with all its fields."""
ConfigLike = str | Path | Mapping[str, Any] | TrialConfig
"""Configuration of a call: in Shardtune's format, as the content of a DeepSpeed, Accelerate or TrainingArguments file,
or as the path of such a file."""


class WorkloadFields(TypedDict, total=False):
    """Fields of a workload, as in a study file."""

    sequence_length: int | None
    global_batch: int | None
    precision: str | Mapping[str, Any] | Precision | None
    optimizer: str | Mapping[str, Any] | None
    adapter: str | Mapping[str, Any] | AdapterSchema | None
    attention: str
    data: Mapping[str, Any] | SampleLengths | None
    float8: str | None


class StudyWorkload(WorkloadFields, total=False):
    """Fields of a study's workload: those that predictions use, and those that change only the losses, such as
    gradient clipping and the seed."""

    max_grad_norm: float | None
    seed: int


def read_model(model: ModelLike) -> ModelArgument:
    """Read a model. If the argument is a study file, its workload is read as well.

    Raises:
        InputError: nothing has this name (the message suggests similar names), or the content cannot be read.
        PlatformFailure: the model is on the Hugging Face hub, which did not answer.
    """
    if isinstance(model, ModelSpec):
        return ModelArgument({"model": model})
    if isinstance(model, Mapping):
        return model_argument.read_content(model, Path())
    return model_argument.read_model(str(model))


def read_config(config: ConfigLike) -> dict[str, Any]:
    """Return the fields of a configuration.

    Raises:
        InputError: the file cannot be read.
    """
    if isinstance(config, TrialConfig):
        return config.model_dump(mode="json")
    return dict(config) if isinstance(config, Mapping) else baseline_file.read(str(config), Path())


def stated(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a workload whose value is not None; None stands for the default."""
    return {name: value for name, value in workload.items() if value is not None}


def study_fields(
    model: ModelLike, cluster: ClusterLike | None, fields: Mapping[str, Any], workload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a study file: those of the file that the argument `model` names, overridden by the other
    arguments.

    Raises:
        InputError: the file cannot be read, or the model's name is unknown.
    """
    values: dict[str, Any] = {"model": model}
    if isinstance(model, Mapping):
        values = dict(model) if "model" in model else {"model": dict(model)}
    elif not isinstance(model, ModelSpec) and not model_source.is_name(str(model)):
        content = study_file.read_json_object(Path(model))
        values = content if "model" in content else {"model": content}
    elif not isinstance(model, ModelSpec):
        values = {"model": str(model)}
    stated_workload = {**(values.get("workload") or {}), **stated(workload)}
    if unknown := sorted(fields.keys() & {"model", "cluster", "workload"}):
        raise InputError(f"fields.{unknown[0]} is an argument of its own; give it beside fields")
    return {**values, **fields, "workload": stated_workload} | ({} if cluster is None else {"cluster": cluster})


def folder_of(model: ModelLike) -> Path:
    """Return the folder to which paths in a study file are relative."""
    return Path(model).parent if isinstance(model, str | Path) and not model_source.is_name(str(model)) else Path()
