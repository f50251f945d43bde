"""Ranks of predicted configurations: those that the predictor cannot tell apart share a rank, the simplest first."""

from collections.abc import Iterable, Iterator, Sequence

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.predictions import Prediction
from shardtune.tuner.search.space.flat import flatten

EQUAL_WITHIN = 0.022
"""Relative error of a comparison of two predicted speeds; predictions that differ by less share a rank. It is the
median difference between predicted and measured speed ratio, for 256 pairs of published runs that are predicted within
5 % of each other: 13 groups of one source, model, GPU and number of ranks (docs/measurements/predictor.md)."""
_BY_SIMPLICITY = ("ddp", "fsdp2", "zero", "fsdp1")
"""Backends in the order in which a user would rather have them; PyTorch deprecates FSDP1."""


def rank(predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """Give each prediction its rank, and put the simplest of each rank first.

    `predictions` are ordered by their verdict on memory (fits, or may fit), and fastest first within a verdict; a rank
    never spans two verdicts.
    """
    ranked: list[Prediction] = []
    for number, group in enumerate(_groups(predictions), start=1):
        ranked += (
            prediction.model_copy(update={"rank": number})
            for prediction in sorted(group, key=lambda prediction: _complexity(prediction.config))
        )
    return tuple(ranked)


def simplest(predictions: Iterable[Prediction]) -> Prediction | None:
    """Return the simplest of the predictions that are as fast as the first (fastest) one within the predictor's error;
    None without any predictions."""
    fastest_group = next(_groups(predictions), [])
    return min(fastest_group, key=lambda prediction: _complexity(prediction.config), default=None)


def simplest_first(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Reorder predictions, given fastest first, so that the simplest of equally fast configurations comes first."""
    ordered: list[Prediction] = []
    for group in _groups(predictions, by_verdict=False):
        ordered += sorted(group, key=lambda prediction: _complexity(prediction.config))
    return ordered


def _groups(predictions: Iterable[Prediction], *, by_verdict: bool = True) -> Iterator[list[Prediction]]:
    """Split predictions, given fastest first, into groups that are as fast as the group's first prediction within the
    predictor's error."""
    group: list[Prediction] = []
    for prediction in predictions:
        if group and not _is_equal(group[0], prediction, by_verdict):
            yield group
            group = []
        group.append(prediction)
    if group:
        yield group


def _is_equal(first: Prediction, other: Prediction, by_verdict: bool) -> bool:
    if (by_verdict and first.memory.verdict != other.memory.verdict) or first.speed is None or other.speed is None:
        return False
    return other.speed.tokens_per_s_per_gpu >= first.speed.tokens_per_s_per_gpu * (1 - EQUAL_WITHIN)


def _complexity(config: TrialConfig) -> tuple[int, int]:
    """Return how complex a configuration is: the number of settings that differ from the backend's own defaults, then
    the backend's place in the order of preference."""
    default = flatten(TrialConfig(strategy=type(config.strategy)(**_required_fields(config))))
    settings = flatten(config)
    changed = sum(settings[name] != default.get(name) for name in settings if name != "micro_batch")
    return changed, _BY_SIMPLICITY.index(config.backend)


def _required_fields(config: TrialConfig) -> dict[str, object]:
    """Return the values of the strategy's fields that have no default, such as the number of ranks that a mesh shards
    over."""
    fields = type(config.strategy).model_fields
    return {name: getattr(config.strategy, name) for name, field in fields.items() if field.is_required()}
