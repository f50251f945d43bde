"""Models that are rejected with a reason before a worker looks at them."""

import pytest

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.training.optimizers import AdamWBf16
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.service.http.errors import Invalid
from shardtune.service.studies import model_checks, validation
from shardtune.tuner import baseline
from shardtune.tuner.prediction import catalogue, prediction_request
from tests.support.service.simulated_worker import CLUSTER
from tests.support.values.synthetic_studies import study_of

LLAMA = preset("llama-tiny").config


def spec(config, **workload) -> StudySpec:
    recorded_spec = study_of().spec
    model = ModelSpec(name="x", config=config)
    return recorded_spec.model_copy(
        update={"model": model, "workload": recorded_spec.workload.model_copy(update=workload)}
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "use a decoder-only one"),
        ({"model_type": "t5", "d_model": 512}, "use a decoder-only one"),
        ({"model_type": "vit"}, "is a vision model"),
        ({"model_type": "bert"}, "set is_decoder to true"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "trains quantised weights"),
        ({**LLAMA, "num_attention_heads": 7}, "multiple of num_attention_heads (7)"),
        ({"model_type": "llama"}, "hidden_size is missing"),
        (
            {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"} | {"num_hidden_layer": 2},
            "did you mean num_hidden_layers?",
        ),
        ({**LLAMA, "num_layers": 40}, "which is what llama reads; remove num_layers"),
        ({**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 3}, "multiple of num_key_value_heads (3)"),
    ],
)
def test_what_no_trial_could_train_is_rejected_with_field_value_and_remedy(config, says):
    with pytest.raises(Invalid) as rejected:
        model_checks.check(spec(config), CLUSTER)
    (error,) = rejected.value.errors
    assert error.field.startswith("model.config.") and says in error.message


def test_of_a_multimodal_model_the_text_part_is_trained_and_said():
    text = {**LLAMA, "model_type": "gemma3_text"}
    model = ModelSpec(name="g", config={"model_type": "gemma3", "text_config": text, "vision_config": {"x": 1}})
    assert (model.model_type, model.trained_config) == ("gemma3_text", text)
    assert model_checks.model_notes(model) == (
        "gemma3 is multimodal: its text part (gemma3_text) is trained and measured, nothing else of it",
    )
    assert model_checks.model_notes(ModelSpec(name="l", config=LLAMA)) == ()
    with pytest.raises(Invalid, match="trains quantised weights"):
        model_checks.check(spec(model.config | {"quantization_config": {"bits": 4}}), CLUSTER)


def test_a_family_without_closed_form_may_leave_dimensions_to_transformers():
    model_checks.check(spec({"model_type": "gemma2"}), CLUSTER)


def test_a_key_that_is_nearly_a_dimension_is_remarked_upon():
    (stated,) = model_checks.model_notes(ModelSpec(name="l", config={**LLAMA, "num_hidden_layer": 9}))
    assert stated == "num_hidden_layer in the model's config is not read; did you mean num_hidden_layers?"


def test_flash_attention_is_rejected_on_cpu_ranks():
    with pytest.raises(Invalid, match="runs on GPUs only"):
        model_checks.check(spec(LLAMA, attention="flash_attention_2"), CLUSTER)


GPUS = {"cluster": "8xh100"}
FLASH = {"sequence_length": 64, "global_batch": 64, "attention": "flash_attention_2"}


@pytest.mark.parametrize(
    "precision", ["fp32", {"master_dtype": "float32", "compute_dtype": "float32", "reduce_dtype": "float32"}]
)
def test_flash_attention_is_rejected_where_it_has_no_kernels(precision):
    request = StudyRequest.model_validate({"model": "llama-tiny", "workload": FLASH | {"precision": precision}, **GPUS})
    with pytest.raises(Invalid, match=r"precision \(fp32\)") as rejected:
        validation.check_without_worker(request, catalogue.parse_cluster("8xh100"))
    (error,) = rejected.value.errors
    assert (
        error.field == "workload.attention" and "use attention sdpa or eager, or precision bf16-mixed" in error.message
    )
    with pytest.raises(Invalid, match="flash_attention_2"):
        validation.check_without_worker(request, None)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-autocast", "bf16-true", "auto"])
def test_flash_attention_passes_where_it_computes_in_bfloat16(precision):
    request = StudyRequest.model_validate({"model": "llama-tiny", "workload": FLASH | {"precision": precision}, **GPUS})
    validation.check_without_worker(request, catalogue.parse_cluster("8xh100"))


def test_a_recipe_without_flash_attention_is_no_recipe_to_consider_with_it():
    request = StudyRequest.model_validate(
        {"model": "llama-tiny", "workload": FLASH | {"precision": "bf16-mixed"}, "consider": ["fp32"], **GPUS}
    )
    with pytest.raises(Invalid, match=r"consider \('fp32'\): attention \('flash_attention_2'\)"):
        validation.check_without_worker(request, catalogue.parse_cluster("8xh100"))


def test_a_prediction_of_flash_attention_in_float32_is_rejected():
    request = PredictionRequest.model_validate(
        {"model": "llama-2-7b", "precision": "fp32", "attention": "flash_attention_2", **GPUS}
    )
    with pytest.raises(ValueError, match="computes in float16 or bfloat16"):
        prediction_request.resolve(request)


@pytest.mark.parametrize("config", [LLAMA, {"model_type": "bert", "is_decoder": True}, preset("gpt2").config])
def test_others_pass(config):
    model_checks.check(spec(config), CLUSTER)


@pytest.mark.parametrize("sizes", [2, (1, 2)])
def test_stages_of_tied_weights_are_rejected_under_stochastic_rounding(sizes):
    workload = {"optimizer": AdamWBf16(), "precision": PRECISIONS["bf16-true"]}
    limits = SpaceLimits(backends=("fsdp2",), knobs={"pipeline_parallel": sizes})
    tied = spec({**LLAMA, "tie_word_embeddings": True}, **workload).model_copy(update={"space": limits})
    with pytest.raises(Invalid, match=r"space.knobs.pipeline_parallel \(2\) holds tied weights twice.*use 1, or adamw"):
        model_checks.check(tied, CLUSTER)
    model_checks.check(
        spec({**LLAMA, "tie_word_embeddings": False}, **workload).model_copy(update={"space": limits}), CLUSTER
    )
    model_checks.check(spec({**LLAMA, "tie_word_embeddings": True}).model_copy(update={"space": limits}), CLUSTER)


def test_a_baseline_with_stages_of_tied_weights_is_rejected_under_stochastic_rounding():
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2), micro_batch=1)
    workload = spec(LLAMA, optimizer=AdamWBf16(), precision=PRECISIONS["bf16-true"]).workload
    with pytest.raises(ValueError, match=r"baseline.pipeline_parallel \(2\) holds tied weights twice"):
        baseline.resolve(config, workload, CLUSTER, ModelSpec(name="x", config={**LLAMA, "tie_word_embeddings": True}))
