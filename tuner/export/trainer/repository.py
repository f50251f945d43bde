"""Repository of weights that a training program loads for the exported study's model."""

from dataclasses import dataclass

from shardtune.api_schemas.training.model_presets import preset_config, preset_sources
from shardtune.tuner.export.source import ExportSource

SET_ME = "SET-ME"
"""Placeholder for a field's value that only the user knows."""


@dataclass(frozen=True)
class Repository:
    """Repository of the model on Hugging Face's hub, with the commit if the study pinned one."""

    id: str
    revision: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the study names the model's repository; if not, the user has to fill it in."""
        return self.id != SET_ME


def missing_note(source: ExportSource, field: str) -> tuple[str, ...]:
    """Note that the user must set a field to the model's weights; empty where the study names their repository."""
    if repository(source).is_named:
        return ()
    return (f"model: the study holds a model's configuration alone; set {field} to the folder of its weights",)


def repository(source: ExportSource) -> Repository:
    """Repository of the model that the study names, with its commit."""
    model = source.study.spec.model
    if model.hub is not None:
        return Repository(model.hub.id, model.hub.revision)
    preset = preset_sources().get(model.name)
    # A model of the user's own may have a preset's name: its weights are others.
    is_preset = preset is not None and not model.is_own and model.config == preset_config(model.name)
    return Repository(preset.hub if preset is not None and is_preset else SET_ME)
