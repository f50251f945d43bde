"""Query string of a recommendation: its parameters, and the tuning target parsed from model, cluster and workload."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, TypeAdapter, ValidationError

from shardtune.api_schemas.known_fields import fields_at
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import Invalid, invalid_from_value_error
from shardtune.service.http.input_guard import check_value
from shardtune.service.http.validation_errors import drop_union_noise, field_error
from shardtune.tuner.prediction import catalogue

ModelParam = Annotated[str | None, Query(description="A preset's name, a Hugging Face id, or a config.json as JSON.")]
ClusterParam = Annotated[
    str | None,
    Query(
        description="A cluster as JSON, its short form, or `local`: the live workers' cluster, else that of recommendations.",
        examples=["8xh100", "4x8xa100-80gb"],
    ),
]
WorkloadParam = Annotated[
    str | None, Query(description="The workload as JSON; without a precision, the one that fits the cluster.")
]
MatchParam = Annotated[
    Literal["nearest", "exact"],
    Query(description="`exact`: this tuning target only; `nearest`: also the most similar one."),
]
LowestConfidenceParam = Annotated[
    ConfidenceLevel,
    Query(
        description="Lowest confidence; `low` includes other models, clusters or software, and answers of busy machines."
    ),
]
ProjectionsParam = Annotated[
    bool,
    Query(
        description="Whether to accept a configuration that was projected to this target from fewer GPUs, where none was measured."
    ),
]

Parsed = TypeVar("Parsed", bound=BaseModel)


def parse_target(
    model: str | None, cluster: str | None, workload: str | None
) -> tuple[ModelSpec, WorkloadRequest, Cluster | None]:
    """Parse model, cluster and workload of a tuning target from a query string. A cluster of None stands for `local`,
    the cluster of the live workers.

    Raises:
        Invalid: names each part that is missing or wrong.
    """
    # All missing parts at once, so that a sender need not find them one by one.
    missing = [name for name, value in (("model", model), ("cluster", cluster), ("workload", workload)) if not value]
    if missing:
        message = "is required where target_key is not given; add it"
        errors = [FieldError(field=name, message=message) for name in missing]
        raise Invalid("invalid_request", f"{', '.join(missing)}: {message}", errors)
    parts: Mapping[str, Any] = {"model": model, "cluster": cluster, "workload": workload}
    return (
        _parse_part("model", ModelSpec, parts),
        _parse_part("workload", WorkloadRequest, parts),
        None
        if cluster == "local"
        else _parse_short_cluster(parts["cluster"]) or _parse_part("cluster", Cluster, parts),
    )


def _parse_short_cluster(text: str) -> Cluster | None:
    """Parse a cluster in its short form, such as `8xh100`; None if the text is JSON."""
    if text.lstrip()[:1] in ("{", '"', "["):
        return None
    try:
        return catalogue.parse_cluster(text)
    except ValueError as error:
        raise invalid_from_value_error("cluster", error) from None


def _parse_part(name: str, schema: type[Parsed], parts: Mapping[str, Any]) -> Parsed:
    try:
        value = json.loads(parts[name])
    except (ValueError, RecursionError):
        value = parts[name]
    # Values in a query string were not seen by the guard of JSON bodies, so NaN and NUL are rejected here.
    check_value(value, name)
    try:
        return TypeAdapter(schema).validate_python(value)
    except ValidationError as error:
        items = [
            field_error({**item, "loc": ("query", name, *item["loc"])}, fields_at(schema, item["loc"][:-1]))
            for item in drop_union_noise(error.errors())
        ]
        raise Invalid("invalid_request", "; ".join(f"{i.field}: {i.message}" for i in items[:3]), items) from None
