"""Reading of a fine-tuning tool's file: its keys are checked, what it trains is compared with the workload, and the rest
is read as TrainingArguments."""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as package_files
from typing import Any

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, SelectiveKeeps, TrialConfig
from shardtune.api_schemas.strategies.fields import selective_keeps
from shardtune.api_schemas.training.adapters import LastLayers, Lora
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline import fsdp, training_arguments
from shardtune.tuner.baseline.section import Section
from shardtune.tuner.baseline.tools import (
    attention,
    axolotl,
    float8,
    keys,
    llama_factory,
    ms_swift,
    packing,
    precision,
)
from shardtune.tuner.baseline.tools.tool import Fields, StatedAdapter, Tool, TrainerFields
from shardtune.tuner.baseline.trainer_sections import WHOLE_LOGITS

_TOOLS = (axolotl.TOOL, llama_factory.TOOL, ms_swift.TOOL)
_TRAINERS = "per_device_train_batch_size"
"""Key that files of the Trainer and of tools built on it may have, and axolotl's files never have."""
_DROPOUT = "lora_dropout"
_CLOSE = 0.85
"""Minimum similarity of an unknown key to one of axolotl's keys to count as a misspelling, in a file with `plugins` (a
plugin may have further keys, which Shardtune does not know)."""


def recognised(values: Mapping[str, JsonValue]) -> Tool | None:
    """Fine-tuning tool that the content of a configuration file belongs to, by its keys; None if it belongs to none of them."""
    # A script's own file of TrainingArguments may have keys of these tools beside the Trainer's.
    return next(
        (
            tool
            for tool in _TOOLS
            if tool.marks & values.keys() and (tool is not axolotl.TOOL or _TRAINERS not in values)
        ),
        None,
    )


def fields_of(tool: Tool, values: Mapping[str, JsonValue], ranks: int) -> TrainerFields:
    """Translate a tool's file into fields of TrainingArguments.

    Raises:
        ValueError: the tool does not know a key, or rejects its value.
    """
    fields = TrainerFields(dict(values))
    _check_names(tool, fields)
    for key, name in tool.renamed.items():
        fields.rename(key, name)
    tool.translate(fields, ranks)
    if fields.values.get("deepspeed") and fields.values.get("fsdp"):
        sharding = fields.names.get("fsdp", "fsdp")
        raise ValueError(
            f"baseline.deepspeed and baseline.{sharding} are both set; a training takes one: drop one of them"
        )
    return fields


def read(
    tool: Tool, top: Section, fields: TrainerFields, workload: Workload, cluster: Cluster, notes: list[str]
) -> TrialConfig:
    """Read a baseline configuration from a fine-tuning tool's file, which `fields_of` has translated to fields of
    TrainingArguments.

    Raises:
        ValueError: a contradiction with the workload or the cluster.
    """
    notes += fields.notes
    values = top.values()
    _check_method(values, workload)
    _check_length(tool, top, workload, notes)
    _check_rows(tool, top, workload, notes)
    _check_adapter(tool, values, workload, notes)
    _check_parallel(tool, top)
    gathers = float8.check(tool, values, workload, notes)
    precision.check(tool, top, workload, notes)
    _note_optimizer(tool, top, workload, notes)
    attention.note(top, workload, notes)
    silent = {key for key, value in values.items() if keys.is_silent(key, value)}
    silent |= {*tool.packing, *tool.quantised, *tool.parallel, *keys.REJECTED, "pure_bf16"}
    silent |= float8.KEYS if keys.is_set(values.get(float8.SWITCH)) else set()
    shown = Section({key: value for key, value in values.items() if key not in silent}, "baseline", fields.names)
    config = training_arguments.read_fields(shown, workload, cluster, notes, tool.title)
    config = _with_rest(config, fields.after, workload, notes)
    return fsdp.with_float8_gather(config, f"baseline.{float8.GATHER} (true)", notes) if gathers else config


@cache
def _known_keys(name: str) -> tuple[str, frozenset[str]]:
    document = json.loads((package_files(__package__) / "fields" / f"{name}.json").read_text(encoding="utf-8"))
    return document["version"], frozenset(document["keys"])


def _check_names(tool: Tool, fields: TrainerFields) -> None:
    """Reject keys that a fine-tuning tool does not know: axolotl and ms-swift would silently train with a default
    instead. If axolotl's `plugins` is set, an unknown key may belong to a plugin and gets a note."""
    version, known = _known_keys(tool.keys_file)
    has_plugins = bool(fields.values.get("plugins"))
    if keys.switches_fused_loss_on(fields.values):
        fields.notes.append(
            f"baseline.plugins switches cut cross entropy on, which is not applied: trials load no plugin of {tool.title}"
            f"; {WHOLE_LOGITS}"
        )
    for key, value in list(fields.values.items()):
        if key in known or (has_plugins and key in tool.parallel):
            continue
        is_plugins = tool is axolotl.TOOL and (key in axolotl.PLUGIN_KEYS or key.startswith(axolotl.PLUGIN_PREFIXES))
        near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=_CLOSE if has_plugins else 0.6)
        if has_plugins and (is_plugins or not near):
            if key not in keys.REJECTED:
                lever = f"; {WHOLE_LOGITS}" if key in keys.FUSED_LOSSES and value else ""
                fields.notes.append(f"baseline.{key:.100} is not applied: trials load no plugin of {tool.title}{lever}")
                del fields.values[key]
            continue
        remedy = f"did you mean {near[0]}?" if near else "drop it"
        remedy = "it belongs to a plugin: name that in plugins, or drop the key" if is_plugins else remedy
        raise ValueError(f"baseline.{key:.100} ({value!r:.60}) is no key of {tool.title} {version}; {remedy}")


def _check_method(values: Fields, workload: Workload) -> None:
    """Reject a fine-tuning tool's file that changes which parameters are trained, their optimizer or the training
    method."""
    # `float8.check` compares float8 with the workload's.
    rejected = keys.REJECTED - {float8.SWITCH}
    key = next((key for key, value in values.items() if key in rejected and keys.is_set(value)), None)
    if key == "use_muon" and workload.optimizer.kind == "muon":
        key = None
    plugin = keys.plugin_that_trains_otherwise(values.get("plugins"))
    if key is not None or plugin is not None:
        shown = f"{key} ({values[key]!r:.60})" if key is not None else f"plugins ({plugin!r:.100})"
        raise ValueError(
            f"baseline.{shown} changes what is trained, which no trial does; drop it, or bring your own code "
            "(docs/how-to/own-code.md)"
        )


def _check_length(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    length = top.integer(tool.length)
    if length is None and tool.default_length != workload.sequence_length:
        default = "the model's own limit" if tool.default_length is None else tool.default_length
        notes.append(
            f"{top.name(tool.length)} is absent, which means {default} in {tool.title}; measured with the workload's "
            f"sequence_length {workload.sequence_length}"
        )
    if length is not None and length != workload.sequence_length:
        raise ValueError(
            f"{top.name(tool.length)} ({length}), but the workload's sequence_length is {workload.sequence_length}; make them "
            "equal"
        )


def _check_rows(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    packing.check(tool, top, workload, notes)
    known = _known_keys(tool.keys_file)[1]
    has_switch = "group_by_length" in known and "train_sampling_strategy" not in top
    sampling = "group_by_length" if has_switch else "train_sampling_strategy"
    grouped = bool(top.flag("group_by_length")) or top.get("train_sampling_strategy") == "group_by_length"
    if workload.data is not None and grouped != (workload.data.layout == "grouped"):
        shown = (
            f"({top.get(sampling)!r:.60})" if sampling in top else f"is absent, which means no grouping in {tool.title}"
        )
        raise ValueError(
            f"{top.name(sampling)} {shown}, but the workload's data.layout is {workload.data.layout!r}; use "
            f"layout {'grouped' if grouped else 'padded'!r}, or change the file"
        )


def _note_optimizer(tool: Tool, top: Section, workload: Workload, notes: list[str]) -> None:
    trained = workload.optimizer
    if "optim" in top or "use_muon" in top or trained.kind == "adamw":
        return
    key = next((key for key, name in tool.renamed.items() if name == "optim"), "optim")
    notes.append(
        f"baseline.{key} is absent, which means AdamW in {tool.title}; measured with the workload's {trained.title}"
    )


def _check_parallel(tool: Tool, top: Section) -> None:
    for key in tool.parallel:
        size = top.integer(key)
        if size is not None and size > 1:
            raise ValueError(f"{top.name(key)} ({size}) is not offered: all ranks are data-parallel; use 1 or drop it")


def _check_adapter(tool: Tool, values: Fields, workload: Workload, notes: list[str]) -> None:
    """Compare the adapter that a fine-tuning tool's file trains with the workload's adapter."""
    stated, ours = tool.adapter(values), workload.adapter
    packed = tool.four_bit if stated.settings is not None and "quantization" in stated.settings else ()
    for key in tool.quantised:
        if keys.is_set(values.get(key)) and key not in packed:
            raise ValueError(
                f"baseline.{key} ({values[key]!r:.60}) is trained by no trial; drop it, or bring your own code"
            )
    if not stated.is_known:
        if ours is None:
            raise ValueError(
                f"baseline.{stated.key} trains a part of the weights, but the workload trains all; name it by adapter in the "
                "workload"
            )
        notes.append(f"baseline.{stated.key} is not compared: measured as the workload's {ours.describe()}")
        return
    theirs = _adapter_of(stated)
    if theirs != ours:
        line = json.dumps(stated.settings)
        trained = theirs.describe() if theirs else "all weights"
        shown = f"({trained})" if stated.key in values else f"is absent, which means {trained} in {tool.title}"
        raise ValueError(
            f"baseline.{stated.key} {shown}, but the workload trains "
            f'{ours.describe() if ours else "all weights"}; make them equal ("adapter": {line} in the study\'s workload)'
        )
    if values.get(_DROPOUT) not in (None, 0, 0.0):
        # PEFT 0.21: the frozen layer's output is that of the input before dropout, and DoRA scales the one after it.
        slower = isinstance(theirs, Lora) and theirs.dora
        more = (
            "; with DoRA yours multiplies by each adapted layer's frozen weight once more, so it is slower"
            if slower
            else ""
        )
        notes.append(f"baseline.{_DROPOUT} is not applied: trials have no dropout{more}")


def _adapter_of(stated: StatedAdapter) -> Lora | LastLayers | None:
    if stated.settings is None:
        return None
    kind = LastLayers if stated.settings.get("kind") == "last_layers" else Lora
    try:
        return kind.model_validate(stated.settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            # A rule of ours, which names the setting, its value and the remedy.
            raise ValueError(f"baseline.{stated.key}: {first['msg'].removeprefix('Value error, ')}") from error
        field = ".".join(map(str, first["loc"])) or "settings"
        raise ValueError(
            f"baseline.{stated.key}: its {field} ({first['input']!r:.60}) is no setting of an adapter; correct it"
        ) from error


def _with_rest(config: TrialConfig, after: Mapping[str, Any], workload: Workload, notes: list[str]) -> TrialConfig:
    strategy, changes = config.strategy, dict[str, Any]()
    if isinstance(strategy, Fsdp2Config):
        own = {name: value for name, value in after.items() if name in ("dp_replicate", "dp_shard", "pin_memory")}
        if "dp_replicate" in own and "dp_shard" not in own:
            own["dp_shard"] = max(1, strategy.dp_shard // max(1, own["dp_replicate"]))
        changes["strategy"] = Fsdp2Config.model_validate({**strategy.model_dump(), **own})
    if (mode := after.get("activation_checkpointing")) is not None:
        changes["activation_checkpointing"] = mode
        changes["selective_keeps"] = _kept_results(after["selective_keeps"], workload, notes)
    if after.get("activation_offload") and config.activation_checkpointing == "full" and mode is None:
        changes["activation_offload"] = True
    return config.model_copy(update=changes)


def _kept_results(keeps: SelectiveKeeps, workload: Workload, notes: list[str]) -> SelectiveKeeps:
    """Results that selective checkpointing keeps in the measured baseline: those of the file, or all where the workload
    does not allow this choice."""
    why_not = selective_keeps.why_not(keeps, workload.attention, workload.float8, workload.adapter)
    if why_not is None:
        return keeps
    notes.append(f"baseline.selective_checkpointing is measured with all matrix products kept, because {why_not}")
    return selective_keeps.DEFAULT
