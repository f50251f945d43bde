"""Which devices ranks work on, said to every process of the rank side: none of them looks for itself."""

from shardtune.workers.machine.inventory import Gpus


def environment(chosen: Gpus) -> dict[str, str]:
    """Variables for torch, CUDA and DeepSpeed (`DS_ACCELERATOR`, by which our own processes go as well).

    GPUs by their numbers: programs that read CUDA_VISIBLE_DEVICES themselves expect numbers, and NVML's are CUDA's only in
    the order of PCI addresses.
    """
    if not chosen.devices:
        return {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {
        "DS_ACCELERATOR": "cuda",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in chosen.devices),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
