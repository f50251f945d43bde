"""Predictions of the user's own code follow the trace of one step, and nothing is predicted without one."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import BlockSummary, ModelSpec, ModelSummary
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.step_trace import Scaled, StepTrace, StepWork, TraceFailure
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.objective import Objective
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import catalogue, learning, traced_shape
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS, PARTS, TRACED
from shardtune.tuner.prediction.memory_gate import reject_if_too_large
from shardtune.tuner.prediction.shapes import calibration_choice
from shardtune.tuner.search import fastest
from shardtune.tuner.search.space import build
from tests.support.service.simulated_worker import measurement
from tests.support.values.tuner_inputs import gpus

MIB = 1 << 20
BLOCK = 12_000_000
OWN = ModelSpec(name="own", entry_point="own")
WORKLOAD = Workload(sequence_length=512, global_batch=64, precision=PRECISIONS["bf16-mixed"])
TRACE = StepTrace(
    sequence_length=512,
    compute_dtype="bfloat16",
    samples=(2, 4),
    peak=Scaled(fixed=1, per_sample=900 * MIB),
    outside=Scaled(fixed=3 * MIB, per_sample=2 * MIB),
    block=Scaled(per_sample=100 * MIB),
    boundary=Scaled(per_sample=2 * MIB),
    selective=Scaled(per_sample=30 * MIB),
    working=Scaled(per_sample=40 * MIB),
    loss=Scaled(per_sample=70 * MIB),
    tail=Scaled(per_sample=5 * MIB),
    blocks_forward=StepWork(matmul_flops=8e12, attention_flops=1e11, traffic=Scaled(per_sample=4e9), kernels=160),
    outside_forward=StepWork(matmul_flops=1e12, traffic=Scaled(per_sample=1e9), kernels=10),
    backward=StepWork(matmul_flops=18e12, attention_flops=2.5e11, traffic=Scaled(per_sample=8e9), kernels=340),
    block_tensors=(4_000_000, 8_000_000),
    outside_tensors=(5_000_000,),
    trained_outside=5_000_000,
)
SUMMARY = ModelSummary(
    parameters=8 * BLOCK + 5_000_000,
    active_parameters=8 * BLOCK + 5_000_000,
    blocks=tuple(
        BlockSummary(
            name=f"blocks.{number}",
            parameters=BLOCK,
            largest_parameter=8_000_000,
            matrix_parameters=BLOCK,
            forward_flops_per_token=None,
        )
        for number in range(8)
    ),
    block_class="Block",
    forward_flops_per_token=9.1e12 / 512,
    hidden_size=0,
    vocab_size=0,
    max_positions=None,
    step_trace=TRACE,
)


def gib(config: TrialConfig, summary: ModelSummary = SUMMARY) -> float:
    prediction = learning.predict_trial(traced_shape.of_study(OWN, summary), WORKLOAD, gpus(), config, NO_CALIBRATIONS)
    assert prediction is not None
    return prediction.memory_gib


def test_memory_grows_by_what_the_trace_says_that_a_sample_adds() -> None:
    one, two = (gib(TrialConfig(strategy=DdpConfig(), micro_batch=size)) for size in (1, 2))
    # At the loss: eight blocks, what stands outside, the loss itself, and what a GPU's allocator keeps for a block.
    assert two - one == pytest.approx((8 * 100 + 2 + 70 + 40) / 1024, rel=0.01)


def test_checkpointed_blocks_keep_what_was_traced_at_their_boundary() -> None:
    def kept(mode: str) -> float:
        return gib(TrialConfig(strategy=DdpConfig(), micro_batch=8, activation_checkpointing=mode))

    assert kept("full") < kept("selective") < kept("none")
    assert kept("none") - kept("selective") == pytest.approx(8 * 8 * (100 - 32) / 1024, rel=0.15)


@pytest.mark.parametrize("strategy", [DdpConfig(), ZeroConfig(stage=2), ZeroConfig(stage=3), Fsdp2Config(dp_shard=8)])
def test_the_gate_rejects_own_code_that_a_planted_limit_cannot_hold_and_nothing_else(strategy: object) -> None:
    config = TrialConfig.model_validate({"strategy": strategy, "micro_batch": 8})
    shape = traced_shape.of_study(OWN, SUMMARY)
    need = gib(config)
    for limit, rejected in ((0.6 * need, True), (1.2 * need, False)):
        cluster = gpus(memory_gib=limit)
        calibration = calibration_choice.memory_calibration(NO_CALIBRATIONS, shape)
        rejection = reject_if_too_large(config, shape, WORKLOAD, cluster, Objective(), calibration)
        assert (rejection is not None) == rejected, (limit, rejection)


def test_a_model_without_repeated_blocks_is_one_unit() -> None:
    trace = TRACE.model_copy(update={"block_tensors": (8 * BLOCK,), "outside_tensors": (), "trained_outside": 0})
    summary = SUMMARY.model_copy(update={"blocks": (), "step_trace": trace})
    sharded = gib(TrialConfig(strategy=Fsdp2Config(dp_shard=8)), summary)
    assert 0 < sharded < gib(TrialConfig(strategy=DdpConfig()), summary)


def test_frozen_parameters_have_no_states() -> None:
    frozen = SUMMARY.model_copy(
        update={"trainable_parameters": 800_000, "step_trace": TRACE.model_copy(update={"trained_outside": 0})}
    )
    config = TrialConfig(strategy=DdpConfig(), micro_batch=8)
    # At the loss of the only micro batch: two moments, buckets for gradients, and the allocator's pool for the buckets.
    states = 16 * (SUMMARY.parameters - 800_000) / 2**30
    assert gib(config) - gib(config, frozen) == pytest.approx(states, rel=0.1)


def request(**changes: object) -> PredictionRequest:
    values = {"model": OWN, "cluster": "8xh100", "sequence_length": 512, "precision": "bf16-mixed", "global_batch": 64}
    return PredictionRequest.model_validate({**values, "model_summary": SUMMARY, **changes})


def test_own_code_is_ranked_by_its_traced_work() -> None:
    table = fastest.answer_request(request())
    assert table.fastest and table.predictions
    speeds = [row.speed for row in table.fastest if row.speed is not None]
    assert speeds[0].mfu is not None and 0.01 < speeds[0].mfu < 1
    assert {row.longest_sequence for row in table.predictions} == {512}
    assert any("one traced step" in note for note in table.notes)


def test_own_code_that_fits_on_the_device_but_not_into_host_memory_fits_at_no_length() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8, cpu_offload=True))
    cluster = catalogue.parse_cluster("8xh100")
    for host_gib, longest in ((cluster.host_memory_gib, 512), (0.5, 0)):
        small = cluster.model_copy(update={"host_memory_gib": host_gib})
        (row,) = fastest.answer_request(request(cluster=small, configs=(config,))).predictions
        assert (row.longest_sequence, row.largest_micro_batch > 0) == (longest, longest > 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence_length": 1024}, "sequence_length (1024) must be 512"),
        ({"precision": "fp32"}, "precision (fp32) must compute in bfloat16"),
        ({"model_summary": None}, "--allow-model"),
        (
            {
                "model_summary": SUMMARY.model_copy(
                    update={
                        "step_trace": None,
                        "trace_failure": TraceFailure(code="data_dependent", message="the step reads values"),
                    }
                )
            },
            "nothing is predicted for your own code (data_dependent): the step reads values",
        ),
    ],
)
def test_what_the_trace_does_not_say_is_an_error_that_says_so(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        fastest.answer_request(request(**changes))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlp_slices": 4}, "mlp_slices (4) is not for this training: your own code computes the MLPs; use 1"),
        ({"loss": "chunked"}, "loss ('chunked') is not for this model: your own code computes the loss; use 'full'"),
        (
            {"compile": True, "activation_memory_budget": 0.5},
            "activation_memory_budget (0.5) is not for this training: your own code may draw random numbers",
        ),
    ],
    ids=["slices", "loss", "budget"],
)
def test_what_no_trial_of_own_code_can_have_is_rejected(changes: dict[str, object], words: str) -> None:
    config = TrialConfig.model_validate({"strategy": DdpConfig(), **changes})
    with pytest.raises(ValueError) as caught:
        fastest.answer_request(request(configs=(config,)))
    assert words in str(caught.value)


def test_own_code_is_searched_without_mlp_slices_even_if_its_summary_lacks_the_note() -> None:
    assert SUMMARY.mlp_note is None
    limits = SpaceLimits(backends=("ddp",), knobs={"micro_batch": 8, "activation_checkpointing": "none"})
    searched = build(WORKLOAD, gpus(), SUMMARY, limits)
    assert {config.mlp_slices for config in searched.enumerate()} == {1}


def comparisons(trace: StepTrace | None, ratio: float, count: int = 6) -> list[learning.ComparedRun]:
    """Runs whose peaks and steps were so many times their predictions."""
    parts = {1.0: dict.fromkeys(PARTS, 0.1)}
    config, seconds = TrialConfig(strategy=DdpConfig()), 0.1 * len(PARTS) * ratio
    run = learning.ComparedRun("study", config, False, (10.0, 10.0 * ratio), parts, seconds, trace)
    return [run] * count


def test_own_code_far_off_teaches_nothing_about_other_models() -> None:
    others = comparisons(None, 1.02)
    calibrations = learning.learn([*comparisons(TRACE, 0.2), *others])
    alone = learning.learn(others)
    assert (calibrations.memory, calibrations.speed) == (alone.memory, alone.speed)
    other_code = TRACE.model_copy(update={"tied": True})
    shape = traced_shape.of_study(OWN, SUMMARY.model_copy(update={"step_trace": other_code}))
    assert calibration_choice.memory_calibration(calibrations, shape) == TRACED
    assert calibration_choice.speed_calibration(calibrations, shape) == alone.speed


def test_own_code_keeps_its_wide_prior_beside_other_models_and_learns_from_its_own_trials() -> None:
    shape = traced_shape.of_study(OWN, SUMMARY)
    others = comparisons(None, 1.02, count=40)
    assert calibration_choice.memory_calibration(learning.learn(others), shape) == TRACED
    one = calibration_choice.memory_calibration(learning.learn([*comparisons(TRACE, 1.3, count=1), *others]), shape)
    assert one.rows == 1 and one.factor > 1 and one.sigma > 0.12
    slow = learning.learn([*comparisons(TRACE, 1.3), *others])
    assert calibration_choice.speed_calibration(slow, shape).rows == 46


def test_casts_by_autocast_count_once_as_the_trace_has_them() -> None:
    """The trace of a step under autocast contains each cast of a weight and of its gradient."""

    def elementwise_s(autocast: bool) -> float:
        precision = PRECISIONS["bf16-autocast" if autocast else "bf16-mixed"]
        summary = SUMMARY.model_copy(update={"step_trace": TRACE.model_copy(update={"autocast": autocast})})
        shape = traced_shape.of_study(OWN, summary)
        assert shape is not None
        workload = WORKLOAD.model_copy(update={"precision": precision})
        config, cluster = TrialConfig(strategy=DdpConfig()), catalogue.parse_cluster("8xh100")
        run = learning.compare(learning.MeasuredTrials(shape, workload, cluster, [config], [measurement(1000.0)]))[0]
        return run.parts_by_host[1.0]["elementwise"]

    # What autocast changes beside casts: gradients accumulate in float32.
    assert elementwise_s(True) == pytest.approx(elementwise_s(False), rel=0.02)
