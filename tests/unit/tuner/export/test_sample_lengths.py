"""What exported files say about samples of several lengths."""

import json
from typing import Any

import pytest
import yaml

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig
from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.export import accelerate, export, lightning, snippet, torchtitan
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer import training_arguments, trl
from tests.support.values.synthetic_studies import contender_of, study_of

LENGTHS = {"lengths": [[8, 90], [30, 10]]}


def source(data: Any, strategy: Any = None) -> ExportSource:
    study = study_of()
    workload = Workload.model_validate({**study.spec.workload.model_dump(), "data": data})
    spec = study.spec.model_copy(update={"workload": workload})
    config = TrialConfig(strategy=strategy or DdpConfig(), micro_batch=2)
    return ExportSource.of(study.model_copy(update={"spec": spec}), contender_of(config))


def test_trainer_groups_by_length_and_averages_over_tokens() -> None:
    rendered = training_arguments.render(source(LENGTHS | {"layout": "grouped"}))
    values = json.loads(rendered.files["training_arguments.json"])
    assert values["train_sampling_strategy"] == "group_by_length"
    assert values["average_tokens_across_devices"] is True
    assert any(line.startswith("data.layout: the samples of each step were sorted") for line in rendered.lossy)
    padded = json.loads(training_arguments.render(source(LENGTHS)).files["training_arguments.json"])
    assert "train_sampling_strategy" not in padded


def test_trl_pads_to_the_same_multiple() -> None:
    rendered = trl.render(source(LENGTHS | {"pad_to_multiple_of": 8}))
    values = yaml.safe_load(rendered.files[trl.CONFIG])
    assert (values["pad_to_multiple_of"], values["packing"]) == (8, False)
    assert any(line.startswith("data: 8 to 30 tokens (mean 10), padded") for line in rendered.lossy)
    plain = trl.render(source(None))
    assert "pad_to_multiple_of" not in yaml.safe_load(plain.files[trl.CONFIG])
    assert any(line.startswith("data: every sample had") for line in plain.lossy)


@pytest.mark.parametrize("data", [LENGTHS, None])
def test_scripts_with_their_own_loss_are_warned_of_a_mean_of_means(data: Any) -> None:
    """Every other program trains a loss of the user's own code."""
    texts = [
        accelerate.document(source(data)),
        "\n".join(lightning.render(source(data)).lossy),
        snippet.source(source(data)),
    ]
    assert all(("mean of the micro batches' means" in text) == (data is not None) for text in texts)
    compile(texts[2], "train_snippet.py", "exec")


def test_torchtitan_says_that_it_packs() -> None:
    lossy = torchtitan.render(source(LENGTHS, Fsdp2Config(dp_shard=2))).lossy
    assert any("torchtitan packs documents into full rows" in line for line in lossy)


def test_torchtitan_says_how_many_tokens_its_full_rows_hold() -> None:
    exported = source(LENGTHS, Fsdp2Config(dp_shard=2))
    (line,) = [line for line in torchtitan.render(exported).lossy if line.startswith("data:")]
    full = exported.workload.global_batch * exported.workload.sequence_length
    assert f"A step trains {full:,} tokens, where the trial's had 82 without padding" in line
    assert "do not compare" in "".join(torchtitan.render(exported).files.values())


def test_the_script_and_the_list_of_losses_say_that_its_rows_are_full() -> None:
    exported = source(LENGTHS)
    text = snippet.source(exported)
    assert "train_snippet.py does not read the lengths: its rows are random and full" in text
    assert "of every row below; the trial's samples had 8 to 30 tokens (mean 10), padded" in text
    assert "yours need their mask" in text and "A step trains" in text
    listed = export(exported.study, exported.contender, "standard").lossy
    assert any("train_snippet.py does not read the lengths" in line for line in listed)


def test_samples_of_one_length_add_nothing_to_the_script() -> None:
    exported = source(None)
    text = snippet.source(exported)
    assert "full" not in text and "\n\n    generator" not in text
    assert export(exported.study, exported.contender, "standard").lossy == ()
