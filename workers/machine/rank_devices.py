"""Choice of the ranks' devices, passed by environment variables to every rank process, so that no rank detects devices
itself."""

from shardtune.workers.machine.inventory import Gpus


def environment(chosen: Gpus) -> dict[str, str]:
    """Environment variables that choose the ranks' device for torch, CUDA and DeepSpeed. Shardtune's own processes also
    read one of them, `DS_ACCELERATOR`."""
    if not chosen.devices:
        return {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    # Indices rather than UUIDs: programs that read CUDA_VISIBLE_DEVICES themselves expect indices, and NVML's equal CUDA's
    # only in the order of PCI addresses. Beside a GPU in MIG mode only UUIDs name a whole GPU: CUDA does not count that GPU
    # without instances, and leaves out all whole GPUs where it finds an instance (MIG User Guide, "CUDA Device Enumeration").
    names = chosen.uuids if chosen.has_slices else [str(gpu.index) for gpu in chosen.devices]
    return {
        "DS_ACCELERATOR": "cuda",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
