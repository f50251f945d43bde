"""The case that a query string asks about: model, cluster and workload, each a name or JSON."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from shardtune.api_schemas.known_fields import fields_at
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import Invalid, from_value_error
from shardtune.service.http.input_guard import check
from shardtune.service.http.validation_errors import field_error, of_the_likeliest_branch
from shardtune.tuner.prediction import catalogue

T = TypeVar("T", bound=BaseModel)


def case(
    model: str | None, cluster: str | None, workload: str | None
) -> tuple[ModelSpec, WorkloadRequest, Cluster | None]:
    """The parts of a case; no cluster: `local`.

    Raises:
        Invalid: names each part that is missing or wrong.
    """
    missing = [name for name, value in (("model", model), ("cluster", cluster), ("workload", workload)) if not value]
    if missing:
        message = "is required where target_key is not given; add it"
        errors = [FieldError(field=name, message=message) for name in missing]
        raise Invalid("invalid_request", f"{', '.join(missing)}: {message}", errors)
    given: Mapping[str, Any] = {"model": model, "cluster": cluster, "workload": workload}
    return (
        _parsed("model", ModelSpec, given),
        _parsed("workload", WorkloadRequest, given),
        None if cluster == "local" else _cluster(given["cluster"]) or _parsed("cluster", Cluster, given),
    )


def _cluster(text: str) -> Cluster | None:
    """A cluster by its short form; None where it is JSON."""
    if text.lstrip()[:1] in ("{", '"', "["):
        return None
    try:
        return catalogue.parse_cluster(text)
    except ValueError as error:
        raise from_value_error("cluster", error) from None


def _parsed(name: str, kind: type[T], given: Mapping[str, Any]) -> T:
    try:
        value = json.loads(given[name])
    except (ValueError, RecursionError):
        value = given[name]
    check(value, name)
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        items = [
            field_error({**item, "loc": ("query", name, *item["loc"])}, fields_at(kind, item["loc"][:-1]))
            for item in of_the_likeliest_branch(error.errors())
        ]
        raise Invalid("invalid_request", "; ".join(f"{i.field}: {i.message}" for i in items[:3]), items) from None
