"""What float8 can train, and the words with which everything else is rejected."""

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.strategies import TrialConfig, sample_groups
from shardtune.api_schemas.strategies.recipe_support import float8_support
from shardtune.api_schemas.studies.recipes import changed
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.training.float8_checks import check_model, check_precision
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

WORKLOAD = {"sequence_length": 64, "global_batch": 16, "precision": "bf16-mixed"}
CPU = Cluster(device="cpu", gpus_per_node=4, memory_gib=4, host_memory_gib=16)


def workload(**changes: object) -> Workload:
    return Workload.model_validate(WORKLOAD | {"float8": "tensorwise"} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"float8": "delayed"}, "'tensorwise' or 'rowwise'"),
        ({"float8": True}, "'tensorwise' or 'rowwise'"),
        ({"sequence_length": 60}, r"sequence_length \(60\) with float8 \('tensorwise'\).*try 48 or 64"),
        ({"sequence_length": 10}, r"sequence_length \(10\).*try 16, or leave out float8"),
        ({"adapter": {"kind": "lora"}}, r"adapter \(LoRA r=16\) beside float8 .* leave out one of them"),
        ({"data": {"layout": "padded", "lengths": [[32, 4], [64, 4]]}}, r"beside float8 .* leave out one of them"),
    ],
)
def test_workloads_that_float8_cannot_train_are_rejected(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        workload(**changes)


@pytest.mark.parametrize(
    ("precision", "device", "words"),
    [
        ("bf16-autocast", "cpu", r"precision \(bf16-autocast\) with float8.*use bf16-mixed"),
        ("fp32", "cuda", r"precision \(fp32\) with float8.*use bf16-mixed or bf16-true"),
    ],
)
def test_precisions_on_which_float8_cannot_stand_are_rejected(precision: str, device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_precision(workload(precision=precision), device=device)
    for device in ("cpu", "cuda"):
        check_precision(workload(), device=device)
        check_precision(workload(precision="bf16-true"), device=device)
    check_precision(workload(precision="fp32"), device="cpu")
    check_precision(workload(precision="fp32"), device=None)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2", "n_embd": 64}, r"model_type \('gpt2'\) have none"),
        ({"model_type": "mixtral", "num_local_experts": 4}, r"num_local_experts 4\) are none; leave out float8"),
        ({"model_type": "llama", "hidden_size": 72}, r"hidden_size \(72\); change the model, or leave out float8"),
        ({"model_type": "llama", "intermediate_size": 100}, r"multiples of 16, unlike intermediate_size \(100\)"),
    ],
)
def test_models_whose_blocks_float8_cannot_train_are_rejected(config: dict[str, object], words: str) -> None:
    model = ModelSpec(name="m", config=config)
    with pytest.raises(ValueError, match=words):
        check_model(model, "tensorwise")
    check_model(model, None)


@pytest.mark.parametrize(
    ("backends", "knobs", "is_told"),
    [
        (("ddp", "zero"), {}, True),
        (("zero",), {"stage": [2, 3]}, True),
        (("zero",), {"stage": 2}, False),
        (("ddp", "fsdp2"), {}, False),
    ],
)
def test_a_search_says_that_it_leaves_out_zero_3_where_it_would_search_it(
    backends: tuple[str, ...], knobs: dict[str, object], is_told: bool
) -> None:
    notes = float8_support.dropped_note(backends, knobs, "rowwise")
    assert bool(notes) is is_told and float8_support.dropped_note(backends, knobs, None) == ()
    assert all(note.startswith("space.knobs.stage (3) cannot train") and "not searched" in note for note in notes)


def test_gpt_bigcode_has_linear_layers_unlike_gpt2() -> None:
    check_model(ModelSpec(name="m", config={"model_type": "gpt_bigcode", "n_embd": 64}), "tensorwise")


def test_a_script_of_the_users_converts_its_layers_itself() -> None:
    with pytest.raises(ValueError, match=r"model\.script.*leave out float8"):
        check_model(ModelSpec(name="m", script="mine"), "rowwise")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"strategy": {"kind": "zero", "stage": 3}}, r"strategy\.stage \(3\).*use stage 1 or 2, ddp, fsdp1 or fsdp2"),
        ({"strategy": {"kind": "fsdp2", "tensor_parallel": 2, "dp_shard": 2}}, r"tensor_parallel \(2\).*use 1"),
        ({"strategy": {"kind": "fsdp2", "pipeline_parallel": 2, "dp_shard": 2}}, r"pipeline_parallel \(2\).*use 1"),
        ({"strategy": {"kind": "fsdp2", "dp_shard": 4}, "context_parallel": 2}, r"context_parallel \(2\).*use 1"),
        ({"strategy": {"kind": "zero", "stage": 2, "deepcompile": True}}, r"deepcompile \(true\).*set it to false"),
    ],
)
def test_configurations_that_were_not_compared_in_float8_are_rejected(config: dict[str, object], words: str) -> None:
    trial = TrialConfig.model_validate(config)
    with pytest.raises(ValueError, match=words):
        sample_groups.check(trial, CPU, workload())
    assert not float8_support.can_train(trial, "rowwise")
    assert float8_support.can_train(trial, None)


def test_the_considered_names_add_float8_to_the_stated_precision_and_a_precision_drops_it() -> None:
    stated = workload(float8=None)
    assert changed(stated, "fp8") == workload()
    assert changed(stated, "fp8-rowwise").float8 == "rowwise"
    plain = changed(workload(), "bf16-mixed")
    assert (plain.float8, plain.precision) == (None, PRECISIONS["bf16-mixed"])
    with pytest.raises(ValueError, match="beside float8"):
        changed(workload(float8=None, adapter={"kind": "lora"}), "fp8")


def test_a_study_in_float8_may_consider_its_own_precision_without_it() -> None:
    study = {"model": "llama-tiny", "workload": WORKLOAD | {"float8": "tensorwise"}}
    request = StudyRequest.model_validate(study | {"consider": ["bf16-mixed", "fp8-rowwise"]})
    assert request.with_precision(PRECISIONS["bf16-mixed"]).consider == ("bf16-mixed", "fp8-rowwise")
    with pytest.raises(ValueError, match=r"consider \('fp8'\) is what the workload states already"):
        StudyRequest.model_validate(study | {"consider": ["fp8"]})


def test_answers_without_float8_keep_their_keys() -> None:
    def target(value: Workload) -> TuningTarget:
        return TuningTarget(ModelSpec(name="m", config={"model_type": "llama"}), value, CPU)

    plain, tensorwise, rowwise = (target(workload(float8=name)) for name in (None, "tensorwise", "rowwise"))
    assert "float8" not in plain.canonical()["workload"]
    assert len({each.target_key_without_fingerprint for each in (plain, tensorwise, rowwise)}) == 3
