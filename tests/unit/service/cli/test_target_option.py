"""Option `--target` of `tune`, and the words of a projection."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.exports import Export
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.targets import CurvePoint, ProjectedConfig, StudyProjection, Target
from shardtune.service.cli import main, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import answer, early_checks, study_input
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.cli.write_files import write_files
from shardtune.service.client import ServiceRejected
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.synthetic_studies import contender_of, study_of

STUDY = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 64}}
OPTIONS = TuneOptions(Path("study.json"), None, None, None, False, Path(".shardtune"), Path("best"), False)
INVENTORY = Inventory(
    cluster=Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=16),
    fingerprint=Fingerprint.model_validate(FINGERPRINT.model_dump()),
)


def test_the_option_replaces_the_target_of_the_file_and_says_so() -> None:
    spec = study_file.validate_study(STUDY | {"target": "4x2"}, Path())
    changed, lines = study_input.with_options(spec, target=study_file.read_target("8x2"))
    assert changed.target is not None and changed.target.nodes == 8
    assert lines == ["--target 8x2 replaces the study's 4x2"]
    same, silent = study_input.with_options(spec, target=study_file.read_target("4x2"))
    assert same == spec and silent == []


STORED = STUDY | {"target": {"nodes": 64, "gpus_per_node": 8, "inter_node_gb_per_s": 400, "global_batch": 2048}}
"""Study as the service stores it: the workload's batch is the cluster's part of the target's."""


def with_target(text: str, values: dict[str, Any]) -> tuple[Target | None, list[str]]:
    """Target of a study after the option, and the lines that say what the option replaced."""
    spec = study_file.validate_study(values, Path())
    option = study_file.read_target(text)
    changed, lines = study_input.with_options(spec, target=option)
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
    [
        ("x", "must read NODES"),
        ("100000x100000", "at most 100000 GPUs"),
        ("0x1", "at least one node"),
        ("1x2000", "at most 1024 GPUs of a node"),
    ],
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


OWN_FILES = {"sizes.json": "[1]", "confirm.json": "{}", "confirm.sbatch": "true"}
TARGET_EXPORT = {"config.json": "{}", "sizes.json": "[]", "confirm.json": "{}", "confirm.sbatch": "true"}


@pytest.mark.parametrize("folder", [".", "target"])
def test_an_export_leaves_the_users_own_files_with_names_of_a_targets_export(tmp_path: Path, folder: str) -> None:
    write_files(tmp_path / folder, OWN_FILES)
    write_files(tmp_path / folder, {"config.json": "{}"})
    assert {path.name for path in (tmp_path / folder).iterdir()} == {"config.json", *OWN_FILES}


def test_an_export_for_a_target_removes_the_confirming_job_of_an_earlier_one(tmp_path: Path) -> None:
    write_files(tmp_path / "target", TARGET_EXPORT)
    write_files(tmp_path / "target", {"config.json": "{}", "sizes.json": "[]"})
    assert {path.name for path in (tmp_path / "target").iterdir()} == {"config.json", "sizes.json"}


class ServiceWithoutTarget:
    """Service that exports the best configuration, and fails to export the target's."""

    def export(self, study_id: str, which: str = "best") -> Export:
        if which == "target":
            raise ServiceRejected(409, {"code": "study_unfinished", "detail": "nothing is projected"})
        return Export(format="standard", files={"config.json": "{}"})

    def trials(self, study_id: str) -> list[Any]:
        return []

    def rejections(self, study_id: str) -> list[Any]:
        return []


class ServiceWithTarget(ServiceWithoutTarget):
    """Service that exports the target's configuration, too."""

    def export(self, study_id: str, which: str = "best") -> Export:
        return Export(format="standard", files=TARGET_EXPORT)


def finished(projection: StudyProjection | None) -> Study:
    """Finished study with or without a projection."""
    best = contender_of(TrialConfig(strategy=DdpConfig()))
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.CONFIRMED, projection=projection)
    return study_of().model_copy(update={"result": result})


def projection() -> StudyProjection:
    """Projection of one trial to four nodes."""
    one = Band(expected=1.0, low=0.9, high=1.1)
    config = TrialConfig(strategy=DdpConfig())
    point = CurvePoint(nodes=4, gpus=8, evidence="projected", tokens_per_s_per_gpu=one)
    best = ProjectedConfig(
        trial_number=0, config=config, description="DDP", scaled=(), measured_tokens_per_s_per_gpu=1.0,
        tokens_per_s_per_gpu=one, memory_gib=one, may_not_fit=False, chance_of_best=1.0, rank_measured=1, unseen=(),
        curve=(point,),
    )  # fmt: skip
    return StudyProjection(
        cluster=INVENTORY.cluster.model_copy(update={"nodes": 4}), global_batch=32, measured_gpus=2, doublings=2.0,
        best=best, order_changes=False, projected=1, only_at_target=0, too_large=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("is_folder_taken", "words"), [(False, "written: nothing is projected"), (True, "written: --out")]
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_measured_answer_is_printed_although_the_files_for_the_target_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool, is_folder_taken: bool, words: str
) -> None:
    service = ServiceWithoutTarget()
    if is_folder_taken:
        (tmp_path / "target").write_text("a file")
        service = ServiceWithTarget()
    options = replace(OPTIONS, out=tmp_path, as_json=as_json)
    answer.write_and_print(service, finished(projection()), options)  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert "tokens_per_s_per_gpu" in printed.out if as_json else "tokens/s" in printed.out
    assert f"the files for the target are not {words}" in (printed.err if as_json else printed.out)


def test_files_for_the_target_of_an_earlier_study_do_not_stay_beside_a_new_answer(tmp_path: Path) -> None:
    write_files(tmp_path / "target", TARGET_EXPORT)
    (tmp_path / "target" / "notes.txt").write_text("mine")
    answer.write_and_print(ServiceWithoutTarget(), finished(None), replace(OPTIONS, out=tmp_path))  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["notes.txt"]


def test_a_folder_target_that_no_study_wrote_is_left_alone(tmp_path: Path) -> None:
    write_files(tmp_path / "target", {"config.json": "{}"})
    answer.write_and_print(ServiceWithoutTarget(), finished(None), replace(OPTIONS, out=tmp_path))  # type: ignore[arg-type]
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["config.json"]
