"""The exported job of Slurm by its consumer's own checker."""

from pathlib import Path

import pytest

pytest.importorskip("kubernetes_validate", reason="`make check-deploy` installs the checkers")

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.tuner.export.bundle import files
from tests.deploy.checks.programs import complaints
from tests.support.values.synthetic_studies import contender_of, study_of


def test_shellcheck_finds_nothing_in_the_exported_launchers(tmp_path: Path) -> None:
    cluster = Cluster(gpu="NVIDIA H100 80GB HBM3", nodes=2, gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
    study = study_of("llama-tiny", "bf16-mixed", cluster, global_batch=32)
    scripts = files(study, contender_of(TrialConfig(strategy=DdpConfig())))
    paths = [tmp_path / name for name in ("launch.sh", "launch.sbatch")]
    for path in paths:
        path.write_text(scripts[path.name])
    assert complaints(["shellcheck", *map(str, paths)], tmp_path) == []
