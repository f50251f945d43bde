"""TRL's loss in a baseline: measured as the release of TRL computes it, and named where it cannot be."""

from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import ResolvedBaseline, resolve_with_notes, trl_loss

TRAINED = Workload(sequence_length=64, global_batch=16)
TWO_RANKS = Cluster(device="cpu", gpus_per_node=2, memory_gib=2, host_memory_gib=8)
TRL: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 8, "bf16": True, "packing": False}
WHOLE = ("full", 1024)
"""Loss of the logits of a whole micro batch; the number is the default of a field without effect."""


@pytest.fixture(autouse=True)
def _no_trl_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_loss, "installed_version", lambda: None)


def read(own: dict[str, Any], model: ModelSpec | None = None) -> ResolvedBaseline:
    return resolve_with_notes(TRL | own, TRAINED, TWO_RANKS, model)


def loss_of(own: dict[str, Any], model: ModelSpec | None = None) -> tuple[str, int]:
    config = read(own, model).config
    assert isinstance(config, TrialConfig)
    return config.loss, config.loss_chunk


def note_of(own: dict[str, Any], key: str = "loss_type", model: ModelSpec | None = None) -> str:
    (note,) = [note for note in read(own, model).notes if note.startswith(f"baseline.{key} ")]
    return note


@pytest.mark.parametrize(
    ("version", "own", "loss"),
    [
        ("0.29.1", {}, WHOLE),
        ("1.3.0", {"loss_type": "nll"}, WHOLE),
        ("1.4.0", {}, WHOLE),
        ("1.4.0", {"loss_type": "chunked_nll"}, ("chunked", 256)),
        ("1.6.0", {}, WHOLE),
        ("1.7.0", {}, ("chunked", 256)),
        ("1.10.0.dev0", {"loss_type": "nll"}, WHOLE),
        ("1.14.2", {}, ("chunked", 256)),
        ("1.14.2", {"use_liger_kernel": True}, WHOLE),
        ("1.15.0", {}, ("chunked", 1024)),
        ("1.16.0", {"loss_type": "nll"}, ("chunked", 1024)),
        ("1.16.0", {"loss_type": "chunked_nll"}, ("chunked", 1024)),
        ("1.16.0", {"use_liger_kernel": True}, ("chunked", 1024)),
        ("1.15rc1", {}, ("chunked", 1024)),
        ("2.0", {}, ("chunked", 1024)),
    ],
)
def test_the_release_of_trl_decides_how_the_loss_is_measured(
    version: str, own: dict[str, Any], loss: tuple[str, int]
) -> None:
    assert loss_of(own | {"trl_version": version}) == loss


def test_an_installed_trl_says_which_release_it_is_and_the_file_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loss_of({}) == ("chunked", 1024)
    assert "TRL 1.16 (assumed; trl_version names another) computes logits in tiles of 4,096 tokens" in note_of({})
    monkeypatch.setattr(trl_loss, "installed_version", lambda: "1.9.2")
    assert loss_of({}) == ("chunked", 256)
    assert note_of({}) == (
        "baseline.loss_type is absent: TRL 1.9.2 (installed here) computes the loss in chunks of 256 tokens; measured so"
    )
    assert loss_of({"trl_version": "1.6.0"}) == WHOLE
    assert note_of({"trl_version": "1.6.0"}).endswith(
        "TRL 1.6.0 computes the logits of a whole micro batch; measured so"
    )


@pytest.mark.parametrize(
    ("words", "chunk"), [(512, 4096), (32_768, 4096), (32_769, 2048), (128_256, 1024), (10**9, 16)]
)
def test_a_chunk_has_about_as_many_logits_as_a_tile_of_trl(words: int, chunk: int) -> None:
    model = ModelSpec.model_validate({"name": "planted", "config": {"model_type": "llama", "vocab_size": words}})
    assert loss_of({}, model) == ("chunked", chunk)
    assert f"measured in chunks of {chunk:,} tokens, with about as many logits at once" in note_of({}, model=model)


def test_a_loss_that_trials_cannot_chunk_is_measured_whole_and_named() -> None:
    own = ModelSpec.model_validate({"script": "planted"})
    routed = preset("mixtral-tiny")
    routed = routed.model_copy(update={"config": routed.config | {"output_router_logits": True}})
    assert loss_of({}, preset("mixtral-tiny"))[0] == "chunked"
    for model, reason in ((own, "your own code computes the loss"), (routed, "the model adds its router's loss")):
        assert loss_of({}, model) == WHOLE
        assert note_of({}, model=model).endswith(f"measured with the logits of a whole micro batch, since {reason}")


def test_ligers_kernels_are_named_as_the_release_has_them() -> None:
    liger = {"use_liger_kernel": True}
    assert "kernels, which TRL 1.16.0 has in the layers alone" in note_of(
        liger | {"trl_version": "1.16.0"}, "use_liger_kernel"
    )
    older = liger | {"trl_version": "1.9.2"}
    assert "measured with the logits of a whole micro batch" in note_of(older, "use_liger_kernel")
    assert not any(note.startswith("baseline.loss_type") for note in read(older).notes)
    partly = {key: value for key, value in TRL.items() if key != "packing"} | liger
    partly |= {"liger_kernel_config": {"fused_linear_cross_entropy": False}}
    notes = resolve_with_notes(partly, TRAINED, TWO_RANKS).notes
    assert "baseline.use_liger_kernel (true) is not applied: trials have none of its kernels" in notes


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"loss_type": "dft"}, r"loss_type \('dft'\) changes what is trained, which no trial does; use nll"),
        ({"loss_type": "chunked_nll", "trl_version": "1.3.0"}, r"'chunked_nll'\) is rejected by TRL 1.3.0; use nll"),
        (
            {"loss_type": "chunked_nll", "trl_version": "1.9.2", "use_liger_kernel": True},
            r"'chunked_nll'\) is rejected beside use_liger_kernel by TRL 1.9.2",
        ),
        (
            {"use_liger_kernel": True, "liger_kernel_config": {"fused_linear_cross_entropy": True}},
            r"liger_kernel_config.fused_linear_cross_entropy \(true\) is rejected by TRL 1.16 \(assumed.*; drop it",
        ),
        ({"trl_version": "1.\uff19"}, r"is no release of TRL"),
        ({"trl_version": "newest"}, r"trl_version \('newest'\) is no release of TRL; give one, such as"),
        ({"trl_version": 1.16}, r"trl_version \(1.16\) must be a string; put it in quotes"),
        ({"beta": 0.1}, r"baseline.beta \(0.1\) is no key of TRL's supervised fine-tuning but of a method"),
        ({"precompute_ref_log_probs": True}, "baseline.precompute_ref_log_probs"),
        ({"num_generations": 8}, "baseline.num_generations"),
    ],
)
def test_a_file_that_trl_rejects_or_that_trains_something_else_is_rejected(own: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(own)


def test_a_key_of_another_method_alone_is_enough_unless_scripts_have_it_too() -> None:
    plain = {key: value for key, value in TRL.items() if key != "packing"}
    assert "baseline.beta is not applied" in resolve_with_notes(plain | {"beta": 0.1}, TRAINED, TWO_RANKS).notes
    with pytest.raises(ValueError, match=r"baseline\.desirable_weight"):
        resolve_with_notes(plain | {"desirable_weight": 1.0}, TRAINED, TWO_RANKS)


@pytest.mark.parametrize(
    "key", ["dataset_text_field", "chat_template_path", "padding_free", "loss_type", "trl_version"]
)
def test_a_key_of_trls_own_makes_a_file_trls(key: str) -> None:
    plain = {name: value for name, value in TRL.items() if name != "packing"}
    value = {"loss_type": "nll", "trl_version": "1.16.0", "padding_free": False}.get(key, "text")
    config = resolve_with_notes(plain | {key: value}, TRAINED, TWO_RANKS).config
    assert config is not None and (config.loss, config.activation_checkpointing) == ("chunked", "full")
    assert key not in ("loss_type", "trl_version") or not any(
        f"baseline.{key} is not applied" in note for note in read({key: value}).notes
    )


def test_a_release_beside_another_programs_file_is_not_applied() -> None:
    deepspeed = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 8, "trl_version": "1.9.2"}
    config, notes = resolve_with_notes(deepspeed, TRAINED, TWO_RANKS)
    assert config is not None and (config.backend, config.loss) == ("zero", "full")
    assert "baseline.trl_version is not applied" in notes


@pytest.mark.parametrize("key", ["max_length", "max_seq_length"])
def test_a_longest_sample_that_is_not_the_workloads_is_noted_with_both_lengths(key: str) -> None:
    said = f"baseline.{key} (1024) is not applied: measured with the workload's sequence_length 64"
    assert said in read({key: 1024}).notes
    for own in ({key: 64}, {key: None}, {}):
        assert not any(key in note for note in read(own).notes)
    with pytest.raises(ValueError, match=rf"baseline\.{key} .* must be a (whole )?number"):
        read({key: "long"})
