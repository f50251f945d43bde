"""FSDP2's gathers in float8: what they send, what gathered weights take, and that other trainings keep their figures."""

import numpy as np
import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.prediction.backends import sharded_traffic
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import Evaluation, evaluate
from shardtune.tuner.prediction.rates import Network
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.support.values.tuner_inputs import gpus

SHAPE = from_config(preset("llama-3.1-8b").config)
CLUSTER = gpus(4, 8).model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
WORLD = 32
LINEAR = SHAPE.matrix_parameters
"""Number of elements of the linear layers of all blocks."""


def config(**fields: object) -> TrialConfig:
    return TrialConfig(strategy=Fsdp2Config.model_validate({"dp_shard": WORLD, **fields}))


def evaluated(precision: str, *configs: TrialConfig) -> Evaluation:
    workload = Workload(sequence_length=4096, global_batch=WORLD, precision=PRECISIONS[precision], float8="tensorwise")
    return evaluate(SHAPE, from_configs(configs, 4096, WORLD, WORLD), workload, CLUSTER)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_weights_kept_after_forward_take_a_byte_each(precision: str) -> None:
    kept = [config(reshard_after_forward=False, float8_gather=gathers) for gathers in (False, True)]
    after, before = evaluated(precision, *kept).memory.allocated
    assert after - before == pytest.approx(LINEAR, rel=0.05)


def test_gathers_send_fewer_bytes_and_reductions_as_many() -> None:
    rows = from_configs([config(float8_gather=gathers) for gathers in (False, True)], 4096, WORLD, WORLD)
    dtypes, network = Dtypes(), Network(intra=300e9, inter=50e9, gpus_per_node=8, host_link=1e9)
    traffic = sharded_traffic.traffic(SHAPE, rows, dtypes, Implementation(), network)
    after, before = traffic.forward
    outside = SHAPE.parameters - LINEAR
    assert before / after == pytest.approx((LINEAR + 2 * outside) / (2 * SHAPE.parameters), rel=0.1)
    # A reduce-scatter and a gather in backward: the difference is the gather's.
    assert traffic.backward[0] - traffic.backward[1] == pytest.approx(after - before, rel=0.01)
    assert traffic.after_step[0] == 0 < traffic.after_step[1] < before / 50


def test_a_step_that_waits_for_its_gathers_is_shorter() -> None:
    step = evaluated("bf16-mixed", config(), config(float8_gather=True)).step
    assert step is not None and step.total[1] <= step.total[0]


def test_without_them_nothing_changes() -> None:
    rows = from_configs([config(), config(dp_shard=8, dp_replicate=4)], 4096, WORLD, WORLD)
    assert np.all(rows.float8_gather == 0)
