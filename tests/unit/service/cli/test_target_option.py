"""Option `--target` of `tune`, and the words of a projection."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.studies.targets import Target
from shardtune.service.cli import main, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import early_checks
from shardtune.service.cli.tune.options import TuneOptions
from tests.support.service.simulated_worker import FINGERPRINT

STUDY = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 64}}
OPTIONS = TuneOptions(Path("study.json"), None, None, None, False, Path(".shardtune"), Path("best"), False)
INVENTORY = Inventory(
    cluster=Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16),
    fingerprint=Fingerprint.model_validate(FINGERPRINT.model_dump()),
)


def test_the_option_replaces_the_target_of_the_file_and_says_so() -> None:
    spec = study_file.validate_study(STUDY | {"target": "4x2"}, Path())
    changed, lines = study_file.with_options(
        spec, ranks=None, max_trials=None, memory_gib=None, target=study_file.read_target("8x2")
    )
    assert changed.target is not None and changed.target.nodes == 8
    assert lines == ["--target 8x2 replaces the study's 4x2"]
    same, silent = study_file.with_options(
        spec, ranks=None, max_trials=None, memory_gib=None, target=study_file.read_target("4x2")
    )
    assert same == spec and silent == []


STORED = STUDY | {"target": {"nodes": 64, "gpus_per_node": 8, "inter_node_gb_per_s": 400, "global_batch": 2048}}
"""Study as the service stores it: the workload's batch is the cluster's part of the target's."""


def with_target(text: str, values: dict[str, Any]) -> tuple[Target | None, list[str]]:
    """Target of a study after the option, and the lines that say what the option replaced."""
    spec = study_file.validate_study(values, Path())
    option = study_file.read_target(text)
    changed, lines = study_file.with_options(spec, ranks=None, max_trials=None, memory_gib=None, target=option)
    return changed.target, lines


def test_the_option_keeps_the_batch_of_a_stored_studys_target() -> None:
    target, lines = with_target("8x8", STORED)
    assert target is not None and (target.nodes, target.global_batch) == (8, 2048)
    assert lines == ["--target 8x8 replaces the study's 64x8 with inter_node_gb_per_s 400"]


def test_the_option_leaves_a_target_of_the_same_size_with_its_network_and_batch() -> None:
    target, lines = with_target("64x8", STORED)
    assert target is not None and (target.inter_node_gb_per_s, target.global_batch) == (400, 2048) and lines == []


def test_a_bare_config_gets_a_batch_for_the_ranks_of_the_target() -> None:
    spec, words = study_file.default_study("llama-tiny", INVENTORY, target=study_file.read_target("8x2"))
    assert spec.workload.global_batch == 8 * 16 and "16 ranks of the target" in words
    spec, _ = study_file.default_study("llama-tiny", INVENTORY, target=study_file.read_target("8"))
    assert spec.workload.global_batch == 8 * 16


@pytest.mark.parametrize(
    ("text", "words"),
    [("x", "must read NODES"), ("100000x100000", "at most 100000 GPUs"), ("0x1", "at least one node")],
)
def test_a_target_of_another_form_names_the_option(text: str, words: str) -> None:
    with pytest.raises(InputError) as rejected:
        study_file.read_target(text)
    assert "--target (" in str(rejected.value) and words in str(rejected.value)


def test_the_command_that_starts_again_keeps_the_target() -> None:
    options = replace(OPTIONS, target="64x8")
    assert options.from_the_start() == "shardtune tune study.json --target 64x8"
    assert "--target" not in options.again("--resume")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("1x2", "target (1 × 2 GPUs) is what the cluster has"),
        ("3x8", "workload.global_batch (64) must be a multiple of 24"),
        ("8x8xh100", "target.gpu ('h100') is not the cluster's kind (cpu)"),
    ],
)
def test_a_target_that_this_machine_says_nothing_about_is_rejected_before_anything_starts(
    target: str, message: str
) -> None:
    spec = study_file.validate_study(STUDY | {"target": target}, Path())
    # The machine may have GPUs; the rule is about two CPU ranks.
    on_cpu = spec.model_copy(update={"cluster": INVENTORY.cluster})
    with pytest.raises(InputError) as rejected:
        early_checks.check_study(on_cpu, None)
    assert message in str(rejected.value)


def test_a_continued_study_takes_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.json").write_text(json.dumps(STUDY))
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--resume", "--target", "8x8"])
    assert ended.value.code == 2
    assert "--target (8x8) would change the study that --resume continues" in capsys.readouterr().err
