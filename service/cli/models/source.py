"""Read the model that a command or a study file names: a preset, a folder or file on this machine, or the hub's id."""

from pathlib import Path

from pydantic import JsonValue, ValidationError

from shardtune.api_schemas.known_fields import rephrase_error
from shardtune.api_schemas.names import model_name_of
from shardtune.api_schemas.training.hub_source import HubSource, looks_like_id
from shardtune.api_schemas.training.model_presets import preset_names, unknown_model
from shardtune.api_schemas.training.models import LONGEST_CONFIG
from shardtune.service.cli import read
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.models import download

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_ALTERNATIVES = "a folder with a config.json, a Hugging Face id such as Qwen/Qwen3-8B, or the path of a file"


def complete(model: JsonValue, folder: Path) -> JsonValue:
    """Return the model of a study file. If the file names a folder or a repository on the Hugging Face hub, the
    returned model includes its `config.json`.

    Raises:
        InputError: the folder or the repository cannot be read.
        PlatformFailure: the hub did not answer.
    """
    if isinstance(model, str) and (model in preset_names() or read.is_folder(folder / model)):
        return model if model in preset_names() else read_folder(folder / model)
    source = _named_source(model)
    if source is None:
        return model
    others = {key: value for key, value in model.items() if key != "hub"} if isinstance(model, dict) else {}
    return {**_content(source), **others}


def named_model(name: str) -> JsonValue:
    """Return the model that a command's argument names (a preset, a folder, or a hub repository), in a request's
    format.

    Raises:
        InputError: nothing has this name; suggests similar names.
    """
    if name in preset_names():
        return name
    if read.is_folder(Path(name)):
        return read_folder(Path(name))
    if looks_like_id(name):
        try:
            return _content(HubSource.model_validate(name))
        except ValidationError as error:
            reason = rephrase_error(error.errors()[0]["msg"])
            raise InputError(
                f"model ({name!r}) is no id of the hub: {reason}; give OWNER/NAME or OWNER/NAME@REVISION"
            ) from None
    raise InputError(unknown_model(name, _ALTERNATIVES))


def is_name(argument: str) -> bool:
    """Whether a command's argument names a model (a folder, a preset, or a model on the hub) rather than a file."""
    path = Path(argument)
    return argument in preset_names() or read.is_folder(path) or (not read.exists(path) and path.suffix != ".json")


def read_folder(folder: Path) -> JsonValue:
    """Return the model that a folder's `config.json` describes, such as a folder that `save_pretrained` wrote.

    Raises:
        InputError: the folder has no `config.json`, or one that cannot be read; an adapter's folder names its model.
    """
    path = folder / _CONFIG
    if not read.exists(path) and read.exists(folder / _ADAPTER):
        adapter = read.parse_json(folder / _ADAPTER, _text_of(folder / _ADAPTER))
        base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
        raise InputError(
            f"model ({folder}) is the folder of an adapter; give the model it belongs to ({base or 'unknown'})"
        )
    config = read.parse_json(path, _text_of(path))
    if not isinstance(config, dict):
        raise InputError(f"file ({path}) holds a JSON {type(config).__name__}; it must hold an object, {{…}}")
    return {"name": model_name_of(folder.resolve().name), "config": config}


def _text_of(path: Path) -> str:
    # A folder of models holds files of many GiB.
    remedy = "give the folder of a model of transformers, which has a config.json"
    return read.read_text(path, "file", remedy, LONGEST_CONFIG)


def _named_source(model: JsonValue) -> HubSource | None:
    """Return the hub repository that a study file names as its model without stating its configuration. None if the
    file names no repository, or a wrong value, which the file's validation reports."""
    hub: JsonValue = model if isinstance(model, str) and looks_like_id(model) else None
    if isinstance(model, dict) and not model.get("config"):
        hub = model.get("hub")
    try:
        return None if hub is None else HubSource.model_validate(hub)
    except ValidationError:
        return None


def _content(source: HubSource) -> dict[str, JsonValue]:
    content: dict[str, JsonValue] = download.read_model(source).model_dump(mode="json")
    return content
