"""One prediction as a person sees it, and the errors it can end in."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.evaluation import evaluate
from shardtune.tuner.prediction.predict import predict, predict_each
from shardtune.tuner.prediction.rates import rates_of
from shardtune.tuner.prediction.shapes.config_shape import from_config
from shardtune.tuner.search import fastest
from tests.support.values.prediction_tables import predicted_table

SEVEN_B = from_config(preset("llama-2-7b").config)
CLUSTER = catalogue.parse_cluster("8xh100")
WORKLOAD = Workload(sequence_length=4096, global_batch=8)


def _table(model: str, cluster: str) -> dict[str, Prediction]:
    table = predicted_table(PredictionRequest(model=model, cluster=cluster))
    return {prediction.description.split(",")[0]: prediction for prediction in table.predictions}


def test_70b_fits_on_no_8_gpus_without_help_and_the_answer_names_it() -> None:
    rows = _table("llama-2-70b", "8xa100-80gb")
    assert {rows[name].memory.verdict for name in ("DDP", "ZeRO-1", "ZeRO-2")} == {"does not fit"}
    change = rows["FSDP2"].cheapest_change
    assert change is not None
    assert change.description == "ZeRO-3 with the optimizer on the host and full checkpointing"
    assert change.total_gib < 79.2


def test_70b_fits_sharded_over_64_gpus_with_checkpointing() -> None:
    shape, cluster = from_config(preset("llama-2-70b").config), catalogue.parse_cluster("8x8xh100")
    workload = Workload(sequence_length=4096, global_batch=64)
    verdicts = {
        (ranks, checkpointing): predict(
            shape,
            workload,
            cluster,
            TrialConfig(
                strategy=Fsdp2Config(dp_replicate=64 // ranks, dp_shard=ranks), activation_checkpointing=checkpointing
            ),
        ).memory.verdict
        for ranks in (8, 64)
        for checkpointing in ("none", "full")
    }
    assert verdicts.pop((64, "full")) == "fits"
    assert set(verdicts.values()) == {"does not fit"}
    # The table's default shards within a node, does not fit, and names what does.
    row = _table("llama-2-70b", "8x8xh100")["FSDP2"]
    assert row.memory.verdict == "does not fit" and row.cheapest_change is not None
    assert row.cheapest_change.description == "FSDP2 over all ranks and full checkpointing"


def test_whether_it_fits_follows_from_the_interval() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    sized = predict(SEVEN_B, WORKLOAD, CLUSTER, config).memory
    for gib, verdict in (
        (sized.high_gib, "fits"),
        (sized.high_gib - 0.1, "may fit"),
        (sized.low_gib, "may fit"),
        (sized.low_gib - 0.1, "does not fit"),
    ):
        small = CLUSTER.model_copy(update={"memory_gib": gib})
        actual_predict = predict(SEVEN_B, WORKLOAD, small, config)
        assert actual_predict.memory.verdict == verdict
        assert (actual_predict.cheapest_change is None) == (actual_predict.memory.margin_gib >= 0)


def test_terms_add_up_to_the_total() -> None:
    memory = predict(SEVEN_B, WORKLOAD, CLUSTER, TrialConfig(strategy=Fsdp2Config(dp_shard=8))).memory
    assert sum(term.gib for term in memory.terms) == pytest.approx(memory.total_gib)
    assert memory.low_gib < memory.total_gib < memory.high_gib
    assert memory.margin_gib == pytest.approx(memory.capacity_gib - memory.total_gib)
    assert all(term.source for term in memory.terms)


def test_longest_sequence_and_largest_micro_batch_fit_and_are_not_far_from_the_edge() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    row = predict(replace(SEVEN_B, max_positions=None), WORKLOAD, CLUSTER, config)
    at_edge = WORKLOAD.model_copy(update={"sequence_length": row.longest_sequence})
    beyond = WORKLOAD.model_copy(update={"sequence_length": int(row.longest_sequence * 1.2)})
    assert predict(SEVEN_B, at_edge, CLUSTER, config).memory.verdict != "does not fit"
    assert predict(SEVEN_B, beyond, CLUSTER, config).memory.margin_gib < 0


def test_the_longest_sequence_is_never_beyond_what_the_model_allows() -> None:
    row = predict(SEVEN_B, WORKLOAD, CLUSTER, TrialConfig(strategy=Fsdp2Config(dp_shard=8)))
    assert row.longest_sequence == SEVEN_B.max_positions == 4096
    with pytest.raises(ValueError, match=r"sequence_length \(8192\) must not exceed the model's 4096 positions"):
        predicted_table(PredictionRequest(model="llama-2-7b", cluster="8xh100", sequence_length=8192))


def test_the_largest_micro_batch_fits_and_is_not_far_from_the_edge() -> None:
    largest = predict(
        SEVEN_B, Workload(sequence_length=1024, global_batch=8), CLUSTER, TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    ).largest_micro_batch

    def verdict(micro_batch: int) -> str:
        workload = Workload(sequence_length=1024, global_batch=8 * micro_batch)
        config = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=micro_batch)
        return predict(SEVEN_B, workload, CLUSTER, config).memory.verdict

    assert largest > 4 and verdict(largest) != "does not fit"
    assert verdict(int(1.2 * largest) + 1) == "does not fit"


def test_speed_has_an_interval_and_a_bound() -> None:
    speed = predict(SEVEN_B, WORKLOAD, CLUSTER, TrialConfig(strategy=Fsdp2Config(dp_shard=8))).speed
    assert speed is not None
    assert speed.low_tokens_per_s_per_gpu < speed.tokens_per_s_per_gpu < speed.high_tokens_per_s_per_gpu
    assert speed.mfu is not None
    assert 0.2 < speed.mfu < 0.7
    assert speed.bound_by == "compute"
    assert sum(speed.parts_s.values()) == pytest.approx(speed.step_time_s)


def test_the_resource_that_binds_takes_the_largest_fraction_and_offload_is_one_of_them() -> None:
    offloaded = ZeroConfig(stage=3, offload_optimizer=Offload(device="cpu"), offload_param=Offload(device="cpu"))
    short = Workload(sequence_length=128, global_batch=8)
    for workload, bound in ((WORKLOAD, None), (short, "offload to the host")):
        speed = predict(SEVEN_B, workload, CLUSTER, TrialConfig(strategy=offloaded)).speed
        assert speed is not None
        assert sum(speed.resource_fractions.values()) == pytest.approx(1.0)
        assert (
            speed.bound_by
            == next(iter(speed.resource_fractions))
            == max(speed.resource_fractions, key=lambda name: speed.resource_fractions[name])
        )
        assert speed.resource_fractions["offload to the host"] > 0.1
        assert bound in (None, speed.bound_by)


def test_slow_network_binds_full_sharding_and_hsdp_avoids_it() -> None:
    slow = catalogue.parse_cluster("2x4xa100-80gb").model_copy(update={"inter_node_gb_per_s": 1.0})
    workload = Workload(sequence_length=1024, global_batch=64)
    sharded, hybrid = (
        predict(SEVEN_B, workload, slow, TrialConfig(strategy=s, micro_batch=2, activation_checkpointing="full")).speed
        for s in (Fsdp2Config(dp_shard=8), Fsdp2Config(dp_replicate=2, dp_shard=4, grad_sync="last"))
    )
    assert sharded is not None
    assert hybrid is not None
    assert sharded.bound_by == "network"
    assert hybrid.tokens_per_s_per_gpu > 2 * sharded.tokens_per_s_per_gpu


def test_many_candidates_agree_with_one_by_one() -> None:
    configs = [
        TrialConfig(strategy=strategy, micro_batch=m)
        for strategy in (ZeroConfig(stage=3), Fsdp2Config(dp_shard=8))
        for m in (1, 2)
    ]
    workload = Workload(sequence_length=2048, global_batch=16)
    many = evaluate(SEVEN_B, from_configs(configs, 2048, 8, 16), workload, CLUSTER)
    singly = [predict(SEVEN_B, workload, CLUSTER, config, limits=False).memory.total_gib for config in configs]
    assert np.allclose(many.total_gib, singly)


def test_configurations_are_predicted_together_as_one_by_one() -> None:
    strategies = (
        DdpConfig(),
        ZeroConfig(stage=3),
        ZeroConfig(stage=2, offload_optimizer=Offload(device="cpu")),
        Fsdp2Config(dp_shard=8),
        Fsdp2Config(dp_shard=2, tensor_parallel=2, pipeline_parallel=2),
    )
    configs = tuple(
        TrialConfig(strategy=strategy, micro_batch=m, activation_checkpointing=mode)
        for strategy in strategies
        for m, mode in ((1, "none"), (2, "full"))
    )
    workload = Workload(sequence_length=2048, global_batch=64)
    singly = tuple(predict(SEVEN_B, workload, CLUSTER, config) for config in configs)
    assert predict_each(SEVEN_B, workload, CLUSTER, configs) == singly
    # More than one evaluation takes.
    assert predict_each(SEVEN_B, workload, CLUSTER, configs * 6) == singly * 6
    assert predict_each(SEVEN_B, workload, CLUSTER, ()) == ()
    assert any(prediction.cheapest_change for prediction in singly)
    assert len({prediction.largest_micro_batch for prediction in singly}) > 3


@pytest.mark.parametrize(
    ("cluster", "message"),
    [("8xfoo", "not in the catalogue"), ("8xa100", "A100-SXM4-40GB, A100-SXM4-80GB"), ("h100", "must read like")],
    ids=["unknown", "two sizes of memory", "no count"],
)
def test_bad_cluster_is_named_with_a_remedy(cluster: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predicted_table(PredictionRequest(model="llama-2-7b", cluster=cluster))


def test_a_default_batch_beyond_what_a_workload_may_have_is_rejected_with_its_fields() -> None:
    with pytest.raises(ValueError, match=r"micro_batch \(16\) × 73728 ranks × 1 micro batches .* give global_batch"):
        predicted_table(PredictionRequest(model="llama-2-7b", cluster="9216x8xh100", micro_batch=16))


def test_mesh_that_does_not_multiply_up_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"must equal the number of ranks \(8\)"):
        predict(SEVEN_B, WORKLOAD, CLUSTER, TrialConfig(strategy=Fsdp2Config(dp_shard=3)))


def test_sequence_beyond_learned_positions_is_rejected() -> None:
    with pytest.raises(ValueError, match="1024 positions"):
        predicted_table(PredictionRequest(model="gpt2", cluster="8xh100", sequence_length=2048))


def test_unknown_precision_is_rejected() -> None:
    with pytest.raises(ValidationError, match="precision"):
        PredictionRequest.model_validate({"model": "gpt2", "cluster": "8xh100", "precision": "fp4"})


def test_cpu_ranks_have_no_context_and_keep_what_is_offloaded() -> None:
    cluster = CLUSTER.model_copy(update={"device": "cpu", "gpu": "cpu", "gpus_per_node": 2, "memory_gib": 4.0})
    shape = from_config(preset("llama-tiny").config)
    workload = Workload(sequence_length=64, global_batch=4)
    row = predict(shape, workload, cluster, TrialConfig(strategy=Fsdp2Config(dp_shard=2, cpu_offload=True)))
    terms = {term.name: term.gib for term in row.memory.terms}
    assert terms["device context"] == terms["fragmentation"] == 0
    assert terms["offloaded"] > 0


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, shardtune.tuner.prediction.predict; print({'torch', 'transformers', 'optuna', 'fastapi'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("gpu", ["l40s", "b200", "mi300x"])
def test_float8_gains_no_more_on_gpus_without_published_runs_than_on_those_with(gpu: str) -> None:
    """Every published row contradicted a higher gain."""
    gains = [rates_of(catalogue.find(name)).fp8_gain for name in ("h100", gpu)]
    assert gains == [1.25, 1.25]
    table = predicted_table(
        PredictionRequest.model_validate({"model": "llama-3.1-8b", "cluster": f"8x{gpu}", "float8": "tensorwise"})
    )
    assert any("published tensorwise runs on H100" in note for note in table.notes)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"kind": "zero", "stage": 2, "deepcompile": True}, r"deepcompile \(true\) needs GPUs"),
        ({"kind": "fsdp1", "dp_shard": 2, "cpu_offload": True}, "cpu_offload"),
    ],
)
def test_a_configuration_that_no_trial_on_the_cluster_could_run_is_rejected(
    strategy: dict[str, object], message: str
) -> None:
    cluster = {"device": "cpu", "gpus_per_node": 2, "memory_gib": 8, "host_memory_gib": 32}
    request = {"model": "llama-tiny", "cluster": cluster, "sequence_length": 64, "configs": [{"strategy": strategy}]}
    with pytest.raises(ValueError, match=message):
        fastest.answer_request(PredictionRequest.model_validate(request))
