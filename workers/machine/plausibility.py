"""Plausibility of a measurement. An implausible measurement cannot win, is not used to fit the predictor, and is
repeated."""

import statistics

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement

_MOST_DATA_WAIT = 0.2
"""Fraction of the timed windows that is spent waiting for data. A measurement above it shows the speed of the data
loading and not that of the configuration."""
_CLOCK_SLACK = 1.01
_ALL_PASSES = 3.0
"""Cost of a training step if all weights are trained, in units of forward passes: 1 for forward and 2 for backward."""
_FROZEN_PASSES = 2.0
"""Minimum cost of a training step through frozen layers, in units of forward passes: 1 for forward and 1 for the
gradients of activations."""

_FLOAT8_SPEED = 2.0
"""Dense FLOP/s of a GPU in float8, in units of those in bf16: 2 from Ada and Hopper to Blackwell."""


def implausibility(task: TrialTask, measured: Measurement, peak_flops: float | None) -> str | None:
    """Reason why a measurement cannot be true or says nothing about the configuration; None if there is none."""
    # The median can hide a window that no clock has measured.
    if min(measured.window_step_times_s) <= 0:
        return f"a timed window of {min(measured.window_step_times_s)} s a step"
    timed_s = measured.measured_steps * statistics.fmean(measured.window_step_times_s)
    if measured.is_extended and measured.short_steps is not None:
        timed_s = measured.short_steps.timed_s
    if timed_s > measured.elapsed_s * _CLOCK_SLACK:
        return f"timed windows of {timed_s:.2f} s in a run that took {measured.elapsed_s:.2f} s"
    ceiling = roofline_tokens_per_s(task, peak_flops)
    if ceiling is not None and measured.tokens_per_s_per_gpu > ceiling:
        return (
            f"{measured.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, where the device's peak allows at most {ceiling:,.0f}"
        )
    if measured.data_wait_fraction is not None and measured.data_wait_fraction > _MOST_DATA_WAIT:
        return f"{measured.data_wait_fraction:.0%} of the timed windows were spent waiting for data"
    return None


def roofline_tokens_per_s(task: TrialTask, peak_flops: float | None) -> float | None:
    """Upper bound of the tokens per second of one GPU. It is computed from the dense bf16 peak, twice that for float8,
    and the cost of forward and backward, where backward counts twice (less with frozen weights). None if the peak or
    the cost is unknown.

    The bound holds for every configuration. No dtype of a precision is faster than bf16, recomputation only adds work,
    and attention counts as its mask requires (an MFU counts it in full, and may exceed 100 % at long sequences).
    """
    flops = task.least_flops_per_token or task.forward_flops_per_token
    # Frozen weights: attention's own backward is not less, so its part of the passes is not that of the masked count.
    passes = task.passes if task.passes >= _ALL_PASSES else min(task.passes, _FROZEN_PASSES)
    faster = 1.0 if task.workload.float8 is None else _FLOAT8_SPEED
    return faster * peak_flops / (passes * flops) if peak_flops is not None and flops else None
