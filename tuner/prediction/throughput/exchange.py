"""What ranks send each other within a pass: positions for heads, and back; what a block's parts add up to; tokens to experts."""

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes
from shardtune.tuner.prediction.collectives import ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.rates import Network, Rates

_EXCHANGES = 4.0
"""Of queries, keys, values and the output, in one pass through a block."""
_LAUNCHES = 60.0
"""Host time of one exchange, in launches of an operator: layout, the collective's Python, waiting for it. One CPU rank took 80
forward and 44 backward."""


def context_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds of one micro batch, forward and backward; nothing hides them, since attention waits.

    An all-to-all sends as much as an all-gather of a whole of the same size, (n-1)/n of it through each link, and is taken to
    be as fast: collectives are measured without it. Recomputation makes those of forward again (of the output too where a
    whole block is repeated).
    """
    elements = c.tokens * (2.0 * shape.query + 2.0 * shape.kv)
    passes = 2.0 * shape.layers + c.checkpointed(shape.layers)
    calls = _EXCHANGES * passes
    sent = ring_seconds(elements * dtypes.compute * passes, calls, c.context, network, stride=c.tensor)
    return np.where(c.context > 1, sent + calls * _LAUNCHES * rates.launch_s, 0.0)


_SUMS = 2.0
"""Children of a block that are split: attention and the MLP, each with a gather before it and a sum scattered after it."""


def tensor_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds of one micro batch, forward and backward: hidden states of all positions are gathered and scattered around each
    child, which nothing hides. Forward's gathers are made again in recomputation, and the head has one of its own."""
    whole = c.tokens * c.tensor * shape.hidden * dtypes.compute
    passes = 2.0 * shape.layers + c.checkpointed(shape.layers)
    calls = _SUMS * passes
    gathers = ring_seconds(whole * (calls + 1.0), calls + 1.0, c.tensor, network)
    sums = ring_seconds(whole * (calls + 1.0), calls + 1.0, c.tensor, network, "reduce_scatter")
    return np.where(c.tensor > 1, gathers + sums + 2.0 * calls * _LAUNCHES * rates.launch_s, 0.0)


_VISITS = 2.0
"""Of tokens in one pass through a block: to the ranks of their experts, and back."""


def expert_seconds(shape: ModelShape, c: Candidates, dtypes: Dtypes, rates: Rates, network: Network) -> Array:
    """Seconds of one micro batch, forward and backward: each token goes to as many experts as it visits, and comes back; experts wait
    for it. Taken to be chosen equally often, and an all-to-all to be as fast as in `context_seconds`; recomputation makes
    forward's again."""
    passes = 2.0 * shape.layers + c.checkpointed(shape.layers)
    calls = _VISITS * passes
    sent = c.tokens * shape.experts_per_token * shape.hidden * dtypes.compute
    # How many come is said before each forward pass.
    said = passes - shape.layers
    seconds = ring_seconds(sent * calls, calls, c.experts, network) + ring_seconds(
        8.0 * shape.experts * said, said, c.experts, network
    )
    return np.where(c.experts > 1, seconds + (calls + said) * _LAUNCHES * rates.launch_s, 0.0)
