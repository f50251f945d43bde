"""Files of an export for a fine-tuning tool: its YAML with a header, and DeepSpeed's JSON."""

import json
from typing import Any

import yaml

from shardtune.tuner.export.environment import export_line, nodes_note
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.tools.tool_arguments import DEEPSPEED
from shardtune.tuner.export.trial_rendering import comment


def tool_files(
    source: ExportSource,
    name: str,
    release: str,
    command: str,
    lossy: tuple[str, ...],
    values: dict[str, Any],
    deepspeed: dict[str, Any] | None,
) -> dict[str, str]:
    """Content of the exported files by name: the tool's YAML, and DeepSpeed's JSON where the trial used it."""
    text = fill(
        "finetuning_tool.yaml",
        origin=source.origin,
        description=remark(source.description),
        release=release,
        environment=export_line(source),
        command=remark(command),
        nodes=(note := nodes_note(source, command)) and f"# {note}",
        lossy=comment(lossy, "# "),
        document=yaml.safe_dump(values, sort_keys=False).rstrip(),
    )
    files = {name: text}
    return files if deepspeed is None else files | {DEEPSPEED: as_json(deepspeed)}


def as_json(values: dict[str, Any]) -> str:
    """Text of a JSON file of an export."""
    return json.dumps(values, indent=2) + "\n"
