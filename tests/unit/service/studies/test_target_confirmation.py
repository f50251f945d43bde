"""Files that confirm a projection on the target."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import ProjectedConfig, StudyProjection
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.api_schemas.trials.objective import Objective
from shardtune.service.cli.write_files import reporting_here, write_files
from shardtune.service.planning import target_comparison
from shardtune.service.planning.target_comparison import comparing_study
from shardtune.service.studies.results import target_confirmation
from shardtune.tuner.search import seeds, space
from tests.support.service.simulated_worker import MODEL_SUMMARY
from tests.support.values.synthetic_studies import CPU, study_of

THERE = CPU.model_copy(update={"nodes": 4})
ONE = Band(expected=1.0, low=0.9, high=1.1)
SECOND = TrialConfig(strategy=ZeroConfig(stage=2))


def projected(number: int, config: TrialConfig) -> ProjectedConfig:
    """Projection of a trial with these values."""
    return ProjectedConfig(
        trial_number=number, config=config, description=config.describe(), scaled=(), measured_tokens_per_s_per_gpu=1.0,
        tokens_per_s_per_gpu=ONE, memory_gib=ONE, may_not_fit=False, chance_of_best=0.5, rank_measured=number, unseen=(),
    )  # fmt: skip


def projection_of(*configs: TrialConfig) -> StudyProjection:
    best, *others = (projected(number, config) for number, config in enumerate(configs, start=1))
    return StudyProjection(
        cluster=THERE, global_batch=32, measured_gpus=2, doublings=2.0, best=best, runners_up=tuple(others),
        order_changes=False, projected=len(configs), only_at_target=0, too_large=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "first",
    [
        TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2),
        TrialConfig(strategy=Fsdp2Config(dp_shard=2, dp_replicate=4, reshard_after_forward=False), micro_batch=4),
        TrialConfig(strategy=DdpConfig(bucket_cap_mb=50), activation_checkpointing="full"),
        TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2),
    ],
)
def test_the_study_runs_the_second_choice_as_its_baseline_and_then_the_first(first: TrialConfig) -> None:
    request = comparing_study("study-1", study_of().spec, projection_of(first, SECOND))
    assert request.baseline == SECOND and request.cluster == THERE and request.workload.global_batch == 32
    spec = request.with_precision(PRECISIONS["fp32"])
    limited = space.build(spec.workload, THERE, MODEL_SUMMARY, spec.space)
    planned = [config for config, _ in seeds.seed_configs(limited, THERE, SECOND)]
    # Where no default of the backend can be limited to the first choice, the search draws it: nothing else is legal.
    assert planned in ([SECOND, first], [SECOND]) and request.budget.max_trials == 2
    assert limited.within_limits(TrialConfig(strategy=first.strategy)) == first


def test_the_study_keeps_every_field_that_it_neither_sets_nor_leaves_out() -> None:
    values = {"objective": Objective(memory_headroom=0.2), "checkpoint_every_s": 60.0}
    set_here = {"workload", "cluster", "budget", "baseline", "space", "confirms", "model"}
    assert set(StudyRequest.model_fields) == {*values, *set_here, *target_comparison.LEFT_OUT}, "give the field a value"
    spec = study_of().spec.model_copy(update=values)
    request = comparing_study("study-1", spec, projection_of(TrialConfig(strategy=DdpConfig()), SECOND))
    assert {name: getattr(request, name) for name in values} == values and request.model == spec.model


def test_the_files_are_a_study_and_a_job_that_names_both_choices(tmp_path: Path) -> None:
    first = TrialConfig(strategy=Fsdp2Config(dp_shard=8), micro_batch=2)
    files = target_confirmation.files(study_of(), projection_of(first, SECOND))
    assert set(files) == {"confirm.json", "confirm.sbatch"}
    request = StudyRequest.model_validate(json.loads(files["confirm.json"]))
    expected = comparing_study(study_of().study_id, study_of().spec, projection_of(first, SECOND))
    assert request.model_dump() == expected.model_dump()
    job = files["confirm.sbatch"]
    assert "#SBATCH --nodes=4" in job and first.describe() in job and SECOND.describe() in job
    script = tmp_path / "confirm.sbatch"
    script.write_text(job)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_without_a_second_choice_nothing_is_compared() -> None:
    first = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    assert target_confirmation.files(study_of(), projection_of(first)) == {}


def job_in(tmp_path: Path, rest: str = "", **environment: str) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """Run the job as Slurm does, with a stand-in for `scontrol` and an interpreter that prints its arguments; returns the
    folder of the export, and the ended job."""
    folder, tools, copies = tmp_path / "my best lr=3" / "target", tmp_path / "bin", tmp_path / "spool"
    for place in (folder, tools, copies):
        place.mkdir(parents=True)
    files = target_confirmation.files(study_of(), projection_of(TrialConfig(strategy=DdpConfig()), SECOND))
    write_files(folder, reporting_here(files, tmp_path / "my state"))
    (copies / "slurm_script").write_text((folder / "confirm.sbatch").read_text())
    fakes = {"scontrol": f"echo 'JobId=7 Command={folder}/confirm.sbatch {rest}'", "python": 'printf "%s\\n" "$@"'}
    for name, text in fakes.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    own = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)}
    job = subprocess.run(
        ["bash", str(copies / "slurm_script")],
        env=own | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, job


@pytest.mark.parametrize(
    "rest", ["WorkDir=/tmp StdErr=/tmp/slurm-7.out", "SubmitLine=sbatch confirm.sbatch WorkDir=/tmp", ""]
)
def test_the_job_finds_its_study_in_a_folder_whose_name_has_spaces(tmp_path: Path, rest: str) -> None:
    folder, job = job_in(tmp_path, rest)
    assert job.returncode == 0 and str(folder / "confirm.json") in job.stdout.splitlines(), job.stderr


def test_the_job_uses_the_state_directory_of_the_study_that_it_reports_to(tmp_path: Path) -> None:
    (tmp_path / "my state").mkdir()
    _, job = job_in(tmp_path)
    assert str(tmp_path / "my state") in job.stdout.splitlines() and job.stderr == ""


def test_the_job_compares_without_a_report_where_the_state_directory_is_in_use_or_missing(tmp_path: Path) -> None:
    folder, job = job_in(tmp_path / "missing")
    assert str(folder / "confirm-state") in job.stdout.splitlines() and "will not get this answer" in job.stderr
    (tmp_path / "my state").mkdir()
    with FileLock(tmp_path / "my state" / "tune.lock"):
        folder, job = job_in(tmp_path)
    assert str(folder / "confirm-state") in job.stdout.splitlines() and "is in use or not on this node" in job.stderr


def test_the_job_ends_before_it_starts_anything_on_too_few_nodes(tmp_path: Path) -> None:
    _, job = job_in(tmp_path, SLURM_JOB_NUM_NODES="3")
    assert job.returncode == 2 and "confirm.json" not in job.stdout and "--nodes=4" in job.stderr


def test_a_study_of_a_service_has_a_job_without_a_state_directory() -> None:
    job = target_confirmation.files(study_of(), projection_of(TrialConfig(strategy=DdpConfig()), SECOND))[
        "confirm.sbatch"
    ]
    assert "\nstate=\n" in job and '\npython="${PYTHON:-python}"\n' in job


def test_a_state_directory_of_any_bytes_is_written_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_files(tmp_path / "target", reporting_here({"confirm.sbatch": "python=\nstate=\n"}, folder))
    assert b"caf\xe9" in (tmp_path / "target" / "confirm.sbatch").read_bytes()
