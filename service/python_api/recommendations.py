"""`best`: the best known configuration of a job, from the measurements of a service."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack, get_args

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import BestConfig, ConfidenceLevel
from shardtune.api_schemas.training.model_presets import preset_names
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.predict import predictor
from shardtune.service.mcp import study_tools
from shardtune.service.python_api import arguments, measured_tables
from shardtune.service.python_api.arguments import ClusterLike, ModelLike, WorkloadFields
from shardtune.service.python_api.failures import python_errors
from shardtune.service.python_api.result import Result
from shardtune.service.python_api.service_calls import ServiceLike, open_client, service_errors
from shardtune.service.wording import cluster_words

Level = Literal["high", "medium", "low"]


@dataclass(frozen=True, repr=False)
class KnownBest(Result):
    """Best known configuration of a training job, in the tables `configurations` and `speedup`."""

    values: BestConfig | None = None
    """All values of the answer."""


def best(
    model: ModelLike,
    cluster: ClusterLike,
    *,
    match: Literal["nearest", "exact"] = "nearest",
    lowest_confidence: Level = "medium",
    service: ServiceLike | None = None,
    key_file: str | Path | None = None,
    **workload: Unpack[WorkloadFields],
) -> KnownBest:
    """Return the best known configuration of a job, as a study measured it. No study is started.

    Args:
        model: preset, Hugging Face id, path, content of a `config.json`, or a study file.
        cluster: such as `8xh100`.
        match: `nearest` accepts the answer of a similar job and says in what it differs.
        lowest_confidence: lowest confidence that is accepted.
        service: address or client of a service (default: `SHARDTUNE_SERVICE_URL`, or without it the default address
        of `shardtune serve`).
        key_file: file with the API key (default: `SHARDTUNE_API_KEY` or `SHARDTUNE_API_KEY_FILE`).
        workload: `sequence_length` and `global_batch`, and the other fields of `predict`.

    Raises:
        InputError: a value is wrong, no configuration is known for this job, or the service rejects the key.
        PlatformFailure: the service does not answer.
    """
    with python_errors(), predictor.input_errors():
        subject = arguments.read_model(model).values
        values = {name: value for name, value in subject.items() if name not in ("model", "space")}
        values = _as_json(values | arguments.stated(workload))
        if lowest_confidence not in get_args(Level):
            raise InputError(f"lowest_confidence ({lowest_confidence!r}) must be one of {', '.join(get_args(Level))}")
    # A preset by its name: its configuration would fill most of an address.
    named = model if isinstance(model, str) and model in preset_names() else subject["model"].model_dump(mode="json")
    where = _cluster(cluster)
    client = open_client(service, key_file)
    with service_errors():
        known = client.find_best(named, where, values, match, ConfidenceLevel(lowest_confidence))
    return _recommended(known)


def _recommended(known: BestConfig) -> KnownBest:
    answer = study_tools.best_answer(known)
    differences = (
        f"differs in {row.field}: requested {row.requested_value}, measured {row.known_value}"
        for row in known.differences
    )
    workload = known.workload
    subject = (
        f"{known.model.name} on {cluster_words.cluster(known.cluster)}, sequence {workload.sequence_length:,}, global batch "
        f"{workload.global_batch:,}, {workload.precision.name}; measured {known.measured_at:%Y-%m-%d} by {known.study_id}, "
        f"{answer.freshness}"
    )
    tables = (measured_tables.known_configurations(known), measured_tables.speedup(known.speedup, known.study_id))
    return KnownBest(answer.summary, tables, subject, (*differences, *answer.reasons), known)


def _cluster(cluster: ClusterLike) -> str | dict[str, object]:
    if isinstance(cluster, Cluster):
        return cluster.model_dump(mode="json")
    if not isinstance(cluster, str | Mapping):
        raise InputError(f"cluster ({cluster!r}) must be a text such as 8xh100, or an object with a cluster's fields")
    return cluster if isinstance(cluster, str) else dict(cluster)


def _as_json(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with all pydantic models converted into JSON."""
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value for name, value in values.items()
    }
