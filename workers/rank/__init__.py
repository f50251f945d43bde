"""The rank side: one training process per GPU, and the fork server that forks them. The only importer of torch.

What stands here must be in the environment before torch, numpy or deepspeed is imported anywhere.
"""

import os
from pathlib import Path

from shardtune.workers.rank import deepspeed_nvml

# torch's own availability check makes a CUDA context, after which a forked rank cannot use the device.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# OpenBLAS starts its threads when numpy is imported; a process with threads cannot fork safely. torch does not use it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# transformers must never look beyond the configuration it is given.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not Path("/dev/nvidiactl").exists() or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
    # The agent says which; for a rank started by hand. Without it DeepSpeed searches for every accelerator it knows, and warns.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed_nvml.keep_away()
