"""How far the answer of another case may be from the one asked for, and how much less it is to be trusted.

Too far is never given: another architecture, or a model of more than twice or less than half the parameters. What
differs in model, cluster or software beyond that has low confidence, and is given to who asks for it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.api_schemas.recommendations.tuning_targets import Flat

MOST_TIMES = 2.0
"""The larger of two models over the smaller, in parameters."""
_MINOR = ("workload.optimizer", "workload.max_grad_norm")
"""Fields that hardly change speed and memory."""
_WEIGHTS = {"model": 100, "cluster": 10, "workload": 1}
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_MIDDLE = ("intermediate_size", "n_inner", "ffn_dim")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_MIDDLE_TIMES = 4
"""Of the hidden size, where a config names no width of the feed-forward part."""


def distance(names: Collection[str]) -> int:
    """Of two cases that differ in these fields."""
    return sum(0 if name.startswith(_MINOR) else _WEIGHTS[name.split(".")[0]] for name in names)


def is_far(names: Collection[str]) -> bool:
    """Whether what is known of the one says little of the other: not the workload alone is different."""
    return distance(names) >= _WEIGHTS["cluster"]


def may_serve(wanted: Flat, found: Flat, names: Sequence[str], lowest: ConfidenceLevel) -> bool:
    """Whether the answer of one case is given for another, where this confidence at least is wanted."""
    if lowest is ConfidenceLevel.HIGH or (is_far(names) and lowest is not ConfidenceLevel.LOW):
        return False
    sizes = [_size(case) for case in (wanted, found)]
    if None in sizes:
        # A model of the user's own: nothing is known of its size but that its configuration is the same.
        return not any(name.startswith("model.") for name in names)
    return max(sizes) <= MOST_TIMES * min(sizes)  # type: ignore[type-var, operator]


def _size(case: Flat) -> float | None:
    """Roughly the parameters of a transformers model; None where its configuration does not say."""
    hidden, layers = _number(case, _HIDDEN), _number(case, _LAYERS)
    if hidden is None or layers is None:
        return None
    middle = _number(case, _MIDDLE) or _MIDDLE_TIMES * hidden
    block = 4 * hidden * hidden + 3 * hidden * middle * (_number(case, _EXPERTS) or 1)
    return layers * block + hidden * (_number(case, ("vocab_size",)) or 0)


def _number(case: Mapping[str, Any], names: Sequence[str]) -> float | None:
    found = (case.get(f"model.{name}") for name in names)
    return next((value for value in found if isinstance(value, int | float) and value > 0), None)
