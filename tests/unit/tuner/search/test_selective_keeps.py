"""Where the results that selective checkpointing keeps are searched, and which configurations have no choice of them."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.protocol import CannotExpress, expressed
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, sample_groups
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.step_trace import TraceFailure
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.prediction.neighbours import neighbours
from shardtune.tuner.search.space import Space, build
from tests.support.values.tuner_inputs import gpus, llama

SCRIPT = TraceFailure(code="script", message="a script runs its steps itself")
FLOAT8 = {"float8": "tensorwise", "precision": PRECISIONS["bf16-mixed"]}
DORA = {"adapter": {"kind": "lora", "rank": 4, "alpha": 8, "dora": True}, "precision": PRECISIONS["bf16-mixed"]}
SELECTIVE = TrialConfig(strategy=DdpConfig(), activation_checkpointing="selective")
CHOICES = {"products", "second_products", "attention"}


def workload(**changes: Any) -> Workload:
    return Workload.model_validate({"sequence_length": 64, "global_batch": 16, **changes})


def space(
    backend: str = "ddp",
    cluster: Cluster | None = None,
    summary: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **knobs: Any,
) -> Space:
    known = llama("llama-tiny").model_copy(update=summary or {})
    limits = SpaceLimits(backends=(backend,), knobs=knobs)  # type: ignore[arg-type]
    return build(workload(**(training or {})), cluster or gpus(1, 2), known, limits)


def choices(searched: Space) -> set[tuple[str, str]]:
    return {(config.selective_keeps, config.activation_checkpointing) for config in searched.enumerate()}


def test_a_study_that_does_not_name_it_keeps_its_space() -> None:
    assert {keeps for keeps, _mode in choices(space())} == {"products"}
    assert {keeps for keeps, _mode in choices(space(selective_keeps="products"))} == {"products"}
    assert choices(space(selective_keeps="products")) == choices(space())


def test_whoever_names_it_gets_it_with_selective_checkpointing_alone() -> None:
    searched = choices(space(selective_keeps=sorted(CHOICES)))
    assert {keeps for keeps, mode in searched if mode == "selective"} == CHOICES
    assert {keeps for keeps, mode in searched if mode != "selective"} == {"products"}
    assert {mode for _keeps, mode in searched} == {"none", "selective", "full"}


def test_limits_without_the_default_leave_selective_checkpointing_alone() -> None:
    assert choices(space(selective_keeps="attention")) == {("attention", "selective")}
    assert choices(space(selective_keeps=["attention", "second_products"])) == {
        ("attention", "selective"),
        ("second_products", "selective"),
    }


@pytest.mark.parametrize("backend", ["ddp", "zero", "fsdp1", "fsdp2"])
def test_a_sampler_draws_none_that_the_backend_lacks(backend: str) -> None:
    searched = space(backend, selective_keeps=["attention"])
    drawn = [searched.sample(lambda _name, values, at=at: values[at % len(values)]) for at in range(12)]
    configs = [config for config in drawn if config is not None]
    assert configs and all(config.selective_keeps == "attention" for config in configs)
    assert all(getattr(config.strategy, "stage", 1) != 3 for config in configs)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"activation_checkpointing": "full"}, "selective_keeps other than 'products' needs it"),
        ({"activation_offload": True}, r"it needs activation_checkpointing \('selective'\)"),
        ({"activation_memory_budget": 0.5, "compile": True}, r"it needs activation_checkpointing \('selective'\)"),
        ({"backend": "zero", "stage": 3}, r"it needs activation_checkpointing \('selective'\)"),
        ({"summary": {"trace_failure": SCRIPT}}, "nobody has counted the products of your own code"),
        ({"training": {"attention": "eager"}}, r"attention \('eager'\) is not one of torch's kernels"),
    ],
    ids=["full", "offload", "budget", "zero-3", "script", "eager"],
)
def test_limits_that_contradict_it_say_why(others: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=rf"leaves nothing to search: .*{says}"):
        space(selective_keeps="attention", **others)


@pytest.mark.parametrize("training", [FLOAT8, DORA], ids=["float8", "dora"])
def test_a_study_gets_the_choices_that_its_training_allows(training: dict[str, Any]) -> None:
    searched = choices(space(training=training, selective_keeps=sorted(CHOICES)))
    assert {keeps for keeps, _mode in searched} == {"products", "attention"}


@pytest.mark.parametrize("mode", ["none", "full"])
def test_other_checkpointing_is_rejected_with_field_value_and_remedy(mode: str) -> None:
    with pytest.raises(
        ValueError, match=rf"selective_keeps \('attention'\) .*\('{mode}'\) .*to 'selective', or .*'products'"
    ):
        TrialConfig.model_validate(
            {"strategy": {"kind": "ddp"}, "activation_checkpointing": mode, "selective_keeps": "attention"}
        )


@pytest.mark.parametrize("value", ["", "matmuls", "Products", None, True, 1, ["attention"]])
def test_other_values_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match="selective_keeps"):
        TrialConfig.model_validate({**SELECTIVE.model_dump(), "selective_keeps": value})


@pytest.mark.parametrize(
    ("keeps", "training", "model", "says"),
    [
        ("attention", {}, ModelSpec(name="m", entry_point="own"), "nobody has counted"),
        ("second_products", {}, ModelSpec(name="m", entry_point="own"), "nobody has counted"),
        ("attention", {"attention": "eager"}, None, r"attention \('eager'\) is not one of torch's"),
        ("second_products", FLOAT8, None, r"float8 \(tensorwise\) has products of its own"),
        ("second_products", DORA, None, r"dora \(true\) adds products of weights"),
    ],
)
def test_a_training_for_which_it_has_no_meaning_is_rejected(
    keeps: str, training: dict[str, Any], model: ModelSpec | None, says: str
) -> None:
    config = SELECTIVE.model_copy(update={"selective_keeps": keeps})
    with pytest.raises(
        ValueError, match=rf"selective_keeps \('{keeps}'\) is not for this training: {says}.*; use 'products'"
    ):
        sample_groups.check(config, gpus(1, 2), workload(**training), model)


def test_its_description_names_what_is_kept() -> None:
    kept = SELECTIVE.model_copy(update={"selective_keeps": "second_products"})
    assert kept.describe() == "DDP, selective checkpointing, every 2nd product kept, micro batch 1"
    assert "kept" not in SELECTIVE.describe()


def test_the_default_changes_no_content_key_and_no_message() -> None:
    stored = {name: value for name, value in SELECTIVE.model_dump().items() if name != "selective_keeps"}
    assert TrialConfig.model_validate(stored).content_key() == SELECTIVE.content_key()
    assert "selective_keeps" not in expressed(SELECTIVE, 1)
    with pytest.raises(CannotExpress, match="selective_keeps"):
        expressed(SELECTIVE.model_copy(update={"selective_keeps": "attention"}), 1)


def test_advice_to_checkpoint_whole_blocks_says_nothing_of_kept_results() -> None:
    config = SELECTIVE.model_copy(update={"strategy": Fsdp2Config(dp_shard=2), "selective_keeps": "second_products"})
    near = {
        (item.config.activation_checkpointing, item.config.selective_keeps) for item in neighbours(config, gpus(1, 2))
    }
    assert near == {("selective", "second_products"), ("full", "products")}


def test_attention_alone_is_not_tried_for_a_model_that_a_worker_built_without_fused_attention() -> None:
    searched = choices(space(summary={"attention": "eager"}, selective_keeps=sorted(CHOICES)))
    assert {keeps for keeps, _mode in searched} == {"products", "second_products"}
    with pytest.raises(ValueError, match=r"leaves nothing to search: .*attention \('eager'\) is not one of torch's"):
        space(summary={"attention": "eager"}, selective_keeps="attention")


def test_every_reason_is_given_where_no_choice_is_left() -> None:
    training = FLOAT8 | {"attention": "eager"}
    with pytest.raises(ValueError, match=r"attention \('eager'\) is not one of torch's kernels"):
        space(training=training, selective_keeps="attention")
