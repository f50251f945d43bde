"""Error texts for models that a hub does not hand out: unknown, private, gated, or at an unknown revision."""

from shardtune.api_schemas.training.hub_source import HubSource
from shardtune.api_schemas.training.model_presets import preset_of, similar_models


def unknown(source: HubSource, remedy: str) -> ValueError:
    """Return the error for a repository that the hub does not know, or that it hides from this service.

    `remedy`: how to read a private model.
    """
    similar = similar_models(source.id)
    hint = f"did you mean {' or '.join(similar)}? Otherwise " if similar else ""
    return ValueError(f"model ({source}) does not exist on the hub, or is private; {hint}correct the id, or {remedy}")


def gated(source: HubSource, remedy: str) -> ValueError:
    """Return the error for a gated repository: its owner decides who may read it."""
    preset = preset_of(source.id)
    hint = f"use the preset {preset}, which has its numbers, or " if preset else ""
    return ValueError(f"model ({source}) is gated: its owner decides who may read it; {hint}{remedy}")


def no_revision(source: HubSource) -> ValueError:
    """Return the error for a branch, tag or commit that the repository does not have."""
    return ValueError(
        f"model ({source}) has no revision {source.revision}; give a branch, tag or commit of {source.id}, or leave it out"
    )


def unreachable(source: HubSource, reason: str) -> str:
    """Return the error text for a model that could not be read because the hub did not answer properly."""
    preset = preset_of(source.id)
    hint = f"use the preset {preset}, " if preset else ""
    return f"model ({source}) cannot be read: {reason}; try again, {hint}or give the content of its config.json"
