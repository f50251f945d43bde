"""Resolution of a baseline: recognise the kind of its file, read the file, and check it against the cluster."""

from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, pipeline_parallel, sample_groups, tensor_parallel
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import accelerate, auto, deepspeed, tools, training_arguments
from shardtune.tuner.baseline import precision as precisions
from shardtune.tuner.baseline.section import Section, in_words
from shardtune.tuner.prediction.shapes import config_shape


class ResolvedBaseline(NamedTuple):
    """Baseline that was read as a configuration, with notes on its file's ignored keys and conversions."""

    config: TrialConfig | None
    notes: tuple[str, ...] = ()


def resolve(
    baseline: TrialConfig | dict[str, JsonValue] | None,
    workload: Workload,
    cluster: Cluster,
    model: ModelSpec | None = None,
) -> TrialConfig | None:
    """Read the user's baseline as a configuration; None where no baseline was given.

    Raises:
        ValueError: the baseline contradicts the workload, or cannot run on the cluster; names both sides.
    """
    return resolve_with_notes(baseline, workload, cluster, model).config


def resolve_with_notes(
    baseline: TrialConfig | dict[str, JsonValue] | None,
    workload: Workload,
    cluster: Cluster,
    model: ModelSpec | None = None,
) -> ResolvedBaseline:
    """Read the user's baseline as a configuration, with notes on ignored keys and conversions.

    `model`: its hidden size replaces `"auto"` in a DeepSpeed JSON, and its vocabulary decides how TRL's loss is measured.

    Raises:
        ValueError: the baseline contradicts the workload, or cannot run on the cluster (as in `resolve`).
    """
    if baseline is None:
        return ResolvedBaseline(None)
    notes: list[str] = []
    if isinstance(baseline, TrialConfig):
        config = baseline
    elif "strategy" in baseline or "kind" in baseline:
        config = _validate_own(baseline)
    else:
        top = Section(_fill_in_auto(baseline, model, notes), "baseline")
        # Accelerate's file goes first: it may name DeepSpeed and FSDP, whose words the other readers recognise.
        if accelerate.KEYS & baseline.keys():
            config = accelerate.read(top, workload, cluster, notes)
        elif (tool := tools.recognised(baseline)) is not None:
            fields = tools.fields_of(tool, top.values(), cluster.world_size)
            top = Section(_fill_in_auto(fields.values, model, notes), "baseline", fields.names)
            config = tools.read(tool, top, fields, workload, cluster, notes)
        elif training_arguments.is_training_arguments(baseline):
            config = training_arguments.read(top, workload, cluster, notes, model)
        else:
            deepspeed.check_recognised(top)
            precisions.check_positive(top, "micro_batch")
            batch = top.integer("micro_batch")
            if batch is None and auto.tool_of(baseline.get("tool"), baseline) == "trainer" and not _gives_batch(top):
                batch = auto.trainers_batch(top, workload, cluster, notes)
            config = deepspeed.read(top, workload, cluster, notes, batch)
        if (
            workload.float8 is not None
            and baseline.get("mixed_precision") != "fp8"
            and str(baseline.get("fp8")).lower() != "true"
        ):
            notes.append(
                f"the baseline's file says nothing of float8; measured with the workload's float8 ({workload.float8!r}), which "
                "its program does only if your script converts the model; leave float8 out to measure the file as it is"
            )
    _check_against_cluster(config, workload, cluster, model)
    return ResolvedBaseline(config, tuple(notes))


def _fill_in_auto(values: dict[str, JsonValue], model: ModelSpec | None, notes: list[str]) -> dict[str, JsonValue]:
    """Fill in the values `"auto"` of a DeepSpeed JSON, which may stand alone or within a file of the Trainer or of
    Accelerate."""
    named_tool = values.get("tool")
    nested, config = values.get("deepspeed"), values.get("deepspeed_config")
    without_tool = {key: value for key, value in values.items() if key != "tool"}
    if isinstance(nested, dict):
        tool = "trainer" if named_tool is None else auto.tool_of(named_tool, nested)
        return without_tool | {"deepspeed": auto.fill_in(nested, tool, model, notes)}
    if isinstance(config, dict) and isinstance(inner := config.get("deepspeed_config_file"), dict):
        tool = "accelerate" if named_tool is None else auto.tool_of(named_tool, inner)
        return without_tool | {
            "deepspeed_config": {**config, "deepspeed_config_file": auto.fill_in(inner, tool, model, notes)}
        }
    return auto.fill_in(without_tool, auto.tool_of(named_tool, without_tool), model, notes)


def _gives_batch(top: Section) -> bool:
    return any(
        key in top for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )


def _validate_own(values: dict[str, JsonValue]) -> TrialConfig:
    """Validate a baseline in Shardtune's own format a second time, only to get its error message."""
    try:
        # The study's schema takes any object for a baseline, since most belong to other tools, and so cannot name the
        # fault.
        return TrialConfig.model_validate(values if "strategy" in values else {"strategy": values})
    except ValidationError as error:
        raise in_words(error, "baseline", "docs/reference/search-space.md") from error


def _check_against_cluster(config: TrialConfig, workload: Workload, cluster: Cluster, model: ModelSpec | None) -> None:
    try:
        sample_groups.check(config, cluster, workload, model)
        # A model that only a worker can trace is checked by the worker.
        if model is not None and (shape := config_shape.shape_if_known(model.trained_config)) is not None:
            strategy = config.strategy
            split = strategy.model_parallel // strategy.stages
            tensor_parallel.check_widths(split, config.context_parallel, *shape.tensor)
            pipeline_parallel.check_blocks(strategy.stages, *shape.pipeline, strategy.virtual_stages)
            if shape.tied:
                pipeline_parallel.check_tied(strategy.stages, workload.optimizer)
            sample_groups.check_experts(config, *shape.divisible_experts)
    except ValueError as error:
        raise ValueError(f"baseline.{error}") from None
    try:
        accumulation = config.accumulation(workload.global_batch, cluster.world_size)
        config.strategy.check_cluster(cluster, workload.precision, accumulation)
    except ValueError as error:
        raise ValueError(f"baseline {error}") from None
