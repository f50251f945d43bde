"""Changes that make a model fit where no configuration of the search space surely does."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies import recipes
from shardtune.api_schemas.training.search_space import KnobValue, SpaceLimits
from shardtune.api_schemas.trials.predictions import Prediction
from shardtune.tuner.prediction.calibration import Calibrations
from shardtune.tuner.prediction.prediction_request import ResolvedRequest

Search = Callable[[ResolvedRequest, Calibrations, int], tuple[Prediction, ...]]
"""Function that finds the fastest configurations of a request, such as `fastest.fastest_configs`."""

_AXES = {
    "context_parallel": "share each sequence among {} ranks",
    "tensor_parallel": "split each block over {} ranks",
    "pipeline_parallel": "split the model into {} stages",
}
"""Mesh axes that the search uses only if a study names them, each with the description of a remedy that uses it."""
_INPUTS_ON_HOST: dict[str, KnobValue] = {"activation_offload": True, "activation_checkpointing": "full"}
"""Limits on the search space that make every configuration keep the inputs of checkpointed blocks in host memory."""
_LIGHTEST: dict[str, KnobValue] = {"activation_checkpointing": "full", "micro_batch": 1}
"""Limits on the search space that leave only configurations that keep the fewest bytes for backward. If none of these
fits, no configuration does, and searching them alone takes a tenth of the time."""
_RECIPES = ("adamw-8bit", "adamw-bf16")
"""Recipes that keep fewer bytes for each trained weight. They change what is trained, so they are the last remedy."""
_DEGREES = (2, 4, 8, 16)
_AMONG = 10
"""Number of fastest configurations among which one that surely fits in memory is sought."""
_IN_DOUBT = 0.5
"""Fraction of the memory that a rank may use; a configuration that is expected to need at most this fraction is far
from the limit."""
_MOST_TIMES = 8
"""Maximum factor by which the cluster is enlarged to see whether the model would fit then."""


def are_needed(predictions: tuple[Prediction, ...], usable_gib: float) -> bool:
    """Whether changes that save memory (levers) must be suggested: no configuration surely fits, and each is expected
    to need a large part of the memory. A configuration that needs little and is still in doubt has a wide band of
    predicted memory, which no change narrows."""
    return not any(
        item.memory.verdict == "fits" or item.memory.total_gib <= _IN_DOUBT * usable_gib for item in predictions
    )


def find(resolved: ResolvedRequest, calibrations: Calibrations, search: Search) -> tuple[str, ...]:
    """Return the changes (levers) that would make the model fit, each as a sentence with a configuration that then
    surely fits; empty where none helps."""
    words = (
        _first_that_fits(resolved, calibrations, search, attempts)
        for attempts in (
            _without_limits(resolved),
            _with_inputs_on_host(resolved),
            *map(_with_axis(resolved), _AXES),
            _with_more_devices(resolved),
            _with_other_recipe(resolved),
        )
    )
    return tuple(text for text in words if text is not None)


def _first_that_fits(
    resolved: ResolvedRequest,
    calibrations: Calibrations,
    search: Search,
    attempts: Iterator[tuple[str, ResolvedRequest]],
) -> str | None:
    for words, changed in attempts:
        try:
            if not _lightest_fits(changed, calibrations, search):
                continue
            fitting = _fitting(search(changed, calibrations, _AMONG))
        # The axis does not divide this model, sequence or cluster.
        except ValueError:
            continue
        if fitting is not None:
            return f"{words}: {fitting.description} fits with {memory(fitting.memory.total_gib)}"
    return None


def _lightest_fits(resolved: ResolvedRequest, calibrations: Calibrations, search: Search) -> bool:
    """Whether one of the configurations that use least memory surely fits; also true where the study's space has no
    such configuration."""
    limits = resolved.request.space
    narrowed = limits.model_copy(update={"knobs": _LIGHTEST | limits.knobs})
    try:
        return _fitting(search(_limited(resolved, narrowed), calibrations, _AMONG)) is not None
    except ValueError:
        return True


def _fitting(predictions: tuple[Prediction, ...]) -> Prediction | None:
    """Return the first configuration whose prediction surely fits in memory; None where none does."""
    return next((item for item in predictions if item.memory.verdict == "fits"), None)


def _without_limits(resolved: ResolvedRequest) -> Iterator[tuple[str, ResolvedRequest]]:
    limits = resolved.request.space
    named = [*limits.knobs, *(["backends"] if limits.backends != SpaceLimits().backends else [])]
    if named:
        yield f"drop the study's limits on {', '.join(named)} (space)", _limited(resolved, SpaceLimits())


def _with_inputs_on_host(resolved: ResolvedRequest) -> Iterator[tuple[str, ResolvedRequest]]:
    limits = resolved.request.space
    if "activation_offload" not in limits.knobs:
        narrowed = limits.model_copy(update={"knobs": limits.knobs | _INPUTS_ON_HOST})
        named = json.dumps(_INPUTS_ON_HOST)
        words = f'keep the inputs of checkpointed blocks in host memory ("space": {{"knobs": {named}}})'
        yield words, _limited(resolved, narrowed)


def _with_axis(resolved: ResolvedRequest) -> Callable[[str], Iterator[tuple[str, ResolvedRequest]]]:
    limits = resolved.request.space

    def attempts(axis: str) -> Iterator[tuple[str, ResolvedRequest]]:
        for degree in _DEGREES:
            if degree <= resolved.cluster.world_size and axis not in limits.knobs:
                narrowed = limits.model_copy(update={"knobs": limits.knobs | {axis: degree}})
                words = f'{_AXES[axis].format(degree)} ("space": {{"knobs": {{"{axis}": {degree}}}}})'
                yield words, _limited(resolved, narrowed)

    return attempts


def _with_more_devices(resolved: ResolvedRequest) -> Iterator[tuple[str, ResolvedRequest]]:
    times = 2
    while times <= _MOST_TIMES:
        cluster = resolved.cluster.model_copy(update={"nodes": resolved.cluster.nodes * times})
        request = resolved.request.model_copy(update={"global_batch": resolved.global_batch * times})
        yield f"{times} times the hardware ({_size(cluster)})", replace(resolved, cluster=cluster, request=request)
        times *= 2


def _with_other_recipe(resolved: ResolvedRequest) -> Iterator[tuple[str, ResolvedRequest]]:
    workload = resolved.workload(resolved.global_batch)
    # A script of the user's applies optimizer and dtypes itself.
    for name in _RECIPES if resolved.request.model.script is None else ():
        if recipes.is_stated(workload, name):
            continue
        try:
            changed = recipes.changed(workload, name)
        # The recipe cannot train this workload, such as float16 or an adapter.
        except ValueError:
            continue
        request = resolved.request.model_copy(update={"optimizer": changed.optimizer})
        # Not `consider`: a study compares recipes with its answer, and has none where nothing fits.
        stated = {"optimizer": name}
        if changed.precision != workload.precision:
            stated["precision"] = changed.precision.name
        words = f'train something else, {changed.optimizer.title} ("workload": {json.dumps(stated)})'
        yield words, replace(resolved, precision=changed.precision, request=request)


def _size(cluster: Cluster) -> str:
    return f"{cluster.nodes} × {cluster.gpus_per_node} {cluster.gpu}"


def _limited(resolved: ResolvedRequest, limits: SpaceLimits) -> ResolvedRequest:
    return replace(resolved, request=resolved.request.model_copy(update={"space": limits}))
