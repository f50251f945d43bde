"""Predict all configurations of a request: a table with a row for each."""

from shardtune.api_schemas.machines import networks
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig, losses, optimizer_support
from shardtune.api_schemas.strategies.fields import memory_budget, mlp_slices, selective_keeps
from shardtune.api_schemas.strategies.recipe_support import float8_support, fp16_support, lora_support
from shardtune.api_schemas.trials.predictions import Prediction, PredictionTable
from shardtune.tuner.prediction import neighbours
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, Calibrations
from shardtune.tuner.prediction.predict import predict_each
from shardtune.tuner.prediction.prediction_request import ResolvedRequest
from shardtune.tuner.prediction.shapes import calibration_choice


def predict_all(
    resolved: ResolvedRequest, calibrations: Calibrations = NO_CALIBRATIONS, *, compiled: bool = False
) -> PredictionTable:
    """Predict one row of the table for each configuration of a request. If the request names no configuration, there is
    a row for each strategy, compiled where `compiled` is true and its blocks can be.

    Raises:
        ValueError: a configuration of the request is illegal for its workload or its cluster; names the field, its value
            and the remedy.
    """
    request, cluster = resolved.request, resolved.cluster
    configs = request.configs or tuple(
        config.model_copy(
            update={
                "activation_checkpointing": request.checkpointing,
                "compile": compiled and lora_support.can_compile(config.backend, request.adapter),
            }
        )
        for config in neighbours.default_configs(cluster, request.micro_batch)
        if config.backend in request.space.backends
        and optimizer_support.can_train(config, request.optimizer)
        and float8_support.can_train(config, request.float8)
        and lora_support.can_train(config, request.adapter)
        and fp16_support.can_train(config, resolved.workload(resolved.global_batch))
    )
    rows = _predict_rows(resolved, configs, calibrations)
    _check_trials(resolved)
    return PredictionTable(
        model=request.model.name,
        parameters=resolved.shape.parameters,
        cluster=cluster,
        sequence_length=resolved.sequence,
        precision=resolved.precision.name,
        precision_note=resolved.precision_note,
        optimizer=request.optimizer.kind,
        float8=request.float8,
        adapter=request.adapter.describe() if request.adapter else None,
        trained_parameters=resolved.shape.trained_parameters if request.adapter else None,
        matrix_parameters=resolved.shape.matrix_parameters,
        predictions=rows,
        batch_counts="packed rows" if request.data is not None and request.data.is_packed else "samples",
        strategies_global_batch=None if request.configs else resolved.global_batch,
        strategies_compiled=compiled and not request.configs,
        notes=(*resolved.notes(), *_leaf_notes(cluster), *_uncompiled_notes(configs, compiled and not request.configs)),
    )


def _leaf_notes(cluster: Cluster) -> tuple[str, ...]:
    """Note on the leaf switches of a cluster of several nodes; empty if it states none."""
    note = networks.leaf_switches_note(cluster.nodes_per_leaf, cluster.oversubscription) if cluster.nodes > 1 else None
    return () if note is None else (note,)


def _check_trials(resolved: ResolvedRequest) -> None:
    """Reject configurations of a request that no trial of its model on its cluster could run, such as DeepCompile on CPU
    ranks, or MLPs in slices, a budget of activations or a choice of kept results in the user's own code."""
    request = resolved.request
    for config in request.configs:
        # `predict` cannot check these: a shape does not say whether the user's own code computes them.
        losses.check(config.loss, request.model)
        mlp_slices.check_training(config.mlp_slices, config.backend, request.model, request.float8, request.adapter)
        memory_budget.check_training(config.activation_memory_budget, request.model, request.float8, request.adapter)
        selective_keeps.check_training(
            config.selective_keeps, request.model, request.attention, request.float8, request.adapter
        )
        accumulation = config.accumulation(resolved.batch_of(config), resolved.cluster.world_size)
        config.strategy.check_cluster(resolved.cluster, resolved.precision, accumulation)


def _predict_rows(
    resolved: ResolvedRequest, configs: tuple[TrialConfig, ...], calibrations: Calibrations
) -> tuple[Prediction, ...]:
    """Predict the configurations in their order; those with the same global batch are predicted in one call."""
    batches = [resolved.batch_of(config) for config in configs]
    rows: dict[int, Prediction] = {}
    for batch in dict.fromkeys(batches):
        places = [place for place, other in enumerate(batches) if other == batch]
        predictions = predict_each(
            resolved.shape,
            resolved.workload(batch),
            resolved.cluster,
            tuple(configs[place] for place in places),
            calibration_choice.memory_calibration(calibrations, resolved.shape),
            calibration_choice.speed_calibration(calibrations, resolved.shape),
            measured=resolved.request.hardware,
        )
        rows |= dict(zip(places, predictions, strict=True))
    return tuple(rows[place] for place in range(len(configs)))


def _uncompiled_notes(configs: tuple[TrialConfig, ...], compiled: bool) -> tuple[str, ...]:
    """Notes on the strategies that cannot be compiled, in a table whose other strategies are predicted with
    compilation."""
    eager = [config.backend for config in configs if compiled and not config.compile]
    return tuple(lora_support.why_not_compiled(backend) for backend in dict.fromkeys(eager))
