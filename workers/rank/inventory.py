"""`python -m shardtune.workers.rank.inventory`: what this machine's libraries and devices are, as JSON. Touches no CUDA context."""

import json
import sys
from typing import Any

import pynvml
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shardtune.api_schemas.base import GIB
from shardtune.workers.rank.versions import library_versions


def describe() -> dict[str, Any]:
    """Versions, architectures and devices; keys are documented by the agent that reads them."""
    return {
        **library_versions(),
        "causal_lm_types": sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        **_devices(),
    }


def _devices() -> dict[str, Any]:
    """Devices by NVML, in this process, so that the agent never loads a driver library."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {"driver": None, "devices": []}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        devices = [
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "uuid": pynvml.nvmlDeviceGetUUID(handle),
                "memory_gib": pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB,
            }
            for handle in handles
        ]
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "devices": devices}
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    json.dump(describe(), sys.stdout)
