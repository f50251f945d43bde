"""Stages of a pipeline: searched where the user asks, with the reason where there may be none."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.strategies.pipeline_parallel import blocks_of_stages
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.search_space import KnobValue, Limit, SpaceLimits
from shardtune.tuner import baseline
from shardtune.tuner.search import seeds
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import TINY, WORKLOAD, cpu, gpus, space_of

Named = KnobValue | tuple[KnobValue, ...] | Limit
FOUR = TINY.model_copy(update={"context_heads": 4, "tensor_divisor": 4, "pipeline_blocks": 4})

INTERLEAVED = {"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2}

SPLIT = {"pipeline_virtual_stages": 2, "reshard_after_forward": False, "grad_sync": "last"}
SEVERAL = ("interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v")
"""Schedules with several stages on a rank."""


def space_for(sizes: Named, ranks: int = 4, others: dict[str, Named] | None = None, **model_summary: Any) -> Space:
    limits = SpaceLimits(backends=("fsdp2",), knobs={"pipeline_parallel": sizes, **(others or {})})
    return build(WORKLOAD, cpu(ranks), FOUR.model_copy(update=model_summary), limits)


def fsdp2(config: TrialConfig) -> Fsdp2Config:
    assert isinstance(config.strategy, Fsdp2Config)
    return config.strategy


def test_nothing_is_cut_unless_the_user_asks() -> None:
    for cluster in (cpu(4), gpus(2, 4)):
        assert {config.strategy.stages for config in space_of(cluster, model_summary=FOUR).lightest()} == {1}


def test_meshes_multiply_up_and_every_stage_has_a_micro_batch() -> None:
    configs = list(space_for((1, 2, 4), others={"tensor_parallel": (1, 2), "micro_batch": Limit(min=1)}).enumerate())
    meshes = {(c.strategy.stages, fsdp2(c).tensor_parallel, fsdp2(c).dp_replicate, fsdp2(c).dp_shard) for c in configs}
    assert meshes == {
        *((1, 1, *mesh) for mesh in ((4, 1), (2, 2), (1, 4))),
        *((1, 2, *mesh) for mesh in ((2, 1), (1, 2))),
        *((2, 1, *mesh) for mesh in ((2, 1), (1, 2))),
        (2, 2, 1, 1),
        (4, 1, 1, 1),
    }
    for config in configs:
        accumulation = config.accumulation(WORKLOAD.global_batch, 4)
        assert config.data_ranks(4) * config.micro_batch * accumulation == WORKLOAD.global_batch
        assert accumulation >= config.strategy.stages
        config.strategy.check_ranks(4)
    schedules = {(fsdp2(c).stages, fsdp2(c).pipeline_schedule, fsdp2(c).virtual_stages) for c in configs}
    assert schedules == {
        (1, "1f1b", 1),
        *((stages, schedule, 1) for stages in (2, 4) for schedule in ("1f1b", "gpipe")),
        *((2, schedule, 2) for schedule in SEVERAL),
    }


def test_several_stages_on_a_rank_spread_the_blocks_evenly_and_divide_the_step() -> None:
    """Rounds of 14 samples: 14 micro batches are 7 rounds of 2, 2 are one, 7 would be 3."""
    limits = SpaceLimits(
        backends=("fsdp2",), knobs={"pipeline_parallel": 2, "pipeline_schedule": "interleaved_1f1b", "dp_shard": 1}
    )
    workload = WORKLOAD.model_copy(update={"global_batch": 14})
    configs = list(build(workload, cpu(2), FOUR.model_copy(update={"pipeline_blocks": 12}), limits).enumerate())
    assert {fsdp2(config).virtual_stages for config in configs} == {2, 3, 6}
    assert {config.micro_batch for config in configs} == {1, 7}


def test_stages_may_lie_on_several_hosts() -> None:
    limits = SpaceLimits(backends=("fsdp2",), knobs={"pipeline_parallel": 8})
    space = build(
        WORKLOAD.model_copy(update={"global_batch": 64}),
        gpus(4, 2),
        FOUR.model_copy(update={"pipeline_blocks": 8}),
        limits,
    )
    assert {config.strategy.stages for config in space.lightest()} == {8}


def test_a_search_begins_with_stages_where_only_these_are_allowed() -> None:
    starts = [config for config, _ in seeds.seed_configs(space_for(2), cpu(4), None)]
    assert [fsdp2(config) for config in starts] == [Fsdp2Config(dp_shard=2, pipeline_parallel=2)]


def test_each_configuration_is_its_own_canonical_form() -> None:
    space = space_for((1, 2))
    configs = list(space.enumerate())
    assert len({space.key(config) for config in configs}) == len(configs)


@pytest.mark.parametrize(
    ("sizes", "changes", "why"),
    [
        (3, {}, "the values here are 1, 2, 4"),
        (4, {"pipeline_blocks": 3}, "pipeline_parallel (4) needs a block for each stage, and the model has 3"),
        (2, {"pipeline_blocks": 1, "pipeline_note": "its blocks share parameters"}, "not for this model: its blocks"),
        (2, {"pipeline_blocks": None}, "only for models whose blocks a worker has looked at"),
    ],
    ids=["ranks", "blocks", "note", "unknown"],
)
def test_limits_that_leave_nothing_say_why(sizes: int, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r"space.knobs.pipeline_parallel \(\d\) leaves nothing to search") as rejected:
        space_for(sizes, **changes)
    assert why in str(rejected.value)


@pytest.mark.parametrize(
    ("strategy", "changes", "model", "why"),
    [
        ({"dp_shard": 4, "pipeline_parallel": 2}, {}, "llama-tiny", "must equal the number of ranks (4)"),
        ({"dp_shard": 1, "pipeline_parallel": 3}, {}, "llama-tiny", "pipeline_parallel (3) must divide the number of"),
        (
            {"dp_shard": 2, "pipeline_parallel": 2},
            {"micro_batch": 8},
            "llama-tiny",
            "pipeline_parallel (2) needs as many micro batches in a step, and there are 1; use a smaller micro_batch",
        ),
        ({"dp_shard": 1, "pipeline_parallel": 4}, {}, "two blocks", "and the model has 2; use at most 2"),
        (
            {"dp_shard": 2, "pipeline_parallel": 2, **INTERLEAVED},
            {},
            "two blocks",
            "pipeline_virtual_stages (2) on 2 ranks needs 4 blocks, and the model has 2; use at most 1",
        ),
    ],
    ids=["mesh", "ranks", "micro batches", "blocks", "virtual stages"],
)
def test_a_baseline_is_rejected_alike(strategy: dict[str, Any], changes: dict[str, Any], model: str, why: str) -> None:
    tiny = preset("llama-tiny")
    models = {"two blocks": tiny.model_copy(update={"config": tiny.config | {"num_hidden_layers": 2}})}
    trial_config = TrialConfig.model_validate({"strategy": {"kind": "fsdp2", **strategy}, **changes})
    with pytest.raises(ValueError, match="baseline") as rejected:
        baseline.resolve(trial_config, WORKLOAD, cpu(4), models.get(model) or preset(model))
    assert why in str(rejected.value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"pipeline_virtual_stages": 2}, r"pipeline_virtual_stages \(2\) needs a schedule with several stages"),
        ({"pipeline_schedule": "interleaved_1f1b"}, r"pipeline_schedule \('interleaved_1f1b'\) needs several stages"),
        (
            SPLIT | {"pipeline_schedule": "zbv_zero_bubble", "pipeline_virtual_stages": 3},
            r"pipeline_virtual_stages \(3\) must be 2 under pipeline_schedule 'zbv_zero_bubble'",
        ),
        (SPLIT | {"pipeline_schedule": "dual_pipe_v", "grad_sync": "every"}, "set grad_sync to 'last'"),
        (
            SPLIT | {"pipeline_schedule": "interleaved_zero_bubble", "reshard_after_forward": True},
            "set reshard_after_forward to false",
        ),
    ],
)
def test_a_schedule_has_stages_of_its_own_number(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Fsdp2Config(dp_shard=1, pipeline_parallel=2, **fields)


def test_a_step_that_an_interleaved_schedule_cannot_divide_is_rejected() -> None:
    trial_config = TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2, **INTERLEAVED))
    seven = WORKLOAD.model_copy(update={"global_batch": 7})
    with pytest.raises(ValueError, match=r"takes the micro batches of a step in rounds for 2 ranks, and 7 do not"):
        baseline.resolve(trial_config, seven, cpu(2), preset("llama-tiny"))


def test_dual_pipe_v_needs_two_micro_batches_for_each_rank() -> None:
    trial_config = TrialConfig(
        strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2, pipeline_schedule="dual_pipe_v", **SPLIT)
    )
    three = WORKLOAD.model_copy(update={"global_batch": 3})
    with pytest.raises(ValueError, match=r"'dual_pipe_v'\) needs 2 micro batches in a step for each of 2 ranks"):
        baseline.resolve(trial_config, three, cpu(2), preset("llama-tiny"))


def test_what_goes_backward_twice_keeps_parameters_and_is_not_selectively_recomputed() -> None:
    schedules = ("interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v")
    configs = list(space_for(2, others={"pipeline_schedule": schedules}).enumerate())
    assert {config.activation_checkpointing for config in configs} == {"none", "full"}
    assert {
        (fsdp2(config).reshard_after_forward, fsdp2(config).grad_sync)
        for config in configs
        if config.strategy.stages > 1
    } == {(False, "last")}
    with pytest.raises(ValueError, match=r"goes through each block backward twice.*activation_checkpointing to 'full'"):
        TrialConfig(strategy=fsdp2(configs[0]), activation_checkpointing="selective")


def test_a_model_of_your_own_is_not_cut() -> None:
    trial_config = TrialConfig(strategy=Fsdp2Config(dp_shard=2, pipeline_parallel=2))
    with pytest.raises(ValueError, match="your own code makes this one"):
        baseline.resolve(
            trial_config, WORKLOAD, cpu(4), preset("llama-tiny").model_copy(update={"entry_point": "mine"})
        )


def test_what_is_cut_is_not_compiled() -> None:
    with pytest.raises(ValueError, match=r"compile \(true\) with pipeline_parallel \(2\)"):
        TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2), compile=True)


def test_the_last_stages_have_no_more_blocks_than_the_first() -> None:
    assert [blocks_of_stages(7, 3), blocks_of_stages(4, 4), blocks_of_stages(5, 2)] == [(3, 2, 2), (1, 1, 1, 1), (3, 2)]
