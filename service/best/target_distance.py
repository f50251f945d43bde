"""Decide whether a recommendation for one tuning target (model, workload, cluster) may be returned for another target,
and with what confidence.

Never for another architecture or another optimizer, or for a model of more than twice or less than half the parameters. Other differences in
model, cluster or software give low confidence; such a recommendation is returned only if the request accepts low
confidence.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.api_schemas.recommendations.tuning_targets import Flat

MAX_SIZE_RATIO = 2.0
"""Maximum ratio between the numbers of parameters of two models (the larger by the smaller) at which a recommendation
for one may be used for the other.
"""
_MINOR = ("workload.optimizer", "workload.max_grad_norm")
"""Fields of a tuning target (model, workload, cluster) that hardly affect speed and memory, so that targets may
differ in them.
"""
_RECIPE = ("workload.optimizer.kind", "workload.precision.master_dtype", "workload.float8")
_ADAPTER = "workload.adapter"
_DATA = "workload.data."
_WEIGHTS = {"model": 100, "cluster": 10, "workload": 1}
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_FEED_FORWARD = ("intermediate_size", "n_inner", "ffn_dim")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_FEED_FORWARD_RATIO = 4
"""Assumed ratio of feed-forward width to hidden size for a model config that contains no feed-forward width."""


def distance(names: Collection[str]) -> int:
    """Distance of two tuning targets (model, workload, cluster): the sum of the weights of the fields in which they
    differ.
    """
    return sum(0 if name.startswith(_MINOR) else _WEIGHTS[name.split(".")[0]] for name in names)


def is_far(names: Collection[str]) -> bool:
    """Whether two tuning targets (model, workload, cluster) differ in more than the workload, so that a recommendation
    for one has only low confidence for the other.
    """
    return distance(names) >= _WEIGHTS["cluster"]


def may_stand_in(requested: Flat, measured: Flat, names: Sequence[str], lowest: ConfidenceLevel) -> bool:
    """Whether the recommendation of the measured tuning target (model, workload, cluster) may be returned for the
    requested target at this minimum confidence.
    """
    if any(name in _RECIPE or name.startswith(_ADAPTER) for name in names):
        # Another optimizer, adapter, float8 or dtype of states trains something else, keeps other states and cannot be trained by
        # every backend.
        return False
    if any(name.startswith(_DATA) for name in names) and lowest is not ConfidenceLevel.LOW:
        return False
    if _states_lengths(requested) != _states_lengths(measured):
        # Speeds count other tokens, and no rank of samples of several lengths may share them.
        return False
    if lowest is ConfidenceLevel.HIGH or (is_far(names) and lowest is not ConfidenceLevel.LOW):
        return False
    sizes = [_approximate_parameters(case) for case in (requested, measured)]
    if None in sizes:
        # A user's own model: its size is unknown, so it must be the same model.
        return not any(name.startswith("model.") for name in names)
    return max(sizes) <= MAX_SIZE_RATIO * min(sizes)  # type: ignore[type-var, operator]


def _states_lengths(case: Flat) -> bool:
    return any(name.startswith(_DATA) for name in case)


def _approximate_parameters(case: Flat) -> float | None:
    """Approximate number of parameters of a transformers model; None if the model's config lacks the dimensions
    needed.
    """
    hidden, layers = _first_positive(case, _HIDDEN), _first_positive(case, _LAYERS)
    if hidden is None or layers is None:
        return None
    feed_forward_width = _first_positive(case, _FEED_FORWARD) or _FEED_FORWARD_RATIO * hidden
    # Gated feed-forward layers have three matrices, attention four; enough to compare sizes within a factor of two.
    block = 4 * hidden * hidden + 3 * hidden * feed_forward_width * (_first_positive(case, _EXPERTS) or 1)
    return layers * block + hidden * (_first_positive(case, ("vocab_size",)) or 0)


def _first_positive(case: Mapping[str, Any], names: Sequence[str]) -> float | None:
    values = (case.get(f"model.{name}") for name in names)
    return next((value for value in values if isinstance(value, int | float) and value > 0), None)
