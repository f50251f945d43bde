"""Recognise what kind of baseline was given, read it, and hold it against the cluster."""

from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.workload import Workload, gradient_accumulation
from shardtune.tuner.baseline import accelerate, deepspeed, training_arguments
from shardtune.tuner.baseline.section import Section, in_words


class ResolvedBaseline(NamedTuple):
    """The baseline as a configuration, and what a reader should know about the way there."""

    config: TrialConfig | None
    notes: tuple[str, ...] = ()


def resolve(
    baseline: TrialConfig | dict[str, JsonValue] | None, workload: Workload, cluster: Cluster
) -> TrialConfig | None:
    """The baseline as a configuration; None where none was given.

    Raises:
        ValueError: it contradicts the workload, or cannot run on the cluster; names both sides.
    """
    return resolve_with_notes(baseline, workload, cluster).config


def resolve_with_notes(
    baseline: TrialConfig | dict[str, JsonValue] | None, workload: Workload, cluster: Cluster
) -> ResolvedBaseline:
    """The same as `resolve`, with the keys that are ignored and the conversions that were made.

    Raises:
        ValueError: as `resolve`.
    """
    if baseline is None:
        return ResolvedBaseline(None)
    notes: list[str] = []
    if isinstance(baseline, TrialConfig):
        config = baseline
    elif "strategy" in baseline or "kind" in baseline:
        config = _ours(baseline)
    else:
        top = Section(baseline, "baseline")
        if accelerate.KEYS & baseline.keys():
            config = accelerate.read(top, workload, cluster, notes)
        elif training_arguments.KEYS & baseline.keys() or isinstance(baseline.get("bf16"), bool):
            config = training_arguments.read(top, workload, cluster, notes)
        else:
            config = deepspeed.read(top, workload, cluster, notes)
    _check_fits(config, workload, cluster)
    return ResolvedBaseline(config, tuple(notes))


def _ours(values: dict[str, JsonValue]) -> TrialConfig:
    """Read again what the study's schema could only take as a plain object, for its message."""
    try:
        return TrialConfig.model_validate(values if "strategy" in values else {"strategy": values})
    except ValidationError as error:
        raise in_words(error, "baseline", "docs/search-space.md") from error


def _check_fits(config: TrialConfig, workload: Workload, cluster: Cluster) -> None:
    accumulation = gradient_accumulation(workload.global_batch, config.micro_batch, cluster.world_size)
    try:
        config.strategy.check_cluster(cluster, workload.recipe, accumulation)
    except ValueError as error:
        raise ValueError(f"baseline {error}") from None
