"""Computation time on one rank: matrix products, attention, elementwise memory traffic, the loss, kernel launches."""

from dataclasses import dataclass

import numpy as np

from shardtune.tuner.prediction.adapters import magnitudes
from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.backends.registry import accumulation_bytes, micro_batch_launches
from shardtune.tuner.prediction.candidates import FULL, SELECTIVE, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.footprint import kept_products
from shardtune.tuner.prediction.footprint.activations import block_bytes, logits_bytes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates
from shardtune.tuner.prediction.throughput import loss as loss_terms
from shardtune.tuner.prediction.throughput import memory_budget, mlp_slices
from shardtune.tuner.prediction.throughput.adapter_traffic import adapter_traffic, unpacking_bytes, unpacking_kernels
from shardtune.tuner.prediction.throughput.exchange import exchange_launches, exchange_seconds

# Non-reentrant checkpointing passes each saved tensor through Python, and again in backward (`benchmarks.host_costs`).
SAVED_HOOKS = 4.0
"""Additional kernel launches per operator in a checkpointed forward."""
DISPATCH_MODE = 4.0
"""Additional kernel launches per operator where selective checkpointing uses the contexts of `torch.utils.checkpoint`
(torch 2.13)."""
COMPILED_KERNELS = 0.35
"""Fraction of a block's kernels that remains when the block is compiled."""

# glibc keeps some (M_TRIM_THRESHOLD rises with the freed chunks). Two tables of 220 configurations fit best with 0.4
# and with more than 1 (docs/measurements/search.md).
_FREED_FRACTION = 0.5
"""Fraction of a micro batch's memory that the allocator returns to the system after the micro batch."""


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds of computation for one micro batch on one rank."""

    matmul: Array
    attention: Array
    elementwise: Array
    loss: Array
    launches: Array
    """Host seconds to launch the model's kernels in one micro batch."""
    machinery: Array
    """Host seconds of the backend's hooks in one micro batch."""
    exchange: Array
    """Device seconds of the exchanges between ranks in one micro batch, for which a block's computation waits."""
    exchange_host: Array
    """Host seconds of the exchanges between ranks in one micro batch."""
    forward_fraction: Array
    """Fraction of the computation time that the forward pass takes."""
    serial: bool
    """Whether host and device are the same core, so that launches and kernels do not overlap."""

    @property
    def device(self) -> Array:
        """Seconds of GPU time for one micro batch."""
        return self.matmul + self.attention + self.elementwise + self.loss + self.exchange

    @property
    def launch_floor(self) -> Array:
        """Host seconds of one micro batch, from launches, the backend's hooks and exchanges; where the GPU needs less
        time, it is idle."""
        return self.launches + self.machinery + self.exchange_host

    @property
    def total(self) -> Array:
        """Seconds of one micro batch: the larger of GPU and host time, smoothed; on a CPU, their sum."""
        if self.serial:
            return self.device + self.launch_floor
        # They overlap except where queues run dry.
        return (self.device**4 + self.launch_floor**4) ** 0.25


def compute_times(
    shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, rates: Rates, network: Network
) -> ComputeTimes:
    """Seconds of computation, and of the exchanges inside it, per micro batch for every candidate."""
    blocks = shape.layers * c.tokens
    repeated = recomputed(shape, c, impl)
    gain = rates.fp8_gain if dtypes.linear_bits == 8 else 1.0
    # fp32 products run on the vector units or in TF32: the caller gives rates for that.
    # Ranks that split a block have narrower products.
    inner = np.minimum(float(shape.hidden), shape.ffn / c.tensor)
    matmul_rate = rates.matmul_flops * gain * inner / (inner + rates.small_matmul)
    forward = blocks * (shape.block_matmul_flops_per_token + 2.0 * shape.added_parameters) / matmul_rate
    vocab = shape.vocab if impl.language_head else 0
    head = c.tokens * 2.0 * shape.hidden * vocab / (matmul_rate / gain)
    # A loss in chunks computes logits and log-softmax once more in backward.
    again = (c.loss_chunk > 0) * 1.0
    # Backward passes only blocks with something to train; frozen weights have no gradients.
    passed, of_weights = trained_part.depth(shape), _weight_gradients(shape, impl)
    head_passes = 3.0 if shape.adapter is None else 2.0
    matmul = forward * (1.0 + passed * (1.0 + of_weights + repeated.matmul)) + (head_passes + again) * head
    attention = _attention_seconds(shape, c, impl, rates) * shape.layers
    elementwise_forward = blocks * elementwise_bytes(shape, c, dtypes, impl) / rates.memory_bytes
    # Backward reads what forward saved and the incoming gradient and writes one per input: twice forward's traffic.
    elementwise = elementwise_forward * (1.0 + passed * (2.0 + repeated.elementwise))
    beside = adapter_traffic(shape, c.compiled, dtypes.compute)
    adapted = beside.forward * (1.0 + passed * repeated.elementwise) + beside.backward * passed
    elementwise = elementwise + (blocks * adapted + _weight_bytes(shape, dtypes, impl, repeated)) / rates.memory_bytes
    sliced = mlp_slices.added_work(shape, c, dtypes, impl, repeated.elementwise)
    matmul = matmul + shape.layers * passed * sliced.flops / matmul_rate
    elementwise = elementwise + shape.layers * passed * sliced.bytes / rates.memory_bytes
    if shape.adapter is not None:
        products = shape.layers * (1.0 + passed * repeated.matmul)
        matmul = matmul + products * magnitudes.length_flops(shape.adapter) / matmul_rate
    elementwise = elementwise + accumulation_bytes(shape, c, dtypes, impl) / rates.memory_bytes
    elementwise = elementwise + freed_bytes(shape, c, dtypes, impl) / rates.fresh_bytes
    loss = loss_terms.traffic(shape, c, dtypes, impl) / rates.memory_bytes
    attention_all = attention * (1.0 + passed * (2.5 + repeated.attention))
    total = matmul + attention_all + elementwise + loss
    return ComputeTimes(
        matmul=matmul,
        attention=attention_all,
        elementwise=elementwise,
        loss=loss,
        launches=(_kernel_count(shape, c, impl, repeated) + shape.layers * passed * sliced.kernels) * rates.launch_s,
        machinery=micro_batch_launches(shape, c, dtypes, impl) * rates.launch_s,
        exchange=exchange_seconds(shape, c, dtypes, network),
        exchange_host=exchange_launches(shape, c, impl, rates, network) * rates.launch_s,
        forward_fraction=(forward + head + attention + elementwise_forward + loss * loss_terms.FORWARD) / total,
        serial=rates.serial,
    )


def _weight_gradients(shape: ModelShape, impl: Implementation) -> float:
    """Matrix products for weight gradients in the blocks that backward passes, as a multiple of the products in a
    forward pass of these blocks."""
    if not shape.added_parameters:
        return impl.trainable
    added = 2.0 * shape.added_parameters
    return added / (shape.block_matmul_flops_per_token + added)


def freed_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes that the allocator returns to the system after a micro batch, and that the next micro batch must fault in
    again page by page."""
    block = block_bytes(shape, c, dtypes, impl)
    kept_bytes = block.kept(c, shape.layers) + logits_bytes(shape, c, dtypes, impl)
    return np.where(c.keeps_freed > 0, 0.0, _FREED_FRACTION * kept_bytes)


@dataclass(frozen=True)
class Recomputed:
    """Fractions of a forward pass that activation checkpointing, or a budget of activations, repeats in backward."""

    matmul: Array
    attention: Array
    elementwise: Array


def recomputed(shape: ModelShape, c: Candidates, impl: Implementation) -> Recomputed:
    """Fractions of a forward pass that each candidate's activation checkpointing, or its budget of activations, repeats
    in backward."""
    full = (c.checkpointing == FULL) * 1.0
    selective = (c.checkpointing == SELECTIVE) * 1.0
    fractions: dict[str, tuple[Array | float, ...]] = {
        "matmuls": (kept_products.repeated(shape, c), 0.0, 1.0),
        "second_matmuls": (0.45, 0.0, 1.0),
        "alternate_blocks": (0.5, 0.5, 0.5),
        "attention": (0.0, 1.0, 0.1),
    }
    blocks = c.checkpointed(shape.layers) / shape.layers
    anew = memory_budget.repeated(c)
    return Recomputed(*(blocks * (full + selective * fraction) + anew for fraction in fractions[impl.selective]))


def _attention_seconds(shape: ModelShape, c: Candidates, impl: Implementation, rates: Rates) -> Array:
    """Seconds of one block's attention in forward."""
    flops = c.tokens * shape.attention_flops_per_token(1.0) * c.sequence
    if impl.attention == "flash":
        # Narrow heads leave the kernel's matrix units idle: 64 runs at about 0.8 of 128's rate (FlashAttention-2, figure 5).
        rate = rates.attention_flops * impl.attention_rate * min(1.0, 0.6 + 0.4 * shape.head_dim / 128)
        return flops / 2 / rate
    # Two full products, and the scores read and written about six times (scale, mask, softmax, cast, dropout), or four in
    # a fused kernel.
    per_score = 10.0 if impl.attention == "fused" else 16.0 if impl.dropout == 0 else 22.0
    traffic = c.tokens * c.sequence * shape.heads * per_score
    return flops / (rates.matmul_flops * 0.6) + traffic / rates.memory_bytes


def elementwise_bytes(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes of memory traffic per token in one block's forward, except for matrix products and attention."""
    size, k = dtypes.compute, shape.experts_per_token
    mixed = impl.autocast and size < 4
    q_kv = shape.query + shape.kv
    rotary = shape.norm != "layer"
    # Composed RMSNorm in fp32: cast, square, mean, scale, cast, weight. One kernel: read and write. Autocast runs norms
    # in fp32 on an fp32 residual stream and casts the result for the linear layer.
    norm = 8 * size + 16 if shape.norm == "rms" else 2 * size
    norm, residual = (norm + 12 - size, 10) if mixed else (norm, 3 * size)
    # q, k and v leave one projection (or three) and are laid out for the kernel; rotary embedding in four steps.
    layout = (8.0 if rotary else 2.0) * size * (q_kv + (0 if rotary else shape.kv))
    act = k * mlp_slices.activation_traffic(shape, dtypes)
    # Ranks that do not split positions each compute norms and sums for all of them.
    repeats = 1.0 if impl.splits_positions else c.tensor
    eager = 2.0 * (norm + residual) * shape.hidden * repeats + layout + act
    if shape.experts > 1:
        eager += 8.0 * size * k * shape.hidden
    if shape.qk_norm:
        eager += (8 * size + 16) * q_kv
    fused_act = {"gated": 3.0, "gelu": 2.0, "gelu_tanh": 2.0}[shape.mlp] * size * shape.ffn * k
    fused = 8.0 * (4 if mixed else size) * shape.hidden + (2.0 * size * q_kv if rotary else 0.0) + fused_act
    return np.where(c.compiled > 0, fused, eager)


def _weight_bytes(shape: ModelShape, dtypes: Dtypes, impl: Implementation, repeated: Recomputed) -> Array:
    """Bytes of memory traffic of one micro batch that depend on the weights alone: to unpack them, to compute the
    lengths of their rows (DoRA), and to cast them and their gradients."""
    passed = trained_part.depth(shape)
    # Forward, its repetition and the gradients of inputs each unpack every weight.
    traffic = unpacking_bytes(shape, dtypes.compute) * (1.0 + passed * (1.0 + repeated.elementwise))
    if shape.adapter is not None:
        passes = shape.layers * (1.0 + passed * repeated.elementwise)
        of_element = dtypes.master if impl.autocast else dtypes.compute
        traffic = traffic + passes * magnitudes.length_bytes(shape.adapter, of_element)
    if impl.autocast and dtypes.compute < dtypes.master:
        # Every weight is cast on its way into forward, and its gradient on the way out.
        traffic = traffic + shape.parameters * (dtypes.master + dtypes.compute) * (2.0 + repeated.matmul)
    return traffic


def _kernel_count(shape: ModelShape, c: Candidates, impl: Implementation, repeated: Recomputed) -> Array:
    """Number of kernels of one micro batch. One block of an eager transformers model launches about 45 (gated MLP,
    rotary positions) or 24 in forward, and twice as many in backward; a compiled block launches about a third of
    that."""
    forward = 45.0 if shape.norm == "rms" else 24.0
    if impl.autocast:
        forward += 14.0
    if impl.attention == "eager":
        forward += 6.0
    if shape.experts > 1:
        # Routing, sorting by expert, and two grouped products.
        forward += 20.0
    if shape.adapter is not None:
        # Two products, a scaling and a sum beside each adapted layer; with DoRA as many for the weight's lengths, two
        # scalings and a sum of the outputs.
        forward += 4.0 * len(shape.adapter.matrices) + 12.0 * len(shape.adapter.normed) + unpacking_kernels(shape)
    # Selective checkpointing passes each operator of forward and recomputation through a Python dispatch mode.
    python = np.where(c.checkpointing == SELECTIVE, 2.0 * DISPATCH_MODE * (impl.selective == "matmuls"), 0.0)
    python = (python + SAVED_HOOKS) * c.checkpointed(shape.layers) / shape.layers
    per_block = forward * (1.0 + trained_part.depth(shape) * (2.0 + repeated.elementwise + python))
    per_block = np.where(c.compiled > 0, per_block * COMPILED_KERNELS, per_block)
    kernels: Array = shape.layers * per_block + 60.0 + loss_terms.later_chunks_kernels(c)
    return kernels
