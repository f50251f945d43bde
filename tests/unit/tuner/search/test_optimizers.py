"""What a search may draw under an optimizer that some backends cannot train with, or that no host can step."""

from itertools import islice

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import optimizer_support
from shardtune.api_schemas.strategies.recipe_support import fp16_support
from shardtune.api_schemas.training.optimizers import OPTIMIZERS, AdamW, AdamW8bit, Muon
from shardtune.api_schemas.training.search_space import BACKENDS, SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search import space
from tests.support.values.tuner_inputs import TINY, cpu, gpus

WORKLOAD = Workload(sequence_length=64, global_batch=8, precision=PRECISIONS["fp32"], optimizer=Muon())


def test_only_backends_that_can_train_with_it_are_drawn() -> None:
    built = space.build(WORKLOAD, cpu(), TINY, SpaceLimits())
    assert {config.backend for config in built.lightest()} == {"ddp", "fsdp2"}


def test_a_space_of_backends_that_cannot_is_rejected_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"space.backends \(zero, fsdp1\) cannot train with Muon.* add ddp or fsdp2"):
        space.build(WORKLOAD, cpu(), TINY, SpaceLimits(backends=("zero", "fsdp1")))


def test_offload_is_not_drawn() -> None:
    built = space.build(WORKLOAD, gpus(), TINY, SpaceLimits(backends=("fsdp2",)))
    assert not any(getattr(config.strategy, "cpu_offload", False) for config in built.lightest())


def test_backends_that_are_left_out_are_said_to_be() -> None:
    (note,) = optimizer_support.dropped_note(BACKENDS, Muon())
    assert note.startswith("space.backends (zero, fsdp1) cannot train with Muon")
    assert optimizer_support.dropped_note(BACKENDS, AdamW()) == ()
    assert optimizer_support.dropped_note(("ddp",), Muon()) == ()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("cluster", [cpu(), gpus()], ids=["cpu", "gpus"])
def test_every_configuration_that_is_drawn_can_train_with_the_optimizer(kind: str, cluster: Cluster) -> None:
    workload = WORKLOAD.model_copy(update={"optimizer": OPTIMIZERS[kind]})
    built = space.build(workload, cluster, TINY, SpaceLimits())
    drawn = [*built.lightest(), *islice(built.enumerate(), 0, 20_000, 50)]
    assert {config.backend for config in drawn} >= {"ddp"}
    for config in drawn:
        optimizer_support.check(config, workload.optimizer)


def test_a_space_of_offloaded_states_alone_is_rejected_where_no_host_steps_the_optimizer() -> None:
    workload = WORKLOAD.model_copy(update={"optimizer": AdamW8bit()})
    limits = SpaceLimits.model_validate({"backends": ["zero"], "knobs": {"offload_optimizer": ["cpu"]}})
    with pytest.raises(ValueError, match="offload_optimizer"):
        list(space.build(workload, gpus(), TINY, limits).lightest())


FLOAT16 = Workload(sequence_length=64, global_batch=8, precision=PRECISIONS["fp16-mixed"])


def test_float16_keeps_the_optimizer_on_the_host_at_stage_3_alone() -> None:
    built = space.build(FLOAT16, gpus(), TINY, SpaceLimits(backends=("zero",)))
    drawn = [*built.lightest(), *islice(built.enumerate(), 0, 20_000, 50)]
    for config in drawn:
        fp16_support.check(config, FLOAT16)
    offloaded = [config for config in drawn if getattr(config.strategy, "offload_optimizer", None) is not None]
    assert {getattr(config.strategy, "stage", None) for config in offloaded} == {3}


@pytest.mark.parametrize("cluster", [cpu(), gpus()], ids=["cpu", "gpus"])
def test_an_offload_that_float16_cannot_train_is_rejected_with_the_reason(cluster: Cluster) -> None:
    knobs = {"offload_optimizer": "cpu", "stage": 2}
    limits = SpaceLimits.model_validate({"backends": ["zero"], "knobs": knobs})
    with pytest.raises(ValueError, match=r"space.knobs.offload_optimizer \('cpu'\).*no later step recovers"):
        space.build(FLOAT16, cluster, TINY, limits)
    stage_3 = SpaceLimits.model_validate({"backends": ["zero"], "knobs": knobs | {"stage": 3}})
    assert next(space.build(FLOAT16, cluster, TINY, stage_3).lightest()).backend == "zero"


def test_float16_is_never_compiled_by_deepspeed() -> None:
    limits = SpaceLimits.model_validate({"backends": ["zero"], "knobs": {"deepcompile": [True, False], "stage": 3}})
    built = space.build(FLOAT16, gpus(), TINY, limits)
    assert not any(getattr(config.strategy, "deepcompile", False) for config in islice(built.enumerate(), 0, 5_000, 50))
