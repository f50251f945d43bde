"""Detection of accelerators that are present but not supported: the worker rejects them with a reason and never
silently uses CPU ranks instead."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_NO_DEVICE = ("", "-1", "none", "void", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide every GPU."""
_DRIVER_REMEDIES = (
    (
        r"driver on your system is too old|[Ii]nsufficient [Dd]river|CUDA driver version is insufficient",
        "the NVIDIA driver is too old for this CUDA build of torch (CUDA 13 needs driver 580 or newer): update the driver, "
        "or install a torch for an older CUDA from https://download.pytorch.org/whl/",
    ),
    (
        r"no kernel image is available",
        "this build of torch has no kernels for the GPU's compute capability (builds for CUDA 13 begin at 7.5): install a torch "
        "for an older CUDA from https://download.pytorch.org/whl/",
    ),
    (
        r"Error 802|system not yet initialized",
        "the GPUs' switch fabric is not ready (CUDA error 802): start the fabric manager "
        "(`systemctl start nvidia-fabricmanager`), of the driver's version",
    ),
    (
        r"Error 803|unsupported display driver / cuda driver combination|NVML/RM version mismatch",
        "the driver's library and its kernel module have different versions: reboot after a driver update, "
        "and mount the host's libcuda into a container",
    ),
    (
        r"Error 804|forward compatibility was attempted on non supported HW",
        "a compatibility library (cuda-compat) is used on a GPU that does not support it (CUDA error 804): take it off "
        "LD_LIBRARY_PATH, or update the driver",
    ),
    (
        r"busy or unavailable",
        "a GPU is busy or unavailable (CUDA error 46): another process has it in exclusive mode, the mode prohibits all use "
        "(`nvidia-smi -c 0` sets the default one), or another process fills the GPU or its memory (`nvidia-smi` lists them)",
    ),
    (
        r"CUDA unknown error|No CUDA GPUs are available",
        "NVML sees the GPUs and CUDA does not: on the host, `nvidia-modprobe -u -c=0` makes /dev/nvidia-uvm, which a container "
        "needs as well; then look at `dmesg`",
    ),
    (
        r"Found no NVIDIA driver on your system",
        "CUDA's library (libcuda.so.1) is missing although NVML answers: in a container, NVIDIA_DRIVER_CAPABILITIES must contain "
        "`compute`",
    ),
)
"""Texts that occur in error messages of torch 2.13 at its first CUDA call, each with the remedy for this error. CUDA's
error codes are listed in `driver_types.h`."""
_EXCLUSIVE_THREAD, _PROHIBITED, _EXCLUSIVE_PROCESS = 1, 2, 3
"""Compute modes (`nvmlComputeMode_t` in `nvml.h`) that are not the default one."""
REMEDY = "To tune CPU ranks on this machine, set CUDA_VISIBLE_DEVICES=''"


def hides_all(visible: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU on purpose; None stands for a variable that is not set."""
    return visible is not None and visible.strip() in _NO_DEVICE


def machine(reason: str, root: Path = Path("/")) -> str | None:
    """Reason why the accelerators of a machine without NVML cannot be used. None if the machine has no accelerator."""
    problem = _accelerator_problem(root)
    return None if problem is None else f"{problem}. {reason}. {REMEDY}"


def _accelerator_problem(root: Path) -> str | None:
    devices = root / "dev"
    # Jetson first: it has no device file of its own, and its driver has the file of a GPU in a slot.
    if (root / "etc/nv_tegra_release").exists():
        return "this is a Jetson, whose GPU shares the host's memory, which Shardtune does not measure"
    if (devices / "dxg").exists():
        return (
            "this is WSL2 with a GPU (/dev/dxg), but NVML does not tell of one; Shardtune needs it: look at `nvidia-smi`, "
            "and put /usr/lib/wsl/lib on LD_LIBRARY_PATH"
        )
    if (devices / "nvidiactl").exists() or any(devices.glob("nvidia[0-9]*")):
        return (
            "this machine has an NVIDIA GPU (/dev/nvidia*) that cannot be used; look at `nvidia-smi`. In a container, "
            "NVIDIA_DRIVER_CAPABILITIES must contain `utility`, without which NVML is missing"
        )
    if (devices / "kfd").exists():
        return "this machine has an AMD GPU (/dev/kfd), and ROCm is not supported (docs/contributing/gpu-status.md lists what that would take)"
    return None


def permission(count: int) -> str:
    """Reason why no GPU is tuned on a machine with `count` GPUs, none of which this process may use."""
    return (
        f"this machine has {count} GPUs, none of which this process may use (NVML says: no permission); ask the scheduler "
        f"for them, such as `--gpus-per-node={count}` of Slurm or a GPU limit of the container. {REMEDY}"
    )


def setting(visible: str | None, count: int) -> str | None:
    """Reason why CUDA_VISIBLE_DEVICES leaves none of the machine's `count` GPUs visible. None if there are no GPUs."""
    if count == 0 or visible is None:
        return None
    return instance(visible) or (
        f"CUDA_VISIBLE_DEVICES ({visible}) names none of the {count} GPUs that may be used here, or one of them twice; "
        f"give numbers as `nvidia-smi` prints them, or UUIDs. {REMEDY}"
    )


def instance(visible: str | None) -> str | None:
    """Reason why a MIG instance in CUDA_VISIBLE_DEVICES cannot be used; None if the variable names none."""
    if visible is None or not any(entry.strip().startswith("MIG-") for entry in visible.split(",")):
        return None
    return _mig_problem(f"CUDA_VISIBLE_DEVICES ({visible}) names a MIG instance")


def slices(uuids: Sequence[str]) -> str | None:
    """Reason why GPUs in MIG mode cannot be used; None if no GPU is in MIG mode."""
    return _mig_problem(f"GPU {', '.join(uuids)} is in MIG mode") if uuids else None


def compute_mode(modes: Mapping[str, int | None]) -> str | None:
    """Reason why GPUs cannot be used in their compute modes, given by UUID; None if they can. A single GPU may be in exclusive
    mode, because its rank is its only process."""
    prohibited = [uuid for uuid, mode in modes.items() if mode == _PROHIBITED]
    if prohibited:
        return (
            f"GPU {', '.join(prohibited)} is in compute mode Prohibited, in which CUDA lets no process use it. Set the default "
            f"mode (`nvidia-smi -c 0`), or choose other GPUs with CUDA_VISIBLE_DEVICES. {REMEDY}"
        )
    exclusive = [uuid for uuid, mode in modes.items() if mode in (_EXCLUSIVE_THREAD, _EXCLUSIVE_PROCESS)]
    # One rank for each GPU has failed as well (NVIDIA/nccl-tests 369, pytorch-image-models 1033): CUDA calls a GPU busy.
    if exclusive and len(modes) > 1:
        return (
            f"GPU {', '.join(exclusive)} is in compute mode Exclusive_Process, in which ranks on several GPUs fail. Set the default "
            f"mode (`nvidia-smi -c 0`), or choose one GPU with CUDA_VISIBLE_DEVICES. {REMEDY}"
        )
    return None


def shared_memory(names: Sequence[str]) -> str | None:
    """Reason why GPUs whose memory NVML does not know cannot be used; None if there are none."""
    if not names:
        return None
    return (
        f"{', '.join(sorted(set(names)))} shares the host's memory, which NVML does not tell and Shardtune does not measure; "
        f"choose other GPUs with CUDA_VISIBLE_DEVICES. {REMEDY}"
    )


def _mig_problem(subject: str) -> str:
    return (
        f"{subject}, which Shardtune does not support: NVML tells memory, clocks and processes of whole GPUs. Turn MIG off "
        f"(`nvidia-smi -mig 0`), or choose other GPUs with CUDA_VISIBLE_DEVICES. {REMEDY}"
    )


def driver_remedy(output: str) -> str | None:
    """Remedy for a problem with the NVIDIA driver that the last output of a process reports; None if it reports
    none."""
    return next((words for pattern, words in _DRIVER_REMEDIES if re.search(pattern, output)), None)
