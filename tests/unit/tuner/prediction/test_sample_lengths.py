"""Predictions for samples of several lengths: time by padded tokens, memory by the longest, speed by the samples' own."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig, sample_groups
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.predictions import Prediction, PredictionRequest
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.catalogue import parse_cluster
from shardtune.tuner.prediction.memory_gate import reject_if_too_large
from shardtune.tuner.prediction.predict import predict
from shardtune.tuner.search import fastest
from shardtune.tuner.verdict import short_steps
from tests.support.values.prediction_tables import predicted_table
from tests.support.values.synthetic_studies import study_of
from tests.support.values.tuner_inputs import shape

MIXED = {"lengths": [[100, 700], [400, 200], [1000, 90], [4096, 10]]}
CLUSTER = parse_cluster("8xh100")
FSDP2 = Fsdp2Config(dp_shard=8)


def predicted(data: Any, strategy: Any = FSDP2, micro_batch: int = 4, **changes: Any) -> Prediction:
    workload = Workload.model_validate({"sequence_length": 4096, "global_batch": 128, "data": data} | changes)
    return predict(shape("llama-3.1-8b"), workload, CLUSTER, TrialConfig(strategy=strategy, micro_batch=micro_batch))


def test_samples_of_one_length_are_predicted_as_without_lengths() -> None:
    plain, same = predicted(None), predicted({"lengths": [4096]})
    assert plain.speed is not None and same.speed is not None
    assert same.memory == plain.memory
    assert same.speed.tokens_per_s_per_gpu == pytest.approx(plain.speed.tokens_per_s_per_gpu)
    assert (plain.speed.padding_fraction, same.speed.padding_fraction) == (None, 0.0)


def test_memory_is_that_of_the_longest_sample_and_time_that_of_the_padded_mean() -> None:
    plain, mixed = predicted(None), predicted(MIXED)
    assert plain.speed is not None and mixed.speed is not None
    assert mixed.memory.total_gib > plain.memory.total_gib, "a mask of padding"
    assert mixed.speed.step_time_s < 0.5 * plain.speed.step_time_s
    # The samples' own tokens: 320 of them on average.
    own = 128 * (700 * 100 + 200 * 400 + 90 * 1000 + 10 * 4096) / 1000 / 8
    assert mixed.speed.tokens_per_s_per_gpu * mixed.speed.step_time_s == pytest.approx(own, rel=0.001)
    assert mixed.speed.tokens_per_s_per_gpu < plain.speed.tokens_per_s_per_gpu


def test_grouped_samples_are_faster_and_of_the_same_memory() -> None:
    padded, grouped = predicted(MIXED), predicted(MIXED | {"layout": "grouped"})
    assert padded.speed is not None and grouped.speed is not None
    assert grouped.speed.padding_fraction is not None and padded.speed.padding_fraction is not None
    assert grouped.speed.padding_fraction < 0.5 * padded.speed.padding_fraction
    assert grouped.speed.tokens_per_s_per_gpu > 1.3 * padded.speed.tokens_per_s_per_gpu
    assert grouped.memory == padded.memory


def test_larger_micro_batches_pad_more() -> None:
    fractions = [
        speed.padding_fraction
        for size in (1, 2, 4, 8)
        if (speed := predicted(MIXED, micro_batch=size).speed) is not None
    ]
    assert fractions[0] == 0.0 and fractions == sorted(fractions, key=float)


def test_the_gate_rejects_by_the_longest_sample() -> None:
    for lengths, fits in (([[100, 1000]], True), ([[100, 1000], [4096, 1]], False)):
        workload = Workload.model_validate({"sequence_length": 4096, "global_batch": 128, "data": {"lengths": lengths}})
        config = TrialConfig(strategy=FSDP2, micro_batch=16)
        rejection = reject_if_too_large(
            config, shape("llama-3.1-8b"), workload, CLUSTER, Objective(), MemoryCalibration()
        )
        assert (rejection is None) == fits


def test_a_request_defaults_to_the_longest_sample() -> None:
    table = predicted_table(PredictionRequest(model="llama-3.1-8b", cluster="8xh100", data={"lengths": [100, 5000]}))  # type: ignore[arg-type]
    assert table.sequence_length == 5000
    assert any("speeds count the samples' own tokens" in note for note in table.notes)


def test_the_fastest_configurations_share_no_samples() -> None:
    request = PredictionRequest.model_validate(
        {"model": "llama-3.1-8b", "cluster": "8xh100", "global_batch": 64, "data": MIXED, "top": 20}
    )
    table = fastest.answer_request(request)
    assert table.fastest and all(row.config.sharing == 1 for row in table.fastest)
    # Whole micro batches of few samples pad less: the ranking differs from that of samples of one length.
    assert table.fastest[0].config.micro_batch <= 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TrialConfig(strategy=DdpConfig(), context_parallel=2), "context_parallel (2) gives each rank an equal part"),
        (TrialConfig(strategy=Fsdp2Config(dp_shard=4, tensor_parallel=2)), "tensor_parallel (2) divides the positions"),
        (
            TrialConfig(strategy=Fsdp2Config(dp_shard=4, pipeline_parallel=2)),
            "pipeline_parallel (2) sends hidden states",
        ),
        (TrialConfig(strategy=Fsdp2Config(dp_shard=8, expert_parallel=2)), "expert_parallel (2) exchanges tokens"),
        (TrialConfig(strategy=ZeroConfig(stage=3, deepcompile=True)), "deepcompile (true) builds its program"),
    ],
)
def test_ranks_that_would_share_ragged_samples_are_rejected(config: TrialConfig, message: str) -> None:
    workload = Workload.model_validate({"sequence_length": 4096, "global_batch": 128, "data": MIXED})
    with pytest.raises(ValueError, match="workload") as error:
        sample_groups.check(config, CLUSTER, workload)
    assert message in str(error.value)


def test_studies_with_lengths_have_whole_steps() -> None:
    """Micro batches of several lengths take different times: two small numbers of them do not show what one more takes."""
    spec = study_of().spec
    for data, is_short in ((None, True), (MIXED, False)):
        workload = Workload.model_validate({"sequence_length": 4096, "global_batch": 512, "data": data})
        samples = short_steps.parity_samples(spec.model_copy(update={"workload": workload}), CLUSTER, 100.0)
        assert (samples is not None) == is_short


def test_packed_rows_cost_whole_scores_unless_the_kernel_skips_other_samples() -> None:
    packed = MIXED | {"layout": "packed"}
    full, whole, skipped = (
        predicted(data, global_batch=32, attention=attention)
        for data, attention in ((None, "sdpa"), (packed, "sdpa"), (packed, "flash_attention_2"))
    )
    assert full.speed is not None and whole.speed is not None and skipped.speed is not None
    assert whole.speed.step_time_s > full.speed.step_time_s > skipped.speed.step_time_s
    assert whole.speed.padding_fraction is not None and whole.speed.padding_fraction < 0.02
    # sdpa keeps a mask of the samples.
    assert whole.memory.total_gib > full.memory.total_gib >= skipped.memory.total_gib


def test_packing_computes_less_padding_than_grouping() -> None:
    packed, grouped = (predicted(MIXED | {"layout": layout}) for layout in ("packed", "grouped"))
    assert packed.speed is not None and grouped.speed is not None
    assert packed.speed.padding_fraction is not None and grouped.speed.padding_fraction is not None
    assert packed.speed.padding_fraction < grouped.speed.padding_fraction


def test_a_batch_of_packed_samples_counts_rows() -> None:
    for layout, unit in (("padded", "samples"), ("packed", "packed rows")):
        asked = {
            "model": "llama-3.1-8b",
            "cluster": "8xh100",
            "sequence_length": 4096,
            "data": MIXED | {"layout": layout},
        }
        assert predicted_table(PredictionRequest.model_validate(asked)).batch_counts == unit


def test_an_architecture_whose_samples_see_each_other_is_not_predicted_packed() -> None:
    values = {
        "model": "gpt-oss-20b",
        "cluster": "8xh100",
        "sequence_length": 4096,
        "data": MIXED | {"layout": "packed"},
    }
    with pytest.raises(ValueError, match=r"data.layout \('packed'\) with model_type \('gpt_oss'\)"):
        predicted_table(PredictionRequest.model_validate(values))
