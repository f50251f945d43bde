"""Time of exchanges between ranks within a pass: context parallel (positions for heads), tensor parallel (sums of a
split block's parts), expert parallel (tokens for experts)."""

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes
from shardtune.tuner.prediction.collectives import ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates

_EXCHANGES = 4.0
"""Number of context-parallel exchanges in one pass through a block: queries, keys, values and the output."""
# One CPU rank took 80 forward and 44 backward.
_LAUNCHES = 60.0
"""Host time of one exchange between ranks, in kernel launches: layout, the collective's Python code, waiting for it."""


def context_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds of one micro batch's context-parallel exchanges, forward and backward; attention waits for them, so they
    overlap with nothing."""
    # An all-to-all sends as much as an all-gather of the same total, (n-1)/n of it through each link, and is assumed to
    # be as fast: it was not measured. Recomputation repeats forward's (of the output too where a whole block is
    # repeated).
    elements = c.tokens * (2.0 * shape.query + 2.0 * shape.kv)
    passes = 2.0 * shape.layers + c.checkpointed(shape.layers)
    calls = _EXCHANGES * passes
    sent = ring_seconds(elements * dtypes.compute * passes, calls, c.context, network, stride=c.tensor)
    return np.where(c.context > 1, sent + calls * _LAUNCHES * rates.launch_s, 0.0)


_SUMS = 2.0
"""Number of a block's children that tensor parallelism splits: attention and the MLP, each with a gather before it and
a scattered sum after it."""


def tensor_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds of one micro batch's tensor-parallel exchanges, forward and backward.

    Hidden states of all positions are gathered and scattered around each of a block's children; these exchanges overlap
    with nothing.
    """
    all_positions = c.tokens * c.tensor * shape.hidden * dtypes.compute
    passes = 2.0 * shape.layers + c.checkpointed(shape.layers)
    # Recomputation repeats forward's gathers, and the head has one of its own.
    calls = _SUMS * passes
    gathers = ring_seconds(all_positions * (calls + 1.0), calls + 1.0, c.tensor, network)
    sums = ring_seconds(all_positions * (calls + 1.0), calls + 1.0, c.tensor, network, "reduce_scatter")
    return np.where(c.tensor > 1, gathers + sums + 2.0 * calls * _LAUNCHES * rates.launch_s, 0.0)


_VISITS = 2.0
"""Number of expert-parallel exchanges in one pass through a block: tokens to the ranks of their experts, and back."""


def expert_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds of one micro batch's expert-parallel exchanges, forward and backward; experts wait for their tokens, so
    these overlap with nothing."""
    passes = 2.0 * shape.layers + c.checkpointed(shape.layers)
    # Experts are assumed to be chosen equally often, and an all-to-all to be as fast as in `context_seconds`;
    # recomputation repeats forward's.
    calls = _VISITS * passes
    sent = c.tokens * shape.experts_per_token * shape.hidden * dtypes.compute
    # The number of tokens is exchanged before each forward pass.
    count_exchanges = passes - shape.layers
    seconds = ring_seconds(sent * calls, calls, c.experts, network) + ring_seconds(
        8.0 * shape.experts * count_exchanges, count_exchanges, c.experts, network
    )
    return np.where(c.experts > 1, seconds + (calls + count_exchanges) * _LAUNCHES * rates.launch_s, 0.0)
