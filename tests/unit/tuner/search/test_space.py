import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, TrialConfig, ZeroConfig, sample_groups
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Workload, gradient_accumulation
from shardtune.tuner.search.space import Space, build
from shardtune.tuner.search.space.backends import zero
from shardtune.tuner.search.space.domains import Domains
from tests.support.values.tuner_inputs import TINY, WORKLOAD, cpu, gpus, llama, space_of, tiny_space

CLUSTERS = [cpu(1), cpu(2), cpu(4), gpus(1, 1), gpus(1, 8), gpus(2, 4)]


def sampled(space: Space, seed: int, count: int) -> list[TrialConfig]:
    """Ends of so many random walks through the space; None where a walk has no end."""
    rng = random.Random(seed)
    drawn = [space.sample(lambda _, values: rng.choice(values)) for _ in range(count)]
    return [config for config in drawn if config is not None]


def draw(space: Space, seed: int, count: int = 40) -> list[TrialConfig]:
    """Configurations of random walks, of which at least half must succeed."""
    drawn_count = sampled(space, seed, count)
    assert len(drawn_count) >= count / 2
    return drawn_count


@given(st.sampled_from(CLUSTERS), st.sampled_from([1, 2, 6]), st.booleans(), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_every_drawn_configuration_is_legal_contained_and_its_own_canonical_form(cluster, per_rank, compiled, seed):
    workload = Workload(sequence_length=64, global_batch=per_rank * cluster.world_size)
    # The second has drawn nothing, and remembers nothing.
    space, other = (build(workload, cluster, TINY, SpaceLimits(allow_compile=compiled)) for _ in range(2))
    for config in draw(space, seed, 10):
        strategy = config.strategy
        accumulation = gradient_accumulation(workload.global_batch, config.micro_batch, cluster.world_size)
        assert space.contains(config)
        assert space.canonical(config) == other.canonical(config) == config
        assert TrialConfig.model_validate(config.model_dump()) == config
        if isinstance(strategy, DdpConfig):
            assert not (strategy.static_graph and accumulation > 1)
        if isinstance(strategy, Fsdp2Config):
            assert strategy.dp_replicate * strategy.dp_shard == cluster.world_size
            assert strategy.grad_sync == "every" or accumulation > 1
        if isinstance(strategy, Fsdp1Config):
            assert strategy.dp_replicate * strategy.dp_shard == cluster.world_size
            strategy.check_accumulation(workload.precision, accumulation)
        if isinstance(strategy, ZeroConfig):
            assert strategy.allgather_bucket_size % 2 == 0
            assert not (strategy.stage == 3 and config.activation_checkpointing == "selective")
            assert cluster.world_size % strategy.zero_hpz_partition_size == 0


@pytest.mark.parametrize(
    ("device", "allowed", "expected"),
    [("cuda", None, {False, True}), ("cuda", False, {False}), ("cpu", None, {False}), ("cpu", True, {False, True})],
)
def test_compiling_is_searched_on_gpus_unless_the_user_says_otherwise(device, allowed, expected):
    space = space_of(gpus() if device == "cuda" else cpu(), SpaceLimits(allow_compile=allowed))
    assert {config.compile for config in draw(space, 3, 60)} == expected


@given(st.sampled_from(CLUSTERS), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_a_configuration_is_rebuilt_from_its_parameters(cluster, seed):
    space = space_of(cluster, workload=Workload(sequence_length=64, global_batch=16))
    for config in draw(space, seed, 10):
        params = {question.param: value for question, value in space.sampler_answers(config)}
        assert space.sample(lambda name, values, params=params: params[name]) == config


def test_a_parameter_name_always_has_the_same_candidates():
    space = space_of(gpus(2, 4))
    candidates: dict[str, tuple] = {}
    rng = random.Random(0)

    def choose(name, values):
        assert candidates.setdefault(name, values) == values
        return rng.choice(values)

    for _ in range(500):
        space.sample(choose)
    assert {"backend", "micro_batch", "ddp.bucket_cap_mb", "fsdp2.reshard_after_forward@8"} <= candidates.keys()


@pytest.mark.parametrize(("nodes", "per_node", "groups"), [(1, 8, (2, 4)), (4, 2, (2, 4)), (2, 6, (2, 3, 6, 4))])
def test_groups_that_fit_into_a_host_come_before_those_that_do_not(nodes, per_node, groups):
    world = nodes * per_node
    domains = Domains(Workload(sequence_length=64, global_batch=world), gpus(nodes, per_node), TINY)
    assert domains.reshard_groups(world) == groups


def test_enumeration_visits_every_configuration_once():
    space = tiny_space()
    everything = list(space.enumerate())
    assert len({config.content_key() for config in everything}) == len(everything) == space.size()
    assert {config.content_key() for config in draw(space, 0, 600)} == {c.content_key() for c in everything}


def parameters_of(space: Space) -> set[str]:
    """Knobs with a choice somewhere in the space."""
    names: set[str] = set()
    rng = random.Random(1)
    for _ in range(600):
        space.sample(lambda name, values: (names.add(name.split("@")[0]), rng.choice(values))[1])
    return names


def test_knobs_that_do_nothing_on_cpu_ranks_are_not_searched():
    names = parameters_of(space_of(cpu(4)))
    inert = {"overlap_comm", "offload_param", "offload_optimizer_pin_memory", "offload_optimizer_ratio"}
    assert not names & {f"zero.{knob}" for knob in inert}
    assert not names & {
        f"fsdp2.{knob}" for knob in ("forward_prefetch", "backward_prefetch", "cpu_offload", "pin_memory")
    }
    assert {"zero.overlap_comm", "fsdp2.forward_prefetch", "fsdp2.cpu_offload"} <= parameters_of(space_of(gpus(1, 4)))


def test_a_fraction_of_offload_whose_moments_no_checkpoint_keeps_is_searched_only_by_name():
    assert "zero.offload_optimizer_ratio" not in parameters_of(space_of(gpus(1, 4)))
    named = SpaceLimits(backends=("zero",), knobs={"offload_optimizer_ratio": [0.5, 1.0], "sub_group_size": [1]})
    assert "zero.offload_optimizer_ratio" in parameters_of(space_of(gpus(1, 4), named))


def test_the_environment_is_searched_where_it_is_known_to_matter():
    def candidates(cluster, cores=None, **knobs):
        limits = SpaceLimits(backends=("ddp",), knobs=knobs)
        drawn = list(build(WORKLOAD, cluster, TINY, limits, cores=cores).enumerate())
        names = ("malloc", "threads", "expandable_segments", "max_connections", "numa_binding")
        return [sorted({getattr(config, name) for config in drawn}) for name in names]

    assert candidates(cpu(2)) == [["default", "keep"], [0], [False], [0], ["none"]]
    assert candidates(cpu(2), cores=2)[1] == [0], "half a core is no thread"
    assert candidates(cpu(2), cores=16)[1] == [0, 4]
    assert candidates(gpus(1, 2), cores=16) == [["default"], [0], [False, True], [0], ["none"]]
    named = {
        "max_connections": [1, 32],
        "threads": [1, 8],
        "malloc": ["default", "keep"],
        "numa_binding": ["node", "none"],
    }
    freed = candidates(gpus(1, 2), **named)
    assert freed == [["default", "keep"], [1, 8], [False, True], [1, 32], ["node", "none"]]


def test_deepcompile_is_searched_on_gpus_where_it_is_named_and_never_beside_compile():
    def drawn(cluster, **knobs):
        limits = SpaceLimits(backends=("zero",), knobs=knobs, allow_compile=True)
        configs = draw(build(WORKLOAD, cluster, TINY, limits), seed=3, count=200)
        return {(config.compile, config.strategy.deepcompile) for config in configs}

    named = {"deepcompile": [False, True]}
    assert drawn(gpus(1, 2), **named) == {(False, False), (False, True), (True, False)}
    assert drawn(gpus(1, 2)) == drawn(cpu(2), **named) == {(False, False), (True, False)}


def test_communication_knobs_need_more_than_one_rank():
    names = parameters_of(space_of(cpu(1)))
    assert not names & {"ddp.bucket_cap_mb", "ddp.grad_sync", "fsdp2.grad_sync", "zero.allgather_bucket_size"}


def test_partial_offload_needs_two_sub_groups_to_split():
    named = {"offload_optimizer_ratio": (0.25, 0.5, 0.75, 1.0)}
    offloaded = [
        config.strategy
        for config in draw(space_of(gpus(), SpaceLimits(backends=("zero",), knobs=named)), 3, 400)
        if config.strategy.offload_optimizer is not None
    ]
    partial = [strategy for strategy in offloaded if strategy.offload_optimizer.ratio < 1]
    assert len(partial) >= 20 and len(offloaded) > 2 * len(partial)
    assert all(strategy.stage == 3 and strategy.sub_group_size < TINY.parameters / 8 for strategy in partial)


def sizes_of(*args, **kwargs):
    return space_of(*args, **kwargs).domains.backend_sizes(zero.ZeroSizes)


def test_sizes_follow_the_model():
    small, large = sizes_of(gpus()), sizes_of(gpus(), model_summary=llama("llama-2-7b"))
    block = llama("llama-2-7b").largest_block
    assert block in large.reduce_bucket_size and 500_000_000 in large.reduce_bucket_size
    assert max(small.reduce_bucket_size) <= TINY.parameters + 1
    assert set(small.stage3_prefetch_bucket_size).isdisjoint(set(large.stage3_prefetch_bucket_size) - {0, 50_000_000})


def test_across_nodes_hpz_groups_stay_within_a_node():
    assert sizes_of(gpus(2, 4)).zero_hpz_partition_size == (1, 2, 4)
    assert sizes_of(gpus(1, 8)).zero_hpz_partition_size == (1, 2, 4)
    assert sizes_of(gpus(1, 2)).zero_hpz_partition_size == (1,)


def test_knobs_without_effect_do_not_tell_configurations_apart():
    space = space_of(cpu())
    overlapping = TrialConfig(strategy=ZeroConfig(stage=2, overlap_comm=True))
    assert space.key(overlapping) == space.key(TrialConfig(strategy=ZeroConfig(stage=2, overlap_comm=False)))
    alone = TrialConfig(strategy=DdpConfig(grad_sync="every"), micro_batch=8)
    assert space.key(alone) == space.key(TrialConfig(strategy=DdpConfig(grad_sync="last"), micro_batch=8))
    assert space.key(alone) != space.key(TrialConfig(strategy=DdpConfig(), micro_batch=4))


def test_limits_pin_list_and_bound_knobs():
    knobs = {"micro_batch": {"max": 4}, "stage": (2, 3), "reduce_bucket_size": 12_346, "dp_shard": 2}
    space = space_of(cpu(), SpaceLimits.model_validate({"backends": ["zero", "fsdp2"], "knobs": knobs}))
    drawn = draw(space, 5, 100)
    assert {config.backend for config in drawn} == {"zero", "fsdp2"}
    assert {config.micro_batch for config in drawn} == {1, 2, 4}
    for config in drawn:
        if isinstance(config.strategy, ZeroConfig):
            assert config.strategy.stage in (2, 3) and config.strategy.reduce_bucket_size == 12_346
        else:
            assert config.strategy.dp_shard == 2


def test_a_range_between_candidates_of_an_open_knob_is_searched_at_its_ends():
    space = space_of(cpu(), SpaceLimits.model_validate({"knobs": {"bucket_cap_mb": {"min": 100, "max": 200}}}))
    caps = {c.strategy.bucket_cap_mb for c in draw(space, 0, 200) if isinstance(c.strategy, DdpConfig)}
    assert caps == {100, 200}


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"microbatch": 1}, ["'microbatch'", "micro_batch"]),
        ({"micro_batch": 3}, ["micro_batch (3)", "1, 2, 4, 8"]),
        ({"dp_shard": 3}, ["dp_shard (3)", "1, 2"]),
        ({"dp_replicate": 5}, ["dp_replicate (5)", "1, 2"]),
        ({"bucket_cap_mb": 5000}, ["bucket_cap_mb (5000)", "at most 4096"]),
        ({"allgather_bucket_size": 1001}, ["1001", "an even integer"]),
        ({"forward_prefetch": {"max": 20}}, ["bound 20", "at most 8"]),
        ({"stage": 0}, ["stage (0)", "at least 1"]),
        ({"overlap_comm": "yes"}, ["overlap_comm ('yes')", "true or false"]),
        ({"activation_checkpointing": ("none", "some")}, ["'some'", "selective"]),
        ({"stage": {"min": 1.5}}, ["stage (1.5)", "whole number"]),
        ({"compile": {"min": 0}}, ["compile (a range)", "true or false"]),
    ],
)
def test_bad_limits_name_knob_value_and_remedy(knobs, words):
    with pytest.raises(ValueError) as error:
        space_of(cpu(), SpaceLimits.model_validate({"knobs": knobs}))
    for word in words:
        assert word in str(error.value)


def test_a_global_batch_that_the_ranks_do_not_divide_is_rejected():
    with pytest.raises(ValueError, match=r"global_batch \(10\).*try 8 or 16"):
        space_of(gpus(), workload=Workload(sequence_length=64, global_batch=10))


def test_a_configuration_of_another_mesh_has_no_place():
    space = space_of(cpu(2))
    foreign = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    assert not space.contains(foreign)
    assert space.canonical(foreign) == foreign
    with pytest.raises(ValueError, match=r"dp_shard \(8\)"):
        space.sampler_answers(foreign)


PINS = {
    "micro_batch": [1, 2, 8],
    "activation_checkpointing": ["none", "full"],
    "grad_sync": ["every", "reduce_scatter", "last"],
    "bucket_cap_mb": [1, 4096],
    "static_graph": [True],
    "stage": [1, 3],
    "overlap_comm": [True, False],
    "contiguous_gradients": [False],
    "round_robin_gradients": [True],
    "allgather_bucket_size": [2],
    "stage3_prefetch_bucket_size": [0, 7],
    "sub_group_size": [1],
    "zero_hpz_partition_size": [1, 2],
    "offload_optimizer": ["none", "cpu"],
    "offload_optimizer_ratio": [0.5],
    "offload_param": ["cpu"],
    "dp_shard": [1, 2, 4],
    "dp_replicate": [1, 2],
    "reshard_after_forward": [True, False, 2],
    "forward_prefetch": [0, 8],
    "backward_prefetch": [0, 8],
    "blocks_per_unit": [1, 4],
    "cpu_offload": [True, False],
    "pin_memory": [False],
    "compile": [True],
    "deepcompile": [True, (True, False)],
    "loss": ["chunked", ("full", "chunked")],
    "activation_offload": [True, (True, False)],
    "context_parallel": [2, (1, 2)],
    "tensor_parallel": [2, (1, 2)],
    "pipeline_parallel": [2, (1, 2)],
    "expert_parallel": [2],
}


@given(st.sampled_from(CLUSTERS), st.data(), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_whatever_is_pinned_the_space_is_rejected_or_every_draw_is_legal(cluster, data, seed):
    names = data.draw(st.lists(st.sampled_from(sorted(PINS)), max_size=4, unique=True))
    knobs = {name: data.draw(st.sampled_from(PINS[name])) for name in names}
    try:
        space = space_of(cluster, SpaceLimits(knobs=knobs))
    except ValueError as error:
        assert any(name in str(error) for name in knobs) or "contradict" in str(error)
        return
    for config in sampled(space, seed, 8):
        assert space.contains(config)
        assert space.within_limits(config) == config
        sample_groups.check(config, cluster, WORKLOAD)
        steps = config.accumulation(WORKLOAD.global_batch, cluster.world_size)
        config.strategy.check_cluster(cluster, WORKLOAD.precision, steps)
