"""Time of exchanges between ranks within a pass: context parallel (positions for heads), tensor parallel (sums of a
split block's parts), expert parallel (tokens for experts)."""

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.collectives import ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates

_EXCHANGES = 4.0
"""Number of context-parallel exchanges in one pass through a block: queries, keys, values and the output."""
# One CPU rank took 80 forward and 44 backward. On H100 hosts 4.4 ms a block and micro batch remain of the eight exchanges
# of tensor parallelism and the block's launches, whatever the model's width (docs/measurements/parallel.md): 65 each.
_LAUNCHES = 60.0
"""Host time of one exchange between ranks (of context, tensor or expert parallelism), in multiples of the time of one
kernel launch. It covers the change of layout, the collective's Python code, and the wait for the result."""


def exchange_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, network: Network) -> Array:
    """Seconds that the device waits for the exchanges between ranks in one micro batch, forward and backward.

    The device computes nothing meanwhile, since the next operator of a block needs the result of each exchange.
    """
    return (
        _context_seconds(shape, c, dtypes, network)
        + _tensor_seconds(shape, c, dtypes, network)
        + _expert_seconds(shape, c, dtypes, network)
    )


def exchange_launches(shape: ModelShape, c: Candidates, impl: Implementation, rates: Rates, network: Network) -> Array:
    """Host time of one micro batch's exchanges between ranks, in multiples of the time of one kernel launch. Like
    launches, it overlaps with the device's work."""
    passes = _passes(shape, c)
    spans_hosts = (c.tensor > 1) & (c.stages > 1) & (c.ranks * c.stages > network.gpus_per_node)
    tensor_launches = _LAUNCHES + spans_hosts * c.tensor * impl.spanning_exchange_s / rates.launch_s
    return (
        np.where(c.context > 1, _EXCHANGES * passes * _LAUNCHES, 0.0)
        + np.where(c.tensor > 1, 2.0 * _SUMS * passes * tensor_launches, 0.0)
        + np.where(c.experts > 1, (_VISITS * passes + passes - shape.layers) * _LAUNCHES, 0.0)
    )


def _passes(shape: ModelShape, c: Candidates) -> Array:
    """Number of passes through a block in one micro batch, recomputation included."""
    return 2.0 * shape.layers + c.checkpointed(shape.layers)


def _context_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, network: Network) -> Array:
    """Seconds of one micro batch's context-parallel exchanges, forward and backward."""
    # An all-to-all sends as much as an all-gather of the same total, (n-1)/n of it through each link, and is assumed to
    # be as fast: it was not measured. Recomputation repeats forward's (of the output too where a whole block is
    # repeated).
    elements = c.tokens * (2.0 * shape.query + 2.0 * shape.kv)
    passes = _passes(shape, c)
    calls = _EXCHANGES * passes
    size = elements * dtypes.compute * passes
    sent = ring_seconds(size, calls, c.context, network, stride=c.tensor, pattern="all_to_all")
    return np.where(c.context > 1, sent, 0.0)


_SUMS = 2.0
"""Number of submodules of a block that tensor parallelism splits: attention and the MLP, each with an all-gather before
it and a reduce-scatter after it."""


def _tensor_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, network: Network) -> Array:
    """Seconds of one micro batch's tensor-parallel exchanges, forward and backward.

    Hidden states of all positions are gathered before, and scattered after, each of a block's split submodules
    (attention and MLP).
    """
    all_positions = c.tokens * c.tensor * shape.hidden * dtypes.compute
    passes = _passes(shape, c)
    # Recomputation repeats forward's gathers, and the head has one of its own.
    calls = _SUMS * passes
    gathers = ring_seconds(all_positions * (calls + 1.0), calls + 1.0, c.tensor, network)
    sums = ring_seconds(all_positions * (calls + 1.0), calls + 1.0, c.tensor, network, "reduce_scatter")
    # Nothing is queued behind such a call, so each step of its ring is as late as the hop between two hosts.
    spans_hosts = c.tensor > network.gpus_per_node
    ring_steps = np.where(spans_hosts, 2.0 * (calls + 1.0) * (c.tensor - 1.0), 0.0)
    return np.where(c.tensor > 1, gathers + sums + ring_steps * network.inter_step_s, 0.0)


_VISITS = 2.0
"""Number of expert-parallel exchanges in one pass through a block: tokens to the ranks of their experts, and back."""


def _expert_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, network: Network) -> Array:
    """Seconds of one micro batch's expert-parallel exchanges, forward and backward."""
    passes = _passes(shape, c)
    # Experts are assumed to be chosen equally often, and an all-to-all to be as fast as in `context_seconds`;
    # recomputation repeats forward's.
    calls = _VISITS * passes
    sent = c.tokens * shape.experts_per_token * shape.hidden * dtypes.compute
    # The number of tokens is exchanged before each forward pass.
    count_exchanges = passes - shape.layers
    seconds = ring_seconds(sent * calls, calls, c.experts, network, pattern="all_to_all") + ring_seconds(
        8.0 * shape.experts * count_exchanges, count_exchanges, c.experts, network, pattern="all_to_all"
    )
    return np.where(c.experts > 1, seconds, 0.0)
