"""Step time of a pipeline: that of the slowest stage, and its idle time while the first and last micro batches are in
other stages."""

from dataclasses import replace

import numpy as np

from shardtune.tuner.prediction import stages
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates
from shardtune.tuner.prediction.stages import StageLayout
from shardtune.tuner.prediction.throughput import step
from shardtune.tuner.prediction.throughput.step import StepTable

_LAUNCHES = 60.0
"""Host time of one send or receive between stages, in units of one kernel launch: for the schedule's Python code, and
the wait for the collective."""
# Forward is assumed to take as long as either half of backward (arXiv:2401.10241, table 1 and section 6; DualPipeV, (p
# - 1)(F&B + B - 3W) of half a rank's blocks, with F&B one after the other, as torch 2.13 runs them:
# github.com/deepseek-ai/DualPipe).
_BUBBLE_LEFT = {"interleaved_zero_bubble": 1 / 3, "zbv_zero_bubble": 0.0, "dual_pipe_v": 2 / 3}
"""Fraction of the pipeline bubble (idle time) that remains under schedules that postpone weight gradients."""
_PARTS_ONCE_A_STEP = ("step", "offload")
"""Names of the parts of the step time that occur once a step, however many micro batches pass through the stages."""


def step_times(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, rates: Rates, network: Network
) -> StepTable:
    """Predicted step times of every candidate, with and without pipeline stages."""

    def table(subset: Candidates, cut: StageLayout) -> StepTable:
        own_network = network.for_job(subset.ranks * subset.stages)
        if cut.ranks == 1:
            return step.step_times(shape, subset, dtypes, impl, rates, own_network)
        stage_tables = [
            step.step_times(stage, subset, dtypes, impl, rates, own_network)
            for stage in stages.rank_shapes(shape, cut, impl.stages_by_cost)
        ]
        slowest = stages.table_of_fullest_stage(stage_tables, lambda table: table.total)
        send = _send_seconds(shape, subset, dtypes.under(impl), rates, own_network)
        return _with_bubble(slowest, stage_tables, subset, send, cut)

    return stages.in_groups(c, table)


def _with_bubble(
    slowest: StepTable, stage_tables: list[StepTable], c: Candidates, send: Array, cut: StageLayout
) -> StepTable:
    """Step time of the slowest pipeline stage, lengthened by the pipeline's bubble (idle time) and its sends.

    The bubble: the first micro batch must pass through all earlier stages, and the gradients of the last one back
    through them, which costs one pass through every other stage (GPipe, arXiv:1811.06965, section 2.3; the same for
    1F1B). With several stages on a rank, the first micro batch passes only through the first stage of each rank, and
    each micro batch is sent once per stage (interleaved 1F1B, arXiv:2104.04473, section 2.2). Under schedules that
    postpone weight gradients, the fraction `_BUBBLE_LEFT` of the bubble remains.
    """
    micro_batches = np.maximum(c.accumulation, 1.0)
    waiting = (
        (sum(stage.compute for stage in stage_tables) - slowest.compute)
        * _BUBBLE_LEFT.get(cut.schedule, 1.0)
        / (micro_batches * cut.virtual)
    )
    lengthening = 1.0 + waiting / slowest.compute
    sends = send * (micro_batches * cut.virtual + len(stage_tables) - 1.0)
    parts = {name: part * (1.0 if name in _PARTS_ONCE_A_STEP else lengthening) for name, part in slowest.parts.items()}
    parts["communication"] = parts["communication"] + sends
    total = np.asarray(sum(parts.values()))
    return replace(
        slowest,
        compute=slowest.compute * lengthening,
        parts=parts,
        communication=slowest.communication * lengthening + sends,
        exposed=parts["communication"],
        total=total,
        tokens_per_s_per_gpu=c.tokens * c.accumulation / c.stages / total,
    )


def _send_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds to send one micro batch's hidden states to the next stage and its gradients back; pipeline schedules wait
    for both transfers."""
    boundary = c.tokens * shape.hidden * dtypes.compute
    # A send is assumed to be as fast as an all-gather of two ranks with as many bytes; the two are all of a stage's
    # ranks apart.
    two = np.full_like(c.tokens, 2.0)
    sent: Array = ring_seconds(4.0 * boundary, two, two, network, stride=c.ranks, pattern="neighbours")
    return sent + 2.0 * _LAUNCHES * rates.launch_s
