"""Inventory of this machine: devices, memory, versions. A separate process makes every access to a GPU or to torch."""

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from shardtune.api_schemas.base import GIB, Dtype, dtypes_listed
from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.api_schemas.training.environment_settings import recorded_variables
from shardtune.api_schemas.training.native_dtypes import of_capability
from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.launchers.processes import PYTHON
from shardtune.workers.machine import host_facts, unsupported_hardware
from shardtune.workers.machine.gpu_peaks import figures

DEFAULT_CPU_RANKS = 2
_RANKS_FRACTION = 0.8
"""Fraction of host memory that CPU ranks may use together. The rest is for interpreters (0.5 GiB each with torch), page
cache and other programs."""
_NVML_S = 60.0

Amount = TypeVar("Amount", int, float)


class DetectionFailed(Exception):
    """Exception for a machine whose hardware could not be detected. The message contains the last output of the process
    that tried."""


class DetectedGpu(BaseModel):
    """Visible GPU, as `workers.machine.nvml` reports it."""

    uuid: str
    name: str
    memory_bytes: int
    pcie_gb_per_s: float | None
    """Rate in GB/s of the fastest PCIe link that both the GPU and the system support."""
    pcie_link_gb_per_s: float | None = None
    """Rate in GB/s of the PCIe link with its present width. A bad riser or slot can halve the width."""
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    compute_capability: tuple[int, int] | None = None
    power_limit_w: float | None = None
    index: int = 0
    """CUDA's index of the GPU if CUDA_DEVICE_ORDER is PCI_BUS_ID, CUDA_VISIBLE_DEVICES hides no permitted GPU and no GPU is in
    MIG mode."""


class Gpus(BaseModel):
    """All visible GPUs of this machine, with their connections."""

    driver: str | None
    devices: tuple[DetectedGpu, ...]
    links: tuple[tuple[int, int, str], ...] = ()
    """Kind of connection, such as `NV18`, between pairs of GPUs, which are named by index."""
    has_slices: bool = False
    """Whether another GPU of this machine is in MIG mode. CUDA then numbers GPUs in a way of its own."""
    rejection: str | None = None
    """Reason why GPUs of this machine cannot be used; None if there is no such problem."""

    @property
    def links_in_words(self) -> str | None:
        """Number of GPU pairs by kind of connection, such as `28×NV18`. None for a single GPU, or if NVML does not
        report connections."""
        kinds = Counter(kind for _, _, kind in self.links)
        return ", ".join(f"{count}×{kind}" for kind, count in sorted(kinds.items())) or None

    def for_ranks(self, ranks: int | None) -> "Gpus":
        """GPUs that this many ranks use, one for each rank.

        Raises:
            ValueError: there are fewer devices, or they are of several models.
        """
        if ranks is not None and self.devices and ranks > len(self.devices):
            raise ValueError(f"ranks ({ranks}) must not exceed the visible GPUs ({len(self.devices)}); use fewer ranks")
        chosen = self.devices[:ranks]
        names = sorted({gpu.name for gpu in chosen})
        if len(names) > 1:
            raise ValueError(
                f"GPUs of several models ({', '.join(names)}) would run at the pace of the slowest; "
                "choose equal ones with CUDA_VISIBLE_DEVICES"
            )
        links = tuple(link for link in self.links if max(link[:2]) < len(chosen))
        return Gpus(driver=self.driver, devices=chosen, links=links, has_slices=self.has_slices)

    @property
    def uuids(self) -> list[str]:
        """UUIDs of the GPUs."""
        return [gpu.uuid for gpu in self.devices]


class Libraries(BaseModel):
    """Versions of the libraries with which ranks will run, and model architectures that they can build: the output of
    `workers.rank.inventory`."""

    torch: str | None = None
    deepspeed: str | None = None
    transformers: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    causal_lm_types: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    """Kinds of adapters that ranks can train; LoRA is among them only if PEFT is installed."""
    optimizers: tuple[str, ...] = ()
    """Kinds of optimizers that packages other than torch (such as bitsandbytes) provide, limited to the packages that
    are installed."""
    float8: tuple[str, ...] = ()
    """Float8 scaling recipes with which ranks can train; empty if torchao is not installed."""
    cpu_dtypes: str | None = None
    """Dtypes that this processor computes natively and for which torch uses it."""
    matmul_flops: dict[Dtype, float] = {}
    """FLOP/s that one rank reaches in matrix products, by dtype; empty if they were not measured."""


def find_gpus() -> Gpus:
    """Visible NVIDIA GPUs; empty if there is no GPU.

    Raises:
        DetectionFailed: NVML does not answer as it should, or there are GPUs that cannot be used.
    """
    command = [*PYTHON, "-m", "shardtune.workers.machine.nvml"]
    try:
        # In another process, so that the agent itself never holds a device.
        child = subprocess.run(command, capture_output=True, text=True, timeout=_NVML_S, check=False)
        gpus = Gpus.model_validate_json(child.stdout)
    except subprocess.TimeoutExpired:
        if unsupported_hardware.hides_all(os.environ.get("CUDA_VISIBLE_DEVICES")):
            # CPU ranks that are asked for need no driver that works, nor one that answers.
            return Gpus(driver=None, devices=())
        raise DetectionFailed(f"NVML did not answer within {_NVML_S:.0f} s; look at `nvidia-smi`") from None
    except ValidationError:
        raise DetectionFailed(f"NVML could not be read: {child.stderr.strip()[-1500:]}") from None
    # No fallback to CPU ranks: they would silently measure another machine than the owner expects.
    if gpus.rejection is not None:
        raise DetectionFailed(gpus.rejection)
    return gpus


def ranks_of(gpus: Gpus, ranks: int | None) -> int:
    """Number of ranks of the largest trial on this machine: one per GPU, or the requested number of CPU ranks."""
    return len(gpus.devices) or ranks or DEFAULT_CPU_RANKS


def cluster(gpus: Gpus, ranks: int | None, memory_gib: float | None, fraction: float = 1.0) -> Cluster:
    """Cluster description of the largest trial on this machine: its GPUs, or CPU ranks if there are no GPUs.

    `fraction`: fraction of the host's memory that the trial may use.

    Raises:
        ValueError: memory was declared for GPUs, whose memory is detected.
    """
    host_gib = fraction * host_facts.host_memory_gib()
    if not gpus.devices:
        count = ranks_of(gpus, ranks)
        rank_gib = round(_RANKS_FRACTION * host_gib / count, 2)
        return Cluster(
            device="cpu", gpus_per_node=count, memory_gib=memory_gib or rank_gib, host_memory_gib=round(host_gib, 2)
        )
    if memory_gib is not None:
        raise ValueError(f"memory_gib ({memory_gib}) is for CPU ranks; GPUs have their own: leave it out")
    first = gpus.devices[0]
    return Cluster(
        device="cuda",
        gpu=first.name,
        gpus_per_node=len(gpus.devices),
        # The smallest: GPUs of one model differ by what their drivers reserve.
        memory_gib=round(min(gpu.memory_bytes for gpu in gpus.devices) / GIB, 2),
        host_memory_gib=round(host_gib, 2),
        intra_node_gb_per_s=figures(first.name).nvlink_gb_per_s if len(gpus.devices) > 1 else None,
        host_link_gb_per_s=first.pcie_gb_per_s,
    )


def fingerprint(gpus: Gpus, libraries: Libraries) -> Fingerprint:
    """Fingerprint (hardware and software versions) under which measurements on this machine are stored.

    Raises:
        DetectionFailed: the machine has GPUs, and torch cannot use them.
    """
    if gpus.devices and libraries.torch and not libraries.cuda:
        raise DetectionFailed(
            f"this machine has {len(gpus.devices)} GPUs, but torch ({libraries.torch}) is built without CUDA; install a "
            "CUDA build, or tune CPU ranks with CUDA_VISIBLE_DEVICES=''"
        )
    first = gpus.devices[0] if gpus.devices else None
    return Fingerprint(
        device="cuda" if first else "cpu",
        gpu=first.name if first else "cpu",
        gpu_count=len(gpus.devices),
        gpu_memory_gib=round(first.memory_bytes / GIB, 2) if first else None,
        driver=gpus.driver,
        **libraries.model_dump(include={"torch", "deepspeed", "transformers", "cuda", "nccl"}),
        python=platform.python_version(),
        kernel=platform.release(),
        cpu=host_facts.cpu_model(),
        # Cores that this process may use, not those of the machine: a container or a partition has fewer.
        cpu_count=len(os.sched_getaffinity(0)),
        host_memory_gib=round(host_facts.host_memory_gib(), 1),
        nodes=1,
        gpu_links=gpus.links_in_words,
        pcie_gb_per_s=_least(gpu.pcie_link_gb_per_s for gpu in gpus.devices),
        sm_clock_mhz=_least(gpu.sm_clock_mhz for gpu in gpus.devices),
        memory_clock_mhz=_least(gpu.memory_clock_mhz for gpu in gpus.devices),
        power_limit_w=_least(gpu.power_limit_w for gpu in gpus.devices),
        cpu_topology=host_facts.cpu_topology(),
        cpu_max_mhz=host_facts.cpu_max_mhz(),
        nics=host_facts.nics(),
        native_dtypes=_native_dtypes(first, libraries),
        environment=recorded_variables(os.environ),
    )


def _native_dtypes(gpu: DetectedGpu | None, libraries: Libraries) -> str | None:
    if gpu is None:
        return libraries.cpu_dtypes
    return of_capability(gpu.compute_capability) if gpu.compute_capability else None


def _float8(devices: Fingerprint, libraries: Libraries) -> tuple[str, ...]:
    """Float8 scaling recipes with which ranks can train here: a GPU needs float8 hardware, CPU ranks emulate it."""
    has_float8 = devices.device == "cpu" or "float8" in dtypes_listed(devices.native_dtypes or "")
    return libraries.float8 if has_float8 else ()


def _least(values: Iterable[Amount | None]) -> Amount | None:
    """Smallest of the devices' values, because ranks run at the pace of the slowest; None if a device reports no
    value."""
    device_values = list(values)
    known_values = [value for value in device_values if value is not None]
    return min(known_values) if known_values and len(known_values) == len(device_values) else None


def inventory(
    gpus: Gpus,
    libraries: Libraries,
    ranks: int | None,
    memory_gib: float | None,
    allowed: Allowed = Allowed(),
    partition: HostPartition | None = None,
    **details: JsonValue,
) -> Inventory:
    """Inventory (hardware and software) of a worker on this machine, as sent to the service. `partition` is the
    worker's part of the machine; None: the whole machine. `details` are shown to people only."""
    offered = cluster(gpus, ranks, memory_gib, partition.fraction if partition is not None else 1.0)
    fingerprint_of_devices = fingerprint(gpus, libraries)
    return Inventory(
        cluster=offered,
        fingerprint=fingerprint_of_devices,
        causal_lm_types=libraries.causal_lm_types,
        task_kinds=TASK_KINDS,
        own_models=tuple(sorted(allowed.models)),
        own_scripts=tuple(sorted(allowed.scripts)),
        adapters=libraries.adapters,
        optimizers=libraries.optimizers,
        float8=_float8(fingerprint_of_devices, libraries),
        matmul_flops=libraries.matmul_flops,
        peak_flops=figures(offered.gpu).peak_bf16_flops,
        host_partition=partition,
        details={"host": platform.node(), "gpu_uuids": list(gpus.uuids), **details},
    )
