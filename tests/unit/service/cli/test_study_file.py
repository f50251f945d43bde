"""Study files of `shardtune tune`, and the messages about wrong ones."""

import json
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.model_presets import preset_config
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import early_checks, job, study_input
from shardtune.service.cli.tune.job import TuneOptions
from shardtune.service.studies import validation
from tests.support.service.simulated_worker import CLUSTER, SPEC

EXAMPLES = Path(__file__).parents[4] / "examples"
STUDY = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}


def rejection(values: dict) -> str:
    with pytest.raises(InputError) as rejected:
        study_file.validate_study(values, Path())
    return "\n".join(rejected.value.lines)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_every_example_is_a_study(path: Path) -> None:
    values = study_file.read_json_object(path)
    if path.stem != "ds_config":
        assert study_file.validate_study(values, path.parent).model.name


def test_an_example_compares_two_recipes_over_200_steps() -> None:
    path = EXAMPLES / "llama-tiny-recipes.json"
    study = study_file.validate_study(study_file.read_json_object(path), path.parent)
    assert (study.consider, study.consider_steps) == (("bf16-true", "adamw-bf16"), 200)


def test_a_path_in_place_of_a_baseline_is_read_relative_to_the_study() -> None:
    path = EXAMPLES / "llama-tiny-from-deepspeed.json"
    baseline = study_file.validate_study(study_file.read_json_object(path), path.parent).baseline
    assert isinstance(baseline, dict)
    assert baseline["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"modle": 1}, "modle: unknown field; did you mean model?"),
        ({"workload": {"sequence_length": 64}}, "workload.global_batch: missing"),
        ({"workload": {"sequence_length": "long", "global_batch": 16}}, 'workload.sequence_length ("long")'),
        (
            {"workload": {"sequence_length": 64, "global_batch": 16, "precision": "fp16"}},
            "precision ('fp16') is unknown",
        ),
        ({"model": "llama-3"}, "'llama-3') is not a preset; did you mean llama-3"),
        ({"model": {"hidden_size": 3}}, "model: model_type (None) must be the name"),
        ({"cluster": "remote"}, "cluster ('remote')"),
        ({"cluster": {"gpus_per_node": 2}}, "cluster.memory_gib: missing"),
        ({"budget": {"max_trials": 0}}, "budget.max_trials (0)"),
    ],
)
def test_a_wrong_field_is_named_with_value_and_remedy(change: dict, expected: str) -> None:
    assert expected in rejection({**STUDY, **change})


def test_a_list_that_is_empty_because_its_entry_was_rejected_is_said_once() -> None:
    lines = rejection(STUDY | {"space": {"backends": ["fsdp"]}}).splitlines()
    assert len(lines) == 1 and "space.backends.0" in lines[0]


def test_a_wrong_cluster_is_not_also_called_not_local() -> None:
    assert "local" not in rejection({**STUDY, "cluster": {"gpus_per_node": 2}})


@pytest.mark.parametrize(
    ("content", "expected"),
    [('{"model": \n "llama-tiny",,}', "line 2, column 15"), ("[1]", "must hold an object"), (b"\xff\xfe", "UTF-8")],
)
def test_a_file_that_is_no_json_object_is_rejected(tmp_path: Path, content: str | bytes, expected: str) -> None:
    path = tmp_path / "study.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=expected):
        study_file.read_json_object(path)


def inventory(device: str, ranks: int) -> Inventory:
    names = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers")
    fingerprint = Fingerprint(
        device=device, gpu="x", gpu_count=ranks, gpu_memory_gib=None, python="3.11", kernel="6", cpu="x", cpu_count=2,
        host_memory_gib=8, **dict.fromkeys(names),
    )  # fmt: skip
    cluster = Cluster(device=device, gpus_per_node=ranks, memory_gib=4, host_memory_gib=8)
    return Inventory(cluster=cluster, fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("device", "positions", "length"), [("cpu", 4096, 512), ("cpu", 128, 128), ("cuda", 4096, 2048)]
)
def test_a_bare_config_gets_a_workload_that_suits_the_machine(device: str, positions: int, length: int) -> None:
    config = {"model_type": "llama", "max_position_embeddings": positions}
    assert study_file.is_bare_config(config)
    spec, words = study_file.default_study(config, inventory(device, 4))
    assert (spec.workload.sequence_length, spec.workload.global_batch) == (length, 32)
    assert spec.workload.precision is None, "the machine decides"
    assert str(length) in words


def test_a_limit_of_pairs_leaves_the_other_limits_of_the_budget() -> None:
    budget = {"planned_gpu_hours": 5, "max_pairs": 30, "repeat_disturbed": 0}
    spec = study_file.validate_study({**STUDY, "budget": budget}, Path())
    fewer, replaced = study_input.with_options(spec, max_pairs=9)
    assert fewer.budget == spec.budget.model_copy(update={"max_pairs": 9})
    assert replaced == []


def test_options_replace_what_the_file_says() -> None:
    cluster = {"device": "cpu", "gpus_per_node": 2, "memory_gib": 4, "host_memory_gib": 8}
    spec = study_file.validate_study({**STUDY, "cluster": cluster}, Path())
    changed, replaced = study_input.with_options(spec, ranks=4, max_trials=3, max_pairs=9, memory_gib=1.5)
    assert isinstance(changed.cluster, Cluster)
    assert (changed.cluster.world_size, changed.cluster.memory_gib) == (4, 1.5)
    assert (changed.budget.max_trials, changed.budget.max_pairs) == (3, 9)
    assert len(replaced) == 2
    assert json.loads(changed.model_dump_json())["model"]["name"] == "llama-tiny"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_batch": 15}, "workload.global_batch (15) must be a multiple"),
        (
            {"sequence_length": 6400},
            "workload.sequence_length (6400) exceeds the model's max_position_embeddings (1024)",
        ),
    ],
)
def test_what_is_wrong_with_a_study_is_said_before_anything_is_started(tmp_path, changes, says):
    workload = {"sequence_length": 64, "global_batch": 16} | changes
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"model": "llama-tiny", "workload": workload}))
    with pytest.raises(InputError) as caught:
        job.tune(TuneOptions(path, 2, None, None, False, tmp_path / "state", tmp_path / "best", False))
    assert caught.value.lines[0].startswith(says)
    assert not (tmp_path / "state").exists()


def test_a_small_budget_says_before_it_starts_what_it_will_try():
    spec = StudySpec.model_validate(
        SPEC | {"workload": {"sequence_length": 64, "global_batch": 8, "precision": "fp32"}}
    )
    for trials, taken in ((6, 4), (3, 3), (10, None)):
        notes = validation.check(spec.model_copy(update={"budget": Budget(max_trials=trials)}), CLUSTER).notes
        note = (
            f"budget.max_trials ({trials}): starting configurations take up to {taken} of them; raise it to 10 or more "
            "for a longer search"
        )
        assert notes == (() if taken is None else (note,))


@pytest.mark.parametrize(("cluster", "says"), [("8xh1000", "'h1000'"), ("0xh100", "0")])
def test_a_cluster_that_nobody_knows_is_rejected_before_a_process_starts(cluster: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        early_checks.check_study(study_file.validate_study({**STUDY, "cluster": cluster}, Path()), None)


@pytest.mark.parametrize(
    "model",
    [
        "gpt2-tiny",
        {"name": "org/tiny", "hub": {"id": "org/tiny", "revision": "a1" * 20}, "config": preset_config("gpt2-tiny")},
    ],
    ids=["preset", "repository"],
)
def test_a_model_by_name_gets_a_default_workload_and_keeps_its_repository(model) -> None:
    spec, words = study_file.default_study(model, inventory("cpu", 2))
    assert (spec.workload.sequence_length, spec.workload.global_batch) == (512, 16) and "no workload given" in words
    assert (spec.model.hub is None) == isinstance(model, str)


def test_a_wrong_model_without_a_workload_is_rejected_by_its_field() -> None:
    with pytest.raises(InputError, match="auto_map names code"):
        study_file.default_study({"model_type": "llama", "auto_map": {}}, inventory("cpu", 2))
