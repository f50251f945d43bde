"""Checks blocks of JSON, TOML and YAML: they can be read, and study files are accepted."""

import json
import tomllib
from typing import Any

import yaml
from pydantic import ValidationError

from docs.generate.sources import StudyFile

_COMPLETE: dict[str, Any] = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}
"""What a fragment of a study file leaves out."""


def json_problem(text: str) -> str:
    """Describe the fault of a block of JSON; an object that has fields of a study file only is validated as one."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return f"is not JSON: {error}; use ```text for what only resembles it"
    if not isinstance(value, dict) or not value or not value.keys() <= StudyFile.model_fields.keys():
        return ""
    study = {**_COMPLETE, **value}
    # A file that the reader has; what is in it is not known here.
    if isinstance(study.get("baseline"), str):
        del study["baseline"]
    if isinstance(study["model"], str) and study["model"].endswith(".json"):
        study["model"] = _COMPLETE["model"]
    try:
        StudyFile.model_validate_json(json.dumps(study))
    except ValidationError as error:
        return "is no study file: " + "; ".join(
            f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()
        )
    return ""


def toml_problem(text: str) -> str:
    """Why a block of TOML cannot be read."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return f"is not TOML: {error}"
    return ""


def yaml_problem(text: str) -> str:
    """Why a block of YAML cannot be read."""
    try:
        list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        return f"is not YAML: {error}"
    return ""
