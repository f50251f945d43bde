"""Ranks that split a model: searched where the user asks, with the reason where they may not."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.search_space import KnobValue, Limit, SpaceLimits
from shardtune.tuner import baseline
from shardtune.tuner.search import seeds
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import TINY, WORKLOAD, cpu, gpus, space_of

Named = KnobValue | tuple[KnobValue, ...] | Limit
FOUR = TINY.model_copy(update={"context_heads": 4, "tensor_divisor": 4})


TWO = preset("llama-tiny").model_copy(update={"config": preset("llama-tiny").config | {"num_key_value_heads": 2}})
MODELS = {"llama-tiny, 2 heads of keys": TWO}


def space_for(sizes: Named, ranks: int = 4, others: dict[str, Named] | None = None, **model_summary: Any) -> Space:
    limits = SpaceLimits(backends=("fsdp2",), knobs={"tensor_parallel": sizes, **(others or {})})
    return build(WORKLOAD, cpu(ranks), FOUR.model_copy(update=model_summary), limits)


def fsdp2(config: TrialConfig) -> Fsdp2Config:
    assert isinstance(config.strategy, Fsdp2Config)
    return config.strategy


def test_nothing_is_split_unless_the_user_asks() -> None:
    for cluster in (cpu(4), gpus(2, 4)):
        space = space_of(cluster, model_summary=FOUR)
        assert {config.strategy.model_parallel for config in space.lightest()} == {1}


def test_meshes_multiply_up_and_the_global_batch_stays_the_same() -> None:
    context: dict[str, Named] = {"context_parallel": (1, 2)}
    configs = list(space_for((1, 2, 4), others=context | {"micro_batch": (1, 2)}).lightest())
    meshes = {(c.context_parallel, fsdp2(c).dp_replicate, fsdp2(c).dp_shard, fsdp2(c).tensor_parallel) for c in configs}
    assert meshes == {
        *((1, *mesh) for mesh in ((4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4))),
        *((2, *mesh) for mesh in ((4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2))),
    }
    for config in configs:
        groups = config.data_ranks(4)
        assert groups * config.micro_batch * config.accumulation(16, 4) == WORKLOAD.global_batch == 16
        config.strategy.check_ranks(4)


def test_a_group_stays_within_a_host_unless_the_user_names_a_larger_one() -> None:
    model_summary = FOUR.model_copy(update={"tensor_divisor": 8})
    actual = []
    for limit in (Limit(min=1), (2, 8)):
        space = build(WORKLOAD, gpus(2, 4), model_summary, SpaceLimits(knobs={"tensor_parallel": limit}))
        actual.append({config.strategy.model_parallel for config in space.lightest() if config.backend == "fsdp2"})
    assert actual == [{1, 2, 4}, {2, 8}]


def test_a_search_begins_with_split_models_where_only_these_are_allowed() -> None:
    starts = [config for config, _ in seeds.seed_configs(space_for(2), cpu(4), None)]
    assert [fsdp2(config) for config in starts] == [Fsdp2Config(dp_shard=2, tensor_parallel=2)]


def test_each_configuration_is_its_own_canonical_form() -> None:
    space = space_for((1, 2))
    configs = list(space.enumerate())
    assert len({space.key(config) for config in configs}) == len(configs)


@pytest.mark.parametrize(
    ("sizes", "changes", "why"),
    [
        (3, {}, "the values here are 1, 2, 4"),
        (4, {"tensor_divisor": 2}, "tensor_parallel (4) does not come out: it must divide heads, heads of keys"),
        (
            2,
            {"tensor_divisor": 1, "tensor_note": "transformers has no plan"},
            "is not for this model: transformers has",
        ),
        (2, {"tensor_divisor": None}, "only for models whose plan a worker has looked at"),
    ],
    ids=["ranks", "heads", "no plan", "unknown"],
)
def test_limits_that_leave_nothing_say_why(sizes: int, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r"space.knobs.tensor_parallel \(\d\) leaves nothing to search") as rejected:
        space_for(sizes, **changes)
    assert why in str(rejected.value)


@pytest.mark.parametrize(
    ("strategy", "changes", "model", "why"),
    [
        ({"dp_shard": 4, "tensor_parallel": 2}, {}, "llama-tiny", "must equal the number of ranks (4)"),
        (
            {"dp_shard": 1, "tensor_parallel": 3},
            {},
            "llama-tiny",
            "tensor_parallel (3) must divide the number of ranks (4)",
        ),
        (
            {"dp_shard": 2, "tensor_parallel": 2},
            {"context_parallel": 4},
            "llama-tiny",
            "tensor_parallel (2) times context_parallel (4) must divide the number of ranks (4)",
        ),
        ({"dp_shard": 2, "tensor_parallel": 2}, {}, "gpt2-tiny", "transformers has no plan"),
        ({"dp_shard": 2, "tensor_parallel": 2}, {}, "mixtral-tiny", "no style of torch"),
        ({"dp_shard": 1, "tensor_parallel": 4}, {}, "llama-tiny, 2 heads of keys", "heads of keys and split widths"),
    ],
    ids=["mesh", "ranks", "times context", "no plan", "experts", "heads"],
)
def test_a_baseline_is_rejected_alike(strategy: dict[str, Any], changes: dict[str, Any], model: str, why: str) -> None:
    trial_config = TrialConfig.model_validate({"strategy": {"kind": "fsdp2", **strategy}, **changes})
    with pytest.raises(ValueError, match="baseline") as rejected:
        baseline.resolve(trial_config, WORKLOAD, cpu(4), MODELS.get(model) or preset(model))
    assert why in str(rejected.value)


def test_a_model_of_your_own_is_not_split() -> None:
    trial_config = TrialConfig(strategy=Fsdp2Config(dp_shard=2, tensor_parallel=2))
    with pytest.raises(ValueError, match="your own code makes this one"):
        baseline.resolve(
            trial_config, WORKLOAD, cpu(4), preset("llama-tiny").model_copy(update={"entry_point": "mine"})
        )


def test_what_is_split_is_not_compiled() -> None:
    with pytest.raises(ValueError, match=r"compile \(true\) with tensor_parallel \(2\)"):
        TrialConfig(strategy=Fsdp2Config(dp_shard=1, tensor_parallel=2), compile=True)
