"""Packed samples in one process: no architecture that is admitted lets them see each other, and planted faults show."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_packing.models import ADMITTED, CARRYING, LEAKING
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.model import build, packed_batch, padded_batch
from shardtune.workers.rank.model.packed_batch import PackedBatch
from shardtune.workers.rank.training import packed_leak
from shardtune.workers.rank.training.step import CausalStep
from tests.support.ranks.reference_training import train
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

CPU = torch.device("cpu")
REPAIRED = {"falcon": Version("5.24.0")}
"""Version of transformers from which an architecture leaks no more. It is not admitted while older ones are supported."""
DATA = {"lengths": [3, 31, 5, 29, 3, 7, 31, 4], "layout": "packed"}
TASK = tiny_task({"kind": "ddp"}, model=LLAMA | {"num_hidden_layers": 2}, data=DATA, sequence_length=48, parity_steps=2)


def with_attention(attention: str) -> Workload:
    return TASK.workload.model_copy(update={"attention": attention})


def leak_of(model_type: str, attention: str) -> packed_leak.Leak:
    config = json.loads(transformers.AutoConfig.for_model(model_type).to_json_string(use_diff=False))
    spec = ModelSpec.model_validate(config)
    build.search_packed_samples(True)
    return packed_leak.measure(packed_leak.tiny_config(spec), with_attention(attention), CPU, torch.float32)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", sorted(ADMITTED))
def test_no_admitted_architecture_lets_samples_of_a_row_see_each_other(model_type: str, attention: str) -> None:
    leak = leak_of(model_type, attention)
    assert leak.packed <= packed_leak.LARGEST_LEAK and leak.planted >= packed_leak.LEAST_PLANTED


# Mamba has no attention to measure: its layers take no positions at all.
@pytest.mark.parametrize("model_type", sorted(LEAKING | CARRYING - {"mamba"}))
def test_the_test_finds_architectures_that_leak(model_type: str) -> None:
    packed = leak_of(model_type, "sdpa").packed
    if model_type in REPAIRED and Version(transformers.__version__) >= REPAIRED[model_type]:
        assert packed <= packed_leak.LARGEST_LEAK
    else:
        assert packed > packed_leak.LEAST_PLANTED


@pytest.mark.parametrize("model_type", ["deepseek_v3", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"])
def test_each_token_goes_to_all_experts_of_the_tiny_model(model_type: str) -> None:
    """Otherwise a changed token could change the others' experts, or no expert would be tested."""
    config = json.loads(transformers.AutoConfig.for_model(model_type).to_json_string(use_diff=False))
    tiny = packed_leak.tiny_config(ModelSpec.model_validate(config))
    model = packed_leak._model(tiny, TASK.workload, CPU, torch.float32)
    routers = [module for name, module in model.named_modules() if name.endswith(".mlp.gate")]
    assert len(routers) == tiny.num_hidden_layers
    assert {len(router.weight) for router in routers} == {tiny.num_experts_per_tok} == {2}  # type: ignore[arg-type]


def test_a_trial_is_rejected_where_its_attention_leaks() -> None:
    """As without transformers' search for packed samples."""
    build.search_packed_samples(False)
    with pytest.raises(
        ValueError, match=r"data.layout \('packed'\): attention \('sdpa'\) of model_type \('llama'\)"
    ) as error:
        packed_leak.check(TASK.model, TASK.workload, CPU)
    assert "use another attention, or layout 'grouped'" in str(error.value)
    build.search_packed_samples(True)
    packed_leak.check(TASK.model, TASK.workload, CPU)


@pytest.fixture(scope="module")
def batches() -> tuple[nn.Module, list[PackedBatch], float]:
    """Model, its micro batches of two rows, and the mean loss over all tokens of the samples, each run alone."""
    step = CausalStep(TASK.model, TASK.workload)
    model = step.build_model()
    build.materialize(model, CPU, torch.float32, 1, torch.float32)
    made = [step.make_batch(0, [first, first + 1], CPU) for first in range(0, 8, 2)]
    return model, [batch for batch in made if isinstance(batch, PackedBatch)], train(TASK)[0].loss


def mean(model: nn.Module, own: list[PackedBatch], **changed: Any) -> float:
    with torch.no_grad():
        inputs = [replace(batch, inputs={**batch.inputs, **changed}) for batch in own]
        return sum(float(padded_batch.loss(model, batch)) for batch in inputs) / len(own)


def test_packed_rows_have_the_loss_of_their_samples_alone(batches: tuple[nn.Module, list[PackedBatch], float]) -> None:
    model, own, expected = batches
    assert len(own) == 4 and all(int((batch.inputs["position_ids"] == 0).sum()) > 2 for batch in own)
    assert mean(model, own) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"attention_mask": torch.ones(2, 48, dtype=torch.int64)}, id="mask-of-ones"),
        pytest.param({"position_ids": torch.arange(48).expand(2, -1)}, id="positions-not-reset"),
    ],
)
def test_samples_that_see_their_neighbours_have_another_loss(
    batches: tuple[nn.Module, list[PackedBatch], float], fault: dict[str, Any]
) -> None:
    model, own, expected = batches
    assert abs(mean(model, own, **fault) / expected - 1) > 1e-4


def test_a_mean_of_means_and_labels_across_samples_are_other_losses(
    batches: tuple[nn.Module, list[PackedBatch], float],
) -> None:
    model, own, expected = batches
    assert abs(mean(model, [replace(batch, weight=1.0) for batch in own]) / expected - 1) > 1e-5
    crossing = [replace(batch, labels=batch.inputs["input_ids"]) for batch in own]
    assert abs(mean(model, crossing) / expected - 1) > 1e-3


def test_flash_attention_gets_the_bounds_of_samples_over_all_rows() -> None:
    """transformers would infer none where a batch has several rows."""
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]])
    inputs = packed_batch.model_inputs(torch.arange(10).view(2, 5), positions, "flash_attention_2")
    assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, 10)
    assert inputs["cu_seq_lens_q"].tolist() == inputs["cu_seq_lens_k"].tolist() == [0, 3, 5, 9, 10]
    assert (inputs["max_length_q"], inputs["max_length_k"]) == (4, 4)
    assert "attention_mask" not in inputs
