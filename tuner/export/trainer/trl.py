"""Export for TRL's supervised fine-tuning: `trl_sft.yaml`, which `trl sft` and the script `trl_sft.py` read.

It wraps the Trainer's arguments (tuner.export.trainer.training_arguments), because `SFTConfig` extends `TrainingArguments`.
"""

import json
from typing import Any

import yaml

from shardtune.api_schemas.strategies import ZeroConfig
from shardtune.api_schemas.training.adapters import Lora
from shardtune.tuner.export import adapters, sample_lengths
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.environment import export_line, nodes_note, torchrun_options
from shardtune.tuner.export.precision import float8
from shardtune.tuner.export.quoting import in_docstring, remark
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trainer import training_arguments
from shardtune.tuner.export.trainer.repository import missing_note, repository
from shardtune.tuner.export.trial_rendering import Rendered, comment, note_texts

RELEASE = "TRL 1.16"
CONFIG, SCRIPT, DEEPSPEED = "trl_sft.yaml", "trl_sft.py", "ds_config.json"
# TRL computes every loss in chunks, of a size of its own, and its file names the dtype of the model.
_OWN_NOTES = (training_arguments.LOSS, "loss_chunk", "loss_compile", training_arguments.LOADED_DTYPE)
"""Subjects about which TRL has notes of its own, or none, in place of the Trainer's."""


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported files for TRL.

    Raises:
        ValueError: transformers' Trainer lacks the backend, or the configuration uses more than data parallelism.
    """
    trainer = training_arguments.arguments(source, "TRL", backends)
    lossy = (*note_texts(trainer.notes, without=_OWN_NOTES), *_notes(source))
    values = {**_model(source), **_data(source), **trainer.values}
    # SFTConfig checkpoints by default under the older name (TRL 1.16); FSDP has a checkpointing of its own.
    values.setdefault("activation_checkpointing", False)
    values["gradient_checkpointing"] = values["activation_checkpointing"]
    note = nodes_note(source, torchrun_options(source))
    deepspeed = values.pop("deepspeed", None)
    files = {}
    if deepspeed is not None:
        # A path: the command line of TRL reads no nested section of DeepSpeed.
        values["deepspeed"] = DEEPSPEED
        files[DEEPSPEED] = json.dumps(deepspeed, indent=2) + "\n"
    files[CONFIG] = fill(
        CONFIG,
        description=remark(source.description),
        release=RELEASE,
        lossy=comment(lossy, "# "),
        environment=export_line(source),
        start="Start" if repository(source).is_named else "Set model_name_or_path, then start",
        torchrun_options=torchrun_options(source),
        nodes=note and f"# {note}",
        document=yaml.safe_dump(values, sort_keys=False).rstrip(),
    )
    files[SCRIPT] = fill(
        SCRIPT,
        origin=source.origin,
        description=in_docstring(source.description),
        release=RELEASE,
        lossy=comment(lossy, "", in_docstring),
        environment=export_line(source),
        torchrun_options=torchrun_options(source),
        nodes=note,
        by_hand=trainer.code,
    )
    chunks = {name: getattr(source.config, name) for name in ("loss", "loss_chunk")}
    return Rendered(files, RELEASE, lossy, trainer.config.model_copy(update=chunks))


def _model(source: ExportSource) -> dict[str, Any]:
    """Fields of TRL's `ModelConfig` for the base model: the repository that the study names, at its commit."""
    weights = repository(source)
    dtype, attention = source.workload.precision.master_dtype, source.attention
    revision = {} if weights.revision is None else {"model_revision": weights.revision}
    named = {"model_name_or_path": weights.id, **revision}
    return {**named, "dtype": dtype, "attn_implementation": attention, **adapters.trl_values(source)}


def _data(source: ExportSource) -> dict[str, Any]:
    values = {"max_length": source.workload.sequence_length, "packing": False, "completion_only_loss": False}
    return values | sample_lengths.trl_values(source)


def _measured_loss(source: ExportSource) -> str:
    if source.config.has_chunked_loss:
        chunks = "compiled chunks" if source.config.loss_compile else "chunks"
        return f"{chunks} of {source.config.loss_chunk} tokens were"
    return "whole logits, which need more memory, were"


def _reentrant_notes(source: ExportSource) -> tuple[str, ...]:
    """Note on checkpointing by reentrant autograd, which TRL forces for PEFT beside ZeRO-3; empty otherwise."""
    strategy = source.config.strategy
    is_forced = isinstance(strategy, ZeroConfig) and strategy.stage == 3 and isinstance(source.workload.adapter, Lora)
    if not is_forced or source.config.activation_checkpointing != "full":
        return ()
    return ("activation_checkpointing: no reentrant autograd was measured; TRL has it for adapters beside ZeRO-3",)


def _notes(source: ExportSource) -> tuple[str, ...]:
    return (
        *sample_lengths.trl_notes(source),
        f"loss: {_measured_loss(source)} measured; TRL computes logits in tiles of 4,096 tokens and 32,768 words",
        "metrics: TRL also computes entropy and token accuracy of each micro batch, gathers them over the ranks and waits for "
        "them; no trial did",
        *(
            ["loss_compile: true was measured; TRL has false, as it has a loss of its own"]
            if source.config.loss_compile
            else []
        ),
        *_reentrant_notes(source),
        *adapters.trl_notes(source),
        *float8.script_notes(source, "trl_sft.py, before the trainer"),
        *missing_note(source, "model_name_or_path"),
    )
