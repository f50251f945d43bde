"""Time of a training step: micro batches, communication with or without overlap, the optimizer, offloading."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardtune.api_schemas.base import Bound
from shardtune.tuner.prediction import optimizers
from shardtune.tuner.prediction.backends import registry
from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import Traffic
from shardtune.tuner.prediction.footprint.activations import block_bytes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates
from shardtune.tuner.prediction.throughput.compute import ComputeTimes, compute_times
from shardtune.tuner.prediction.throughput.traced_compute import compute_times as traced_compute_times

HOST_ADAM_BYTES_PER_S = 15e9
"""Bytes per second of memory traffic that one rank achieves when the host's CPU runs Adam: a node streams 100-200 GB/s
for eight ranks."""
CONVERTED_COPY_BYTES_PER_S = 1.9e9
"""Bytes per second of a copy from the device to the host that also changes the dtype: torch copies into new pageable
memory, and then converts on the host. Measured with 3.4 GB on one machine with an H200 (docs/measurements/gpu/h200.md)."""


@dataclass(frozen=True)
class StepTable:
    """Predicted seconds of one optimizer step on one rank, and figures derived from them."""

    compute: Array
    parts: dict[str, Array]
    """Seconds by part, which add up to the total: matrix products, attention, elementwise kernels and loss, host
    launches, the backend's hooks, exposed communication, and once-per-step costs. Calibration scales them."""
    communication: Array
    """Seconds of communication in a step, as if none of it overlapped with computation."""
    exposed: Array
    optimizer: Array
    total: Array
    tokens_per_s_per_gpu: Array
    network_bound: Array


def step_times(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, rates: Rates, network: Network
) -> StepTable:
    """Predicted step times of every candidate, without pipeline stages."""
    compute = _compute_times(shape, c, dtypes, impl, rates, network)
    comm = registry.traffic(shape, c, dtypes, impl, network)
    micro = compute.total
    # The backend's collectives also overlap with exchanges: neighbouring ranks exchange over a node's links, those of a
    # collective are mostly on different nodes.
    forward, backward = micro * compute.forward_fraction, micro * (1.0 - compute.forward_fraction)
    communication, exposed = _communication_seconds(c, rates, comm, forward, backward)
    dtypes = optimizers.with_states(shape, dtypes, impl)
    optimizer = _optimizer_seconds(shape, c, dtypes, impl, rates)
    optimizer = optimizer + optimizers.step_seconds(shape, c, impl, rates, network)
    host = _host_transfers(shape, c, dtypes, impl, network)
    host = host + _waits_for_inputs(shape, c, dtypes, impl, rates, network, compute)
    if not rates.serial:
        host = host + _returned_weights(shape, c, dtypes, impl, network)
    # fp32 products without TF32 run on other units than bf16's, with a rate of their own.
    matmul, zero = c.accumulation * compute.matmul, c.tokens * 0.0
    vector = dtypes.linear_bits == 32
    # On a GPU the host's work at a step is in `optimizer_host_s`.
    hooks = registry.step_launches(shape, c) * rates.launch_s if rates.serial else zero
    waiting, floor = c.accumulation * (micro - compute.device), compute.launch_floor
    exchanges = c.accumulation * compute.exchange + waiting * compute.exchange_host / floor
    total_exposed = exposed + exchanges
    total = c.accumulation * micro + exposed + optimizer + host + hooks
    return StepTable(
        compute=c.accumulation * micro - exchanges,
        parts={
            "matmul": zero if vector else matmul,
            "vector_matmul": matmul if vector else zero,
            "attention": c.accumulation * compute.attention,
            "elementwise": c.accumulation * (compute.elementwise + compute.loss),
            "launch": waiting * compute.launches / floor,
            "backend": waiting * compute.machinery / floor + hooks,
            "communication": total_exposed,
            "step": optimizer,
            # Apart from the step: how fast the host updates weights says nothing about the device.
            "offload": host,
        },
        communication=communication + c.accumulation * (compute.exchange + compute.exchange_host),
        exposed=total_exposed,
        optimizer=optimizer,
        total=total,
        tokens_per_s_per_gpu=c.tokens * c.accumulation / total,
        network_bound=comm.network_bound,
    )


def resource_seconds(parts: Mapping[str, Array | float]) -> dict[Bound, Array | float]:
    """Seconds of a step by the resource that takes them; communication stands under the link within a node."""
    return {
        "compute": parts["matmul"] + parts["vector_matmul"] + parts["attention"],
        "memory bandwidth": parts["elementwise"] + parts["step"],
        "host launches": parts["launch"] + parts["backend"],
        "intra-node link": parts["communication"],
        "offload to the host": parts["offload"],
    }


def bounding_resources(parts: Mapping[str, Array | float], network_bound: Array | float) -> list[Bound]:
    """Name for each step the resource that takes its largest part: the bottleneck. `network_bound`: above 0 where
    collectives cross nodes."""
    resources = resource_seconds(parts)
    *seconds, network = np.broadcast_arrays(
        *(np.atleast_1d(part) for part in resources.values()), np.atleast_1d(network_bound)
    )
    names = list(resources)
    largest = [names[index] for index in np.argmax(seconds, axis=0)]
    # Communication is bound by the slowest link: the network where a group spans nodes.
    return [
        "network" if name == "intra-node link" and crosses > 0 else name
        for name, crosses in zip(largest, network, strict=True)
    ]


def _compute_times(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, rates: Rates, network: Network
) -> ComputeTimes:
    if shape.step_trace is not None:
        return traced_compute_times(shape, shape.step_trace, c, dtypes, impl, rates)
    return compute_times(shape, c, dtypes, impl, rates, network)


def _communication_seconds(
    c: Candidates, rates: Rates, comm: Traffic, forward: Array, backward: Array
) -> tuple[Array, Array]:
    """Seconds of a step's communication as a pair: as if none of it overlapped with computation, and the seconds that
    overlap with nothing."""
    middle = np.maximum(c.accumulation - 1.0, 0.0)
    overlaps = registry.overlaps(c) * rates.overlap
    # Half of it is in forward, where forward communicates so much; no pass exposes more than it communicates.
    first = np.minimum(comm.unhidden * 0.5, comm.forward)
    last = comm.unhidden - first
    exposed_forward = np.maximum(comm.forward - forward * overlaps, first)
    exposed_middle = np.maximum(comm.backward - backward * overlaps, np.minimum(last, comm.backward))
    exposed_last = np.maximum(comm.last_backward - backward * overlaps, np.minimum(last, comm.last_backward))
    total = c.accumulation * comm.forward + middle * comm.backward + comm.last_backward + comm.after_step
    exposed = c.accumulation * exposed_forward + middle * exposed_middle + exposed_last + comm.after_step
    # Communication hidden behind a pass slows that pass down.
    return total, exposed + rates.contention * np.maximum(total - exposed, 0.0)


def _optimizer_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, rates: Rates) -> Array:
    """Seconds of the optimizer step: passes over this rank's shard, unscaling, gradient norm and clipping, and host
    overhead."""
    trained = shape.parameters * trained_part.fraction(shape, impl) / c.holders
    # A fused kernel reads and writes parameter, gradient and moments once; foreach passes over them about three times.
    fused = 3.0 * dtypes.master + 2.0 * dtypes.moments
    traffic = fused if impl.fused_optimizer else 2.6 * fused
    on_device = np.where(c.offload_optimizer > 0, 1.0 - c.offload_optimizer, 1.0)
    unscaling = 2.0 * dtypes.reduce if dtypes.scales_loss else 0.0
    return (
        trained * on_device * (traffic + 3.0 * dtypes.master + unscaling) / rates.memory_bytes
        + rates.optimizer_host_s
        + impl.step_host_s
    )


def _host_transfers(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, network: Network) -> Array:
    trained = shape.parameters * trained_part.fraction(shape, impl)
    shard = trained / c.holders
    adam = c.offload_optimizer * shard * (3.0 * dtypes.master + 2.0 * dtypes.moments) / HOST_ADAM_BYTES_PER_S
    gradients = c.offload_optimizer * shard * dtypes.reduce / network.host_link
    updated = c.offload_optimizer * shard * dtypes.under(impl).compute / network.host_link
    # Parameters in host memory come up for forward and for backward of every micro batch.
    size = registry.number_of_backend(
        c, lambda backend: dtypes.master if backend.uploads_masters else dtypes.under(impl).compute
    )
    parameters = c.offload_parameters * 2.0 * c.accumulation * shape.parameters / c.holders * size / network.host_link
    return adam + gradients + updated + parameters


def _waits_for_inputs(
    shape: ModelShape,
    c: Candidates,
    dtypes: Dtypes,
    impl: Implementation,
    rates: Rates,
    network: Network,
    compute: ComputeTimes,
) -> Array:
    """Seconds of a step in which blocks wait for their inputs' copies to the host and back (activation offload).

    A copy to the host overlaps with the forward of its own block. A copy back overlaps with the backward of the blocks
    down to the checkpointed block that needs it. The first copy back of a micro batch overlaps with nothing. CPU ranks
    copy without overlap.
    """
    if not np.any(c.activation_offload):
        return c.tokens * 0.0
    block = block_bytes(shape, c, dtypes, impl)
    count, size = block.number_offloaded(c), block.offloaded
    if rates.serial:
        # Each copy reads and writes.
        return c.accumulation * count * size * 4.0 / rates.memory_bytes
    copy = size / network.host_link
    forward = compute.total * compute.forward_fraction / shape.layers
    backward = compute.total * (1.0 - compute.forward_fraction) / shape.layers * c.checkpoint_every
    sent = count * np.maximum(copy - forward, 0.0)
    fetched = np.maximum(count - 1.0, 0.0) * np.maximum(copy - backward, 0.0) + np.minimum(count, 1.0) * copy
    return c.accumulation * (sent + fetched)


def _returned_weights(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, network: Network
) -> Array:
    """Seconds to copy updated weights from an optimizer on the device to parameters in host memory.

    ZeRO-3 copies fp32 masters into parameters of a lower dtype (`_reassign_or_swap_out_partitioned_parameters`). torch
    then converts on the host (`aten/src/ATen/native/cuda/Copy.cu`), so page-locked parameters do not help.
    """
    converts = dtypes.under(impl).compute < dtypes.master
    returned = c.offload_parameters * (1.0 - c.offload_optimizer) * shape.parameters / c.holders
    rate = CONVERTED_COPY_BYTES_PER_S if converts else network.host_link
    return returned * trained_part.fraction(shape, impl) * dtypes.master / rate
