"""Rank side of a worker: one training process per device, and the fork server. The only package that imports torch.

These variables must be in the environment before torch, numpy or deepspeed is imported anywhere.
"""

import os
from pathlib import Path

from shardtune.workers.rank import deepspeed_nvml, late_libraries

# torch's own availability check makes a CUDA context, after which a forked rank cannot use the device.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# OpenBLAS starts its threads when numpy is imported; a process with threads cannot fork safely. torch does not use it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# transformers must never look beyond the configuration it is given.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# One of them exists where an NVIDIA driver is loaded: on Linux, and on WSL2.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
if not any(driver.exists() for driver in _DRIVERS) or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
    # For a rank started by hand; an agent sets it. Without it DeepSpeed tries every accelerator it knows, and warns.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed_nvml.install_hook()
late_libraries.install_hook()
