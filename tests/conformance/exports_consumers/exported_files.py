"""Files of an export, and what the program that they are for reads in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.tuner.export import export
from shardtune.workers.rank import check_export
from tests.support.processes import preloaded_forks
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

reads_python = pytest.mark.skipif(
    check_export.installed_release("torchtitan") < (0, 3),
    reason="torchtitan 0.3 is not installed: `make test-consumers` runs these",
)
EIGHT_GPUS = Cluster(device="cuda", gpu="NVIDIA H100 80GB HBM3", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
DDP = TrialConfig(strategy=DdpConfig(bucket_cap_mb=7, gradient_as_bucket_view=True, grad_sync="every"), micro_batch=2)
FSDP2 = TrialConfig(
    strategy=Fsdp2Config(dp_shard=8, forward_prefetch=2, blocks_per_unit=2, reshard_after_forward=4, grad_sync="last"),
    activation_checkpointing="selective",
)
TORCHTITANS_GC = 50
"""Steps between two garbage collections of torchtitan, which has no automatic collection."""
PLAIN_FSDP2 = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
ZERO = TrialConfig(strategy=ZeroConfig(stage=3), micro_batch=2, activation_checkpointing="full")


def exported(
    config: TrialConfig, form: ExportFormat, cluster: Cluster = EIGHT_GPUS, precision: str = "bf16-mixed"
) -> Export:
    study = study_of("llama-tiny", precision, cluster, global_batch=cluster.world_size * 4)
    return export(study, contender_of(config), form)


def apart(form: str, folder: Path) -> dict[str, Any]:
    """Export in a separate process, as the command line does: DeepSpeed's integration stays in the one that has used
    it."""
    printed = preloaded_forks.output_of(
        "shardtune.workers.rank.check_export", form, str(folder), log=folder / "check.txt"
    )
    actual_printed: dict[str, Any] = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return actual_printed


def read_back(config: TrialConfig, form: ExportFormat, folder: Path, cluster: Cluster = EIGHT_GPUS) -> str:
    precision = "fp32" if cluster is CPU else "bf16-mixed"
    for name, text in exported(config, form, cluster, precision).files.items():
        (folder / name).write_text(text)
    actual = check_export.check(form, folder) if config is not ZERO else apart(form, folder)
    assert actual["checked"], actual["says"]
    return str(actual["says"])
