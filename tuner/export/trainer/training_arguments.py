"""Export as `TrainingArguments` of transformers 5: a JSON file, and a script that reads the arguments from it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.strategies.training_arguments import strategy_arguments, workload_arguments
from shardtune.tuner.export import adapters, environment, losses, optimizers, sample_lengths
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends import common
from shardtune.tuner.export.backends.record import ConsumerParts
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.precision import float8
from shardtune.tuner.export.quoting import in_docstring
from shardtune.tuner.export.source import ExportSource, reject_axes
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trainer import distributed_config
from shardtune.tuner.export.trial_rendering import LossyNote, Rendered, comment, differences, note_texts, run_by

RELEASE = "transformers 5.23"
_TRAINER, _TRL = "TrainingArguments", "TRL"
ACTIVATION_OFFLOAD, LOSS = "activation_offload", "loss"
"""Subjects of notes about knobs: the knobs' names, as in the notes on knobs that the Trainer lacks."""
LOADED_DTYPE = "loaded_dtype"
"""Subject of the note about the dtype in which the user's script loads the model."""
SCRIPT = "script"
"""Subject of notes about what `trainer_snippet.py` shows; a fine-tuning tool has no such script."""
OTHER = ""
"""Subject of notes that hold for each program with the Trainer."""
_MESH_IMPORTS = """from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig"""


@dataclass(frozen=True)
class TrainerArguments:
    """Arguments for a program built on transformers' Trainer, with the differences between its training and the
    measured trial."""

    values: dict[str, Any]
    """Fields of `TrainingArguments` by name."""
    config: TrialConfig
    """Configuration that the Trainer runs, as near as Shardtune's own fields can express it."""
    notes: tuple[LossyNote, ...]
    code: str
    """Lines of Python, for a variable `trainer`, that apply settings which the arguments cannot express."""


def arguments(source: ExportSource, consumer: str, backends: Backends = BACKENDS) -> TrainerArguments:
    """Return the measured configuration as arguments for `consumer`, a program built on transformers' Trainer.

    Raises:
        ValueError: transformers' Trainer lacks the backend, or the configuration uses more than data parallelism.
    """
    config = source.config
    values, parts = _values_and_parts(source, consumer, backends)
    changes: dict[str, Any] = {"strategy": parts.strategy}
    # Trainer checkpoints every block whole, every n-th one or none; other modes are left out and reported as lost.
    if not _checkpoints(source, consumer):
        changes |= {"activation_checkpointing": "none", "checkpoint_every": 1}
    has_mesh = _has_mesh(source, consumer)
    changes["activation_offload"] = offload.in_trainer(config, has_mesh=has_mesh)
    rendered_config = run_by(config, "training_arguments", **changes)
    notes = (
        *differences(config, rendered_config, "training_arguments"),
        *_notes(source),
        *_noted("checkpoint_every", _block_notes(source, consumer)),
        *_noted(ACTIVATION_OFFLOAD, offload.trainer_notes(source, consumer, has_mesh=has_mesh)),
        *_noted(OTHER, _script_notes(source) if consumer == _TRAINER else ()),
        *_noted(OTHER, parts.notes),
        *_noted(SCRIPT, parts.script_notes),
        *_noted(OTHER, (environment.notes if consumer == _TRAINER else environment.notes_beside_command)(source)),
    )
    return TrainerArguments(values, rendered_config, notes, parts.code)


def _noted(subject: str, texts: Iterable[str]) -> tuple[LossyNote, ...]:
    return tuple(LossyNote(subject, text) for text in texts)


def _script_notes(source: ExportSource) -> tuple[str, ...]:
    return (
        *adapters.trainer_notes(source, _TRAINER),
        *sample_lengths.trainer_notes(source),
        *float8.script_notes(source, "your script, before the trainer"),
    )


def _checkpoints(source: ExportSource, consumer: str) -> bool:
    """Whether the exported arguments checkpoint blocks as measured: all of them, or every n-th one. The tools pin
    releases of transformers that know no n, and FSDP's own checkpointing has none."""
    config = source.config
    counts_blocks = (
        consumer in (_TRAINER, _TRL)
        and not isinstance(config.strategy, Fsdp2Config)
        and config.activation_checkpointing == "full"
        and not config.activation_offload
    )
    return config.checkpoints_whole_blocks or counts_blocks


def _has_mesh(source: ExportSource, consumer: str) -> bool:
    return consumer == _TRAINER and distributed_config.is_needed(source)


def _values_and_parts(source: ExportSource, consumer: str, backends: Backends) -> tuple[dict[str, Any], ConsumerParts]:
    config, workload = source.config, source.workload
    values = workload_arguments(workload, source.on_cpu) | sample_lengths.trainer_values(source)
    # The Trainer's default looks at each micro batch's loss on the host, and so waits for the GPU (transformers 5.23).
    values |= {"logging_nan_inf_filter": False, **({"torch_compile": True} if config.compile else {})}
    if _has_mesh(source, consumer) and isinstance(config.strategy, Fsdp2Config):
        return values | distributed_config.trainer_arguments(source), distributed_config.parts(source, config.strategy)
    reject_axes(source, consumer)
    block_class, checkpoints = source.model_summary.block_class, _checkpoints(source, consumer)
    values |= strategy_arguments(config, workload, source.accumulation, block_class, checkpoints=checkpoints)
    if checkpoints and config.checkpoint_every > 1:
        kwargs = "activation_checkpointing_kwargs"
        values[kwargs] = {**values[kwargs], "every_n_layers": config.checkpoint_every}
    render_parts = backends[config.backend].training_arguments
    assert render_parts is not None, "strategy_arguments has rejected it"
    parts = render_parts(source, config.strategy)
    return values | parts.values, parts


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported files for transformers' Trainer, `training_arguments.json` and `trainer_snippet.py`.

    Raises:
        ValueError: transformers' Trainer lacks the backend.
    """
    trainer = arguments(source, _TRAINER, backends)
    lossy = note_texts(trainer.notes)
    needs_mesh = distributed_config.is_needed(source)
    snippet = fill(
        "trainer_snippet.py",
        description=in_docstring(source.description),
        release=RELEASE,
        lossy=comment(lossy, "", in_docstring),
        imports=_MESH_IMPORTS if needs_mesh else "from transformers import Trainer, TrainingArguments",
        load_model=fill("trainer_load_model").rstrip() if needs_mesh else "",
        by_hand=trainer.code,
    )
    files = {"training_arguments.json": _json(trainer.values), "trainer_snippet.py": snippet}
    if isinstance(source.config.strategy, Fsdp2Config) and needs_mesh:
        files[distributed_config.FILE] = _json(distributed_config.values(source, source.config.strategy))
    return Rendered(files, RELEASE, lossy, trainer.config)


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"


def _block_notes(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Note on which of several blocks are checkpointed; empty where all or none are."""
    every = source.config.checkpoint_every
    if every == 1 or not _checkpoints(source, consumer):
        return ()
    return (
        f"checkpoint_every: blocks {every}, {2 * every}, … were checkpointed; transformers takes blocks 1, {every + 1}, …",
    )


def _notes(source: ExportSource) -> tuple[LossyNote, ...]:
    """Notes on differences between training with transformers' Trainer and the measured training."""
    compiled = ("compile: each block was compiled; Trainer compiles the whole model",) if source.config.compile else ()
    return (
        LossyNote(OTHER, "weight_decay: on all parameters was measured; Trainer leaves biases and norms out"),
        *_noted(LOADED_DTYPE, common.loaded_low(source)),
        *_noted("compile", compiled),
        *_noted(LOSS, losses.trainer_notes(source)),
        *_noted(OTHER, optimizers.lost_note(source, "Trainer")),
    )
