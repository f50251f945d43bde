"""Drawings that go on from a copy of another one give the same configurations as drawings from the beginning."""

import random
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.search_space import KnobValue, SpaceLimits
from shardtune.tuner.search.guided_sampler.pool import neighbours, sample_near
from shardtune.tuner.search.space import Space, choices
from shardtune.tuner.search.space.define_by_run import NoLegalValue, Question
from shardtune.tuner.search.space.depth_first import Narrow
from tests.support.values.tuner_inputs import cpu, gpus, space_of

CLUSTERS = [cpu(2), cpu(4), gpus(1, 1), gpus(1, 8), gpus(2, 4)]
LIMITS = [
    SpaceLimits(),
    SpaceLimits(backends=("zero",), knobs={"stage": (2, 3), "sub_group_size": 1}),
    SpaceLimits(backends=("fsdp2",), knobs={"tensor_parallel": (1, 2), "pipeline_parallel": (1, 2)}),
    SpaceLimits(backends=("fsdp1", "ddp"), knobs={"grad_sync": "last", "gc_every": 0}),
]
PINS: dict[str, list[KnobValue]] = {
    # Defaults and other values of knobs that every backend has.
    "threads": [0, 3],
    "expandable_segments": [False, True],
    "max_connections": [0, 8],
    "numa_binding": ["none", "node"],
    "gc_every": [0, 50],
    "malloc": ["default", "keep"],
    "compile": [False, True],
    "checkpoint_every": [1, 2],
    "activation_offload": [False, True],
    "context_parallel": [1, 2],
    "loss": ["full", "chunked"],
    # Values without effect in some configurations.
    "overlap_comm": [False, True],
    "contiguous_gradients": [False, True],
    "round_robin_gradients": [False, True],
    "offload_optimizer_pin_memory": [False, True],
    "stage3_max_live_parameters": [1_000_000_000, 12],
    "forward_prefetch": [0, 1, 8],
    "backward_prefetch": [1, 2],
    "pipeline_schedule": ["1f1b", "gpipe"],
    "fsdp1_backward_prefetch": ["BACKWARD_PRE", "none"],
    "grad_sync": ["every", "last"],
    "static_graph": [False, True],
    "deepcompile": [False, True],
}


@given(st.sampled_from(CLUSTERS), st.data(), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_the_canonical_form_that_a_draw_keeps_is_the_one_that_a_walk_finds(cluster, data, seed):
    names = data.draw(st.lists(st.sampled_from(sorted(PINS)), max_size=6, unique=True))
    limits = SpaceLimits(knobs={name: data.draw(st.sampled_from(PINS[name])) for name in names})
    try:
        # The second has drawn nothing, and remembers nothing.
        space, other = (space_of(cluster, limits) for _ in range(2))
        rng = random.Random(seed)
        drawn = [space.sample(lambda _, values: rng.choice(values)) for _ in range(10)]
    except ValueError:
        # The pins contradict each other.
        return
    for config in drawn:
        if config is not None:
            assert space.canonical(config) == other.canonical(config)
            assert space.contains(config) and other.contains(config)


def test_a_pin_that_replaces_a_fixed_value_makes_a_draw_differ_from_its_canonical_form():
    space = space_of(cpu(2), SpaceLimits(backends=("fsdp2",), knobs={"forward_prefetch": 1}))
    config = space.sample(lambda _, values: values[0])
    assert config is not None and config.strategy.forward_prefetch == 1
    assert space.canonical(config).strategy.forward_prefetch == 0


def enumerate_from_the_beginning(space: Space, narrow: Narrow | None) -> Iterator[TrialConfig]:
    """Every configuration, each drawn from the first knob on."""
    prefix: list[int] = []
    keys: set[str] = set()
    while True:
        path: list[tuple[int, int]] = []

        def answer(question: Question) -> KnobValue:
            values = narrow(question) if narrow else question.values
            index = prefix[len(path)] if len(path) < len(prefix) else 0  # noqa: B023 -- called at once
            path.append((index, len(values)))  # noqa: B023 -- called at once
            return values[index]

        try:
            config = space.unflatten(space._walk(answer))
            if config.content_key() not in keys:
                keys.add(config.content_key())
                yield config
        except NoLegalValue:
            pass
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        prefix = [*(index for index, _ in path[:-1]), path[-1][0] + 1]


@pytest.mark.parametrize("cluster", [cpu(4), gpus(2, 4)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("narrow", [None, choices.lightest_values, choices.branching_values])
def test_enumeration_gives_the_same_configurations_in_the_same_order(cluster, limits, narrow):
    space, other = (space_of(cluster, limits) for _ in range(2))
    expected = list(islice(enumerate_from_the_beginning(other, narrow), 400))
    assert expected and list(islice(space.enumerate(narrow), 400)) == expected


@pytest.mark.parametrize("cluster", [cpu(4), gpus(2, 4)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("limits", LIMITS)
def test_neighbours_are_those_that_are_drawn_from_the_beginning(cluster, limits):
    space, other = (space_of(cluster, limits) for _ in range(2))
    rng = random.Random(3)
    drawn = (space.sample(lambda _, values: rng.choice(values)) for _ in range(40))
    configs = [config for config in drawn if config is not None][:6]
    assert configs
    for config in configs:
        answers = {question.param: (question, value) for question, value in other.sampler_answers(config)}
        current = {param: value for param, (_, value) in answers.items()}
        expected = [
            sample_near(other, current | {param: value})
            for param, (question, present) in answers.items()
            for value in question.values
            if (value, type(value)) != (present, type(present))
        ]
        assert list(neighbours(space, config)) == [near for near in expected if near is not None]
