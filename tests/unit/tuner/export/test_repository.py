"""Weights that exported files name: those of the study's own model, never of another by the same name."""

from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer.repository import repository
from tests.support.values.synthetic_studies import contender_of, study_of


def source_of(model: ModelSpec) -> ExportSource:
    study = study_of()
    study = study.model_copy(update={"spec": study.spec.model_copy(update={"model": model})})
    return ExportSource.of(study, contender_of(TrialConfig(strategy=DdpConfig(), micro_batch=2)))


def test_a_preset_names_the_repository_of_its_numbers() -> None:
    assert repository(source_of(preset("gpt2"))).id == "openai-community/gpt2"


@pytest.mark.parametrize("changes", [{"n_layer": 48}, {"n_embd": 1600, "n_head": 25}], ids=str)
def test_another_model_of_that_name_does_not(changes: dict[str, Any]) -> None:
    gpt2 = preset("gpt2")
    other = gpt2.model_copy(update={"config": {**gpt2.config, **changes}})
    assert not repository(source_of(other)).is_named
