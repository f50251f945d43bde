"""Search space of DDP (DistributedDataParallel)."""

from functools import cached_property

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.domains import Domains

_MIB = 1 << 20
_DEFAULT = DdpConfig()


class DdpSizes:
    """Candidate sizes of DDP's knobs, derived from the model."""

    def __init__(self, domains: Domains) -> None:
        self._domains = domains

    @cached_property
    def bucket_cap_mb(self) -> tuple[int, ...]:
        """Candidate sizes of DDP's gradient buckets in MiB: the gradients of one, two or four blocks, torch's default,
        and the whole model."""
        model_summary, size = self._domains.model_summary, DTYPE_BYTES[self._domains.workload.precision.master_dtype]
        block_bytes, model_bytes = model_summary.largest_block * size, model_summary.parameters * size
        model_mib = max(_DEFAULT.bucket_cap_mb, min(4096, -(-model_bytes // _MIB)))
        candidates = (_DEFAULT.bucket_cap_mb, *(-(-block_bytes * k // _MIB) for k in (1, 2, 4)))
        return tuple(sorted({mib for mib in candidates if 1 <= mib < model_mib} | {model_mib}))


def _draw(drawing: DefineByRun, accumulates: bool) -> None:
    drawing.draw("bucket_cap_mb", drawing.domains.backend_sizes(DdpSizes).bucket_cap_mb)
    drawing.draw("gradient_as_bucket_view")
    drawing.draw("grad_sync")
    if accumulates or drawing.domains.model_summary.leaves_parameters_unused:
        # torch 2.13: static_graph under no_sync skips reductions, and with an output that the loss does not use it waits
        # for a gradient in the third step. So a pin is not honoured here.
        drawing.table["static_graph"] = False


def _defaults(_cluster: Cluster) -> list[DdpConfig]:
    return [DdpConfig()]


BACKEND = SearchedBackend(
    config=DdpConfig,
    draw=_draw,
    defaults=_defaults,
)
