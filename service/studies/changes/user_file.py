"""The user's own baseline file with the recommended values, as a diff in the file's format."""

import copy
import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from pydantic import JsonValue

from shardtune.api_schemas.strategies import TrialConfig, ZeroConfig
from shardtune.api_schemas.strategies.training_arguments import strategy_arguments
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.service.studies.changes import effects
from shardtune.tuner.baseline import accelerate as accelerate_files
from shardtune.tuner.baseline import tools
from shardtune.tuner.baseline import training_arguments as trainer_files
from shardtune.tuner.export import accelerate
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.search.space.flat import flatten

_MISSING = object()
_TOOL_FILES = {
    "axolotl": (axolotl.CONFIG, axolotl.render),
    "LLaMA-Factory": (llama_factory.CONFIG, llama_factory.render),
    "ms-swift": (ms_swift.CONFIG, ms_swift.render),
}
"""Name of the exported file, and the function that writes it, by the name of the fine-tuning tool."""
Path = tuple[str, ...]
Render = Callable[[Contender], Mapping[str, Any]]
"""Function that converts a configuration into the format of the configuration file that the user gave as baseline."""


class UserFile(NamedTuple):
    """Comparison of the configuration file that the user gave as baseline with the recommended configuration: the
    file's format, and the diff.
    """

    name: str
    """Name of the format, such as `DeepSpeed JSON`."""
    diff: str
    """Unified diff from the user's file to the same file with the recommended settings; empty if no line changes."""
    note: str | None
    """Reason why the format of the user's file cannot express the recommended configuration; None if it can."""
    outside: tuple[str, ...] = ()
    """Changed settings for which the format of the user's file has no key."""


def file_format(study: Study) -> str | None:
    """Name the format of the configuration file that the user gave as baseline; None if the baseline was not given as a
    file.
    """
    values = study.spec.baseline
    if not isinstance(values, dict) or {"strategy", "kind"} & values.keys():
        return None
    return _format_of(values, study)[0]


def diff_of(study: Study, today: Contender, best: Contender) -> UserFile | None:
    """Compare the configuration file that the user gave as baseline with the recommended configuration; None if the
    baseline was not given as a file.
    """
    values = study.spec.baseline
    if not isinstance(values, dict) or {"strategy", "kind"} & values.keys():
        return None
    name, render = _format_of(values, study)
    try:
        old, new = dict(_leaves(render(today))), dict(_leaves(render(best)))
    except ValueError as error:
        return UserFile(name, "", f"it cannot hold the recommended configuration: {error}")
    changed = {path: new.get(path, _MISSING) for path in {**old, **new} if old.get(path) != new.get(path)}
    return UserFile(name, _diff(values, changed, name), None, _settings_outside(today, best, render))


def _settings_outside(today: Contender, best: Contender, render: Render) -> tuple[str, ...]:
    """Return those of the changed settings that the format of the user's file cannot express, because the file's
    content is the same with and without them.
    """
    units = effects.knobs_by_change(flatten(today.config), flatten(best.config))
    return tuple(name for name, knobs in units.items() if not _is_held(today, best, knobs, render))


def _is_held(today: Contender, best: Contender, knobs: Sequence[str], render: Render) -> bool:
    """Whether the format of the user's file can express these knobs: its content changes if only they change. Also
    true if neither configuration is legal with these knobs replaced, since nothing is known then.
    """
    for base, other in ((best, today), (today, best)):
        config = effects.with_settings_of(base.config, other.config, knobs)
        if config is None or config == base.config:
            continue
        try:
            return dict(_leaves(render(base.model_copy(update={"config": config})))) != dict(_leaves(render(base)))
        except ValueError:
            continue
    return True


def _format_of(values: Mapping[str, JsonValue], study: Study) -> tuple[str, Render]:
    if accelerate_files.KEYS & values.keys():
        return "Accelerate YAML", lambda contender: yaml.safe_load(
            accelerate.document(ExportSource.of(study, contender))
        )
    if (tool := tools.recognised(values)) is not None:
        title, (file, render) = tool.title, _TOOL_FILES[tool.title]
        return f"{title} YAML", lambda contender: yaml.safe_load(render(ExportSource.of(study, contender)).files[file])
    if trainer_files.is_training_arguments(values):
        return "TrainingArguments", lambda contender: _trainer_values(study, contender.config)
    return "DeepSpeed JSON", lambda contender: _deepspeed_values(study, contender.config)


def _accumulation(study: Study, config: TrialConfig) -> int:
    return config.accumulation(study.spec.workload.global_batch, study.cluster.world_size)


def _deepspeed_values(study: Study, config: TrialConfig) -> Mapping[str, Any]:
    if not isinstance(config.strategy, ZeroConfig):
        raise ValueError(f"backend ({config.backend!r}) is not DeepSpeed; use accelerate.yaml or train_snippet.py")
    return config.strategy.to_deepspeed(study.spec.workload, config.micro_batch, _accumulation(study, config))


def _trainer_values(study: Study, config: TrialConfig) -> Mapping[str, Any]:
    block = None if study.model_summary is None else study.model_summary.block_class
    whole = config.checkpoints_whole_blocks
    values = strategy_arguments(config, study.spec.workload, _accumulation(study, config), block, checkpoints=whole)
    if config.compile:
        values["torch_compile"] = True
    file = study.spec.baseline if isinstance(study.spec.baseline, dict) else {}
    return _with_checkpointing(values, file, config)


def _with_checkpointing(values: dict[str, Any], file: Mapping[str, Any], config: TrialConfig) -> dict[str, Any]:
    """TrainingArguments that checkpoint blocks by the words of the user's file: by FSDP's section, or by an argument of
    which the Trainer has an older and a newer name. It rejects both beside each other."""
    rest = {name: value for name, value in values.items() if not name.startswith("activation_checkpointing")}
    name = "activation_checkpointing" if "activation_checkpointing" in file else "gradient_checkpointing"
    if "fsdp_config" in rest:
        if not (file.get("fsdp") and name in file):
            return rest
        rest["fsdp_config"] = rest["fsdp_config"] | {"activation_checkpointing": False}
    if config.activation_checkpointing != "full":
        return rest
    every = {"every_n_layers": config.checkpoint_every} if config.checkpoint_every > 1 else {}
    kwargs = every | ({"offload": True} if config.activation_offload else {})
    return rest | {name: True} | ({f"{name}_kwargs": kwargs} if kwargs else {})


def _leaves(values: Mapping[str, Any], before: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value inside nested objects, with the path of keys that leads to it; objects themselves are not
    yielded.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*before, str(key)))
        else:
            yield (*before, str(key)), value


def _diff(values: dict[str, JsonValue], changed: Mapping[Path, Any], name: str) -> str:
    updated = copy.deepcopy(values)
    for path, value in changed.items():
        _assign(updated, path, value)
    old, new = _text(values, name).splitlines(), _text(updated, name).splitlines()
    return "\n".join(difflib.unified_diff(old, new, "today", "recommended", lineterm="", n=1))


def _assign(document: dict[str, Any], path: Path, value: Any) -> None:
    *parents, last = path
    for key in parents:
        # A value such as `"deepspeed": "file.json"` gives way to the object that replaces it.
        if not isinstance(document.get(key), dict):
            document[key] = {}
        document = document[key]
    if value is _MISSING:
        document.pop(last, None)
    else:
        document[last] = value


def _text(document: Mapping[str, Any], name: str) -> str:
    if name.endswith("YAML"):
        return str(yaml.safe_dump(dict(document), sort_keys=False))
    return json.dumps(document, indent=2)
