"""Choice of the ranks' devices, passed by environment variables to every rank process, so that no rank detects devices
itself."""

from shardtune.workers.machine.inventory import Gpus


def environment(chosen: Gpus) -> dict[str, str]:
    """Environment variables that choose the ranks' device for torch, CUDA and DeepSpeed. Shardtune's own processes also
    read one of them, `DS_ACCELERATOR`."""
    if not chosen.devices:
        return {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    # Indices, not UUIDs: programs that read CUDA_VISIBLE_DEVICES themselves expect indices, and NVML's equal CUDA's
    # only in the order of PCI addresses.
    return {
        "DS_ACCELERATOR": "cuda",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in chosen.devices),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
