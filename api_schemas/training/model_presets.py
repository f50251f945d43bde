"""Presets: published models by short name, with the repository that each one's numbers come from.

`presets/NAME.json` is the model's `config.json`, reduced to the fields that shape it; `preset_sources.json` names the
repository and the published number of parameters.
"""

import difflib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

_FOLDER = files("shardtune.api_schemas.training")
_PRESETS = _FOLDER / "presets"
_MOST_SUGGESTIONS = 3
_CLOSE = 0.75
"""Minimum similarity of two names (by `difflib`, without punctuation) at which an error suggests one of them for the
other."""

_LONGEST = 200
"""Maximum length of an unknown name, in characters, for which similar names are sought. The search takes longer for
longer names."""


class PresetSource(NamedTuple):
    """Origin of a preset's numbers."""

    hub: str
    """Repository of the Hugging Face hub that publishes the model, such as `Qwen/Qwen3-8B`."""
    published: int
    """Number of parameters in the weights that the repository publishes."""
    untrained: int = 0
    """Number of the published parameters that belong to parts which the preset leaves out, such as a vision tower."""
    note: str = ""
    """Difference between the preset and the published repository; empty if there is none."""

    @property
    def parameters(self) -> int:
        """Number of parameters of the model that is trained, without the parts that the preset leaves out."""
        return self.published - self.untrained


@cache
def preset_names() -> list[str]:
    """Return the names of the model presets. A preset's name is accepted in place of a full model."""
    return sorted(entry.name.removesuffix(".json") for entry in _PRESETS.iterdir() if entry.name.endswith(".json"))


def preset_config(name: str) -> dict[str, Any]:
    """Return the `config.json` of a preset."""
    config: dict[str, Any] = json.loads((_PRESETS / f"{name}.json").read_text())
    return config


@cache
def preset_sources() -> dict[str, PresetSource]:
    """Return the origin of presets by the preset's name. Only presets that a repository of the hub publishes are
    included."""
    entries = json.loads((_FOLDER / "preset_sources.json").read_text())
    return {name: PresetSource(**entry) for name, entry in entries.items()}


def preset_of(hub_id: str) -> str | None:
    """Return the preset whose sizes come from a repository of the Hugging Face hub; None if there is none."""
    names = (name for name, source in preset_sources().items() if source.hub.casefold() == hub_id.casefold())
    return next(names, None)


def similar_models(name: str) -> list[str]:
    """Return the names of presets that are similar to the given name. For a name of the form `OWNER/NAME`, return the
    repositories of such presets."""
    if len(name) > _LONGEST:
        return []
    if "/" in name:
        return _similar(name, (source.hub for source in preset_sources().values()))
    return _similar(name, preset_names())


def unknown_model(name: str, alternatives: str) -> str:
    """Return the error text for a name that is no preset: it suggests similar names, or lists all presets."""
    similar = similar_models(name)
    if similar:
        return (
            f"model ({name!r:.200}) is not a preset; did you mean {' or '.join(similar)}? If not, give {alternatives}"
        )
    return f"model ({name!r:.200}) is not a preset; use one of {', '.join(preset_names())}, or give {alternatives}"


def _similar(name: str, candidates: Iterable[str]) -> list[str]:
    # Without punctuation and owner: people write llama-3-8b, Llama3.1-8B and meta-llama/Meta-Llama-3.1-8B.
    by_folded_name: dict[str, str] = {}
    for candidate in candidates:
        by_folded_name.setdefault(_fold(candidate), candidate)
    close = difflib.get_close_matches(_fold(name), by_folded_name, _MOST_SUGGESTIONS, _CLOSE)
    return [by_folded_name[folded_name] for folded_name in close if by_folded_name[folded_name] != name]


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.partition("@")[0].rpartition("/")[2].lower())
