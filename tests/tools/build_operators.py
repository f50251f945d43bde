"""Build of the operators that DeepSpeed itself builds on CPU ranks, before tests do so side by side: one at its start, and
CPU Adam where an exported script offloads its optimizer (trials load a library of their own).

Run as `python -m tests.tools.build_operators`. A test that is killed in a build would leave its lock, and whoever waits
for that lock while it is removed imports a library that was never finished.
"""

import sys
from pathlib import Path
from typing import Any

import filelock
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder import CPUAdamBuilder
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
from torch.utils.cpp_extension import _get_build_directory


def build() -> Path | None:
    """Build `deepspeed_shm_comm` as `deepspeed.comm.torch.build_shm_op` does (DeepSpeed 0.19); returns its file.

    None where DeepSpeed does without: on an accelerator, or where the operator is incompatible with the machine.
    """
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if not isinstance(builder, ShareMemCommBuilder) or not builder.is_compatible():
        return None
    return _built(builder)


def build_cpu_adam() -> Path:
    """Build `cpu_adam` as DeepSpeed does when an optimizer on the CPU is made; returns its file."""
    return _built(CPUAdamBuilder())


def _built(builder: Any) -> Path:
    folder = Path(_get_build_directory(builder.name, verbose=False))
    with filelock.FileLock(folder.with_name(f"{builder.name}.shardtune.lock")):
        # torch's own lock file outlives a build that was killed, and this one would wait for ever.
        (folder / "lock").unlink(missing_ok=True)
        builder.load(verbose=False)
    return folder / f"{builder.name}.so"


if __name__ == "__main__":
    sys.stdout.write(f"{build() or 'no operator for this machine'}\n{build_cpu_adam()}\n")
