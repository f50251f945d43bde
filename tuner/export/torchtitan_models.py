"""Names of models in torchtitan 0.3: the folder of an architecture, and its entry for a size."""

from shardtune.api_schemas.training.model_presets import preset_config, preset_sources
from shardtune.tuner.export.source import ExportSource

SET_ME = "SET-ME"
"""Placeholder for a name that the user has to choose."""

FOLDERS = {
    "llama": "llama3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v3": "deepseek_v3",
    "gpt_oss": "gpt_oss",
}
"""Folders of torchtitan's `models` by `model_type` of transformers."""
FLAVORS = {
    "llama-3.2-1b": "1B",
    "llama-3.2-3b": "3B",
    "llama-3.1-8b": "8B",
    "llama-3.1-70b": "70B",
    "llama-3.1-405b": "405B",
    "qwen3-0.6b": "0.6B",
    "qwen3-4b": "4B",
    "qwen3-8b": "8B",
    "qwen3-32b": "32B",
    "qwen3-30b-a3b": "30B-A3B",
    "qwen3-235b-a22b": "235B-A22B",
    "gpt-oss-20b": "20b",
    "gpt-oss-120b": "120b",
    "deepseek-v3": "671B",
}
"""Sizes in torchtitan's tables (torchtitan 0.3, `models/*/__init__.py`) by our preset of the same model."""


def folder(source: ExportSource) -> str:
    """Name of the model's architecture in torchtitan; `SET-ME` where torchtitan has none of this name."""
    return FOLDERS.get(str(source.study.spec.model.model_type), SET_ME)


def flavor(source: ExportSource) -> str:
    """Name of the model's size in torchtitan; `SET-ME` where no entry has as many parameters."""
    kind, parameters = source.study.spec.model.model_type, source.model_summary.parameters
    return next(
        (
            name
            for preset, name in FLAVORS.items()
            if preset_sources()[preset].parameters == parameters and preset_config(preset)["model_type"] == kind
        ),
        SET_ME,
    )
