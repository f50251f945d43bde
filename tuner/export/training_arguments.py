"""Export as `TrainingArguments` of transformers 5: a JSON file, and a script that reads the arguments from it."""

import json
from typing import Any

from shardtune.api_schemas.strategies.training_arguments import strategy_arguments, workload_arguments
from shardtune.tuner.export import environment, losses
from shardtune.tuner.export.backends.registry import BACKENDS, Backends
from shardtune.tuner.export.quoting import in_docstring
from shardtune.tuner.export.source import ExportSource, reject_axes
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trial_rendering import Rendered, comment, differences, run_by

RELEASE = "transformers 5.23"


def render(source: ExportSource, backends: Backends = BACKENDS) -> Rendered:
    """Render the exported files for transformers' Trainer, `training_arguments.json` and `trainer_snippet.py`.

    Raises:
        ValueError: Trainer has no such backend.
    """
    config, workload = source.config, source.workload
    reject_axes(source, "TrainingArguments")
    strategy = strategy_arguments(
        config,
        workload,
        source.accumulation,
        source.model_summary.block_class,
        checkpoints=config.checkpoints_whole_blocks,
    )
    values: dict[str, Any] = {**workload_arguments(workload, source.on_cpu), **strategy}
    values |= {"torch_compile": True} if config.compile else {}
    render_parts = backends[config.backend].training_arguments
    assert render_parts is not None, "strategy_arguments has rejected it"
    parts = render_parts(source, config.strategy)
    changes: dict[str, Any] = {"strategy": parts.strategy}
    # Trainer checkpoints every block whole or none; other modes are left out and reported as lost.
    if not config.checkpoints_whole_blocks:
        changes |= {"activation_checkpointing": "none", "checkpoint_every": 1}
    rendered_config = run_by(config, "training_arguments", **changes)
    lossy = (
        *differences(config, rendered_config, "Trainer"),
        *_notes(source),
        *parts.notes,
        *environment.notes(source),
    )
    snippet = fill(
        "trainer_snippet.py",
        description=in_docstring(source.description),
        release=RELEASE,
        lossy=comment(lossy, "", in_docstring),
        by_hand=parts.code,
    )
    files = {"training_arguments.json": json.dumps(values, indent=2) + "\n", "trainer_snippet.py": snippet}
    return Rendered(files, RELEASE, lossy, rendered_config)


def _notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on differences between training with transformers' Trainer and the measured training."""
    lines = ["weight_decay: on all parameters was measured; Trainer leaves biases and norms out"]
    if source.config.compile:
        lines.append("compile: each block was compiled; Trainer compiles the whole model")
    return (*lines, *losses.trainer_notes(source))
