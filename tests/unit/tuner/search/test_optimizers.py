"""What a search may draw under an optimizer that updates whole matrices."""

import pytest

from shardtune.api_schemas.strategies import optimizer_support
from shardtune.api_schemas.training.optimizers import AdamW, Muon
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
