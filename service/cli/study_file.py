"""Read the input of `shardtune tune`: a study file, or a bare `config.json` that gets a default workload.

All errors are `InputError`s whose lines name field, value and remedy.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from shardtune.api_schemas.known_fields import fields_at, model_named, rephrase_error, suggest_field
from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import Target, TargetChoice
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.workload import SHORTEST_SEQUENCE
from shardtune.service.cli import baseline_file, lengths_file, read
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.models import source as model_source
from shardtune.service.http.validation_errors import (
    NO_OBJECT,
    drop_union_noise,
    error_path,
    field_error,
)

NO_DATA: Mapping[str, JsonValue] = {}
"""Fields that a workload's data has if no option states another value."""
_TARGET: TypeAdapter[Target] = TypeAdapter(TargetChoice)
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


def read_json_object(path: Path) -> dict[str, JsonValue]:
    """Read the JSON object in a file.

    Raises:
        InputError: the file cannot be read, is not JSON (with line and column), or holds no object.
    """
    text = read.read_text(path, "file", "give the path of a study file or a config.json")
    try:
        value = read.parse_json(path, text)
    except RecursionError:
        raise InputError(f"file ({path}) is nested too deeply; give a study file or a config.json") from None
    if not isinstance(value, dict):
        raise InputError(f"file ({path}) holds a JSON {type(value).__name__}; it must hold an object, {{…}}")
    return value


def is_bare_config(values: dict[str, JsonValue]) -> bool:
    """Whether the values of a JSON file are a model's `config.json`, not a study."""
    return "model_type" in values and "model" not in values


def validate_study(values: dict[str, JsonValue], folder: Path) -> StudyRequest:
    """Validate a study file. Its fields `model`, `baseline` and `workload.data` may be paths relative to the file.

    Raises:
        InputError: a field is missing, unknown or wrong.
        PlatformFailure: the model is on the hub, which did not answer.
    """
    if "model" not in values:
        raise InputError(
            "model (missing): the file is neither a study ({model, workload, …}) nor a model's config.json "
            "({model_type, …}); add one of these keys"
        )
    values = dict(values)
    model = values.get("model")
    if isinstance(model, str) and model.endswith(".json"):
        values["model"] = read_json_object(folder / model)
    else:
        values["model"] = model_source.complete(model, folder)
    values["baseline"] = _baseline(values.get("baseline"), folder)
    if isinstance(workload := values.get("workload"), dict) and "data" in workload:
        values["workload"] = {**workload, "data": lengths_file.with_file(workload["data"], folder)}
    try:
        return StudyRequest.model_validate(values)
    except ValidationError as error:
        raise InputError(*error_lines(error)) from None


def _baseline(value: JsonValue, folder: Path) -> JsonValue:
    """Read the baseline's file. The study file names it by a path, or by {"file": path, "micro_batch": …} if the
    baseline's file states no batch size."""
    if isinstance(value, str) and value.endswith(baseline_file.SUFFIXES):
        return baseline_file.read(value, folder)
    if isinstance(value, dict) and isinstance(file := value.get("file"), str):
        beside = {key: item for key, item in value.items() if key != "file"}
        if unknown := sorted(beside.keys() - {"micro_batch", "tool", "trl_version"}):
            raise InputError(
                f"baseline.{unknown[0]}: unknown field beside file; only micro_batch, tool and trl_version are allowed"
            )
        return {**baseline_file.read(file, folder), **beside}
    baseline_file.require_finite(value, "baseline")
    return value


def bare_model(model: JsonValue) -> ModelSpec:
    """Return the model that a preset's name or a `config.json` describes.

    Raises:
        InputError: the configuration is not usable.
    """
    try:
        return ModelSpec.model_validate(model)
    except ValidationError as error:
        raise InputError(*error_lines(error)) from None


def read_target(text: str) -> Target:
    """Parse the value of `--target`, the larger cluster that an answer is projected to, such as `64x8`.

    Raises:
        InputError: the text does not have this form.
    """
    try:
        return _TARGET.validate_python(text)
    except ValidationError as error:
        raise InputError(rephrase_error(error.errors()[0]["msg"]).replace("target (", "--target (", 1)) from None


def default_study(
    model: JsonValue,
    inventory: Inventory,
    data: Mapping[str, JsonValue] = NO_DATA,
    target: Target | None = None,
) -> tuple[StudyRequest, str]:
    """Make a study on this machine from nothing but a model (a preset's name, or a `config.json` with or without its
    repository). Return the study, and a line that describes its default workload. `data`: fields of the workload's
    data.

    Raises:
        InputError: the configuration is not usable.
    """
    on_cuda = inventory.cluster.device == "cuda"
    try:
        config = ModelSpec.model_validate(model).trained_config
    except ValidationError:
        # The study's own validation below reports it, with the path of the field.
        config = {}
    declared = [value for key in _LENGTH_KEYS if isinstance(value := config.get(key), int)]
    # Capped: a model's maximum (131,072 positions for Llama 3.1) is far longer than the sequences of most trainings.
    length = min([*declared[:1], 2048 if on_cuda else 512])
    if "lengths" in data:
        length = _longest_row(data)
    ranks, whose = inventory.cluster.world_size, "ranks"
    if target is not None:
        # The global batch of a study with a target is the target's.
        ranks, whose = target.nodes * (target.gpus_per_node or inventory.cluster.gpus_per_node), "ranks of the target"
    workload: dict[str, JsonValue] = {
        "sequence_length": length,
        "global_batch": 8 * ranks,
    }
    words = (
        f"no workload given: sequence length {length}, global batch {8 * ranks} (8 × {ranks} {whose}); "
        "write a study file to choose (docs/reference/study-file.md)"
    )
    return validate_study({"model": model, "workload": workload}, Path()), words


def _longest_row(data: Mapping[str, JsonValue]) -> int:
    try:
        lengths = SampleLengths.model_validate({"lengths": data["lengths"]})
    except ValidationError as error:
        raise InputError(*error_lines(error)) from None
    return max(SHORTEST_SEQUENCE, lengths.padded(lengths.longest))


def error_lines(error: ValidationError) -> list[str]:
    """Return one line for each wrong field, with the field's path, its value, the error and the remedy."""
    kind = model_named(error.title)
    lines = []
    for entry in drop_union_noise(error.errors(include_url=False)):
        field = ".".join(map(str, error_path(entry))) or "study"
        if entry["type"] == "extra_forbidden":
            remedy = suggest_field(str(entry["loc"][-1]), fields_at(kind, entry["loc"][:-1]))
            lines.append(f"{field}: unknown field; {remedy} (see docs/reference/study-file.md)")
        elif entry["type"] in NO_OBJECT:
            lines.append(
                f"{field} ({_shown_value(entry['input'])}): {field_error(entry).message} (see docs/reference/study-file.md)"
            )
        else:
            lines.append(_error_line(field, entry["type"], rephrase_error(entry["msg"]), entry["input"]))
    return lines


def _error_line(field: str, kind: str, message: str, value: object) -> str:
    if kind == "missing":
        return f"{field}: missing; add it (see docs/reference/study-file.md)"
    # Long messages of our own validators already name field, value and remedy.
    if kind == "value_error" and len(message) > 40:
        return f"{field}: {message}"
    return f"{field} ({_shown_value(value)}): {message}; correct it (see docs/reference/study-file.md)"


def _shown_value(value: object) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
