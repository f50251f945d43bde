import pytest
from tuner_cases import TINY, cpu, gpus, llama

from api_schemas.base import GIB
from api_schemas.strategies import DdpConfig, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from api_schemas.studies import Objective
from api_schemas.workload import Workload
from tuner.feasibility import gate
from tuner.memory import lower_bound

SHORT = Workload(sequence_length=128, global_batch=64)
ON_CPU = Offload()


def verdict(strategy, cluster, model="llama-2-70b"):
    return gate(TrialConfig(strategy=strategy), llama(model), SHORT, cluster, Objective())


@pytest.mark.parametrize("strategy", [DdpConfig(), ZeroConfig(stage=1), ZeroConfig(stage=2)])
@pytest.mark.parametrize("nodes", [1, 8])
def test_70b_does_not_fit_on_80_gib_where_weights_are_replicated(strategy, nodes):
    rejection = verdict(strategy, gpus(nodes))
    assert rejection is not None and rejection.needed_gib > rejection.available_gib == 76


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
    refused = verdict(offloaded, gpus(host_memory_gib=512))
    assert refused is not None and "host memory" in refused.reason


def test_7b_states_take_16_bytes_a_parameter_and_ddp_buckets_4_more():
    profile = llama("llama-2-7b")
    lean = TrialConfig(strategy=DdpConfig(gradient_as_bucket_view=True))
    bound = lower_bound(lean, profile, SHORT, gpus()).device_bytes
    assert bound == pytest.approx(16 * profile.parameters, rel=0.01)
    assert bound / 1e9 == pytest.approx(108, abs=2)
    copied = lower_bound(TrialConfig(strategy=DdpConfig()), profile, SHORT, gpus()).device_bytes
    assert copied == pytest.approx(20 * profile.parameters, rel=0.01)


def test_zero_follows_the_published_formulae():
    """Rajbhandari et al. 2020, figure 1, with 12 + 4 bytes of partitioned fp32 state and gradients."""
    profile, ranks = llama("llama-2-7b"), 8
    bucket = {"contiguous_gradients": False, "overlap_comm": False}

    def states(stage):
        config = TrialConfig(strategy=ZeroConfig(stage=stage, **bucket))
        return lower_bound(config, profile, SHORT, gpus()).device_bytes / profile.parameters

    assert states(1) == pytest.approx(2 + 4 + 12 / ranks, rel=0.01)
    assert states(2) == pytest.approx(2 + 16 / ranks, rel=0.02)
    assert states(3) == pytest.approx(18 / ranks, rel=0.03)


def test_offload_frees_a_gpu_but_not_a_cpu_rank():
    plain, offloaded = ZeroConfig(stage=2), ZeroConfig(stage=2, offload_optimizer=ON_CPU)

    def bound(strategy, cluster):
        return lower_bound(TrialConfig(strategy=strategy), TINY, SHORT, cluster).device_bytes

    assert bound(offloaded, gpus(1, 2)) < bound(plain, gpus(1, 2))
    assert bound(offloaded, cpu(2)) >= bound(plain, cpu(2))


def test_nvme_takes_host_memory_out_of_the_account():
    nvme = ZeroConfig(stage=3, offload_optimizer=Offload(device="nvme"), offload_param=Offload(device="nvme"))
    host = ZeroConfig(stage=3, offload_optimizer=ON_CPU, offload_param=ON_CPU)

    def on_host(strategy):
        return lower_bound(TrialConfig(strategy=strategy), TINY, SHORT, gpus()).host_bytes

    assert on_host(nvme) < on_host(host)


def test_logits_of_a_large_vocabulary_are_counted():
    workload = Workload(sequence_length=8192, global_batch=64)
    profile = llama("llama-2-7b")
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=8)
    need = lower_bound(config, profile, workload, gpus())
    assert need.parts["logits of one micro batch"] == 8 * 8192 * 32_000 * 2


def test_full_accumulation_under_fsdp2_holds_unsharded_gradients():
    def bound(policy):
        config = TrialConfig(strategy=Fsdp2Config(dp_shard=8, grad_sync=policy))
        return lower_bound(config, llama("llama-2-7b"), SHORT, gpus()).device_bytes

    assert bound("last") - bound("every") > 3 * llama("llama-2-7b").parameters


def test_a_reason_gives_the_figures():
    rejection = verdict(DdpConfig(), gpus(), "llama-2-7b")
    assert rejection is not None
    assert rejection.needed_gib * GIB == pytest.approx(20 * llama("llama-2-7b").parameters, rel=0.01)
    for word in ("DDP", "each GPU", "125.6 GiB", "optimizer state", "76.0 GiB", "5% headroom"):
        assert word in rejection.reason
