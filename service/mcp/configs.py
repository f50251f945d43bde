"""Configurations in answers and arguments: short JSON without defaults, and files of other programs."""

import re

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.native_dtypes import decide
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.tuner import baseline
from shardtune.tuner.prediction import catalogue

_BASELINE = re.compile(r"\bbaseline(?=\.\w)|^baseline(?= )")
"""Pattern of the name by which messages about a study's baseline refer to the file that was read."""


def short_config(config: TrialConfig) -> dict[str, JsonValue]:
    """Return a configuration without the fields that have their default value; tools accept the result as input."""
    values: dict[str, JsonValue] = config.model_dump(mode="json", exclude_defaults=True)
    strategy = config.strategy.model_dump(mode="json", exclude_defaults=True)
    # The discriminator of the strategies is a default itself.
    return values | {"strategy": {"kind": config.strategy.kind, **strategy}}


def read_config(values: dict[str, JsonValue], request: PredictionRequest) -> tuple[TrialConfig, tuple[str, ...]]:
    """Read a configuration in Shardtune's format, or the unchanged content of a DeepSpeed, Accelerate or
    TrainingArguments file; also return notes about keys without effect.

    Raises:
        ToolRejected: the configuration cannot be read, or contradicts the workload or the cluster; the message names
        the field.
    """
    if "strategy" in values:
        with rejections(TrialConfig, "config"):
            return TrialConfig.model_validate(values), ()
    if request.sequence_length is None or request.global_batch is None:
        raise ToolRejected(
            "config (a file of another program) is checked against sequence_length and global_batch; add both, or give "
            'Shardtune\'s format, such as {"strategy": {"kind": "fsdp2", "dp_shard": 8}, "micro_batch": 1}'
        )
    try:
        with rejections(TrialConfig, "config"):
            resolved = _resolve(values, request)
    except ToolRejected as rejected:
        raise ToolRejected(*(_BASELINE.sub("config", line) for line in rejected.lines)) from None
    assert resolved.config is not None
    # A study would measure the configuration as the notes say; here nothing is measured.
    notes = (_BASELINE.sub("config", note).replace("measured", "predicted") for note in resolved.notes)
    return resolved.config, tuple(notes)


def _resolve(values: dict[str, JsonValue], request: PredictionRequest) -> baseline.ResolvedBaseline:
    assert request.sequence_length is not None and request.global_batch is not None
    cluster = _named_cluster(request)
    workload = WorkloadRequest(
        sequence_length=request.sequence_length,
        global_batch=request.global_batch,
        optimizer=request.optimizer,
        adapter=request.adapter,
        data=request.data,
        attention=request.attention,
    )
    precision, _ = decide(request.precision, [catalogue.dtypes_of(cluster)])
    return baseline.resolve_with_notes(values, workload.with_precision(precision), cluster, request.model)


def _named_cluster(request: PredictionRequest) -> Cluster:
    if isinstance(request.cluster, Cluster):
        return request.cluster
    if request.cluster == "local":
        raise ToolRejected(
            "cluster ('local') is not known here, and a file of another program is checked against it; name the cluster, "
            "such as 8xh100"
        )
    return catalogue.parse_cluster(request.cluster)
