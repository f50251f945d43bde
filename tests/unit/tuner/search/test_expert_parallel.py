"""Ranks that divide experts: searched where the user asks, with the reason where none may."""

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
MIXTURE = TINY.model_copy(
    update={"context_heads": 4, "pipeline_blocks": 4, "experts": 4, "expert_width": 2, "expert_note": None}
)


def space_for(sizes: Named, ranks: int = 4, others: dict[str, Named] | None = None, **model_summary: Any) -> Space:
    limits = SpaceLimits(backends=("fsdp2",), knobs={"expert_parallel": sizes, **(others or {})})
    return build(WORKLOAD, cpu(ranks), MIXTURE.model_copy(update=model_summary), limits)


def fsdp2(config: TrialConfig) -> Fsdp2Config:
    assert isinstance(config.strategy, Fsdp2Config)
    return config.strategy


def test_no_experts_are_divided_unless_the_user_asks() -> None:
    for cluster in (cpu(4), gpus(2, 4)):
        assert {config.strategy.expert_ranks for config in space_of(cluster, model_summary=MIXTURE).lightest()} == {1}


def test_meshes_multiply_up_and_accumulation_stays() -> None:
    space = space_for((1, 2, 4), others={"pipeline_parallel": (1, 2), "micro_batch": 2, "context_parallel": (1, 2)})
    configs = list(space.enumerate())
    actual = {(fsdp2(c).expert_parallel, c.strategy.stages, fsdp2(c).dp_replicate, fsdp2(c).dp_shard) for c in configs}
    assert actual == {
        *((1, 1, *mesh) for mesh in ((4, 1), (2, 2), (1, 4))),
        *((1, 2, *mesh) for mesh in ((2, 1), (1, 2))),
        *((2, 1, *mesh) for mesh in ((2, 2), (1, 4))),
        (4, 1, 1, 4),
        (2, 2, 1, 2),
    }
    for config in configs:
        accumulation = config.accumulation(WORKLOAD.global_batch, 4)
        assert config.data_ranks(4) * config.micro_batch * accumulation == WORKLOAD.global_batch
        config.strategy.check_ranks(4)
        assert not config.compile


def test_what_a_rank_has_of_the_experts_comes_out_over_the_others() -> None:
    """8 experts over 8 ranks: whole ones, or parts of each where their rows allow it."""
    shards = {fsdp2(c).dp_shard for c in space_for(4, ranks=8, others={"micro_batch": 1}).enumerate()}
    assert shards == {4, 8}, "one expert each, of whose rows two ranks have a half"
    odd = {fsdp2(c).dp_shard for c in space_for(4, ranks=8, others={"micro_batch": 1}, expert_width=3).enumerate()}
    assert odd == {4}


def test_a_search_begins_with_divided_experts_where_only_these_are_allowed() -> None:
    starts = [config for config, _ in seeds.seed_configs(space_for(2), cpu(4), None)]
    assert {fsdp2(config).expert_parallel for config in starts} == {2}


def test_each_configuration_is_its_own_canonical_form() -> None:
    space = space_for((1, 2), others={"micro_batch": 1})
    configs = list(space.enumerate())
    assert len({space.key(config) for config in configs}) == len(configs)


@pytest.mark.parametrize(
    ("sizes", "changes", "why"),
    [
        (3, {}, "the values here are 1, 2, 4"),
        (4, {"experts": 2}, "expert_parallel (4) must divide the experts of a layer (2)"),
        (2, {"experts": 1, "expert_note": "it has no experts"}, "not for this model: it has no experts"),
        (2, {"experts": None}, "only for models whose experts a worker has looked at"),
    ],
    ids=["ranks", "experts", "note", "unknown"],
)
def test_limits_that_leave_nothing_say_why(sizes: int, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r"space.knobs.expert_parallel \(\d\) leaves nothing to search") as rejected:
        space_for(sizes, **changes)
    assert why in str(rejected.value)


@pytest.mark.parametrize(
    ("strategy", "model", "why"),
    [
        ({"dp_shard": 4, "expert_parallel": 2}, "llama-tiny", "is not for this model: it has no experts; use 1"),
        ({"dp_shard": 2, "dp_replicate": 2, "expert_parallel": 4}, "mixtral-tiny", "must divide dp_shard (2)"),
        ({"dp_shard": 2, "tensor_parallel": 2, "expert_parallel": 2}, "mixtral-tiny", "with tensor_parallel (2)"),
        ({"dp_shard": 3, "expert_parallel": 3}, "mixtral-tiny", "must divide the experts of a layer (4)"),
    ],
    ids=["dense", "mesh", "tensor", "experts"],
)
def test_a_baseline_is_rejected_alike(strategy: dict[str, Any], model: str, why: str) -> None:
    ranks = 3 if strategy["dp_shard"] == 3 else 4
    workload = WORKLOAD.model_copy(update={"global_batch": 4 * ranks})
    with pytest.raises(ValueError, match=r"baseline.*expert_parallel \(\d\)") as rejected:
        baseline.resolve({"strategy": {"kind": "fsdp2", **strategy}}, workload, cpu(ranks), preset(model))
    assert why in str(rejected.value)


def test_code_of_ones_own_is_rejected() -> None:
    trial_config = TrialConfig(strategy=Fsdp2Config(dp_shard=4, expert_parallel=2))
    with pytest.raises(ValueError, match="your own code makes this one"):
        baseline.resolve(
            trial_config, WORKLOAD, cpu(4), preset("mixtral-tiny").model_copy(update={"entry_point": "mine"})
        )


def test_what_divides_experts_is_not_compiled() -> None:
    with pytest.raises(ValueError, match=r"compile \(true\) with expert_parallel \(2\)"):
        TrialConfig(strategy=Fsdp2Config(dp_shard=2, expert_parallel=2), compile=True)
