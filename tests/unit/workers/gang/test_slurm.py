"""Parsing of Slurm's output, without Slurm; its daemons are in tests/lab."""

import os

import pytest

from shardtune.workers.gang.slurm import SlurmHosts, seconds_of


@pytest.mark.parametrize(
    ("remaining", "seconds"),
    [("00:59", 59), ("02:03:04", 7384), ("1-00:00:01", 86401), ("UNLIMITED", None), ("INVALID", None), ("", None)],
)
def test_time_left_is_read_as_squeue_prints_it(remaining: str, seconds: float | None) -> None:
    assert seconds_of(remaining) == seconds


def test_outside_a_job_the_message_says_how_to_get_one(tmp_path) -> None:
    with pytest.raises(ValueError, match="sbatch"):
        SlurmHosts(tmp_path, environment={})


def test_the_minute_before_a_job_s_end_is_for_handing_back(tmp_path) -> None:
    for name, words in (("scontrol", "n0"), ("squeue", "10:00")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {words}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0", "PATH": str(tmp_path)}
    assert SlurmHosts(tmp_path, environment=job).ends_in_s() == pytest.approx(540, abs=10)


def test_more_nodes_than_the_job_has_are_rejected_with_its_hosts(tmp_path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n0\necho n1\n")
    (tmp_path / "scontrol").chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-1]", "PATH": str(tmp_path)}
    with pytest.raises(ValueError, match=r"nodes \(3\) must not exceed the job's hosts \(2: n0, n1\).*--nodes=3"):
        SlurmHosts(tmp_path, nodes=3, environment=job)


def test_no_variable_of_the_job_is_an_option_of_its_steps(tmp_path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho n0\n")
    (tmp_path / "srun").write_text("#!/bin/sh\nenv\n")
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options = {"SLURM_MEM_PER_CPU": "1", "SRUN_CPUS_PER_TASK": "8"}
    pipe = SlurmHosts(tmp_path, environment=job | options).start("n0")
    names = {line.decode().partition("=")[0] for line in pipe.lines()}
    pipe.close()
    assert "SLURM_JOB_ID" in names and not names & options.keys()
