"""`launch.sbatch` of an export through a real `sbatch`: the job trains over all hosts as what was measured."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.tuner.export import files
from tests.lab import requirements
from tests.lab.laboratory import HEAD, Laboratory, for_this_process
from tests.support.values.synthetic_studies import contender_of, study_of

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="minutes of real ranks: make test-long"),
]
ONE_HOST = Cluster(device="cpu", gpus_per_node=4, memory_gib=1, host_memory_gib=1)
TWO_HOSTS = ONE_HOST.model_copy(update={"nodes": 2, "gpus_per_node": 2})
CONFIG = TrialConfig(strategy=Fsdp2Config(dp_replicate=2, dp_shard=2), micro_batch=2)
STEP = re.compile(r"step \d+: loss ([\d.]+), gradient norm ([\d.]+)")


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    requirements.require("slurm")
    with for_this_process(hosts=2, ranks=2, engine="slurm") as running_laboratory:
        yield running_laboratory


def exported(folder: Path, cluster: Cluster) -> Path:
    """Files of the export, in a new folder."""
    folder.mkdir()
    for name, text in files(study_of("llama-tiny", "fp32", cluster, global_batch=16), contender_of(CONFIG)).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def submitted(laboratory: Laboratory, job: Path) -> str:
    """Output of a job, after it has ended."""
    log = job.with_name("job.log")
    words = ["env", f"PYTHON={sys.executable}", "CUDA_VISIBLE_DEVICES=", "sbatch", "--parsable", f"--output={log}"]
    number = laboratory.run(HEAD, [*words, str(job), "--steps", "2"]).strip()
    ends_s = time.monotonic() + 300
    while laboratory.run(HEAD, ["squeue", "--noheader", f"--jobs={number}"]).strip():
        assert time.monotonic() < ends_s, log.read_text()
        time.sleep(1)
    return log.read_text()


def steps(output: str) -> list[tuple[float, float]]:
    """Loss and gradient norm of each."""
    actual = [(float(loss), float(norm)) for loss, norm in STEP.findall(output)]
    assert len(actual) == 2, output
    return actual


def test_a_job_over_two_hosts_trains_as_on_one(laboratory: Laboratory, tmp_path: Path) -> None:
    job = exported(laboratory.claim.shared / "best of two", TWO_HOSTS) / "launch.sbatch"
    over_two = steps(submitted(laboratory, job))
    words = ["bash", str(exported(tmp_path / "best", ONE_HOST) / "launch.sh"), "--steps", "2"]
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    on_one = subprocess.run(words, env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout
    assert over_two == [pytest.approx(step, rel=2e-4) for step in steps(on_one)]
