"""Ranks that share samples: searched where the user asks, with the reason where they may not."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.search_space import KnobValue, Limit, SpaceLimits
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner import baseline
from shardtune.tuner.search import seeds
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import TINY, WORKLOAD, cpu, gpus, space_of

Named = KnobValue | tuple[KnobValue, ...] | Limit
FOUR = TINY.model_copy(update={"context_heads": 4})


def space_for(sizes: Named, ranks: int = 4, workload: Workload = WORKLOAD, **model_summary: Any) -> Space:
    limits = SpaceLimits(backends=("ddp",), knobs={"context_parallel": sizes})
    return build(workload, cpu(ranks), FOUR.model_copy(update=model_summary), limits)


def test_nothing_is_shared_unless_the_user_asks() -> None:
    for cluster in (cpu(4), gpus(2, 4)):
        space = space_of(cluster, model_summary=FOUR)
        assert {config.context_parallel for config in space.lightest()} == {1}


def test_the_global_batch_stays_the_same() -> None:
    """Twice as many ranks to a sample leave half as many groups, so each may take twice as many samples."""
    actual = {(config.context_parallel, config.micro_batch) for config in space_for((1, 2, 4)).enumerate()}
    assert actual == {(1, 1), (1, 2), (1, 4)} | {(2, size) for size in (1, 2, 4, 8)} | {
        (4, size) for size in (1, 2, 4, 8, 16)
    }
    config = TrialConfig(strategy=DdpConfig(), context_parallel=2, micro_batch=2)
    assert (config.data_ranks(4), config.accumulation(16, 4)) == (2, 4)


def test_a_search_begins_with_shared_samples_where_only_these_are_allowed() -> None:
    starts = [config for config, _ in seeds.seed_configs(space_for(2), cpu(4), None)]
    assert starts and {config.context_parallel for config in starts} == {2}


def test_what_is_searched_only_where_it_is_named_is_no_repeat_of_its_default() -> None:
    named = {"context_parallel": (1, 2), "numa_binding": ("none", "node"), "max_connections": (0, 1)}
    space = build(WORKLOAD, gpus(1, 4), FOUR, SpaceLimits(backends=("ddp",), knobs=named, allow_compile=False))
    configs = list(space.enumerate())
    assert len({space.key(config) for config in configs}) == len(configs)
    assert all(space.canonical(config) == config for config in configs)


@pytest.mark.parametrize(
    ("sizes", "changes", "why"),
    [
        (3, {}, "the values here are 1, 2, 4"),
        (
            2,
            {"workload": WORKLOAD.model_copy(update={"sequence_length": 33})},
            "must divide workload.sequence_length (33)",
        ),
        (2, {"workload": WORKLOAD.model_copy(update={"attention": "eager"})}, "not of workload.attention ('eager')"),
        (4, {"context_heads": 2}, "context_parallel (4) must divide the heads of queries and of keys"),
        (
            2,
            {"context_heads": 1, "context_note": "it has recurrent layers"},
            "is not for this model: it has recurrent layers",
        ),
        (2, {"context_heads": None}, "only for models whose attention a worker has looked at"),
    ],
    ids=["ranks", "sequence", "attention", "heads", "recurrent", "unknown"],
)
def test_limits_that_leave_nothing_say_why(sizes: int, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r"space.knobs.context_parallel \(\d\) leaves nothing to search") as rejected:
        space_for(sizes, **changes)
    assert why in str(rejected.value)


@pytest.mark.parametrize(
    ("size", "model", "why"),
    [
        (
            3,
            preset("llama-tiny"),
            "baseline.context_parallel (3) must divide the number of ranks (4); use 1 or a divisor",
        ),
        (2, preset("llama-tiny").model_copy(update={"entry_point": "mine"}), "your own code makes the samples"),
    ],
    ids=["ranks", "own code"],
)
def test_a_baseline_is_rejected_alike(size: int, model: Any, why: str) -> None:
    trial_config = TrialConfig(strategy=DdpConfig(), context_parallel=size)
    with pytest.raises(ValueError, match="context_parallel") as rejected:
        baseline.resolve(trial_config, WORKLOAD, cpu(4), model)
    assert why in str(rejected.value)


def test_what_compiles_shares_no_samples() -> None:
    with pytest.raises(ValueError, match=r"compile \(true\) with context_parallel \(2\)"):
        TrialConfig(strategy=DdpConfig(), context_parallel=2, compile=True)
