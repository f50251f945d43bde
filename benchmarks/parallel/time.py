"""Time of a step: the slowest stage sets the pace of 1F1B, then data ranks reduce and the optimizer steps."""

import math

import numpy as np

from benchmarks.parallel.layout import Layout, Training, blocks_of_stages, parameters_of_stages
from shardtune.tuner.prediction.collectives import Operation, ring_seconds

_HALF = 2.0
_KERNELS = 70.0
"""Launched by one pass through a block."""
_COLLECTIVES = 6.0
"""Launches that a collective between tensor ranks costs the host."""
_SCORES = {"fused": 10.0, "torch": 16.0}
"""Bytes of memory traffic per score and pass, of attention that writes them."""
_HALF_SPEED = 6e6
"""Bytes at which such a collective has half of it."""
_SEND_S = 40e-6
"""Latency of what one stage sends the next."""


def step_seconds(training: Training, layout: Layout) -> float:
    """Seconds of one optimizer step."""
    parameters, counts = parameters_of_stages(training, layout), blocks_of_stages(training, layout.pp)
    count, program, rates = layout.micro_batches(training), training.program, training.rates
    block, head = _block_seconds(training, layout), _head_seconds(training, layout)
    slowest = max(n * block + (head if stage == layout.pp - 1 else 0.0) for stage, n in enumerate(counts))
    largest = max(parameters)
    pace = slowest + largest * program.accumulated / rates.memory_bytes + _between_stages(training, layout)
    waits = count * program.wait_s * _doublings_of_hosts(training, layout) * (layout.dp > 1)
    reduced = _collective(training, largest * program.reduced, layout.dp, layout.tp, "all_reduce")
    if layout.zero:
        # Weights are gathered once the optimizer has stepped.
        reduced += _collective(training, largest * _HALF, layout.dp, layout.tp, "all_gather")
    optimizer = largest * 28.0 / (layout.dp if layout.zero else 1) / rates.memory_bytes
    return (count + layout.pp - 1) * pace + waits + reduced + optimizer + rates.optimizer_host_s


def _block_seconds(training: Training, layout: Layout) -> float:
    """Forward and backward of one block and micro batch, and its recomputation."""
    shape, rates, tokens = training.shape, training.rates, layout.micro_batch * training.sequence
    passes = 4.0 if layout.checkpointing else 3.0
    products = tokens * shape.block_matmul_flops_per_token / layout.tp / _product_rate(training, layout)
    scores = tokens * shape.attention_flops_per_token(training.sequence) / layout.tp
    attention = scores / 2 / rates.attention_flops * (passes + 0.5)
    if layout.attention != "flash":
        traffic = tokens * training.sequence * shape.heads / layout.tp * _SCORES[layout.attention]
        attention = passes * (scores / (0.6 * rates.matmul_flops) + traffic / rates.memory_bytes)
    norms = 2 * (5.0 if layout.fused_norms else 10.0) * _HALF * shape.hidden + 3 * _HALF * shape.hidden
    spread = layout.tp if layout.sequence_parallel else 1
    elementwise = tokens * (norms / spread + (12.0 * shape.hidden + 10.0 * shape.ffn) / layout.tp)
    device = (
        passes * (products + elementwise / rates.memory_bytes) + attention + _between_tensor_ranks(training, layout)
    )
    calls = 4.0 * passes / 3.0 * _COLLECTIVES * 6.0 if layout.tp > 1 else 0.0
    host = (passes * _KERNELS + calls) * rates.launch_s
    return float((device**4 + host**4) ** 0.25)


def _product_rate(training: Training, layout: Layout) -> float:
    inner = min(training.shape.hidden, training.shape.ffn / layout.tp)
    return training.rates.matmul_flops * inner / (inner + training.rates.small_matmul)


def _head_seconds(training: Training, layout: Layout) -> float:
    tokens, logits = layout.micro_batch * training.sequence, training.shape.vocab / layout.tp
    products = 3.0 * tokens * 2.0 * training.shape.hidden * logits / _product_rate(training, layout)
    return products + tokens * logits * 30.0 / training.rates.memory_bytes


def _between_tensor_ranks(training: Training, layout: Layout) -> float:
    """Two all-reduces a pass, or what they are made of; recomputation makes those of forward again.

    Each waits for what it reduces, so there is no queue of calls to fill the links, and across nodes no rank has more than
    its own share of the network.
    """
    if layout.tp == 1:
        return 0.0
    network, inside = training.network, layout.tp <= training.network.gpus_per_node
    size = layout.micro_batch * training.sequence * training.shape.hidden * _HALF
    bandwidth = training.program.link_share * network.intra * size / (size + _HALF_SPEED) if inside else network.inter
    latency = (network.intra_latency_s if inside else 2.0 * network.inter_latency_s) * math.log2(layout.tp)
    calls = 6.0 if layout.checkpointing else 4.0
    latency += training.program.tensor_wait_s * math.log2(layout.tp) * _doublings_of_hosts(training, layout)
    return calls * (2.0 * size * (layout.tp - 1) / layout.tp / bandwidth + latency)


def _between_stages(training: Training, layout: Layout) -> float:
    """Bytes that a stage sends of one micro batch, forward and backward."""
    if layout.pp == 1:
        return 0.0
    spread = layout.tp if layout.sequence_parallel else 1
    size = layout.micro_batch * training.sequence * training.shape.hidden * _HALF / spread
    inside = layout.dp * layout.tp < training.network.gpus_per_node
    link = training.network.intra / 2 if inside else training.network.inter
    return 2.0 * (size / link + _SEND_S)


def _collective(training: Training, size: float, ranks: int, stride: int, operation: Operation) -> float:
    unit = np.ones(1)
    seconds = ring_seconds(unit * size, unit, unit * ranks, training.network, operation, stride=float(stride))
    return float(seconds[0])


def _doublings_of_hosts(training: Training, layout: Layout) -> float:
    return math.log2(max(layout.dp * layout.tp * layout.pp / training.network.gpus_per_node, 1.0))
