"""Speeds of rungs that cannot be true, by the peak of their GPUs: nothing is concluded from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.tuner.prediction.evaluation import machine
from shardtune.tuner.projection.rung_test import Rung
from shardtune.tuner.projection.target_sizes import TargetSizes

_PASSES, _LEAST_PASSES = 3.0, 1.0
"""Compute to train on a token, as a multiple of a forward pass: the usual value of 3 (forward, and the gradients of
activations and of weights), and the least value of 1. If weights may be frozen, only the forward pass is certain."""
_FLOAT8_GAIN = 2.0
"""Ratio of a GPU's peak FLOP rate in float8 to its peak in bfloat16."""
_MOST_ABOVE_MEASURED = 10.0
"""Largest believable ratio of a device's FLOP rate in training to its measured rate of matrix products, used where no
peak is published: CPU ranks may use more threads and other kernels in training."""


@dataclass(frozen=True)
class BelievableRungs:
    """Measured smaller clusters (rungs), without the trials whose speeds are physically impossible."""

    rungs: tuple[Rung, ...]
    notes: tuple[str, ...]
    """Sentences for the user: for each smaller cluster, which of its trials the projection does not use, and why."""


def believable(sizes: TargetSizes, rungs: Sequence[Rung]) -> BelievableRungs:
    """Leave out the trials of smaller clusters (rungs) that claim a higher speed than their devices can compute.

    Workers mark such runs as suspect, but not a worker of another release, or one that does not know its device's peak.
    """
    kept, notes = [], []
    for rung in rungs:
        limit = most_tokens_per_s(sizes, rung.cluster)
        too_fast = [row for row in rung.measured if limit is not None and row.tokens_per_s_per_gpu > limit]
        if too_fast and limit is not None:
            notes.append(_note(rung, max(row.tokens_per_s_per_gpu for row in too_fast), len(too_fast), limit))
        left = tuple(row for row in rung.measured if row not in too_fast)
        if left:
            kept.append(replace(rung, measured=left))
    return BelievableRungs(tuple(kept), tuple(notes))


def most_tokens_per_s(sizes: TargetSizes, cluster: Cluster) -> float | None:
    """Upper bound of tokens per second and GPU: the device's peak rate over the FLOPs of the blocks' matrix products
    alone; None where no rate of the device is known."""
    may_freeze = sizes.workload.adapter is not None or sizes.shape.step_trace is not None
    passes = _LEAST_PASSES if may_freeze else _PASSES
    flops = sizes.shape.layers * sizes.shape.block_matmul_flops_per_token * passes
    try:
        peak = machine(cluster).peak_flops
    except ValueError:
        peak = None
    if peak is None and sizes.hardware is not None:
        peak = _MOST_ABOVE_MEASURED * max(sizes.hardware.bf16_flops, sizes.hardware.fp32_flops)
    if peak is None or not flops:
        return None
    return peak * (1.0 if sizes.workload.float8 is None else _FLOAT8_GAIN) / flops


def _note(rung: Rung, speed: float, trials: int, limit: float) -> str:
    gpus = counted(rung.cluster.world_size, "GPU")
    named = "a trial" if trials == 1 else f"{trials} trials"
    return (
        f"{named} on {gpus} ({', '.join(rung.studies)}) left out: {speed:,.0f} tokens/s/GPU, where the device's peak allows at "
        f"most {limit:,.0f}"
    )
