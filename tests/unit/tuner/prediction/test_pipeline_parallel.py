"""Effects of pipeline stages on predicted memory and time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.prediction import catalogue, stages
from shardtune.tuner.prediction.backends.registry import BACKENDS, states
from shardtune.tuner.prediction.candidates import DDP, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.prediction.rates import network_of, rates_of
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.prediction.throughput import step_times
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
CLUSTER = gpus(2, 8).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3", "inter_node_gb_per_s": 50.0})
KEPT: dict[str, Any] = {"reshard_after_forward": False, "grad_sync": "last"}


def evaluated(*strategies: Fsdp2Config, batch: int = 64) -> Evaluation:
    rows = from_configs([TrialConfig(strategy=strategy) for strategy in strategies], 4096, 16, batch)
    return evaluate(SHAPE, rows, Workload(sequence_length=4096, global_batch=batch), CLUSTER)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_have_the_model_between_them(tied: bool) -> None:
    changed = replace(SHAPE, tied=tied, layers=7)
    parts = stages.rank_shapes(changed, stages.StageLayout(3))
    twice = changed.embedding_parameters if tied else 0
    assert sum(part.parameters for part in parts) == changed.parameters + twice
    assert [part.layers for part in parts] == [3, 2, 2]
    assert [part.vocab for part in parts] == [0, 0, changed.vocab]


def test_stages_by_cost_have_as_many_parameters_and_the_head_counts() -> None:
    """A head as large as several blocks takes blocks from the last stage; with as many blocks that stage is the slowest."""
    wide = replace(SHAPE, vocab=4 * SHAPE.vocab)
    assert 9 < wide.embedding_parameters / wide.block_parameters < 10
    counts = stages.blocks_by_cost(wide, 4)
    assert sum(counts) == wide.layers and max(counts[:3]) - min(counts[:3]) <= 1
    parameters = np.array(counts) * wide.block_parameters + [0, 0, 0, wide.embedding_parameters]
    assert np.ptp(parameters) <= wide.block_parameters
    last = [stages.rank_shapes(wide, stages.StageLayout(4), by_cost)[-1].layers for by_cost in (False, True)]
    assert last == [8, counts[-1]]


def test_a_pipeline_may_have_more_than_64_ranks() -> None:
    deep, impl = replace(SHAPE, layers=96), Implementation()
    c = from_rows([{"sequence": 4096, "stages": count, "backend": DDP, "accumulation": 192} for count in (48, 96)])
    gpu = catalogue.find("NVIDIA H100 80GB HBM3")
    step = step_times(deep, c, Dtypes(), impl, rates_of(gpu), network_of(gpu, 8))
    memory = peak_memory(deep, c, Dtypes(), impl)
    assert np.isfinite(step.total).all() and step.total[1] < step.total[0]
    assert 0 < memory.allocated[1] < memory.allocated[0]


def test_fewer_micro_batches_wait_longer_for_the_first_and_the_last() -> None:
    """Idle time of a pipeline of 4: the idle share is 3 / (m + 3), if all stages take as long."""
    cut = Fsdp2Config(dp_shard=4, pipeline_parallel=4, grad_sync="last")
    speeds = [evaluated(cut, batch=4 * count).tokens_per_s_per_gpu for count in (4, 64)]
    few, many = (float(speed[0]) for speed in speeds if speed is not None)
    assert 1.4 < many / few < 1.75


def test_1f1b_holds_a_micro_batch_for_each_stage_and_gpipe_all() -> None:
    cut = Fsdp2Config(dp_shard=4, pipeline_parallel=4)
    schedules = evaluated(cut, cut.model_copy(update={"pipeline_schedule": "gpipe"}))
    first, all_of_step = schedules.memory.terms["activations"]
    accumulation = float(schedules.candidates.accumulation[0])
    assert accumulation == 16 and all_of_step > 3.0 * first
    assert schedules.step is not None and np.isclose(*schedules.step.total)


def test_no_gradients_stand_beside_all_micro_batches_of_a_step() -> None:
    """Gradients are absent when the first backward begins; when the second does, one micro batch less waits. Measured
    on CPU ranks."""
    cut = Fsdp2Config(dp_shard=4, pipeline_parallel=4, pipeline_schedule="gpipe", grad_sync="last")
    actual = [evaluated(cut, batch=4 * count).memory.terms for count in (1, 2, 3, 8)]
    first, two, three, eight = (float(terms["activations"][0]) for terms in actual)
    assert actual[0]["gradients"][0] == 0 < actual[1]["gradients"][0]
    assert np.isclose(first, two, rtol=0.01) and np.isclose(eight - two, 6.0 * (three - two), rtol=0.01)


def test_more_stages_on_a_rank_wait_less_hold_more_and_send_more() -> None:
    cut = Fsdp2Config(dp_shard=4, pipeline_parallel=4, grad_sync="last")
    two, four = (
        cut.model_copy(update={"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": virtual})
        for virtual in (2, 4)
    )
    evaluation = evaluated(cut, two, four)
    assert evaluation.step is not None
    compute = evaluation.step.compute
    # Of 16 micro batches on 4 ranks, 3 / 16 of a step's compute is waited, a half and a quarter of that.
    assert np.allclose((compute - compute[2]) / (compute[1] - compute[2]), [3.0, 1.0, 0.0])
    assert (np.diff(evaluation.step.exposed) > 0).all()
    assert evaluation.memory.terms["activations"][1] > 1.3 * evaluation.memory.terms["activations"][0]


def test_gradients_of_weights_that_come_later_fill_what_is_waited() -> None:
    cut = Fsdp2Config(dp_shard=4, pipeline_parallel=4, **KEPT)
    names = ("interleaved_1f1b", "dual_pipe_v", "interleaved_zero_bubble", "zbv_zero_bubble")
    evaluation = evaluated(
        *(cut.model_copy(update={"pipeline_schedule": name, "pipeline_virtual_stages": 2}) for name in names)
    )
    assert evaluation.step is not None
    assert (np.diff(evaluation.step.compute) < 0).all()


def test_the_first_rank_of_a_v_has_the_tables_and_the_head() -> None:
    parts = stages.rank_shapes(SHAPE, stages.StageLayout(4, 2, "zbv_zero_bubble"))
    assert [(part.is_first, part.is_last, part.vocab > 0) for part in parts] == [(True,) * 3, *[(False,) * 3] * 3]
    assert sum(part.parameters for part in parts) == SHAPE.parameters


def test_autocast_copies_the_head_on_the_rank_that_has_it_and_no_table() -> None:
    precision = PRECISIONS["bf16-autocast"]
    d, impl = (
        Dtypes.of(precision),
        Implementation.of(Workload(sequence_length=4096, global_batch=64, precision=precision)),
    )
    c = from_configs([TrialConfig(strategy=Fsdp2Config(dp_shard=4, pipeline_parallel=4))], 4096, 16, 64)
    copies = []
    for part in stages.rank_shapes(SHAPE, stages.StageLayout(4)):
        plain = BACKENDS["fsdp2"].states(part, c, d.under(impl), impl, False)
        copies.append(float(states(part, c, d, impl).gathered_loss[0] - plain.gathered_loss[0]))
    assert copies[:3] == [copies[0]] * 3
    assert copies[3] - copies[0] == d.compute * SHAPE.vocab * SHAPE.hidden


def test_a_stage_holds_a_part_of_the_states() -> None:
    evaluation = evaluated(Fsdp2Config(dp_shard=16), Fsdp2Config(dp_shard=4, pipeline_parallel=4))
    # Spread over as many ranks altogether; the fullest stage has a table or the head besides.
    first, second = evaluation.memory.terms["optimizer"]
    assert first < second < 1.3 * first
    gathered = evaluation.memory.terms["gathered"]
    assert gathered[1] < gathered[0]


def test_candidates_of_all_kinds_are_predicted_at_once_as_one_by_one() -> None:
    kinds = (
        Fsdp2Config(dp_shard=16),
        Fsdp2Config(dp_shard=8, pipeline_parallel=2),
        Fsdp2Config(dp_shard=4, tensor_parallel=2, pipeline_parallel=2),
        Fsdp2Config(dp_shard=4, pipeline_parallel=4, pipeline_schedule="gpipe"),
        Fsdp2Config(dp_shard=8, pipeline_parallel=2, pipeline_schedule="interleaved_1f1b", pipeline_virtual_stages=4),
    )
    together, alone = evaluated(*kinds), [evaluated(kind) for kind in kinds]
    assert together.step is not None
    for index, item in enumerate(alone):
        assert item.step is not None
        assert np.isclose(together.memory.allocated[index], item.memory.allocated[0])
        assert np.isclose(together.step.total[index], item.step.total[0])
        assert np.isclose(sum(part[index] for part in together.step.parts.values()), together.step.total[index])


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Fsdp2Config(dp_shard=4, pipeline_parallel=3), "number of ranks"),
        (Fsdp2Config(dp_shard=1, pipeline_parallel=16), "needs as many micro batches"),
    ],
)
def test_what_cannot_be_cut_is_not_predicted(strategy: Fsdp2Config, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        predict(SHAPE, Workload(sequence_length=4096, global_batch=8), CLUSTER, TrialConfig(strategy=strategy))
