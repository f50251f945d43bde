"""Read the model, and with a study file the workload, that `predict` and `plan` are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.objective import Objective
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.models import source as model_source

if TYPE_CHECKING:
    from shardtune.api_schemas.studies.targets import Target
    from shardtune.service.cli import study_file
else:
    study_file = LazyModule("shardtune.service.cli.study_file")

_WORKLOAD = ("sequence_length", "global_batch", "precision", "optimizer", "adapter", "attention", "data", "float8")


@dataclass(frozen=True)
class ModelArgument:
    """Content of the model argument of a command, which names a preset, a config.json or a study file."""

    values: dict[str, Any]
    """Fields of a `PredictionRequest`: the model and, from a study file, the workload."""
    cluster: Cluster | str = "local"
    objective: Objective = field(default_factory=Objective)
    """Objective that the study file states, which decides how much memory stays free."""
    target: Target | None = None
    """Target that the study file states: the larger cluster to which the workload's global batch applies."""


def read_model(name: str) -> ModelArgument:
    """Read a command's model argument: a model's name or folder, or the path of a config.json or a study file.

    Raises:
        InputError: the argument is none of these.
    """
    if model_source.is_name(name):
        return ModelArgument({"model": _validated(model_source.named_model(name))})
    path = Path(name)
    return read_content(study_file.read_json_object(path), path.parent)


def read_content(content: Mapping[str, JsonValue], folder: Path) -> ModelArgument:
    """Read the content of a config.json or of a study file. Paths in a study file are relative to `folder`.

    Raises:
        InputError: the content is neither of the two.
    """
    if "model" in content:
        study = study_file.validate_study(dict(content), folder)
        workload = {name: getattr(study.workload, name) for name in _WORKLOAD}
        values = {"model": study.model, "space": study.space, **workload}
        return ModelArgument(values, study.cluster, study.objective, study.target)
    return ModelArgument({"model": _validated(dict(content))})


def _validated(model: JsonValue) -> ModelSpec:
    try:
        return ModelSpec.model_validate(model)
    except ValidationError as error:
        raise InputError(*(rephrase_error(entry["msg"]) for entry in error.errors())) from None
