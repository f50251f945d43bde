"""Packed samples in exported files, and in the files that users bring."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import resolve_with_notes
from shardtune.tuner.export import accelerate, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of

GPUS = Cluster(gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
PACKED = {"lengths": [[8, 90], [30, 10]], "layout": "packed"}


def source(data: Any = PACKED, strategy: Any = None, attention: str = "sdpa") -> ExportSource:
    study = study_of("llama-tiny", "bf16-mixed", GPUS, global_batch=32)
    values = {**study.spec.workload.model_dump(), "data": data, "attention": attention}
    spec = study.spec.model_copy(update={"workload": Workload.model_validate(values)})
    config = TrialConfig(strategy=strategy or DdpConfig(), micro_batch=2)
    return ExportSource.of(study.model_copy(update={"spec": spec}), contender_of(config))


def test_trl_packs_best_fit_decreasing_into_rows_of_the_trial() -> None:
    packed = source()
    rendered = trl.render(packed)
    values = yaml.safe_load(rendered.files[trl.CONFIG])
    assert (values["packing"], values["packing_strategy"]) == (True, "bfd")
    assert values["max_length"] == packed.workload.sequence_length
    assert any("TRL joins the packed rows of a micro batch into one" in line for line in rendered.lossy)
    assert not any("joins" in line for line in trl.render(source(attention="flash_attention_2")).lossy)
    assert yaml.safe_load(trl.render(source(None)).files[trl.CONFIG])["packing"] is False


def test_tools_pack_without_letting_samples_see_each_other() -> None:
    packed = source()
    factory = yaml.safe_load(llama_factory.render(packed).files[llama_factory.CONFIG])
    assert factory["packing"] and factory["neat_packing"]
    tuned = yaml.safe_load(axolotl.render(packed).files[axolotl.CONFIG])
    assert tuned["sample_packing"] and tuned["pad_to_sequence_len"] and "group_by_length" not in tuned
    assert tuned["sequence_len"] == packed.workload.sequence_length


def test_llama_factory_is_told_flash_attention_by_its_own_name() -> None:
    """`auto` would leave transformers' default, sdpa (0.9.5)."""
    flash = llama_factory.render(source(attention="flash_attention_2"))
    assert yaml.safe_load(flash.files[llama_factory.CONFIG])["flash_attn"] == "fa2"
    assert not any(line.startswith("attention:") for line in flash.lossy)


def test_swift_packs_with_flash_attention_and_says_so() -> None:
    rendered = ms_swift.render(source())
    text = "".join(rendered.files.values())
    assert "flash_attention_2" in text and "sdpa" not in rendered.files[ms_swift.CONFIG].split("attn_impl")[1][:30]
    assert any("ms-swift packs with flash attention alone" in line for line in rendered.lossy)


def test_programs_without_packing_name_positions_and_the_missing_mask() -> None:
    packed = source()
    texts = [
        *training_arguments.render(packed).lossy,
        accelerate.document(packed),
        "\n".join(lightning.render(packed).lossy),
        snippet.source(packed),
    ]
    assert sum("position_ids" in text and ("attention_mask" in text or "attention mask" in text) for text in texts) == 4
    compile(texts[-1], "train_snippet.py", "exec")
    assert any("flex attention" in line for line in torchtitan.render(source(strategy=Fsdp2Config(dp_shard=8))).lossy)


def texts_of(packed: ExportSource) -> list[str]:
    """What the programs of a user's own loop are told."""
    rendered = ("\n".join(item.render(packed).lossy) for item in (training_arguments, lightning))
    return [*rendered, accelerate.document(packed), snippet.source(packed)]


def test_several_packed_rows_with_flash_attention_need_the_bounds_of_their_samples() -> None:
    """transformers reads positions only where a batch has one row."""
    several = source(attention="flash_attention_2")
    contender = several.contender
    single = contender.config.model_copy(update={"micro_batch": 1})
    one_row = replace(several, contender=contender.model_copy(update={"config": single}))
    for text in texts_of(several):
        assert all(name in text for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"))
    for other in (one_row, source(), source(None, attention="flash_attention_2")):
        assert not any("cu_seq_lens" in text for text in texts_of(other))
    compile(snippet.source(several), "train_snippet.py", "exec")


def test_the_script_lets_transformers_look_for_packed_samples_where_rows_are_packed() -> None:
    packed, whole = snippet.source(source()), snippet.source(source(None))
    assert "masking_utils" not in packed and "Samples are not packed here" not in packed
    assert "masking_utils.find_packed_sequence_indices = lambda position_ids: None" in whole
    compile(whole, "train_snippet.py", "exec")


def test_an_exported_file_of_trl_is_read_back_as_packed() -> None:
    packed = source(attention="flash_attention_2")
    values = yaml.safe_load(trl.render(packed).files[trl.CONFIG])
    notes = resolve_with_notes(values, packed.workload, packed.cluster).notes
    assert not any("packing" in note for note in notes)
    padded = packed.workload.model_copy(update={"data": SampleLengths.model_validate(PACKED | {"layout": "padded"})})
    whole = packed.workload.model_copy(update={"data": None})
    assert any(
        "packing: measured with full rows" in note for note in resolve_with_notes(values, whole, packed.cluster).notes
    )
    for changes, workload, words in (
        ({}, padded, r"packing \(true\) packs samples, but the workload's data.layout is 'padded'"),
        ({"packing": False}, packed.workload, r"packing \(false\), but the workload's data.layout is 'packed'"),
        ({"packing_strategy": "wrapped"}, packed.workload, r"packing_strategy \('wrapped'\) cuts samples .*use bfd"),
    ):
        with pytest.raises(ValueError, match=words):
            resolve_with_notes(values | changes, workload, packed.cluster)
    unstated = {key: value for key, value in values.items() if not key.startswith("packing")}
    assert resolve_with_notes(unstated, packed.workload, packed.cluster).config is not None


@pytest.mark.parametrize(("tool", "config"), [(axolotl, "ddp"), (llama_factory, "fsdp2"), (ms_swift, "ddp")])
def test_an_exported_file_is_read_back_as_packed(tool: Any, config: str) -> None:
    packed = source(attention="flash_attention_2", strategy=Fsdp2Config(dp_shard=8) if config == "fsdp2" else None)
    values = yaml.safe_load(tool.render(packed).files[tool.CONFIG])
    assert resolve_with_notes(values, packed.workload, packed.cluster).config is not None
    grouped = packed.workload.model_copy(update={"data": SampleLengths.model_validate(PACKED | {"layout": "padded"})})
    with pytest.raises(
        ValueError, match=r"packs samples, but the workload's data.layout is 'padded'; use layout 'packed'"
    ):
        resolve_with_notes(values, grouped, packed.cluster)
