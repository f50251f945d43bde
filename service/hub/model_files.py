"""Turn files of a hub's repository into a model: `config.json` alone, never code."""

import json
from typing import Any

from pydantic import ValidationError

from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.api_schemas.training.code_references import code_references
from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.model_presets import preset_of
from shardtune.api_schemas.training.models import LONGEST_CONFIG, ModelSpec

CONFIG, ADAPTER = "config.json", "adapter_config.json"
_MOST_SHOWN = 100


def model_of(source: HubSource, commit: str, text: str) -> ModelSpec:
    """Return the model that a repository's `config.json` describes, pinned to the commit that the file was read at.

    Raises:
        ValueError: the file is no model configuration, needs code, or has quantised weights.
    """
    config = _json_object(source, CONFIG, text)
    reference = next(code_references(config), None)
    if reference is not None:
        raise ValueError(
            f"model ({source}) needs code of its repository ({reference}), which Shardtune never runs; "
            f"{_preset_remedy(source)}give the content of its config.json without {reference} if transformers itself has "
            "the architecture, or bring your own code (docs/how-to/own-code.md)"
        )
    if config.get("quantization_config"):
        raise ValueError(
            f"model ({source}) has quantised weights (quantization_config), which no trial trains; {_preset_remedy(source)}"
            "give the content of its config.json without quantization_config to tune the training of whole weights"
        )
    try:
        return ModelSpec.model_validate(
            {"name": source.id, "hub": {"id": source.id, "revision": commit}, "config": config}
        )
    except ValidationError as error:
        reasons = "; ".join(rephrase_error(entry["msg"]) for entry in error.errors(include_url=False)[:3])
        raise ValueError(f"model ({source}) has an unusable config.json: {reasons}") from None


def adapter_error(source: HubSource, text: str) -> ValueError:
    """Return the error for a repository that holds an adapter instead of a model. It names the model that the adapter
    belongs to.
    """
    base = _json_object(source, ADAPTER, text).get("base_model_name_or_path")
    if not isinstance(base, str) or not base.isprintable():
        return missing_config(source)
    return ValueError(
        f"model ({source}) is an adapter of {base[:_MOST_SHOWN]}, not a model; give {base[:_MOST_SHOWN]} to tune its training"
    )


def missing_config(source: HubSource) -> ValueError:
    """Return the error for a repository that holds neither a model nor an adapter."""
    return ValueError(
        f"model ({source}) has no config.json, so it is no model of transformers; give the repository of its "
        "transformers version (often the id with -hf), or a preset"
    )


def oversized(source: HubSource, size: int | None = None) -> ValueError:
    """Return the error for a file that is too large to be a model's configuration."""
    shown = f"{size} bytes" if size is not None else f"more than {LONGEST_CONFIG} bytes"
    return ValueError(
        f"model ({source}) has a config.json of {shown}, and at most {LONGEST_CONFIG} are read; send a smaller one as `model`"
    )


def _json_object(source: HubSource, file: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise ValueError(
            f"model ({source}) has a {file} that is not JSON; correct it, or give its content as `model`"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(
            f"model ({source}) has a {file} that holds no object; give the content of a config.json as `model`"
        )
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(name)


def _preset_remedy(source: HubSource) -> str:
    """First words of the remedy in an error about a model. They suggest the built-in preset of the same model; empty
    if there is none.
    """
    preset = preset_of(source.id)
    return f"use the preset {preset}, " if preset else ""
