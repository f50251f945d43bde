"""Exports for launchers of studies as they might be: GPUs on several nodes, CPU ranks, own code, hostile names."""

from pathlib import Path
from typing import Any, get_args

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.studies.exports import Export, ExportFormat, LauncherFormat
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.tuner.export import export
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.synthetic_studies import CPU, contender_of, study_of

LAUNCHERS: tuple[LauncherFormat, ...] = get_args(LauncherFormat)
H100 = Cluster(gpu="NVIDIA H100 80GB HBM3", nodes=2, gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
A100 = Cluster(gpu="NVIDIA A100-SXM4-80GB", gpus_per_node=8, memory_gib=80, host_memory_gib=1000)
UNKNOWN = Cluster(gpu="NVIDIA Unobtainium 9000", gpus_per_node=4, memory_gib=80, host_memory_gib=1000)
CLUSTERS = {"h100": H100, "a100": A100, "unknown": UNKNOWN, "cpu": CPU}
FSDP2 = TrialConfig(strategy=Fsdp2Config(dp_shard=16), malloc="keep")
DDP = TrialConfig(strategy=DdpConfig())
ZERO = TrialConfig(strategy=ZeroConfig(stage=3))
MEASURED = FINGERPRINT.model_copy(
    update={"torch": "2.13.0+cu130", "cuda": "13.0", "environment": ("NCCL_ALGO=Ring", "NCCL_SOCKET_IFNAME=eth0")}
)


def exported(
    form: ExportFormat,
    cluster: Cluster = H100,
    config: TrialConfig = DDP,
    fingerprint: Fingerprint | None = MEASURED,
    **changes: Any,
) -> Export:
    study = study_of("llama-tiny", "fp32" if cluster.device == "cpu" else "bf16-mixed", cluster, global_batch=32)
    return export(study.model_copy(update={"fingerprint": fingerprint, **changes}), contender_of(config), form)


def of_own_code(study: Study) -> Study:
    """The same study of a user's own model."""
    return study.model_copy(update={"spec": study.spec.model_copy(update={"model": ModelSpec(entry_point="mine")})})


def written(export: Export, folder: Path) -> Path:
    """The folder with the files of an export."""
    for name, text in export.files.items():
        (folder / name).write_text(text)
    return folder
