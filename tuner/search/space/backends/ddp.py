"""Search space of DDP (DistributedDataParallel)."""

from functools import cached_property

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig
from shardtune.tuner.search.space.backends.record import SearchedBackend
from shardtune.tuner.search.space.define_by_run import DefineByRun
from shardtune.tuner.search.space.domains import Domains
from shardtune.tuner.search.space.legal_values import GRAD_SYNC, Knob

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
    has_peers, sizes = drawing.domains.world > 1, drawing.domains.backend_sizes(DdpSizes)
    drawing.pick_if("bucket_cap_mb", has_peers, sizes.bucket_cap_mb, _DEFAULT.bucket_cap_mb)
    drawing.pick("gradient_as_bucket_view", (False, True))
    drawing.pick_if("grad_sync", has_peers and accumulates, ("every", "last"), _DEFAULT.grad_sync)
    if accumulates:
        # torch 2.13: static_graph under no_sync skips reductions, so a pin is not honoured here.
        drawing.table["static_graph"] = False
    else:
        drawing.pick("static_graph", (False, True))


def _defaults(_cluster: Cluster) -> list[DdpConfig]:
    return [DdpConfig()]


BACKEND = SearchedBackend(
    config=DdpConfig,
    knobs={
        "grad_sync": GRAD_SYNC,
        "bucket_cap_mb": Knob("int", maximum=4096, accepts_own_values=True, lightest="min", makes_twins=True),
        "gradient_as_bucket_view": Knob("bool", lightest=True, makes_twins=True),
        "static_graph": Knob("bool", lightest=False, makes_twins=True),
    },
    draw=_draw,
    defaults=_defaults,
)
