import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.objective import Objective
from shardtune.tuner.prediction.calibration import ESTIMATED, NO_CALIBRATIONS, MemoryCalibration, fit_memory
from shardtune.tuner.prediction.learning import predict_trial
from shardtune.tuner.prediction.memory_gate import near_the_edge, reject_if_too_large
from shardtune.tuner.prediction.shapes.calibration_choice import memory_calibration
from shardtune.tuner.prediction.traced_shape import of_study
from tests.support.values.tuner_inputs import gpus, llama, shape

SHORT = Workload(sequence_length=128, global_batch=64)
ON_CPU = Offload()


def verdict(strategy, cluster, model="llama-2-70b", calibration=None):
    recorded = calibration or MemoryCalibration()
    return reject_if_too_large(TrialConfig(strategy=strategy), shape(model), SHORT, cluster, Objective(), recorded)


@pytest.mark.parametrize("strategy", [DdpConfig(), ZeroConfig(stage=1), ZeroConfig(stage=2)])
@pytest.mark.parametrize("nodes", [1, 8])
def test_70b_does_not_fit_on_80_gib_where_weights_are_replicated(strategy, nodes):
    rejection = verdict(strategy, gpus(nodes))
    assert rejection is not None and rejection.needed_gib > rejection.available_gib == 76
    assert rejection.memory_of == "rank"


@pytest.mark.parametrize(
    "strategy", [ZeroConfig(stage=3), Fsdp2Config(dp_shard=64), Fsdp2Config(dp_replicate=2, dp_shard=32)]
)
def test_70b_fits_on_64_gpus_where_everything_is_sharded(strategy):
    assert verdict(strategy, gpus(8)) is None


def test_70b_on_8_gpus_needs_offload_and_a_host_that_holds_it():
    """16 bytes × 69e9 are 1028 GiB: more than 8 × 80, less than the host's 2048."""
    sharded, offloaded = Fsdp2Config(dp_shard=8), Fsdp2Config(dp_shard=8, cpu_offload=True)
    zero = ZeroConfig(stage=3, offload_optimizer=ON_CPU, offload_param=ON_CPU)
    assert verdict(sharded, gpus()) is not None and verdict(ZeroConfig(stage=3), gpus()) is not None
    assert verdict(offloaded, gpus()) is None and verdict(zero, gpus()) is None
    rejected = verdict(offloaded, gpus(host_memory_gib=512))
    assert rejected is not None and "host memory" in rejected.reason and rejected.memory_of == "host"


def test_the_margin_is_the_predictors_own_error():
    """A configuration that is a little too large by prediction is tried, unless measured trials have shown that
    predictions hold."""
    reserved = 8 * GIB * 0.95
    predicted = [reserved] * 40
    config, full_shape = TrialConfig(strategy=DdpConfig()), shape("llama-3.2-1b")
    rejection = reject_if_too_large(
        config, full_shape, SHORT, gpus(memory_gib=1), Objective(), MemoryCalibration(sigma=0.0)
    )
    assert rejection is not None
    a_bit_short = gpus(memory_gib=rejection.needed_gib * 0.95 / 0.95)
    assert reject_if_too_large(config, full_shape, SHORT, a_bit_short, Objective(), MemoryCalibration()) is None
    sure = fit_memory(predicted, predicted)
    assert reject_if_too_large(config, full_shape, SHORT, a_bit_short, Objective(), sure) is not None


def test_an_architecture_without_a_closed_form_is_predicted_from_its_profile():
    """An estimate that is as heavy as the Llama it is counted from, with a wider margin."""
    model_summary = llama("llama-2-7b")
    guessed = of_study(ModelSpec(name="x", config={"model_type": "unheard_of"}), model_summary)
    assert guessed.parameters == model_summary.parameters
    assert guessed.ffn == pytest.approx(11_008, rel=0.01)
    assert memory_calibration(NO_CALIBRATIONS, guessed) == ESTIMATED
    assert reject_if_too_large(
        TrialConfig(strategy=DdpConfig()), guessed, SHORT, gpus(memory_gib=24), Objective(), ESTIMATED
    )


def test_a_reason_gives_the_figures():
    rejection = verdict(DdpConfig(), gpus(), "llama-2-7b")
    assert rejection is not None
    for word in ("DDP", "each GPU", "at the least", "optimizer", "76.0 GiB", "5% headroom"):
        assert word in rejection.reason


def test_near_the_edge_is_where_the_interval_holds_the_limit():
    config, full_shape = TrialConfig(strategy=DdpConfig()), shape("llama-3.2-1b")
    prediction = predict_trial(full_shape, SHORT, gpus(), config, NO_CALIBRATIONS)
    ran_out = Failure(kind=FailureKind.OOM, message="out of memory")

    def is_near(share):
        return near_the_edge(ran_out, prediction, gpus(memory_gib=prediction.memory_gib * share), Objective())

    assert [is_near(share) for share in (0.5, 0.95, 1.05, 2.0)] == [False, True, True, False]
    assert not near_the_edge(Failure(kind=FailureKind.CRASH, message="x"), prediction, gpus(), Objective())
