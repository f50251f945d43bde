"""Print the example study that is worth tuning on this machine, and on stderr why: `make tune` runs it.

CPU ranks tune a tiny model within minutes. On GPUs that model computes for microseconds under milliseconds of kernel
launches, so that its ranking would be one of host overheads: there a model of real size is tuned.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from shardtune.workers.machine.inventory import DetectionFailed, Gpus, find_gpus

_ONE_B_GIB = 24.0
"""GPU memory in GiB, over all GPUs, that llama-3.2-1b needs with float32 masters and moments: 16 bytes × 1.24e9."""

_MANY_GPUS = 4
"""Number of GPUs from which on a step has 64 samples. With 16 a single H200 took 0.6 to 1.2 s a step, and 15 to 28 s a
trial (docs/measurements/gpu/h200.md)."""


def choose(gpus: Gpus) -> tuple[Path, str]:
    """Example study for these GPUs, or for CPU ranks where there are none, and the reason."""
    tiny = Path("examples/llama-tiny.json")
    if not gpus.devices:
        return tiny, "no GPU is visible: llama-tiny on CPU ranks, some minutes"
    cards = f"{len(gpus.devices)} × {gpus.devices[0].name}"
    total_gib = sum(gpu.memory_bytes for gpu in gpus.devices) / 2**30
    if total_gib < _ONE_B_GIB:
        return tiny, (
            f"{cards} have {total_gib:.0f} GiB, too little for llama-3.2-1b ({_ONE_B_GIB:.0f} GiB): llama-tiny, which is "
            "launch-bound on GPUs, so that its ranking says little of real models"
        )
    study = "llama-1b-gpus.json" if len(gpus.devices) >= _MANY_GPUS else "llama-1b-few-gpus.json"
    return Path("examples") / study, (
        f"{cards}: llama-3.2-1b at sequence length 2048, since llama-tiny would be launch-bound there"
    )


def main(_arguments: Sequence[str] = ()) -> int:
    """Print the path of the study; where GPUs cannot be used, `shardtune tune` itself gives the reason."""
    try:
        path, reason = choose(find_gpus())
    except DetectionFailed:
        path, reason = Path("examples/llama-tiny.json"), ""
    if reason:
        sys.stderr.write(f"make tune: {reason}\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
