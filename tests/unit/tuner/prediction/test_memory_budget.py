"""A budget of activations: what compiled blocks keep, what backward repeats, and that other blocks are predicted as
before."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.prediction import learning
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.footprint.block_bytes import BlockBytes
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
LENGTH = 8192
CLUSTER = gpus().model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
COMPILED = TrialConfig(strategy=Fsdp2Config(dp_shard=8), compile=True, loss="chunked")
BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.05)


def evaluated(*configs: TrialConfig) -> Evaluation:
    workload = Workload(sequence_length=LENGTH, global_batch=8)
    return evaluate(SHAPE, from_configs(configs, LENGTH, 8, 8), workload, CLUSTER)


def within(budget: float) -> TrialConfig:
    return COMPILED.model_copy(update={"activation_memory_budget": budget})


def test_blocks_keep_their_input_and_the_budgets_part_of_the_rest() -> None:
    kept = evaluated(*map(within, BUDGETS)).memory.terms["activations"]
    inputs = SHAPE.layers * LENGTH * SHAPE.hidden * 2
    beyond = kept[0] - inputs
    assert beyond > inputs
    for budget, actual in zip(BUDGETS[1:], kept[1:], strict=True):
        assert inputs + budget * beyond < actual == pytest.approx(inputs + (budget + 0.05) * beyond, rel=0.05)


def test_the_peak_falls_and_the_time_rises_as_the_budget_falls() -> None:
    evaluation = evaluated(*map(within, BUDGETS))
    assert evaluation.step is not None
    assert np.all(np.diff(evaluation.memory.allocated) < 0) and np.all(np.diff(evaluation.step.total) > 0)
    # Forward is a third of the work.
    assert 1.2 < evaluation.step.total[-1] / evaluation.step.total[0] < 1.4


def test_what_is_not_kept_is_restored_in_one_block_at_a_time() -> None:
    none = np.zeros(1)
    block = BlockBytes(none, none + 3.0, none + 10.0, none + 2.0, layers=4, recomputed=none + 7.0)
    rows = from_configs([within(0.3)], LENGTH, 8, 8)
    assert block.kept(rows, 4) == 4 * 3.0 and block.working(rows, 2) == 7.0 + 2.0


def test_blocks_without_a_budget_are_predicted_alike_beside_those_with_one() -> None:
    alone, beside = evaluated(COMPILED), evaluated(COMPILED, within(0.5))
    assert alone.step is not None and beside.step is not None
    assert np.array_equal(alone.memory.allocated, beside.memory.allocated[:1])
    assert np.array_equal(alone.step.total, beside.step.total[:1])


def compared(config: TrialConfig, predicted: float, measured: float) -> learning.ComparedRun:
    """Run whose peak in GiB is compared with its prediction, and whose time was not measured."""
    return learning.ComparedRun("study", config, False, (predicted, measured), {}, 0.0)


def test_trials_with_a_budget_teach_nothing_about_the_memory_of_others() -> None:
    """Their predicted peak is an upper bound: a factor learnt from it let the gate accept what lacks memory."""
    whole = [compared(COMPILED, 40.0, 44.0), compared(COMPILED, 50.0, 55.0)]
    bounded = [compared(within(0.25), 40.0, 30.0), compared(within(0.5), 50.0, 38.0)]
    assert learning.learn([*whole, *bounded]).memory == learning.learn(whole).memory != learning.learn(bounded).memory
    assert learning.learn(bounded).memory is None
