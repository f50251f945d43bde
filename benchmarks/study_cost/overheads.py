"""Seconds of a run that are no training steps, with the source of each figure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Overheads:
    """Seconds that each run takes besides its steps, by what happens in them."""

    process_s: float
    """From the order to launch until every rank has a device context."""
    group_s: float
    """First collectives: communicators are made and links opened."""
    build_s: float
    """Build of model and optimizer, and the small calculation that detects slow ranks."""
    compile_s: float
    """Compilation, in the first run of a study whose blocks have this graph."""
    cached_compile_s: float
    """Compilation where an earlier run has compiled the same graph: workers keep inductor's cache between runs."""
    end_s: float
    """From the last step until the next run begins: exit, report, planning."""
    summary_s: float
    """Build of the model on the meta device: the first run of a study."""
    first_steps_factor: float
    """Duration of a fully recorded first step over that of a later one."""
    checkpoint_bytes_per_s: float
    """Rate at which all ranks together save or load a checkpoint."""
    source: str


_CACHED = 0.3
"""Compilation with inductor's cache over that without."""
CUDA = Overheads(
    process_s=3.5,
    group_s=4.5,
    build_s=3.0,
    compile_s=45.0,
    cached_compile_s=_CACHED * 45.0,
    end_s=3.0,
    summary_s=8.0,
    first_steps_factor=1.0,
    checkpoint_bytes_per_s=2e9,
    source=(
        "estimated, never measured: the middles of 1.5-4 s for a CUDA context, 3-6 s for NCCL, 1-3 s for the build, "
        "0.7 s for the pace, 2-4 s for end and next lease, 30-60 s for compilation of a block; a local NVMe disk"
    ),
)
"""One host of GPUs whose ranks are forked from the fork server."""
CUDA_4_HOSTS = Overheads(
    process_s=4.0,
    group_s=8.0,
    build_s=3.0,
    compile_s=45.0,
    cached_compile_s=_CACHED * 45.0,
    end_s=3.5,
    summary_s=8.0,
    first_steps_factor=1.0,
    checkpoint_bytes_per_s=4e9,
    source=(
        "estimated, never measured: as on one host, with 0.3 s more for dispatch and exit (docs/measurements/hosts.md "
        "has CPU ranks), and twice the time for communicators between hosts"
    ),
)
CPU = Overheads(
    process_s=0.1,
    group_s=0.02,
    build_s=0.3,
    compile_s=20.0,
    cached_compile_s=_CACHED * 20.0,
    end_s=0.5,
    summary_s=2.0,
    first_steps_factor=1.6,
    checkpoint_bytes_per_s=3e8,
    source=(
        "start and end by docs/measurements/warm-cold.md (0.1 to 0.12 s), checkpoints by docs/measurements/resume-check.md "
        "(45 MiB in 0.2 to 0.3 s); the first two steps run under the memory profiler: 1.6 times a step on average, by the "
        "wall time that benchmarks/data/search/llama-long-steps has beside its steps, as are build and end"
    ),
)
"""Two CPU ranks of the example, forked from the fork server."""
