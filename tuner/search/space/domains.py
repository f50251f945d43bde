"""Candidate values, derived from the model, the workload and the cluster: never fixed numbers where the model's size decides."""

from dataclasses import dataclass
from functools import cached_property

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.models import ModelProfile
from shardtune.api_schemas.strategies import DdpConfig, ZeroConfig
from shardtune.api_schemas.workload import Workload, gradient_accumulation

_MIB = 1 << 20
_ZERO = ZeroConfig(stage=3)
_DDP = DdpConfig()


def divisors(number: int) -> tuple[int, ...]:
    """All divisors in rising order."""
    low = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return tuple(sorted({*low, *(number // k for k in low)}))


@dataclass(frozen=True)
class Domains:
    """Values worth trying for each knob of one study."""

    workload: Workload
    cluster: Cluster
    profile: ModelProfile
    nvme: bool
    """A probe found NVMe offload working and the user allows it."""

    @property
    def world(self) -> int:
        """Ranks of every trial; all of them are data-parallel."""
        return self.cluster.world_size

    @property
    def on_gpu(self) -> bool:
        """False: gloo CPU ranks, where overlap, pinning and prefetch depth do nothing."""
        return self.cluster.device == "cuda"

    @cached_property
    def micro_batches(self) -> tuple[int, ...]:
        """Every micro batch that divides one rank's share of the global batch.

        Raises:
            ValueError: the ranks do not divide the global batch.
        """
        return divisors(gradient_accumulation(self.workload.global_batch, 1, self.world))

    def accumulation(self, micro_batch: int) -> int:
        """Micro batches per step, at least 1 (a foreign micro batch need not divide)."""
        return max(1, self.workload.global_batch // (micro_batch * self.world))

    def _up_to_model(self, candidates: tuple[int, ...], default: int) -> tuple[int, ...]:
        """Even sizes up to the whole model: a larger one is the same. DeepSpeed asserts that gather buckets are even.

        The documented default takes the place of the whole model where it is larger, so that it is in the space.
        """
        whole = self.profile.parameters
        sizes = {size + size % 2 for size in candidates if 0 <= size < whole}
        return tuple(sorted({*sizes, default if default >= whole else whole + whole % 2}))

    @cached_property
    def bucket_cap_mb(self) -> tuple[int, ...]:
        """MiB of gradients in one, two or four blocks, torch's default, and the whole model."""
        size = DTYPE_BYTES[self.workload.recipe.master_dtype]
        block, whole = self.profile.largest_block * size, self.profile.parameters * size
        whole_mib = max(_DDP.bucket_cap_mb, min(4096, -(-whole // _MIB)))
        candidates = (_DDP.bucket_cap_mb, *(-(-block * k // _MIB) for k in (1, 2, 4)))
        return tuple(sorted({mib for mib in candidates if 1 <= mib < whole_mib} | {whole_mib}))

    @cached_property
    def reduce_bucket_size(self) -> tuple[int, ...]:
        """A hidden-size square, one, two and four blocks, the whole model; buckets are allocated in full, so never more."""
        block, whole = self.profile.largest_block, self.profile.parameters
        sizes = (self.profile.hidden_size**2, block, 2 * block, 4 * block, _ZERO.reduce_bucket_size)
        return tuple(sorted({min(size, whole) + min(size, whole) % 2 for size in sizes if size}))

    @cached_property
    def allgather_bucket_size(self) -> tuple[int, ...]:
        """One block, four blocks, everything at once."""
        block = self.profile.largest_block
        return self._up_to_model((block, 4 * block, _ZERO.allgather_bucket_size), _ZERO.allgather_bucket_size)

    @cached_property
    def stage3_prefetch_bucket_size(self) -> tuple[int, ...]:
        """Nothing, a hidden-size square, one or two blocks, DeepSpeed's default."""
        block, default = self.profile.largest_block, _ZERO.stage3_prefetch_bucket_size
        return self._up_to_model((0, self.profile.hidden_size**2, block, 2 * block, default), default)

    @cached_property
    def stage3_param_persistence_threshold(self) -> tuple[int, ...]:
        """Nothing; vectors (Hugging Face's 10 × hidden); DeepSpeed's default; up to a hidden-size square."""
        hidden = self.profile.hidden_size
        return tuple(sorted({0, 10 * hidden, _ZERO.stage3_param_persistence_threshold, hidden * hidden + 1}))

    @cached_property
    def stage3_max_live_parameters(self) -> tuple[int, ...]:
        """Two or eight blocks, or no limit."""
        block = self.profile.largest_block
        return self._up_to_model((2 * block, 8 * block), _ZERO.stage3_max_live_parameters)

    @cached_property
    def stage3_max_reuse_distance(self) -> tuple[int, ...]:
        """Nothing is kept; two blocks; DeepSpeed's default, which keeps a small model whole from forward to backward."""
        return (0, 2 * self.profile.largest_block, _ZERO.stage3_max_reuse_distance)

    @cached_property
    def sub_group_size(self) -> tuple[int, ...]:
        """Elements of one rank's partition: a block's share, four blocks' share, everything at once."""
        partition = -(-self.profile.parameters // self.world)
        share = -(-self.profile.largest_block // self.world)
        smaller = {size for size in (share, 4 * share, _ZERO.sub_group_size) if size < partition}
        return tuple(sorted(smaller | {max(_ZERO.sub_group_size, partition)}))

    @cached_property
    def zero_hpz_partition_size(self) -> tuple[int, ...]:
        """1 (off) and groups smaller than the world; across nodes a group stays within one."""
        if self.cluster.nodes > 1:
            return divisors(self.cluster.gpus_per_node)
        return divisors(self.world)[:-1] if self.world >= 4 else (1,)

    def reshard_groups(self, dp_shard: int) -> tuple[int, ...]:
        """Proper divisors of the shard group."""
        return divisors(dp_shard)[1:-1]

    @cached_property
    def blocks_per_unit(self) -> tuple[int, ...]:
        """Powers of two up to the number of blocks, and to 8."""
        return tuple(k for k in (1, 2, 4, 8) if k == 1 or k <= len(self.profile.blocks))

    def prefetch_depths(self, blocks_per_unit: int, default: int) -> tuple[int, ...]:
        """0, 1 and 2 units where there are that many more units."""
        units = -(-len(self.profile.blocks) // blocks_per_unit)
        return tuple(depth for depth in (0, 1, 2) if depth < units or depth == default)
