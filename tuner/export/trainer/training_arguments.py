"""Export as `TrainingArguments` of transformers 5: a JSON file, and a script that reads the arguments from it."""

import json
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
from shardtune.tuner.export.trial_rendering import Rendered, comment, differences, run_by

RELEASE = "transformers 5.23"
_TRAINER, _TRL = "TrainingArguments", "TRL"
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
    lossy: tuple[str, ...]
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
    lossy = (
        *differences(config, rendered_config, "training_arguments"),
        *_notes(source),
        *_block_notes(source, consumer),
        *offload.trainer_notes(source, consumer, has_mesh=has_mesh),
        *(
            (
                *adapters.trainer_notes(source, consumer),
                *sample_lengths.trainer_notes(source),
                *float8.script_notes(source, "your script, before the trainer"),
            )
            if consumer == _TRAINER
            else ()
        ),
        *parts.notes,
        *(environment.notes if consumer == _TRAINER else environment.notes_beside_command)(source),
    )
    return TrainerArguments(values, rendered_config, lossy, parts.code)


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
    needs_mesh = distributed_config.is_needed(source)
    snippet = fill(
        "trainer_snippet.py",
        description=in_docstring(source.description),
        release=RELEASE,
        lossy=comment(trainer.lossy, "", in_docstring),
        imports=_MESH_IMPORTS if needs_mesh else "from transformers import Trainer, TrainingArguments",
        load_model=fill("trainer_load_model").rstrip() if needs_mesh else "",
        by_hand=trainer.code,
    )
    files = {"training_arguments.json": _json(trainer.values), "trainer_snippet.py": snippet}
    if isinstance(source.config.strategy, Fsdp2Config) and needs_mesh:
        files[distributed_config.FILE] = _json(distributed_config.values(source, source.config.strategy))
    return Rendered(files, RELEASE, trainer.lossy, trainer.config)


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


def _notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on differences between training with transformers' Trainer and the measured training."""
    lines = ["weight_decay: on all parameters was measured; Trainer leaves biases and norms out"]
    lines += common.loaded_low(source)
    if source.config.compile:
        lines.append("compile: each block was compiled; Trainer compiles the whole model")
    return (
        *lines,
        *losses.trainer_notes(source),
        *optimizers.lost_note(source, "Trainer"),
    )
